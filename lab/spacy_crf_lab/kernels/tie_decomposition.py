"""Dual decomposition of chains with ties: each chain and each tie is a subproblem, and prices make the subproblems agree.

Each end of a tie has a price for each label. The chain of the end adds the price to its scores, the tie subtracts it:

    dual = sum_b max_y(score[b](y) + prices of y's labels) + sum_e max_ij(table[i, j] - price[2 e, i] - price[2 e + 1, j])

For any prices the dual is at least the score of every labelling. Three kernels lower it: `sweep` moves scores from chains to ties
and on to the other ends, which is block coordinate descent in the order of TRW-S (Kolmogorov 2006), with a chain in place of a
node; `descend` follows the subgradient (Komodakis, Paragios & Tziritas 2007); `negotiate` takes a step of AD3 (Martins et al.
2015), whose subproblems are quadratic and are solved by active sets.

A pass in the direction d (1 or -1) computes ``near[t, j]``, the best score of the tokens up to t, in this direction, with state j
at t; `far` is the same in the opposite direction. Both include ``rows[t, j]``, the score of the token alone, with its prices.

Shapes: T tokens, S states, L labels, B chains, E ties, M vertices of an active set. The ends of tie e are 2 e and 2 e + 1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.types import Floats

VERTICES = 10  # M
_NEW = 4  # largest number of vertices that enter an active set in one step
_EXCHANGES = 200  # largest number of exchanges between two vertices of an active set
_LITTLE = 1e-9  # differences of scores that do not count, and the weight of a vertex that enters an active set
_ENOUGH = 1e-6  # a vertex enters an active set if it gains more than this


class Steps(NamedTuple):
    """Transitions, for passes in both directions."""

    forth: Floats  # [1 or T, S, S] by source and target
    back: Floats  # [1 or T, S, S] by target and source
    # [2, S + 1] places in `others` of the states that may stand before, and after, each state
    bounds: NDArray[np.int64]
    others: NDArray[np.int64]  # [2, A]; empty if so many steps are possible that rows of all states are faster
    scores: Floats  # [2, A] of these steps, close together for the cache; empty if they depend on the token


class Parts(NamedTuple):
    """The subproblems."""

    own: Floats  # [T, S] scores of tokens, with those of first and last tokens
    starts: NDArray[np.int64]  # [B + 1]
    steps: Steps
    bounds: NDArray[np.int64]  # [T + 1] places in `ends` of the ends at each token
    ends: NDArray[np.int64]  # [2 E]
    tokens: NDArray[np.int64]  # [2 E] token of each end
    kind: NDArray[np.int64]  # [E]
    tables: Floats  # [2, K, L, L] scores by the labels of source and target, and by those of target and source
    label_of: NDArray[np.int64]  # [S]
    possible: NDArray[np.bool_]  # [2 E, L] labels that the end has in any labelling of its chain


@helper
def _step(steps, d, t, row, out):
    """out[j] = max_i(row[i] + score of the step from i to j), for the step that leads to token t in the direction d."""
    forth, back, bounds, others, scores = steps
    size = len(row)
    side = 0 if d > 0 else 1
    k = (t if d > 0 else t + 1) if forth.shape[0] > 1 else 0
    if others.shape[1] == 0:
        matrix = forth[k] if d > 0 else back[k]
        out[:] = -np.inf
        for i in range(0, size - 3, 4):  # four rows at once halve the time
            a = row[i]
            b = row[i + 1]
            c = row[i + 2]
            e = row[i + 3]
            for j in range(size):
                upper = max(a + matrix[i, j], b + matrix[i + 1, j])
                lower = max(c + matrix[i + 2, j], e + matrix[i + 3, j])
                out[j] = max(out[j], max(upper, lower))
        for i in range(size // 4 * 4, size):
            for j in range(size):
                out[j] = max(out[j], row[i] + matrix[i, j])
        return
    matrix = back[k] if d > 0 else forth[k]
    is_shared = scores.shape[1] > 0
    for j in range(size):
        largest = -np.inf
        if is_shared:
            for n in range(bounds[side, j], bounds[side, j + 1]):
                largest = max(largest, row[others[side, n]] + scores[side, n])
        else:
            for n in range(bounds[side, j], bounds[side, j + 1]):
                largest = max(largest, row[others[side, n]] + matrix[j, others[side, n]])
        out[j] = largest


@helper
def _add_step(steps, d, t, state, scores):
    """Add the scores of steps from token t to a state of the next token, in the direction d."""
    k = (t + 1 if d > 0 else t) if steps.forth.shape[0] > 1 else 0
    matrix = steps.back[k] if d > 0 else steps.forth[k]
    for j in range(len(scores)):
        scores[j] += matrix[state, j]


@helper
def _pass(parts, d, b, rows, near):
    """Compute `near` for a chain. RETURNS (float): The score of its best labelling."""
    begin = parts.starts[b]
    end = parts.starts[b + 1]
    t = begin if d > 0 else end - 1
    # near[t, j] = rows[t, j] + max_i(near[t-d, i] + score of the step)
    near[t] = rows[t]
    for _ in range(end - begin - 1):
        t += d
        _step(parts.steps, d, t, near[t - d], near[t])
        near[t] += rows[t]
    return near[t].max()


@helper
def _trace(parts, b, near, states):
    """Set the best labelling of a chain after a pass in the direction 1."""
    scores = np.empty(near.shape[1])
    for t in range(parts.starts[b + 1] - 1, parts.starts[b] - 1, -1):
        scores[:] = near[t]
        if t < parts.starts[b + 1] - 1:
            _add_step(parts.steps, 1, t, states[t + 1], scores)
        states[t] = scores.argmax()


@helper
def _told(parts, prices, t, row):
    """Set row to the scores of a token, with all prices."""
    row[:] = parts.own[t]
    for n in range(parts.bounds[t], parts.bounds[t + 1]):
        for j in range(len(row)):
            row[j] += prices[parts.ends[n], parts.label_of[j]]


@kernel
def prepare(parts, prices, rows, of_chains):
    """Set the rows of all tokens and the maxima of all chains (float64[B]), and mark the labels that are possible in `parts`."""
    room = np.empty((2, *rows.shape))
    for t in range(len(rows)):
        _told(parts, prices, t, rows[t])
    for b in range(len(parts.starts) - 1):
        for side in range(2 if parts.starts[b] < parts.starts[b + 1] else 0):
            of_chains[b] = _pass(parts, 1 - 2 * side, b, rows, room[side])
    for n in range(len(parts.tokens)):
        t = parts.tokens[n]
        for j in range(rows.shape[1]):
            parts.possible[n, parts.label_of[j]] |= room[0, t, j] + room[1, t, j] > -np.inf


# ------------------------------------------------------------------------------------------------ coordinate descent


@kernel
def sweep(parts, d, asked, prices, rows, near, far, of_chains, of_ties):
    """Visit some chains (bool[B]) in the direction d. A chain gives each tie to a later token a share of its max-marginals there,

        best[k] = max over states j of label k of near[t, j] + far[t, j] - rows[t, j]

    and the tie passes on all that it has to the token at its other end. Between chains the dual never rises: the largest score of
    what gives becomes smaller by as much as that of what takes becomes larger, or by more. (After a tie inside a chain, `far` is
    that of the old prices.)

    of_chains (float64[B]), of_ties (float64[E]): Receive the maxima of the subproblems.
    """
    label_of = parts.label_of
    size = rows.shape[1]
    n_labels = prices.shape[1]
    n_chains = len(parts.starts) - 1
    best = np.empty(n_labels)
    message = np.empty(n_labels)
    for m in range(n_chains):
        b = m if d > 0 else n_chains - 1 - m
        begin = parts.starts[b]
        end = parts.starts[b + 1]
        if not asked[b] or begin == end:
            continue
        _pass(parts, -d, b, rows, far)
        t = begin - 1 if d > 0 else end
        for n in range(end - begin):
            t += d
            if n > 0:
                _step(parts.steps, d, t, near[t - d], near[t])
                near[t] += rows[t]
            else:
                near[t] = rows[t]
            ahead = 0
            for n in range(parts.bounds[t], parts.bounds[t + 1]):
                # Ties to tokens that are visited later; `^ 1` is the other end of a tie
                ahead += d * (parts.tokens[parts.ends[n] ^ 1] - t) > 0
            if ahead == 0:
                continue
            best[:] = -np.inf
            for j in range(size):
                if rows[t, j] > -np.inf:
                    best[label_of[j]] = max(best[label_of[j]], near[t, j] + far[t, j] - rows[t, j])
            best -= best.max()
            # Equal shares for all ties ahead and the rest of the chain, as in TRW-S
            best /= ahead + 1.0
            for n in range(parts.bounds[t], parts.bounds[t + 1]):
                here = parts.ends[n]
                there = here ^ 1
                e = here // 2
                u = parts.tokens[here ^ 1]
                if d * (u - t) < 0:
                    continue
                for k in range(n_labels):
                    # The chain gives, the tie takes
                    prices[here, k] -= best[k] if parts.possible[here, k] else 0.0
                for j in range(size):
                    moved = best[label_of[j]] if parts.possible[here, label_of[j]] else 0.0
                    rows[t, j] -= moved
                    near[t, j] -= moved
                message[:] = -np.inf
                table = parts.tables[here % 2, parts.kind[e]]
                for i in range(n_labels):
                    for k in range(n_labels if parts.possible[here, i] else 0):
                        # What the tie has for each label of the other end
                        message[k] = max(message[k], table[i, k] - prices[here, i])
                of_ties[e] = -np.inf
                for k in range(n_labels):
                    of_ties[e] = max(of_ties[e], message[k] if parts.possible[there, k] else -np.inf)
                for k in range(n_labels):
                    message[k] = message[k] - of_ties[e] - prices[there, k] if parts.possible[there, k] else 0.0
                    # The tie keeps nothing but its maximum
                    prices[there, k] += message[k]
                for j in range(size):
                    rows[u, j] += message[label_of[j]]
        of_chains[b] = near[t].max()


@kernel
def decide(parts, d, asked, prices, rows, near, states):
    """Decide the labellings of chains after a sweep, against its direction d: each chain gets its best labelling given the labels
    decided before. Without cycles the result is a best labelling of all, if the dual has reached its minimum.

    rows, near (float64[T, S]): Are overwritten. states (int32[T])
    """
    label_of = parts.label_of
    n_chains = len(parts.starts) - 1
    scores = np.empty(rows.shape[1])
    for m in range(n_chains):
        b = n_chains - 1 - m if d > 0 else m
        begin = parts.starts[b]
        end = parts.starts[b + 1]
        if not asked[b] or begin == end:
            continue
        # First the scores given the decided labels of other chains, then backwards with ties inside the chain
        for inside in range(2):
            if inside:
                _pass(parts, d, b, rows, near)
            t = end if d > 0 else begin - 1
            for _ in range(end - begin):
                t -= d
                scores[:] = near[t] if inside else parts.own[t]
                if inside and t != (end - 1 if d > 0 else begin):
                    _add_step(parts.steps, d, t, states[t + d], scores)
                for n in range(parts.bounds[t], parts.bounds[t + 1]):
                    here = parts.ends[n]
                    u = parts.tokens[here ^ 1]
                    is_inside = begin <= u < end
                    is_known = d * (u - t) > 0 and is_inside == (inside == 1)
                    if is_known:
                        table = parts.tables[1 - here % 2, parts.kind[here // 2], label_of[states[u]]]
                        for j in range(len(scores)):
                            scores[j] += table[label_of[j]] - (prices[here, label_of[j]] if inside else 0.0)
                    elif not inside:
                        for j in range(len(scores)):
                            scores[j] += prices[here, label_of[j]]
                if inside:
                    states[t] = scores.argmax()
                else:
                    rows[t] = scores


# -------------------------------------------------------------------------------------------------------- subgradient


@kernel
def solve(parts, asked, changed, prices, rows, near, states, pairs, of_chains, of_ties):
    """Find the best labelling of each chain whose prices have changed (bool[B], reset), and of each tie of some chains.

    states (int32[T]), pairs (int64[2 E]): Labellings of the chains, and labels of the ends in the ties; of equally good pairs
        the labels of the chains.
    """
    n_labels = prices.shape[1]
    sequence = np.empty(len(rows), dtype=np.int64)
    for b in range(len(parts.starts) - 1):
        begin = parts.starts[b]
        end = parts.starts[b + 1]
        sequence[begin:end] = b
        if asked[b] and changed[b] and begin < end:
            of_chains[b] = _pass(parts, 1, b, rows, near)
            _trace(parts, b, near, states)
            changed[b] = False
    for e in range(len(parts.kind)):
        u = parts.tokens[2 * e]
        v = parts.tokens[2 * e + 1]
        if not asked[sequence[u]]:
            continue
        table = parts.tables[0, parts.kind[e]]
        best = -np.inf
        for i in range(n_labels):
            for j in range(n_labels if parts.possible[2 * e, i] else 0):
                score = table[i, j] - prices[2 * e, i] - prices[2 * e + 1, j]
                if parts.possible[2 * e + 1, j] and score > best:
                    best = score
                    pairs[2 * e] = i
                    pairs[2 * e + 1] = j
        i = parts.label_of[states[u]]
        j = parts.label_of[states[v]]
        if table[i, j] - prices[2 * e, i] - prices[2 * e + 1, j] >= best - _LITTLE:
            pairs[2 * e] = i
            pairs[2 * e + 1] = j
        of_ties[e] = best


@kernel
def descend(parts, lengths, prices, rows, states, pairs, changed):
    """Step against the subgradient: where a tie and a chain disagree about a label, the chain's label becomes cheaper for the tie
    and dearer for the chain, and the tie's label the other way round.

    lengths (float64[B]): Length of the step of the ends in each chain.
    """
    for b in range(len(lengths)):
        for t in range(parts.starts[b], parts.starts[b + 1] if lengths[b] > 0.0 else parts.starts[b]):
            for n in range(parts.bounds[t], parts.bounds[t + 1]):
                here = parts.ends[n]
                label = parts.label_of[states[t]]
                if pairs[here] != label:
                    prices[here, label] -= lengths[b]
                    prices[here, pairs[here]] += lengths[b]
                    changed[b] = True
            if parts.bounds[t] < parts.bounds[t + 1]:
                _told(parts, prices, t, rows[t])


# ---------------------------------------------------------------------------------------------------------------- AD3


class Active(NamedTuple):
    """The active sets: vertices, which are labellings, with their weights; and the consensus of all subproblems."""

    states: NDArray[np.int32]  # [M, T] labellings of the chains
    pairs: NDArray[np.int64]  # [M, 2 E] labels of the ends of ties
    of_chains: Floats  # [B, M] weights, which add up to 1; 0 for places without a vertex
    of_ties: Floats  # [E, M]
    consensus: Floats  # [T, L] mean of the marginals of the subproblems, at tied tokens


@helper
def _weigh(scores, gram, rho, weights):
    """Maximise scores · weights - rho / 2 · weights · gram · weights, over weights that add up to 1, by exchanges between two
    vertices: the one that gains most and the one that loses least."""
    gains = np.empty(len(scores))
    for _ in range(_EXCHANGES):
        into = -1
        out_of = -1
        for m in range(len(scores)):
            gains[m] = scores[m]
            for n in range(len(scores)):
                gains[m] -= rho * gram[m, n] * weights[n]
            if into < 0 or gains[m] > gains[into]:
                into = m
            if weights[m] > 0.0 and (out_of < 0 or gains[m] < gains[out_of]):
                out_of = m
        gain = gains[into] - gains[out_of]
        if gain < _LITTLE:
            break
        # The objective along the exchange is gain · step - bend · step² / 2
        bend = rho * (gram[into, into] + gram[out_of, out_of] - 2.0 * gram[into, out_of])
        step = weights[out_of] if bend <= 0.0 else min(weights[out_of], gain / bend)
        weights[into] += step
        weights[out_of] -= step
    return gains.max()


@helper
def _enter(weights):
    """Give the first place without a vertex a weight, so that its vertex enters the active set.

    RETURNS (int): The place, -1 if there is none.
    """
    for m in range(len(weights)):
        if weights[m] == 0.0:
            weights[m] = _LITTLE
            return m
    return -1


@helper
def _quadratic_chain(parts, active, b, rho, rows, room, near, means):
    """Solve the quadratic subproblem of a chain, and set the shares of the labels at its tied tokens (float64[T, L])."""
    begin = parts.starts[b]
    end = parts.starts[b + 1]
    label_of = parts.label_of
    weights = active.of_chains[b]
    scores = np.empty(VERTICES)
    gram = np.zeros((VERTICES, VERTICES))
    k = parts.steps.forth.shape[0] > 1
    for turn in range(_NEW + 1):
        # score(y) + rho · consensus · y, and gram[m, n] = tied tokens at which two vertices agree
        for m in range(VERTICES):
            y = active.states[m]
            scores[m] = 0.0
            for t in range(begin, end):
                is_tied = parts.bounds[t] < parts.bounds[t + 1]
                scores[m] += rows[t, y[t]] + (rho * active.consensus[t, label_of[y[t]]] if is_tied else 0.0)
                if t > begin:
                    scores[m] += parts.steps.forth[t if k else 0, y[t - 1], y[t]]
            for n in range(m + 1):
                gram[m, n] = 0.0
                for t in range(begin, end):
                    is_tied = parts.bounds[t] < parts.bounds[t + 1]
                    gram[m, n] += is_tied and label_of[y[t]] == label_of[active.states[n, t]]
                gram[n, m] = gram[m, n]
        highest = _weigh(scores, gram, rho, weights)
        means[begin:end] = 0.0
        for t in range(begin, end):
            room[t] = rows[t]
            if parts.bounds[t] < parts.bounds[t + 1]:
                for m in range(VERTICES):
                    means[t, label_of[active.states[m, t]]] += weights[m]
                for j in range(room.shape[1]):
                    room[t, j] += rho * (active.consensus[t, label_of[j]] - means[t, label_of[j]])
        # The linear problem at the present means: a labelling that gains more becomes a vertex
        if turn == _NEW or _pass(parts, 1, b, room, near) <= highest + _ENOUGH:
            break
        m = _enter(weights)
        if m < 0:
            break
        _trace(parts, b, near, active.states[m])


@helper
def _quadratic_tie(parts, active, e, rho, prices, means):
    """Solve the quadratic subproblem of a tie, and set the shares of the labels at its ends (float64[2 E, L])."""
    u = 2 * e
    v = 2 * e + 1
    weights = active.of_ties[e]
    pairs = active.pairs
    scores = np.empty(VERTICES)
    gram = np.zeros((VERTICES, VERTICES))
    table = parts.tables[0, parts.kind[e]]
    at_u = active.consensus[parts.tokens[u]]
    at_v = active.consensus[parts.tokens[v]]
    for turn in range(_NEW + 1):
        for m in range(VERTICES):
            i = pairs[m, u]
            j = pairs[m, v]
            scores[m] = table[i, j] - prices[u, i] - prices[v, j] + rho * (at_u[i] + at_v[j])
            for n in range(VERTICES):
                gram[m, n] = (i == pairs[n, u]) + (j == pairs[n, v])
        highest = _weigh(scores, gram, rho, weights)
        best = -np.inf
        means[u : v + 1] = 0.0
        for m in range(VERTICES):
            means[u, pairs[m, u]] += weights[m]
            means[v, pairs[m, v]] += weights[m]
        y = 0
        z = 0
        for i in range(len(table)):
            for j in range(len(table) if parts.possible[u, i] else 0):
                score = table[i, j] - prices[u, i] - prices[v, j]
                score += rho * (at_u[i] - means[u, i] + at_v[j] - means[v, j])
                if parts.possible[v, j] and score > best:
                    best = score
                    y = i
                    z = j
        if turn == _NEW or best <= highest + _ENOUGH:
            break
        m = _enter(weights)
        if m < 0:
            break
        pairs[m, u] = y
        pairs[m, v] = z


@kernel
def negotiate(parts, active, rhos, prices, rows, room, near, changed, residuals):
    """Take a step of AD3: all subproblems maximise their scores less rho / 2 times the square of their distance from the
    consensus; the consensus becomes the mean of their shares of labels, and the prices move by rho times the distances.

    rhos (float64[B]): Penalty of the component of each chain, 0 for chains that are not asked.
    changed (bool[B]): Is set for chains that are asked.
    residuals (float64[B, 2]): Receives the squares of the distances from the consensus, and of the consensus from the last one.
    """
    at_tokens = np.zeros((len(rows), prices.shape[1]))
    at_ends = np.zeros(prices.shape)
    for b in range(len(rhos)):
        begin = parts.starts[b]
        end = parts.starts[b + 1]
        rho = rhos[b]
        if rho == 0.0 or begin == end:
            continue
        _quadratic_chain(parts, active, b, rho, rows, room, near, at_tokens)
        for n in range(parts.bounds[begin], parts.bounds[end]):
            if parts.ends[n] % 2 == 0:
                _quadratic_tie(parts, active, parts.ends[n] // 2, rho, prices, at_ends)
    for b in range(len(rhos)):
        residuals[b] = 0.0
        changed[b] |= rhos[b] > 0.0
        for t in range(parts.starts[b], parts.starts[b + 1] if rhos[b] > 0.0 else parts.starts[b]):
            first = parts.bounds[t]
            last = parts.bounds[t + 1]
            for k in range(prices.shape[1] if first < last else 0):
                # consensus = mean over the chain and the ends of ties at a token; prices move by rho · (share - consensus)
                mean = at_tokens[t, k]
                for n in range(first, last):
                    mean += at_ends[parts.ends[n], k]
                mean /= last - first + 1
                residuals[b, 0] += (at_tokens[t, k] - mean) ** 2
                residuals[b, 1] += (last - first + 1) * (active.consensus[t, k] - mean) ** 2
                for n in range(first, last):
                    apart = at_ends[parts.ends[n], k] - mean
                    residuals[b, 0] += apart**2
                    prices[parts.ends[n], k] += rhos[b] * apart
                active.consensus[t, k] = mean
            if first < last:
                _told(parts, prices, t, rows[t])
