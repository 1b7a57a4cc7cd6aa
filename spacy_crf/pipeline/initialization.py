"""The steps that initialize a component: find its labels, count its features, and prepare a streamed corpus."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Token
from spacy.training import Example, validate_get_examples
from spacy.util import check_lexeme_norms
from thinc.api import Optimizer

from .. import checks
from ..errors import Errors, Warnings, announcements, counted
from ..features.clusters import TABLE_NAME, read_clusters
from ..features.doc_batch import DocBatch
from ..features.gazetteers import read_gazetteers
from ..features.word_vectors import read_vectors
from ..inference.linear_chain import LinearChain
from ..kernels import announcing
from ..models.node import AnnotatedDocs, forget
from ..models.objective import TiedObjective
from ..models.pool import held_out_sequences
from ..optimizers.objective import CRFOptimizer
from .annotation.annotation import GoldReport
from .corpora import only_young_searched
from .earlier_components import annotator, annotators_that_learn, require_upstream
from .learned_texts import LearnedTexts
from .new_texts import labels_of
from .pipe import LearningPipe
from .saving import FILE_NAME, forget_gradients, unchanged_by_errors
from .tokenization import TokenComparison
from .training_data import PreparedCorpus, view_for

Read = Callable[[], Iterable[Example]]

LEAST_KNOWN = 0.05  # of the words of the training data: less knows a table of another language
_PER_PAIR = 2.6e-10  # seconds of CPU for a pass of a chain, for each token and pair of tags
_LONG_PASS = 10.0  # seconds


def initialize(pipe: LearningPipe, read: Read, **settings: Any) -> None:
    """Initialize a component. After an error it is unchanged. For the settings see `LearningPipe.initialize`."""
    with unchanged_by_errors(pipe), only_young_searched():
        Initialization(pipe, read, **settings).run()


class Initialization:
    """One initialization of a component: the steps it takes, and what they have found out so far.

    For its arguments see `LearningPipe.initialize`.
    """

    def __init__(
        self,
        pipe: LearningPipe,
        read: Read,
        *,
        nlp: Optional[Language],
        labels: Optional[Iterable[str]],
        start_from: Any,
        corpus: Any,
        shards: Any,
        **lists: Any,
    ):
        self.pipe, self.read, self.nlp, self.labels = pipe, read, nlp, labels
        self.corpus, self.shards = corpus, shards
        self._take_words(**lists)
        possible = labels is None or (isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)))
        checks.expect(possible, pipe.owner, "labels", labels, "a list of texts")
        checks.expect(corpus is None or callable(corpus), pipe.owner, "corpus", corpus, "a reader of examples")
        checks.expect(corpus is None or nlp is not None, pipe.owner, "nlp", nlp, "the pipeline for which corpus reads")
        must = 'a block with @misc = "spacy_crf.shards.v1"'
        checks.expect(shards is None or hasattr(shards, "begin"), pipe.owner, "shards", shards, must)
        if nlp is not None and pipe.has_encoder:
            require_upstream(pipe.name, pipe.model, nlp)
        self.saved = _saved(pipe, start_from)
        self.optimizer = pipe.training.first_optimizer(nlp)
        self.is_streamed = nlp is not None and (nlp.config.get("training") or {}).get("max_epochs") == -1
        wants_whole = isinstance(self.optimizer, CRFOptimizer) and self.optimizer.wants_whole_corpus
        self.wants_stream = self.is_streamed and wants_whole  # whether each step uses the whole stream
        self.work: Any = None  # work on the shards, whose results workers fill in
        self.labels_cut: set[str] = set()  # labels of the texts in the shards
        self.had_labels = False  # whether there were labels before the annotation was read

    def run(self) -> None:
        """Take the steps of every component, and those that its parts and settings add."""
        pipe, is_new, is_sharded = self.pipe, self.saved is None, self.shards is not None
        prepares = self.wants_stream and self.corpus is not None and pipe.is_linear and not pipe.has_encoder
        self.choose_corpus()
        if is_sharded:
            self.work = self.shards.begin(pipe, self.nlp, self.optimizer, goes_on=not is_new)
        if self.nlp is not None and (prepares or pipe.training.finds_optimum or is_sharded):
            self.check_annotators(self.nlp, self.optimizer if prepares else pipe.optimizer)
        self.check_corpus()
        if is_sharded:
            self.read = self.work.cut(self.examples_to_cut())
        if not is_sharded or not self.work.restore(pipe):  # an earlier run may have counted the features of shards
            self.prepare_model(is_new)
        if is_sharded:
            pipe.training.corpus = self.work.corpus(pipe)
        elif prepares:  # the whole corpus, since every step uses all of it
            announcements.info("%s: reading the features of the corpus that every step is about", pipe.name)
            pipe.training.corpus = PreparedCorpus(pipe, self.as_in_training(), view_for(self.optimizer))

    def prepare_model(self, is_new: bool) -> None:
        """Find the labels, count the features, and choose the first weights."""
        pipe = self.pipe
        self.find_labels()
        if is_new:
            pipe.choose_settings(self.read)
        pipe.check_settings()
        if is_new:
            pipe.training.continuation = None
            pipe.training.learned = LearnedTexts(is_known=self.work is None)  # workers read the texts of shards
            forget(pipe.model)
        self.read_lists()
        if pipe.first_stage is not None and is_new:
            self.learn_first_stage()
        self.count_features()
        self.announce()
        pipe.model.attrs["role"].begin(pipe.model, self, is_new)

    # ------------------------------------------------------------------------------------------------- the corpus

    def choose_corpus(self) -> None:
        """RAISES (ValueError): CRF478 for shards of a stream without its own corpus."""
        pipe = self.pipe
        pipe.expect_kernels(announcing.TRAINING if isinstance(self.optimizer, CRFOptimizer) else announcing.PREDICTION)
        if self.corpus is not None:
            self.read = partial(self.corpus, self.nlp)
        elif self.is_streamed and self.shards is not None:
            raise ValueError(Errors.CRF478.format(name=pipe.name))
        elif self.is_streamed:
            pipe.warn(Warnings.CRFW401)
            if self.wants_stream:
                pipe.warn(Warnings.CRFW404, optimizer=type(self.optimizer).__name__)

    def check_annotators(self, nlp: Language, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF410 if annotating components are trained in the same run."""
        others = annotators_that_learn(nlp, self.pipe.name)
        if others:
            values = {"optimizer": type(optimizer).__name__, "others": ", ".join(map(repr, others))}
            raise ValueError(Errors.CRF410.format(name=self.pipe.name, **values))

    def check_corpus(self) -> None:
        """From now on, raise an error with the reason if the corpus has no texts."""
        validate_get_examples(self.read, f"{type(self.pipe).__name__}.initialize")
        check_lexeme_norms(self.pipe.vocab, self.pipe.name)
        get_examples = self.read

        def read() -> Iterator[Example]:
            example = None
            for example in get_examples():
                yield example
            if example is None:
                reason = _why_empty(self.pipe.name, self.nlp, self.corpus is not None)
                raise ValueError(Errors.CRF712.format(name=self.pipe.name, reason=reason))

        self.read = read

    def as_in_training(self) -> Iterator[Example]:
        """Examples whose predicted Docs are annotated as in `nlp.update`."""
        annotate = annotator(self.nlp, self.pipe.name, [])
        for example in self.read():
            doc = annotate(example)
            yield example if doc is example.predicted else Example(doc, example.reference)

    def examples_to_cut(self) -> Iterator[Example]:
        """Examples for the shards; collects their labels on the way, since reading millions of texts again takes minutes."""
        for example in self.as_in_training():
            if self.labels is None:
                self.labels_cut.update(labels_of(self.pipe, [example]))
            yield example

    # ------------------------------------------------------------------------------------------- labels and lists

    def find_labels(self) -> None:
        """RAISES (ValueError): CRF403 if there are no labels."""
        pipe = self.pipe
        if self.saved is not None:
            pipe.from_disk(self.saved)
        self.had_labels = bool(pipe.labels) or self.labels is not None
        for label in sorted(self.labels_cut or labels_of(pipe, self.read())) if self.labels is None else self.labels:
            pipe.add_label(label)
        if not pipe.labels:
            # The texts that `nlp.initialize` makes up if it gets none
            are_made_up = [[token.text for token in eg.reference] for eg in self.read()] == [["x", "y", "z"]]
            if not (pipe.annotation.may_have_no_labels and are_made_up):
                raise ValueError(pipe.annotation.no_labels(pipe.name, (eg.reference for eg in self.read())))

    def _take_words(self, gazetteers: Any, clusters: Any, vectors: Any, words: Any) -> None:
        """Read the settings about words: single ones, or those in `words`. RAISES (ValueError): CRF020."""
        owner = f"[initialize.components.{self.pipe.name}]"
        must = (
            "a table with some of tables, vectors and gazetteers, and none of these beside it (its tables are clusters)"
        )
        words, single = checks.table(owner, "words", words, must), (clusters, vectors, gazetteers)
        keys = ("tables", "vectors", "gazetteers")
        named_once = all(words.get(key) is None or other is None for key, other in zip(keys, single))
        checks.expect(named_once and words.keys() <= {*keys}, owner, "words", words, must)
        tables = words.get("tables")
        if not isinstance(tables, dict):  # one without a name
            tables = {"": clusters if tables is None else tables}
        names = all(TABLE_NAME.fullmatch(name) or len(tables) == 1 for name in tables)
        checks.expect(
            names, f"{owner[:-1]}.words]", "tables", tables, "tables under names without blanks, colons and brackets"
        )
        self.clusters = {name: table for name, table in tables.items() if table is not None}
        self.vectors = words.get("vectors", vectors)
        self.gazetteers = checks.table(self.pipe.owner, "gazetteers", words.get("gazetteers", gazetteers), "files")

    def read_lists(self) -> None:
        """RAISES (ValueError): CRF944 for lists that no template reads, CRF950 for lists other than those of kept weights."""
        pipe, stores = self.pipe, self.pipe.feature_stores
        own = f"[initialize.components.{pipe.name}]"
        known = {name: table for features in stores for name, table in features.clusters.items()}
        wanted = dict.fromkeys(name for features in stores for name in features.feature_set.cluster_tables)
        clusters = {}
        for name in dict.fromkeys([*wanted, *self.clusters]):
            settings = f"{own[:-1]}.words.tables] {name}" if name else f"{own} clusters"
            template = f"cluster:{name}[-1..1]" if name else "cluster6[-1..1]"
            given, read = self.clusters.get(name), partial(read_clusters, table=name)
            what = f"clusters '{name}'" if name else "clusters"
            table = self._of_words(what, template, settings, given, known.get(name), name in wanted, read)
            clusters |= {} if table is None else {name: table}
        settings = f"[initialize] vectors and {own} vectors"
        known = next((features.vectors for features in stores if features.vectors is not None), None)
        are_read = any(features.feature_set.vector_offsets for features in stores)
        vectors = self._of_words("vectors", "vector[-1..1]", settings, self.vectors, known, are_read, read_vectors)
        wanted = {name for features in stores for name in features.feature_set.gazetteers}
        unused = [name for name in self.gazetteers if name not in wanted]
        if unused:
            unread = {"what": f"gazetteers {', '.join(unused)}", "template": f"in:{unused[0]}[0]"}
            raise ValueError(Errors.CRF944.format(name=pipe.name, setting="gazetteers", **unread))
        tokenizer = self.nlp.make_doc if self.nlp is not None else lambda text: Doc(pipe.vocab, words=text.split())
        known = {name: gazetteer for features in stores for name, gazetteer in features.gazetteers.items()}
        read = read_gazetteers(self.gazetteers, tokenizer, known, owner=pipe.owner)
        for features in stores:
            features.set_lists(read, clusters, vectors)
        pipe.training.measure(self.read)

    def _of_words(
        self, what: str, template: str, settings: str, given: Any, known: Any, are_read: bool, read: Callable
    ) -> Any:
        """Clusters or vectors of words: those that the config names, or those of the model; None if no template reads any."""
        name = self.pipe.name
        if not are_read:
            if given is not None:
                raise ValueError(Errors.CRF944.format(name=name, what=what, template=template, setting=what))
            return None
        found = read(given, known, self.pipe.vocab, name=name)
        if self.saved is not None and known is not None and found != known:
            raise ValueError(Errors.CRF950.format(name=name, what=what, settings=settings))
        return found

    # ---------------------------------------------------------------------------------------- features and weights

    def learn_first_stage(self) -> None:
        """RAISES (ValueError): CRF815 if annotating components are trained in the same run; CRF811."""
        pipe = self.pipe
        others = [] if self.nlp is None else annotators_that_learn(self.nlp, pipe.name)
        if others:
            raise ValueError(Errors.CRF815.format(name=pipe.name, others=", ".join(map(repr, others))))
        if not labels_of(pipe, self.read()):
            source = "the first stage learns from the examples of nlp.initialize, which have no annotation"
            reason = f"{source}. Give the training data"
            raise ValueError(Errors.CRF811.format(name=pipe.name, reason=reason))
        pipe.first_stage.learn(pipe, self.as_in_training)

    def count_features(self) -> None:
        """Count features, in this process or by the workers of shards. Without annotation, later texts add features."""
        pipe, work = self.pipe, self.work
        if work is not None and work.count(pipe, self.had_labels):
            return
        if not count(pipe, self.read, self.nlp if work is None else None, self.had_labels):
            # There are labels but no features, as after `nlp.initialize()` without examples
            pipe.warn(Warnings.CRFW412, n=len(pipe.labels))
            pipe.training.new_features = set()

    def announce(self) -> None:
        """Log how much there is to learn, and how many words have clusters and vectors: words of another language have few.

        RAISES (ValueError): CRF947 for a table of clusters that knows fewer than `LEAST_KNOWN` of the words.
        """
        pipe, stores = self.pipe, self.pipe.feature_stores
        if pipe.sparse_features is not None:
            known = pipe.sparse_features.states
            sizes = {"label": len(pipe.labels), "feature": len(known.index), "weight": known.n_weights}
            values = [counted(n, what) for what, n in sizes.items()]
            announcements.info("%s: %s, %s of tokens with %s", pipe.name, *values)
        is_learned = pipe.training.new_features is None  # there was annotation
        told: set[str] = set()
        for features in (features for features in stores if features.clusters):
            known = features.clustered
            for (name, table), found in zip(features.clusters.items(), () if known is None else known.are_in_one.T):
                if name not in told:
                    told.add(name)
                    self._announce_table(name, int(found.sum()), len(found), len(table), is_learned)
        for found, n in [features.have_vectors for features in stores if features.feature_set.vector_offsets][:1]:
            if n and not found:
                pipe.warn(Warnings.CRFW940, n=n, what="has a vector")
            else:
                announcements.info("%s: %d of %d words of the training data have a vector", pipe.name, found, n)

    def _announce_table(self, table: str, found: int, n: int, size: int, is_learned: bool) -> None:
        """Log how many of n words are in the clusters of a table of some size. RAISES (ValueError): CRF947 for too few."""
        name, own = self.pipe.name, f"[initialize.components.{self.pipe.name}"
        # A table of the most frequent words alone may have few of the words of a large corpus
        if is_learned and found < LEAST_KNOWN * min(n, size):
            setting = f"{own}.words.tables] {table}" if table else f"{own}] clusters"
            values = {"table": f" '{table}'" if table else "", "share": found / n, "setting": setting}
            raise ValueError(Errors.CRF947.format(name=name, found=found, n=n, **values))
        share = 100 * found / max(1, n)
        what = f"a cluster of '{table}'" if table else "a cluster"
        announcements.info("%s: %d of %d words of the training data are in %s (%.1f %%)", name, found, n, what, share)

    def find_optimum(self) -> None:
        """Train the sparse features of a pool, whose objective has an optimum, by the component's own optimizer. Afterwards this
        member is fixed, and the encoder learns. Held-out texts do not count."""
        pipe, pool = self.pipe, self.pipe.model
        optimizer: Any = pipe.optimizer  # a `CRFOptimizer`, see `Training.finds_optimum`
        if pipe.training.new_features is not None:
            return
        announcements.info("%s: looking for the best weights of the features, before the encoder learns", pipe.name)

        def taught() -> Iterator[AnnotatedDocs]:
            for block in pipe.training.blocks(self.as_in_training()):
                batch = pipe.training.data(block)
                held_out = held_out_sequences(DocBatch.of(batch.docs), batch.starts, pool.attrs["held_out"])
                weights = np.ones(len(held_out)) if batch.weights is None else batch.weights
                yield batch._replace(weights=np.where(held_out, 0.0, weights))

        objective = TiedObjective(pool.layers[0], pipe.loss, taught())
        optimizer.forget(pipe.name)
        while optimizer.stop_reason(pipe.name) is None:
            optimizer.step(objective, key=pipe.name)
        optimizer.forget(pipe.name)  # its state takes much memory
        pipe.forget_scores()
        pool.attrs["role"].at_rest = 1


def count(pipe: LearningPipe, get_examples: Read, nlp: Optional[Language], had_labels: bool) -> bool:
    """Count the features of a corpus.

    RETURNS (bool): Whether any token is annotated; None without texts.
    RAISES (ValueError): CRF431 if no token is annotated and no labels were given.
    """
    report, left_out, was_read = GoldReport(), set(pipe.cfg["left_out"]), False
    says_something = pipe.model.attrs["role"].counts == "all"
    n_tags = len(pipe.tags())
    annotate, unread, n_docs, n_tokens = earlier_annotation(pipe, nlp), _unread(pipe), 0, 0
    comparison = None if nlp is None else TokenComparison(nlp)

    def annotated() -> Iterator[AnnotatedDocs]:
        nonlocal says_something, was_read, n_docs, n_tokens
        is_first, was_read = not was_read, True
        # Without labels there is nothing to count, but neural layers need a text for their initialization
        for examples in pipe.training.blocks(get_examples() if pipe.labels or pipe.has_encoder else ()):
            docs = [annotate(example) for example in examples]
            n_docs += len(docs)
            # What sentences have is read from the annotated Docs too
            examples = [e if doc is e.predicted else Example(doc, e.reference) for doc, e in zip(docs, examples)]
            for doc in docs if unread else ():
                unread.difference_update(_found(doc, unread))
            if is_first and comparison is not None:
                comparison.read(docs)
            batch = pipe.training.to_count(docs, examples, report)
            if pipe.labels:
                leaves_out = not getattr(batch.allowed, "states", batch.allowed).all() or len(batch.excluded.start) > 0
                says_something |= n_tags < 2 or leaves_out
            if is_first and not n_tokens:
                _try_functions(pipe, docs)
            if is_first:
                pipe.training.learned.add(examples)
                n_tokens += sum(map(len, docs))
                left_out.update(labels_of(pipe, examples).difference(pipe.labels))
            yield batch
        if not says_something and pipe.labels and not had_labels:
            raise ValueError(Errors.CRF431.format(name=pipe.name))
        report.log_once(pipe.name)

    pipe.training.begin()
    pipe.model.initialize(X=annotated, Y=(pipe.vocab, pipe.decoding.n_states))
    forget_gradients(pipe.model)
    pipe.cfg["left_out"] = sorted(left_out.difference(pipe.labels))
    if unread and n_docs:
        attributes = ", ".join(sorted(unread, key=lambda name: (":" in name, name)))
        pipe.warn(Warnings.CRFW885, attributes=attributes, n=n_docs)
    if comparison is not None:
        comparison.warn(pipe)
    warn_of_long_passes(pipe, n_tokens)
    return says_something or not was_read


def _try_functions(pipe: LearningPipe, docs: Iterable[Doc]) -> None:
    """Call the functions of rules on a text, since in training nothing may call them. RAISES (ValueError): CRF612 or CRF908 for
    functions that do not take a Doc or return no array for it; they may miss annotation that earlier components do not give yet.
    """
    some = [doc for doc in docs if len(doc)][:1]
    for rules in (chain.rules() for chain in pipe.chains):
        try:
            if rules is not None:
                rules.matcher(some)
        except ValueError as error:
            if error.__cause__ is None or isinstance(error.__cause__, TypeError):
                raise


def warn_of_long_passes(pipe: LearningPipe, n_tokens: int) -> None:
    """Warn that training takes long if a chain has too many tags for its texts: its time grows by the square of their number."""
    n_tags = len(pipe.tags())
    seconds = _PER_PAIR * n_tokens * n_tags**2
    if type(pipe.decoding.structure) is LinearChain and seconds > _LONG_PASS:
        advice = "" if pipe.cfg.get("scheme") in (None, "IO") else 'scheme = "IO" or "BIO" (fewer tags), '
        pipe.warn(Warnings.CRFW907, tags=n_tags, tokens=n_tokens, seconds=seconds, advice=advice)


def earlier_annotation(pipe: LearningPipe, nlp: Optional[Language]) -> Callable[[Example], Doc]:
    """A function that gives the predicted Docs of examples the annotation of earlier components that features read."""
    read = pipe.token_attributes
    if not read:
        return lambda example: example.predicted
    return annotator(nlp, pipe.name, [name for name in read if name not in pipe.annotation.writes])


def _saved(pipe: LearningPipe, start_from: Any) -> Optional[Path]:
    """The folder of the saved component `start_from`, None for none. RAISES (ValueError): CRF670 if the path has none."""
    if start_from is None:
        return None
    checks.expect(isinstance(start_from, (str, Path)), pipe.owner, "start_from", start_from, "a path")
    path = Path(start_from)
    for folder in (path / pipe.name, path):
        if (folder / FILE_NAME).is_file():
            return folder
    why = "has no component of this name" if path.is_dir() else "is no folder"
    raise ValueError(Errors.CRF670.format(name=pipe.name, path=path, why=why))


def _why_empty(name: str, nlp: Optional[Language], has_own: bool) -> str:
    """Why a corpus has no texts; `has_own`: whether it is [initialize.components.NAME.corpus]."""
    config = {} if nlp is None else nlp.config.interpolate()
    section = config.get("training", {}).get("train_corpus") or ""
    if has_own:
        section = f"initialize.components.{name}.corpus"
    block = config
    for key in section.split("."):
        block = block.get(key) if isinstance(block, dict) else None
    path = block.get("path") if isinstance(block, dict) else None
    if not path:
        return "get_examples gave none"
    path = Path(path)
    if not path.exists():
        why = "does not exist"
    elif path.is_dir():
        why = "is a folder without .spacy files, or with empty ones"
    elif path.suffix != ".spacy":
        why = f"is no .spacy file. `python -m spacy crf convert {path} {path.with_suffix('.spacy')}` makes one of it"
    else:
        why = "holds no texts, or none that limit and max_length let through"
    return f"[{section}] path = {path} {why}"


def _unread(pipe: LearningPipe) -> set[str]:
    """Token attributes and extensions (as "ext:NAME") that a component's templates read and other components set."""
    names = {name for features in pipe.feature_stores for name in features.feature_set.extensions}
    # With a getter or a default, every Doc has a value
    extensions = {f"ext:{name}" for name in names if not any(x is not None for x in Token.get_extension(name)[:3])}
    return {name for name in pipe.token_attributes if name not in ("norm", "lang", "spacy")} | extensions


def _found(doc: Doc, attributes: set[str]) -> set[str]:
    """The given attributes that a Doc has."""
    extensions = {f"ext:{key[1]}" for key in doc.user_data if key[0] == "._."}
    return {name for name in attributes if name in extensions or (":" not in name and doc.has_annotation(name.upper()))}
