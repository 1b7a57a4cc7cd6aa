"""Templates in place of the names of a CRFsuite model, where a function of a word makes them: ``next:suffix:ing`` is the feature
``suffix:ing`` of the next word. Names of features are as python-crfsuite makes them from nested dicts.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import Errors
from ..features.items import WordItems, WordSource
from ..features.templates import WIDEST_OFFSET
from .foreign import ForeignModel
from .functions import SOURCE, WORDS
from .native import NOTHING, Native, NativeLines, Use

_NEIGHBOUR = re.compile(r"(next|previous|prev|[+-]\d{1,2}):")
_OFFSETS = {"next": 1, "previous": -1, "prev": -1}
_HEAD: Any = re.compile(r"[^:=]*[:=]?")  # finds something in every name
# No word has a shape with a digit, so none is taken for a position outside of the sentence
_OUTSIDE = "shape"
_SAMPLES = ["a", "The", "IBM", "McDonald's", "1999", "3.5", "U.S.", "well-known", "x,", "-", "é", "日本"]


def native_of_words(model: ForeignModel, function: WordSource, edges: Sequence[str]) -> Native:
    """Find templates for the names of features that a function makes of the word, or of one beside it.

    edges (Sequence[str]): Names of the features of the first and of the last word of a sentence.
    RETURNS (Native): The templates; names that a function of sentences must make are replayed.
    RAISES (ValueError): CRF896 if the function fails on every word, CRF111 if it returns something else than features.
    """
    used = np.unique(model.states.rows[model.states.weights != 0]).tolist()
    names = [model.states.names[row] for row in used]
    # A name can be of the word if it begins as one that the function makes
    heads = _heads(function, names)
    uses = []
    left = []
    for row, name in zip(used, names):
        ways = [way for offset, rest in _readings(name) for way in _ways(offset, rest, heads, edges)]
        if len(ways) == 1:
            uses.append(Use(*ways[0], row))
        else:
            left.append((name, "the function of a word does not make it" if not ways else "it has several meanings"))
            uses.append(Use(f"fn:{SOURCE}[0]", (name,), row))
    return NOTHING._replace(
        of_labels=NativeLines(
            templates=list(dict.fromkeys(use.template for use in uses)), uses=uses, replayed=left, heads=()
        )
    )


def _readings(name: str) -> Iterator[tuple[int, str]]:
    """Yield the offsets and the names of the features of a word that a name may stand for."""
    offset = 0
    yield offset, name
    while (match := _NEIGHBOUR.match(name)) is not None:
        offset += _OFFSETS.get(match[1]) or int(match[1])
        name = name[match.end() :]
        yield offset, name


def _ways(offset: int, name: str, heads: set[str], edges: Sequence[str]) -> Iterator[tuple[str, tuple[str]]]:
    """Yield the templates, each with its value, that are a feature of the word at an offset."""
    if abs(offset) < WIDEST_OFFSET:
        for edge, step, value in zip(edges, (-1, 1), ("<BOS1>", "<EOS1>")):
            if name == edge:
                yield f"{_OUTSIDE}[{offset + step}]", (value,)
        if name not in edges and _HEAD.match(name)[0] in heads:
            yield f"word:{WORDS}[{offset}]", (name,)


def _heads(function: WordSource, names: list[str]) -> set[str]:
    """How the names begin that a function makes, up to a colon or an equals sign. The model has no list of words: the texts in
    its names are tried in their place."""
    texts = (text for name in names for _, text in _readings(name))
    words = dict.fromkeys(
        [*_SAMPLES, *(part for text in texts for part in (text, *re.split("[:=]", text)[1:]) if part)]
    )
    failures: list[Exception] = []

    def attempt(word: str) -> Any:
        try:
            return function(word)
        except Exception as error:  # some take only words as a certain tokenizer makes them
            failures.append(error)
            return None

    made: dict[int, str] = {}
    WordItems(f"word:{WORDS}", attempt, 0, made).make([*words])
    if len(failures) == len(words):
        raise ValueError(Errors.CRF896.format(n=len(words), reason=repr(failures[0])))
    return {_HEAD.match(name)[0] for name in made.values()}
