"""Three ways to attribute a decision to weights: by the contrast of two labellings, by log-odds, and by leaving features out.

*Contrast*: the difference between the scores of the best labellings of both sides is a difference of two sums of weights.

*Log-odds* L are attributed by integrated gradients (Sundararajan, Taly & Yan 2017). If all weights are multiplied by α, the
derivative of L is

    dL/dα = sum_f w_f · (E_α[f | span] - E_α[f | no span])

Its integral from 0 to 1, plus the L of α = 0, where all valid labellings are equally likely, is L.

*Leave-out*: without a feature at one token whose weights are v(y), each labelling loses the score v(y) of its state y there:

    Z' = Z · sum_y P(y) exp(-v(y))

This holds for the labellings with the span, and for those without. Two passes suffice for all features. Each loss is exact, but
losses do not add up.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..schemes import Segments
from ..types import GOES_ON, Floats, PathScores, ScoreArrays
from .comparison import Comparison, LabelComparison, Likelihoods
from .explanation import Explanation, Row, SpanOf
from .reading import NOTHING, Reading, Step

# ---------------------------------------------------------------------------------------------------------- contrast


def contrast(comparison: Comparison) -> Explanation:
    """Explain by contrast: the rows are the weights that only one of the two labellings uses. They add up exactly."""
    pipe = comparison.pipe
    ours, theirs, target = comparison.best()

    def spans(path: NDArray[np.int32]) -> list[SpanOf]:
        segments: Segments = pipe.decoding.segments(pipe.decoding.tags(path), comparison.scores.starts)
        shift = comparison.tokens.start  # paths begin at the first compared token
        rows = zip(segments.start.tolist(), segments.end.tolist(), segments.label.tolist())
        return [(begin + shift, end + shift, pipe.labels[label]) for begin, end, label in rows]

    totals = {"score": target, **comparison.probability(comparison.measure().odds)}
    return comparison.explanation(
        "contrast",
        target,
        0.0,
        rows_between(comparison, ours, theirs),
        totals,
        labelling=spans(ours),
        rival=spans(theirs),
    )


def rows_between(comparison: Comparison, ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> list[Row]:
    """Compute the contribution of each weight to the difference between the scores of two labellings."""
    opening, _ = arrays.ends(comparison.scores.starts, len(ours))
    our_transitions = _transitions(ours, opening)
    their_transitions = _transitions(theirs, opening)
    # Transitions that both labellings use contribute nothing
    steps: list[Step] = []
    for token, before, after in sorted(our_transitions - their_transitions):
        steps.append((token + comparison.tokens.start, before, after, 1.0))
    for token, before, after in sorted(their_transitions - our_transitions):
        steps.append((token + comparison.tokens.start, before, after, -1.0))
    rows = comparison.reading.rows(comparison.extend_to_doc(difference(comparison, ours, theirs)), steps)
    return rows if comparison.ruled is None else rows + comparison.ruled.rows(ours, theirs)


def difference(comparison: Comparison, ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> PathScores:
    """Uses of each score by our labelling, minus its uses by theirs. Both are states of the compared tokens (int32[T])."""
    structure = comparison.pipe.decoding.explained
    uses = structure.path_expectations(comparison.scores, ours)
    arrays.subtract(uses, structure.path_expectations(comparison.scores, theirs))
    return uses


def _transitions(path: NDArray[np.int32], opening: NDArray[np.bool_]) -> set[tuple[int, int, int]]:
    """Token, previous state and state of each transition of a labelling.

    path (int32[T]): The states, see `Path`. opening (bool[T]): First tokens of sequences, which have no transition.
    """
    begins = path != GOES_ON  # chains have a state at each token, segments only where one begins
    begin_of_token = np.maximum.accumulate(np.where(begins, np.arange(len(path)), 0))
    states = path[begin_of_token]
    tokens = np.flatnonzero(begins & ~opening)
    return set(zip(tokens.tolist(), states[tokens - 1].tolist(), states[tokens].tolist()))


# ---------------------------------------------------------------------------------------------------------- log-odds

_NODES, _FACTORS = np.polynomial.legendre.leggauss(16)
# Largest error of the integral, relative to the log-odds, or to `_SMALLEST` if the log-odds are smaller
_RELATIVE = 2e-7
_SMALLEST = 1e-3
_MOST_HALVINGS = 12


def log_odds(comparison: Comparison) -> Explanation:
    """Explain by log-odds: the rows add up to the log-odds."""
    base = _scaled(comparison, 0.0).odds
    target = comparison.measure().odds
    uses = integrate(comparison, (0.0, 1.0), (base, target), _RELATIVE * max(abs(target), _SMALLEST))
    rows = comparison.reading.rows(comparison.extend_to_doc(uses))
    totals = comparison.probability(target) | {"all labellings alike": base}
    return comparison.explanation("log_odds", target, base, rows, totals)


def integrate(
    comparison: Comparison, interval: tuple[float, float], odds: tuple[float, float], most_left: float, depth: int = 0
) -> PathScores:
    """Integrate the expected uses of the compared scores over an interval of α. The uses must explain the difference of the
    log-odds, which is known: if 16 nodes are too inexact, each half is integrated separately.

    odds (Tuple[float, float]): The log-odds at the ends of the interval.
    most_left (float): Largest error of the integral.
    depth (int): How often the interval was halved.
    """
    # Gauss–Legendre quadrature: sum_n factor[n] · half · f(middle + half · node[n])
    middle = sum(interval) / 2
    half = (interval[1] - interval[0]) / 2

    def parts() -> Iterator[PathScores]:
        for node, factor in zip(_NODES, _FACTORS):
            likelihoods = _scaled(comparison, middle + half * node)
            yield comparison.uses(likelihoods, factor * half * likelihoods.shares())

    uses = reduce(arrays.added, parts())
    error = dot(comparison.scores, uses) - (odds[1] - odds[0])
    if depth == _MOST_HALVINGS or abs(error) <= most_left:
        return uses
    middle_odds = _scaled(comparison, middle).odds
    first = integrate(comparison, (interval[0], middle), (odds[0], middle_odds), most_left / 2, depth + 1)
    second = integrate(comparison, (middle, interval[1]), (middle_odds, odds[1]), most_left / 2, depth + 1)
    return arrays.added(first, second)


def dot(scores: ScoreArrays, uses: ScoreArrays) -> float:
    """The sum of scores times their uses. Forbidden scores are never used."""
    total = 0.0
    for name, array in arrays.named(scores).items():
        total += float((np.where(array > -np.inf, array, 0.0) * getattr(uses, name)).sum())
    return total


def _scaled(comparison: Comparison, alpha: float) -> Likelihoods:
    """Compute the probabilities of both sides by alpha · scores; what is forbidden stays forbidden."""
    scaled = {}
    for name, array in arrays.named(comparison.scores).items():
        is_allowed = array > -np.inf
        # 0 · -inf would be NaN
        scaled[name] = np.where(is_allowed, alpha * np.where(is_allowed, array, 0.0), -np.inf)
    return comparison.measure(comparison.scores._replace(**scaled))


# --------------------------------------------------------------------------------------------------------- leave-out


def leave_out(comparison: Comparison) -> Explanation:
    """Explain by leaving out: each row has the decrease of the log-odds without a feature at one token, without the transition to
    a token, or without the score of a first or last tag. Its weight is its mean weight with the span minus that without."""
    scores = comparison.scores
    if not comparison.compares_labels and scores.transitions.ndim == 2:
        # Each token gets its own transitions: the uses are wanted by token
        by_token = np.array(np.broadcast_to(scores.transitions, (len(scores[0]), *scores.transitions.shape)))
        scores = scores._replace(transitions=by_token)
    measured = comparison.measure(scores)
    with_span = comparison.uses(measured, measured.shares(of_lacking=0.0))
    without = comparison.uses(measured, measured.shares(of_having=0.0, of_lacking=1.0))
    uses = comparison.extend_to_doc(with_span), comparison.extend_to_doc(without)
    shared = _label_rows if comparison.compares_labels else _shared_rows
    rows = [*_feature_rows(comparison.reading, uses), *shared(comparison, uses)]
    totals = comparison.probability(measured.odds)
    return comparison.explanation("leave_out", measured.odds, 0.0, rows, totals, additive=False)


def _losses(weights: Floats, having: Floats, lacking: Floats) -> Floats:
    """Compute the decrease of the log-odds without each of G groups of weights: float64[G].

    weights (float64[G, cells]): Weight times value of each state, or of each pair of states.
    having (float64[G, cells]): Probabilities of the cells with the span.
    lacking (float64[G, cells]): Probabilities of the cells without the span.
    """
    # log(Z'/Z) falls by log sum_y P(y | no span) exp(-v(y)) less than the same with the span
    return _log_ratio(lacking, weights) - _log_ratio(having, weights)


def _log_ratio(probabilities: Floats, weights: Floats) -> Floats:
    """log sum_y P(y) exp(-v(y)), where the rest of the probability up to 1 has no weights: float64[G]."""
    probabilities = np.maximum(probabilities, 0.0)
    rest = np.maximum(1.0 - probabilities.sum(axis=1), 0.0)
    rest[rest < 1e-13] = 0.0  # a sum that differs from 1 by rounding alone
    with np.errstate(divide="ignore"):
        logs = np.log(np.column_stack([probabilities, rest]))
    logs[:, :-1] -= weights
    return np.logaddexp.reduce(logs, axis=1)


def _feature_rows(reading: Reading, uses: tuple[PathScores, PathScores]) -> Iterator[Row]:
    """Yield a row for each feature at each place.

    uses (Tuple[PathScores, PathScores]): Expected uses of each score of the Doc with the span, and without it.
    """
    with_span, without_span = uses
    for (terms, uses_with, to_states), (_, uses_without, _) in zip(
        reading.parts(with_span), reading.parts(without_span)
    ):
        if not len(terms.place):
            continue
        # G groups: a feature at a place, with its weights for all columns
        numbers = terms.place * (terms.feature.max() + 1) + terms.feature
        _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
        tokens = terms.row[first]  # [G]
        n_columns = uses_with[0].size
        cells = group * n_columns + terms.column
        shape = (len(first), n_columns)
        # The alternatives of a token, which exclude each other: the cells of the array, or the states if columns are mixed
        if to_states is None:
            having = uses_with.reshape(-1, n_columns)[tokens]  # [G, cells]
            lacking = uses_without.reshape(-1, n_columns)[tokens]
        else:
            having = with_span[0][tokens]  # [G, S]
            lacking = without_span[0][tokens]
        losses = _losses(_sums(cells, terms.value * terms.weight, shape, to_states), having, lacking)
        rise = having - lacking  # of the probabilities, by the span
        mean_weights = (_sums(cells, terms.weight, shape, to_states) * rise).sum(axis=1)
        begin = terms.tokens[0][terms.place[first]]
        end = terms.tokens[1][terms.place[first]]
        for n in _relevant(losses):
            feature = terms.name(int(terms.feature[first[n]]))
            # Name the tag whose probability rises most with the span
            cell = int(rise[n].argmax())
            tags = reading.tags_of(cell, terms.shape) if to_states is None else reading.names_of("first", (cell,))
            yield Row(
                *feature,
                token=int(begin[n]),
                end=int(end[n]),
                tags=tags,
                value=float(terms.value[first[n]]),
                weight=float(mean_weights[n]),
                use=1.0,
                contribution=float(losses[n]),
            )


def _relevant(losses: Floats) -> list[int]:
    """Indices of the losses that are not tiny beside the largest."""
    sizes = np.abs(losses)
    return np.flatnonzero(sizes > NOTHING * sizes.max(initial=0.0)).tolist()


def _sums(cells: NDArray[np.int64], numbers: Floats, shape: tuple[int, ...], to_states: Optional[Floats]) -> Floats:
    """Sum up numbers in the cells of an array.

    cells (int64[N]): The cell of each number, as an index of the flat array.
    numbers (float64[N]): The numbers.
    shape (Tuple[int, int]): Shape of the array: groups and columns.
    to_states (float64[C, S]): Factors that turn the array's columns into states; None if columns are states.
    """
    sums = np.bincount(cells, numbers, minlength=shape[0] * shape[1]).astype(np.float64, copy=False).reshape(shape)
    return sums if to_states is None else sums @ to_states


def _shared_rows(comparison: Comparison, uses: tuple[PathScores, PathScores]) -> Iterator[Row]:
    """Yield the rows of transitions, first and last tags, at each token that uses them.

    uses (Tuple[PathScores, PathScores]): Expected uses of each score of the Doc with the span, and without it.
    """
    opens, closes = arrays.ends(comparison.reading.scores.starts, len(uses[0][0]))
    is_compared = np.zeros(len(opens), dtype=bool)
    is_compared[comparison.tokens] = True
    # Scores of segments have arrays of their own for first and last tags; else they have the probabilities of the tokens' tags
    for name, array, is_used in (
        ("transitions", "transitions", is_compared & ~opens),
        ("first", "begins", is_compared & opens),
        ("last", "ends", is_compared & closes),
    ):
        tokens = np.flatnonzero(is_used)
        if not len(tokens):
            continue  # a text of one token has no transitions
        uses_with, uses_without = (getattr(side, array, side[0])[tokens] for side in uses)
        weights = comparison.reading.of_states(name, uses_with.shape[-1]).ravel()
        having = uses_with.reshape(len(tokens), -1)  # [tokens, cells]
        lacking = uses_without.reshape(len(tokens), -1)
        losses = _losses(np.tile(weights, (len(tokens), 1)), having, lacking)
        mean_weights = (having - lacking) @ weights
        for n in _relevant(losses):
            token = int(tokens[n])
            yield Row(
                feature=name.removesuffix("s"),
                template=name,
                offset=None,
                token=token,
                end=token + 1,
                tags=(),
                value=1.0,
                weight=float(mean_weights[n]),
                use=1.0,
                contribution=float(losses[n]),
            )


# --------------------------------------------------------------------------------------------------- labels of texts


def contrast_of_labels(comparison: LabelComparison) -> Explanation:
    """Explain the label of a text: the rows are weights times the uses by the label minus the uses by the most probable other
    label. If several paths h spell a label y, uses are expected ones, and the entropies of the paths are the base:

        score(y) = E[score(y, h) | y] + H(h | y)
    """
    measured = comparison.measure()
    target = comparison.margin()
    uses = uses_between_labels(comparison, measured)
    base = 0.0 if "path" in comparison.pipe.decoding.structure.answers else target - dot(comparison.scores, uses)
    totals = {"score": target, **comparison.probability(measured.odds)}
    ours = comparison.spans(0)
    theirs = comparison.spans(comparison.rival(measured))
    rows = comparison.reading.rows(uses)
    return comparison.explanation("contrast", target, base, rows, totals, labelling=ours, rival=theirs)


def uses_between_labels(comparison: LabelComparison, measured: Likelihoods) -> PathScores:
    """Uses of each score by the label of a text, minus its uses by the most probable other label."""
    shares = np.zeros(len(measured.works))
    shares[0] = 1.0
    shares[comparison.rival(measured)] = -1.0
    return comparison.uses(measured, shares)


def _label_rows(comparison: Comparison, uses: tuple[PathScores, PathScores]) -> Iterator[Row]:
    """Yield the row of the scores that labels have in every text. uses: See `_feature_rows`."""
    name = "labels" if "labels" in comparison.reading.shared else "first"
    weights = comparison.reading.shared[name]
    # Probabilities of the labels of the text: float64[1, Y]
    having = uses[0][0]
    lacking = uses[1][0]
    yield Row(
        feature=name.removesuffix("s"),
        template=name,
        offset=None,
        token=None,
        end=None,
        tags=(),
        value=1.0,
        weight=float(((having - lacking) @ weights)[0]),
        use=1.0,
        contribution=float(_losses(weights[np.newaxis], having, lacking)[0]),
    )
