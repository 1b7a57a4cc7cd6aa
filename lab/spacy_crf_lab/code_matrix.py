"""Error-correcting output codes (Dietterich & Bakiri 1995): each tag has a row of bits. A wrong bit does no harm as long as the
row of the right tag is the nearest one, so rows should differ in many bits. Columns that are equal, or complements of each
other, would make the same mistakes.
"""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spacy_crf.errors import shown
from spacy_crf.types import Floats

from .errors import Errors

Codes = Union[str, Callable[[list[str]], ArrayLike]]

KINDS = ("random", "one_vs_rest", "parts", "bounded")
# random codes to choose the best one from
_DRAWS = 1000
_DRAWS_OF_LENGTH = 50
_FEW = 10  # tags for which all columns are listed
# "bounded": the share of wrong bits, and the bound of the share of wrong tags
_WRONG_BITS = 0.05
_WRONG_TAGS = 0.01


class Code(NamedTuple):
    """Bits of tags."""

    matrix: NDArray[np.uint8]  # [S, C]
    names: list[str]  # [C] of the bits


class Coder(NamedTuple):
    """Makes codes.

    kind (Union[str, Callable]): One of `KINDS`, or a function from the tags to their bits.
    bits (int): Most bits of codes that are drawn.
    seed (int): Of the drawn bits.
    """

    kind: Codes
    bits: int
    seed: int

    def code(self, tags: Sequence[str], labels: Sequence[str], known: Optional[Code] = None) -> Code:
        """The code of some tags.

        labels (List[str]): The label of each tag. known (Code): Code of the first tags, which is to be continued.
        RAISES (ValueError): CRF636 for codes that do not tell tags apart; CRF637 for codes that cannot be continued.
        """
        if known is not None and len(known.matrix) == 1:  # the bits of a single tag say nothing
            known = None
        if len(tags) == 1:
            return Code(np.zeros((1, 1), dtype=np.uint8), ["1"])
        if self.kind in ("random", "bounded"):
            found = self._drawn(len(tags), known)
        elif self.kind == "one_vs_rest":
            found = _one_vs_rest(tags)
        elif self.kind == "parts":
            found = _parts(tags, labels, known)
        else:
            found = self._given(tags)
        _check_rows(found.matrix, tags)
        if known is not None:
            rows, columns = known.matrix.shape
            if not np.array_equal(found.matrix[:rows, :columns], known.matrix):
                raise ValueError(Errors.CRF637.format(codes=shown(self.kind), known=rows, tags=len(tags)))
        return found

    def _drawn(self, n_tags: int, known: Optional[Code]) -> Code:
        n_columns = 2 ** min(n_tags - 1, 62) - 1  # that are neither equal nor complementary nor constant
        random = np.random.default_rng([self.seed, n_tags])
        most = min(self.bits, n_columns)
        if self.kind == "bounded":
            # Fewer bits than log2(S) cannot tell S tags apart
            lengths = range(min(most, max(1, math.ceil(math.log2(n_tags)))), most + 1)
            drawn = (_best(n_tags, n_bits, _DRAWS_OF_LENGTH, random) for n_bits in lengths)
            matrix = next((found for found in drawn if wrong_tags(found) <= _WRONG_TAGS), None)
            if matrix is None:
                raise ValueError(
                    Errors.CRF636.format(
                        reason=f"no bounded code with up to {most} bits keeps {n_tags} tags far enough apart",
                        do="Raise bits, or set codes = 'random'",
                    )
                )
        elif known is not None:
            matrix = _continued(known.matrix, n_tags, most, random)
        else:
            matrix = _best(n_tags, most, _DRAWS, random)
        return Code(matrix, [str(n + 1) for n in range(matrix.shape[1])])

    def _given(self, tags: Sequence[str]) -> Code:
        given: Any = self.kind
        matrix = np.asarray(given(list(tags)))
        must = f"one row of bits for each of {len(tags)} tags"
        do = f"Return {must}"
        if matrix.ndim != 2 or len(matrix) != len(tags) or not matrix.shape[1] or not np.isin(matrix, (0, 1)).all():
            raise ValueError(Errors.CRF636.format(reason=f"codes returns {shown(matrix.tolist())}", do=do))
        matrix = matrix.astype(np.uint8)
        # With the first tag's bits as 0, complementary columns are equal
        signs = matrix ^ matrix[0]
        constant = np.flatnonzero(~signs.any(axis=0))
        if len(constant):
            raise ValueError(Errors.CRF636.format(reason=f"bit {constant[0]} is the same for all tags", do="Remove it"))
        equal = np.argwhere(np.triu((signs.T[:, np.newaxis] == signs.T).all(axis=2), 1))
        if len(equal):
            reason = "bits {} and {} of the tags are equal or complements".format(*equal[0])
            raise ValueError(Errors.CRF636.format(reason=reason, do="Remove one of them"))
        return Code(matrix, [str(n + 1) for n in range(matrix.shape[1])])


def distances(matrix: NDArray[np.uint8]) -> Floats:
    """Number of different bits of each pair of rows: float32[S, S]."""
    # The product of two rows of signs is C - 2 · distance
    signs = 2.0 * matrix.astype(np.float32) - 1.0
    return (matrix.shape[1] - signs @ signs.T) / 2.0


def wrong_tags(matrix: NDArray[np.uint8]) -> float:
    """Bound of the share of wrong tags, by the nearest row, if each bit is wrong at 5 % of the tokens, independently of others:

    1 / S · sum_y sum_(y' != y) (2 · sqrt(p · (1 - p))) ^ distance(y, y')

    by the union of the Bhattacharyya bounds of all pairs of rows.
    """
    base = 2.0 * math.sqrt(_WRONG_BITS * (1.0 - _WRONG_BITS))
    return float((base ** distances(matrix)).sum() / len(matrix)) - 1.0


def _best(n_tags: int, n_bits: int, n_draws: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """The code, of some random ones, with the largest distance of the nearest rows; of equals that with the least bound."""
    found = np.zeros((n_tags, n_bits), dtype=np.uint8)
    best = (-1.0, 0.0)
    # A row is not compared with itself
    off = n_bits * np.eye(n_tags, dtype=np.float32)
    for _ in range(n_draws):
        matrix = _draw(n_tags, n_bits, random)
        nearest = float((distances(matrix) + off).min())
        if nearest >= best[0] and (nearest, -wrong_tags(matrix)) > best:
            found = matrix
            best = (nearest, -wrong_tags(matrix))
    return found


def _draw(n_tags: int, n_bits: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Random bits; the first tag has only zeros, so that no columns are complements. Columns are not equal or constant."""
    matrix = np.zeros((n_tags, n_bits), dtype=np.uint8)
    while True:
        if n_tags <= _FEW:
            columns = 1 + random.permutation(2 ** (n_tags - 1) - 1)[:n_bits]
            matrix[1:] = columns >> np.arange(n_tags - 1)[:, np.newaxis] & 1
        else:
            matrix[1:] = random.integers(2, size=(n_tags - 1, n_bits))
        columns = {column.tobytes() for column in np.ascontiguousarray(matrix.T)}
        if len(columns) == n_bits and matrix.any(axis=0).all():
            return matrix


def _continued(known: NDArray[np.uint8], n_tags: int, n_bits: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """A code with further rows, and with further columns where the known tags have all there are."""
    matrix = known
    for _ in range(n_tags - len(known)):
        # The row that is farthest from its nearest neighbour, among random ones
        rows = random.integers(2, size=(_DRAWS, known.shape[1]), dtype=np.uint8)
        nearest = (rows[:, np.newaxis] != matrix).sum(axis=2).min(axis=1)
        matrix = np.vstack([matrix, rows[nearest.argmax()]])
    while matrix.shape[1] < n_bits:
        new = _draw(n_tags, 1, random)
        if not ((matrix ^ matrix[0]) == new).all(axis=0).any():
            matrix = np.hstack([matrix, new])
    return matrix


def _one_vs_rest(tags: Sequence[str]) -> Code:
    """A bit for each tag. The bits of two tags would be complements: one suffices."""
    order = [1, 0, *range(2, len(tags))] if len(tags) > 2 else [1]
    return Code(np.eye(len(tags), dtype=np.uint8)[:, order], [tags[n] for n in order])


def parts_of(tag: str, label: str) -> list[str]:
    """The boundary of a tag, and the parts of its label between the signs |: ``B-``, ``NOUN`` and ``Number=Sing`` of
    "B-NOUN|Number=Sing"."""
    boundary = tag.removesuffix(label)
    return [*([boundary] if boundary and boundary != tag else []), *label.split("|")]


def _parts(tags: Sequence[str], labels: Sequence[str], known: Optional[Code]) -> Code:
    """A bit for each part, in the order of first occurrence, unless an earlier bit says the same."""
    parts = [parts_of(*both) for both in zip(tags, labels)]
    kept: list[str] = [] if known is None else known.names
    columns = []
    found = []
    seen = set()
    for name in dict.fromkeys(chain(kept, *parts)):
        column = np.array([name in of_tag for of_tag in parts], dtype=np.uint8)
        same = (column ^ column[0]).tobytes()
        if name in kept or (same not in seen and column.min() < column.max()):
            columns.append(column)
            found.append(name)
            seen.add(same)
    return Code(np.column_stack(columns), found)


def _check_rows(matrix: NDArray[np.uint8], tags: Sequence[str]) -> None:
    """RAISES (ValueError): CRF636 for tags with equal rows."""
    seen: dict[bytes, str] = {}
    for row, tag in zip(np.ascontiguousarray(matrix), tags):
        other = seen.setdefault(row.tobytes(), tag)
        if other != tag:
            raise ValueError(
                Errors.CRF636.format(
                    reason=f"the tags {other} and {tag} have the same {matrix.shape[1]} bits",
                    do="Raise bits, or take other codes",
                )
            )
