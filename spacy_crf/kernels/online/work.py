"""Work space for one sequence at a time, allocated once per corpus."""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ...types import ChainCorpus, Floats, Ints, SegmentUses, SlotUses
from ..numerics import LANES

NO_USES = SlotUses(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(1, np.int64))


class Workspace(NamedTuple):
    """Work space for one sequence at a time. Derivatives are of the sequence's loss with respect to each score.

    Batch kernels get the whole arrays, and ``bounds`` for the part that a sequence takes. (Slices of each array made up a quarter
    of the code compiled for segments, and a fifth to a third of a pass.)
    """

    nodes: Floats  # [n, P] scores of states
    chain: Floats  # [at least S + 2, P] scores of transitions, firsts, lasts
    d_nodes: Floats
    d_chain: Floats
    steps: Floats  # [1, P, P] a view of the transitions in `chain`; or with pairs [n, S, S], the scores of pairs
    d_steps: Floats
    matrix: Floats  # [P, P]
    gradient: Floats  # [M] sums while a gradient is collected, otherwise 0
    slots: Ints  # with `amounts`: the gradient of the sequence at these slots
    amounts: Floats
    bounds: Ints  # [2] 0 and n: the starts of a batch of one sequence
    total: Floats  # [1] score or log partition of the sequence
    amount: Floats  # [1] weight of the sequence
    path: NDArray[np.int32]  # [n] the best labelling


class PairBuffers(NamedTuple):
    """Work space for features of pairs of states."""

    uses: SlotUses
    scores: Floats  # [n, S * S] of the transitions into each token; [0, S * S] if there are no such features
    d_scores: Floats


class ChainBuffers(NamedTuple):
    """Work space for linear chains."""

    kept: Floats  # [n, P]
    forward: Floats  # [n, P]
    exp_nodes: Floats  # [n, P]
    arriving: Floats  # [n, P]
    beta: Floats  # [P]
    transposed: Floats  # [P, P]
    sums: Floats  # [P, P]


class SegmentBuffers(NamedTuple):
    """Work space for chains of segments."""

    uses: SegmentUses
    begins: Floats  # [n, S] scores
    ends: Floats  # [n, S]
    lengths: Floats  # [K, S]
    spans: Floats  # [N, S]
    kept: Floats  # [N, S] original scores of the spans that are excluded while the clamp applies
    d_begins: Floats
    d_ends: Floats
    d_lengths: Floats
    d_spans: Floats
    span_of: NDArray[np.int32]  # [n, K] number of the listed span that begins here and has this length, -1 for none
    opening: Floats  # [n, S]
    closing: Floats  # [n, S]
    reach: NDArray[np.int32]  # [n, S] first token that a segment ending here may begin with


class PassBuffers(NamedTuple):
    """Work space for a pass over a corpus, with either ``chains`` or ``segments``."""

    corpus: ChainCorpus  # its features of pairs and segments are in their own buffers
    work: Workspace
    pairs: PairBuffers
    chains: Optional[ChainBuffers]
    segments: Optional[SegmentBuffers]
    maximum: bool  # whether the loss compares with the best labelling; else with the log partition


def make_room(corpus: ChainCorpus, *, maximum: bool) -> PassBuffers:
    """Make the work space for the longest sequence of a corpus.

    maximum (bool): Whether the loss compares with the best labelling; else with the log partition.
    """
    size = corpus.n_states
    longest = int(np.diff(corpus.starts).max(initial=1))
    padded = -(-size // LANES) * LANES  # rounded up to whole vectors
    width = padded if corpus.segments is None else size
    height = max(size + 2, width)  # rows of transitions, then one of firsts and one of lasts
    uses = NO_USES if corpus.pairs is None else corpus.pairs
    shape = (0 if corpus.pairs is None else longest, size * size)
    pairs = PairBuffers(uses, np.zeros(shape), np.zeros(shape))
    chain = np.full((height, width), -np.inf)
    d_chain = np.zeros((height, width))
    if corpus.pairs is None:
        steps = chain[np.newaxis, :width]
        d_steps = d_chain[np.newaxis, :width]
    else:
        steps, d_steps = (rows.reshape(longest, size, size) for rows in (pairs.scores, pairs.d_scores))
    work = Workspace(
        nodes=np.full((longest, width), -np.inf),
        chain=chain,
        d_nodes=np.zeros((longest, width)),
        d_chain=d_chain,
        steps=steps,
        d_steps=d_steps,
        matrix=np.zeros((width, width)),
        gradient=np.zeros(len(corpus.learned)),
        slots=np.zeros(corpus.most_slots, dtype=np.int64),
        amounts=np.zeros(corpus.most_slots),
        bounds=np.zeros(2, dtype=np.int64),
        total=np.zeros(1),
        amount=np.zeros(1),
        path=np.zeros(longest, dtype=np.int32),
    )
    chains = segments = None
    if corpus.segments is None:
        token_shape = (longest, width)
        pair_shape = (width, width)
        chains = ChainBuffers(
            kept=np.zeros(token_shape),
            forward=np.zeros(token_shape),
            exp_nodes=np.zeros(token_shape),
            arriving=np.zeros(token_shape),
            beta=np.zeros(width),
            transposed=np.zeros(pair_shape),
            sums=np.zeros(pair_shape),
        )
    else:
        segments = _make_segment_room(corpus.segments, corpus.starts, size)
    return PassBuffers(corpus._replace(pairs=None, segments=None), work, pairs, chains, segments, maximum)


def _make_segment_room(uses: SegmentUses, starts: Ints, size: int) -> SegmentBuffers:
    """Work space for the longest sequence, with the most listed spans."""
    n = int(np.diff(starts).max(initial=1))
    longest = uses.longest
    n_spans = int(np.diff(uses.listed_starts[starts]).max(initial=1))
    tokens = (n, size)
    lengths = (longest, size)
    spans = (n_spans, size)
    kept = spans if len(uses.excluded) else (0, size)
    scores = map(np.zeros, (tokens, tokens, lengths, spans, kept, tokens, tokens, lengths, spans))
    span_of = np.full((n, longest), -1, dtype=np.int32)
    reach = np.zeros(tokens, dtype=np.int32)
    return SegmentBuffers._make((uses, *scores, span_of, np.zeros(tokens), np.zeros(tokens), reach))
