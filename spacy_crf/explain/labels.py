"""Which label a text gets: what is asked about it, and what two labels differ in.

A text has one of Y labels, so that what is asked about and each of the others have a clamp of their own.
"""

from typing import TYPE_CHECKING, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from .. import checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from .comparison import Measured, Question, Sides
from .explanation import Explanation, SpanOf
from .log_odds import dot
from .reading import Reading
from .request import Asked

if TYPE_CHECKING:
    from ..pipeline.crf_textcat import CRFTextClassifier


class LabelQuestion(Question):
    """How much likelier a label is than others."""

    is_of_texts = True

    def rival(self, measured: Measured) -> int:
        """Which clamp has the most probable of the other labels."""
        return 1 + int(measured.log_z[1:].argmax())

    def label(self, clamp: int) -> int:
        return int([*self.sides.having, *self.sides.lacking][clamp].argmax())

    def best(self) -> tuple[NDArray[np.int32], NDArray[np.int32], float]:
        """The label, the most probable of the others, and the difference of their scores."""
        measured = self.measure()
        rival = self.rival(measured)
        ours, theirs = (np.array([self.label(n)], dtype=np.int32) for n in (0, rival))
        return ours, theirs, float(measured.log_z[0] - measured.log_z[rival])


def ask_label(pipe: "CRFTextClassifier", doc: Doc, label: Optional[str], against: Optional[str]) -> Asked:
    """The question that arguments of `CRFTextClassifier.explain` stand for.

    RAISES (ValueError): CRF846 for an unknown label, CRF838 for one against itself or for a Doc without tokens.
    """
    if not len(doc):
        raise ValueError(Errors.CRF838.format(name=pipe.name, what="the text", reason="it has no tokens"))
    probabilities = pipe.probabilities(doc)
    label = next(iter(probabilities)) if label is None else label
    checks.labels(pipe.owner, [label, label if against is None else against], pipe.labels)
    if label == against:
        raise ValueError(Errors.CRF838.format(name=pipe.name, what=label, reason="`against` asks for the same"))
    others = [other for other in pipe.labels if other != label] if against is None else [against]
    clamps = [np.array([[one == chosen for one in pipe.labels]]) for chosen in (label, *others)]
    docs = DocBatch([doc])
    reading = Reading(pipe, docs)
    sides = Sides(clamps[:1], clamps[1:], slice(0, int(reading.scores.starts[-1])))
    told = "against everything else" if against is None else f"against {against}"
    return Asked(LabelQuestion(pipe, docs, reading, sides), doc, (0, len(doc), label), told, against is None)


def contrast_of_labels(asked: Asked) -> Explanation:
    """The rows are weights, each as often as the label uses it more than the most probable of the others. Where the hidden states
    below a label are not known they are expected uses; then scores are these and the entropies of the states, which are the base:

        score(y) = E[score(y, h) | y] + H(h | y)
    """
    question: LabelQuestion = asked.question
    measured, target = question.measure(), question.best()[2]
    shares, rival = np.zeros(question.n_clamps), question.rival(measured)
    shares[[0, rival]] = 1.0, -1.0
    uses = question.uses(measured, shares)
    base = target - dot(question.scores, uses) if question.pipe.decoding.structure.ambiguous else 0.0
    totals = {"score": target, **asked.probability(measured.odds)}
    both = {"labelling": [_whole(asked, 0)], "rival": [_whole(asked, rival)]}
    return asked.explanation("contrast", target, base, question.reading.rows(question.of_doc(uses)), totals, **both)


def _whole(asked: Asked, clamp: int) -> SpanOf:
    return 0, len(asked.doc), asked.question.pipe.labels[asked.question.label(clamp)]
