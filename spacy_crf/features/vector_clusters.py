"""Clusters of word vectors: k-means that splits clusters in two until there are enough, so that their tree means something.

It is Steinbach, Karypis & Kumar 2000 ("bisecting k-means"): always the cluster with the largest sum of squared distances is
split, by k-means with two centres. These begin on either side of the mean, along the direction in which the cluster is widest:
nothing is drawn, so that the same vectors give the same clusters.
"""

import heapq
from collections.abc import Callable
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.vectors import Mode, Vectors

from ..errors import Errors
from ..types import Floats
from .clusters import MOST_CLUSTERS, WordClusters

_ITERATIONS = 20  # of k-means, and of the power method


def cluster_vectors(
    vectors: Vectors, n: int, source: str, *, on_split: Callable[[], None] = lambda: None
) -> WordClusters:
    """The words of a table of vectors in n clusters, by the direction of their vectors. Words without a vector, or with one of
    zeros, are in none.

    source (str): For messages.
    on_split (Callable[[], None]): Called after each of the n - 1 splits.
    RAISES (ValueError): CRF948 if the table has no words, CRF948 if there are fewer different vectors than clusters.
    """
    if vectors.mode == Mode.floret:
        reason = "they are of parts of words (floret), and have no list of words. Give vectors of words"
        raise ValueError(Errors.CRF948.format(what="clusters", source=source, reason=reason))
    keys = np.fromiter(vectors.key2row, dtype=np.uint64, count=len(vectors.key2row))
    rows = np.fromiter(vectors.key2row.values(), dtype=np.int64, count=len(keys))
    keys, rows = keys[rows >= 0], rows[rows >= 0]
    data = np.asarray(vectors.data.get() if hasattr(vectors.data, "get") else vectors.data, dtype=np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", data, data))
    used = np.unique(rows[norms[rows] > 0]) if len(rows) else rows
    if not len(used):
        reason = "there are none" if not len(keys) else "all of them are zero"
        raise ValueError(Errors.CRF948.format(what="clusters", source=source, reason=reason))
    paths, of_row = split(data[used] / norms[used, np.newaxis], n, on_split)
    if len(paths) < n or n > MOST_CLUSTERS:
        raise ValueError(Errors.CRF948.format(what=f"{n} clusters", source=source, reason=f"it has {len(paths)} words"))
    number = np.full(len(data), -1, dtype=np.int64)
    number[used] = of_row
    known = number[rows] >= 0
    return WordClusters.of_hashes(keys[known], number[rows[known]], paths)


def split(points: Floats, n: int, on_split: Callable[[], None] = lambda: None) -> tuple[list[str], NDArray[np.int64]]:
    """Splits points (float32[N, D]) until there are n clusters, or no two that differ are left in one.

    RETURNS (list[str], int64[N]): The path of each cluster, and the cluster of each point.
    """
    # By the sum of squared distances, the largest first, then by the path
    open_clusters = [(-_spread(points), "", np.arange(len(points)))]
    closed: list[tuple[str, NDArray[np.int64]]] = []
    while open_clusters and len(open_clusters) + len(closed) < n:
        _, path, members = heapq.heappop(open_clusters)
        side = _halves(points[members])
        if side is None:
            closed.append((path, members))
            continue
        for bit, part in (("0", members[~side]), ("1", members[side])):
            heapq.heappush(open_clusters, (-_spread(points[part]), path + bit, part))
        on_split()
    leaves = sorted([*closed, *((path, members) for _, path, members in open_clusters)], key=lambda leaf: leaf[0])
    numbers = np.empty(len(points), dtype=np.int64)
    for number, (_, members) in enumerate(leaves):
        numbers[members] = number
    return [path for path, _ in leaves], numbers


def _spread(points: Floats) -> float:
    """Sum of squared distances from the mean."""
    return float(np.square(points - points.mean(axis=0)).sum(dtype=np.float64))


def _halves(points: Floats) -> Optional[NDArray[np.bool_]]:
    """Which points (float32[N, D]) are on the second side, by k-means; None if all are the same."""
    if (points == points[0]).all():
        return None
    centred = points - points.mean(axis=0)
    direction = centred[np.square(centred).sum(axis=1).argmax()]
    for _ in range(_ITERATIONS):
        wider = (centred @ direction) @ centred
        length = np.linalg.norm(wider)
        if not length:
            break
        direction = wider / length
    side = centred @ direction > 0
    for _ in range(_ITERATIONS):
        if side.all() or not side.any():
            return None
        one, other = centred[~side].mean(axis=0), centred[side].mean(axis=0)
        # |x - other|^2 < |x - one|^2
        moved = centred @ (other - one) > (other @ other - one @ one) / 2
        if (moved == side).all():
            break
        side = moved
    return side if side.any() and not side.all() else None
