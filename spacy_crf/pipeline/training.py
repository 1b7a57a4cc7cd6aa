"""How a component learns: the data of steps, the state between them, and the texts that it has learned from.

Of texts it keeps a hash of 64 bits, and of all hashes the smallest `MOST_LEARNED`: 8 bytes a text, at most 1 MB, in its file.
Hashes give no text away, but whoever has a text can find out whether the component has learned from it.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from spacy.language import Language
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from thinc.api import Model, Optimizer, set_dropout_rate

from ..arrays import named
from ..errors import Errors, Warnings, announcements, cant_train, counted
from ..features.doc_batch import DocBatch
from ..inference.chain_set import evaluate
from ..models.corpus import block_tokens
from ..models.node import AnnotatedDocs, TrainingStructure
from ..models.pool import Pooled, pooled_loss, train_all_members
from ..models.weights import Weights
from ..optimizers.objective import CRFOptimizer, Minibatch, Objective
from ..progress import Bar
from ..types import SOFT_LABELS, Floats, Ints, ScoreArrays
from .annotation.entities import GoldReport, Keys, Supervision
from .corpora import ClockMessage
from .earlier_components import add_vectors, require_rest, require_vectors
from .new_texts import Continuation, new_examples, proximal_step_of
from .pipe import LearningPipe
from .prepared import PreparedCorpus, step, view_for
from .saving import parameters, unchanged_by_errors, zero_gradients
from .supervision import refuse_contradictions, sequence_weights

MOST_LEARNED = 1 << 17  # hashes of texts
_NEW = 1 << 16  # hashes that wait to be sorted
_CONTINUES = "%s: continues from a model of %s with %s; weights of frequent features change least"

# Tokens in a block if the model does not determine how many fit into memory
_BLOCK_TOKENS = 1 << 16


class TrainingBatch(NamedTuple):
    """A batch that waits for its step."""

    examples: list[Example]  # empty if the clock only signals another step
    losses: dict[str, float]
    drop: float
    has_gradient: bool


class Training:
    """The state of a component's training, kept from step to step."""

    def __init__(self, pipe: LearningPipe):
        self.pipe = pipe
        self.optimizer: Optional[Optimizer] = None  # of the last step; it can train the component
        self.corpus: Optional[PreparedCorpus] = None
        self.learned = LearnedTexts(is_known=False)
        # None unless the model continues from earlier training
        self.continuation: Optional[Continuation] = None
        # Fingerprints of texts whose features were added; None if `initialize` counted all features
        self.new_features: Optional[set[int]] = None
        self.prunes = False  # whether saving the model drops zero weights
        self._waiting: list[TrainingBatch] = []  # batches since the last step
        self._last_docs: list[Doc] = []  # Docs of the batch with the latest gradient
        self._has_predicted = False  # whether `_load_kernels` was called: once is enough
        self._n_gradients = 0  # sequences in the pending gradient
        # Message to the clock of `corpora`, which ends training when no component can use another step; None without a clock
        self.tick: Optional[ClockMessage] = None
        if pipe.is_loaded:
            self.resume()

    def __getstate__(self) -> dict[str, object]:
        """State for copies, without pending gradients."""
        without: dict[str, object] = {"optimizer": None, "corpus": None, "_waiting": [], "_last_docs": [], "tick": None}
        return {**self.__dict__, **without, "_n_gradients": 0}

    def begin(self) -> None:
        """Reset the state after initialization."""
        self.corpus = self.new_features = None
        self._waiting = []
        self._train_all(holds_out=True)

    # ------------------------------------------------------------------------------------------------------- optimizers

    def optimizer_for(self, given: Optional[Optimizer]) -> Optional[Optimizer]:
        """The optimizer of a step for which the pipeline passes the `given` one."""
        own = self.pipe.optimizer
        # A pool's own optimizer has found the weights of the features before the first step
        if own is None or self.finds_optimum:
            return given
        # Minibatch, the default of components, gives way to optimizers of this package, and to any if there is an encoder
        if isinstance(own, Minibatch) and given is not None:
            gives_way = isinstance(given, CRFOptimizer) or not self.pipe.is_linear
            return given if gives_way else own
        return own

    @property
    def finds_optimum(self) -> bool:
        """Whether the component's own optimizer finds the best weights of a pool's features before the encoder learns."""
        return self.pipe.is_pool and isinstance(self.pipe.optimizer, CRFOptimizer)

    def choose_first_optimizer(self, nlp: Optional[Language]) -> Optional[Optimizer]:
        """The optimizer of the first step: the component's own one, or that of [training] in the config of its pipeline (`nlp`),
        which becomes `optimizer` if it uses the objective. None if neither is known. `initialize` calls this method before it
        counts features, so that a wrong optimizer fails early.

        RAISES (ValueError): As `check_optimizer` of the component, for an optimizer of the config that uses the objective.
        """
        own = self.optimizer_for(None)
        if nlp is None or (own is not None and not isinstance(own, Minibatch)):
            return self.pipe.optimizer
        config_optimizer = None
        if (nlp.config.get("training") or {}).get("optimizer"):
            config = nlp.config.interpolate()["training"]["optimizer"]
            config_optimizer = registry.resolve({"optimizer": config}, validate=False)["optimizer"]
        optimizer = self.optimizer_for(config_optimizer)
        if isinstance(optimizer, CRFOptimizer):
            self.pipe.check_optimizer(optimizer)
            self.optimizer = optimizer
        return optimizer

    def _begin_with(self, optimizer: Optional[Optimizer]) -> None:
        """Check an optimizer that took no step yet, and use it from now on.

        RAISES (ValueError): As `LearningPipe.check_optimizer`; CRF347 if the model has an encoder that it can't train.
        """
        pipe = self.pipe
        pipe.check_optimizer(optimizer)
        if isinstance(optimizer, CRFOptimizer) and not pipe.is_linear:
            what = f"the neural encoder of '{pipe.name}'"
            reason = "it trains sums of weights alone"
            raise cant_train(optimizer, what, reason, "Adam.v1, or leave the encoder out")
        self.optimizer = optimizer

    def add_labels_and_features(self, examples: list[Example]) -> None:
        """Add the new labels of a batch of examples, and new features unless `initialize` counted all features."""
        if self.continuation is not None:
            self.continuation.begin(self.pipe)
        add_labels(self.pipe, examples)
        self.learned.add(examples)
        if self.new_features is not None and self.pipe.feature_stores:
            without_features = new_examples(self.pipe, examples, self.new_features)
            if without_features:
                self.count(lambda: without_features)
        if self.continuation is not None:
            self.continuation.count(self.pipe, new_examples(self.pipe, examples, self.continuation.met))

    def objective(self, optimizer: CRFOptimizer, examples: Iterable[Example]) -> Objective:
        """The objective of a corpus of examples, which is read block by block, for an optimizer.

        RAISES (ValueError): As `LearningPipe.check_optimizer`.
        """
        self.pipe.check_optimizer(optimizer)
        return PreparedCorpus(self.pipe, examples, view_for(optimizer)).objective

    @property
    def has_read_corpus(self) -> bool:
        """Whether every step uses the corpus that `initialize` read."""
        return self.corpus is not None and self.corpus.is_initial

    # ---------------------------------------------------------------------------------------------------- steps

    def update(self, examples: list[Example], losses: dict[str, float], drop: float, sgd: Optional[Optimizer]) -> None:
        """Add a batch of examples to those that wait for a step, and take the step if `sgd` is given. The arguments are those of
        `LearningPipe.update`.

        RAISES (ValueError): CRF930 if the clock only signals another step, but the component learns from batches.
        """
        batch = TrainingBatch(examples, losses, drop, has_gradient=True)
        tick = _tick_of(examples)
        if tick is not None:
            self.tick = tick
            batch = batch._replace(examples=[example for example in examples if _tick_of([example]) is None])
        elif not any(len(example.predicted) for example in examples):
            return
        # Without `sgd`, `finish_update` takes the step later, most probably with the optimizer of the last step
        optimizer = self.optimizer
        if sgd is not None or optimizer is None:
            optimizer = self.optimizer_for(sgd)
        uses_objective = self.pipe.is_linear and isinstance(optimizer, CRFOptimizer)
        if not batch.examples and not uses_objective:
            raise ValueError(Errors.CRF930.format(name=self.pipe.name))
        batch = batch._replace(has_gradient=not uses_objective)
        if batch.has_gradient:
            self._add_gradient(batch)
        self._waiting.append(batch)  # last, since earlier lines may fail: the next step then ignores this batch
        if sgd is not None:
            self.pipe.finish_update(sgd)

    def skip_step(self, examples: list[Example], sgd: Optional[Optimizer]) -> None:
        """Stand in for `update` if the weights of the model are counts, which initialization has made: tell the clock that no
        step helps.

        examples (List[Example]): The batch, which may have a tick of the clock.
        sgd (Optional[Optimizer]): If given, `finish_update` is called at once.
        """
        tick = _tick_of(examples)
        if tick is not None:
            tick.goes_on[self.pipe.name] = False
        if sgd is not None:
            self.pipe.finish_update(sgd)

    def finish(self, sgd: Optional[Optimizer]) -> None:
        """Take a step with the batches since the last one; `sgd` is the optimizer of the pipeline, see `optimizer_for`."""
        pipe = self.pipe
        optimizer = self.optimizer_for(sgd)
        if optimizer is not self.optimizer:
            self._begin_with(optimizer)
        if pipe.model.attrs["node"].traits.counts is not None:
            pipe.warn_once(Warnings.CRFW465, model=pipe.model.name)
            return
        if optimizer is pipe.optimizer and optimizer is not sgd:
            text = "%s: learns by its own %s; with optimizer = null it learns by what the pipeline learns by"
            self._announce_once(text, type(optimizer).__name__)
        batches = self._waiting
        self._waiting = []
        if not isinstance(optimizer, CRFOptimizer):
            for batch in batches:
                # `update` expected an optimizer that uses the objective, but got another one
                if not batch.has_gradient:
                    self._add_gradient(batch)
            n_sequences = self._n_gradients
            self._n_gradients = 0
            self.announce_continuation(n_sequences)
            step_by_gradient(pipe, optimizer, n_sequences, self._last_docs)
            pipe.clear_scores()
        elif batches:
            zero_gradients(pipe.model)  # only the first step shows that no optimizer needs gradients
            pipe.clear_scores()  # scores cached by an evaluation, which take memory
            examples = list(chain.from_iterable(batch.examples for batch in batches))
            if self.has_read_corpus:
                add_labels(pipe, examples)
            batches[-1].losses[pipe.name] = step(self, optimizer, examples)
            self._last_docs = [example.predicted for example in examples]
        if not self._has_predicted and any(map(len, self._last_docs)):
            self._has_predicted = True
            self._load_kernels()
        self._last_docs = []

    def _load_kernels(self) -> None:
        """Predict a Doc of the last batch, so that the kernels of prediction are compiled or loaded before spaCy times an
        evaluation. This does nothing if the Doc lacks the annotation of earlier components."""
        pipe = self.pipe
        # A copy, since spaCy scores the predicted Docs
        shortest = min(filter(len, self._last_docs), key=len).copy()
        if pipe.has_encoder:
            add_vectors(pipe.model, shortest)
        with suppress(ValueError):
            pipe.set_annotations([shortest], pipe.predict([shortest]))
        pipe.clear_scores()  # they take memory, and an evaluation may not follow

    def _add_gradient(self, batch: TrainingBatch) -> None:
        """Add the gradient of a batch, for optimizers that use gradients."""
        pipe = self.pipe
        self.add_labels_and_features(batch.examples)
        set_dropout_rate(pipe.model, batch.drop)
        docs = self.docs_of(batch.examples)
        if not pipe.is_linear:
            require_vectors(pipe.name, pipe.model, docs, is_train=True)
        scores, backprop = pipe.model.begin_update(docs)
        loss = math.nan
        if _are_numbers(scores):
            loss, d_scores = pipe.get_loss(batch.examples, scores)
        if not math.isfinite(loss):
            where = f"for the batch that begins with '{docs[0].text[:40]}...'"
            raise ValueError(Errors.CRF206.format(what="The loss", name=pipe.name, where=where))
        backprop(d_scores)
        self._n_gradients += len(scores.starts) - 1
        self._last_docs = docs
        batch.losses[pipe.name] += loss

    def loss_of(self, examples: list[Example], scores: Any) -> tuple[float, Any]:
        """The loss of a batch of examples with these `scores`, and its derivative with respect to the scores."""
        pipe = self.pipe
        batch = self.data(examples)
        structure = batch.structure or pipe.model.attrs["node"].in_training
        # Only losses with soft labels have the argument
        soft = {} if batch.soft is None else {"soft": batch.soft}
        losses_of: Callable = pooled_loss if isinstance(scores, Pooled) else evaluate
        losses, d_scores, impossible = losses_of(
            pipe.loss, structure, scores, batch.allowed, weights=batch.weights, **soft
        )
        if impossible.any():
            pipe.warn_once(Warnings.CRFW403, n=int(impossible.sum()))
        return float(losses.sum()), d_scores

    # ------------------------------------------------------------------------------------------------------- continuing

    def frame(self) -> Weights:
        """The object that reads and writes the model's weights as one vector."""
        return Weights(self.pipe.model)

    def _train_all(self, *, holds_out: bool) -> None:
        """If the model is a pool, train all of its members from now on. `holds_out`: whether the pool holds out some texts, by
        which it learns to mix its members."""
        if self.pipe.is_pool or hasattr(self.pipe.model.attrs["node"], "holds_out"):
            train_all_members(self.pipe.model, holds_out=holds_out)

    def resume(self) -> None:
        """Continue the training of a component that was loaded."""
        self.learned = LearnedTexts.unpacked(self.pipe.learned_texts)
        self.continue_training()

    def continue_training(self) -> None:
        """From now on, treat the weights as the result of earlier training."""
        if not self.has_read_corpus:
            self.corpus = None
        self.new_features = set()
        self._train_all(holds_out=False)  # the model has to learn corrections of any text
        self.pipe.warned.discard(_CONTINUES)
        self.continuation = None
        # Only models whose scores are sums of weights know how often each weight was met
        if self.pipe.is_initialized and self.pipe.is_linear:
            self.continuation = Continuation(self.frame().evidence())

    def announce_continuation(self, n_sequences: int) -> None:
        """Log once that training continues, with `n_sequences` new sequences."""
        if self.continuation is not None:
            earlier = counted(self.continuation.evidence.sequences, "sequence")
            self._announce_once(_CONTINUES, earlier, counted(n_sequences, "new one"))

    def _announce_once(self, text: str, *values: object) -> None:
        if text not in self.pipe.warned:
            self.pipe.warned.add(text)
            announcements.info(text, self.pipe.name, *values)

    # ---------------------------------------------------------------------------------------------------- data

    def blocks(self, examples: Iterable[Example]) -> Iterator[list[Example]]:
        """Cut examples into blocks whose features fit into memory together. A terminal shows how many texts were read."""
        features = self.pipe.sparse_features
        limit = block_tokens(features) if features is not None else _BLOCK_TOKENS
        block = []
        n_tokens = 0
        n_texts = 0
        with Bar(f"{self.pipe.name}: reading features", "text") as bar:
            for group in self._groups(examples):
                block += group
                n_tokens += sum(len(example.predicted) for example in group)
                n_texts += len(group)
                if n_tokens >= limit:
                    yield block
                    bar.show(n_texts)
                    block = []
                    n_tokens = 0
            if block:
                yield block
                bar.show(n_texts)

    def _groups(self, examples: Iterable[Example]) -> Iterable[list[Example]]:
        """Group the examples whose Docs the model reads together; most models read each Doc by itself."""
        group_of = self.pipe.model.attrs["node"].traits.group_of
        if group_of is None:
            return ([example] for example in examples)
        groups: dict[object, list[Example]] = {}
        for n, example in enumerate(examples):
            key = group_of(example.predicted)
            if key is None:  # the Doc belongs to no group, so it is a group of its own
                key = (n, None)
            groups.setdefault(key, []).append(example)
        return groups.values()

    def docs_of(self, examples: list[Example]) -> list[Doc]:
        """The predicted Docs of examples, as the model reads them in training."""
        return self._with_first_labels([example.predicted for example in examples])

    def _with_first_labels(self, docs: list[Doc]) -> list[Doc]:
        """The Docs with labels of the first stage, if there is one, by a model that was not trained on them."""
        first_stage = self.pipe.first_stage
        return self.pipe.batch_class(docs) if first_stage is None else first_stage.to_learn(docs)

    def count(self, read: Callable[[], Iterable[Example]]) -> None:
        """Add features of texts to the model, and weights for the features. `read` gives the texts, annotated as in training."""

        def corpus() -> Iterator[AnnotatedDocs]:
            for block in self.blocks(read()):
                yield self.to_count([example.predicted for example in block], block, GoldReport())

        self.set_longest(read)
        self.pipe.model.initialize(X=corpus, Y=(self.pipe.vocab, self.pipe.decoding.n_states))

    def set_longest(self, read: Callable[[], Iterable[Example]]) -> None:
        """Before features are counted, tell a model of segments how long the annotated segments are. `read` gives the texts."""
        if self.pipe.decoding.labelled == "segments":
            from .semi_markov import set_longest

            set_longest(self.pipe.model, self.pipe.annotation, read(), Keys.of(self.pipe))

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        """Texts in the form in which the model counts their features.

        docs (List[Doc]): The texts, annotated by earlier components.
        examples (List[Example]): Their annotation.
        report (GoldReport): Gets the annotation that cannot be used.
        """
        docs = self._with_first_labels(docs)
        starts = self.pipe.decoding.starts(docs)
        supervision = self.supervise(examples, starts, report)
        return AnnotatedDocs(
            docs,
            supervision.clamp,
            starts,
            supervision.unset,
            alternatives=supervision.alternatives,
            excluded=supervision.wrong,
            soft=supervision.soft,
        )

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        """Texts in the form in which optimizers learn from them.

        examples (List[Example]): The texts.
        kind (str): What the optimizer learns from: the "objective", or "sequences" one after the other.
        """
        docs = self.docs_of(examples)
        if self.pipe.has_encoder and self.pipe.is_linear:
            require_rest(self.pipe.name, self.pipe.model, docs)
        starts = self.pipe.decoding.starts(docs)
        supervision = self.supervise(examples, starts, GoldReport())
        model = self.pipe.model
        structure: Optional[TrainingStructure] = None  # replaces the structure of the model
        excludes = len(supervision.wrong.start) > 0 or len(supervision.steps) > 0
        if excludes or self.pipe.rules_train or DocBatch.of(docs).is_space.any():
            from . import excluded  # few texts need it

            supervision = excluded.drop_unusable(self.pipe, supervision, starts, kind)
            if kind == "objective":
                structure = excluded.structure_of(self.pipe, docs, supervision, starts)
        weights: Optional[Floats] = None
        if any(example.reference._.get("crf_weight") != 1.0 for example in examples):
            weights = sequence_weights(examples, starts, self.pipe.decoding.bounds(docs))
        batch = AnnotatedDocs(
            docs,
            supervision.clamp,
            starts,
            supervision.unset,
            weights,
            structure,
            supervision.alternatives,
            supervision.wrong,
            supervision.soft,
        )
        return model.attrs["node"].training_batch(model, batch, self.pipe.name)

    def supervise(self, examples: list[Example], starts: Ints, report: GoldReport) -> Supervision:
        """Read what the reference Docs say: the gold annotation, the alternatives, the incorrect spans and the soft labels.

        examples (List[Example]): The texts, whose sequences start at `starts` (int64[B + 1]).
        report (GoldReport): Gets the annotation that cannot be used.
        """
        parts = self.pipe.parts()
        keys = Keys.of(self.pipe)
        gold = parts.annotation.gold(examples, starts, report)
        if keys.incorrect:
            refuse_contradictions(examples, keys.incorrect, parts.annotation)
        supervision = parts.decoding.supervise(gold, examples, starts, keys, report)
        if keys.soft is not None:
            from . import soft_labels  # other losses do not need it

            supervision = soft_labels.supervise(parts, keys.soft, supervision, examples, starts, report)
        elif any(SOFT_LABELS in example.reference.spans for example in examples):
            parts.warn_once(Warnings.CRFW825, key=SOFT_LABELS, loss=type(parts.loss).__name__)
        return supervision


def _tick_of(examples: list[Example]) -> Optional[ClockMessage]:
    """The tick of the clock that one of the examples carries; None without a tick."""
    # Only Examples without words carry one
    empty = [example for example in examples if not len(example.reference)]
    return next(filter(None, map(ClockMessage.of, empty)), None)


def add_labels(pipe: LearningPipe, examples: Iterable[Example]) -> None:
    """Add new labels in the annotation of examples to a component (`pipe`), except labels that its config leaves out. After an
    error no label is added.

    RAISES (ValueError): CRF412 if the component has read its whole corpus already; or as `add_label`.
    """
    unknown = labels_of(pipe, examples).difference(pipe.labels, pipe.cfg["left_out"])
    if not unknown:
        return
    if pipe.training.has_read_corpus:
        raise ValueError(Errors.CRF412.format(name=pipe.name, labels=", ".join(map(repr, sorted(unknown)))))
    with unchanged_by_errors(pipe):
        for label in sorted(unknown):
            pipe.add_label(label)
    announcements.info("%s: new labels: %s", pipe.name, ", ".join(sorted(unknown)))


def labels_of(pipe: LearningPipe, examples: Iterable[Example]) -> set[str]:
    """The labels that a component (`pipe`) reads from examples: of gold annotation, alternatives and soft labels."""
    labels = set()
    keys = Keys.of(pipe)
    for example in examples:
        labels.update(pipe.annotation.gold_labels(example.reference))
        for key in (keys.alternatives, keys.soft):
            if key in example.reference.spans:
                labels.update(span.label_ for span in example.reference.spans[key])
    return labels - pipe.annotation.outside


def _are_numbers(scores: Union[ScoreArrays, Pooled]) -> bool:
    """Whether all scores are finite, or -inf for forbidden ones."""
    if isinstance(scores, Pooled):
        return all(map(_are_numbers, scores.members))
    return all((array < np.inf).all() for array in named(scores).values())


def step_by_gradient(pipe: LearningPipe, optimizer: Any, n_sequences: int, docs: list[Doc]) -> None:
    """Take a step by the pending gradient.

    pipe (LearningPipe): The component.
    optimizer (Optimizer): Takes the step: an optimizer of thinc, or a function that is called like one.
    n_sequences (int): Number of sequences in the gradient.
    docs (list[Doc]): The latest texts in the gradient, for the message.
    RAISES (ValueError): CRF206 if weights would not be finite; the weights are then unchanged.
    """
    params = parameters(pipe.model)
    # Copies, since thinc changes weights in place
    before = {(node.id, name): node.get_param(name).copy() for node, name in params}
    if isinstance(optimizer, Optimizer):
        _reset_other_shapes(optimizer, params)
    continuation = pipe.training.continuation
    proximal_step = None
    if continuation is not None and continuation.since is not None:
        proximal_step = proximal_step_of(pipe, optimizer, before)
    pipe.model.finish_update(optimizer)
    if not all(node.ops.xp.isfinite(node.get_param(name)).all() for node, name in params):
        for node, name in params:
            node.set_param(name, before[node.id, name])
        what = f"The step of {type(optimizer).__name__}"
        where = f"for the batch that begins with '{docs[0].text[:40] if docs else ''}...'"
        raise ValueError(Errors.CRF206.format(what=what, name=pipe.name, where=where))
    if proximal_step is not None:
        proximal_step(n_sequences)


def _reset_other_shapes(optimizer: Optimizer, params: list[tuple[Model, str]]) -> None:
    """Let an optimizer of thinc forget the momentum and the averages of parameters whose shape has changed, as by new labels."""
    for node, name in params:
        key = (node.id, name)
        size = node.get_param(name).size
        tables = (optimizer.mom1, optimizer.mom2, optimizer.averages)  # any of them may be None
        memories = [table for table in tables if table and key in table]
        if any(memory[key].size != size for memory in memories):
            for memory in (*memories, optimizer.nr_update):
                memory.pop(key, None)


class LearnedTexts:
    """The texts that a component has learned from.

    is_known (bool): Whether all of its texts are known, as after `initialize`.
    """

    def __init__(self, *, is_known: bool):
        self._hashes = np.zeros(0, dtype=np.uint64)  # sorted
        self._new: set[int] = set()
        self._is_known = is_known

    def add(self, examples: Iterable[Example]) -> None:
        """Add the texts of examples, unless earlier texts are not known."""
        if not self._is_known:
            return
        self._new.update(_hash(example) for example in examples if len(example.reference))
        if len(self._new) >= _NEW:
            self._sort()

    def _sort(self) -> None:
        new = np.fromiter(self._new, dtype=np.uint64, count=len(self._new))
        self._hashes = np.union1d(self._hashes, new)[:MOST_LEARNED]
        self._new = set()

    def count(self, examples: Iterable[Example]) -> Optional[int]:
        """The number of examples whose texts the component has learned from. If it has learned from more than `MOST_LEARNED`
        texts, the number is an estimate. None if its texts are not known."""
        if not self._is_known:
            return None
        self._sort()
        hashes = np.array([_hash(example) for example in examples if len(example.reference)], dtype=np.uint64)
        if len(self._hashes) < MOST_LEARNED:
            return int(np.isin(hashes, self._hashes).sum())
        # Only the smallest hashes were kept. Hashes are evenly distributed, so the examples up to the largest of these are a fair
        # sample
        sample = hashes[hashes <= self._hashes[-1]]
        share = np.isin(sample, self._hashes).sum() / max(1, len(sample))
        return round(share * len(hashes))

    def packed(self) -> Optional[bytes]:
        """The bytes in which the texts are saved; None if they are not known."""
        self._sort()
        return self._hashes.astype("<u8").tobytes() if self._is_known else None

    @classmethod
    def unpacked(cls, saved: object) -> "LearnedTexts":
        """Read the result of `packed` from a file. If the file holds anything else (`saved`), the texts are not known."""
        texts = cls(is_known=isinstance(saved, bytes) and len(saved) % 8 == 0)
        if texts._is_known and isinstance(saved, bytes):
            texts._hashes = np.unique(np.frombuffer(saved, dtype="<u8").astype(np.uint64))[:MOST_LEARNED]
        return texts


def _hash(example: Example) -> int:
    """A number for a text without its white space, which formats of columns do not keep."""
    return hash_string("".join(example.reference.text.split()))
