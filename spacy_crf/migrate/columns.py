"""Columns of words, as CRF++, Wapiti and the functions of CRFsuite's users read them, from the attributes of tokens."""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from spacy.tokens import Doc

from ..errors import Errors, known_names

ATTRIBUTES = (
    "orth",
    "lower",
    "norm",
    "shape",
    "prefix",
    "suffix",
    "tag",
    "pos",
    "lemma",
    "dep",
    "morph",
    "ent_type",
    "ent_iob",
)


class Columns:
    """What stands for a word.

    names (Sequence[str]): Attributes of tokens, or extensions as ``ext:NAME``.
    RAISES (ValueError): CRF860 for one that is not known.
    """

    def __init__(self, names: Sequence[str]):
        for name in names:
            if name not in ATTRIBUTES and not name.startswith("ext:"):
                raise ValueError(Errors.CRF860.format(column=name, known=known_names([*ATTRIBUTES, "ext:NAME"], name)))
        self.names = list(names)
        self._getters = [_getter(name) for name in names]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, doc: Doc) -> list[list[list[str]]]:
        """The columns of each sequence of a Doc, which is cut where the component cuts it: at known sentence starts."""
        columns = [[get(token) for token in doc] for get in self._getters]
        bounds = [0, *(token.i for token in doc if token.i and token.is_sent_start), len(doc)] if len(doc) else []
        return [[column[b:e] for column in columns] for b, e in pairwise(bounds)]


def _getter(name: str):
    if name == "orth":
        return attrgetter("text")
    if name.startswith("ext:"):
        return lambda token: str(token._.get(name[4:]))
    if name == "morph":
        return lambda token: str(token.morph)
    return attrgetter(f"{name}_")


def set_columns(doc: Doc, names: Sequence[str], values: Sequence[Sequence[str]]) -> None:
    """Annotates a Doc with columns of a file; the words, and what follows from them, are there."""
    for name, column in zip(names, values):
        for token, value in zip(doc, column):
            if name.startswith("ext:"):
                token._.set(name[4:], value)
            elif name == "morph":
                token.set_morph(value)
            elif name in ("norm", "tag", "pos", "lemma", "dep", "ent_type"):
                setattr(token, f"{name}_", value)
