"""Why the best labelling with a span is better than the best one without it, or worse: the difference of two sums of weights."""

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..schemes import Segments
from ..types import GOES_ON
from .comparison import Question
from .explanation import Explanation, Row, SpanOf
from .reading import Steps
from .request import Asked


def contrast(asked: Asked) -> Explanation:
    """The rows are the weights that one of the labellings uses and the other does not: exact, and they add up."""
    question = asked.question
    ours, theirs, target = question.best()
    rows = rows_between(question, ours, theirs)
    labelling, rival = (_spans(asked, path) for path in (ours, theirs))
    totals = {"score": target, **asked.probability(question.measure().odds)}
    return asked.explanation("contrast", target, 0.0, rows, totals, labelling=labelling, rival=rival)


def rows_between(question: Question, ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> list[Row]:
    """What each weight adds to the difference of the scores of two labellings."""
    rows = question.reading.rows(question.of_doc(difference(question, ours, theirs)), _steps(question, ours, theirs))
    return rows if question.ruled is None else rows + question.ruled.rows(ours, theirs)


def difference(question: Question, ours: NDArray[np.int32], theirs: NDArray[np.int32]):
    """How much more often one labelling uses each score than the other."""
    structure = question.pipe.decoding.explained
    uses, others = (structure.path_expectations(question.scores, path) for path in (ours, theirs))
    arrays.subtract(uses, others)
    return uses


def _steps(question: Question, ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> Steps:
    """The transitions of one of the labellings that are not those of the other."""
    opening, _ = arrays.ends(question.scores.starts, len(ours))
    found = [_transitions(path, opening) for path in (ours, theirs)]
    used = [
        (token, before, after, use)
        for this, other, use in ((found[0], found[1], 1.0), (found[1], found[0], -1.0))
        for token, before, after in sorted(this - other)
    ]
    token, before, after, use = np.array(used or np.zeros((0, 4))).T
    return Steps(token.astype(int) + question.tokens.start, before.astype(int), after.astype(int), use)


def _transitions(path: NDArray[np.int32], opening: NDArray[np.bool_]) -> set[tuple[int, int, int]]:
    """Token, state before and state of each step."""
    begins = path != GOES_ON
    state = path[np.maximum.accumulate(np.where(begins, np.arange(len(path)), 0))]
    at = np.flatnonzero(begins & ~opening)
    return set(zip(at.tolist(), state[at - 1].tolist(), state[at].tolist()))


def _spans(asked: Asked, path: NDArray[np.int32]) -> list[SpanOf]:
    pipe, question = asked.question.pipe, asked.question
    found: Segments = pipe.decoding.segments(pipe.decoding.tags(path), question.scores.starts)
    shift, labels = question.tokens.start, pipe.labels
    columns = zip(*(column.tolist() for column in found))
    return [(begin + shift, end + shift, labels[label]) for begin, end, label in columns]
