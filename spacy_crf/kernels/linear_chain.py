"""Linear chains: forward-backward, Viterbi, samples and path scores for a chunk of sequences laid end to end.

The recursions (``scale forward expectations transition_expectations``) run in the linear domain: every row of exp(emissions) is
divided by its maximum, every row of alpha and beta by its sum, and the logarithms of the divisors are added up. Sequences that
these recursions refuse go to the textbook recursions of `log_space`, which are slower and never wrong.

When the scaled recursions refuse, and why nothing is lost when they don't. Numbers vanish below 1e-308. Let every score
that is not -inf lie within SPREAD = 300 of the largest one of its array (the spread of a row of emissions plus that of
the transitions, first or last that it meets), so that the product of their exponentials is 0 or at least
e^-300 > 1e-131. And let every positive entry of alpha and beta, each row having sum 1, and every divisor be at least
TINY = 1e-100. Then each product that the recursions form is exactly 0, because a score was -inf, or at least
1e-100 · 1e-131 (alpha · beta: 1e-200), well above 1e-308: no path is ever lost to underflow, and a sum of 0 means that no
path is allowed. The one product that may vanish is alpha · emission · beta in the expectation of a transition, and
only where that expectation is itself below 1e-300.

Shapes: n tokens of the chunk, S states, P columns in rows of whole vectors: columns behind the first S have potential 0, and
inner loops have no remainder. Matrices of transitions are [1, ...] if all positions share them, else [n, ...]: token t reads
matrix ``t * step`` with step 0 or 1.

Where most transitions are forbidden, the scaled recursions and `viterbi` skip them. They run over the states in another
order, in which nearly all allowed transitions lie inside one block of the matrix: from R states, the first of them
number ``offset``, to the first C states. The other A are arcs from ``source`` to ``target`` (int32[A], numbers in that order).
For the tags of BILUO:

               B-* O  U-* L-* I-*
          B-*              . . . .      . . .  arcs: B-x and I-x to I-x and L-x
          O    # # # # #
          U-*  # block #                block: after O, U and L may follow B, O and U
          L-*  # # # # #
          I-*              . . . .

The order has the targets of the block that are not sources, then those that are, then its other sources: so both are contiguous.
R, C and ``offset`` are multiples of LANES; rows and columns added by rounding are in the block and have no arcs.
Where all this would not pay, the block is the whole matrix (R = C, S rounded up), there are no arcs, and the order is that of the
states. In the linear domain the rows of blocks are filled up with 0 to whole vectors: C+ and R+ columns.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats, Ints
from . import helper, kernel
from .exponentials import LEAST, exp_less, extremes
from .numerics import LANES, LINEAR, SPREAD, TINY, best_end, draw_mass
from .tiles import add_up

# Numba compiles a helper again for each literal argument, but not for these variables
_ZERO = np.int64(0)
_NO = np.bool_(False)
_YES = np.bool_(True)


class ChainArrays(NamedTuple):
    """Scores of a chunk. The same tuple holds derivatives with respect to the scores."""

    emissions: Floats  # [n, S]
    transitions: Floats  # [1 or n, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    starts: Ints  # [B + 1] where the sequences start


class BlockLayout(NamedTuple):
    """Where the allowed transitions are."""

    order: Ints  # [S] state at each place of the order
    number: Ints  # [S] place of each state in the order
    offset: int
    source: NDArray[np.int32]  # [A] places in the order
    target: NDArray[np.int32]  # [A]
    shape: tuple[int, int]  # R and C


class ScaledPotentials(NamedTuple):
    """Exponentials of the scores of a chunk, each less the maximum of its array, the states in the order of the layout."""

    emissions: Floats  # [n, P]
    block: Floats  # [1 or n, R, C+] transitions
    transposed: Floats  # [1 or n, C, R+] the transposed block
    arcs: Floats  # [A] transitions outside the block
    runs: NDArray[np.uint64]  # [N, 4] runs of arcs, see `_multiply`
    first: Floats  # [P]
    last: Floats  # [P]
    shift: Floats  # [n] sum of the maxima that were subtracted at each token
    spread: Floats  # [n] sum of the spreads of the scores that meet at each token
    starts: Ints  # [B + 1]


# The helpers of the recursions are always inlined: LLVM thinks them too large, and passing the parts of all their arrays took 30
# of the 112 ns that `forward` needed for a token of 22 states. (LLVM inlines faster than numba.)


# ---------------------------------------------------------------------------------------------- scaled linear domain


@kernel(in_place=True)
def scale(emissions, order, scaled, shift, spread):
    """Exponentials of each row minus its maximum.

    emissions (float64[n, S]): Scores.
    order (int64[S]): State at each place of the order; empty to keep the order of the states.
    scaled (float64[n, P]): Receives the exponentials; columns behind the first S get 0.
    shift (float64[n]): The maxima are added to it, 0 for rows without any finite score.
    spread (float64[n]): The distance between the largest and the smallest finite score of each row is added to it.
    """
    for t in range(emissions.shape[0]):
        if len(order) > 0:
            for k in range(len(order)):
                scaled[t, k] = emissions[t, order[k]]
        else:
            for j in range(emissions.shape[1]):
                scaled[t, j] = emissions[t, j]
        for j in range(emissions.shape[1], scaled.shape[1]):
            scaled[t, j] = -np.inf
    # A loop of its own: vector loads would have to wait for numbers that were stored one by one just before
    for t in range(emissions.shape[0]):
        largest, smallest = extremes(scaled, t)
        if largest == -np.inf:
            largest = smallest = 0.0
        shift[t] += largest
        spread[t] += largest - smallest
        exp_less(scaled, t, largest, LEAST)


@helper(in_place=True, fastmath=LINEAR, forceinline=True)
def _multiply(blocks, k, source, s, first, target, t, to, runs, back, arcs):
    """target[t] = source[s] @ matrix k: a block with rows from ``first`` on and columns from ``to`` on, and arcs.

    runs (uint64[N, 4]): For each run of arcs: the source, target and number of its first arc, and its length. Both sources and
        targets rise by one, so runs are added in vectors. (Signed numbers would prevent that; slices are counted.)
    back (bool): Whether arcs are followed from targets to sources.
    """
    for j in range(target.shape[1]):
        target[t, j] = 0.0
    # Rows of the block, then the arcs outside of it
    height, width = blocks.shape[1:]
    row = s * source.shape[1] + first
    sums = t * target.shape[1] + to
    add_up(width, height, source, (row,), 1, blocks, k * height * width, width, target, (sums,))
    for n in range(runs.shape[0]):
        begin = runs[n, 2]
        length = runs[n, 3]
        there = runs[n, 0] if back else runs[n, 1]
        here = runs[n, 1] if back else runs[n, 0]
        for k in range(length):
            target[t, there + k] += arcs[begin + k] * source[s, here + k]


@kernel(in_place=True, fastmath=LINEAR)
def forward(potentials, offset, alpha, log_z):
    """Forward pass: probability of each state at each token, given the tokens up to this one.

    potentials (ScaledPotentials)
    offset (int): Place of the first state of the block, see `BlockLayout`.
    alpha (float64[n, P]): Receives the rows, each with sum 1.
    log_z (float64[B]): Receives the log partition: -inf if no path is allowed, NaN if the sequence needs log space.
    """
    emissions, block, _, arcs, runs, first, last, shift, spread, starts = potentials
    width = alpha.shape[1]
    step = 1 if block.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        total = 0.0
        # alpha[t, j] = emissions[t, j] + logsum_i(alpha[t-1, i] + transitions[i, j])
        for t in range(begin, end):
            if spread[t] > SPREAD:
                total = np.nan
                break
            # In the linear domain: alpha[t] = emissions[t] · (alpha[t-1] @ transitions) / divisor[t]
            if t == begin:
                for j in range(width):
                    alpha[t, j] = first[j]
            else:
                _multiply(block, t * step, alpha, t - 1, offset, alpha, t, _ZERO, runs, _NO, arcs)
            divisor = 0.0
            for j in range(width):
                product = alpha[t, j] * emissions[t, j]
                alpha[t, j] = product
                divisor += product
            if divisor < TINY:
                total = -np.inf if divisor == 0.0 else np.nan
                break
            inverse = 1.0 / divisor
            too_small = 0
            for j in range(width):
                share = alpha[t, j] * inverse
                alpha[t, j] = share
                too_small += (share < TINY) & (share > 0.0)
            if too_small:
                total = np.nan
                break
            total += np.log(divisor) + shift[t]
        if end > begin and total > -np.inf:  # false for NaN too
            # log Z = sum_t (log divisor[t] + shift[t]) + log(alpha[n-1] · last)
            z = 0.0
            for j in range(width):
                z += alpha[end - 1, j] * last[j]
            total += np.log(z) if z > 0.0 else -np.inf
        log_z[b] = total


@kernel(in_place=True, fastmath=LINEAR)
def expectations(potentials, offset, order, weights, alpha, log_z, beta, d_emissions, d_first, d_last):
    """Backward pass after `forward`: the derivative of sum_b weights[b] · log_z[b].

    potentials (ScaledPotentials), offset (int): As in `forward`. The kernel overwrites the emissions with emissions · beta, 0
        where a sequence begins.
    order (int64[S]): State at each place of the order; empty for the order of the states.
    weights (float64[B]): Factor of each sequence.
    alpha (float64[n, P]): From `forward`. The kernel rescales it such that alpha[t - 1, i] · transitions[i, j] · emissions[t, j]
        is the expected number of steps from i at t - 1 to j at t.
    log_z (float64[B]): From `forward`. Receives NaN for a sequence that needs log space, whose expectations are meaningless.
    beta (float64[2, P]): Is overwritten: beta of a token, and the token's expectations.
    d_emissions (float64[n, S]), d_first, d_last (float64[S]): Receive the expectations, state by state (first, last: added).
    """
    emissions, _, transposed, arcs, runs, _, last, _, _, starts = potentials
    states = d_emissions.shape[1]
    width = alpha.shape[1]
    step = 1 if transposed.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            continue
        trusted = log_z[b] > -np.inf
        if trusted:
            for j in range(width):
                beta[0, j] = last[j]
            # beta[t-1, i] = logsum_j(transitions[i, j] + emissions[t, j] + beta[t, j])
            for t in range(end - 1, begin - 1, -1):
                # beta[0] is scaled to the sum 1; P(j at t) = alpha[t, j] beta[t, j] / sum
                divisor = total = 0.0
                for j in range(width):
                    divisor += beta[0, j]
                    total += alpha[t, j] * beta[0, j]
                if divisor < TINY or total < TINY * divisor:
                    trusted = False
                    break
                # From here on alpha[t] is scaled for the step to t + 1, whose product the divisor has made smaller
                inverse = 1.0 / divisor
                factor = weights[b] / total
                too_small = 0
                for j in range(width):
                    too_small += (beta[0, j] * inverse < TINY) & (beta[0, j] > 0.0)
                    alpha[t, j] *= factor
                    emissions[t, j] *= beta[0, j] * inverse
                    beta[1, j] = alpha[t, j] * beta[0, j]
                if too_small:
                    trusted = False
                    break
                if len(order) == 0:
                    for j in range(states):
                        d_emissions[t, j] = beta[1, j]
                else:
                    for j in range(states):
                        d_emissions[t, order[j]] = beta[1, j]
                if t > begin:
                    _multiply(transposed, t * step, emissions, t, _ZERO, beta, _ZERO, offset, runs, _YES, arcs)
            if not trusted:
                log_z[b] = np.nan
        if trusted:
            for j in range(states):
                # A first or last score is used as often as its state at this end
                d_first[j] += d_emissions[begin, j]
                d_last[j] += d_emissions[end - 1, j]
            for j in range(width):
                emissions[begin, j] = 0.0


@kernel(in_place=True, fastmath=LINEAR)
def transition_expectations(alpha, emissions, runs, offset, d_block, d_arcs):
    """Expected transitions, up to the factor exp(transition): products of neighbouring rows after `expectations`.

    alpha, emissions (float64[n, P]): From `expectations`. runs (uint64[N, 4]): See `_multiply`.
    offset (int): Place of the first state of the block.
    d_block (float64[1 | n, R, C+]): The products in the block, added over all tokens if there is one matrix.
    d_arcs (float64[A]): The products outside, added over all tokens.
    """
    tokens, row = alpha.shape
    height, width = d_block.shape[1:]
    if d_block.shape[0] > 1:
        for t in range(1, tokens):
            for i in range(height):
                for j in range(width):
                    d_block[t, i, j] = alpha[t - 1, offset + i] * emissions[t, j]
        return
    # The block: a row of alpha times the next row of emissions
    next_row = row
    for i in range(0, height if tokens > 1 else 0, LANES):  # without tokens there may be no matrix
        n = offset + i
        sums = i * width
        columns = (n, n + 1, n + 2, n + 3)
        rows = (sums, sums + width, sums + 2 * width, sums + 3 * width)
        add_up(width, tokens - 1, alpha, columns, row, emissions, next_row, row, d_block, rows)
    # Four tokens at a time: each sum is loaded and stored once for four products
    rest = 1 + (tokens - 1) // 4 * 4 if tokens > 0 else 1
    for t in range(1, rest, 4):
        for n in range(runs.shape[0]):
            i = runs[n, 0]
            j = runs[n, 1]
            begin = runs[n, 2]
            for k in range(runs[n, 3]):
                d_arcs[begin + k] += (
                    alpha[t - 1, i + k] * emissions[t, j + k]
                    + alpha[t, i + k] * emissions[t + 1, j + k]
                    + alpha[t + 1, i + k] * emissions[t + 2, j + k]
                    + alpha[t + 2, i + k] * emissions[t + 3, j + k]
                )
    for t in range(rest, tokens):
        for n in range(runs.shape[0]):
            i = runs[n, 0]
            j = runs[n, 1]
            begin = runs[n, 2]
            for k in range(runs[n, 3]):
                d_arcs[begin + k] += alpha[t - 1, i + k] * emissions[t, j + k]


# ----------------------------------------------------------------------------------------------------------- decoding


@kernel(in_place=True)
def viterbi(scores, layout, block, arcs, delta, ordered, states, totals):
    """Most probable path of each sequence; of equal paths, the one with the lowest states.

    scores (ChainArrays), layout (BlockLayout)
    block (float64[1 or n, R, C]), arcs (float64[A]): Transitions in the order of the layout, -inf in entries that rounding added.
    delta (float64[n, S]): Is overwritten: score of the best prefix that ends with each token and state.
    ordered (float64[2, P]): Is overwritten: two rows of delta, by turns, in the order of the layout.
    states (int32[n]): Receives the path, -1 where the sequence has no allowed path.
    totals (float64[B]): Receives the score of the path.

    The kernel keeps no backpointers: the way back searches for the best predecessor again, along the best path only. The forward
    pass then takes one addition and one maximum per arc, vectorised over j.
    """
    emissions, transitions, first, last, starts = scores
    order, _, offset, source, target, (height, width) = layout
    size = emissions.shape[1]
    step = 1 if transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        for j in range(ordered.shape[1]):
            ordered[begin % 2, j] = first[order[j]] + emissions[begin, order[j]] if j < size else -np.inf
        for j in range(size):
            delta[begin, order[j]] = ordered[begin % 2, j]
        # delta[t, j] = emissions[t, j] + max_i(delta[t-1, i] + transitions[i, j])
        for t in range(begin + 1, end):
            before = (t - 1) % 2
            now = t % 2
            m = t * step
            for j in range(ordered.shape[1]):
                ordered[now, j] = -np.inf
            for i in range(0, height, LANES):
                n = offset + i
                a = ordered[before, n]
                c = ordered[before, n + 1]
                d = ordered[before, n + 2]
                e = ordered[before, n + 3]
                for j in range(width):
                    upper = max(a + block[m, i, j], c + block[m, i + 1, j])
                    lower = max(d + block[m, i + 2, j], e + block[m, i + 3, j])
                    ordered[now, j] = max(ordered[now, j], max(upper, lower))
            for n in range(arcs.shape[0]):
                ordered[now, target[n]] = max(ordered[now, target[n]], ordered[before, source[n]] + arcs[n])
            for j in range(size):
                ordered[now, j] += emissions[t, order[j]]
                delta[t, order[j]] = ordered[now, j]
        best, totals[b] = best_end(delta, end - 1, last)
        if best == -1:
            for t in range(begin, end):
                states[t] = -1
            continue
        states[end - 1] = best
        for t in range(end - 1, begin, -1):  # written out: calling `best_before` would add a tenth to the total time
            j = best
            score = -np.inf
            for i in range(size):
                score = max(score, delta[t - 1, i] + transitions[t * step, i, j])
            best = 0
            while delta[t - 1, best] + transitions[t * step, best, j] < score:
                best += 1
            states[t - 1] = best


# --------------------------------------------------------------------------------------------------------- given paths


@kernel
def sample(linear, number, last, predecessors, arcs, starts, uniforms, states):
    """Draw labellings from the posterior by backward sampling after the forward pass (Scott 2002).

    linear (float64[n, P], float64[B]): Rows and log partitions from `forward`. number (int[S]): Column of each state in the rows.
    last (float64[P]): exp of the scores `last`.
    predecessors (int64[S + 1], int64[A]), arcs (float64[A]): See `Work.predecessors`, and exp of the scores of these transitions.
    uniforms (float64[N, n]): Random numbers in [0, 1). states (int32[N, n]): Receives the paths, -1 where none is allowed.
    """
    alpha, log_z = linear
    before, sources = predecessors
    masses = np.empty(len(number))
    for n in range(len(states)):
        for b in range(len(log_z)):
            state = -1
            for t in range(starts[b + 1] - 1, starts[b] - 1, -1):
                if log_z[b] == -np.inf:
                    drawn = -1
                elif state == -1:
                    for i in range(len(number)):
                        # P(last state) ~ alpha · last, then P(state | next state) ~ alpha · transition
                        masses[i] = alpha[t, number[i]] * last[number[i]]
                    drawn = draw_mass(masses, uniforms[n, t])
                else:
                    first = before[state]
                    n_sources = before[state + 1] - before[state]
                    for m in range(n_sources):
                        masses[m] = alpha[t, number[sources[first + m]]] * arcs[first + m]
                    drawn = sources[first + draw_mass(masses[:n_sources], uniforms[n, t])]
                states[n, t] = state = drawn


@kernel(in_place=True)
def path_score(scores, states, totals):
    """Score of one path per sequence: states (int32[n]), totals (float64[B]); -inf for a path with a negative state."""
    emissions, transitions, first, last, starts = scores
    step = 1 if transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        score = 0.0
        for t in range(begin, end):
            if states[t] < 0:
                score = -np.inf
                break
            score += first[states[t]] if t == begin else transitions[t * step, states[t - 1], states[t]]
            score += emissions[t, states[t]]
        if end > begin and score > -np.inf:
            score += last[states[end - 1]]
        totals[b] = score


@kernel(in_place=True)
def path_expectations(states, weights, out):
    """Add weights[b] to the entry of each score that the path of sequence b uses; sequences with a negative state add nothing."""
    d_emissions, d_transitions, d_first, d_last, starts = out
    step = 1 if d_transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        n_missing = 0
        for t in range(begin, end):
            n_missing += states[t] < 0
        if begin == end or n_missing > 0:
            continue
        d_first[states[begin]] += weights[b]
        d_last[states[end - 1]] += weights[b]
        for t in range(begin, end):
            d_emissions[t, states[t]] += weights[b]
            if t > begin:
                d_transitions[t * step, states[t - 1], states[t]] += weights[b]


@kernel(in_place=True)
def only_path(clamp, states):
    """Whether a clamp (bool[n, S]) allows exactly one state everywhere; states (int32[n]) receives them."""
    for t in range(clamp.shape[0]):
        allowed = state = 0
        for j in range(clamp.shape[1]):  # without a branch: four times faster
            allowed += clamp[t, j]
            state += j * clamp[t, j]
        if allowed != 1:
            return False
        states[t] = state
    return True
