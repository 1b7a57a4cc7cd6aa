"""What all CRF components have in common: labels, training, prediction in batches, saving.

A component adds what its annotation means: which tags there are, which of them the gold annotation and the annotation
already present allow, and how tags are written to a Doc.
"""

import copyreg
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, Span, Token
from spacy.training import Example, validate_examples, validate_get_examples
from spacy.util import check_lexeme_norms, registry
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, set_dropout_rate

from .. import checks
from ..errors import Errors, Warnings, announcements
from ..features.doc_batch import DocBatch, sequence_starts
from ..features.gazetteers import GazetteerFile, read_gazetteers
from ..losses.clamped import ClampedLoss, LabelledLoss
from ..models.corpus import block_tokens
from ..models.emissions import EmissionFeatures
from ..models.pruning import prune
from ..models.role import AnnotatedDocs, gives
from ..models.weights import Evidence, Weights
from ..schemes import NO_SEGMENTS, NO_STEPS, Segments, TransitionMask
from ..types import ChainScores, Floats
from . import saving, supervision
from .earlier_annotation import EarlierAnnotation, annotators_that_learn
from .gold_report import GoldReport, reported_once
from .novelty import NewFeatures, add_labels, labels_of
from .prepared_corpus import InitialCorpus, PreparedBatch, PreparedCorpus
from .training_data import are_made_up, at_least_one

logger = logging.getLogger("spacy.spacy_crf")

# Tokens of a block where the model does not say how many fit into memory
_BLOCK_TOKENS = 1 << 16
# A prediction batch. Tokenizing and predicting take turns, and each finds the caches full of the other's: that speaks for large
# batches. But the scores of their tokens should stay in the cache, and each Doc is a dozen containers, among which Python's
# garbage collector looks for cycles as long as they are alive.
_PREDICTED_TOKENS = 1 << 14
_PREDICTED_DOCS = 128


class Prediction(NamedTuple):
    """Tags of the Docs of a batch, laid end to end."""

    tags: NDArray[np.int32]  # [T]
    starts: NDArray[np.int64]  # [B + 1] of the sequences
    doc_starts: NDArray[np.int64]  # [D + 1]
    preset: Optional[NDArray[np.uint64]]  # what `read_preset` gave
    probabilities: Optional[Floats] = None  # [N] of the spans, where they are asked for


class Supervision(NamedTuple):
    """What is known of the labelling of a batch of Docs."""

    clamp: Any  # what the annotation allows
    unset: NDArray[np.bool_]  # [T] tokens of which nothing is said
    wrong: Segments = NO_SEGMENTS  # spans that no labelling has, beside what the clamp leaves out
    steps: NDArray[np.int64] = NO_STEPS  # steps between tags that no labelling takes, see `Scheme.spell`
    # Spans that the annotation allows beside others, where the model looks at spans
    alternatives: Segments = NO_SEGMENTS


class CRFPipe(TrainablePipe):
    """Base of the components.

    model (Model): From Docs to the scores of a structure.
    loss (ClampedLoss): What training minimises.
    optimizer (Optimizer): Used instead of the one in [training.optimizer], if there is one; see `_optimizer_for`.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str,
        *,
        loss: ClampedLoss,
        optimizer: Optional[Optimizer] = None,
        scorer: Optional[Callable] = None,
        **settings: Any,
    ):
        self.vocab = vocab
        self.model = model
        self.name = name
        must, found = f"an architecture that gives {self.takes.__name__}", getattr(model, "name", model)
        checks.expect(gives(model) is self.takes, self.owner, "model", found, must)
        must = "a loss of spacy_crf, such as spacy_crf.LogLikelihood.v1"
        checks.expect(isinstance(loss, LabelledLoss), self.owner, "loss", loss, must)
        possible = optimizer is None or isinstance(optimizer, Optimizer)
        checks.expect(possible, self.owner, "optimizer", optimizer, "an optimizer")
        checks.expect(scorer is None or callable(scorer), self.owner, "scorer", scorer, "a scorer")
        for key in ("alternatives_spans_key", "incorrect_spans_key"):
            if settings.get(key) is not None:
                checks.text(self.owner, key, settings[key])
        self.loss = loss
        self.optimizer = optimizer
        if optimizer is not None:
            self._check_fit(optimizer)
            if getattr(optimizer, "averaging", False):
                # `spacy train` evaluates with the averages of [training.optimizer] only
                optimizer.assigns_averages = True
        self.scorer = scorer
        self.cfg: dict[str, Any] = {"labels": [], "left_out": [], **settings}
        self._batch: list[_TrainingBatch] = []  # since the last step, for optimizers that ask for the objective
        self._corpus: Optional[PreparedCorpus] = None
        self._stepped: Optional[Doc] = None  # the first one of the batch whose gradient came last
        self._told: set[str] = set()  # warnings that are given once
        self._told_optimizer = False
        # Whose features are still to be added; None where `initialize` counted all there are
        self._new_features: Optional[NewFeatures] = None
        # What training met of which nothing is left but the weights; None where they come from this training
        self.evidence: Optional[Evidence] = None
        self._told_going_on = False
        self._gradient_of: list[Doc] = []  # whose gradient waits for its step, where there is evidence
        self._prunes = False  # whether zero weights are left out when the model is saved
        # Whether the optimizer asks for the objective; None until the first step tells
        is_known = optimizer is not None and not getattr(optimizer, "steps_aside", False)
        self._wants_objective: Optional[bool] = _takes_objective(optimizer) if is_known else None
        self._labels_changed()

    # ------------------------------------------------------------------------------------- what a component adds

    # What its model gives
    takes: type
    # Settings that say what weights mean: those of a saved component are to be those of the config
    meaning: tuple[str, ...] = ()
    # Token attributes that the component writes
    writes: tuple[str, ...] = ()
    # Whether it can begin without any label
    can_do_without_labels = False
    # Whether optimizers that learn from one sequence after the other can leave out spans known to be wrong
    walks_around_wrong = False

    def tags(self) -> list[str]:
        """Names of the tags, in the order of the scores."""
        raise NotImplementedError

    def transition_mask(self) -> TransitionMask:
        """Which tag sequences are valid."""
        raise NotImplementedError

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """Labels of a Doc's gold annotation."""
        raise NotImplementedError

    def gold(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> supervision.Gold:
        """What the gold annotation says of the tokens of the predicted Docs."""
        raise NotImplementedError

    def is_gold(self, span: Span) -> bool:
        """Whether the gold annotation has this span, or a part of it says the same."""
        raise NotImplementedError

    def label_of_states(self) -> NDArray[np.int64]:
        """Label of each state, -1 for none: int64[S]."""
        raise NotImplementedError

    def tag_labels(self) -> list[str]:
        """The label of each tag, "O" for none."""
        return self.tags()

    def span_tags(self, label: str, length: int) -> Optional[NDArray[np.int64]]:
        """Tags of a span, see `supervision.SpanTags`."""
        raise NotImplementedError

    def tells_alone(self, length: int) -> bool:
        """Whether a span's tags say all by themselves, see `supervision.SpanTags`."""
        raise NotImplementedError

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        """Tags that go on with the span of a tag, see `supervision.SpanTags`."""
        raise NotImplementedError

    def measure(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """What the model has to know of the annotation before features are counted: nothing for chains."""

    def spell(self, allowed: Any, starts: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
        """What annotation allows, in the component's tags, and the steps that it rules out, see `Scheme.spell`."""
        return allowed, NO_STEPS

    def read_preset(self, docs: list[Doc]) -> Optional[NDArray[np.uint64]]:
        """Annotation that is there already and stays, by token, or None if there is none."""
        raise NotImplementedError

    @property
    def owner(self) -> str:
        """As messages about settings and arguments name it."""
        return f"Component '{self.name}'"

    # ---------------------------------------------------------------------------------------------------- labels

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order in which they were added."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> list[str]:
        """What `spacy init labels` writes, and what `initialize` takes as `labels`."""
        return list(self.labels)

    def add_label(self, label: str) -> int:
        """Add a label. A trained model keeps what it has learned; the weights of the new label are zero.

        label (str): Any string but the empty one.
        RETURNS (int): 0 if the label was there, otherwise 1.
        """
        self.check_label(label)
        if label in self.cfg["labels"]:
            return 0
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        self._labels_changed()
        if self.is_initialized:
            self.model.attrs["role"].resize(self.model, len(self.tags()))
            self._new_features = self._new_features or NewFeatures()
        return 1

    def check_label(self, label: Any) -> None:
        """RAISES (ValueError): CRF401 for what can't be a label."""
        if not isinstance(label, str) or not label:
            raise ValueError(Errors.CRF401.format(name=self.name, label=label))

    def _labels_changed(self) -> None:
        self.model.attrs["allowed"] = self.transition_mask()
        if hasattr(self.loss, "bind"):
            self.loss = self.loss.bind(self.tag_labels())
        self._label_index = {self.vocab.strings.add(label): n for n, label in enumerate(self.labels)}

    def label_indices(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of labels given by their hashes, -1 for 0 and for unknown ones."""
        distinct, inverse = np.unique(hashes, return_inverse=True)
        known = np.array([self._label_index.get(int(value), -1) for value in distinct], dtype=np.int64)
        return known[inverse] if len(distinct) else np.zeros(0, dtype=np.int64)

    def check_settings(self) -> None:
        """RAISES (ValueError): If settings don't fit the labels, which are known now."""
        if hasattr(self.loss, "check_labels"):
            self.loss.check_labels()

    @property
    def is_initialized(self) -> bool:
        return bool(self.model.has_param("first"))

    # ------------------------------------------------------------------------------------------------ prediction

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Process a stream of Docs in batches.

        stream (Iterable[Doc]): The Docs.
        batch_size (int): Most Docs in a batch; more than 128 together are no faster, and of long ones fewer.
        YIELDS (Doc): The Docs in their order.
        """
        handle_error = self.get_error_handler()
        for docs in _minibatch_by_tokens(stream, min(batch_size, _PREDICTED_DOCS)):
            try:
                self.set_annotations(docs, self.predict(docs))
                yield from docs
            except Exception as error:
                handle_error(self.name, self, docs, error)

    def _require_initialized(self) -> None:
        if not self.is_initialized:
            self._require_labels()
            raise ValueError(Errors.CRF402.format(name=self.name))

    # -------------------------------------------------------------------------------------------------- training

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        labels: Optional[list[str]] = None,
        gazetteers: Optional[dict[str, GazetteerFile]] = None,
        start_from: Optional[Union[str, Path]] = None,
        corpus: Optional[Callable[[Language], Iterable[Example]]] = None,
    ) -> None:
        """Find the labels, count the features, and set the weights to zero.

        get_examples (Callable[[], Iterable[Example]]): The training data, read several times.
        nlp (Language): The pipeline, for its tokenizer.
        labels (List[str]): The labels; found in the data if None.
        gazetteers (dict[str, Path]): Files of the gazetteers that templates name, each a path or a table with `path` and `attr`,
            the attribute by which words are compared: LOWER, ORTH or SHAPE. Those of a loaded model stay where none is given.
        start_from (Path): A saved pipeline with a component of this name, or a saved component: its labels, features and
            weights are kept, and new ones are added.
        corpus (Callable[[Language], Iterable[Example]]): Read instead of get_examples, as which spaCy gives the first hundred
            where the corpus is streamed (max_epochs = -1). It is read block by block, never held in memory. In that case an
            optimizer that looks at the whole corpus in each step (such as L-BFGS) is told of this one: what training needs to
            know of it is kept, and each update is a step about all of it, whatever its batch.
        RAISES (ValueError): If no labels or no features are found, or a gazetteer can't be read.
        """
        gazetteers = checks.table(self.owner, "gazetteers", gazetteers, "files")
        possible = labels is None or (isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)))
        checks.expect(possible, self.owner, "labels", labels, "a list of texts")
        possible = start_from is None or isinstance(start_from, (str, Path))
        checks.expect(possible, self.owner, "start_from", start_from, "a path")
        checks.expect(corpus is None or callable(corpus), self.owner, "corpus", corpus, "a reader of examples")
        is_streamed = nlp is not None and (nlp.config.get("training") or {}).get("max_epochs") == -1
        optimizer = self.optimizer
        if nlp is not None and self._wants_objective is None:
            optimizer = self._optimizer_for(_configured_optimizer(nlp))
            self._check_fit(optimizer)
            # One that wants the objective needs no gradients: those of a whole corpus at once take much memory
            self._wants_objective = True if _takes_objective(optimizer) else None
        wants_stream = is_streamed and _takes_objective(optimizer) and optimizer.wants_whole_corpus
        if corpus is not None:
            get_examples = partial(corpus, nlp)
        elif is_streamed:
            logger.warning(Warnings.CRFW401.format(name=self.name))
            if wants_stream:
                logger.warning(Warnings.CRFW404.format(name=self.name, optimizer=type(optimizer).__name__))
        prepares = wants_stream and corpus is not None and self._sparse_features is not None
        if prepares:
            self._check_annotators(nlp, optimizer)
        validate_get_examples(get_examples, f"{type(self).__name__}.initialize")
        check_lexeme_norms(self.vocab, self.name)
        get_examples = at_least_one(get_examples, self.name, nlp, has_own=corpus is not None)
        if start_from is not None:
            folder = Path(start_from)
            self.from_disk(folder / self.name if (folder / self.name).is_dir() else folder)
        else:
            self.evidence = None
        had_labels = bool(self.labels) or labels is not None
        for label in sorted(labels_of(self, get_examples())) if labels is None else labels:
            self.add_label(label)
        if not self.labels and not (self.can_do_without_labels and are_made_up(get_examples())):
            raise ValueError(Errors.CRF403.format(name=self.name))
        self.check_settings()
        self._set_gazetteers(gazetteers, nlp)
        self.measure(get_examples)
        report = GoldReport()
        left_out = set(self.cfg["left_out"])
        read = self._token_attributes()
        annotate = EarlierAnnotation(nlp, self.name, [name for name in read if name not in self.writes])

        says_something = False

        def annotated() -> Iterator[AnnotatedDocs]:
            nonlocal says_something
            for examples in self._blocks(get_examples() if self.labels else ()):
                docs = [annotate(example) if read else example.predicted for example in examples]
                batch = self._to_count(docs, examples, report)
                says_something |= _says_something(batch.allowed) or len(batch.excluded.start) > 0
                left_out.update(labels_of(self, examples).difference(self.labels))
                yield batch
            if not says_something and self.labels and not had_labels:
                raise ValueError(Errors.CRF431.format(name=self.name))

        self._corpus = self._new_features = None
        self._batch = []
        self.model.initialize(X=reported_once(annotated, report, self.name), Y=(self.vocab, len(self.tags())))
        self.cfg["left_out"] = sorted(left_out.difference(self.labels))
        if not says_something:  # at most labels, as `nlp.initialize()` without examples has them
            logger.warning(Warnings.CRFW412.format(name=self.name, n=len(self.labels)))
            self._new_features = NewFeatures()
        if self._sparse_features is not None:
            known = self._sparse_features.states
            text = "%s: %d labels, %d features of tokens with %d weights"
            announcements.info(text, self.name, len(self.labels), len(known.index), known.n_weights)
        if prepares:
            announcements.info("%s: reading the features of the corpus that every step is about", self.name)
            self._corpus = InitialCorpus(self, self._as_in_training(get_examples(), nlp), _view_for(optimizer))

    def _to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        """What the model is told of texts, with the annotation of earlier components, when it counts their features."""
        starts = _sequence_starts(docs)
        known = self.supervise(examples, starts, report)
        return AnnotatedDocs(
            docs, known.clamp, starts, known.unset, alternatives=known.alternatives, excluded=known.wrong
        )

    def _check_annotators(self, nlp: Language, optimizer: Optimizer) -> None:
        """RAISES (ValueError): CRF410 if components annotate that are trained in the same run."""
        others = annotators_that_learn(nlp, self.name)
        if others:
            message = Errors.CRF410.format(
                name=self.name, optimizer=type(optimizer).__name__, others=", ".join(map(repr, others))
            )
            raise ValueError(message)

    def _as_in_training(self, examples: Iterable[Example], nlp: Language) -> Iterator[Example]:
        """Examples whose predicted Docs are annotated as `nlp.update` does it."""
        annotate = EarlierAnnotation(nlp, self.name, [])
        for example in examples:
            doc = annotate(example)
            yield example if doc is example.predicted else Example(doc, example.reference)

    def _token_attributes(self) -> list[str]:
        """Token attributes that the templates read."""
        return list(dict.fromkeys(name for f in self._feature_stores() for name in f.feature_set.token_attributes))

    def assigns(self) -> list[str]:
        """What the component writes, in the words of `nlp.analyze_pipes`."""
        return [*(f"token.{name}" for name in self.writes), *(["span._.crf_prob"] if self.cfg["confidence"] else [])]

    def requires(self) -> list[str]:
        """What its templates read of the output of components before it, in the same words."""
        read = ["is_sent_start" if name == "sent_start" else name for name in self._token_attributes()]
        extensions = dict.fromkeys(name for f in self._feature_stores() for name in f.feature_set.extensions)
        return [
            *(f"token.{name}" for name in read if name not in ("norm", "lang", "spacy")),
            *(f"token._.{name}" for name in extensions if not Token.get_extension(name)[2]),  # those without a getter
        ]

    @property
    def asks_functions(self) -> bool:
        """Whether functions or extensions give features, which may say something else at the next step."""
        return any(features.asks_functions for features in self._feature_stores())

    @property
    def _sparse_features(self) -> Optional[EmissionFeatures]:
        return self.model.get_ref("emissions").attrs.get("features")

    def _feature_stores(self) -> list[Any]:
        """Everything of the model that has templates."""
        return [] if self._sparse_features is None else [self._sparse_features]

    def _set_gazetteers(self, files: dict[str, GazetteerFile], nlp: Optional[Language]) -> None:
        stores = self._feature_stores()
        wanted = {name for features in stores for name in features.feature_set.gazetteers}
        unused = [name for name in files if name not in wanted]
        if unused:
            raise ValueError(Errors.CRF404.format(name=self.name, gazetteers=", ".join(unused)))
        tokenizer = nlp.make_doc if nlp is not None else lambda text: Doc(self.vocab, words=text.split())
        known = {name: gazetteer for features in stores for name, gazetteer in features.gazetteers.items()}
        read = read_gazetteers(files, tokenizer, known, owner=self.name)
        for features in stores:
            features.set_gazetteers({name: read[name] for name in features.feature_set.gazetteers if name in read})

    def _annotated(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        """Training data.

        kind (str): Which of the model's views of a corpus it is for, see `PreparedCorpus`.
        """
        docs = [example.predicted for example in examples]
        starts = _sequence_starts(docs)
        known = self._usable(self.supervise(examples, starts, GoldReport()), kind)
        weights = supervision.sequence_weights(examples, starts)
        structure = self.training_structure(docs, known, starts) if kind == "objective" else None
        return AnnotatedDocs(
            docs, known.clamp, starts, known.unset, weights, structure, known.alternatives, known.wrong
        )

    @property
    def loss_excludes_spans(self) -> bool:
        """Whether the loss can leave out single spans of what the annotation leaves open."""
        return isinstance(self.loss, ClampedLoss)

    def _usable(self, known: Supervision, kind: str = "objective") -> Supervision:
        """The same, less what the loss or the optimizer can't look at: this is said once."""
        who = f"The loss {type(self.loss).__name__}"
        usable = self.loss_excludes_spans
        if kind != "objective":
            who, usable = "Optimizers that learn from one sequence after the other", self.walks_around_wrong
        if usable:
            return known
        if len(known.wrong.start):
            key = self.cfg["incorrect_spans_key"]
            self._tell_once(Warnings.CRFW402, n=len(known.wrong.start), key=key, who=who)
        if len(known.steps):
            self._tell_once(Warnings.CRFW421, n=len(known.steps), who=who)
            supervision.narrow(known.clamp, known.steps, self.label_of_states())
        return known._replace(wrong=NO_SEGMENTS, steps=NO_STEPS)

    def _tell_once(self, message: str, **values: Any) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(message.format(name=self.name, **values))

    def training_structure(self, docs: list[Doc], known: Supervision, starts: NDArray[np.int64]) -> Any:
        """What answers the loss in place of the model's structure; None for that one."""
        return None

    def supervise(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Supervision:
        """What the gold annotation allows, with the alternatives and the incorrect spans."""
        gold, wrong = self.gold(examples, starts, report), NO_SEGMENTS
        key = self.cfg.get("alternatives_spans_key")
        if key:
            supervision.allow_alternatives(gold, self, examples, key, report)
        key = self.cfg.get("incorrect_spans_key")
        if key:
            supervision.refuse_contradictions(examples, key, self.is_gold, self.name)
            wrong = supervision.forbid_incorrect(gold, self, examples, key, report, starts)
        clamp, steps = self.spell(gold.clamp, starts)
        return Supervision(clamp, gold.unset, wrong, steps)

    def _optimizer_for(self, given: Optional[Optimizer]) -> Optional[Optimizer]:
        """What the component learns by where the pipeline is given an optimizer: its own, if it has one. One that steps aside
        (`Minibatch`) does so for optimizers that ask for the objective, and where the emissions are neural."""
        own = self.optimizer
        if own is None:
            return given
        if getattr(own, "steps_aside", False) and given is not None:
            return given if self._sparse_features is None or _takes_objective(given) else own
        return own

    def _check_fit(self, optimizer: Optimizer) -> None:
        """RAISES (ValueError): CRF210 if the optimizer can't train this loss."""
        if not hasattr(optimizer, "fits"):
            return  # thinc's optimizers take every gradient
        from ..optimizers.objective import check_fit  # prediction does without

        check_fit(optimizer, self.loss, self.name)

    def _blocks(self, examples: Iterable[Example]) -> Iterator[list[Example]]:
        """Batches of about as many tokens as fit into memory together."""
        features = self._sparse_features
        limit = block_tokens(features) if features is not None else _BLOCK_TOKENS
        block, size = [], 0
        for example in examples:
            block.append(example)
            size += len(example.predicted)
            if size >= limit:
                yield block
                block, size = [], 0
        if block:
            yield block

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """Learn from a batch of examples. With an optimizer that asks for the objective, the work is done in
        `finish_update`, and the loss – the objective after the step – is added to ``losses`` there. Where the corpus was read by
        `initialize`, the step is about that, and the batch only says that it is time.

        examples (Iterable[Example]): The batch.
        drop (float): The dropout rate, for emissions that have dropout.
        sgd (Optimizer): Takes the step at once, if given.
        losses (dict[str, float]): Record of the losses, by component.
        RETURNS (dict[str, float]): The record.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.update")
        self._require_initialized()
        if not any(len(example.predicted) for example in examples):
            return losses
        wants_objective = self._wants_objective
        if sgd not in (None, False):
            wants_objective = _takes_objective(self._optimizer_for(sgd))
        if self._sparse_features is None:
            wants_objective = False
        batch = _TrainingBatch(examples, losses, drop, has_gradient=wants_objective is not True)
        if wants_objective is not False:
            self._batch.append(batch)
        if batch.has_gradient:
            self._add_gradient(batch)
        if sgd not in (None, False):
            self.finish_update(sgd)
        return losses

    def _add_gradient(self, batch: "_TrainingBatch") -> None:
        """For optimizers that take a gradient."""
        self._meet(batch.examples)
        set_dropout_rate(self.model, batch.drop)
        scores, backprop = self.model.begin_update([example.predicted for example in batch.examples])
        loss, d_scores = self.get_loss(batch.examples, scores) if _are_numbers(scores) else (math.nan, scores)
        if not math.isfinite(loss):
            raise ValueError(Errors.CRF314.format(name=self.name, text=batch.examples[0].predicted.text[:40]))
        backprop(d_scores)
        if self.evidence is not None and self._sparse_features is not None:
            self._gradient_of += [example.predicted for example in batch.examples]
        self._stepped = batch.examples[0].predicted
        batch.losses[self.name] += loss

    @property
    def has_read_corpus(self) -> bool:
        """Whether every step is about the corpus that `initialize` read."""
        return isinstance(self._corpus, InitialCorpus)

    def _meet(self, examples: list[Example]) -> None:
        """Adds what a batch brings that is not known: labels, and features where `initialize` did not count all."""
        add_labels(self, examples)
        if self._new_features is not None and self._sparse_features is not None:
            self._new_features.add(self, examples)

    def get_loss(self, examples: Iterable[Example], scores: ChainScores) -> tuple[float, ChainScores]:
        """Loss of a batch and its derivative.

        examples (Iterable[Example]): The batch.
        scores (ChainScores): What the model says of its predicted Docs.
        RETURNS (tuple[float, ChainScores])
        """
        examples = list(examples)
        known = self._usable(self.supervise(examples, scores.starts, GoldReport()))
        weights = supervision.sequence_weights(examples, scores.starts)
        structure = self.training_structure([example.predicted for example in examples], known, scores.starts)
        structure = structure or self.model.attrs["role"].structure
        losses, d_scores, impossible = self.loss(structure, scores, known.clamp, weights=weights)
        if impossible.any():
            self._tell_once(Warnings.CRFW403, n=int(impossible.sum()))
        return float(losses.sum()), d_scores

    def finish_update(self, sgd: Optimizer) -> None:
        """Take a step.

        sgd (Optimizer): Ignored where the component has an optimizer of its own, unless that one steps aside.
        """
        optimizer = self._optimizer_for(sgd)
        if optimizer is self.optimizer and optimizer is not sgd and not self._told_optimizer:
            self._told_optimizer = True
            text = "%s: learns by its own %s; with optimizer = null it learns by what the pipeline learns by"
            announcements.info(text, self.name, type(optimizer).__name__)
        self._wants_objective = _takes_objective(optimizer)
        self._check_fit(optimizer)
        batch, self._batch = self._batch, []
        if not self._wants_objective:
            for part in batch:
                if not part.has_gradient:  # the config names another optimizer
                    self._add_gradient(part)
            self._step_by_gradient(optimizer)
            self._forget_scores()
            return
        if self._sparse_features is None:
            raise ValueError(Errors.CRF405.format(name=self.name, optimizer=type(optimizer).__name__))
        if not batch:
            return
        self._clear_gradients()
        self._forget_scores()  # of an evaluation, which take memory
        examples = [example for part in batch for example in part.examples]
        kind = _view_for(optimizer)
        if self.has_read_corpus:
            add_labels(self, examples)
        if self._corpus is None or self._corpus.kind != kind or not self._corpus.holds(examples):
            if self._corpus is None:  # a sign of life before the first step, which takes longest
                announcements.info("%s: reading features of %d texts", self.name, len(examples))
            if self.evidence is not None and self._corpus is not None and optimizer.wants_whole_corpus:
                # It has learned the batch before as well as it can, which now is part of what there was
                self.evidence = self.evidence.plus(self._corpus.evidence)
            self._meet(examples)
            self._tell_going_on(len(examples))
            self._corpus = PreparedBatch(self, examples, kind)
        try:
            value = optimizer.step(self._corpus.objective, key=self.name)
        except KeyboardInterrupt:
            text = (
                "%s: interrupted. In memory is the model of the last complete step (of L-BFGS: iteration); `spacy train` "
                "saves it as model-last, and keeps in model-best that of its best evaluation so far, if there was one"
            )
            announcements.info(text, self.name)
            raise
        n_impossible = getattr(self._corpus.objective, "n_impossible", 0)
        if n_impossible:
            self._tell_once(Warnings.CRFW403, n=n_impossible)
        self._prunes = getattr(optimizer, "l1", 0.0) > 0.0
        losses = batch[-1].losses
        losses[self.name] = value

    def _forget_scores(self) -> None:
        for features in self._feature_stores():
            features.forget_scores()

    # ------------------------------------------------------------------------------------------------- going on

    def frame(self) -> Any:
        """Which weights the model has, as one vector."""
        return Weights(self.model)

    def _go_on(self) -> None:
        """From here on the weights stand for what training has met."""
        self._new_features = NewFeatures()
        self._told_going_on = False
        sparse = self.is_initialized and self._sparse_features is not None
        self.evidence = self.frame().evidence() if sparse else None

    @property
    def _rehearsal_model(self) -> None:
        return None

    @_rehearsal_model.setter
    def _rehearsal_model(self, model: Any) -> None:
        """`nlp.resume_training` sets it, where a component has it: it is how a component learns of that."""
        if not self.has_read_corpus:
            self._corpus = None
        self._go_on()

    def _tell_going_on(self, n_texts: int) -> None:
        """Once."""
        if self.evidence is not None and not self._told_going_on:
            self._told_going_on = True
            text = (
                "%s: goes on from what it has learned from %d sequences. A step is about its own texts, now %d, and moves each "
                "weight the less the more often its feature was met before"
            )
            announcements.info(text, self.name, self.evidence.sequences, n_texts)

    def _hold_back(self, optimizer: Optimizer, before: dict[tuple[int, str], Any], averages: dict) -> None:
        """Lets each weight go its share of the way of a step that thinc took.

        before, averages (dict): The weights, and the optimizer's averages of them, as they were.
        """
        from ..optimizers.anchor import Anchor  # prediction does without

        docs, self._gradient_of = self._gradient_of, []
        frame = self.frame()
        shares = frame.parameters(Anchor.of(frame, self.evidence, frame.evidence_of(docs)).shares)
        for node, name in _parameters(self.model):
            key = (node.id, name)
            if key in shares:
                weights = before[key] + shares[key] * (node.get_param(name) - before[key])
                node.set_param(name, weights)
                if key in averages:
                    node.ops.update_averages(averages[key], weights, optimizer.nr_update[key])
                    optimizer.averages[key] = averages[key]

    def _step_by_gradient(self, optimizer: Optimizer) -> None:
        """RAISES (ValueError): CRF315 if weights would not be finite; they stay as they were."""
        params = _parameters(self.model)
        before = [node.get_param(name).copy() for node, name in params]
        if isinstance(optimizer, Optimizer):
            _forget_other_shapes(optimizer, params)
        averages = {}
        if self._gradient_of and optimizer.averages is not None:
            # Those of the first step begin at zero, as thinc's do
            averages = {
                key: optimizer.averages.get(key, 0.0 * weights) + 0.0 for key, weights in zip(_keys(params), before)
            }
        self.model.finish_update(optimizer)
        if not all(self.model.ops.xp.isfinite(node.get_param(name)).all() for node, name in params):
            for (node, name), weights in zip(params, before):
                node.set_param(name, weights)
            text = "" if self._stepped is None else self._stepped.text[:40]
            raise ValueError(Errors.CRF315.format(name=self.name, text=text, optimizer=type(optimizer).__name__))
        if self._gradient_of:
            self._tell_going_on(len(self._gradient_of))
            self._hold_back(optimizer, dict(zip(_keys(params), before)), averages)

    def _clear_gradients(self) -> None:
        """The first step does not know yet that nobody wants the gradients."""
        for node in self.model.walk():
            for name in node.grad_names:
                node.set_grad(name, node.ops.alloc(node.get_grad(name).shape))

    # ---------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        """For copies and other processes: what is kept from one call to the next is made anew there."""
        state = {name: getattr(self, name) for name in ("vocab", "name", "model", "cfg", "scorer")}
        return copyreg.__newobj__, (type(self),), {**state, **self.__dict__, **self.left_behind()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def left_behind(self) -> dict[str, Any]:
        """What copies do without, as they begin."""
        left = {"_corpus": None, "_batch": [], "_stepped": None, "_gradient_of": []}
        schedules = getattr(self.optimizer, "schedules", {}).values()
        if any(isinstance(schedule, GeneratorType) for schedule in schedules):
            left["optimizer"] = partial(_refuse_step, self.name)
        return left

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """RETURNS (bytes): Labels, settings and model.

        RAISES (ValueError): CRF413 if weights are not finite numbers.
        """
        self._validate_serialization_attrs()
        for node, name in _parameters(self.model):
            if not node.ops.xp.isfinite(node.get_param(name)).all():
                raise ValueError(Errors.CRF413.format(name=self.name, param=name, node=node.name))
        model = self.model
        if self._prunes:
            model, n_weights, n_features = prune(model)
            text = "%s: %d weights that are zero and %d features without any other are left out of the saved model"
            announcements.info(text, self.name, n_weights, n_features)
        return saving.pack(type(self).__name__, self.settings_to_save(), model)

    def settings_to_save(self) -> dict[str, Any]:
        return self.cfg

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> "CRFPipe":
        """Load what `to_bytes` gave. After an error the component is as it was before.

        RAISES (ValueError): With what is wrong about the data.
        """
        self._load(bytes_data, "the bytes given to from_bytes")
        return self

    def to_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> None:
        """Save to a folder. A model that is there already stays until the new one is complete."""
        saving.write(Path(path), self.to_bytes())

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> "CRFPipe":
        """Load what `to_disk` wrote. After an error the component is as it was before.

        RAISES (ValueError): With the file and what is wrong about it.
        """
        file, data = saving.read(Path(path))
        self._load(data, str(file))
        return self

    def _load(self, data: bytes, source: str) -> None:
        saved = saving.unpack(data, source, type(self).__name__)
        before, restore_model = (self.cfg, dict(self.__dict__)), saving.restorer(self.model)
        try:
            self.take_settings(saved.settings)
            self._labels_changed()
            saving.load_model(self.model, saved.model, len(self.tags()))
        except Exception as error:  # it may be anything, for anything may be in a file
            restore_model()
            self.cfg, attributes = before
            self.__dict__.clear()
            self.__dict__.update(attributes)
            reason = saving.reason_of(error)
            raise ValueError(Errors.CRF505.format(source=source, name=self.name, reason=reason)) from error
        self._corpus = None
        self._go_on()
        self._batch = []

    def take_settings(self, saved: dict[str, Any]) -> None:
        """Takes over what a saved component has learned; its other settings are those of the config.

        RAISES (ValueError): CRF510 for settings that would give the weights another meaning.
        """
        for name in self.meaning:
            if saved[name] != self.cfg[name]:
                raise ValueError(Errors.CRF510.format(setting=name, saved=saved[name], ours=self.cfg[name]))
        known = {name: list(dict.fromkeys(saved.get(name, ()))) for name in ("labels", "left_out")}
        for label in (*known["labels"], *known["left_out"]):
            self.check_label(label)
        self.cfg = {**self.cfg, **known}


def _refuse_step(name: str, *args: Any, **kwargs: Any) -> None:
    """Stands for an optimizer that could not come along."""
    raise ValueError(Errors.CRF507.format(name=name))


class _TrainingBatch(NamedTuple):
    examples: list[Example]
    losses: dict[str, float]
    drop: float
    has_gradient: bool


def _minibatch_by_tokens(docs: Iterable[Doc], batch_size: int) -> Iterator[list[Doc]]:
    """Batches of at most so many Docs, each ended by the Doc that makes it large enough."""
    batch, size = [], 0
    for doc in docs:
        batch.append(doc)
        size += len(doc)
        if len(batch) == batch_size or size >= _PREDICTED_TOKENS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _are_numbers(scores: Any) -> bool:
    """Whether no score is NaN or infinite, but for -inf, which forbids."""
    arrays = [getattr(scores, name) for name in scores._fields if name not in ("listed", "starts")]
    return all((array < np.inf).all() for array in arrays)


def _says_something(allowed: Any) -> bool:
    """Whether a clamp rules anything out."""
    states = getattr(allowed, "states", allowed)
    return states.shape[1] < 2 or not states.all()


def _configured_optimizer(nlp: Language) -> Optional[Optimizer]:
    """What [training.optimizer] names, so that what does not fit is said before features are counted."""
    training = nlp.config.get("training") or {}
    if not training.get("optimizer"):
        return None
    config = nlp.config.interpolate()["training"]["optimizer"]
    return registry.resolve({"optimizer": config}, validate=False)["optimizer"]


def _takes_objective(optimizer: Optimizer) -> bool:
    if not hasattr(optimizer, "fits"):
        return False  # one of thinc's: no need to import ours, without which prediction starts sooner
    from ..optimizers.objective import CRFOptimizer  # prediction does without

    return isinstance(optimizer, CRFOptimizer)


def _parameters(model: Model) -> list[tuple[Model, str]]:
    """The nodes of a model with the names of their parameters."""
    return [(node, name) for node in model.walk() for name in node.param_names if node.has_param(name)]


def _keys(params: list[tuple[Model, str]]) -> list[tuple[int, str]]:
    return [(node.id, name) for node, name in params]


def _forget_other_shapes(optimizer: Optimizer, params: list[tuple[Model, str]]) -> None:
    """thinc's optimizers start anew with parameters that were laid out anew, as they do in spaCy's resizable layers."""
    for node, name in params:
        key, size = (node.id, name), node.get_param(name).size
        states = [state for state in (optimizer.mom1, optimizer.mom2, optimizer.averages) if state and key in state]
        if any(state[key].size != size for state in states):
            for state in (*states, optimizer.nr_update):
                state.pop(key, None)


def _view_for(optimizer: Optimizer) -> str:
    """Which of the model's views of a corpus an optimizer asks for."""
    return "sequences" if optimizer.wants_sequences else "objective"


def _sequence_starts(docs: list[Doc]) -> NDArray[np.int64]:
    batch = DocBatch.of(docs)
    return sequence_starts(batch.sent_start, batch.bounds)
