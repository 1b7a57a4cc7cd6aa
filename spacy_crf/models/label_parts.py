"""The parts of tags. Tags with a common part share the weights of that part, so rare tags profit from frequent ones."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors, shown
from ..kernels.label_parts import spread_parts, sum_parts
from ..types import Floats

LabelParts = Union[None, str, Callable[[str], list[str]]]


NAMED: dict[str, Callable[[str], list[str]]] = {
    "morph": lambda tag: tag.split("|"),  # the part of speech, and each Key=Value, of "Number=Sing|POS=NOUN"
    "scheme": lambda tag: tag.split("-", 1),  # boundary and label, of "B-PER"
}


class TagParts(NamedTuple):
    """Columns of scores: one for each of S tags, and one for each of their parts. The order is that of first occurrence, tag by
    tag, so the columns of new tags come last."""

    names: list[list[str]]  # [S] parts of each tag
    tag_columns: NDArray[np.int64]  # [S]
    starts: NDArray[np.int64]  # [S + 1] the parts of a tag are columns[starts[y]:starts[y + 1]]
    columns: NDArray[np.int64]  # [N]
    n_columns: int

    @classmethod
    def of(cls, tags: Sequence[str], label_parts: Union[str, Callable[[str], list[str]]]) -> "TagParts":
        """Make the columns of some tags.

        tags (Sequence[str]): The tags.
        label_parts (Union[str, Callable]): A name of `NAMED`, or a function from a tag to its parts.
        RAISES (ValueError): CRF327 if a function returns anything but texts.
        """
        take_apart = NAMED[label_parts] if isinstance(label_parts, str) else label_parts
        names = []
        tag_columns = []
        columns = []
        starts = [0]
        known = {}
        for tag in tags:
            found: Any = take_apart(tag)
            if not isinstance(found, (list, tuple)) or not all(isinstance(part, str) for part in found):
                raise ValueError(Errors.CRF327.format(tag=tag, found=shown(found)))
            names.append(list(dict.fromkeys(found)))
            tag_columns.append(len(tag_columns) + len(known))
            for part in names[-1]:
                known.setdefault(part, len(tag_columns) + len(known))
            columns += [known[part] for part in names[-1]]
            starts.append(len(columns))
        arrays = (np.array(values, dtype=np.int64) for values in (tag_columns, starts, columns))
        return cls(names, *arrays, n_columns=len(tag_columns) + len(known))

    def allowed(self, tags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Columns that the allowed tags (bool[T, S]) use: bool[T, C]."""
        member = np.zeros((len(self.tag_columns), self.n_columns), dtype=np.float32)
        member[np.arange(len(member)), self.tag_columns] = 1.0
        member[np.repeat(np.arange(len(member)), np.diff(self.starts)), self.columns] = 1.0
        return tags.astype(np.float32) @ member > 0.0

    def sums(self, scores: Floats) -> Floats:
        """Scores of tags (float64[T, S]), as sums of the scores of columns (float64[T, C])."""
        out = np.empty((len(scores), len(self.tag_columns)))
        sum_parts(scores, self.tag_columns, self.starts, self.columns, out)
        return out

    def spread(self, derivative: Floats) -> Floats:
        """Turn a derivative with respect to tags (float64[T, S]) into one with respect to columns (float64[T, C])."""
        out = np.zeros((len(derivative), self.n_columns))
        spread_parts(derivative, self.tag_columns, self.starts, self.columns, out)
        return out
