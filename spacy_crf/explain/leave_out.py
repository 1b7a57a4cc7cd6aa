"""What the log-odds of a span lose if one feature is left out: exact for each, though they don't add up.

A feature with the weights v(y) is at one token, so that without it each labelling scores v less by its state y there, and

    Z' = Z · sum_y P(y) exp(-v(y))

holds for all labellings with the span, and for all without. Two passes do for all features.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..types import Floats
from .comparison import Question
from .explanation import Explanation, Row
from .reading import NOTHING, Reading, Terms
from .request import Asked


class Part(NamedTuple):
    """Weights of one kind, of which one group is left out after the other."""

    group: NDArray[np.int64]  # [N] of each weight, from 0
    cell: NDArray[np.int64]  # [N] state, or pair of states
    weight: Floats  # [N] times the value
    probabilities: tuple[Floats, Floats]  # [G, cells] with the span, and without

    def losses(self) -> Floats:
        """What the log-odds lose without each group: float64[G]."""
        size = self.probabilities[0].shape
        weights = np.bincount(self.group * size[1] + self.cell, self.weight, minlength=size[0] * size[1]).reshape(size)
        having, lacking = (_ratio(of_kind, weights) for of_kind in self.probabilities)
        return lacking - having


def leave_out(asked: Asked) -> Explanation:
    """Each row says what is lost without it: a feature at one token, the transition into one, what the first and the last of a
    sequence say. Its weight is how much more it weighs with the span than without."""
    question = asked.question
    by_token = question.scores if question.is_of_texts else _by_token(question.scores)
    measured = question.measure(by_token)
    shares = measured.shares(of_lacking=0.0), measured.shares(of_having=0.0, of_lacking=1.0)
    uses = tuple(question.of_doc(question.uses(measured, of_kind)) for of_kind in shares)
    shared = _label_rows if question.is_of_texts else _shared_rows
    rows = [*_feature_rows(question.reading, uses), *shared(question, uses)]
    return asked.explanation("leave_out", measured.odds, 0.0, rows, asked.probability(measured.odds), additive=False)


def _by_token(scores: Any) -> Any:
    steps = scores.transitions
    if steps.ndim == 2:
        steps = np.array(np.broadcast_to(steps, (len(scores[0]), *steps.shape)))
    return scores._replace(transitions=steps)


def _ratio(probabilities: Floats, weights: Floats) -> Floats:
    """log sum_y P(y) exp(-v(y)), where what is left of 1 has no state: float64[G]."""
    probabilities = np.maximum(probabilities, 0.0)
    rest = np.maximum(1.0 - probabilities.sum(axis=1), 0.0)
    rest[rest < 1e-13] = 0.0  # rounding
    with np.errstate(divide="ignore"):
        logs = np.log(np.column_stack([probabilities, rest]))
    logs[:, :-1] -= weights
    return np.logaddexp.reduce(logs, axis=1)


def _feature_rows(reading: Reading, uses: tuple[Any, Any]) -> Iterator[Row]:
    pairs = zip(reading.parts(uses[0]), reading.parts(uses[1]))
    for (terms, having), (_, lacking) in pairs:
        if not len(terms.place):
            continue
        numbers = terms.place * (terms.feature.max() + 1) + terms.feature
        _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
        rows = terms.row[first]
        probabilities = tuple(array.reshape(len(array), -1)[rows] for array in (having, lacking))
        part = Part(group, terms.column, terms.value * terms.weight, probabilities)
        yield from _rows(reading, terms, part, first)


def _rows(reading: Reading, terms: Terms, part: Part, first: NDArray[np.int64]) -> Iterator[Row]:
    losses, more = part.losses(), part.probabilities[0] - part.probabilities[1]
    [some] = np.nonzero(np.abs(losses) > NOTHING * np.abs(losses).max(initial=0.0))
    average = np.bincount(part.group, terms.weight * more[part.group, part.cell], minlength=len(losses))
    begin, end = (ends[terms.place[first]] for ends in terms.tokens)
    for n in some.tolist():
        feature = terms.name(int(terms.feature[first[n]]))
        tags = reading.tags_of(int(more[n].argmax()), terms.shape)
        numbers = float(terms.value[first[n]]), float(average[n]), 1.0, float(losses[n])
        yield Row(*feature, int(begin[n]), int(end[n]), tags, *numbers)


def _shared_rows(question: Question, uses: tuple[Any, Any]) -> Iterator[Row]:
    """Of what all tokens share, at each place where it is used."""
    opens, closes = arrays.ends(question.reading.scores.starts, len(uses[0][0]))
    inside = np.zeros(len(opens), dtype=bool)
    inside[question.tokens] = True
    for name, tokens in (("transitions", inside & ~opens), ("first", inside & opens), ("last", inside & closes)):
        at = np.flatnonzero(tokens)
        if not len(at):
            continue  # a text of one token has no transitions
        probabilities = tuple(_at_ends(of_kind, name)[at].reshape(len(at), -1) for of_kind in uses)
        flat = question.reading.shared[name].ravel()
        group, cell = np.repeat(np.arange(len(at)), len(flat)), np.tile(np.arange(len(flat)), len(at))
        losses = Part(group, cell, np.tile(flat, len(at)), probabilities).losses()
        average = (probabilities[0] - probabilities[1]) @ flat
        for token, loss, weight in zip(at.tolist(), losses.tolist(), average.tolist()):
            if abs(loss) > NOTHING * np.abs(losses).max():
                yield Row(name.removesuffix("s"), name, None, token, token + 1, (), 1.0, weight, 1.0, loss)


def _label_rows(question: Question, uses: tuple[Any, Any]) -> Iterator[Row]:
    """Of what labels of texts have of themselves, whatever the text."""
    name = "labels" if "labels" in question.reading.shared else "first"
    weights, nothing = question.reading.shared[name], np.zeros(len(question.reading.shared[name]), dtype=np.int64)
    probabilities = uses[0][0], uses[1][0]  # of the labels of the text: float64[1, Y]
    loss = float(Part(nothing, np.arange(len(weights)), weights, probabilities).losses()[0])
    weight = float(((probabilities[0] - probabilities[1]) @ weights)[0])
    yield Row(name.removesuffix("s"), name, None, None, None, (), 1.0, weight, 1.0, loss)


def _at_ends(uses: Any, name: str) -> Floats:
    """How often each cell of a parameter is used at each token."""
    if name == "transitions":
        return uses.transitions
    return getattr(uses, {"first": "begins", "last": "ends"}[name], uses[0])
