"""How likely a span is, split up among all weights by integrated gradients (Sundararajan, Taly & Yan 2017), along the weights
from zero: with α times the weights the log-odds L have the derivative

    dL/dα = sum_f w_f · (E_α[f | span] - E_α[f | no span])

so that its integral from 0 to 1, and what L is where all valid labellings are equally likely, are L.
"""

from typing import Any

import numpy as np

from .. import arrays
from .comparison import Question
from .explanation import Explanation
from .request import Asked

_NODES, _FACTORS = np.polynomial.legendre.leggauss(16)
_RELATIVE, _SMALLEST = 2e-7, 1e-3  # what may be left of the log-odds after the integral; of smaller ones as of such
_MOST_HALVINGS = 12


def log_odds(asked: Asked) -> Explanation:
    """The rows add up to the log-odds."""
    question = asked.question
    base, target = _scaled(question, 0.0).odds, question.measure().odds
    uses = arrays.zeros(question.uses(question.measure(), np.zeros(question.n_clamps)))
    integrate(question, (0.0, 1.0), (base, target), uses, _RELATIVE * max(abs(target), _SMALLEST))
    rows = question.reading.rows(question.of_doc(uses))
    totals = asked.probability(target) | {"all labellings alike": base}
    return asked.explanation("log_odds", target, base, rows, totals)


def integrate(
    question: Question, of: tuple[float, float], odds: tuple[float, float], out: Any, most_left: float, depth: int = 0
) -> None:
    """Adds the integral of the expected uses over some of the way. Since it is known what that has to be, it is told whether 16
    nodes are enough, and where not, each half is done by itself.

    of (Tuple[float, float]): From where to where. odds (Tuple[float, float]): The log-odds there.
    out: Added to, of the scores that the question is about.
    most_left (float): How far the integral may be from what it has to be.
    """
    middle, half = sum(of) / 2, (of[1] - of[0]) / 2
    part = arrays.zeros(out)
    for node, factor in zip(_NODES, _FACTORS):
        measured = _scaled(question, middle + half * node)
        _add(part, question.uses(measured, factor * half * measured.shares()))
    left = abs(dot(question.scores, part) - (odds[1] - odds[0]))
    if left > most_left and depth < _MOST_HALVINGS:
        between = _scaled(question, middle).odds
        integrate(question, (of[0], middle), (odds[0], between), out, most_left / 2, depth + 1)
        integrate(question, (middle, of[1]), (between, odds[1]), out, most_left / 2, depth + 1)
    else:
        _add(out, part)


def dot(scores: Any, uses: Any) -> float:
    """The sum of scores, each as often as it is used; what is forbidden is never used."""
    pairs = ((array, getattr(uses, name)) for name, array in arrays.named(scores).items())
    return float(sum((np.where(array > -np.inf, array, 0.0) * used).sum() for array, used in pairs))


def _scaled(question: Question, alpha: float):
    scores = question.scores
    smaller = {
        name: np.where(array > -np.inf, alpha * np.where(array > -np.inf, array, 0.0), -np.inf)
        for name, array in arrays.named(scores).items()
    }
    return question.measure(scores._replace(**smaller))


def _add(total: Any, part: Any) -> None:
    for name, array in arrays.named(total).items():
        array += getattr(part, name)
