"""Gains of weights that a model does not have yet, estimated from the tokens whose tags are wrong or uncertain
(Della Pietra, Della Pietra & Lafferty 1997; for chains McCallum 2003, "Efficiently Inducing Features of Conditional Random
Fields", section 4.1).
"""

from typing import NamedTuple

import numpy as np

from spacy_crf.models.corpus import FixedTokens
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.types import Bools, Floats, Ints

from .kernels.gains import add_gains
from .uses import Observed

STATES = "states"  # the table with the weights of features of tokens
_STEPS = 3  # of Newton's method
_LONGEST = 2.0  # step: where expectations are tiny, so is the second derivative at 0
_CERTAIN = 0.1  # tokens are left out whose expectations differ less from the annotation
_NONE = np.zeros(0)
_ALL_ONE = np.zeros(0, dtype=np.float32)


class UncertainTokens(NamedTuple):
    """N tokens of one batch whose annotation the model does not expect."""

    tokens: Ints  # [N]
    expected: Floats  # [N, C] marginals of the model
    observed: Floats  # [N, C] marginals among the labellings that the annotation allows
    factors: Floats  # [N] weights of their sequences


def uncertain_tokens(objective: CorpusObjective, place: int, weights: Floats) -> list[UncertainTokens]:
    """The tokens of each batch that there is something to learn from.

    objective (CorpusObjective): Its loss is a log-likelihood. place (int): Number of the layer whose features may grow.
    weights (float64[n]): Of the objective.
    """
    layer = objective.parts[2][place]
    found = []
    name = layer.features.kinds[STATES].scores
    errors: list[Floats] = []
    uses: list[Floats] = []
    objective.evaluate_loss(weights, into=errors)
    objective.evaluate_loss(weights, loss=Observed([]), into=uses)
    for number, (error, use) in enumerate(zip(errors, uses)):
        error = getattr(error[place], name)
        use = getattr(use[place], name)
        starts = layer.batches[number].starts
        (_, of_sequences, _) = objective.annotation(number)
        factors = np.ones(starts[-1]) if of_sequences is None else np.repeat(of_sequences, np.diff(starts))
        tokens = np.flatnonzero(np.abs(error).max(axis=1, initial=0.0) > _CERTAIN * factors)
        # error = factor · (expected - observed)
        by = factors[tokens, np.newaxis]
        observed = use[tokens] / by
        expected = np.clip(observed + error[tokens] / by, 0.0, 1.0)  # but for rounding
        found.append(UncertainTokens(tokens, expected, observed, factors[tokens]))
    return found


def gains(
    tokens: FixedTokens, uncertain: list[UncertainTokens], wanted: Bools, *, l1: float = 0.0, l2: float = 0.0
) -> tuple[Floats, Floats]:
    """The largest gain of each weight, and the value of the weight there, by some steps of Newton's method from 0.

    wanted (bool[W]): Weights of `tokens.table` to look at; those of the others are 0.
    l1 (float), l2 (float): Costs of |w| and of w², which gains are less by.
    RETURNS (float64[W], float64[W])
    """
    values = np.zeros(len(wanted))
    side = np.zeros(len(wanted))
    for step in range(_STEPS):
        slopes, curves = _sums(tokens, uncertain, wanted, values, derivatives=True)
        # With l1 a weight leaves 0 only against a slope of more than l1, and keeps its sign
        side = np.where(np.abs(slopes) > l1, np.sign(slopes), 0.0) if step == 0 else side
        slopes -= 2.0 * l2 * values + l1 * side
        moves = np.divide(slopes, curves + 2.0 * l2, out=np.zeros(len(wanted)), where=curves + 2.0 * l2 > 0.0)
        after = values + np.clip(moves, -_LONGEST, _LONGEST)
        # A step across 0 would change the sign: halve the value instead
        values = np.where(after * side > 0.0, after, 0.5 * values)
        wanted = wanted & (values != 0.0)
    [found] = _sums(tokens, uncertain, wanted, values)
    return np.where(wanted, found - l1 * np.abs(values) - l2 * values**2, 0.0), np.where(wanted, values, 0.0)


def _sums(
    tokens: FixedTokens, uncertain: list[UncertainTokens], wanted: Bools, values: Floats, *, derivatives: bool = False
) -> list[Floats]:
    """Gains of weights at values (float64[W]), or the first derivatives and less the second ones."""
    table = tokens.table
    sums = [table.zero_slots() for _ in range(2 if derivatives else 1)]
    told = table.slots(wanted) > 0.0, table.slots(values)
    into = [_NONE, *sums] if derivatives else [*sums, _NONE, _NONE]
    for number, some in enumerate(uncertain):
        at, slots, of_features = tokens.list_features(number, some.tokens)
        listed = at, slots, _ALL_ONE if of_features is None else of_features
        add_gains(*listed, table.encoded_columns, some.expected, some.observed, some.factors, *told, *into)
    return [*map(table.weights_of, sums)]
