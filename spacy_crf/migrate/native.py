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
NOTHING = Native(of_labels=_NONE, of_pairs=_NONE, padding=True, functions={})  # all lines are replayed


def native_of(model: ForeignModel, of_labels: Sequence[str], of_pairs: Sequence[str], columns: Sequence[str]) -> Native:
    """Find native templates for the lines of a model of CRF++ or Wapiti.

    of_labels (Sequence[str]), of_pairs (Sequence[str]): Lines of features of labels, and of features of pairs of labels.
    columns (Sequence[str]): Attributes of tokens in the columns; at least as many as the lines read.
    """
    compile_line, outside = _PROGRAMS[model.program]
    # Names of the functions that change words as a line of patterns does, by line
    changes: dict[str, str] = {}
    native_of_labels = _native_lines(of_labels, compile_line, model.states, columns, outside, changes)
    native_of_pairs = _native_lines(of_pairs, compile_line, model.pairs, columns, outside, changes)
    templates = parse_templates([*native_of_labels.templates, *native_of_pairs.templates])
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
        of_labels=native_of_labels,
        of_pairs=native_of_pairs,
        padding=padding if before or behind else True,
        functions={name: {**block, "patterns": [for_config(line)]} for line, name in changes.items()},
    )


def _uses(
    template: str, pattern: Pattern, names: list[tuple[int, str]], literals: list[str], outside: Callable[[int], str]
) -> Iterator[Use]:
    """Yield a use for each way in which a pattern makes one of the names.

    template (str): The native template in place of the pattern.
    names (list[tuple[int, str]]): Rows and names of foreign features.
    literals (list[str]): The texts before, between and behind the places of the pattern.
    """
    for row, name in names:
        for texts in ways_to_make(name, literals):
            for values in _values(pattern, texts, outside):
                yield Use(template, values, row)


def _native_lines(
    lines: Sequence[str],
    compile_line: Callable[[str], Pattern],
    weighted: Weighted,
    columns: Sequence[str],
    outside: Callable[[int], str],
    changes: dict[str, str],
) -> NativeLines:
    """Find native templates for lines, as far as there are any.

    weighted (Weighted): The features that the lines make, with their weights.
    changes (dict[str, str]): Names of functions that change words, by line; names are added.
    """
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
            names = [(row, name) for row, name in used if name.startswith(head)]
            # A name that can be made in many ways would become as many native features
            most = _MOST_WAYS * max(100, len(names))
            uses_of_line = list(islice(_uses(template, pattern, names, [head, *literals], outside), most + 1))
            if len(uses_of_line) <= most:
                templates.append(template)
                uses += uses_of_line
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
    """The attribute that a native template reads for a place. For a changed word, the function is added to `changes`."""
    if place.change is None:
        return columns[place.column]
    function = changes.setdefault(place.of_word, f"changed{len(changes)}")
    return f"text:{function}"


def _values(pattern: Pattern, texts: tuple[str, ...], outside: Callable[[int], str]) -> Iterator[tuple[str, ...]]:
    """Yield the values that the attributes of a native template may have where the pattern puts these texts into its places."""
    choices = []
    for place, text in zip(pattern.places, texts):
        values = [text]
        if place.change is not None:
            # A changed word begins with "u" here. The other program changes the texts of positions outside of the sequence, too;
            # native templates read these as they are
            values = [f"u{text}"]
            for n in range(place.offset, 0) or range(1, place.offset + 1):
                if place.change(outside(n)) == text:
                    values.append(outside(n))
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
    """Yield all tuples of values that make a text: a value, its literal, the next value, its literal, and so on.

    literals (Sequence[str]): The text behind each value.
    """
    # The last position of each literal that leaves room for the literals behind it, -1 if there is none
    latest = [len(text) - len(literals[-1]) if text.endswith(literals[-1]) else -1]
    for literal in reversed(literals[:-1]):
        latest.append(text.rfind(literal, 0, latest[-1]) if latest[-1] >= 0 else -1)
    latest.reverse()
    # Tuples without their last values, and the position where the next value begins. Each can be completed, since only literals
    # up to `latest` are taken
    incomplete: list[tuple[int, tuple[str, ...]]] = [(0, ())] if latest[0] >= 0 else []
    while incomplete:
        begin, values = incomplete.pop()
        n = len(values)
        if n == len(literals) - 1:
            yield (*values, text[begin : latest[n]])
            continue
        size = len(literals[n])
        ends = [end for end in range(begin, latest[n] + 1) if text.startswith(literals[n], end)]  # of the next value
        incomplete += [(end + size, (*values, text[begin:end])) for end in reversed(ends)]


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
    rows = np.unique(model.states.rows[model.states.weights != 0]).tolist()
    names = [model.states.names[row] for row in rows]
    # A name may be a feature of a word if it begins like one that the function makes
    heads = _heads(function, names)
    uses = []
    replayed = []
    for row, name in zip(rows, names):
        meanings: list[tuple[str, tuple[str]]] = []
        for offset, feature in _readings(name):
            meanings += _meanings(offset, feature, heads, edges)
        if len(meanings) == 1:
            [(template, values)] = meanings
            uses.append(Use(template, values, row))
        else:
            reason = "it has several meanings" if meanings else "the function of a word does not make it"
            replayed.append((name, reason))
            uses.append(Use(f"fn:{SOURCE}[0]", (name,), row))
    templates = list(dict.fromkeys(use.template for use in uses))
    return NOTHING._replace(of_labels=NativeLines(templates, uses, replayed, heads=()))


def _readings(name: str) -> Iterator[tuple[int, str]]:
    """Yield what a name may stand for: the offset of a word, and a feature of that word. For ``next:title`` these are the feature
    ``next:title`` of the word itself, and the feature ``title`` of the next word."""
    offset = 0
    yield offset, name
    while (match := _NEIGHBOUR.match(name)) is not None:
        offset += _OFFSETS.get(match[1]) or int(match[1])
        name = name[match.end() :]
        yield offset, name


def _meanings(offset: int, name: str, heads: set[str], edges: Sequence[str]) -> Iterator[tuple[str, tuple[str]]]:
    """Yield the templates, each with its value, that are the feature `name` of the word at an offset."""
    if abs(offset) < WIDEST_OFFSET:
        for edge, step, value in zip(edges, (-1, 1), ("<BOS1>", "<EOS1>")):
            if name == edge:
                yield f"{_OUTSIDE}[{offset + step}]", (value,)
        if name not in edges and _HEAD.match(name)[0] in heads:
            yield f"word:{WORDS}[{offset}]", (name,)


def _heads(function: WordSource, names: list[str]) -> set[str]:
    """The beginnings, up to a colon or an equals sign, of the names that a function makes of words."""
    # The model has no list of words, so the function gets the texts in the model's names
    words = dict.fromkeys(_SAMPLES)
    for _, text in chain.from_iterable(map(_readings, names)):
        words.update(dict.fromkeys([text, *re.split("[:=]", text)[1:]]))
    words.pop("", None)
    failures: list[Exception] = []

    def attempt(word: str) -> Any:
        try:
            return function(word)
        except Exception as error:
            # Some functions take only words as a certain tokenizer makes them
            failures.append(error)
            return None

    made: dict[int, str] = {}
    WordItems(f"word:{WORDS}", attempt, 0, made).make([*words])
    if len(failures) == len(words):
        raise ValueError(Errors.CRF896.format(n=len(words), reason=repr(failures[0])))
    return {_HEAD.match(name)[0] for name in made.values()}
