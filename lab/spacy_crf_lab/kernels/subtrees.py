"""Subtrees of dependency trees, and the kernel that counts those that two trees have in common (Collins & Duffy 2001).

The tree below a token is a list of its nodes, each before its children, which are in their order in the text: a hash of the
production of each node, and how many nodes of the list its own tree has. Nodes on the last level have no children in the list.
"""

import numpy as np

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.numerics import FIRST_HASH, mix


@kernel
def list_subtrees(heads, parts, relations, n_levels):
    """The trees below all tokens. The production of a token is its part of speech, with relation and part of each child.

    heads (int64[T], the token itself for roots), parts, relations (uint64[T])
    RETURNS: hashes (uint64[N]), sizes (float32[N]), starts (int64[T + 1])
    """
    n_tokens = len(heads)
    child_starts = np.zeros(n_tokens + 1, dtype=np.int64)
    starts = np.zeros(n_tokens + 1, dtype=np.int64)
    for t in range(n_tokens):
        child_starts[heads[t] + 1] += heads[t] != t
        # A token is a node in the trees of all tokens above it, within so many levels
        above = t
        for _ in range(n_levels):
            starts[above + 1] += 1
            if heads[above] == above:
                break
            above = heads[above]
    for t in range(n_tokens):
        child_starts[t + 1] += child_starts[t]
        starts[t + 1] += starts[t]
    children = np.empty(child_starts[-1], dtype=np.int64)
    behind = child_starts[:-1].copy()
    for t in range(n_tokens):
        if heads[t] != t:
            children[behind[heads[t]]] = t
            behind[heads[t]] += 1
    productions = np.empty(n_tokens, dtype=np.uint64)
    for t in range(n_tokens):
        hashed = mix(FIRST_HASH, parts[t])
        for c in range(child_starts[t], child_starts[t + 1]):
            hashed = mix(mix(hashed, relations[children[c]]), parts[children[c]])
        productions[t] = hashed
    hashes = np.empty(starts[-1], dtype=np.uint64)
    sizes = np.ones(starts[-1], dtype=np.float32)
    parents = np.empty(starts[-1], dtype=np.int64)
    waiting = np.empty((n_tokens + 1, 3), dtype=np.int64)  # token, level, and place of its parent
    for t in range(n_tokens):
        waiting[0] = np.array([t, 1, -1])
        n_waiting = 1
        place = starts[t]
        while n_waiting:
            # Depth first, so each node comes before its children, and these in their order
            n_waiting -= 1
            token, level, parent = waiting[n_waiting]
            hashes[place] = productions[token]
            parents[place] = parent
            if level < n_levels:
                for c in range(child_starts[token + 1] - 1, child_starts[token] - 1, -1):
                    waiting[n_waiting, 0] = children[c]
                    waiting[n_waiting, 1] = level + 1
                    waiting[n_waiting, 2] = place
                    n_waiting += 1
            place += 1
        for node in range(place - 1, starts[t], -1):
            # Children come behind their parents: their sizes are complete
            sizes[parents[node]] += sizes[node]
    return hashes, sizes, starts


@helper
def common(hashes, sizes, i, others, other_sizes, j, decay, table):
    """C(i, j): common subtrees that begin at two nodes with the same production, each times decay^(its productions).

    C(i, j) = 0 if the productions differ, else decay * product over the pairs of children of 1 + C(child of i, child of j)
    """
    size = np.int64(sizes[i])
    other_size = np.int64(other_sizes[j])
    if size == 1 or other_size == 1:
        return decay
    # Children have larger numbers than parents, so their entries are filled in first
    for a in range(size - 1, -1, -1):
        for b in range(other_size - 1, -1, -1):
            table[a, b] = 0.0
            if hashes[i + a] == others[j + b]:
                value = decay
                end = a + np.int64(sizes[i + a])
                other_end = b + np.int64(other_sizes[j + b])
                child = a + 1
                other = b + 1
                while child < end and other < other_end:
                    value *= 1.0 + table[child, other]
                    child += np.int64(sizes[i + child])
                    other += np.int64(other_sizes[j + other])
                table[a, b] = value
    return table[0, 0]


@helper
def table_for(sizes, other_sizes):
    """Room for `common` of any two nodes."""
    return np.empty((np.int64(max(1.0, sizes.max())), np.int64(max(1.0, other_sizes.max()))))


@kernel
def add_subtrees(rows, tokens, begin, basis, postings, decay, products):
    """products[t, m] += sum of C(i, j) over the nodes i of the tree of token begin + t and j of the tree of basis token m

    rows (int32[N], -1 for productions that the basis does not have): Productions of the nodes of tokens.
    tokens, basis (hashes, sizes, starts): Trees. products (float64[N, M])
    postings (starts (int64[F + 1]), tokens (int32[P]), nodes (int64[P])): Nodes of the basis with each production.
    """
    hashes, sizes, starts = tokens
    others, other_sizes, _ = basis
    posting_starts, posting_tokens, posting_nodes = postings
    if not len(others) or not len(hashes):
        return
    table = table_for(sizes, other_sizes)
    for t in range(len(products)):
        for i in range(starts[begin + t], starts[begin + t + 1]):
            if rows[i] >= 0:
                for p in range(posting_starts[rows[i]], posting_starts[rows[i] + 1]):
                    found = common(hashes, sizes, i, others, other_sizes, posting_nodes[p], decay, table)
                    products[t, posting_tokens[p]] += found


@kernel
def subtree_squares(hashes, sizes, starts, decay):
    """The sum of C(i, j) over all pairs of nodes of each tree: float64[T]."""
    squares = np.zeros(len(starts) - 1)
    if not len(hashes):
        return squares
    table = table_for(sizes, sizes)
    for t in range(len(squares)):
        for i in range(starts[t], starts[t + 1]):
            for j in range(starts[t], starts[t + 1]):
                if hashes[i] == hashes[j]:
                    squares[t] += common(hashes, sizes, i, hashes, sizes, j, decay, table)
    return squares
