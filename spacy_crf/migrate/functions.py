"""Columns of words from the attributes of tokens, and users' functions that make features of such columns.

Loading a pipeline must not run code that its config names by a path. So an imported model names a registered function, and a file
beside the model, which users read and give to commands with ``--code``, registers the function.
"""

import importlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from spacy.tokens import Doc
from spacy.util import registry

from ..errors import Errors, known_names
from ..whole_files import write_whole

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
    """Reads the columns of a word from a token.

    names (Sequence[str]): Attributes of tokens, or extensions as ``ext:NAME``.
    RAISES (ValueError): CRF868 for an unknown attribute.
    """

    def __init__(self, names: Sequence[str]):
        for name in names:
            if name not in ATTRIBUTES and not name.startswith("ext:"):
                raise ValueError(
                    Errors.CRF868.format(
                        option="columns", value=name, known=known_names([*ATTRIBUTES, "ext:NAME"], name)
                    )
                )
        self.names = list(names)
        self._getters = [_getter(name) for name in names]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, doc: Doc) -> list[list[list[str]]]:
        """The columns of each sequence of a Doc. Sequences begin at known sentence starts, as those of the component do."""
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
    """Annotate a Doc with the columns of a file, except for columns that follow from the words."""
    for name, column in zip(names, values):
        for token, value in zip(doc, column):
            if name.startswith("ext:"):
                token._.set(name[4:], value)
            elif name == "morph":
                token.set_morph(value)
            elif name in ("norm", "tag", "pos", "lemma", "dep", "ent_type"):
                setattr(token, f"{name}_", value)


FILE_NAME = "functions.py"
_FILE = '''"""Registers the function that makes the features of the model in this folder: give it to commands with --code, or run
it before spacy.load."""

from {module} import {function}

from spacy_crf.migrate.functions import register_features

register_features("{name}", {function}, columns={columns})
'''


class WordFunction:
    """Makes a function of Docs of a function of sentences, such as users of sklearn-crfsuite write.

    function (Callable): Takes a list of words, or of tuples if there are several columns; returns a dict of features for each.
    columns (Sequence[str]): The columns of a word: attributes of tokens, or extensions as ``ext:NAME``.
    """

    def __init__(self, function: Callable[[list], list], columns: Sequence[str]):
        self._function = function
        self._columns = Columns(columns)

    def __call__(self, doc: Doc) -> list[Any]:
        rows: list[Any] = []
        for sequence in self._columns.read(doc):
            words = sequence[0] if len(sequence) == 1 else [*zip(*sequence)]
            found = list(self._function(list(words)))
            if len(found) != len(words):
                message = Errors.CRF110.format(
                    name=self._function, got=len(found), expected=len(words), start=doc.text[:40]
                )
                raise ValueError(message)
            rows.extend(found)
        return rows


def register_features(name: str, function: Callable, *, columns: Sequence[str] = ()) -> None:
    """Register a function, so that pipelines imported with it can be loaded.

    name (str): Name of the function in their configs.
    columns (Sequence[str]): The function takes a list of words, or of tuples of these columns; without columns it takes a Doc.
    """
    source = WordFunction(function, columns) if columns else function
    registry.misc.register(name, func=lambda: source)


def find_function(path: str) -> tuple[str, Callable]:
    """Find the function of a path such as ``usaddress:tokens2features``.

    RETURNS (tuple[str, Callable]): The name to register, and the function.
    RAISES (ValueError): CRF859 if there is no such function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(Errors.CRF859.format(path=path, reason=error)) from error
    if not callable(function) or not name.isidentifier():
        raise ValueError(Errors.CRF859.format(path=path, reason="it is not callable"))
    return f"{module}.{name}", function


def write_registration(folder: Path, path: str, columns: Sequence[str]) -> Path:
    """Write the file that registers the function of a path. RETURNS (Path): The file."""
    module, _, function = path.partition(":")
    text = _FILE.format(module=module, function=function, name=f"{module}.{function}", columns=list(columns))
    target = folder / FILE_NAME
    write_whole(target, text.encode("utf8"))
    return target
