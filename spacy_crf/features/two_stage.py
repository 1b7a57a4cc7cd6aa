"""What a first labelling of a Doc shows of its words: attributes of tokens for the templates of a second one (Krishnan & Manning
2006, An Effective Two-Stage Model for Exploiting Non-Local Dependencies in Named Entity Recognition).

They say which label a token would have if its Doc were consistent. A word is compared by its lower case.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.hashing import ABSENT
from ..kernels.two_stage import FirstLabels, majorities
from ..schemes import Segments

MAJORITIES = ("token_majority", "entity_majority", "superentity_majority")
STAGE_ATTRIBUTES = [f"stage:{name}" for name in MAJORITIES]
_OUTSIDE = np.uint64(0)  # the empty string, as with ent_type


class Labelling(NamedTuple):
    """The spans that a first stage finds in a batch of Docs, in their order."""

    spans: Segments
    labels: NDArray[np.uint64]  # of each label, what the StringStore calls it


Labeller = Callable[[list], Labelling]  # of a `DocBatch`


def read_stage(
    names: list[str],
    labelling: Labelling,
    lower: NDArray[np.uint64],
    doc_starts: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Some of `STAGE_ATTRIBUTES` of the tokens of a batch.

    lower (uint64[T]): The words.
    doc_starts (int64[D + 1]), starts (int64[B + 1]): Where Docs and sequences begin.
    RETURNS (uint64[T, len(names)])
    """
    begins = np.zeros(len(lower) + 1, dtype=np.bool_)
    begins[starts] = True
    entities = any(name in names for name in STAGE_ATTRIBUTES[1:])
    spans = (np.ascontiguousarray(column, dtype=np.int64) for column in labelling.spans)  # one type, compiled once
    first = FirstLabels(lower, begins, *spans)
    values = majorities(first, doc_starts, len(labelling.labels), entities)
    hashes = np.append(labelling.labels, [_OUTSIDE, ABSENT])  # NO_LABEL, -1, is the last
    return hashes[values[:, [STAGE_ATTRIBUTES.index(name) for name in names]]]
