"""The steps that initialize a component: find its labels, count its features, and prepare a streamed corpus."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from spacy.language import Language
from spacy.tokens import Doc, Token
from spacy.training import Example, validate_get_examples
from spacy.util import check_lexeme_norms
from thinc.api import Optimizer

from .. import checks
from ..arrays import states_of
from ..errors import Errors, Warnings, announcements, counted
from ..inference.linear_chain import LinearChain
from ..kernels.compiling import PREDICTION, TRAINING
from ..models.node import AnnotatedDocs, forget
from ..optimizers.objective import CRFOptimizer
from .annotation.entities import GoldReport
from .corpora import why_empty
from .earlier_components import annotator, annotators_that_learn, require_upstream
from .pipe import LearningPipe
from .prepared import PreparedCorpus, find_optimum, view_for
from .saving import FILE_NAME, unchanged_by_errors, zero_gradients
from .training import LearnedTexts, labels_of

if TYPE_CHECKING:
    from .word_lists import Settings as WordLists

Read = Callable[[], Iterable[Example]]

# Collections of young objects before one of all objects: practically never
_NEVER = 1 << 30
MOST_TOKENS = 2000  # tokens of the first texts that `TokenComparison` reads, which take the tokenizer some milliseconds
MOST_OTHER = 0.01  # share of tokens that the tokenizer would not make, above which the user is warned
_PER_PAIR = 2.6e-10  # seconds of CPU for a pass of a chain, for each token and pair of tags
_LONG_PASS = 10.0  # seconds


def initialize(pipe: LearningPipe, read: Read, **settings: Any) -> None:
    """Initialize the component `pipe` by the training data that `read` gives. After an error the component is unchanged. The
    settings are the arguments of `LearningPipe.initialize`."""
    with unchanged_by_errors(pipe), without_full_collections():
        Initialization(pipe, read, **settings).run()


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Within the context, the garbage collector searches only young objects; for phases that read much data and keep it."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class Initialization:
    """One initialization of a component: its steps, and their results so far. The arguments are those of
    `LearningPipe.initialize`."""

    def __init__(
        self,
        pipe: LearningPipe,
        read: Read,
        *,
        nlp: Optional[Language],
        labels: Optional[Iterable[str]],
        start_from: object,
        corpus: Optional[Callable[..., Iterable[Example]]],
        shards: Any,
        **lists: object,
    ):
        self.pipe = pipe
        self.read = read
        self.nlp = nlp
        self.labels = labels
        self.corpus = corpus
        self.shards = shards
        self.words: Optional[WordLists] = None  # None if the config names no lists and no template reads any
        feature_sets = [features.feature_set for features in pipe.feature_stores]
        reads_lists = any(part.cluster_tables or part.vector_offsets or part.gazetteers for part in feature_sets)
        if reads_lists or any(value is not None for value in lists.values()):
            from .word_lists import read_settings

            self.words = read_settings(pipe, **lists)
        is_list = isinstance(labels, Iterable) and not isinstance(labels, (str, bytes))
        checks.expect(labels is None or is_list, pipe.owner, "labels", labels, "a list of texts")
        checks.expect(corpus is None or callable(corpus), pipe.owner, "corpus", corpus, "a reader of examples")
        checks.expect(corpus is None or nlp is not None, pipe.owner, "nlp", nlp, "the pipeline for which corpus reads")
        checks.expect(
            shards is None or hasattr(shards, "begin"),
            pipe.owner,
            "shards",
            shards,
            'a block with @misc = "spacy_crf.shards.v1"',
        )
        if nlp is not None and pipe.has_encoder:
            require_upstream(pipe.name, pipe.model, nlp)
        self.saved = _saved(pipe, start_from)
        self.optimizer = pipe.training.choose_first_optimizer(nlp)
        # With max_epochs = -1, spaCy reads the corpus as a stream, and does not know where it ends
        self.is_streamed = nlp is not None and (nlp.config.get("training") or {}).get("max_epochs") == -1
        wants_whole = isinstance(self.optimizer, CRFOptimizer) and self.optimizer.wants_whole_corpus
        self.wants_stream = self.is_streamed and wants_whole  # whether each step uses the whole stream
        self.work: Any = None  # work on the shards, whose results workers fill in
        self.labels_cut: set[str] = set()  # labels of the texts in the shards
        self.had_labels = False  # whether there were labels before the annotation was read

    def run(self) -> None:
        """Take the steps of every component, and those that its parts and settings add."""
        pipe = self.pipe
        is_new = self.saved is None
        is_sharded = self.shards is not None
        # Whether the corpus is read once and kept in the form in which the optimizer needs it
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
        if self.words is not None:
            from .word_lists import set_lists

            set_lists(pipe, self.words, self.nlp, are_kept=self.saved is not None)
        pipe.training.set_longest(self.read)
        if pipe.first_stage is not None and is_new:
            self.learn_first_stage()
        self.count_features()
        self.announce()
        pipe.model.attrs["node"].begin(pipe.model, self, is_new)

    # ------------------------------------------------------------------------------------------------- the corpus

    def choose_corpus(self) -> None:
        """Read from the component's own corpus, if it has one. Otherwise warn if the corpus is a stream: `read` gives only its
        first examples.

        RAISES (ValueError): CRF478 for shards of a stream if the component has no corpus of its own.
        """
        pipe = self.pipe
        pipe.announce_kernels(TRAINING if isinstance(self.optimizer, CRFOptimizer) else PREDICTION)
        if self.corpus is not None:
            self.read = partial(self.corpus, self.nlp)
        elif self.is_streamed and self.shards is not None:
            raise ValueError(Errors.CRF478.format(name=pipe.name))
        elif self.is_streamed:
            pipe.warn(Warnings.CRFW401)
            if self.wants_stream:
                pipe.warn(Warnings.CRFW404, optimizer=type(self.optimizer).__name__)

    def check_annotators(self, nlp: Language, optimizer: Optional[Optimizer]) -> None:
        """Check that the annotating components of `nlp` are ready, since they annotate the corpus that the `optimizer` uses now.

        RAISES (ValueError): CRF410 if some of these components are trained in the same run.
        """
        others = ", ".join(map(repr, annotators_that_learn(nlp, self.pipe.name)))
        if others:
            kind = type(optimizer).__name__
            raise ValueError(Errors.CRF410.format(name=self.pipe.name, optimizer=kind, others=others))

    def check_corpus(self) -> None:
        """Wrap `read`: from now on it raises an error with the reason if the corpus has no texts."""
        validate_get_examples(self.read, f"{type(self.pipe).__name__}.initialize")
        check_lexeme_norms(self.pipe.vocab, self.pipe.name)
        get_examples = self.read

        def read() -> Iterator[Example]:
            example = None
            for example in get_examples():
                yield example
            if example is None:
                reason = why_empty(self.pipe.name, self.nlp, self.corpus is not None)
                raise ValueError(Errors.CRF712.format(name=self.pipe.name, reason=reason))

        self.read = read

    def as_in_training(self) -> Iterator[Example]:
        """Yield the examples, with predicted Docs that the annotating components have annotated as in `nlp.update`."""
        annotate = annotator(self.nlp, self.pipe.name, [])
        for example in self.read():
            doc = annotate(example)
            yield example if doc is example.predicted else Example(doc, example.reference)

    def examples_to_cut(self) -> Iterator[Example]:
        """Yield the examples for the shards, and collect their labels: reading millions of texts again would take minutes."""
        for example in self.as_in_training():
            if self.labels is None:
                self.labels_cut.update(labels_of(self.pipe, [example]))
            yield example

    # ------------------------------------------------------------------------------------------- labels and lists

    def find_labels(self) -> None:
        """Add the labels: those of a saved component, then the given ones, or else those of the annotation.

        RAISES (ValueError): CRF403 or CRF404 if there are none.
        """
        pipe = self.pipe
        if self.saved is not None:
            pipe.from_disk(self.saved)
        self.had_labels = bool(pipe.labels) or self.labels is not None
        labels = self.labels
        if labels is None:
            labels = sorted(self.labels_cut or labels_of(pipe, self.read()))
        for label in labels:
            pipe.add_label(label)
        if not pipe.labels:
            references = [example.reference for example in self.read()]
            # The text "x y z" that `nlp.initialize` makes up if it gets none
            is_made_up = len(references) == 1 and [token.text for token in references[0]] == ["x", "y", "z"]
            if not (pipe.annotation.may_have_no_labels and is_made_up):
                raise ValueError(pipe.annotation.no_labels(pipe.name, references))

    # ---------------------------------------------------------------------------------------- features and weights

    def learn_first_stage(self) -> None:
        """Train the first stage, whose labels this component reads.

        RAISES (ValueError): CRF815 if annotating components are trained in the same run; CRF811 without annotation.
        """
        pipe = self.pipe
        others = [] if self.nlp is None else annotators_that_learn(self.nlp, pipe.name)
        if others:
            raise ValueError(Errors.CRF815.format(name=pipe.name, others=", ".join(map(repr, others))))
        if not labels_of(pipe, self.read()):
            source = "the first stage learns from the examples of nlp.initialize, which have no annotation"
            raise ValueError(Errors.CRF811.format(name=pipe.name, reason=f"{source}. Give the training data"))
        pipe.first_stage.learn(pipe, self.as_in_training)

    def count_features(self) -> None:
        """Count features, in this process or by the workers of shards. Without annotation, later texts add features."""
        pipe = self.pipe
        work = self.work
        if work is not None and work.count(pipe, self.had_labels):  # the workers have counted
            return
        nlp = self.nlp if work is None else None  # texts of shards are annotated already
        if not count(pipe, self.read, nlp, self.had_labels):
            # There are labels but no features, as after `nlp.initialize()` without examples
            pipe.warn(Warnings.CRFW412, n=len(pipe.labels))
            pipe.training.new_features = set()

    def announce(self) -> None:
        """Log how much there is to learn."""
        pipe = self.pipe
        if pipe.sparse_features is not None:
            table = pipe.sparse_features.states
            labels = counted(len(pipe.labels), "label")
            features = counted(len(table.index), "feature")
            weights = counted(table.n_weights, "weight")
            announcements.info("%s: %s, %s of tokens with %s", pipe.name, labels, features, weights)
        if self.words is not None:
            from .word_lists import announce

            announce(pipe)

    def find_optimum(self) -> None:
        """Find the best weights of the sparse features of a pool, before its encoder learns."""
        find_optimum(self.pipe, self.as_in_training())


def count(pipe: LearningPipe, get_examples: Read, nlp: Optional[Language], had_labels: bool) -> bool:
    """Count the features of a corpus, and set the component's `left_out`, the labels that it does not learn.

    pipe (LearningPipe): The component, with its labels.
    get_examples (Callable[[], Iterable[Example]]): Reads the corpus, as often as the model needs.
    nlp (Optional[Language]): The pipeline, whose earlier components annotate the texts; None if the texts are annotated already.
    had_labels (bool): Whether the labels were known before the texts were read.
    RETURNS (bool): Whether any token is annotated, or nothing was read.
    RAISES (ValueError): CRF431 if no token is annotated and no labels were given.
    """
    report = GoldReport()
    left_out = set(pipe.cfg["left_out"])
    was_read = False
    is_annotated = pipe.model.attrs["node"].traits.counts == "all"
    n_tags = len(pipe.tags())
    annotate = earlier_annotation(pipe, nlp)
    unset = _attributes_of_others(pipe)  # attributes that no Doc so far has
    n_docs = 0
    n_tokens = 0
    comparison = None if nlp is None else TokenComparison(nlp)

    def annotated() -> Iterator[AnnotatedDocs]:
        nonlocal is_annotated, was_read, n_docs, n_tokens
        is_first = not was_read
        # The model may read the corpus several times, but only the first time is reported
        was_read = True
        # Without labels there is nothing to count, but neural layers need a text for their initialization
        corpus = get_examples() if pipe.labels or pipe.has_encoder else ()
        for block in pipe.training.blocks(corpus):
            docs = [annotate(example) for example in block]
            n_docs += len(docs)
            # Annotation is aligned with the annotated Docs
            examples = [
                example if doc is example.predicted else Example(doc, example.reference)
                for doc, example in zip(docs, block)
            ]
            for doc in docs if unset else ():
                unset.difference_update(_attributes_in(doc, unset))
            if is_first and comparison is not None:
                comparison.read(docs)
            batch = pipe.training.to_count(docs, examples, report)
            if pipe.labels:
                # A text is annotated if its annotation excludes some labelling
                excludes = not states_of(batch.allowed).all() or len(batch.excluded.start) > 0
                is_annotated |= n_tags < 2 or excludes
            if is_first and not n_tokens:  # the first block, before its features are counted
                _try_functions(pipe, docs)
            if is_first:
                pipe.training.learned.add(examples)
                n_tokens += sum(map(len, docs))
                left_out.update(labels_of(pipe, examples).difference(pipe.labels))
            yield batch
        if not is_annotated and pipe.labels and not had_labels:
            raise ValueError(Errors.CRF431.format(name=pipe.name))
        report.log_once(pipe.name)

    pipe.training.begin()
    pipe.model.initialize(X=annotated, Y=(pipe.vocab, pipe.decoding.n_states))
    zero_gradients(pipe.model)
    # Labels that training data has although the config leaves them out are not new labels later
    pipe.cfg["left_out"] = sorted(left_out.difference(pipe.labels))
    if unset and n_docs:
        attributes_first = sorted(unset, key=lambda name: (":" in name, name))  # then "ext:NAME"
        pipe.warn(Warnings.CRFW885, attributes=", ".join(attributes_first), n=n_docs)
    if comparison is not None:
        comparison.warn(pipe)
    warn_of_long_passes(pipe, n_tokens)
    return is_annotated or not was_read


def _try_functions(pipe: LearningPipe, docs: Iterable[Doc]) -> None:
    """Call the functions of rules on the first text that has tokens: errors should come now, not after training, which may never
    call them.

    RAISES (ValueError): CRF612 or CRF908 for functions that do not take a Doc or return no array for it.
    """
    first_doc = [doc for doc in docs if len(doc)][:1]
    for rules in (chain.rules() for chain in pipe.chains):
        try:
            if rules is not None:
                rules.matcher(first_doc)
        except ValueError as error:
            # Other errors of a function may come from annotation that earlier components do not give yet
            if error.__cause__ is None or isinstance(error.__cause__, TypeError):
                raise


def warn_of_long_passes(pipe: LearningPipe, n_tokens: int) -> None:
    """Warn (CRFW907) if a pass of a chain over `n_tokens` tokens takes long: the time grows by the square of the number of
    tags."""
    n_tags = len(pipe.tags())
    seconds = _PER_PAIR * n_tokens * n_tags**2
    if type(pipe.decoding.structure) is LinearChain and seconds > _LONG_PASS:
        has_larger_scheme = pipe.cfg.get("scheme") not in (None, "IO")
        advice = 'scheme = "IO" or "BIO" (fewer tags), ' if has_larger_scheme else ""
        pipe.warn(Warnings.CRFW907, tags=n_tags, tokens=n_tokens, seconds=seconds, advice=advice)


def earlier_annotation(pipe: LearningPipe, nlp: Optional[Language]) -> Callable[[Example], Doc]:
    """A function from an example to its predicted Doc, with the annotation of earlier components that features read.

    pipe (LearningPipe): The component.
    nlp (Optional[Language]): Its pipeline; None if earlier components have annotated the Docs.
    """
    attributes = pipe.token_attributes
    if not attributes:
        return lambda example: example.predicted
    return annotator(nlp, pipe.name, [name for name in attributes if name not in pipe.annotation.writes])


def _saved(pipe: LearningPipe, start_from: object) -> Optional[Path]:
    """The folder of the component that is saved at the path `start_from`; None for no path.

    RAISES (ValueError): CRF670 if no component of this name is saved there.
    """
    if start_from is None:
        return None
    checks.expect(isinstance(start_from, (str, Path)), pipe.owner, "start_from", start_from, "a path")
    path = Path(str(start_from))
    for folder in (path / pipe.name, path):
        if (folder / FILE_NAME).is_file():
            return folder
    why = "has no component of this name" if path.is_dir() else "is no folder"
    raise ValueError(Errors.CRF670.format(name=pipe.name, path=path, why=why))


def _attributes_of_others(pipe: LearningPipe) -> set[str]:
    """Token attributes and extensions (as "ext:NAME") that a component's templates read and other components set."""
    # The tokenizer sets the three attributes
    attributes = {name for name in pipe.token_attributes if name not in ("norm", "lang", "spacy")}
    for features in pipe.feature_stores:
        for name in features.feature_set.extensions:
            default, method, getter, _ = Token.get_extension(name)
            if default is None and method is None and getter is None:  # otherwise every Doc has a value
                attributes.add(f"ext:{name}")
    return attributes


def _attributes_in(doc: Doc, attributes: set[str]) -> set[str]:
    """Return the attributes, and extensions (as "ext:NAME"), of `attributes` for which a Doc has values."""
    extensions = {f"ext:{key[1]}" for key in doc.user_data if key[0] == "._."}
    built_in = {name for name in attributes if ":" not in name and doc.has_annotation(name.upper())}
    return built_in | (attributes & extensions)


class TokenComparison:
    """Counts the tokens of some texts that the tokenizer of a pipeline would not make."""

    def __init__(self, nlp: Language) -> None:
        self._nlp = nlp
        self._n_tokens = 0
        self._n_others = 0  # tokens that the tokenizer would not make
        self._example = ""  # the first of these, in its text

    def read(self, docs: Iterable[Doc]) -> None:
        """Count the tokens of `docs`, up to the first `MOST_TOKENS`."""
        for doc in docs:
            if self._n_tokens >= MOST_TOKENS:
                return
            # A Doc made of words ends with a blank that its text does not have
            text = doc.text.rstrip(" ") if doc.has_unknown_spaces else doc.text
            if not text.strip() or len(text) > self._nlp.max_length:
                continue
            # Compare tokens by their characters, since their numbers differ
            made = {(token.idx, token.idx + len(token)) for token in self._nlp.make_doc(text)}
            words = [token for token in doc if not token.is_space]
            others = [token for token in words if (token.idx, token.idx + len(token)) not in made]
            self._n_tokens += len(words)
            self._n_others += len(others)
            if others and not self._example:
                self._example = f"'{others[0].text}' in '{text[:40]}'"

    def warn(self, pipe: LearningPipe) -> None:
        """Warn (CRFW986) in the name of a component (`pipe`) if the tokenizer would not make more than a share `MOST_OTHER` of
        the tokens."""
        if self._n_others > MOST_OTHER * self._n_tokens:
            pipe.warn(Warnings.CRFW986, share=self._n_others / self._n_tokens, n=self._n_tokens, example=self._example)
