"""Templates of ours in place of CRF++'s templates and Wapiti's patterns: those that fill in words of columns and nothing else.

A feature of theirs is a text, ``U05:the/dog``; one of ours is a template, ``orth[-1]|orth[0]``, and its values. Each text of a
model stands for all the ways in which its lines make it: several where a word has the separator inside, where lines share a
name, or where a line is there twice. Each way gets the weight of the text. So the features that a token has of ours weigh what
its texts weigh, whatever its words are; and what stands outside of a sequence is the program's texts, and not ours.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Optional

import numpy as np

from ..features.lexemes import Padding
from ..features.templates import WIDEST_OFFSET, Part, Template, parse_template
from . import crfpp, wapiti
from .foreign import ForeignModel, Weighted
from .patterns import Pattern

# Attributes whose values are strings, in columns as in templates
_TEXTS = ("orth", "lower", "norm", "shape", "prefix", "suffix", "tag", "pos", "lemma", "dep", "ent_type")
_MOST_WAYS = 4  # to make a name, on average; of few names as many as this often a hundred

_Compile = Callable[[str], Pattern]
_PROGRAMS: dict[str, tuple[_Compile, Callable[[int], str]]] = {
    "crfpp": (crfpp.compile_template, crfpp.outside),
    "wapiti": (wapiti.compile_pattern, wapiti.outside),
}


class Use(NamedTuple):
    """A feature of ours that has the weights of one of theirs."""

    template: str
    values: tuple[str, ...]
    row: int  # of theirs


class Replayed(NamedTuple):
    """A line that no template of ours stands for."""

    line: str
    reason: str


class NativeLines(NamedTuple):
    """What stands for lines that make features of labels, or of pairs of labels."""

    templates: list[str]  # of ours, each once
    uses: list[Use]
    replayed: list[Replayed]
    heads: tuple[str, ...]  # what names begin with that lines make which are replayed


class Native(NamedTuple):
    """What stands for the lines of a model."""

    of_labels: NativeLines
    of_pairs: NativeLines
    padding: Padding

    @property
    def replayed(self) -> list[Replayed]:
        """Each line once."""
        return list(dict.fromkeys([*self.of_labels.replayed, *self.of_pairs.replayed]))

    @property
    def lines_replayed(self) -> tuple[list[str], list[str]]:
        """Those of labels, and those of pairs."""
        of_labels, of_pairs = ([each.line for each in lines.replayed] for lines in self[:2])
        return of_labels, of_pairs


_NONE = NativeLines([], [], [], ("",))
NOTHING = Native(_NONE, _NONE, True)  # all lines are replayed


def native_of(model: ForeignModel, of_labels: Sequence[str], of_pairs: Sequence[str], columns: Sequence[str]) -> Native:
    """What can stand for the lines of a model of CRF++ or Wapiti.

    of_labels (Sequence[str]), of_pairs (Sequence[str]): The lines.
    columns (Sequence[str]): Attributes of tokens that its columns are, as many as it reads.
    """
    compile_line, outside = _PROGRAMS[model.program]
    found = [
        _native_lines([(line, compile_line(line)) for line in lines], weighted, columns)
        for lines, weighted in ((of_labels, model.states), (of_pairs, model.pairs))
    ]
    texts = [text for lines in found for text in lines.templates]
    offsets = [part.offset for text in texts for template in parse_template(text) for part in template.parts]
    before, behind = -min([0, *offsets]), max([0, *offsets])
    padding = {
        "before": [outside(-n) for n in range(1, before + 1)],
        "behind": [outside(n) for n in range(1, behind + 1)],
    }
    return Native(*found, padding if before or behind else True)


def _native_lines(lines: Sequence[tuple[str, Pattern]], weighted: Weighted, columns: Sequence[str]) -> NativeLines:
    used = np.unique(weighted.rows[weighted.weights != 0]).tolist()
    names = [weighted.names[row] for row in used]
    templates: list[str] = []
    uses: list[Use] = []
    replayed, heads = [], []
    for line, pattern in lines:
        literals = pattern.form.split("%s")
        reason = _why_not(pattern, columns)
        if reason is None:
            template = str(_template(pattern, columns))
            found = _uses(template, literals, names, used)
            if found is None:
                reason = "what stands between its values does not tell where they end"
            else:
                templates.append(template)
                uses += found
        if reason is not None:
            replayed.append(Replayed(line, reason))
            heads.append(literals[0])
    return NativeLines(list(dict.fromkeys(templates)), uses, replayed, tuple(heads))


def _why_not(pattern: Pattern, columns: Sequence[str]) -> Optional[str]:
    """What no template of ours does."""
    for column, offset, anchor, change in pattern.places:
        if anchor != "token":
            return "it reads a position that is counted from an end of the sentence"
        if change is not None:
            return "it changes or tests words"
        if abs(offset) > WIDEST_OFFSET:
            return f"it reads a word that is farther away than {WIDEST_OFFSET}"
        if columns[column] not in _TEXTS:
            return f"column {columns[column]} is no text in templates"
    return None


def _template(pattern: Pattern, columns: Sequence[str]) -> Template:
    parts = tuple(Part(columns[place.column], place.offset) for place in pattern.places)
    return Template(parts or (Part("bias", 0),))


def _uses(template: str, literals: list[str], names: list[str], rows: list[int]) -> Optional[list[Use]]:
    """All ways in which a line makes names. None if there are too many of them."""
    own = [(name, row) for name, row in zip(names, rows) if name.startswith(literals[0])]
    ways = (Use(template, values, row) for name, row in own for values in ways_to_make(name, literals))
    most = _MOST_WAYS * max(100, len(own))
    found = list(islice(ways, most + 1))
    return found if len(found) <= most else None


def ways_to_make(name: str, literals: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All values that make a name when they are put between texts.

    literals (Sequence[str]): One before each value, and one behind the last; if there is only one, it is the name, and the value
        that of a bias.
    """
    first, *others = literals
    if name.startswith(first) and name.endswith(literals[-1]):
        if others:
            yield from _cuts(name[len(first) :], others)
        elif name == first:
            yield ("1",)


def _cuts(text: str, literals: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """literals (Sequence[str]): One behind each value."""
    latest = [len(text) - len(literals[-1]) if text.endswith(literals[-1]) else -1]
    for literal in literals[
        -2::-1
    ]:  # the last place of each that leaves room for those behind it: no way is begun in vain
        latest.append(text.rfind(literal, 0, latest[-1]) if latest[-1] >= 0 else -1)
    latest.reverse()
    begun: list[tuple[int, tuple[str, ...]]] = [(0, ())] if latest[0] >= 0 else []  # where values end, and the values
    while begun:
        begin, values = begun.pop()
        n = len(values)
        if n == len(literals) - 1:
            yield (*values, text[begin : latest[n]])
            continue
        size = len(literals[n])
        places = [at for at in range(begin, latest[n] + 1) if text.startswith(literals[n], at)]
        begun += [(at + size, (*values, text[begin:at])) for at in reversed(places)]
