"""Functions of users that made the features of another program's model.

Loading a pipeline runs no code that its config names by a path. So an imported model names a registered function, and a file
beside it, which users read and give with ``--code``, registers that.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spacy.tokens import Doc
from spacy.util import registry

from ..errors import Errors
from ..whole_files import write_whole
from .columns import Columns

FILE_NAME = "functions.py"
_FILE = '''"""Registers the function that makes the features of the model in this folder: give it to commands with --code, or run
it before spacy.load."""

from {module} import {function}

from spacy_crf.migrate.functions import register_features

register_features("{name}", {function}, columns={columns})
'''


class WordFunction:
    """A function of the words of a sentence, as sklearn-crfsuite's users write them, as one of a Doc.

    function (Callable): From a list of words to a list of feature dicts, one for each; from a list of tuples where there are
        several columns.
    columns (Sequence[str]): What stands for a word: attributes of tokens, or extensions as ``ext:NAME``.
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
    """Makes a function known to pipelines that were imported with it.

    name (str): What their configs call it.
    columns (Sequence[str]): It takes a list of words, or of tuples of these columns; a Doc if there are none.
    """
    source = WordFunction(function, columns) if columns else function
    registry.misc.register(name, func=lambda: source)


def find_function(path: str) -> tuple[str, Callable]:
    """The function of a path such as ``usaddress:tokens2features``, and what to call it.

    RAISES (ValueError): CRF859 if there is none.
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
    """Writes the file that registers the function of a path."""
    module, _, function = path.partition(":")
    text = _FILE.format(module=module, function=function, name=f"{module}.{function}", columns=list(columns))
    target = folder / FILE_NAME
    write_whole(target, text.encode("utf8"))
    return target
