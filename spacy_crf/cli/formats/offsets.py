"""How a file counts the characters before a span: as Python does, or as other programs do. The words that spans give show it."""

import re
from collections.abc import Collection, Iterable
from itertools import combinations
from typing import Optional

# What other programs count. A file may have several of these habits: a browser counts UTF-16 units, and CR LF as one
UTF16 = "utf16"
CRLF = "crlf"
BOM = "bom"
HABITS = {
    UTF16: "UTF-16 units, so that an emoji is two characters",
    CRLF: "CR LF as one character",
    BOM: "the byte order mark as a character",
}

_WIDE = re.compile("[\U00010000-\U0010ffff]")


def index_of(text: str, habits: Collection[str]) -> Optional[dict[int, int]]:
    """Map the offsets of a program with these habits to those of the text.

    RETURNS (Optional[dict[int, int]]): The number of the character that begins at an offset, for all such offsets and the end of
        the text; None if the offsets are those of the text.
    """
    if not habits:
        return None
    is_wide = UTF16 in habits and _WIDE.search(text) is not None
    is_joined = CRLF in habits and "\r\n" in text
    if not (is_wide or is_joined or BOM in habits):
        return None
    character_at: dict[int, int] = {}
    offset = 1 if BOM in habits else 0
    for n, char in enumerate(text):
        character_at.setdefault(offset, n)
        if is_joined and text.startswith("\r\n", n):
            continue  # CR and LF have the same offset
        offset += 2 if is_wide and char > "\uffff" else 1
    character_at[offset] = len(text)
    return character_at


def habits_that_matter(text: str) -> list[str]:
    """Which of UTF16 and CRLF would change the offset of the end of this text. BOM, which changes all offsets, is left out: it is
    a matter of the file, not of the text."""
    habits = []
    if not text.isascii() and _WIDE.search(text):
        habits.append(UTF16)
    if "\r\n" in text:
        habits.append(CRLF)
    return habits


class HabitSearch:
    """Finds the habits of a file: those under which the text has the words of each span at its offsets.

    asked (Collection[str]): The habits that the user names; if there are any, nothing is searched.
    possible (Iterable[str]): The habits to try, alone and together.
    """

    def __init__(self, asked: Collection[str], possible: Iterable[str] = (UTF16, CRLF)) -> None:
        self._asked = asked
        self._possible = [*possible]
        # Sets of habits that fit all spans so far, those with the fewest habits first
        self._fitting: list[tuple[str, ...]] = []
        for n in range(len(self._possible) + 1):
            self._fitting += combinations(self._possible, n)

    def needs(self, text: str) -> bool:
        """Whether the spans of a text can show the habits: in most texts, all programs count the same offsets."""
        return not self._asked and (BOM in self._possible or bool(habits_that_matter(text)))

    def see(self, text: str, spans: Iterable[tuple[object, object, object]]) -> None:
        """Drop the sets of habits under which a text does not have the words of a span at its offsets.

        spans (Iterable): Start, end and words of each span, as the file has them; None for what it lacks.
        """
        with_words = []
        for start, end, words in spans:
            if type(start) is int and type(end) is int and isinstance(words, str):
                with_words.append((start, end, words.split()))
        if not with_words:
            return
        fitting = []
        for habits in self._fitting:
            index = index_of(text, habits)
            if all(_words_at(text, start, end, index) == words for start, end, words in with_words):
                fitting.append(habits)
        self._fitting = fitting

    def found(self) -> list[str]:
        """The habits of the file: the smallest set that fits; none if no set fits, or several of this size do."""
        if self._asked:
            return [*self._asked]
        smallest = [habits for habits in self._fitting if len(habits) == len(self._fitting[0])]
        return [*smallest[0]] if len(smallest) == 1 else []


def _words_at(text: str, start: int, end: int, index: Optional[dict[int, int]]) -> Optional[list[str]]:
    """The words of a text between two offsets of a file; None if the offsets are not those of a part of the text."""
    first = start if index is None else index.get(start)
    behind = end if index is None else index.get(end)
    if first is None or behind is None or not 0 <= first < behind <= len(text):
        return None
    return text[first:behind].split()
