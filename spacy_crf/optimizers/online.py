"""Base of the online optimizers, which learn from one sequence after the other, in random order.

A kernel makes the passes over the corpus (`SequenceObjective`). Weights stay in float64 from step to step; one seed gives one
model.
"""

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..arrays import of_file
from ..errors import Errors, cant_train
from ..kernels.online import rules as kernels
from ..kernels.online.work import PassBuffers, make_room
from ..losses.clamped import MaxMargin, Perceptron
from ..types import ChainCorpus, Floats, Ints
from .objective import Component, CRFOptimizer, SequenceObjective, setting

logger = logging.getLogger("spacy.spacy_crf")


# Number of sequences after which a model that continues from earlier training takes a proximal step towards its first weights
PROXIMAL_AFTER = 10
# The largest move of a weight between two proximal steps, as a share of the largest weight: the first steps of AdaGrad, for
# example, would otherwise lose the scale of the weights
LONGEST_STEP = 0.1
EMPTY = np.empty(0)  # for rules without memory


class CorpusPass(NamedTuple):
    """Arguments of a kernel for one pass over a corpus."""

    corpus: ChainCorpus
    order: Ints  # [B] the sequences in the order of the pass
    costs: Floats  # [S, S], or [0, 0] without costs
    room: PassBuffers  # work space


@dataclass
class OnlineRun:
    """State of the training of one component, kept from step to step."""

    layout: tuple
    weights: NDArray[np.float32]  # [n] the weights that the latest step wrote to the model
    slots: Floats  # [M] the weights in the kernels' layout
    arrays: dict[str, NDArray] = field(default_factory=dict)  # [M] memory of the rule for each slot, by name
    numbers: dict[str, float] = field(default_factory=dict)  # further memory of the rule, by name
    count: float = 0  # number of sequences seen; of a corpus that is trained in parts, the mean over the parts
    iteration: int = 0  # epochs
    stop_reason: Optional[str] = None  # why training has ended; None for rules that never end
    # The layout, by which a later step finds the weights if the model got further ones; not saved: None in loaded runs
    frame: Any = None
    slot_of_weight: Optional[Ints] = None  # [n] None without a frame
    is_held: bool = False  # whether weights are held near those of earlier training, without l1 and l2

    def to_msg(self) -> list[object]:
        """The state in a form that msgpack can write and `OnlineOptimizer.run_from_msg` can read."""
        arrays = [self.layout, self.weights, self.slots, self.arrays]
        return [*arrays, self.numbers, self.count, self.iteration, self.stop_reason]


@dataclass(kw_only=True, eq=False, repr=False)
class OnlineOptimizer(CRFOptimizer):
    """Base of the optimizers that learn from one sequence after the other. Several epochs per step reduce the share of spaCy's
    work after each step.
    """

    reads = "batch"
    losses: ClassVar = (Perceptron, MaxMargin)
    drifts: ClassVar[tuple[str, ...]] = ()  # names of memory that sums move · time over all moves of a weight
    follows: ClassVar[tuple[str, ...]] = ()  # names of memory that a shortened step shortens as it does the weights
    walks_in_parts: ClassVar[bool] = True  # whether proximal steps may interrupt a pass

    epochs_per_step: int = setting(1, checks.count, most=1000)
    seed: int = setting(0, checks.count, fixed=True, least=0, most=checks.ANY)

    # ------------------------------------------------------------------------------------------- for subclasses

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of the rule, by slot.

        run (OnlineRun): The new run, with its weights.
        objective (SequenceObjective): The corpus.
        """

    def rates(
        self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int
    ) -> Union[float, Floats]:
        """How far a unit of a sequence's derivative moves a weight: float, or float64[n] for each weight.

        run (OnlineRun): The state after the latest sequences.
        objective (SequenceObjective): The corpus.
        moves (float64[n]): How far the latest sequences moved the weights.
        n_sequences (int): Number of the latest sequences.
        """
        raise NotImplementedError

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Learn from the sequences of a pass.

        pass_ (CorpusPass): The sequences, in the order in which they are seen.
        run (OnlineRun): The state, whose slots and memory change.
        RETURNS (tuple[float, int]): The sum of losses, and -1; if a loss is not finite, that loss, and the index of its
            sequence in the order.
        """
        raise NotImplementedError

    def apply(
        self,
        rule: int,
        pass_: CorpusPass,
        run: OnlineRun,
        *settings: float,
        memory: Floats = EMPTY,
        squares: Floats = EMPTY,
    ) -> tuple[float, int]:
        """Learn from the sequences of a pass by one of the kernels' rules.

        rule (int): Number of the rule in `kernels.online.rules`.
        pass_ (CorpusPass): The sequences, in the order in which they are seen.
        run (OnlineRun): The state, whose slots change.
        settings (float): Up to four settings of the rule.
        memory (float64[M]): Memory of the rule for each slot, which changes.
        squares (float64[M]): Further memory of the rule for each slot, which changes.
        RETURNS (tuple[float, int]): As `walk`.
        """
        numbers = run.numbers
        scaling = np.array([numbers.get("scale", 1.0), numbers.get("due", 0.0)])  # the kernel changes both
        # The kernel takes four settings
        padded: Any = (*map(float, settings), 0.0, 0.0, 0.0, 0.0)[:4]
        rule_run = kernels.RuleRun(
            pass_.order,
            pass_.costs,
            run.slots,
            rule,
            padded,
            float(run.count),
            scaling,
            memory,
            squares,
        )
        result = kernels.walk(*pass_.room, rule_run)
        if "scale" in numbers:
            numbers["scale"], numbers["due"] = scaling.tolist()
        return result

    def present(self, run: OnlineRun) -> Floats:
        """The current weights of a run by slot: float64[M]."""
        return run.slots

    def average(self, run: OnlineRun) -> Floats:
        """The averaged weights of a run by slot: float64[M]."""
        raise NotImplementedError

    def penalty(self, weights: Floats) -> float:
        """The regularizer at the weights (float64[n])."""
        return 0.0

    # -------------------------------------------------------------------------------------------------------- a step

    def check_fit(self, pipe: Component) -> None:
        """Check before training whether this optimizer can train a component (`pipe`). RAISES (ValueError): CRF210, CRF347,
        CRF365.
        """
        super().check_fit(pipe)
        check_sequences(self, pipe)

    def step(self, objective: SequenceObjective, *, key: str) -> float:
        """Run `epochs_per_step` epochs over the sequences of an objective.

        objective (SequenceObjective): The corpus of a component.
        key (str): The component.
        RETURNS (float): The sum of the losses in the last epoch, with the regularizer.
        RAISES (ValueError): CRF206 if the loss or a weight is not finite; the run is then as before.
        """
        slots = objective.corpus.slot_of_weight
        run = self._run_of(objective, key)
        run.is_held = objective.anchor is not None
        mixed: Any = objective.mixed  # walks through a corpus in several processes, in place of this optimizer
        pass_ = None
        if objective.mixed is None:
            pass_ = self.pass_through(objective)
            self.prepare(objective, pass_, run, key)
        losses = 0.0
        backup = self._snapshot(run)  # of the last epoch in which all was finite
        for _ in range(self.epochs_per_step):
            try:
                if pass_ is None:
                    losses = mixed.epoch(self, run, key)
                else:
                    losses = self.epoch(pass_, run, objective, (self.seed, run.iteration), key)
            except ValueError:
                self._runs[key] = backup
                raise
            run.iteration += 1
        weights = self.present(run)[slots]
        assigned = weights
        if self.averages is not None:
            averages = self.average(run)[slots]
            self.averages.update(objective.parameters(averages))  # spaCy evaluates with them
            assigned = averages if self.assigns_averages else weights
        objective.assign(assigned)
        run.weights = assigned.astype(np.float32)
        value = float(losses + (0.0 if run.is_held else self.penalty(weights)))
        logger.debug("%s: %s epoch %d objective %.6f", key, type(self).__name__, run.iteration, value)
        return value

    def pass_through(self, objective: SequenceObjective) -> CorpusPass:
        """RETURNS (CorpusPass): Arguments of the kernels for passes over the whole corpus of an objective."""
        corpus = objective.corpus
        return CorpusPass(
            corpus=corpus,
            order=np.arange(len(corpus.starts) - 1),
            costs=objective.loss.costs(corpus.n_states),
            room=make_room(corpus, maximum=not objective.loss.smooth),
        )

    def epoch(
        self, pass_: CorpusPass, run: OnlineRun, objective: SequenceObjective, seed: tuple[int, ...], key: str
    ) -> float:
        """Learn from all sequences once, in random order.

        pass_ (CorpusPass): All sequences.
        run (OnlineRun): The state, whose slots and memory change.
        objective (SequenceObjective): The corpus.
        seed (tuple[int, ...]): Seed of the order.
        key (str): Name of the component, for messages.
        RETURNS (float): The sum of the losses.
        RAISES (ValueError): CRF206 if the loss or a weight is not finite.
        """
        order = np.random.default_rng(seed).permutation(len(pass_.order))
        # Place in the order of the sequence at which the loss was no longer finite, -1 for none
        losses, failed = self._walk_through(pass_._replace(order=order), run, objective)
        n_finite = np.count_nonzero(np.isfinite(run.slots))
        n_possible = len(run.slots) - len(pass_.corpus.forbidden)  # slots of forbidden transitions are -inf
        if failed < 0 and not (math.isfinite(losses) and n_finite == n_possible):
            # A sum or a weight is seen not to be finite at the end only, so the message names the last sequence
            failed = len(order) - 1
        if failed >= 0:
            sequence = objective.describe(int(order[failed]))
            raise ValueError(
                Errors.CRF206.format(
                    what="The loss",
                    name=key,
                    where=f"for {type(self).__name__} in epoch {run.iteration + 1}, at {sequence}",
                )
            )
        return losses

    # ------------------------------------------------------------------------------------------------ within a step

    def prepare(self, objective: SequenceObjective, pass_: CorpusPass, run: OnlineRun, key: str) -> None:
        """Prepare a step; `step` calls this method first.

        objective (SequenceObjective): The corpus of a component.
        pass_ (CorpusPass): All sequences.
        run (OnlineRun): The state.
        key (str): Name of the component, for messages.
        """

    def _walk_through(self, pass_: CorpusPass, run: OnlineRun, objective: SequenceObjective) -> tuple[float, int]:
        """Learn from the sequences of a pass, with proximal steps if the model continues from earlier training. RETURNS: As
        `walk`.
        """
        order = pass_.order
        losses = 0.0
        n_between = PROXIMAL_AFTER if run.is_held and self.walks_in_parts else max(1, len(order))
        for begin in range(0, len(order), n_between):
            part = order[begin : begin + n_between]
            start = self._snapshot(run) if run.is_held else run
            loss, failed = self.walk(pass_._replace(order=part), run)
            if failed >= 0:
                return loss, begin + failed
            losses += loss
            run.count += len(part)
            if run.is_held:
                self.proximal_step(run, objective, start, len(part))
        return losses, -1

    def proximal_step(self, run: OnlineRun, objective: SequenceObjective, start: OnlineRun, n_sequences: int) -> None:
        """Draw the weights back towards the weights from which the model continues.

        run (OnlineRun): The run after the latest `n_sequences` sequences, whose slots change.
        objective (SequenceObjective): The corpus, with the anchor.
        start (OnlineRun): The run before these sequences.
        """
        slots = objective.corpus.slot_of_weight
        anchor = objective.anchor
        weights = self.present(run)[slots]
        before = self.present(start)[slots]
        rates = self.rates(run, objective, weights - before, n_sequences)
        step = anchor.draw_back(weights, rates, n_sequences) - before  # of the sequences and of the anchor together
        longest = np.abs(step).max(initial=0.0)
        allowed = LONGEST_STEP * np.abs(anchor.begin).max(initial=0.0)
        share = allowed / longest if 0.0 < allowed < longest else 1.0  # of the step that is made
        moves = before + share * step - weights
        run.slots[slots] += moves / run.numbers.get("scale", 1.0)  # weight = scale · slot
        for name in self.drifts:
            run.arrays[name][slots] += run.count * moves
        for name in self.follows:
            array = run.arrays[name]
            array[slots] = start.arrays[name][slots] + share * (array - start.arrays[name])[slots]

    def _run_of(self, objective: SequenceObjective, key: str) -> OnlineRun:
        """The run of a component: the earlier one if model and weights are unchanged, else a new one, which takes over what it
        can.
        """
        earlier = self._runs.get(key)
        corpus = objective.corpus
        weights = objective.weights()
        assigned = weights.astype(np.float32)
        if earlier is not None and earlier.layout == objective.layout and np.array_equal(earlier.weights, assigned):
            if earlier.frame is None:
                self.expect_fits(earlier, objective)
            return earlier
        slots = np.zeros(len(corpus.learned))
        slots[corpus.slot_of_weight] = weights
        slots[corpus.forbidden] = -np.inf
        run = self._runs[key] = OnlineRun(objective.layout, assigned, slots)
        self.start(run, objective)
        if earlier is not None and earlier.frame is not None and earlier.layout != objective.layout:
            self._take_over(run, earlier, objective)
        run.frame = objective.frame()
        run.slot_of_weight = corpus.slot_of_weight
        return run

    def expect_fits(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Check whether the arrays of a loaded run fit the corpus of an objective, since kernels trust them.

        RAISES (ValueError): CRF921 if they do not fit.
        """
        fresh = OnlineRun(run.layout, run.weights, run.slots)
        self.start(fresh, objective)
        self.expect_alike("slots", len(run.slots), len(objective.corpus.learned))
        self.expect_arrays(run, fresh.arrays)
        missing = sorted({*fresh.numbers} - {*run.numbers})
        if missing:
            raise self.unusable(f"it lacks the numbers {', '.join(missing)}")

    def expect_arrays(self, run: OnlineRun, fresh: dict[str, NDArray]) -> None:
        """Check whether a run has all arrays of a `fresh` run, with their types and shapes. RAISES (ValueError): CRF921."""
        saved = {name: _kind_of(run.arrays.get(name, EMPTY)) for name in fresh}
        ours = {name: _kind_of(array) for name, array in fresh.items()}
        self.expect_alike("arrays", saved, ours)

    @staticmethod
    def _take_over(run: OnlineRun, earlier: OnlineRun, objective: SequenceObjective) -> None:
        """Copy the state of an earlier run into a new one, if no other code has changed the weights. Added weights start anew."""
        places = objective.places(earlier.frame)
        expected = np.zeros_like(run.weights)
        expected[places] = earlier.weights
        if not np.array_equal(expected, run.weights):
            return
        old_slots = earlier.slot_of_weight
        new_slots = objective.corpus.slot_of_weight[places]
        run.slots[new_slots] = earlier.slots[old_slots]
        for name, values in earlier.arrays.items():
            if name in run.arrays and values.shape == earlier.slots.shape:
                run.arrays[name][new_slots] = values[old_slots]
        run.numbers = dict(earlier.numbers)
        run.count = earlier.count
        run.iteration = earlier.iteration

    @staticmethod
    def _snapshot(run: OnlineRun) -> OnlineRun:
        """A copy of a run."""
        return replace(
            run,
            slots=run.slots.copy(),
            arrays={name: array.copy() for name, array in run.arrays.items()},
            numbers=dict(run.numbers),
        )

    def run_from_msg(self, msg: list[Any]) -> OnlineRun:
        """Load a run from the result of `OnlineRun.to_msg`. RAISES: An error of any class if it is damaged."""
        owner = "a run"
        layout, weights, slots, arrays, numbers, count, iteration, reason = msg
        hash((layout, numbers.get("signature")))  # raises an error for arrays, which a damaged message may have here
        floats = {name: float(number) for name, number in numbers.items() if name != "signature"}
        checks.expect(not np.isnan([*floats.values()]).any(), owner, "numbers", floats, "numbers")
        checks.number(owner, "count", count)
        copies = {}
        for name, array in arrays.items():
            dtype = np.int32 if getattr(array, "dtype", None) == np.int32 else np.float64
            copies[name] = of_file(name, array, dtype, (None,) * np.ndim(array), finite=False)
        return OnlineRun(
            layout,
            of_file("the weights", weights, np.float32, (None,)),
            of_file("the slots", slots, np.float64, (None,), finite=False),
            copies,
            dict(numbers),
            count,
            checks.count(owner, "iteration", iteration, least=0, most=checks.ANY),
            None if reason is None else checks.text(owner, "stop_reason", reason),
        )


def _kind_of(array: NDArray) -> tuple[str, tuple[int, ...]]:
    """The type and the shape of an array."""
    return str(array.dtype), array.shape


def check_sequences(optimizer: CRFOptimizer, pipe: Component) -> None:
    """Check whether learning from one sequence after the other can train a component.

    optimizer (CRFOptimizer): The optimizer, for the message.
    pipe (Component): The component.
    RAISES (ValueError): CRF347 or CRF365 if it can't.
    """
    fitting = "LBFGS or Adam.v1"
    if pipe.has_encoder and pipe.is_linear:
        what = f"the layer on the encoder of '{pipe.name}'"
        raise cant_train(optimizer, what, "it learns from one sequence after the other", fitting)
    for part in pipe.model.walk():
        if "node" in part.attrs and not part.attrs["node"].traits.is_online:
            raise ValueError(Errors.CRF365.format(name=pipe.name, optimizer=type(optimizer).__name__, model=part.name))
    if pipe.rules_train:
        reason = "it ignores rules, which in_training = true puts into training"
        raise cant_train(optimizer, f"the rules of '{pipe.name}'", reason, fitting)
    if len(pipe.chains) > 1:
        what = f"the {len(pipe.chains)} chains of '{pipe.name}'"
        raise cant_train(optimizer, what, "it walks along a single chain", fitting)


@dataclass(kw_only=True, eq=False, repr=False)
class Averaged(OnlineOptimizer):
    """Base of the optimizers that also keep the average of the weights before the first sequence and after each one."""

    drifts: ClassVar = ("drift",)

    use_averages: bool = setting(True, checks.flag)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.averages = {} if self.use_averages else None

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of a new run: no weight has moved. `objective` is not used."""
        run.arrays["drift"] = np.zeros_like(run.slots)

    def average(self, run: OnlineRun) -> Floats:
        """The averaged weights of a run by slot: w - drift / (count + 1)."""
        return run.slots - run.arrays["drift"] / (run.count + 1)
