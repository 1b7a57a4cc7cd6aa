"""Native templates in place of CRF++'s templates and Wapiti's patterns, for lines that only insert the words of columns.

A foreign feature is a text such as ``U05:the/dog``. A native feature is a template such as ``orth[-1]|orth[0]``, with values. The
lines of a model may make the same text in several ways: if a word contains the separator, if two lines share a name, or if a line
occurs twice. The native feature of each way gets the weight of the text. So the native features of a token have the same sum of
weights as its foreign features, for all words. Positions outside a sequence have the texts of the foreign program.

CRFsuite's models have names of features, as python-crfsuite makes them from nested dicts. Where a function of a word makes them,
templates take their place: ``next:suffix:ing`` is the feature ``suffix:ing`` of the next word.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, product
from typing import Any, NamedTuple, Optional

import numpy as np

from ..errors import Errors
from ..features.items import WordItems, WordSource
from ..features.lexemes import Padding
from ..features.templates import WIDEST_OFFSET, Template, TemplatePart, parse_templates
from . import crfpp, wapiti
from .foreign import ForeignModel, Weighted
from .functions import SOURCE, TEXTS, WORDS, Pattern, PatternPlace, for_config

_MOST_WAYS = 4  # largest mean number of ways to make a name, over at least 100 names

_PROGRAMS: dict[str, tuple[Callable[[str], Pattern], Callable[[int], str]]] = {
    "crfpp": (crfpp.compile_template, crfpp.outside),
    "wapiti": (wapiti.compile_pattern, wapiti.outside),
}


class Use(NamedTuple):
    """A native feature, and the foreign feature whose weights it gets."""

    template: str
    values: tuple[str, ...]
    row: int  # row of the foreign feature


class NativeLines(NamedTuple):
    """Native templates in place of the lines that make features of labels, or of pairs of labels."""

    templates: list[str]  # native templates, each once
    uses: list[Use]
    replayed: list[tuple[str, str]]  # lines that no native template can replace, each with the reason
    heads: tuple[str, ...]  # beginnings of the names that replayed lines make


class Native(NamedTuple):
    """Native templates in place of the lines of a model."""

    of_labels: NativeLines
    of_pairs: NativeLines
    padding: Padding
    functions: dict[str, dict[str, Any]]  # blocks of functions of words, by name

    @property
    def replayed(self) -> list[tuple[str, str]]:
        """The replayed lines, each once, with the reason."""
        return list(dict.fromkeys([*self.of_labels.replayed, *self.of_pairs.replayed]))

    @property
    def lines_replayed(self) -> tuple[list[str], list[str]]:
        """The replayed lines of features of labels, and of features of pairs of labels."""
        return [line for line, _ in self.of_labels.replayed], [line for line, _ in self.of_pairs.replayed]


_NONE = NativeLines([], [], [], ("",))
NOTHING = Native(_NONE, _NONE, True, {})  # all lines are replayed


def native_of(model: ForeignModel, of_labels: Sequence[str], of_pairs: Sequence[str], columns: Sequence[str]) -> Native:
    """Find native templates for the lines of a model of CRF++ or Wapiti.

    of_labels (Sequence[str]), of_pairs (Sequence[str]): Lines of features of labels, and of features of pairs of labels.
    columns (Sequence[str]): Attributes of tokens in the columns; at least as many as the lines read.
    """
    compile_line, outside = _PROGRAMS[model.program]
    # Names of functions by the lines that they follow
    changes: dict[str, str] = {}
    found = [
        _native_lines(lines, compile_line, weighted, columns, outside, changes)
        for lines, weighted in ((of_labels, model.states), (of_pairs, model.pairs))
    ]
    templates = parse_templates([*found[0].templates, *found[1].templates])
    parts = chain.from_iterable(template.parts for template in templates)
    offsets = [part.offset for part in parts]
    before = -min([0, *offsets])
    behind = max([0, *offsets])
    padding = {
        "before": [outside(-n) for n in range(1, before + 1)],
        "behind": [outside(n) for n in range(1, behind + 1)],
    }
    block = {"@misc": "spacy_crf.wapiti_features.v1", "columns": ["orth"]}
    return Native(
        of_labels=found[0],
        of_pairs=found[1],
        padding=padding if before or behind else True,
        functions={name: {**block, "patterns": [for_config(line)]} for line, name in changes.items()},
    )


def _uses(
    template: str, pattern: Pattern, names: list[tuple[int, str]], literals: list[str], outside: Callable[[int], str]
) -> Iterator[Use]:
    """Yield each way in which a pattern with these literals makes one of the names, each with its row."""
    for row, name in names:
        for texts in ways_to_make(name, literals):
            for way in _values(pattern, texts, outside):
                yield Use(template, way, row)


def _native_lines(
    lines: Sequence[str],
    compile_line: Callable[[str], Pattern],
    weighted: Weighted,
    columns: Sequence[str],
    outside: Callable[[int], str],
    changes: dict[str, str],
) -> NativeLines:
    used = [(row, weighted.names[row]) for row in np.unique(weighted.rows[weighted.weights != 0]).tolist()]
    templates = []
    replayed = []
    uses: list[Use] = []
    heads: list[str] = []
    for line in lines:
        pattern = compile_line(line)
        head, *literals = pattern.form.split("%s")
        reason = _why_not(pattern, columns)
        if reason is None:
            parts = tuple(TemplatePart(_attribute(place, columns, changes), place.offset) for place in pattern.places)
            template = str(Template(parts or (TemplatePart("bias", 0),)))
            own = [(row, name) for row, name in used if name.startswith(head)]
            ways = _uses(template, pattern, own, [head, *literals], outside)
            # A name with many ways to make it would become as many native features
            most = _MOST_WAYS * max(100, len(own))
            found = list(islice(ways, most + 1))
            if len(found) <= most:
                templates.append(template)
                uses += found
                continue
            reason = "what stands between its values does not tell where they end"
        replayed.append((line, reason))
        heads.append(head)
    return NativeLines(list(dict.fromkeys(templates)), uses, replayed, tuple(heads))


def _why_not(pattern: Pattern, columns: Sequence[str]) -> Optional[str]:
    """The reason why no native template can replace a pattern; None if one can."""
    for column, offset, anchor, change, _ in pattern.places:
        if anchor != "token":
            return "it reads a position that is counted from an end of the sentence"
        if change is not None and columns[column] != "orth":
            return f"it changes or tests column {columns[column]}, which is not the word"
        if abs(offset) > WIDEST_OFFSET:
            return f"it reads a word that is farther away than {WIDEST_OFFSET}"
        if columns[column] not in TEXTS:
            return f"column {columns[column]} is no text in templates"
    return None


def _attribute(place: PatternPlace, columns: Sequence[str], changes: dict[str, str]) -> str:
    """The attribute that a native template reads for a place."""
    if place.change is None:
        return columns[place.column]
    return f"text:{changes.setdefault(place.of_word, f'changed{len(changes)}')}"


def _values(pattern: Pattern, texts: tuple[str, ...], outside: Callable[[int], str]) -> Iterator[tuple[str, ...]]:
    """Yield all values of native attributes at which a pattern has certain texts. The other program changes the texts of
    positions outside of the sequence too; here they stay as they are, and no changed word is like them: it begins with "u"."""
    choices = []
    for place, text in zip(pattern.places, texts):
        values = [text]
        if place.change is not None:
            reached = (outside(n) for n in (range(place.offset, 0) or range(1, place.offset + 1)))
            values = [f"u{text}", *(each for each in reached if place.change(each) == text)]
        choices.append(values)
    return product(*choices) if choices else iter([texts])


def ways_to_make(name: str, literals: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield all tuples of values that make a name when they are inserted between the literals.

    literals (Sequence[str]): The text before each value, and the text behind the last value. A single literal is the whole name;
        its only value is that of a bias.
    """
    first, *others = literals
    if name.startswith(first) and name.endswith(literals[-1]):
        if others:
            yield from _cuts(name[len(first) :], others)
        elif name == first:
            yield ("1",)


def _cuts(text: str, literals: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield all tuples of values that make a text. literals (Sequence[str]): The text behind each value."""
    latest = [len(text) - len(literals[-1]) if text.endswith(literals[-1]) else -1]
    # The last place of each that leaves room for those behind it: no way is begun in vain
    for literal in literals[-2::-1]:
        latest.append(text.rfind(literal, 0, latest[-1]) if latest[-1] >= 0 else -1)
    latest.reverse()
    # Where values end, and the values
    begun: list[tuple[int, tuple[str, ...]]] = [(0, ())] if latest[0] >= 0 else []
    while begun:
        begin, values = begun.pop()
        n = len(values)
        if n == len(literals) - 1:
            yield (*values, text[begin : latest[n]])
            continue
        size = len(literals[n])
        places = [at for at in range(begin, latest[n] + 1) if text.startswith(literals[n], at)]
        begun += [(at + size, (*values, text[begin:at])) for at in reversed(places)]


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
    texts = (text for _, text in chain.from_iterable(map(_readings, names)))
    words = dict.fromkeys(
        [*_SAMPLES, *(part for text in texts for part in (text, *re.split("[:=]", text)[1:]) if part)]
    )
    failures: list[Exception] = []

    def attempt(word: str) -> Any:
        try:
            return function(word)
        except Exception as error:
            # Some take only words as a certain tokenizer makes them
            failures.append(error)
            return None

    made: dict[int, str] = {}
    WordItems(f"word:{WORDS}", attempt, 0, made).make([*words])
    if len(failures) == len(words):
        raise ValueError(Errors.CRF896.format(n=len(words), reason=repr(failures[0])))
    return {_HEAD.match(name)[0] for name in made.values()}
