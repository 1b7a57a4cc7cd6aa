"""The template language: ``lower[-2..2]``, ``orth[-1]|orth[0]``, ``in:cities[0]``, ``if:is_title[0]``.

A template is one or more parts joined by ``|``; a part is an attribute and the offset of the token from which it is read.
``[a..b]`` stands for one template per offset.
"""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain, product
from typing import NamedTuple, TypeVar

from ..errors import Errors, known_names, shown

# Verbose
OFFSETS = r"(?:\[ \s* (?P<low>[+-]?\d{1,9}) \s* (?:\.\.\s*(?P<high>[+-]?\d{1,9})\s*)? \])?"
_PART = re.compile(
    rf"(?P<attribute> (?:(?:in|ext|fn|word|text|if|doc|stage|cluster\d*):)? [^\[\]|:\s]+ ) {OFFSETS}", re.VERBOSE
)
WIDEST_OFFSET = 20
MOST_TEMPLATES = 10_000  # templates of one line
Part = TypeVar("Part")
_KNOWN = "attributes with an offset or a range, such as lower[0] or lower[-2..2]; and bias, without an offset"


class TemplatePart(NamedTuple):
    """An attribute, and the offset of the token from which it is read."""

    attribute: str  # for one of several values: followed by a space and the number of the value
    offset: int

    def __str__(self) -> str:
        attribute = self.attribute.partition(" ")[0]
        return attribute if attribute == "bias" else f"{attribute}[{self.offset}]"


class Template(NamedTuple):
    """A conjunction of attributes at fixed offsets."""

    parts: tuple[TemplatePart, ...]
    name: str = ""  # replaces the spelling of the parts

    @property
    def attributes(self) -> list[str]:
        """The attribute of each part."""
        return [part.attribute for part in self.parts]

    @property
    def width(self) -> int:
        """Number of positions from the first to the last one that the template reads, both included."""
        offsets = [part.offset for part in self.parts]
        return max(offsets) - min(offsets) + 1

    def __str__(self) -> str:
        return self.name or "|".join(map(str, self.parts))


def parse_template(text: str) -> list[Template]:
    """The templates that a line of the template language stands for.

    RETURNS (list[Template]): One for each combination of offsets.
    RAISES (ValueError): CRF101, with the template and the place that can't be read, or CRF102.
    """
    if not is_text(text) or not text.strip():
        raise ValueError(Errors.CRF101.format(template=shown(text), part=shown(text), known=_KNOWN))
    choices = []
    for piece in text.split("|"):
        match = _PART.fullmatch(piece.strip())
        # The bias, and nothing else, has no offset
        if match is None or (match["low"] is None) != (match["attribute"] == "bias"):
            raise ValueError(Errors.CRF101.format(template=text, part=piece.strip(), known=_KNOWN))
        choices.append([TemplatePart(match["attribute"], offset) for offset in offsets_of(match, text)])
    return [Template(parts) for parts in combined(choices, text)]


def is_text(value: object) -> bool:
    """Whether a value is a string that can be encoded: one without surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


# By kind of attribute: what its name names, what to do if the name is unknown, and how the known names are introduced
_FUNCTION = ("function", "Add a block [....features.functions.{}]", "Functions there")
_NAMED = {
    "ext": ("extension", "Call Token.set_extension('{}', ...) before the pipeline is built", "Extensions set"),
    "fn": _FUNCTION,
    "word": _FUNCTION,
    "text": _FUNCTION,
    "matches": ("pattern", "Add it to the patterns of the feature set", "Patterns there"),
    "in": ("gazetteer", "Name its file in [initialize.components.NAME.gazetteers]", "Gazetteers there"),
}


def require_named(template: object, name: str, kind: str, known: Iterable[str]) -> None:
    """Check that what a template names, such as a gazetteer, is known.

    kind (str): A key of `_NAMED`.
    RAISES (ValueError): CRF106 with the `known` names.
    """
    if name not in known:
        what, advice, names_are = _NAMED[kind]
        raise ValueError(
            Errors.CRF106.format(
                template=template,
                what=what,
                name=name,
                advice=advice.format(name),
                there=names_are,
                known=known_names(known, name),
            )
        )


def combined(choices: list[list[Part]], template: str) -> Iterator[tuple[Part, ...]]:
    """All combinations of one choice from each list. RAISES (ValueError): CRF102 if there are too many."""
    n = math.prod(map(len, choices))
    if n > MOST_TEMPLATES:
        raise ValueError(
            Errors.CRF102.format(
                template=template, reason=f"they stand for {n} templates, of which {MOST_TEMPLATES} are possible"
            )
        )
    return product(*choices)


def offsets_of(match: "re.Match[str]", template: str) -> range:
    """The offsets that `OFFSETS` has matched, 0 for none. RAISES (ValueError): CRF102 for an empty or too wide range."""
    low = int(match["low"] or 0)
    high = int(match["high"]) if match["high"] is not None else low
    if high < low or max(abs(low), abs(high)) > WIDEST_OFFSET:
        raise ValueError(
            Errors.CRF102.format(
                template=template,
                reason=f"write the smaller offset of '{match[0]}' first, and offsets of at most {WIDEST_OFFSET}",
            )
        )
    return range(low, high + 1)


def parse_templates(texts: list[str]) -> list[Template]:
    """All templates of a list, each once, in the order of their first mention."""
    return list(dict.fromkeys(chain.from_iterable(map(parse_template, texts))))
