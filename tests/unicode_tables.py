"""Writes the tables of characters that lite.js reads: ``python -m tests.unicode_tables``.

JavaScript's own tables depend on the engine; these are those of the Python that runs this file.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

PATH = Path(__file__).parents[1] / "spacy_crf" / "migrate" / "page" / "unicode.js"
N_POINTS = 0x110000
# The flags of a character, from the lowest bit on
FLAGS = ("ALPHA", "DIGIT", "DECIMAL", "UPPER", "LOWER", "TITLE", "SPACE", "PUNCT", "CURRENCY", "IGNORABLE", "CASED")
_TEMPLATE = """\
// Characters in Unicode {version}. Written by `python -m tests.unicode_tables`; do not edit.
export const UNICODE_VERSION = "{version}";
// Bits of the flags, in the order {names}
export const COMBINATIONS = {combinations};
// Runs of characters from U+0000 on: the letter of their combination, then their number in base 36 unless it is 1
export const RUNS = "{runs}";
// Runs of characters that have lower case: distance from the run before, number, step and shift, in base 36
export const LOWER_RUNS = "{lower}";
"""


def flags_of(char: str) -> int:
    """The flags of a character as bits. IGNORABLE and CASED say where a capital sigma ends a word."""
    if unicodedata.category(char) in ("Cn", "Co", "Cs"):  # most of all code points: not assigned, private or surrogates
        return 0
    ends_alone = f"{char}Σ".lower().endswith("ς")
    ends_behind_letter = f"A{char}Σ".lower().endswith("ς")
    flags = {
        "ALPHA": char.isalpha(),
        "DIGIT": char.isdigit(),
        "DECIMAL": char.isdecimal(),
        "UPPER": char.isupper(),
        "LOWER": char.islower(),
        "TITLE": char.istitle() and not char.isupper(),
        "SPACE": char.isspace(),
        "PUNCT": unicodedata.category(char).startswith("P"),
        "CURRENCY": unicodedata.category(char) == "Sc",
        "IGNORABLE": ends_behind_letter and not ends_alone,
        "CASED": ends_alone,
    }
    return sum(flags[name] << bit for bit, name in enumerate(FLAGS))


def in_base_36(number: int) -> str:
    """A whole number as JavaScript's parseInt(text, 36) reads it."""
    digits = ""
    rest = abs(number)
    while rest or not digits:
        rest, digit = divmod(rest, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return f"-{digits}" if number < 0 else digits


def lower_runs() -> Iterator[tuple[int, int, int, int]]:
    """First character, number of characters, step and shift of each run of characters whose lower case is so far from them."""
    shifts = {}
    for point in range(N_POINTS):
        lower = chr(point).lower()
        if len(lower) == 1 and ord(lower) != point:  # U+0130 has two characters, see lite.js
            shifts[point] = ord(lower) - point
    while shifts:
        first = min(shifts)
        shift = shifts[first]
        step = 1 if shifts.get(first + 1) == shift else 2
        length = 0
        while shifts.get(first + length * step) == shift:
            del shifts[first + length * step]
            length += 1
        yield first, length, step, shift


def version() -> str:
    """The version of Unicode of the tables that are there."""
    [found] = re.findall(r'UNICODE_VERSION = "(.*)"', PATH.read_text(encoding="utf8"))
    return found


def unicode_js() -> str:
    """The source of unicode.js."""
    combinations: dict[int, str] = {}
    runs = []
    for flags, points in groupby(range(N_POINTS), key=lambda point: flags_of(chr(point))):
        letter = combinations.setdefault(flags, chr(ord("A") + len(combinations)))
        length = sum(1 for _ in points)
        runs.append(letter if length == 1 else letter + in_base_36(length))
    lower = []
    before = 0
    for first, length, step, shift in lower_runs():
        lower.append(" ".join(map(in_base_36, (first - before, length, step, shift))))
        before = first
    parts = {"runs": "".join(runs), "lower": ",".join(lower), "combinations": [*combinations]}
    return _TEMPLATE.format(version=unicodedata.unidata_version, names=", ".join(FLAGS), **parts)


if __name__ == "__main__":
    PATH.write_text(unicode_js(), encoding="utf8")
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")
