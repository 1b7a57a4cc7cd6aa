"""Where clusters of words come from: a file, the package spacy-lookups-data, the vocab's table, or word vectors."""

from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from spacy.lookups import load_lookups
from spacy.util import registry
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, announcements
from .clusters import Clusters, WordClusters, of_lookups, read_file
from .vector_clusters import cluster_vectors

ClusterSource = Union[str, Path, dict[str, Any]]

PACKAGE = "spacy-lookups-data"
VECTORS = "vectors"
_TABLE = "lexeme_cluster"
_N_CLUSTERS = 1000


class _Settings(NamedTuple):
    path: str
    most_words: Optional[int] = None
    n: Optional[int] = None


def read_clusters(
    given: Optional[ClusterSource], known: Optional[Clusters], vocab: Vocab, *, name: str
) -> Optional[Clusters]:
    """The clusters that a config names. A file that is not there is no error where the model brought clusters along.

    known (Clusters): Those of the model, which stay if none are given.
    name (str): Of the component, for messages.
    RETURNS (Clusters): None if there are none: then the vocab's table is taken, if it has one.
    RAISES (ValueError): CRF943 to CRF948 for what can't be read or made.
    """
    if given is None:
        if known is None and vocab.lookups.has_table(_TABLE):
            return Clusters(of_lookups(vocab.lookups.get_table(_TABLE).items(), f"the vocab's table '{_TABLE}'"))
        return known
    settings = _settings(given, name)
    if settings.path == PACKAGE:
        read = _packaged(vocab)
    elif settings.path == VECTORS:
        read = cluster_vectors(vocab.vectors, settings.n or _N_CLUSTERS, "the pipeline")
    elif known is not None and not Path(settings.path).exists():
        text = "Component '%s': the clusters are those of the model: there is no file %s"
        announcements.info(text, name, settings.path)
        return known
    else:
        read = read_file(Path(settings.path))
    clusters = Clusters(read.first(settings.most_words))
    announcements.info("%s: %d words in %d clusters", name, len(clusters), len(clusters.paths))
    return clusters


def _settings(given: Any, name: str) -> _Settings:
    """RAISES (ValueError): CRF020."""
    fields = dict(given) if isinstance(given, dict) else {"path": given}
    path = fields.get("path")
    counts = [fields[key] for key in ("most_words", "n") if fields.get(key) is not None]
    is_possible = isinstance(path, (str, Path)) and str(path) and fields.keys() <= {*_Settings._fields}
    is_possible = is_possible and all(type(count) is int and count > 0 for count in counts)
    is_possible = is_possible and (fields.get("n") is None or path == VECTORS)
    must = 'the path of a file, "spacy-lookups-data" or "vectors", or a table with this as \'path\', and optionally '
    must += (
        "'most_words' (how many of the most frequent words to keep) and 'n' (how many clusters to make from vectors)"
    )
    checks.expect(is_possible, f"[initialize.components.{name}]", "clusters", given, must)
    return _Settings(**{**fields, "path": str(path)})


def _packaged(vocab: Vocab) -> WordClusters:
    """RAISES (ValueError): CRF946 if the package is not there, or has none of this language."""
    lang = vocab.lang
    if lang not in registry.lookups:
        reason = f"{PACKAGE} is not installed, or has nothing of it: pip install 'spacy-crf[clusters]'"
        raise ValueError(Errors.CRF946.format(lang=lang, reason=reason))
    if _TABLE not in registry.lookups.get(lang):
        raise ValueError(Errors.CRF946.format(lang=lang, reason=f"{PACKAGE} has some of en, de and es"))
    table = load_lookups(lang, [_TABLE]).get_table(_TABLE)
    return of_lookups(table.items(), PACKAGE)
