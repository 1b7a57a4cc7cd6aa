"""Reads texts with their words: JSON with the places of words and sentences, words between spaces, and known boundaries."""

import re
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Span

from ...blanks import is_blank, split_words
from ...errors import shown
from ...pipeline.corpora import set_origin
from ...pipeline.words_to_doc import words_to_doc
from ...types import UNKNOWN_WORDS
from .annotation import tokenized
from .columns import in_groups
from .source import ReadSettings, Report, Source, unreadable

_WORD_KEYS = ("words", "tokens")
_KEYS = (*_WORD_KEYS, "sents")
_OTHER_KEYS = {"text", "id", "meta"}
# A character, perhaps behind a backslash, and what stands between it and the next one
_CHARACTER = re.compile(r"\\?(.)([-| ?]?)")
_NO_BOUNDARY = "-"
_BOUNDARY = "|"


def sniff(source: Source) -> bool:
    """Whether items have a text with words or sentences, and nothing else."""
    item = next(iter(source.head_objects()), {})
    keys = item.keys() - _OTHER_KEYS
    are_lists = all(isinstance(item[key], list) for key in keys)
    return isinstance(item.get("text"), str) and bool(keys) and keys <= {*_KEYS} and are_lists


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read objects with a "text", and its "words" or "tokens", else those of the tokenizer, and perhaps its "sents". Each is
    [start, end] in characters, or the word itself.

    RAISES (ValueError): CRF701 with the place, for words that are not in the text in this order.
    """
    for place, item in source.items():
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise unreadable(place, f'it has no "text": {shown(item)}')
        text = item["text"]
        key = next((key for key in _WORD_KEYS if item.get(key) is not None), None)
        if key is None:
            words = [(token.idx, token.idx + len(token)) for token in tokenized(text, nlp, place) if not token.is_space]
        else:
            words = _with_gaps(text, _places(text, item[key], f'{place}, "{key}"'))
        starts = [start for start, _ in words]
        ends = [end for _, end in words]
        is_sentence = None
        if item.get("sents") is not None:
            sentences = _places(text, item["sents"], f'{place}, "sents"')
            sentence_starts = np.array([start for start, _ in sentences], dtype=np.int64)
            next_words = np.searchsorted(starts, sentence_starts)
            # One more, for sentences behind all words
            begins = np.zeros(len(words) + 1, dtype=bool)
            begins[next_words] = True
            is_sentence = begins[:-1].tolist()
            is_inside = sentence_starts < np.array([0, *ends])[next_words]  # before the end of the word before
            if is_inside.any():
                report.inside.append(f"{place}, character {sentence_starts[is_inside][0]}")
        doc = words_to_doc(nlp.vocab, text, starts, ends, is_sentence)
        set_origin(doc, place, item.get("id"))
        report.segmented += 1
        yield doc


def _places(text: str, values: object, place: str) -> list[tuple[int, int]]:
    """Where words are in a text.

    values (object): The words as a file has them.
    place (str): Where they are in the file, for messages.
    RAISES (ValueError): CRF701 for anything but words of the text in their order.
    """
    places = []
    behind = 0  # the end of the word before
    if not isinstance(values, list):
        raise unreadable(place, f"{shown(values)} is not a list of words")
    for number, value in enumerate(values, 1):
        start, end = value if isinstance(value, list) and len(value) == 2 else (None, None)
        if isinstance(value, str) and value:
            start = text.find(value, behind)
            end = start + len(value)
        if type(start) is not int or type(end) is not int or not behind <= start < end <= len(text):
            expected = f"a word, or [start, end], in the text behind character {behind}"
            raise unreadable(f"{place}, number {number}", f"{shown(value)} is not {expected}")
        places.append((start, end))
        behind = end
    return places


def _with_gaps(text: str, words: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The words of a text, and what stands between them, without white space."""
    filled = []
    behind = 0
    for start, end in [*words, (len(text), len(text))]:
        filled += [(behind + match.start(), behind + match.end()) for match in re.finditer(r"\S+", text[behind:start])]
        filled.append((start, end))
        behind = end
    return filled[:-1]


def read_spaced(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read lines of words between spaces, which the text does not have: each line is a sentence (the form of SIGHAN). A text of
    a single line says nothing of where sentences begin."""
    lines = (split_words(line) for _, line in source.lines())
    for sentences in in_groups(lines, settings.n_sents):
        words = [word for sentence in sentences for word in sentence]
        first_words = {0, *accumulate(map(len, sentences))}
        report.segmented += 1
        yield Doc(
            nlp.vocab,
            words=words,
            spaces=[False] * len(words),
            sent_starts=[n in first_words for n in range(len(words))] if settings.n_sents != 1 else None,
        )


def read_boundaries(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read lines of characters with what is known between them: ``|`` a boundary, ``-`` none, a space or ``?`` nothing (KyTea's
    partial annotation). A backslash stands before a character that is one of these. What is not known is in
    ``doc.spans["crf_unknown_words"]``.

    RAISES (ValueError): CRF701 with the line, if two characters have nothing between them.
    """
    for place, line in source.lines():
        if is_blank(line):
            continue
        words = [""]
        unknown: list[tuple[int, int]] = []  # the first and the last of neighbouring words that may be one
        for match in _CHARACTER.finditer(line):
            character, mark = match.groups()
            words[-1] += character
            if mark == "" and match.end() < len(line):
                raise unreadable(
                    place, f"'{line[match.start() :][:10]}' has none of | - ? and space behind its first character"
                )
            if mark in ("", _NO_BOUNDARY):
                continue
            # A mark at the end of a line has no word behind it
            if mark != _BOUNDARY:
                first = len(words) - 1
                if unknown and unknown[-1][1] == first:
                    first = unknown.pop()[0]
                unknown.append((first, len(words)))
            words.append("")
        words = [word for word in words if word]
        doc = Doc(nlp.vocab, words=words, spaces=[False] * len(words))
        doc.spans[UNKNOWN_WORDS] = [Span(doc, first, last + 1, "") for first, last in unknown if last < len(words)]
        set_origin(doc, place)
        report.segmented += 1
        yield doc
