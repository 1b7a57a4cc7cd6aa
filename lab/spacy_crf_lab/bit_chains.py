"""Binary chains over the same tokens, which do not depend on each other: the scores of output codes, and their sums in training.

    score(c, b) = sum_t SCALE · sign(b_t) · units[t, c] + sum_t transitions[c, b_(t-1), b_t] + first[c, b_1] + last[c, b_T]

for the bits b_t of chain c, with a sign of -1 for 0 and of 1 for 1. In a cascade units also receive what the bits of earlier
chains add. The log partition of all chains is the sum of theirs.
"""

from copy import copy
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spacy_crf import arrays
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import States, Structure, Work
from spacy_crf.types import Bools, ChainScores, Clamp, Floats, Ints

from .kernels import output_codes as kernels

Bits = NDArray[np.int8]

_LARGEST = 300.0  # size of odds whose exponentials can be multiplied with each other
_HELD = 100.0  # added to the score of a known bit, so that the other one disappears beside it


class BitScores(NamedTuple):
    """Potentials of C binary chains over the same T tokens."""

    units: Floats  # [T, C] outputs of the layers
    transitions: Floats  # [C, 2, 2]
    first: Floats  # [C, 2]
    last: Floats  # [C, 2]
    cascade: Floats  # [2, C, C] see `kernels.cascade`; [0, 0, 0] without a cascade
    codes: NDArray[np.uint8]  # [S, C]
    starts: Ints  # [B + 1]

    AXES = MappingProxyType(
        {
            "units": ("token", "bit"),
            "transitions": ("bit", "value", "next value"),
            "first": ("bit", "value"),
            "last": ("bit", "value"),
            "cascade": ("neighbour", "bit", "earlier bit"),
        }
    )


class BitWork(Work[BitScores]):
    """Checked scores."""

    units: Floats  # [T, C] with what the bits of earlier chains add
    bits: Optional[Bits] = None  # [T, C] of the clamp, -1 where they are not known; None without a clamp
    possible: Optional[Bools] = None  # [B] whether the clamp allows a tag for each token; None without a clamp
    # [T, 2 * C] signs of the bits of the tokens before and behind, for a cascade; None without one
    neighbours: Optional[Floats] = None


class BitChains(Structure[BitScores]):
    """The structure of training: answers what `LogLikelihood` asks, by sums over chains of bits that do not depend on each other.
    Clamps and paths are those of tags, bool[T, S] and int32[T]. A clamp fixes the bits in which all allowed tags agree."""

    answers = frozenset(["exact", "path"])

    def prepare(self, scores: Any, clamp: Optional[Clamp] = None, *, annotated: Optional[Clamp] = None) -> BitWork:
        """Check the scores. `annotated` (bool[T, S]) gives a cascade the bits that chains read beside them."""
        if isinstance(scores, BitWork):
            work = copy(scores)
        else:
            checked = {name: arrays.contiguous(array, np.float64) for name, array in arrays.named(scores).items()}
            work = BitWork(scores._replace(**checked), original=scores)
            work.units = work.scores.units
        if annotated is not None and len(work.scores.cascade):  # chains read the bits of the annotation
            bits = _agreed(work.scores, annotated)
            work.neighbours = beside(work.scores, np.where(bits < 0, 0.0, 2.0 * bits - 1.0))
            work.units = work.units + work.neighbours @ by_neighbour(work.scores.cascade)
        if clamp is not None:
            # A bit in which the allowed tags differ is free: the sum then also runs over rows of no allowed tag
            missing = np.append(0, np.cumsum(~np.any(clamp, axis=1)))[work.scores.starts]
            work.bits = _agreed(work.scores, clamp)
            work.possible = np.diff(missing) == 0
        return work

    def expect(self, work: BitWork, weights: Floats, out: BitScores) -> Floats:
        """Log partitions of all chains together (float64[B]); `out` receives the derivative of their weighted sum."""
        if work.possible is not None:
            weights = np.where(work.possible, weights, 0.0)
        log_z, _, found = _sums(work, weights) or _one_by_one(work, weights)
        for name, array in arrays.named(found).items():
            getattr(out, name)[:] = array
        return log_z if work.possible is None else np.where(work.possible, log_z, -np.inf)

    def differentiate_path(self, work: BitWork, states: States, weights: Floats) -> tuple[Floats, Floats, BitScores]:
        """Log partitions and scores of a path, less those of zeros, and the derivative of their difference."""
        found = _sums(work, weights, states)
        if found is not None:
            return found
        log_z, derivative = self.expectations(work, weights=weights)
        clamp = states[:, np.newaxis] == np.arange(len(work.scores.codes))
        reached, of_path = self.expectations(work, clamp=clamp, weights=weights)
        arrays.subtract(derivative, of_path)
        return log_z, reached, derivative


def _agreed(scores: BitScores, clamp: Clamp) -> Bits:
    """The bits in which the allowed tags agree: int8[T, C], -1 where they differ."""
    arrays.check_shape("clamp", clamp, (len(scores.units), len(scores.codes)), "one bool per token and state")
    bits = np.full(scores.units.shape, -1, dtype=np.int8)
    kernels.agreed(arrays.contiguous(clamp, np.bool_), arrays.contiguous(scores.codes, np.uint8), bits)
    return bits


def beside(scores: BitScores, signs: Floats) -> Floats:
    """The signs of the bits (float64[T, C]) of the tokens before and behind: float64[T, 2 * C], 0 beyond the sequence."""
    opens, closes = arrays.ends(scores.starts, len(signs))
    found = np.zeros((len(signs), 2, signs.shape[1]))
    # Column 0: the token before; column 1: the token behind
    found[1:, 0] = np.where(opens[1:, np.newaxis], 0.0, signs[:-1])
    found[:-1, 1] = np.where(closes[:-1, np.newaxis], 0.0, signs[1:])
    return found.reshape(len(signs), -1)


def by_neighbour(cascade: Floats) -> Floats:
    """The weights of a cascade for the signs that `beside` gives: float64[2 * C, C]."""
    return cascade.transpose(0, 2, 1).reshape(-1, cascade.shape[1])


def relative(scores: BitScores) -> tuple[Floats, Floats]:
    """The shared scores of bits of 1, less those of 0, see `kernels.expect`: float64[3, C] and float64[C]."""
    _, steps, first, last, *_ = scores
    # log-odds of a step 0 -> 1, and of a step 1 -> 0
    enters = steps[:, 0, 1] - steps[:, 0, 0]
    leaves = steps[:, 1, 0] - steps[:, 0, 0]
    # A token with bit 1 in the middle has a step to it and a step from it; at an end it lacks one of them
    ends = enters + leaves, first[:, 1] - first[:, 0] - enters, last[:, 1] - last[:, 0] - leaves
    return np.stack(ends), steps[:, 1, 1] - steps[:, 0, 1] - leaves


def _sums(work: BitWork, weights: Floats, path: ArrayLike = ()) -> Optional[tuple[Floats, Floats, BitScores]]:
    """Log partitions and, if there is a path, its scores, both less those of zeros; and the derivative of their difference. None
    for scores that lie too far apart."""
    scores = work.scores
    units = work.units
    lengths = np.diff(work.scores.starts)
    ends, coupling = relative(scores)
    # Known bits get odds so large that the other value has no share
    held = np.zeros(0) if work.bits is None else np.where(work.bits < 0, 0.0, _HELD * (2.0 * work.bits - 1.0))
    units = units + held if held.size else units
    largest = 1.0 + 2.0 * (_size(units) + _size(coupling)) + sum(map(_size, ends))
    if not largest <= _LARGEST:
        return None
    weights = arrays.contiguous(weights, np.float64)
    of_path = np.asarray(path, dtype=np.int32)
    totals = np.empty((2, work.n_sequences))
    d_units = np.empty(units.shape)
    counts = np.zeros((4, len(coupling)))
    given = units, ends, coupling, scores.starts, scores.codes.astype(np.float64), of_path, weights
    kernels.expect(*given, int(2.0 * _LARGEST // largest), totals, d_units, counts)
    # equal in the log partition and the path
    # The kernel leaves out what is equal in the log partition and the score of a path: add it for log partitions alone
    n_steps = 0.0
    n_ends = 0.0
    if not len(of_path):
        n_steps = float(weights @ np.maximum(lengths - 1, 0))
        n_ends = float(weights @ (lengths > 0))
        d_units -= kernels.SCALE * np.repeat(weights, lengths)[:, np.newaxis]
        of_tokens = units.sum(axis=1) + (np.abs(held).sum(axis=1) if held.size else 0.0)
        totals[0] -= kernels.SCALE * np.diff(np.append(0.0, np.cumsum(of_tokens))[scores.starts])
        totals[0] += np.maximum(lengths - 1, 0) * scores.transitions[:, 0, 0].sum()
        totals[0] += (lengths > 0) * (scores.first[:, 0] + scores.last[:, 0]).sum()
    ones, opening, closing, pairs = counts
    # of steps to 1, and from 1
    behind = ones - opening
    before = ones - closing
    # [C, 4] expected numbers of the steps 0 -> 0, 0 -> 1, 1 -> 0 and 1 -> 1
    of_steps = np.stack([n_steps - behind - before + pairs, behind - pairs, before - pairs, pairs], axis=1)
    of_ends = [np.stack([n_ends - some, some], axis=1) for some in (opening, closing)]
    return totals[0], totals[1], _of_units(work, d_units, of_steps.reshape(-1, 2, 2), *of_ends)


def _size(array: Floats) -> float:
    return max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))


def _one_by_one(work: BitWork, weights: Floats) -> tuple[Floats, Floats, BitScores]:
    """`_sums` without a path, for scores that lie far apart: each chain as one of two tags."""
    log_z = np.zeros(work.n_sequences)
    derivatives = []
    chain = LinearChain()
    for c, shared in enumerate(zip(*work.scores[1:4])):
        scores = ChainScores(np.outer(work.units[:, c], [-kernels.SCALE, kernels.SCALE]), *shared, work.scores.starts)
        # [T, 2] of one bit, whose values are the two tags of a chain
        clamp = None if work.bits is None else work.bits[:, c, np.newaxis] != np.array([1, 0])
        of_chain, found = chain.expectations(scores, clamp=clamp, weights=weights)
        log_z += of_chain
        derivatives.append((kernels.SCALE * (found.emissions[:, 1] - found.emissions[:, 0]), *found[1:4]))
    units, *shared = zip(*derivatives)
    return log_z, log_z, _of_units(work, np.stack(units, axis=1), *map(np.stack, shared))


def _of_units(work: BitWork, d_units: Floats, *shared: Floats) -> BitScores:
    """A derivative, from that by `work.units` and by the shared scores."""
    cascade = work.scores.cascade
    if work.neighbours is not None:
        n_bits = len(cascade[0])
        cascade = (d_units.T @ work.neighbours).reshape(n_bits, 2, n_bits).transpose(1, 0, 2)
    return work.scores._replace(**dict(zip(BitScores.AXES, (d_units, *shared, cascade))))
