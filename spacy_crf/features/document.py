"""What the rest of a Doc shows of a word: attributes of tokens, read without a second pass.

A word whose case says nothing where it stands may stand elsewhere in the same text where it does. Where a sentence begins, case
says nothing: such tokens are evidence only where a word has no others. A word that a Doc has once has no value.
"""

import numpy as np
from numpy.typing import NDArray
from spacy.strings import hash_string

from ..kernels.document import FormColumns, document_values

DOCUMENT_ATTRIBUTES = ["doc:title_elsewhere", "doc:majority_shape", "doc:cased_form"]
READS = ["lower", "shape", "orth", "is_title", "capitals"]  # attributes of the lexeme

# Behind them a sentence begins, whether somebody has found it or not
_ENDS = np.array([hash_string(end) for end in (".", "!", "?", "…", ":", "\n", "\n\n")], dtype=np.uint64)


def read_document(
    names: list[str],
    forms: NDArray[np.uint64],
    doc_starts: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Some of `DOCUMENT_ATTRIBUTES` of the tokens of a batch.

    forms (uint64[T, 5]): What `READS` names.
    doc_starts (int64[D + 1]), starts (int64[B + 1]): Where Docs and sequences begin.
    RETURNS (uint64[T, len(names)])
    """
    columns = FormColumns(*np.ascontiguousarray(forms.T))
    begins = np.zeros(len(forms) + 1, dtype=np.bool_)
    begins[starts] = True
    begins[1:] |= np.isin(columns.orth, _ENDS)
    values = document_values(columns, doc_starts, begins)
    return values[:, [DOCUMENT_ATTRIBUTES.index(name) for name in names]]
