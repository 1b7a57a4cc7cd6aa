"""Losses that are one subtraction: the value over all labellings, less the value over the labellings that the annotation allows.

    loss     = value(scores + cost)        - value(scores + cost, clamp)
    gradient = expectations(scores + cost) - expectations(scores + cost, clamp)

The clamp carries the kind of supervision: one state for each token (full annotation), the states that a partial annotation
allows, all states of the gold tag. A new loss is a new class below: its value and its margin.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional, TypeVar

import numpy as np

from .. import arrays, checks
from ..arrays import Scores
from ..inference.structure import Structure
from ..types import Bools, Clamp, Floats, Ints

OfLoss = TypeVar("OfLoss", bound="LabelledLoss")
OfClamped = TypeVar("OfClamped", bound="ClampedLoss")
# Share of a value that rounding may take
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LabelledLoss:
    """Base of all losses: the label of each state, and settings by label.

    Many losses have the setting `label_weights`: how much a mistake at a token of this label counts; 1 for labels not named. Use
    values above 1 for labels that the model should miss less often; "O" above 1 makes false alarms rarer.
    """

    states: tuple[str, ...] = field(default=(), init=False, repr=False)

    label_weights = None
    smooth: ClassVar[bool] = True  # whether the loss has a gradient everywhere, as line searches require
    # Whether the loss needs the state of each token, which annotation does not name where a tag has several
    names_states: ClassVar[bool] = False
    spans_key: ClassVar[Optional[str]] = None  # key of doc.spans that holds the soft labels of the loss
    __call__: ClassVar[Callable[..., Any]]  # see `ClampedLoss.__call__`

    def __post_init__(self):
        owner = type(self).__name__
        if self.label_weights is None:
            return
        weights = checks.by_label(owner, "label_weights", self.label_weights, "numbers")
        for label, value in weights.items():
            checks.positive(owner, f"label_weights[{label!r}]", value)
        object.__setattr__(self, "label_weights", weights)

    def bind(self: OfLoss, states: Iterable[str]) -> OfLoss:
        """A copy of the loss for states with these labels ("O" for none)."""
        bound = copy.copy(self)
        object.__setattr__(bound, "states", tuple(states))
        return bound

    def among(self: OfLoss, states: Ints) -> OfLoss:
        """A copy of the loss for a model that has only some of its states, without the settings of labels that none of these has.

        states (int64[N]): The numbers of the states in this loss.
        """
        # A loss that was not bound yet knows no states
        loss = self.bind([self.states[state] for state in states] if self.states else ())
        object.__setattr__(loss, "label_weights", loss._of_states(self.label_weights))
        return loss

    def _of_states(self, by_label: Optional[dict[str, Any]]) -> dict[str, Any]:
        """The settings of the labels that a state of this loss has."""
        return {label: value for label, value in (by_label or {}).items() if label in self.states}

    def check_labels(self) -> None:
        """Check the labels in the settings. RAISES (ValueError): CRF846 for labels that no state has."""
        self.named_states(self.label_weights or {})

    def named_states(self, labels: Iterable[str]) -> dict[str, Ints]:
        """The states of each label: int64[N].

        labels (Iterable[str]): Labels that settings name.
        RAISES (ValueError): CRF846 for labels that no state has.
        """
        checks.labels(f"The settings of {type(self).__name__}", labels, self.states)
        labels_of_states = np.array(self.states, dtype=object)
        return {label: np.flatnonzero(labels_of_states == label) for label in labels}

    def state_weights(self, n_states: int) -> Floats:
        """The label weight of each of n_states states: float64[S]."""
        weights = np.ones(n_states)
        label_weights = self.label_weights or {}
        for label, states in self.named_states(label_weights).items():
            weights[states] = label_weights[label]
        return weights

    def least_costs(self, n_states: int) -> Floats:
        """For each of n_states states, the least cost that is added to its score where it is a mistake: float64[S]."""
        return np.zeros(n_states)

    def excludes(self, labelled: str) -> bool:
        """Whether the loss can exclude single spans that a clamp allows.

        labelled (str): What the model labels: "tokens", "segments" or "texts".
        """
        return labelled == "segments" and not self.names_states

    @property
    def of_annotation(self) -> Any:
        """The loss of batches without soft labels."""
        return self


@dataclass(frozen=True)
class ClampedLoss(LabelledLoss):
    """Base of the losses in this file.

    The value is the log partition of a smooth loss, the score of the best labelling otherwise. The loss adds costs to the scores
    of the states that the annotation forbids: a labelling that uses such states must score lower by their costs. `margin` is the
    cost of any forbidden state (Hamming cost); `cost` and `label_weights` refine it. A labelling with a span known to be wrong
    costs, for each such span, at least as much as one token.

    margin (float): Cost of a wrong state.
    label_weights (Dict[str, float]): Factors of the costs at tokens of these labels. Without a margin the logarithm of the factor
        is added instead, as if each wrong state existed so many times.
    cost (Dict[str, Dict[str, float]]): Cost of predicting the second label where the annotation has the first, in place of the
        margin. "O" is a label too; pairs not named keep the margin.
    """

    label_weights: Any = None
    cost: Any = None

    margin: ClassVar[float] = 0.0

    def __post_init__(self):
        super().__post_init__()
        owner = type(self).__name__
        if self.cost is None:
            return
        cost = checks.by_label(owner, "cost", self.cost, "tables")
        for gold, row in cost.items():
            cost[gold] = checks.by_label(owner, f"cost[{gold!r}]", row, "numbers")
            for label, value in cost[gold].items():
                checks.number(owner, f"cost[{gold!r}][{label!r}]", value)
        object.__setattr__(self, "cost", cost)

    def among(self: OfClamped, states: Ints) -> OfClamped:
        """A copy of the loss for some of its `states` (int64[N]), with the settings and costs of labels that these states
        have.
        """
        loss: Any = super().among(states)
        cost = {gold: loss._of_states(row) for gold, row in loss._of_states(self.cost).items()}
        object.__setattr__(loss, "cost", cost)
        return loss

    def check_labels(self) -> None:
        """Check the labels in the settings and in `cost`. RAISES (ValueError): CRF846 for labels that no state has."""
        super().check_labels()
        for gold, row in (self.cost or {}).items():
            self.named_states([gold, *row])

    def costs(self, n_states: int) -> Floats:
        """The cost of each state (column) where the annotation names another state (row).

        n_states (int): S.
        RETURNS (float64[S, S]): The costs; float64[0, 0] if all costs are 0.
        """
        if not self.margin and not self.cost and not self.label_weights:
            return np.zeros((0, 0))
        table = np.full((n_states, n_states), self.margin)
        for gold, row in (self.cost or {}).items():
            gold_states = self.named_states([gold])[gold]
            for label, states in self.named_states(row).items():
                table[np.ix_(gold_states, states)] = row[label]
        weights = self.state_weights(n_states)[:, np.newaxis]
        # A factor multiplies the costs; without a margin it multiplies exp(score) of a wrong state instead, so its log is added
        table = table * weights if self.margin else table + np.log(weights)
        np.fill_diagonal(table, 0.0)
        return table

    def excludes(self, labelled: str) -> bool:
        """Whether the loss can exclude single spans: it can for models that label "tokens" or "segments" (`labelled`)."""
        return labelled in ("tokens", "segments")

    def least_costs(self, n_states: int) -> Floats:
        """For each of n_states states, the least cost where it is a mistake: the least entry of its column beside the
        diagonal."""
        table = self.costs(n_states)
        if not len(table):
            return np.zeros(n_states)
        np.fill_diagonal(table, np.inf)
        return np.where(n_states > 1, table.min(axis=0), 0.0)

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, Bools]:
        """Evaluate the loss of each sequence, and differentiate the sum of the losses.

        structure (Structure): The structure that sums over the scores.
        scores (Scores): Potentials of B sequences.
        clamp: What the annotation allows.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], Scores, bool[B]): Losses times the factors; the derivative of their sum with respect to every score;
            and which sequences have no labelling that the annotation allows: their loss and derivative are 0.
        """
        # Full annotation allows a single path, whose score needs no sums
        states = structure.only_path(clamp) if "path" in structure.answers else None
        if self.margin or self.cost or self.label_weights:
            scores = self._with_costs(scores, arrays.states_of(clamp))
        # Log partitions and expected uses of scores; or best scores, and the uses by the best labellings
        evaluate = structure.expectations if self.smooth else structure.viterbi_counts
        n_sequences = 1 if scores.starts is None else len(scores.starts) - 1
        if weights is None:
            weights = np.ones(n_sequences)
        weights = np.asarray(weights, dtype=np.float64)
        arrays.check_shape("weights", weights, (n_sequences,), "sequences")
        work = structure.prepare(scores, annotated=clamp)
        if states is not None and self.smooth:
            # In one pass; the derivative of impossible sequences is 0
            free_values, gold_values, d_scores = structure.differentiate_path(work, states, weights)
            impossible = gold_values == -np.inf
        else:
            if states is None:
                gold_values, d_clamped = evaluate(work, clamp=clamp, weights=weights)
            else:
                gold_values = structure.path_score(work, states)
            impossible = gold_values == -np.inf
            weights = np.where(impossible, 0.0, weights)
            free_values, d_scores = evaluate(work, weights=weights)
            if not self.smooth and "exact" not in structure.answers and (free_values < gold_values).any():
                # The search found nothing better than the annotation, so there is nothing to learn
                weights = np.where(free_values < gold_values, 0.0, weights)
                free_values = np.maximum(free_values, gold_values)
                _, d_scores = evaluate(work, weights=weights)
                if states is None:
                    _, d_clamped = evaluate(work, clamp=clamp, weights=weights)
            if states is None:
                arrays.subtract(d_scores, d_clamped)  # an impossible sequence has no expectations: nothing to subtract
            else:
                structure.path_expectations(work, states, weights=-weights, out=d_scores)
        losses = np.zeros(len(weights))
        np.subtract(free_values, gold_values, out=losses, where=~impossible)
        return weights * without_rounding(losses, free_values, "exact" in structure.answers), d_scores, impossible

    def _with_costs(self, scores: Scores, allowed: Clamp) -> Scores:
        """Scores with costs added for the states that `allowed` (bool[T, S]) excludes."""
        if self.cost or self.label_weights:
            costs = _token_costs(allowed, self.costs(allowed.shape[1]))
        else:
            costs = self.margin * ~allowed
        field = scores._fields[0]  # the name of the first field, which has the scores of tokens in every structure
        return scores._replace(**{field: scores[0] + costs})


# Names of all `ClampedLoss` classes, for messages
CLAMPED_LOSSES = "LogLikelihood, SoftmaxMargin, MaxMargin or Perceptron"


class LogLikelihood(ClampedLoss):
    """Negative log probability of the annotation (Lafferty, McCallum & Pereira 2001), or of all labellings that it allows
    together (Tsuboi et al. 2008):

        log sum_y exp(score(y)) - log sum_{y allowed} exp(score(y))

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; none by default.
    """


class Perceptron(ClampedLoss):
    """Distance of the best labelling above the annotation (Collins 2002), or above the best labelling that it allows:

        max_y score(y) - max_{y allowed} score(y)

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; none by default.
    """

    smooth = False


class MaxMargin(ClampedLoss):
    """Distance of the best labelling, with the cost of its mistakes added, above the annotation (Taskar, Guestrin & Koller 2003;
    with any cost Tsochantaridis et al. 2005, margin rescaling):

        max_y (score(y) + cost(y)) - max_{y allowed} score(y)

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; by default each wrong token costs 1.
    """

    smooth = False
    margin = 1.0


class SoftmaxMargin(ClampedLoss):
    """Log-likelihood with a margin of one for each mistake (Gimpel & Smith 2010):

        log sum_y exp(score(y) + cost(y)) - log sum_{y allowed} exp(score(y))

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; by default each wrong token costs 1.
    """

    margin = 1.0


def without_rounding(losses: Floats, larger: Floats, exact: bool) -> Floats:
    """Set losses to 0 that are only negative by rounding. Larger negative values stay: an inexact structure may produce them, and
    in an exact structure they reveal a mistake.

    losses (float64[B]): Differences of two values.
    larger (float64[B]): The larger of the two values, whose size determines the rounding error.
    exact (bool): Whether the structure is exact.
    """
    if not exact:
        return losses
    is_rounding = (losses < 0.0) & (losses >= -_ROUNDING * np.maximum(1.0, np.abs(larger)))
    return np.where(is_rounding, 0.0, losses)


def _token_costs(allowed: Clamp, table: Floats) -> Floats:
    """The cost of each state at each token: float64[T, S]. Where the annotation allows several states, a state costs the least
    that it would cost beside any one of them. Tokens without annotation cost nothing.

    allowed (bool[T, S]): The states that the annotation allows.
    table (float64[S, S]): The result of `ClampedLoss.costs`.
    """
    counts = allowed.sum(axis=1)
    costs = np.where((counts == 1)[:, np.newaxis], table[allowed.argmax(axis=1)], 0.0)
    [several] = np.nonzero((counts > 1) & (counts < allowed.shape[1]))
    if len(several):
        # Many tokens have equal rows of `allowed`, for example all states of one tag
        rows, row_of = np.unique(allowed[several], axis=0, return_inverse=True)
        costs_of_rows = np.array([table[row].min(axis=0) for row in rows])
        costs[several] = costs_of_rows[row_of.ravel()]
    return np.where(allowed, 0.0, costs)
