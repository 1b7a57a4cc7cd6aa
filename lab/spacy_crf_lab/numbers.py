"""Numbers of tokens, sentences and texts, which custom extensions hold: ``token._.NAME``, ``sent._.NAME``, ``doc._.NAME``."""

from collections.abc import Iterable, Sequence
from typing import Union

import numpy as np
from spacy.tokens import Doc, Span, Token

from spacy_crf import checks
from spacy_crf.errors import shown
from spacy_crf.types import Floats

from .errors import Errors

HOLDERS: dict[str, type] = {"token": Token, "sent": Span, "doc": Doc}


def register(unit: str, name: str) -> None:
    """Register an extension, None by default, unless it is registered already."""
    if not HOLDERS[unit].has_extension(name):
        HOLDERS[unit].set_extension(name, default=None)


def parts_of(doc: Doc, unit: str) -> Sequence[Union[Doc, Span, Token]]:
    """The tokens or sentences of a Doc, or the Doc itself: what has a number each."""
    if unit == "doc":
        return [doc]
    return list(doc.sents) if unit == "sent" else list(doc)


def numbers_of(docs: Iterable[Doc], unit: str, name: str) -> Floats:
    """The number of each part of Docs: float64[N], NaN for None, which says that the number is not known.

    RAISES (ValueError): CRF640 for values that are no numbers from -1e100 to 1e100.
    """
    found = []
    for doc in docs:
        for part in parts_of(doc, unit):
            value = part._.get(name)
            if value is not None and not checks.is_number(value):
                raise ValueError(Errors.CRF640.format(unit=unit, name=name, value=shown(value), text=part.text[:40]))
            found.append(np.nan if value is None else float(value))
    return np.array(found)
