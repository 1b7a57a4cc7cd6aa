"""How a component learns: the data of steps, the state between them, and the texts that it has learned from.

Of texts it keeps a hash of 64 bits, and of all hashes the smallest `MOST_LEARNED`: 8 bytes a text, at most 1 MB, in its file.
Hashes give no text away, but whoever has a text can find out whether the component has learned from it.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
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
from ..inference.structure import Structure
from ..models.corpus import block_tokens
from ..models.node import AnnotatedDocs
from ..models.weights import Weights
from ..optimizers.objective import CRFOptimizer, Minibatch, Objective
from ..progress import Bar
from ..types import SOFT_LABELS, Floats
from .annotation.entities import GoldReport, Keys, Supervision
from .pipe import LearningPipe
from .saving import forget_gradients, parameters, unchanged_by_errors

if TYPE_CHECKING:
    from .corpora import ClockMessage
    from .new_texts import Continuation
    from .prepared import PreparedCorpus

MOST_LEARNED = 1 << 17  # hashes of texts
_NEW = 1 << 16  # hashes that wait to be sorted
_CONTINUES = "%s: continues from a model of %s with %s; weights of frequent features change least"

# Tokens in a block if the model does not determine how many fit into memory
_BLOCK_TOKENS = 1 << 16


class TrainingBatch(NamedTuple):
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
        self._batch: list[TrainingBatch] = []  # batches since the last step
        self._last_docs: list[Doc] = []  # Docs of the batch with the latest gradient
        self._has_predicted = False
        self._n_gradients = 0  # sequences in the pending gradient
        self.tick: Optional[ClockMessage] = None  # tells the clock whether another step can help
        if pipe.is_loaded:
            self.resume()

    def __getstate__(self) -> dict[str, object]:
        """State for copies, without pending gradients."""
        without: dict[str, object] = {"optimizer": None, "corpus": None, "_batch": [], "_last_docs": [], "tick": None}
        return {**self.__dict__, **without, "_n_gradients": 0}

    def begin(self) -> None:
        """Reset the state after initialization."""
        self.corpus = self.new_features = None
        self._batch = []
        self._train_all(holds_out=True)

    # ------------------------------------------------------------------------------------------------------- optimizers

    def optimizer_for(self, given: Optional[Optimizer]) -> Optional[Optimizer]:
        """The optimizer that the component uses when the pipeline passes the given one: its own optimizer if it has one, with two
        exceptions. `Minibatch` gives way to an optimizer that uses the objective, and to any optimizer if the model has an
        encoder. A pool's own optimizer that uses the objective has finished by then, so the pool uses the given one."""
        own = self.pipe.optimizer
        if own is None or self.finds_optimum:
            return given
        if isinstance(own, Minibatch) and given is not None:
            return own if self.pipe.is_linear and not isinstance(given, CRFOptimizer) else given
        return own

    @property
    def finds_optimum(self) -> bool:
        """Whether the component's own optimizer trains the features of a pool, see `Initialization.find_optimum`."""
        return self.pipe.is_pool and isinstance(self.pipe.optimizer, CRFOptimizer)

    def first_optimizer(self, nlp: Optional[Language]) -> Optional[Optimizer]:
        """The optimizer of the first step, as far as the component and the config tell it.

        RAISES (ValueError): As `check_optimizer` of the component, for the config's optimizer, before features are counted.
        """
        own = self.optimizer_for(None)
        given = None
        if nlp is None or (own is not None and not isinstance(own, Minibatch)):
            return self.pipe.optimizer
        if (nlp.config.get("training") or {}).get("optimizer"):
            config = nlp.config.interpolate()["training"]["optimizer"]
            given = registry.resolve({"optimizer": config}, validate=False)["optimizer"]
        optimizer = self.optimizer_for(given)
        if isinstance(optimizer, CRFOptimizer):
            self.pipe.check_optimizer(optimizer)
            self.optimizer = optimizer
        return optimizer

    def _begin_with(self, optimizer: Optional[Optimizer]) -> None:
        """Check an optimizer that took no step yet.

        RAISES (ValueError): As `LearningPipe.check_optimizer`; CRF347 for an encoder that it can't train.
        """
        pipe = self.pipe
        pipe.check_optimizer(optimizer)
        if isinstance(optimizer, CRFOptimizer) and not pipe.is_linear:
            what = f"the neural encoder of '{pipe.name}'"
            reason = "it trains sums of weights alone"
            raise cant_train(optimizer, what, reason, "Adam.v1, or leave the encoder out")
        self.optimizer = optimizer

    def add_new(self, examples: list[Example]) -> None:
        """Add the new labels of a batch, and new features unless `initialize` counted all features."""
        if self.continuation is not None:
            self.continuation.begin(self.pipe)
        add_labels(self.pipe, examples)
        self.learned.add(examples)
        if self.new_features is not None and self.pipe.feature_stores:
            from .new_texts import unmet  # for components that `initialize` gave no features, or that go on

            new = unmet(self.pipe, examples, self.new_features)
            if new:
                self.count(lambda: new)
        if self.continuation is not None:
            from .new_texts import unmet

            self.continuation.count(self.pipe, unmet(self.pipe, examples, self.continuation.met))

    def objective(self, optimizer: CRFOptimizer, examples: Iterable[Example]) -> Objective:
        """The objective for an optimizer, from a corpus that is read block by block.

        RAISES (ValueError): See `LearningPipe.check_optimizer`.
        """
        self.pipe.check_optimizer(optimizer)
        from .prepared import PreparedCorpus, view_for

        return PreparedCorpus(self.pipe, examples, view_for(optimizer)).objective

    @property
    def has_read_corpus(self) -> bool:
        """Whether every step uses the corpus that `initialize` read."""
        return self.corpus is not None and self.corpus.is_initial

    # ---------------------------------------------------------------------------------------------------- steps

    def update(self, examples: list[Example], losses: dict[str, float], drop: float, sgd: Optional[Optimizer]) -> None:
        """Add a batch, and take a step if an optimizer is given. For the arguments see `LearningPipe.update`.

        RAISES (ValueError): CRF930 if the clock only signals another step, but the component learns from batches.
        """
        batch = TrainingBatch(examples, losses, drop, has_gradient=True)
        tick = _tick_of(examples)
        if tick is not None:
            self.tick = tick
            batch = batch._replace(examples=[example for example in examples if _tick_of([example]) is None])
        elif not any(len(example.predicted) for example in examples):
            return
        optimizer = self.optimizer
        if sgd is not None or optimizer is None:
            optimizer = self.optimizer_for(sgd)
        uses_objective = self.pipe.is_linear and isinstance(optimizer, CRFOptimizer)
        if not batch.examples and not uses_objective:
            raise ValueError(Errors.CRF930.format(name=self.pipe.name))
        batch = batch._replace(has_gradient=not uses_objective)
        if batch.has_gradient:
            self._add_gradient(batch)
        self._batch.append(batch)  # last, since earlier lines may fail: the next step then ignores this batch
        if sgd is not None:
            self.pipe.finish_update(sgd)

    def has_counted(self, examples: list[Example], sgd: Optional[Optimizer]) -> None:
        """Take the step of a model whose weights are counts of the initialization: tell the clock that no step helps."""
        tick = _tick_of(examples)
        if tick is not None:
            tick.goes_on[self.pipe.name] = False
        if sgd is not None:
            self.pipe.finish_update(sgd)

    def finish(self, sgd: Optional[Optimizer]) -> None:
        """Take a step."""
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
        batch = self._batch
        self._batch = []
        if not isinstance(optimizer, CRFOptimizer):
            for part in batch:
                if not part.has_gradient:  # the config names another optimizer
                    self._add_gradient(part)
            n_sequences = self._n_gradients
            self._n_gradients = 0
            self.announce_continuation(n_sequences)
            step_by_gradient(pipe, optimizer, n_sequences, self._last_docs)
            pipe.forget_scores()
        elif batch:
            forget_gradients(pipe.model)  # only the first step shows that no optimizer needs gradients
            pipe.forget_scores()  # scores cached by an evaluation, which take memory
            from .prepared import step

            examples = list(chain.from_iterable(part.examples for part in batch))
            if self.has_read_corpus:
                add_labels(pipe, examples)
            batch[-1].losses[pipe.name] = step(self, optimizer, examples)
            self._last_docs = [example.predicted for example in examples]
        if not self._has_predicted and any(map(len, self._last_docs)):
            self._has_predicted = True
            shortest = min(filter(len, self._last_docs), key=len).copy()
            if pipe.has_encoder:
                from .earlier_components import add_vectors

                add_vectors(pipe.model, shortest)
            # Kernels of prediction are compiled or loaded before an evaluation is timed, unless the Doc lacks earlier annotation
            with suppress(ValueError):
                pipe.set_annotations([shortest], pipe.predict([shortest]))
            pipe.forget_scores()  # they take memory, and an evaluation may not follow
        self._last_docs = []

    def _add_gradient(self, batch: TrainingBatch) -> None:
        """Add the gradient of a batch, for optimizers that use gradients."""
        pipe = self.pipe
        self.add_new(batch.examples)
        set_dropout_rate(pipe.model, batch.drop)
        docs = self.docs_of(batch.examples)
        if not pipe.is_linear:
            from .earlier_components import require_vectors

            require_vectors(pipe.name, pipe.model, docs, is_train=True)
        scores, backprop = pipe.model.begin_update(docs)
        loss, d_scores = pipe.get_loss(batch.examples, scores) if _are_numbers(scores) else (math.nan, scores)
        if not math.isfinite(loss):
            raise ValueError(
                Errors.CRF206.format(
                    what="The loss", name=pipe.name, where=f"for the batch that begins with '{docs[0].text[:40]}...'"
                )
            )
        backprop(d_scores)
        self._n_gradients += len(scores.starts) - 1
        self._last_docs = docs
        batch.losses[pipe.name] += loss

    def loss_of(self, examples: list[Example], scores: Any) -> tuple[float, Any]:
        """Loss of a batch, and its derivative."""
        pipe = self.pipe
        batch = self.data(examples)
        structure = batch.structure or pipe.model.attrs["node"].in_training
        known = {"weights": batch.weights, **({} if batch.soft is None else {"soft": batch.soft})}
        of_scores = evaluate
        if hasattr(scores, "members"):
            from ..models.pool import pooled_loss

            of_scores = pooled_loss
        losses, d_scores, impossible = of_scores(pipe.loss, structure, scores, batch.allowed, **known)
        if impossible.any():
            pipe.warn_once(Warnings.CRFW403, n=int(impossible.sum()))
        return float(losses.sum()), d_scores

    # ------------------------------------------------------------------------------------------------------- continuing

    def frame(self) -> Weights:
        """Layout of the model's weights as one vector."""
        return Weights(self.pipe.model)

    def _train_all(self, *, holds_out: bool) -> None:
        """Train all members from here on, if the model is a pool, and hold out some texts or none."""
        if self.pipe.is_pool or hasattr(self.pipe.model.attrs["node"], "holds_out"):
            from ..models.pool import train_all_members

            train_all_members(self.pipe.model, holds_out=holds_out)

    def resume(self) -> None:
        """Continue the training of a component that was loaded."""
        self.learned = LearnedTexts.unpacked(self.pipe.learned_texts)
        self.continue_training()

    def continue_training(self) -> None:
        """From now on, treat the weights as the result of earlier training."""
        from .new_texts import Continuation

        if not self.has_read_corpus:
            self.corpus = None
        self.new_features = set()
        self._train_all(holds_out=False)  # the model has to learn corrections of any text
        self.pipe.warned.discard(_CONTINUES)
        counts = self.pipe.is_initialized and self.pipe.is_linear
        self.continuation = Continuation(self.frame().evidence()) if counts else None

    def announce_continuation(self, n_sequences: int) -> None:
        if self.continuation is not None:
            known = counted(self.continuation.evidence.sequences, "sequence")
            self._announce_once(_CONTINUES, known, counted(n_sequences, "new one"))

    def _announce_once(self, text: str, *values: object) -> None:
        if text not in self.pipe.warned:
            self.pipe.warned.add(text)
            announcements.info(text, self.pipe.name, *values)

    # ---------------------------------------------------------------------------------------------------- data

    def blocks(self, examples: Iterable[Example]) -> Iterator[list[Example]]:
        """Batches of about as many tokens as fit into memory together; a terminal shows how many texts were read."""
        features = self.pipe.sparse_features
        limit = block_tokens(features) if features is not None else _BLOCK_TOKENS
        block = []
        size = 0
        n_texts = 0
        with Bar(f"{self.pipe.name}: reading features", "text") as bar:
            for group in self._groups(examples):
                block += group
                size += sum(len(example.predicted) for example in group)
                n_texts += len(group)
                if size >= limit:
                    yield block
                    bar.show(n_texts)
                    block = []
                    size = 0
            if block:
                yield block
                bar.show(n_texts)

    def _groups(self, examples: Iterable[Example]) -> Iterable[list[Example]]:
        """The examples whose Docs have to be in one batch, since the model reads them together."""
        group_of = self.pipe.model.attrs["node"].traits.group_of
        if group_of is None:
            return ([example] for example in examples)
        groups: dict[object, list[Example]] = {}
        for n, example in enumerate(examples):
            group = group_of(example.predicted)
            groups.setdefault((n, None) if group is None else group, []).append(example)
        return groups.values()

    def docs_of(self, examples: list[Example]) -> list[Doc]:
        """The predicted Docs of examples, as the model reads them in training."""
        return self._to_learn([example.predicted for example in examples])

    def _to_learn(self, docs: list[Doc]) -> list[Doc]:
        """Docs with a first-stage labelling by a model that was not trained on them."""
        stage = self.pipe.first_stage
        return docs if stage is None else stage.to_learn(docs)

    def count(self, read: Callable[[], Iterable[Example]]) -> None:
        """Add the features of texts, annotated as in training, to the model, and weights for them."""

        def corpus() -> Iterator[AnnotatedDocs]:
            for block in self.blocks(read()):
                yield self.to_count([example.predicted for example in block], block, GoldReport())

        self.measure(read)
        self.pipe.model.initialize(X=corpus, Y=(self.pipe.vocab, self.pipe.decoding.n_states))

    def measure(self, read: Callable[[], Iterable[Example]]) -> None:
        """Tell the model the facts about the annotation that it needs before counting features: the lengths of segments."""
        if self.pipe.decoding.labelled == "segments":
            from .segment_supervision import measure

            measure(self.pipe.model, self.pipe.annotation, read(), Keys.of(self.pipe))

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        """Texts annotated by earlier components, in the form in which the model counts their features."""
        docs = self._to_learn(docs)
        starts = self.pipe.decoding.starts(docs)
        known = self.supervise(examples, starts, report)
        return AnnotatedDocs(
            docs,
            known.clamp,
            starts,
            known.unset,
            alternatives=known.alternatives,
            excluded=known.wrong,
            soft=known.soft,
        )

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        """Texts in the form in which optimizers learn from them; kind: see `PreparedCorpus`."""
        docs = self.docs_of(examples)
        if self.pipe.has_encoder and self.pipe.is_linear:
            from .earlier_components import require_rest

            require_rest(self.pipe.name, self.pipe.model, docs)
        starts = self.pipe.decoding.starts(docs)
        known = self.supervise(examples, starts, GoldReport())
        model = self.pipe.model
        structure: Optional[Structure] = None  # in place of that of the model
        if len(known.wrong.start) or len(known.steps) or self.pipe.rules_train or DocBatch.of(docs).is_space.any():
            from . import excluded  # few texts need it

            known = excluded.without_unusable(self.pipe, known, starts, kind)
            structure = excluded.structure_of(self.pipe, docs, known, starts) if kind == "objective" else None
        weights: Optional[Floats] = None
        if any(example.reference._.get("crf_weight") != 1.0 for example in examples):
            from .supervision import sequence_weights

            weights = sequence_weights(examples, starts, self.pipe.decoding.bounds(docs))
        batch = AnnotatedDocs(
            docs, known.clamp, starts, known.unset, weights, structure, known.alternatives, known.wrong, known.soft
        )
        return model.attrs["node"].training_batch(model, batch, self.pipe.name)

    def supervise(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Supervision:
        """Supervision by the gold annotation, the alternatives, the incorrect spans and the soft labels."""
        parts = self.pipe.parts()
        keys = Keys.of(self.pipe)
        gold = parts.annotation.gold(examples, starts, report)
        if keys.incorrect:
            from .supervision import refuse_contradictions

            refuse_contradictions(examples, keys.incorrect, parts.annotation)
        known = parts.decoding.supervise(gold, examples, starts, keys, report)
        if keys.soft is not None:
            from . import soft_labels  # other losses do not need it

            known = soft_labels.supervise(parts, keys.soft, known, examples, starts, report)
        elif any(SOFT_LABELS in example.reference.spans for example in examples):
            parts.warn_once(Warnings.CRFW825, key=SOFT_LABELS, loss=type(parts.loss).__name__)
        return known


def _tick_of(examples: list[Example]) -> "Optional[ClockMessage]":
    """The tick of the clock that is among the examples, or None."""
    empty = [example for example in examples if not len(example.reference)]
    if not empty:
        return None
    from .corpora import ClockMessage

    return next(filter(None, map(ClockMessage.of, empty)), None)


def add_labels(pipe: LearningPipe, examples: Iterable[Example]) -> None:
    """Add the labels of the annotation that the component does not have, except labels that it was told to leave out. After an
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
    """Labels in the gold annotation, its alternatives and the soft labels."""
    labels = set()
    keys = Keys.of(pipe)
    for example in examples:
        labels.update(pipe.annotation.gold_labels(example.reference))
        for key in (keys.alternatives, keys.soft):
            if key in example.reference.spans:
                labels.update(span.label_ for span in example.reference.spans[key])
    return labels - pipe.annotation.outside


def _are_numbers(scores: Any) -> bool:
    """Whether all scores are finite, or -inf for forbidden ones."""
    if hasattr(scores, "members"):  # of a pool
        return all(map(_are_numbers, scores.members))
    return all((array < np.inf).all() for array in named(scores).values())


def step_by_gradient(pipe: LearningPipe, optimizer: Any, n_sequences: int, docs: list[Doc]) -> None:
    """Take a step by the pending gradient.

    n_sequences (int), docs (list[Doc]): Number of sequences in the gradient, and its last texts for the message.
    RAISES (ValueError): CRF206 if weights would not be finite; the weights are then unchanged.
    """
    params = parameters(pipe.model)
    before = {(node.id, name): node.get_param(name).copy() for node, name in params}
    if isinstance(optimizer, Optimizer):
        _forget_other_shapes(optimizer, params)
    continuation = pipe.training.continuation
    proximal_step = None
    if continuation is not None and continuation.since is not None:
        from .new_texts import proximal_step_of

        proximal_step = proximal_step_of(pipe, optimizer, before)
    pipe.model.finish_update(optimizer)
    if not all(node.ops.xp.isfinite(node.get_param(name)).all() for node, name in params):
        for node, name in params:
            node.set_param(name, before[node.id, name])
        raise ValueError(
            Errors.CRF206.format(
                what=f"The step of {type(optimizer).__name__}",
                name=pipe.name,
                where=f"for the batch that begins with '{docs[0].text[:40] if docs else ''}...'",
            )
        )
    if proximal_step is not None:
        proximal_step(n_sequences)


def _forget_other_shapes(optimizer: Optimizer, params: list[tuple[Model, str]]) -> None:
    """Reset thinc's optimizers for parameters with a new layout, as spaCy's resizable layers do."""
    for node, name in params:
        key = (node.id, name)
        size = node.get_param(name).size
        states = [state for state in (optimizer.mom1, optimizer.mom2, optimizer.averages) if state and key in state]
        if any(state[key].size != size for state in states):
            for state in (*states, optimizer.nr_update):
                state.pop(key, None)


class LearnedTexts:
    """The texts that a component has learned from.

    is_known (bool): Whether all of its texts are known, as after `initialize`.
    """

    def __init__(self, *, is_known: bool):
        self._hashes = np.zeros(0, dtype=np.uint64)  # sorted
        self._new: set[int] = set()
        self._is_known = is_known

    def add(self, examples: Iterable[Example]) -> None:
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
        """How many of these texts the component has learned from; an estimate if it has learned from more than `MOST_LEARNED`
        texts, and None if its texts are not known."""
        if not self._is_known:
            return None
        self._sort()
        hashes = np.array([_hash(example) for example in examples if len(example.reference)], dtype=np.uint64)
        if len(self._hashes) < MOST_LEARNED:
            return int(np.isin(hashes, self._hashes).sum())
        small = hashes[hashes <= self._hashes[-1]]
        return round(np.isin(small, self._hashes).sum() / max(1, len(small)) * len(hashes))

    def packed(self) -> Optional[bytes]:
        """The form in which the texts are saved; None if they are not known."""
        self._sort()
        return self._hashes.astype("<u8").tobytes() if self._is_known else None

    @classmethod
    def unpacked(cls, saved: object) -> "LearnedTexts":
        """Texts as `packed` gives them, or whatever else a file has in their place."""
        texts = cls(is_known=isinstance(saved, bytes) and len(saved) % 8 == 0)
        if texts._is_known and isinstance(saved, bytes):
            texts._hashes = np.unique(np.frombuffer(saved, dtype="<u8").astype(np.uint64))[:MOST_LEARNED]
        return texts


def _hash(example: Example) -> int:
    """A number for a text without its white space, which formats of columns do not keep."""
    return hash_string("".join(example.reference.text.split()))
