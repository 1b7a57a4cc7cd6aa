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
# The least share of the words of the training data that a table has: tables of another language have less
LEAST_KNOWN = 0.05


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
    section = f"[initialize.components.{pipe.name}"
    saved_tables = {name: table for features in stores for name, table in features.clusters.items()}
    tables_read = dict.fromkeys(chain.from_iterable(features.feature_set.cluster_tables for features in stores))
    clusters = {}
    for name in dict.fromkeys([*tables_read, *words.clusters]):
        table = _read_words(
            pipe,
            partial(read_clusters, table=name),
            words.clusters.get(name),
            saved_tables.get(name),
            is_read=name in tables_read,
            are_kept=are_kept,
            what=f"clusters '{name}'" if name else "clusters",
            template=f"cluster:{name}[-1..1]" if name else "cluster6[-1..1]",
            settings=f"{section}.words.tables] {name}" if name else f"{section}] clusters",
        )
        if table is not None:
            clusters[name] = table
    vectors = _read_words(
        pipe,
        read_vectors,
        words.vectors,
        next((features.vectors for features in stores if features.vectors is not None), None),
        is_read=any(features.feature_set.vector_offsets for features in stores),
        are_kept=are_kept,
        what="vectors",
        template="vector[-1..1]",
        settings=f"[initialize] vectors and {section}] vectors",
    )
    gazetteers_read = set(chain.from_iterable(features.feature_set.gazetteers for features in stores))
    unused = [name for name in words.gazetteers if name not in gazetteers_read]
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
    saved_gazetteers = {name: gazetteer for features in stores for name, gazetteer in features.gazetteers.items()}
    lang = str(pipe.vocab.lang)
    gazetteers = read_gazetteers(words.gazetteers, tokenizer, saved_gazetteers, owner=pipe.owner, lang=lang)
    for features in stores:
        features.set_lists(gazetteers, clusters, vectors)


def _read_words(
    pipe: LearningPipe,
    read: Callable[..., WordTable],
    source: object,
    saved: Optional[WordTable],
    *,
    is_read: bool,
    are_kept: bool,
    what: str,
    template: str,
    settings: str,
) -> Optional[WordTable]:
    """Read clusters or vectors of words.

    read (Callable): Reads the words from their source, or returns the saved ones without a source.
    source (object): What the config names; None for nothing.
    saved (Optional[WordTable]): The words in the saved component.
    is_read (bool): Whether a template reads the words.
    are_kept (bool): Whether the weights are those of the saved component.
    what (str), template (str), settings (str): The kind of words, a template that would read them, and the settings that name
        them, for messages.
    RETURNS (Optional[WordTable]): The words; None if no template reads them.
    RAISES (ValueError): CRF944 or CRF950, see `set_lists`.
    """
    if not is_read:
        if source is not None:
            raise ValueError(Errors.CRF944.format(name=pipe.name, what=what, template=template, setting=what))
        return None
    words = read(source, saved, pipe.vocab, name=pipe.name)
    # The weights are those of features of the saved words, and would be wrong for others
    if are_kept and saved is not None and words != saved:
        raise ValueError(Errors.CRF950.format(name=pipe.name, what=what, settings=settings))
    return words


def announce(pipe: LearningPipe) -> None:
    """Log how many words have the clusters and vectors that a component (`pipe`) reads: words of another language have few.

    RAISES (ValueError): CRF947 for a table of clusters that knows fewer than `LEAST_KNOWN` of the words.
    """
    stores = pipe.feature_stores
    has_annotation = pipe.training.new_features is None
    announced: set[str] = set()
    for features in stores:
        clustered = features.clustered if features.clusters else None
        # [words] whether each word is in a cluster, for each table
        are_clustered = () if clustered is None else clustered.have_cluster.T
        for (name, table), is_clustered in zip(features.clusters.items(), are_clustered):
            if name not in announced:
                announced.add(name)
                n_clustered = int(is_clustered.sum())
                _announce_table(pipe, name, n_clustered, len(is_clustered), len(table), has_annotation)
    # All nodes read the same vectors
    for n_found, n_words in [features.have_vectors for features in stores if features.feature_set.vector_offsets][:1]:
        if n_words and not n_found:
            pipe.warn(Warnings.CRFW940, n=n_words, what="has a vector")
        else:
            text = "%s: %d of %d words of the training data have a vector"
            announcements.info(text, pipe.name, n_found, n_words)


def _announce_table(
    pipe: LearningPipe, table: str, n_found: int, n_words: int, size: int, has_annotation: bool
) -> None:
    """Log how many of the words of the training data are in a table of clusters.

    table (str): Name of the table; the empty string for the only one.
    n_found (int): How many of the `n_words` words of the training data are in the table, which has `size` words.
    RAISES (ValueError): CRF947 for too few, which only a table of another language has, if the data `has_annotation`.
    """
    # A table of the most frequent words alone may have few of the words of a large corpus
    if has_annotation and n_found < LEAST_KNOWN * min(n_words, size):
        section = f"[initialize.components.{pipe.name}"
        raise ValueError(
            Errors.CRF947.format(
                name=pipe.name,
                found=n_found,
                n=n_words,
                table=f" '{table}'" if table else "",
                share=n_found / n_words,
                setting=f"{section}.words.tables] {table}" if table else f"{section}] clusters",
            )
        )
    share = 100 * n_found / max(1, n_words)
    what = f"a cluster of '{table}'" if table else "a cluster"
    text = "%s: %d of %d words of the training data are in %s (%.1f %%)"
    announcements.info(text, pipe.name, n_found, n_words, what, share)
