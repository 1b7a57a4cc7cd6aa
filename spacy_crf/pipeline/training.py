"""How a component learns: the state between steps."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Optional

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from thinc.api import Model, Optimizer, set_dropout_rate

from ..arrays import named
from ..errors import Errors, Warnings, announcements, cant_train, counted
from ..inference.chain_set import evaluate
from ..models.pool import Pooled, pooled_loss, wake
from ..models.weights import Weights
from ..optimizers.objective import CRFOptimizer, Minibatch
from .corpora import Tick
from .earlier_components import add_vectors, require_vectors
from .learned_texts import LearnedTexts
from .new_texts import Continuation, add_labels, unmet
from .pipe import LearningPipe
from .saving import forget_gradients, parameters
from .training_data import PreparedBatch, PreparedCorpus, TrainingData, view_for

# Estimated microseconds for evaluating the objective with two threads, for each token and possible tag: constants, not timings
_PASS_PER_TOKEN = 0.2
_PASS_PER_TAG = 0.02


class TrainingBatch(NamedTuple):
    examples: list[Example]  # empty if the clock only signals another step
    losses: dict[str, float]
    drop: float
    has_gradient: bool


class Training(TrainingData):
    """The state of a component's training, kept from step to step."""

    def __init__(self, pipe: LearningPipe):
        super().__init__(pipe)
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
        self._tick: Optional[Tick] = None  # tells the clock whether another step can help
        if pipe.is_loaded:
            self.go_on()

    def __getstate__(self) -> dict[str, Any]:
        """State for copies, without pending gradients."""
        without: dict[str, Any] = {"optimizer": None, "corpus": None, "_batch": [], "_last_docs": [], "_tick": None}
        return {**self.__dict__, **without, "_n_gradients": 0}

    def begin(self) -> None:
        """Reset the state after initialization."""
        self.corpus = self.new_features = None
        self._batch = []
        wake(self._pipe.model, holds_out=True)

    # ------------------------------------------------------------------------------------------------------- optimizers

    def optimizer_for(self, given: Optional[Optimizer]) -> Optional[Optimizer]:
        """The optimizer that the component uses when the pipeline passes the given one: its own optimizer if it has one, with two
        exceptions. `Minibatch` gives way to an optimizer that uses the objective, and to any optimizer if the model has an
        encoder. A pool's own optimizer that uses the objective has finished by then, so the pool uses the given one."""
        own = self._pipe.optimizer
        if own is None or self.finds_optimum:
            return given
        if isinstance(own, Minibatch) and given is not None:
            return own if self._pipe.is_linear and not isinstance(given, CRFOptimizer) else given
        return own

    @property
    def finds_optimum(self) -> bool:
        """Whether the component's own optimizer trains the features of a pool, see `Initialization.find_optimum`."""
        return self._pipe.is_pool and isinstance(self._pipe.optimizer, CRFOptimizer)

    def first_optimizer(self, nlp: Optional[Language]) -> Optional[Optimizer]:
        """The optimizer of the first step, as far as the component and the config tell it.

        RAISES (ValueError): As `check_optimizer` of the component, for the config's optimizer, before features are counted.
        """
        own, given = self.optimizer_for(None), None
        if nlp is None or (own is not None and not isinstance(own, Minibatch)):
            return self._pipe.optimizer
        if (nlp.config.get("training") or {}).get("optimizer"):
            config = nlp.config.interpolate()["training"]["optimizer"]
            given = registry.resolve({"optimizer": config}, validate=False)["optimizer"]
        optimizer = self.optimizer_for(given)
        if isinstance(optimizer, CRFOptimizer):
            self._pipe.check_optimizer(optimizer)
            self.optimizer = optimizer
        return optimizer

    def _begin_with(self, optimizer: Optional[Optimizer]) -> None:
        """Check an optimizer that took no step yet.

        RAISES (ValueError): As `LearningPipe.check_optimizer`; CRF347 for an encoder that it can't train.
        """
        pipe = self._pipe
        pipe.check_optimizer(optimizer)
        if isinstance(optimizer, CRFOptimizer) and not pipe.is_linear:
            what, reason = f"the neural encoder of '{pipe.name}'", "it trains sums of weights alone"
            raise cant_train(optimizer, what, reason, "Adam.v1, or leave the encoder out")
        self.optimizer = optimizer

    def add_new(self, examples: list[Example]) -> None:
        """Add the new labels of a batch, and new features unless `initialize` counted all features."""
        if self.continuation is not None:
            self.continuation.begin(self._pipe)
        add_labels(self._pipe, examples)
        self.learned.add(examples)
        if self.new_features is not None and self._pipe.feature_stores:
            new = unmet(self._pipe, examples, self.new_features)
            if new:
                self.count(lambda: new)
        if self.continuation is not None:
            self.continuation.count(self._pipe, examples)

    def objective(self, optimizer: CRFOptimizer, examples: Iterable[Example]) -> Any:
        """The objective for an optimizer, from a corpus that is read block by block.

        RAISES (ValueError): See `LearningPipe.check_optimizer`.
        """
        self._pipe.check_optimizer(optimizer)
        return PreparedCorpus(self._pipe, examples, view_for(optimizer)).objective

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
        tick = next(filter(None, map(Tick.of, batch.examples)), None)
        if tick is not None:
            self._tick = tick
            batch = batch._replace(examples=[example for example in batch.examples if Tick.of(example) is None])
        elif not any(len(example.predicted) for example in batch.examples):
            return
        optimizer = self.optimizer
        if sgd is not None or optimizer is None:
            optimizer = self.optimizer_for(sgd)
        uses_objective = self._pipe.is_linear and isinstance(optimizer, CRFOptimizer)
        if not batch.examples and not uses_objective:
            raise ValueError(Errors.CRF930.format(name=self._pipe.name))
        batch = batch._replace(has_gradient=not uses_objective)
        if batch.has_gradient:
            self._add_gradient(batch)
        self._batch.append(batch)  # last, since earlier lines may fail: the next step then ignores this batch
        if sgd is not None:
            self._pipe.finish_update(sgd)

    def has_counted(self, examples: list[Example], sgd: Optional[Optimizer]) -> None:
        """Take the step of a model whose weights are counts of the initialization: tell the clock that no step helps."""
        for tick in filter(None, map(Tick.of, examples)):
            tick.goes_on[self._pipe.name] = False
        if sgd is not None:
            self._pipe.finish_update(sgd)

    def finish(self, sgd: Optional[Optimizer]) -> None:
        """Take a step."""
        pipe = self._pipe
        optimizer = self.optimizer_for(sgd)
        if optimizer is not self.optimizer:
            self._begin_with(optimizer)
        if pipe.model.attrs["role"].counts is not None:
            pipe.warn_once(Warnings.CRFW465, model=pipe.model.name)
            return
        if optimizer is pipe.optimizer and optimizer is not sgd:
            text = "%s: learns by its own %s; with optimizer = null it learns by what the pipeline learns by"
            self._announce_once(text, type(optimizer).__name__)
        batch, self._batch = self._batch, []
        if not isinstance(optimizer, CRFOptimizer):
            for part in batch:
                if not part.has_gradient:  # the config names another optimizer
                    self._add_gradient(part)
            n_sequences, self._n_gradients = self._n_gradients, 0
            self._announce_continuation(n_sequences)
            step_by_gradient(pipe, optimizer, n_sequences, self._last_docs)
            pipe.forget_scores()
        elif batch:
            forget_gradients(pipe.model)  # only the first step shows that no optimizer needs gradients
            pipe.forget_scores()  # scores cached by an evaluation, which take memory
            examples = [eg for part in batch for eg in part.examples]
            batch[-1].losses[pipe.name] = self._step(optimizer, examples)
            self._last_docs = [example.predicted for example in examples]
        if not self._has_predicted and any(map(len, self._last_docs)):
            self._has_predicted = True
            shortest = min(filter(len, self._last_docs), key=len).copy()
            add_vectors(pipe.model, shortest)
            shortest._.crf_links = None  # to Docs that are not there
            # Kernels of prediction are compiled or loaded before an evaluation is timed, unless the Doc lacks earlier annotation
            with suppress(ValueError):
                pipe.set_annotations([shortest], pipe.predict([shortest]))
            pipe.forget_scores()  # they take memory, and an evaluation may not follow
        self._last_docs = []

    def _add_gradient(self, batch: TrainingBatch) -> None:
        """Add the gradient of a batch, for optimizers that use gradients."""
        pipe = self._pipe
        self.add_new(batch.examples)
        set_dropout_rate(pipe.model, batch.drop)
        docs = self.docs_of(batch.examples)
        if not pipe.is_linear:
            require_vectors(pipe.name, pipe.model, docs, is_train=True)
        scores, backprop = pipe.model.begin_update(docs)
        loss, d_scores = pipe.get_loss(batch.examples, scores) if _are_numbers(scores) else (math.nan, scores)
        if not math.isfinite(loss):
            where = f"for the batch that begins with '{docs[0].text[:40]}...'"
            raise ValueError(Errors.CRF206.format(what="The loss", name=pipe.name, where=where))
        backprop(d_scores)
        self._n_gradients += len(scores.starts) - 1
        self._last_docs = docs
        batch.losses[pipe.name] += loss

    def loss_of(self, examples: list[Example], scores: Any) -> tuple[float, Any]:
        """Loss of a batch, and its derivative."""
        pipe, batch = self._pipe, self.data(examples)
        structure = batch.structure or pipe.model.attrs["role"].in_training()
        told = {"weights": batch.weights, **({} if batch.soft is None else {"soft": batch.soft})}
        of_scores = pooled_loss if isinstance(scores, Pooled) else evaluate
        losses, d_scores, impossible = of_scores(pipe.loss, structure, scores, batch.allowed, **told)
        if impossible.any():
            pipe.warn_once(Warnings.CRFW403, n=int(impossible.sum()))
        return float(losses.sum()), d_scores

    def _step(self, optimizer: CRFOptimizer, examples: list[Example]) -> float:
        """Take a step of an optimizer that uses the objective. RETURNS (float): The value of the objective.

        examples (list[Example]): Texts of the step; empty for the texts of the last step.
        RAISES (ValueError): CRF411 if labels, features or rules of the component have changed since.
        """
        pipe, kind = self._pipe, view_for(optimizer)
        if self.has_read_corpus:
            add_labels(pipe, examples)
        if not examples:
            if self.corpus is None or self.corpus.kind != kind or not self.corpus.fits_pipe:
                raise ValueError(Errors.CRF411.format(name=pipe.name))
        elif self.corpus is None or self.corpus.kind != kind or not self.corpus.holds(examples):
            if self.corpus is None:  # a sign of life before the first step, which takes longest
                announcements.info("%s: reading features of %s", pipe.name, counted(len(examples), "text"))
            self.add_new(examples)
            self._announce_continuation(len(examples))
            self.corpus = PreparedBatch(pipe, examples, kind)
        per_token = _PASS_PER_TOKEN + _PASS_PER_TAG * pipe.decoding.n_states
        self.corpus.objective.passes_per_evaluation = pipe.evaluation / (per_token * max(1, self.corpus.n_tokens))
        is_worth_evaluating, role = False, pipe.model.attrs["role"]
        try:
            while not is_worth_evaluating:
                self.corpus.before_step(optimizer)
                value = optimizer.step(self.corpus.objective, key=pipe.name)
                self.corpus.after_step(optimizer)
                is_worth_evaluating = optimizer.is_worth_evaluating(pipe.name) and not role.after_step(
                    pipe.model, self.corpus.objective, optimizer, pipe.name
                )
        except KeyboardInterrupt:
            text = (
                "%s: interrupted. In memory is the model of the last complete step (of L-BFGS: iteration); `spacy train` "
                "saves it as model-last, and keeps in model-best that of its best evaluation so far, if there was one"
            )
            announcements.info(text, pipe.name)
            raise
        n_impossible = getattr(self.corpus.objective, "n_impossible", 0)
        if n_impossible:
            pipe.warn_once(Warnings.CRFW403, n=n_impossible)
        tick, self._tick = self._tick, None
        if tick is not None:
            tick.goes_on[pipe.name] = optimizer.stop_reason(pipe.name) is None
        self.prunes = optimizer.leaves_zeros
        return value

    # ------------------------------------------------------------------------------------------------------- continuing

    def frame(self) -> Weights:
        """Layout of the model's weights as one vector."""
        return Weights(self._pipe.model)

    def go_on(self) -> None:
        """Continue the training of a component that was loaded."""
        self.learned = LearnedTexts.unpacked(self._pipe.learned_texts)
        self.continue_training()

    def continue_training(self) -> None:
        """From now on, treat the weights as the result of earlier training."""
        if not self.has_read_corpus:
            self.corpus = None
        self.new_features = set()
        wake(self._pipe.model, holds_out=False)  # the model has to learn corrections of any text
        self._pipe.told.discard(_CONTINUES)
        counts = self._pipe.is_initialized and self._pipe.is_linear
        self.continuation = Continuation(self.frame().evidence()) if counts else None

    def _announce_continuation(self, n_sequences: int) -> None:
        if self.continuation is not None:
            known = counted(self.continuation.evidence.sequences, "sequence")
            self._announce_once(_CONTINUES, known, counted(n_sequences, "new one"))

    def _announce_once(self, text: str, *values: Any) -> None:
        if text not in self._pipe.told:
            self._pipe.told.add(text)
            announcements.info(text, self._pipe.name, *values)


_CONTINUES = "%s: continues from a model of %s with %s; weights of frequent features change least"


def _are_numbers(scores: Any) -> bool:
    """Whether all scores are finite, or -inf for forbidden ones."""
    if isinstance(scores, Pooled):
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
        proximal_step = _proximal_step(pipe, optimizer, before)
    _finish_update(pipe.model, optimizer)
    if not all(node.ops.xp.isfinite(node.get_param(name)).all() for node, name in params):
        for node, name in params:
            node.set_param(name, before[node.id, name])
        where = f"for the batch that begins with '{docs[0].text[:40] if docs else ''}...'"
        what = f"The step of {type(optimizer).__name__}"
        raise ValueError(Errors.CRF206.format(what=what, name=pipe.name, where=where))
    if proximal_step is not None:
        proximal_step(n_sequences)
    for name, mask in pipe.model.attrs["role"].nonnegative(pipe.model).items():
        weights: Any = pipe.model.get_param(name)
        pipe.model.set_param(name, np.where(mask, np.maximum(weights, 0.0), weights))


def _finish_update(model: Model, optimizer: Optimizer) -> None:
    """Like `thinc.Model.finish_update`, with a learning rate for each node."""
    for node in model.walk():
        for shim in node.shims:
            shim.finish_update(optimizer)
    for node, name in parameters(model):
        if node.has_grad(name):
            key, scale = (node.id, name), node.attrs.get("lr_scale", 1.0)
            node.set_param(name, optimizer(key, node.get_param(name), node.get_grad(name), lr_scale=scale)[0])


def _proximal_step(pipe: LearningPipe, optimizer: Any, before: dict[Any, Any]) -> Callable[[int], None]:
    """A function that moves weights towards those of earlier training after a step; `before` are the weights before it."""
    params, start = parameters(pipe.model), pipe.training.frame().weights()
    gradients: list[Any] = [node.get_grad(name) for node, name in params if node.has_grad(name)]
    length = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    averages = {}
    if optimizer.averages is not None:
        # Averages start from zero, as in thinc
        averages = {key: optimizer.averages.get(key, 0.0 * weights) + 0.0 for key, weights in before.items()}

    def step(n_sequences: int) -> None:
        anchor = pipe.training.continuation.anchor(pipe)
        # A single rate, since optimizers with several do not expose them
        rate = float(np.linalg.norm(anchor.now - start)) / length if length else 0.0
        moves = pipe.training.frame().parameters(anchor.drawn(anchor.now, rate, n_sequences) - anchor.now)
        for node, name in params:
            key = (node.id, name)
            if key in moves:
                weights = node.get_param(name) + moves[key]
                node.set_param(name, weights)
                if key in averages:
                    node.ops.update_averages(averages[key], weights, optimizer.nr_update[key])
                    optimizer.averages[key] = averages[key]

    return step


def _forget_other_shapes(optimizer: Optimizer, params: list[tuple[Model, str]]) -> None:
    """Reset thinc's optimizers for parameters with a new layout, as spaCy's resizable layers do."""
    for node, name in params:
        key, size = (node.id, name), node.get_param(name).size
        states = [state for state in (optimizer.mom1, optimizer.mom2, optimizer.averages) if state and key in state]
        if any(state[key].size != size for state in states):
            for state in (*states, optimizer.nr_update):
                state.pop(key, None)
