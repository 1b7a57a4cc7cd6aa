"""Which training texts a decision is a sum of, which is not what it would be without one of them (`left_out_texts`). Where the
objective with l2 has its optimum, its derivative is 0, and so every weight is a sum over the texts (Yeh et al. 2018, "Representer
Point Selection for Explaining Deep Neural Networks"):

    2 · l2 · w_f = sum_i (observed_f,i - expected_f,i) - l1 · sign(w_f)

A contrast is a sum of weights, each so many times, D_f. So text i has the share sum_f D_f (observed - expected)_f,i / (2 · l2)
in it: what the text's scores would be with the weights D, times what its loss says of its scores.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional, Union

import numpy as np
from spacy.training import Example, validate_examples

from .. import arrays, checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..models.sparse import SparseRole
from .comparison import Question
from .contrast import difference, rows_between
from .directions import Direction
from .explanation import Explanation, Row, shorter
from .left_out_texts import LeftOut
from .request import Asked

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe

_MOST_LEFT = 0.01  # of the contrast, in which an optimum is no optimum


def texts(
    asked: Asked,
    corpus: Optional[Iterable[Example]] = None,
    l2: Optional[float] = None,
    l1: Optional[float] = None,
    effect: Union[bool, int] = False,
) -> Explanation:
    """The rows are training texts, and add up to the contrast as far as training has converged.

    corpus (Iterable[Example]): What the component was trained with, complete.
    l2 (float), l1 (float): The regularization that it was trained with; by default that of the component's own optimizer.
    effect (Union[bool, int]): For how many of the texts it is told how the log-odds would change without them, those that change
        them most; True for all.
    RAISES (ValueError): CRF840 if the model is no such sum, CRF834 if effects are not known.
    """
    question, pipe = asked.question, asked.question.pipe
    examples = _checked(question, corpus)
    most = effect * len(examples) if isinstance(effect, bool) else effect
    n_effects = min(checks.count(pipe.owner, "effect", most, least=0, most=checks.ANY), len(examples))
    l2, l1 = _strength(pipe, "l2", l2), _strength(pipe, "l1", l1)
    if not l2:
        reason = (
            "only with l2 > 0 weights are sums over them. Give the l2 and l1 of the training: see [training.optimizer]"
        )
        raise ValueError(Errors.CRF840.format(name=pipe.name, reason=reason))
    ours, theirs, target = question.best()
    docs = DocBatch([asked.doc])
    uses = Direction.of_scores(pipe, docs, question.of_doc(difference(question, ours, theirs))).of_known()
    weights = rows_between(question, ours, theirs)
    of_rules = sum(row.contribution for row in weights if row.feature.startswith("rule "))
    base = of_rules - l1 * uses.signs() / (2 * l2)
    shares = np.array([slope for _, slope in uses.slopes(examples)]) / (-2 * l2)
    left, scale = base + shares.sum() - target, sum(abs(row.contribution) for row in weights)
    if abs(left) > _MOST_LEFT * max(scale, 1e-9):
        reason = (
            f"they add up to {target + left:.4f}, but the contrast is {target:.4f}. Give exactly the texts of the training, its "
            f"l2 and l1 (here {l2:g} and {l1:g}), and train until L-BFGS stops by itself, with a smaller delta"
        )
        raise ValueError(Errors.CRF840.format(name=pipe.name, reason=reason))
    totals, effects = {"score": target}, {}
    if n_effects:
        odds, effects = effects_of_texts(asked, LeftOut(pipe, examples, l2, l1), n_effects)
        totals |= asked.probability(odds)
    rows = [_row(n, eg, share, effects.get(n)) for n, (eg, share) in enumerate(zip(examples, shares.tolist()))]
    rows = [row for row in rows if row.contribution or row.effect is not None]
    return asked.explanation("texts", target, base, rows, totals)


def effects_of_texts(asked: Asked, left_out: LeftOut, n: int) -> tuple[float, dict[int, float]]:
    """The log-odds, and how they would change without each of the n texts that matter most."""
    question, docs = asked.question, DocBatch([asked.doc])
    measured, effects = question.measure(), {}
    uses = question.of_doc(question.uses(measured, measured.shares()))
    for number in left_out.influential(Direction.of_scores(question.pipe, docs, uses), n):
        moved = question.cut(left_out.change(number).scores(docs))
        effects[number] = question.measure(arrays.added(question.scores, moved)).odds - measured.odds
    return measured.odds, effects


def _checked(question: Question, corpus: Optional[Iterable[Example]]) -> list[Example]:
    pipe = question.pipe
    reason = pipe.model.attrs["role"].no_shares_of_texts
    if reason is not None:
        raise ValueError(Errors.CRF840.format(name=pipe.name, reason=reason))
    if question.is_of_texts and pipe.decoding.structure.ambiguous:
        reason = "its hidden states are not known, so that scores are no sums of weights"
        raise ValueError(Errors.CRF840.format(name=pipe.name, reason=reason))
    sparse = all(isinstance(layer.attrs["role"], SparseRole) for layer in pipe.model.layers)
    if not pipe.is_linear or not sparse:
        raise ValueError(
            Errors.CRF840.format(name=pipe.name, reason="it has an encoder, whose weights are no such sums")
        )
    if corpus is None:
        raise ValueError(
            Errors.CRF840.format(name=pipe.name, reason="give the texts it was trained with: corpus=examples")
        )
    examples = list(corpus)
    validate_examples(examples, "explain")
    return examples


def _strength(pipe: "CRFPipe", name: str, given: Optional[float]) -> float:
    own = getattr(pipe.optimizer, name, 0.0) if given is None else given
    return checks.number(pipe.owner, name, own)


def _row(n: int, example: Example, share: float, effect: Optional[float]) -> Row:
    text = shorter(" ".join(example.reference.text.split()))
    return Row(f"#{n} {text}", "text", None, None, None, (), 1.0, share, 1.0, share, effect)
