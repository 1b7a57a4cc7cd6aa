"""Minimal cuts by augmenting paths along two search trees (Boykov & Kolmogorov 2004), and the expansions of labels that cuts find
(Boykov, Veksler & Zabih 2001), with rewards for groups that agree (Kohli, Kumar & Torr 2007).

One tree grows from the source, the other one from the sink, along arcs with a rest of their capacity. Where they touch, there is
a path from the source to the sink. Arcs that the path fills up cut branches off the trees, and the roots of these branches are
orphans: each looks for another parent in its tree, or becomes free. Trees are kept from path to path. Distances to the roots
count where their time is the present one.

An expansion of label a asks every token at once: keep your label (sink) or take a (source)? In the letters of the cut, x = 1 for
tokens that take it, and with scores for costs, a tie with score s(i, j) at labels i and j is

    s(i, j) + x_u (s(a, j) - s(i, j)) + x_v (s(a, a) - s(a, j)) - (1 - x_u) x_v (s(i, j) + s(a, a) - s(i, a) - s(a, j))

whose last part is the capacity of an arc from v to u. A group whose members get the reward r if all take a has another node w:

    r prod_u x_u = max_w r w - sum_u r w (1 - x_u)

and so has its reward if all keep the label that they share. N nodes, A arcs, V tokens, K labels, E ties, G groups, M members.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.types import Floats

# instead of an arc to a parent
_NONE = -1
_TERMINAL = -2
_ORPHAN = -3
_FAR = 1 << 60
_MORE = 1e-9  # least gain for which an expansion is taken


class Arcs(NamedTuple):
    """The arcs from each node n are ``first[n]:first[n + 1]``. An edge is an arc and its sister, the other way round."""

    first: NDArray[np.int64]  # [N + 1]
    head: NDArray[np.int32]  # [A] where each arc ends
    sister: NDArray[np.int32]  # [A]


@kernel
def lay_out(tails, heads, n_nodes):
    """The arcs of edges (int64[E] twice). RETURNS (Arcs, int64[E]): The arcs, and the place of the arc from tail to head."""
    n = len(tails)
    first = np.zeros(n_nodes + 1, dtype=np.int64)
    # Counting sort of both arcs of each edge by their tails
    for e in range(n):
        first[tails[e] + 1] += 1
        first[heads[e] + 1] += 1
    for node in range(n_nodes):
        first[node + 1] += first[node]
    head = np.empty(2 * n, dtype=np.int32)
    sister = np.empty(2 * n, dtype=np.int32)
    filled = first[:-1].copy()
    places = np.empty(n, dtype=np.int64)
    for e in range(n):
        tail = tails[e]
        other = heads[e]
        a = filled[tail]
        b = filled[other]
        filled[tail] += 1
        filled[other] += 1
        head[a] = other
        head[b] = tail
        sister[a] = b
        sister[b] = a
        places[e] = a
    return Arcs(first, head, sister), places


@kernel
def minimal_cut(arcs, rest, ends, is_cut):
    """Mark the nodes on the source's side of the minimal cut with the fewest nodes there.

    rest (float64[A]): Capacities of the arcs, >= 0. What remains of them is left.
    ends (float64[N]): Capacity from the source to each node, less that from the node to the sink. What remains is left.
    is_cut (bool[N]): The result.
    RETURNS (float): The flow.
    """
    first, head, sister = arcs
    n_nodes = len(ends)
    parent = np.full(n_nodes, _NONE, dtype=np.int32)
    of_sink = np.zeros(n_nodes, dtype=np.bool_)
    is_active = np.zeros(n_nodes, dtype=np.bool_)
    time_of = np.zeros(n_nodes, dtype=np.int64)
    distance = np.zeros(n_nodes, dtype=np.int64)
    # active nodes, in a ring
    queue = np.empty(n_nodes, dtype=np.int32)
    begin = 0
    waiting = 0
    # in a ring too
    orphans = np.empty(n_nodes, dtype=np.int32)
    front = 0
    left = 0
    for i in range(n_nodes):
        if ends[i] != 0.0:
            parent[i] = _TERMINAL
            of_sink[i] = ends[i] < 0.0
            distance[i] = 1
            is_active[i] = True
            queue[waiting] = i
            waiting += 1
    flow = 0.0
    time = 0
    current = -1
    while True:
        i = current
        if i >= 0 and parent[i] == _NONE:
            i = -1
        while i < 0 and waiting:
            i = queue[begin]
            begin = begin + 1 if begin + 1 < n_nodes else 0
            waiting -= 1
            is_active[i] = False
            if parent[i] == _NONE:
                i = -1
        if i < 0:
            break
        # Growth
        middle = -1
        sinks = of_sink[i]
        for a in range(first[i], first[i + 1]):
            if (rest[sister[a]] if sinks else rest[a]) > 0.0:
                j = head[a]
                # A free node joins the tree; one of the other tree closes a path; a node of this tree may get nearer to its root
                if parent[j] == _NONE:
                    of_sink[j] = sinks
                    parent[j] = sister[a]
                    time_of[j] = time_of[i]
                    distance[j] = distance[i] + 1
                    if not is_active[j]:
                        is_active[j] = True
                        place = begin + waiting
                        queue[place if place < n_nodes else place - n_nodes] = j
                        waiting += 1
                elif of_sink[j] != sinks:
                    middle = sister[a] if sinks else a
                    break
                elif time_of[j] <= time_of[i] and distance[j] > distance[i] + 1:
                    parent[j] = sister[a]
                    time_of[j] = time_of[i]
                    distance[j] = distance[i] + 1
        time += 1
        if middle < 0:
            current = -1
            continue
        current = i
        # Augmentation: the least rest along the path, then the path itself
        least = rest[middle]
        i = head[sister[middle]]
        while parent[i] != _TERMINAL:
            least = min(least, rest[sister[parent[i]]])
            i = head[parent[i]]
        least = min(least, ends[i])
        i = head[middle]
        while parent[i] != _TERMINAL:
            least = min(least, rest[parent[i]])
            i = head[parent[i]]
        least = min(least, -ends[i])
        flow += least
        rest[sister[middle]] += least
        rest[middle] -= least
        # From the arc in the middle back to the source, then on to the sink
        for sinks in (False, True):
            i = head[middle] if sinks else head[sister[middle]]
            while True:
                a = parent[i]
                if a == _TERMINAL:
                    ends[i] += least if sinks else -least
                    is_full = ends[i] == 0.0
                else:
                    forth = a if sinks else sister[a]
                    rest[sister[forth]] += least
                    rest[forth] -= least
                    is_full = rest[forth] == 0.0
                if is_full:
                    parent[i] = _ORPHAN
                    front = front - 1 if front else n_nodes - 1
                    orphans[front] = i
                    left += 1
                if a == _TERMINAL:
                    break
                i = head[a]
        # Adoption
        # A parent must have a rest towards the node and a way to a root; the nearest root wins
        while left:
            i = orphans[front]
            front = front + 1 if front + 1 < n_nodes else 0
            left -= 1
            sinks = of_sink[i]
            best = _NONE
            nearest = _FAR
            for a in range(first[i], first[i + 1]):
                j = head[a]
                if of_sink[j] == sinks and parent[j] != _NONE and (rest[a] if sinks else rest[sister[a]]) > 0.0:
                    steps = 0
                    while True:
                        if time_of[j] == time:
                            steps += distance[j]
                            break
                        steps += 1
                        if parent[j] == _TERMINAL:
                            time_of[j] = time
                            distance[j] = 1
                            break
                        if parent[j] == _ORPHAN:
                            steps = _FAR
                            break
                        j = head[parent[j]]
                    if steps < _FAR:
                        if steps < nearest:
                            best = a
                            nearest = steps
                        j = head[a]
                        while time_of[j] != time:
                            time_of[j] = time
                            distance[j] = steps
                            steps -= 1
                            j = head[parent[j]]
            parent[i] = best
            if best != _NONE:
                time_of[i] = time
                distance[i] = nearest + 1
                continue
            # No parent: the node becomes free, its children are orphans, its neighbours may reach it again
            for a in range(first[i], first[i + 1]):
                j = head[a]
                if of_sink[j] == sinks and parent[j] != _NONE:
                    if not is_active[j] and (rest[a] if sinks else rest[sister[a]]) > 0.0:
                        is_active[j] = True
                        place = begin + waiting
                        queue[place if place < n_nodes else place - n_nodes] = j
                        waiting += 1
                    if parent[j] >= 0 and head[parent[j]] == i:
                        parent[j] = _ORPHAN
                        place = front + left
                        orphans[place if place < n_nodes else place - n_nodes] = j
                        left += 1
    for i in range(n_nodes):
        is_cut[i] = parent[i] != _NONE and not of_sink[i]
    return flow


class Agreeing(NamedTuple):
    """Scores of the labels of tokens, of pairs of labels at the ends of ties, and of labels that all members of a group have."""

    own: Floats  # [V, K] -inf where a label is impossible
    source: NDArray[np.int64]  # [E]
    target: NDArray[np.int64]  # [E]
    kind: NDArray[np.int64]  # [E]
    tables: Floats  # [*, K, K] of each kind
    members: NDArray[np.int64]  # [M]
    group_starts: NDArray[np.int64]  # [G + 1]
    rewards: Floats  # [G, K] >= 0


@kernel
def begin(graph, component, n_components):
    """Labels to begin with (int64[2, V]): the best label of each token by itself; and for each component (of int64[V]) in which
    that scores more, the best label for all its tokens. Where ties are strong, expansions from the former may end far away."""
    own, source, target, kind, tables, members, group_starts, rewards = graph
    n_tokens, n_labels = own.shape
    labels = np.zeros(n_tokens, dtype=np.int64)
    totals = np.zeros((n_components, n_labels + 1))
    for v in range(n_tokens):
        for k in range(n_labels):
            # Scores of each label for a whole component, and in the last column of the best single labels
            totals[component[v], k] += own[v, k]
            if own[v, k] > own[v, labels[v]]:
                labels[v] = k
        totals[component[v], n_labels] += own[v, labels[v]]
    for e in range(len(source)):
        c = component[source[e]]
        table = tables[kind[e]]
        for k in range(n_labels):
            totals[c, k] += table[k, k]
        totals[c, n_labels] += table[labels[source[e]], labels[target[e]]]
    for g in range(len(group_starts) - 1):
        of_group = members[group_starts[g] : group_starts[g + 1]]
        c = component[of_group[0]]
        shared = labels[of_group[0]]
        for k in range(n_labels):
            totals[c, k] += rewards[g, k]
        if (labels[of_group] == shared).all():
            totals[c, n_labels] += rewards[g, shared]
    both = np.empty((2, n_tokens), dtype=np.int64)
    for v in range(n_tokens):
        best = np.argmax(totals[component[v]])
        is_better = best < n_labels and totals[component[v], best] > totals[component[v], n_labels]
        both[0, v] = labels[v]
        both[1, v] = best if is_better else labels[v]
    return both


@kernel
def expand(graph, labels, most_rounds, exact):
    """Improve labels (int64[V], possible ones, overwritten) by expansions of one label after the other.

    A round expands the labels whose expansions helped in the round before. When none helps any more, rounds expand more labels
    again, and at last all of them (the order of GCO, by Veksler and Delong).

    most_rounds (int): Number of rounds at most.
    exact (bool): Whether one expansion of label 1 is enough: there are two labels, and the tokens that may have label 0 have it.
    RETURNS (int, bool): Number of rounds, and whether the last expansion of each label found nothing better.
    """
    own, source, target, kind, tables, members, group_starts, rewards = graph
    n_tokens, n_labels = own.shape
    n_ties = len(source)
    n_groups = len(group_starts) - 1
    n_nodes = n_tokens + 2 * n_groups
    tails = np.concatenate((source, np.empty(2 * len(members), dtype=np.int64)))
    heads = np.concatenate((target, np.empty(2 * len(members), dtype=np.int64)))
    for g in range(n_groups):
        for m in range(group_starts[g], group_starts[g + 1]):
            for side in range(2):
                tails[n_ties + 2 * m + side] = n_tokens + 2 * g + side
                heads[n_ties + 2 * m + side] = members[m]
    arcs, places = lay_out(tails, heads, n_nodes)
    rest = np.empty(2 * len(tails))
    ends = np.empty(n_nodes)
    takes = np.empty(n_nodes, dtype=np.bool_)
    is_asked = np.empty(n_tokens, dtype=np.bool_)
    # labels, and how many of them the present rounds are about
    order = np.arange(n_labels)
    sizes = [n_labels]
    rounds = 0
    if exact:
        order = np.ones(1, dtype=np.int64)
        sizes = [1]
    while rounds < most_rounds and len(sizes):
        rounds += 1
        helped = 0
        size = sizes[-1]
        while helped < size:
            label = order[helped]
            rest[:] = 0.0
            ends[n_tokens:] = 0.0
            asked = 0
            for v in range(n_tokens):
                # The costs of the cut, see above: own scores, ties with one or two asked ends, groups
                is_asked[v] = labels[v] != label and own[v, label] > -np.inf
                ends[v] = own[v, label] - own[v, labels[v]] if is_asked[v] else 0.0
                asked += is_asked[v]
            for e in range(n_ties):
                u = source[e]
                v = target[e]
                table = tables[kind[e]]
                i = labels[u]
                j = labels[v]
                if is_asked[u]:
                    ends[u] += table[label, j] - table[i, j]
                    if is_asked[v]:
                        ends[v] += table[label, label] - table[label, j]
                        rest[arcs.sister[places[e]]] = max(
                            0.0, table[i, j] + table[label, label] - table[i, label] - table[label, j]
                        )
                elif is_asked[v]:
                    ends[v] += table[i, label] - table[i, j]
            for g in range(n_groups):
                begin = group_starts[g]
                end = group_starts[g + 1]
                may_take = True
                may_keep = True
                shared = labels[members[begin]]
                for m in range(begin, end):
                    v = members[m]
                    may_take &= is_asked[v] or labels[v] == label
                    may_keep &= labels[v] == shared
                if shared == label and may_keep:
                    continue
                for side in range(2):
                    reward = rewards[g, shared if side else label]
                    if not (may_keep if side else may_take) or reward <= 0.0:
                        continue
                    ends[n_tokens + 2 * g + side] = -reward if side else reward
                    for m in range(begin, end):
                        if is_asked[members[m]]:
                            place = places[n_ties + 2 * m + side]
                            rest[arcs.sister[place] if side else place] = reward
            takes[:] = False
            if asked:
                minimal_cut(arcs, rest, ends, takes)
            if _gain(graph, labels, takes, label) > _MORE:
                for v in range(n_tokens):
                    if takes[v]:
                        labels[v] = label
                helped += 1
            else:
                # Labels that did not help go to the end of the order
                size -= 1
                order[helped] = order[size]
                order[size] = label
        if exact:
            return rounds, True
        if not helped:
            sizes.pop()
        elif helped < sizes[-1] // 2:
            sizes.append(helped)
    return rounds, not len(sizes)


@helper
def _gain(graph, labels, takes, label):
    """How much better a labelling is after some tokens (bool[N]) have taken a label."""
    own, source, target, kind, tables, members, group_starts, rewards = graph
    gain = 0.0
    for v in range(len(own)):
        if takes[v]:
            gain += own[v, label] - own[v, labels[v]]
    for e in range(len(source)):
        u = source[e]
        v = target[e]
        if takes[u] or takes[v]:
            i = labels[u]
            j = labels[v]
            gain += tables[kind[e], label if takes[u] else i, label if takes[v] else j] - tables[kind[e], i, j]
    for g in range(len(group_starts) - 1):
        before = labels[members[group_starts[g]]]
        after = -1
        for m in range(group_starts[g], group_starts[g + 1]):
            v = members[m]
            now = label if takes[v] else labels[v]
            if m == group_starts[g]:
                after = now
            before = before if labels[v] == before else -1
            after = after if now == after else -1
        gain += (rewards[g, after] if after >= 0 else 0.0) - (rewards[g, before] if before >= 0 else 0.0)
    return gain
