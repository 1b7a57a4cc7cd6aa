"""The distribution over the labellings of Docs: marginals, spans, best and drawn labellings."""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import Joined, join_sequences, spread
from ..inference.structure import SpanStates, Structure
from ..schemes import Segments
from ..types import ChainClamp, Floats, Ints, PathScores
from .decoding import Decoding, States


class Distribution(NamedTuple):
    """The distribution over the labellings of one Doc, or of a batch of Docs whose sequences no rule ties together."""

    decoding: Decoding
    structure: Structure
    joined: Joined
    size: int  # S of the model
    starts: Ints  # [B + 1] where the sequences start
    kept: Optional[Ints] = None  # tokens of a Doc that take part; others have no label. None for all

    def marginals(self) -> Floats:
        """Probability of each tag at each token: float64[T, tags]."""
        marginals = self.structure.marginals(self.joined.scores, clamp=self.joined.clamp)
        by_tag = self.decoding.by_tag(marginals[self.joined.tokens, : self.size])
        return self._of_all(by_tag, 0.0)

    def worth(self) -> dict[str, Floats]:
        """Expected number of right tags for each part of a labelling, see `Decoding.worth`."""
        _, expected = self.structure.expectations(self.joined.scores, clamp=self.joined.clamp)
        worth = {}
        for name, array in self.decoding.worth(expected).items():
            of_tokens = np.ascontiguousarray(array[self.joined.tokens, : self.size])  # without breaks, and their state
            worth[name] = self._of_all(of_tokens, 0.0)
        return worth

    def certainties(self, segments: Segments) -> dict[str, Floats]:
        """The values of N `segments`, which are sorted by first token, by the extensions that hold them: float64[N] each."""
        return {"crf_prob": self.span_probabilities(segments)}

    def span_probabilities(self, segments: Segments) -> Floats:
        """Probability of each of N `segments`, which are sorted by first token: float64[N]."""
        places = self.joined.tokens
        moved = Segments(places[segments.start], places[segments.end - 1] + 1, segments.label)
        return self.structure.span_probabilities(self.joined.scores, self._spans, moved, clamp=self.joined.clamp)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        """RETURNS (Segments, float64[N]): All spans with a probability of at least `min_prob`, and their probabilities."""
        scores = self.joined.scores
        (begin, end, label), probabilities = self.structure.likely_spans(
            scores, self._spans, min_prob, clamp=self.joined.clamp
        )
        token_at = np.full(len(scores[0]), -1)  # [T + breaks] the token of the Doc in each row, -1 for a break
        token_at[self.joined.tokens] = np.arange(len(self.joined.tokens)) if self.kept is None else self.kept
        real = token_at[begin] >= 0  # a break is no span
        return Segments(token_at[begin[real]], token_at[end[real] - 1] + 1, label[real]), probabilities[real]

    def n_best(self, n: int) -> list[tuple[float, States]]:
        """RETURNS (List[Tuple[float, int32[T]]]): Probability and tags of the `n` best labellings of one Doc."""
        # Rules have a structure of their own; without them, the search that the decoder chose
        structure = self.decoding.searched if self.structure is self.decoding.structure else self.structure
        found = structure.n_best(self.joined.scores, n, clamp=self.joined.clamp)
        best: list[tuple[float, tuple]] = [(0.0, ())]
        for paths, log_z in zip(found, self._log_partition().tolist()):
            # Extend the best labellings of the sequences so far by the best labellings of the next sequence
            longer = [(a + score - log_z, (*before, states)) for a, before in best for score, states in paths]
            best = sorted(longer, key=lambda item: -item[0])[:n]
        none = np.zeros(0, dtype=np.int32)
        return [(min(1.0, float(np.exp(score))), self.tags(np.concatenate([none, *parts]))) for score, parts in best]

    def log_probability(self, tags: States) -> float:
        """Log probability of the labelling of one Doc with these `tags`: int32[T]."""
        labelled = self.decoding.path(tags, self.starts)
        if self.kept is not None:
            if (np.delete(labelled, self.kept) >= 0).any():
                return -np.inf
            labelled = labelled[self.kept]
        path = spread(labelled, self.joined.tokens, len(self.joined.scores[0]), self.size)
        # The clamp of the labelling replaces the clamp of the question, and is cut by it below
        work = self.structure.prepare(self.joined.scores)
        only = self.decoding.only(self.structure, work, path)
        if self.joined.clamp is not None:
            only = only & self.joined.clamp
        # Several paths of states may have these tags, so their probability is a difference of two log partitions
        score = self.structure.log_partition(work, clamp=only).sum()
        return min(0.0, float(score - self._log_partition().sum())) if score > -np.inf else -np.inf

    def sample(self, n: int, seed: int) -> States:
        """Tags of `n` labellings drawn from the distribution (int32[n, T]); the same `seed` gives the same labellings."""
        drawn = self.structure.sample(self.joined.scores, n, seed=seed, clamp=self.joined.clamp)
        return np.array([self.tags(path) for path in drawn], dtype=np.int32).reshape(n, int(self.starts[-1]))

    @property
    def _spans(self) -> SpanStates:
        """How states encode spans; the break, if there may be any, is one more state."""
        spans = self.decoding.spans
        if spans.continues is None or np.shape(self.joined.scores.first)[0] == self.size:
            return spans
        return spans._replace(continues=np.pad(spans.continues, (0, 1)))

    def _log_partition(self) -> Floats:
        return self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)

    def tags(self, path: States) -> States:
        """The tags of a path of states of the scores (int32[T]), for all tokens of the Doc."""
        return self._of_all(self.decoding.tags(path[self.joined.tokens]), -1)

    def _of_all(self, rows: NDArray, fill: float) -> NDArray:
        """Rows of all tokens of the Doc, from the rows of the tokens that are kept; tokens that are left out get `fill`."""
        return rows if self.kept is None else spread(rows, self.kept, int(self.starts[-1]), fill)


def of_doc(
    decoding: Decoding, scores: PathScores, clamp: Optional[ChainClamp], graph: Optional[Structure]
) -> Distribution:
    """The distribution over the labellings of one Doc.

    decoding (Decoding): The decoding of the component.
    scores (PathScores): The scores of the Doc, whose sequences are joined.
    clamp (Optional[ChainClamp]): The clamp of the possible labellings.
    graph (Optional[Structure]): The structure over the graph of some rules; None without rules.
    """
    if graph is None and not decoding.always_joins:
        return of_docs(decoding, scores, clamp)
    return Distribution(
        decoding=decoding,
        structure=graph or decoding.structure,
        joined=join_sequences(scores, clamp),
        size=scores[0].shape[1],
        starts=np.asarray(scores.starts),
    )


def of_docs(decoding: Decoding, scores: PathScores, clamp: Optional[ChainClamp]) -> Distribution:
    """The distribution for several Docs whose sequences no rule ties together, for marginals and probabilities of spans.

    decoding (Decoding): The decoding of the component.
    scores (PathScores): The scores of the Docs.
    clamp (Optional[ChainClamp]): The clamp of the possible labellings.
    """
    return Distribution(
        decoding=decoding,
        structure=decoding.structure,
        joined=Joined(scores, clamp, np.arange(len(scores[0]))),
        size=scores[0].shape[1],
        starts=np.asarray(scores.starts),
    )
