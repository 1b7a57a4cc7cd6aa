"""Two kinds of labellings of a Doc, and how much likelier one is than the other."""

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..inference.structure import Structure
from ..pipeline.preset_annotation import restrict
from ..types import Floats
from .reading import Reading
from .rules import Ruled

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe


class NothingToCompare(ValueError):
    """No possible labelling has, or none lacks, what is to be explained."""


def nothing(*, has: bool) -> str:
    """The reason for CRF838 where no possible labelling has, or none lacks, what is asked about."""
    advice = "Look at the rules, at doc.spans['crf_blocked'] and doc.spans['crf_forced'], and at the longest segment"
    return f"no possible labelling {'has' if has else 'lacks'} it. {advice}"


class Sides(NamedTuple):
    """Clamps that exclude each other: of the labellings that a decision is for, and of those that it is against."""

    having: list[Any]
    lacking: list[Any]
    tokens: slice  # what they are about; the other tokens allow anything


class Measured(NamedTuple):
    """How likely the labellings of the two kinds are."""

    work: Any
    log_z: Floats  # [N] of each clamp
    n_having: int

    @property
    def odds(self) -> float:
        """Log of how much likelier the first kind is."""
        having, lacking = self.log_z[: self.n_having], self.log_z[self.n_having :]
        return float(np.logaddexp.reduce(having) - np.logaddexp.reduce(lacking))

    def shares(self, *, of_having: float = 1.0, of_lacking: float = -1.0) -> Floats:
        """How much each clamp counts for its kind, times a number for each of the kinds: float64[N]."""
        kinds = (self.log_z[: self.n_having], of_having), (self.log_z[self.n_having :], of_lacking)
        return np.concatenate([factor * np.exp(log_z - np.logaddexp.reduce(log_z)) for log_z, factor in kinds])


class Question:
    """Asked about the scores of a Doc: under the scheme, what the Doc settles, and the rules that both kinds can keep.

    pipe (CRFPipe): The component.
    docs (DocBatch): Of a single Doc.
    reading (Reading): Its scores.
    sides (Sides): The two kinds.
    RAISES (NothingToCompare): CRF838 if there is no labelling of one of them.
    """

    is_of_texts = False  # whether it is about the label of a text

    def __init__(self, pipe: "CRFPipe", docs: DocBatch, reading: Reading, sides: Sides):
        self.pipe, self.reading, self.sides = pipe, reading, sides
        self._structure: Structure = pipe.decoding.explained
        settled, clamp = (reading.scores, None) if self.is_of_texts else _settle(pipe, docs, reading.scores)
        self.ruled, self._joins, fixed = None, False, settled
        if pipe.rules() is not None:
            self.ruled = Ruled(pipe, docs, settled, clamp)
            self.ruled.leave_out(sides.having, "forbids the span")
            self.ruled.leave_out(sides.lacking, "asks for the span")
            fixed, graph = self.ruled.apply(), self.ruled.graph()
            self._joins, self._structure = graph is not None, graph or self._structure
        self.tokens = self._sequences(np.asarray(reading.scores.starts))
        self.scores = self.cut(reading.scores)
        self._fixed = None if fixed is reading.scores else _less(self.cut(fixed), self.scores)
        clamps = [*sides.having, *sides.lacking]
        clamps = clamps if clamp is None else [one & clamp for one in clamps]
        self.n_clamps, self._clamp = len(clamps), self._laid_out([arrays.cut_clamp(one, self.tokens) for one in clamps])

    def about(self, docs: DocBatch) -> "Question":
        """The same of other words in the same places."""
        return type(self)(self.pipe, docs, Reading(self.pipe, docs), self.sides)

    def _sequences(self, starts: NDArray[np.int64]) -> slice:
        """The tokens of the sequences that it is about: rules may tie all of them together."""
        if self.ruled is not None:
            return slice(0, int(starts[-1]))
        first = np.searchsorted(starts, self.sides.tokens.start, side="right") - 1
        last = np.searchsorted(starts, self.sides.tokens.stop, side="left")
        return slice(int(starts[first]), int(starts[last]))

    def cut(self, scores: Any) -> Any:
        """Those of the tokens that it is about, of the scores of the Doc."""
        return arrays.cut_document(scores, None, self.tokens)[0]

    def _laid_out(self, clamps: list[Any]) -> Any:
        """One behind the other, as are the scores that they belong to."""
        if self._joins:
            clamps = [arrays.join_sequences(self.scores, clamp).clamp for clamp in clamps]
        return arrays.join_clamps(clamps)

    def measure(self, scores: Optional[Any] = None) -> Measured:
        """How likely the two kinds of labellings are.

        scores: Of the tokens that it is about, in place of those that the Doc has.
        """
        scores = self.scores if scores is None else scores
        if self._fixed is not None:
            scores = arrays.added(scores, self._fixed)
        if self._joins:
            scores = arrays.join_sequences(scores).scores
        work = self._structure.prepare(arrays.repeated(scores, self.n_clamps), self._clamp)
        log_z = self._structure.log_partition(work).reshape(self.n_clamps, -1).sum(axis=1)
        n_having = len(self.sides.having)
        for some, has in ((log_z[:n_having], True), (log_z[n_having:], False)):
            if not (some > -np.inf).any():
                raise NothingToCompare(Errors.CRF838.format(name=self.pipe.name, what="it", reason=nothing(has=has)))
        return Measured(work, log_z, n_having)

    def uses(self, measured: Measured, shares: Floats) -> Any:
        """How often each of the scores that it is about is expected to be used.

        shares (float64[N]): How much each clamp counts.
        """
        of_sequences = np.repeat(shares, measured.work.n_sequences // self.n_clamps)
        _, expected = self._structure.expectations(measured.work, weights=of_sequences)
        if self._joins:
            joined = arrays.join_sequences(self.scores)
            return arrays.split(joined, arrays.folded(expected, self.n_clamps, joined.scores), self.scores)
        return arrays.folded(expected, self.n_clamps, self.scores)

    def of_doc(self, uses: Any) -> Any:
        """The same, of the scores of the whole Doc."""
        scores, steps = self.reading.scores, uses.transitions
        if arrays.axes(uses, "transitions")[0] == "token":
            scores = scores._replace(transitions=np.broadcast_to(0.0, (len(scores[0]), *steps.shape[1:])))
        total = arrays.zeros(scores)
        arrays.add(total, uses, self.tokens)
        return total

    def best(self) -> tuple[NDArray[np.int32], NDArray[np.int32], float]:
        """The best labellings of both kinds, of the tokens that it is about, and the difference of their scores."""
        if self.ruled is not None:
            ours, theirs = self.ruled.best(self.sides.having), self.ruled.best(self.sides.lacking)
            if ours is None or theirs is None:
                reason = nothing(has=ours is None)
                raise NothingToCompare(Errors.CRF838.format(name=self.pipe.name, what="it", reason=reason))
            return ours.path, theirs.path, ours.score - theirs.score
        found = self._structure.viterbi(self.measure().work)
        scores, paths = found.scores.reshape(self.n_clamps, -1).sum(axis=1), found.states.reshape(self.n_clamps, -1)
        ours = int(scores[: len(self.sides.having)].argmax())
        theirs = len(self.sides.having) + int(scores[len(self.sides.having) :].argmax())
        return paths[ours], paths[theirs], float(scores[ours] - scores[theirs])


def _settle(pipe: "CRFPipe", docs: DocBatch, scores: Any) -> tuple[Any, Any]:
    """The scores and the clamp of the labellings that have what the Doc brings, as all probabilities see it.

    RAISES (ValueError): CRF838 if that leaves tokens without any label.
    """
    question = restrict(pipe.parts(), docs, scores, None)
    if question is None:
        return scores, None
    if question.kept is not None:
        reason = "doc.spans['crf_blocked'] leaves some of its tokens without any label"
        raise NothingToCompare(Errors.CRF838.format(name=pipe.name, what=f"'{docs[0].text[:40]}'", reason=reason))
    return question.scores, question.clamp


def _less(scores: Any, others: Any) -> Any:
    """What makes scores of others: -inf where it forbids."""
    pairs = {name: (array, getattr(others, name)) for name, array in arrays.named(scores).items()}
    return scores._replace(
        **{
            name: np.where(one > -np.inf, one - np.where(other > -np.inf, other, 0.0), -np.inf)
            for name, (one, other) in pairs.items()
        }
    )
