"""Lists of words that templates read: clusters, vectors and gazetteers, from the settings of the initialization."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple, Optional, TypeVar

from spacy.language import Language
from spacy.tokens import Doc

from .. import checks
from ..errors import Errors, Warnings, announcements
from ..features.clusters import TABLE_NAME, read_clusters
from ..features.gazetteers import GazetteerFile, read_gazetteers
from ..features.word_vectors import read_vectors
from .pipe import LearningPipe

WordTable = TypeVar("WordTable")  # clusters or vectors
LEAST_KNOWN = 0.05  # of the words of the training data: less knows a table of another language


class Settings(NamedTuple):
    """The lists of words that the settings of the initialization name."""

    clusters: dict[str, object]  # by the name that templates use
    vectors: object
    gazetteers: dict[str, GazetteerFile]


def read_settings(pipe: LearningPipe, gazetteers: object, clusters: object, vectors: object, words: object) -> Settings:
    """Read the settings about words of [initialize.components.NAME], single ones or one table `words`.

    pipe (LearningPipe): The component.
    gazetteers (object), clusters (object), vectors (object), words (object): See `LearningPipe.initialize`.
    RAISES (ValueError): CRF020.
    """
    owner = f"[initialize.components.{pipe.name}]"
    must = "a table with some of tables, vectors and gazetteers, and none of these beside it (its tables are clusters)"
    words = checks.table(owner, "words", words, must)
    single_settings = {"tables": clusters, "vectors": vectors, "gazetteers": gazetteers}  # by their keys in `words`
    are_given_once = all(words.get(key) is None or value is None for key, value in single_settings.items())
    checks.expect(are_given_once and words.keys() <= single_settings.keys(), owner, "words", words, must)
    tables = words.get("tables")
    if not isinstance(tables, dict):  # a single table of clusters without a name
        tables = {"": clusters if tables is None else tables}
    are_names = all(TABLE_NAME.fullmatch(name) or len(tables) == 1 for name in tables)
    checks.expect(
        are_names, f"{owner[:-1]}.words]", "tables", tables, "tables under names without blanks, colons and brackets"
    )
    given_tables = {name: table for name, table in tables.items() if table is not None}
    files = checks.table(pipe.owner, "gazetteers", words.get("gazetteers", gazetteers), "files")
    return Settings(given_tables, words.get("vectors", vectors), files)


def set_lists(pipe: LearningPipe, words: Settings, nlp: Optional[Language], *, are_kept: bool) -> None:
    """Give the templates of a component the lists that they read.

    pipe (LearningPipe): The component.
    words (Settings): The lists that the config names.
    nlp (Optional[Language]): The pipeline, whose tokenizer splits the entries of gazetteers; None to split at blanks.
    are_kept (bool): Whether the weights are those of a saved component.
    RAISES (ValueError): CRF944 for lists that no template reads, CRF950 for lists other than those of kept weights.
    """
    stores = pipe.feature_stores
    own = f"[initialize.components.{pipe.name}]"
    known = {name: table for features in stores for name, table in features.clusters.items()}
    wanted = dict.fromkeys(chain.from_iterable(features.feature_set.cluster_tables for features in stores))
    clusters = {}
    for name in dict.fromkeys([*wanted, *words.clusters]):
        settings = f"{own[:-1]}.words.tables] {name}" if name else f"{own} clusters"
        template = f"cluster:{name}[-1..1]" if name else "cluster6[-1..1]"
        given = words.clusters.get(name)
        read = partial(read_clusters, table=name)
        what = f"clusters '{name}'" if name else "clusters"
        table = _of_words(pipe, are_kept, what, template, settings, given, known.get(name), name in wanted, read)
        clusters |= {} if table is None else {name: table}
    settings = f"[initialize] vectors and {own} vectors"
    known = next((features.vectors for features in stores if features.vectors is not None), None)
    are_read = any(features.feature_set.vector_offsets for features in stores)
    vectors = _of_words(
        pipe, are_kept, "vectors", "vector[-1..1]", settings, words.vectors, known, are_read, read_vectors
    )
    wanted = set(chain.from_iterable(features.feature_set.gazetteers for features in stores))
    unused = [name for name in words.gazetteers if name not in wanted]
    if unused:
        raise ValueError(
            Errors.CRF944.format(
                name=pipe.name,
                setting="gazetteers",
                what=f"gazetteers {', '.join(unused)}",
                template=f"in:{unused[0]}[0]",
            )
        )
    # Entries are compared with tokens, so they are split as texts are
    tokenizer = nlp.make_doc if nlp is not None else lambda text: Doc(pipe.vocab, words=text.split())
    known = {name: gazetteer for features in stores for name, gazetteer in features.gazetteers.items()}
    read = read_gazetteers(words.gazetteers, tokenizer, known, owner=pipe.owner, lang=str(pipe.vocab.lang))
    for features in stores:
        features.set_lists(read, clusters, vectors)


def _of_words(
    pipe: LearningPipe,
    are_kept: bool,
    what: str,
    template: str,
    settings: str,
    given: object,
    known: Optional[WordTable],
    are_read: bool,
    read: Callable[..., WordTable],
) -> Optional[WordTable]:
    """Clusters or vectors of words: those that the config names, or those of the model; None if no template reads any."""
    name = pipe.name
    if not are_read:
        if given is not None:
            raise ValueError(Errors.CRF944.format(name=name, what=what, template=template, setting=what))
        return None
    found = read(given, known, pipe.vocab, name=name)
    # Weights of features of other words would be wrong
    if are_kept and known is not None and found != known:
        raise ValueError(Errors.CRF950.format(name=name, what=what, settings=settings))
    return found


def announce(pipe: LearningPipe) -> None:
    """Log how many words have the clusters and vectors that a component (`pipe`) reads: words of another language have few.

    RAISES (ValueError): CRF947 for a table of clusters that knows fewer than `LEAST_KNOWN` of the words.
    """
    stores = pipe.feature_stores
    is_learned = pipe.training.new_features is None  # there was annotation
    announced: set[str] = set()
    for features in stores:
        known = features.clustered if features.clusters else None
        # [words] whether each word is in a cluster, for each table
        for (name, table), found in zip(features.clusters.items(), () if known is None else known.are_in_one.T):
            if name not in announced:
                announced.add(name)
                _announce_table(pipe, name, int(found.sum()), len(found), len(table), is_learned)
    for found, n in [features.have_vectors for features in stores if features.feature_set.vector_offsets][:1]:
        if n and not found:
            pipe.warn(Warnings.CRFW940, n=n, what="has a vector")
        else:
            announcements.info("%s: %d of %d words of the training data have a vector", pipe.name, found, n)


def _announce_table(pipe: LearningPipe, table: str, found: int, n: int, size: int, is_learned: bool) -> None:
    """Log how many of n words are in the clusters of a table of some size. RAISES (ValueError): CRF947 for too few."""
    name = pipe.name
    own = f"[initialize.components.{pipe.name}"
    # A table of the most frequent words alone may have few of the words of a large corpus
    if is_learned and found < LEAST_KNOWN * min(n, size):
        raise ValueError(
            Errors.CRF947.format(
                name=name,
                found=found,
                n=n,
                table=f" '{table}'" if table else "",
                share=found / n,
                setting=f"{own}.words.tables] {table}" if table else f"{own}] clusters",
            )
        )
    share = 100 * found / max(1, n)
    what = f"a cluster of '{table}'" if table else "a cluster"
    announcements.info("%s: %d of %d words of the training data are in %s (%.1f %%)", name, found, n, what, share)
