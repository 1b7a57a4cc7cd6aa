"""Reads sentences of words with tags: a token on each line, words joined with their tags (``Ann|B-PER ran|O``), and lists of
words and tags in JSON. Detects tag schemes, and makes Docs from the sentences."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Optional, TypeVar

from spacy.language import Language
from spacy.tokens import Doc, Span

from ...errors import Errors, shown
from .annotation import Span as Characters
from .annotation import is_unicode, make_doc, named
from .source import ReadSettings, Report, Source, unreadable

# The letters that a scheme puts before labels. The scheme of a file is the first one with all letters of the file
SCHEMES = {"BIO": "BI", "IOB1": "BI", "BILUO": "BILU", "BIOES": "BIES", "BMES": "BMES", "bare": ""}
_IN_BILUO = {"E": "L", "S": "U", "M": "I"}
_TAG = re.compile(r"([BILUESM])-(.+)")
_WITHOUT_SPACES = ("ja", "th", "zh")  # languages that write no spaces between words, and whose tokenizers find words
_LATIN = re.compile("[A-Za-z0-9]")
_UNLABELLED = {"B", "I", "L", "U", "E", "S", "M"}  # tags without label, in files with one kind of entity

T = TypeVar("T")


class Row(NamedTuple):
    """A token. None stands for columns that the file lacks, the entity tag ``-`` for missing annotation of this token."""

    place: str
    word: str
    ent: Optional[str] = None
    tag: Optional[str] = None
    inner: tuple[str, ...] = ()  # entity tags in further columns, for spans that overlap


# Yields the rows of each sentence, and None at the end of each document
Sentences = Callable[[Source, ReadSettings, Report], Iterator[Optional[list[Row]]]]


def is_tag(text: str) -> bool:
    return text in ("O", "-") or _TAG.fullmatch(text) is not None


def read_sentences(
    sentences: Sentences, source: Source, nlp: Language, settings: ReadSettings, report: Report
) -> Iterator[Doc]:
    """Make Docs of `n_sents` sentences each. Without a scheme in the settings, the sentences are read twice.

    RAISES (ValueError): With the place, if a tag does not belong to the scheme.
    """
    report.scheme = settings.scheme or find_scheme(sentences(source, settings, report))
    for group in in_groups(sentences(source, settings, report), settings.n_sents):
        rows = [row for sentence in group for row in sentence]
        report.has_spans |= rows[0].ent is not None
        levels = [[row._replace(ent=row.inner[n]) for row in rows] for n in range(len(rows[0].inner))]
        ents: list[Any] = [
            [tag for sentence in group for tag in in_bio(sentence, report.scheme)],
            *(in_bio(level, report.scheme) for level in levels),
        ]
        first = {0, *accumulate(map(len, group))}
        words = [row.word for row in rows]
        doc = Doc(
            nlp.vocab,
            words=words,
            spaces=spaces_between(words, nlp.lang),
            tags=[row.tag or "" for row in rows] if rows[0].tag is not None else None,
            ents=ents[0] if rows[0].ent is not None and not settings.spans_key else None,
            sent_starts=[n in first for n in range(len(rows))] if settings.n_sents != 1 else None,
        )
        if settings.spans_key and rows[0].ent is not None:
            found = [ent for tags in ents for ent in Doc(nlp.vocab, words=[row.word for row in rows], ents=tags).ents]
            places = sorted({(ent.start, ent.end, ent.label_) for ent in found})
            doc.spans[settings.spans_key] = [Span(doc, begin, end, label=label) for begin, end, label in places]
        yield _cut_again(doc, nlp, rows[0].place, settings, report) if settings.retokenize else doc


def spaces_between(words: Sequence[str], lang: str) -> Optional[list[bool]]:
    """Whether the text of some words has a space behind each of them; None where that is not known, and spaCy joins them by
    spaces. A space stays between two words in Latin letters."""
    if lang not in _WITHOUT_SPACES:
        return None
    are_latin = [_LATIN.match(one[-1:]) and _LATIN.match(other[:1]) for one, other in pairwise(words)]
    return [*map(bool, are_latin), False]


def _cut_again(doc: Doc, nlp: Language, place: str, settings: ReadSettings, report: Report) -> Doc:
    """Let the tokenizer cut the text of a Doc again."""
    found = doc.spans[settings.spans_key] if settings.spans_key else doc.ents
    spans = [Characters(span.start_char, span.end_char, span.label_) for span in found]
    missing = [Characters(token.idx, token.idx + len(token), "") for token in doc if not token.ent_iob]
    return make_doc(nlp, doc.text.rstrip(), spans, missing=missing, place=place, settings=settings, report=report)


def in_groups(sentences: Iterable[Optional[list[T]]], n: int) -> Iterator[list[list[T]]]:
    """Group sentences into Docs of `n` sentences; with 0, of all sentences of a document. No Doc crosses the end of a
    document."""
    waiting: list[list[T]] = []
    for sentence in sentences:
        if sentence:
            waiting.append(sentence)
        if waiting and (sentence is None or len(waiting) == n):
            yield waiting
            waiting = []
    if waiting:
        yield waiting


# --------------------------------------------------------------------------------------------------------- schemes


def find_scheme(sentences: Iterable[Optional[Sequence[Any]]]) -> str:
    """Find the scheme of a file's entity tags. sentences (Iterable): Rows, or other objects with a `place` and an `ent`.

    RAISES (ValueError): CRF704 with the first wrong tag, if others are entity tags; CRF867 if none of them is an entity tag.
    """
    letters: set[str] = set()
    bare: Any = None
    has_outside = opens_with_i = opens_with_b = False
    for sentence in sentences:
        before = ""
        for row in _each_level(sentence or ()):
            if row.ent is None:
                continue
            match = _TAG.fullmatch(row.ent)
            if match:
                letters.add(match[1])
                goes_on = before == match[2]
                opens_with_i |= match[1] == "I" and not goes_on
                opens_with_b |= match[1] == "B" and not goes_on
            elif row.ent == "O":
                has_outside = True
            elif row.ent != "-" and (bare is None or row.ent in _UNLABELLED):
                bare = row
            before = match[2] if match else ""
    if bare is not None:
        if letters or bare.ent in _UNLABELLED:
            raise ValueError(Errors.CRF704.format(place=bare.place, tag=bare.ent))
        if not has_outside:
            raise ValueError(Errors.CRF867.format(place=bare.place, tag=bare.ent))
        return "bare"
    if opens_with_i and not opens_with_b and letters <= set("BI"):
        return "IOB1"
    found = [name for name, known in SCHEMES.items() if letters <= set(known)]
    return found[0] if found else "BILUO"  # the check of BILUO will name the first wrong tag


def _each_level(sentence: Sequence[Any]) -> Iterator[Any]:
    """The rows of a sentence, then those with the entity tags of each further column."""
    yield from sentence
    for n in range(len(getattr(sentence[0], "inner", ())) if sentence else 0):
        yield from (row._replace(ent=row.inner[n]) for row in sentence)


def in_bio(rows: Sequence[Any], scheme: str) -> list[Optional[str]]:
    """Convert the entity tags of a sentence to BIO, as spaCy's Docs take them; None for a missing tag.

    RAISES (ValueError): With the place, if a tag does not belong to the scheme, or can't follow the tag before it.
    """
    found: list[Optional[str]] = []
    before = "O"
    for row in rows:
        tag = row.ent or "-"
        letter, label = _split(tag, scheme, row.place)
        last_letter, last_label = _split(before, scheme, row.place)
        same = bool(label) and label == last_label
        goes_on = same and last_letter in ("B", "I")
        if scheme in ("bare", "IOB1"):
            if letter == "B" and not same:
                raise ValueError(Errors.CRF866.format(place=row.place, tag=tag, before=before, scheme=scheme))
            letter = ("B" if letter == "B" or not same else "I") if label else letter
        elif scheme == "BIO":
            if letter == "I" and not goes_on:
                raise ValueError(Errors.CRF705.format(place=row.place, tag=tag, before=before, begin=f"B-{label}"))
        elif (letter in ("I", "L")) != (last_letter in ("B", "I")) or (letter in ("I", "L") and not same):
            raise ValueError(Errors.CRF866.format(place=row.place, tag=tag, before=before, scheme=scheme))
        found.append(None if letter == "-" else "O" if not label else f"{'B' if letter in ('B', 'U') else 'I'}-{label}")
        before = tag
    if scheme in ("BILUO", "BIOES", "BMES") and rows and _split(before, scheme, "")[0] in ("B", "I"):
        raise ValueError(Errors.CRF866.format(place=rows[-1].place, tag="the end", before=before, scheme=scheme))
    return found


def _split(tag: str, scheme: str, place: str) -> tuple[str, str]:
    """Split a tag into its letter in BILUO and its label. RAISES (ValueError): CRF704 if it does not belong to the scheme."""
    if tag in ("O", "-"):
        return tag, ""
    if scheme == "bare":
        return "I", tag
    match = _TAG.fullmatch(tag)
    if match is None or match[1] not in SCHEMES[scheme]:
        raise ValueError(Errors.CRF704.format(place=place, tag=tag))
    return _IN_BILUO.get(match[1], match[1]) if scheme in ("BIOES", "BMES") else match[1], match[2]


# --------------------------------------------------------------------------------------------------------- formats

_DOCUMENT = "-DOCSTART-"  # begins a document


def sentences_of_columns(source: Source, settings: ReadSettings, report: Report) -> Iterator[Optional[list[Row]]]:
    """Read columns. The word is in the first column and the entity tag in the last, unless the settings name others; for
    overlapping spans several columns. An empty line ends a sentence, and the line ``-DOCSTART-`` begins a document.

    RAISES (ValueError): CRF868 for columns that are not numbers from 1 on.
    """
    numbers, inner = [], []
    if settings.spans_key and settings.label_column and "," in settings.label_column:
        first, *others = settings.label_column.split(",")
        settings = replace(settings, label_column=first.strip())
        if not all(re.fullmatch("[1-9][0-9]{0,5}", number.strip()) for number in others):
            known = "numbers from 1, such as 3,4"
            raise ValueError(Errors.CRF868.format(option="label-column", value=",".join(others), known=known))
        inner = [*map(int, others)]
    for name in ("word_column", "label_column", "tag_column"):
        value = getattr(settings, name)
        if value is not None and not re.fullmatch("[1-9][0-9]{0,5}", value):
            raise ValueError(Errors.CRF868.format(option=name.replace("_", "-"), value=value, known="numbers from 1"))
        numbers.append(None if value is None else int(value))
    word, label, tag = numbers
    least, width = max(2, word or 0, label or 0, tag or 0, *inner), None
    rows: list[Row] = []
    for place, line in source.lines():
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or cells[0] == _DOCUMENT:
            if rows:
                yield rows
            if line.strip():
                yield None
            rows = []
            continue
        if line.startswith("# ") and not is_tag(cells[-1]) and len(cells) != width:
            continue  # a comment
        if len(cells) < least or len(cells) != (width or len(cells)):
            first = f"at least {least} (the word first, the tag last)"
            expected = first if width is None else f"{width}, as in the lines before,"
            raise ValueError(Errors.CRF703.format(place=place, got=len(cells), expected=expected))
        if width is None:
            width = len(cells)
            read_from = {word or 1, label or width, tag, *inner}
            report.columns = [str(n) for n in range(1, width + 1) if n not in read_from]
        ent = cells[(label or width) - 1].strip() if label or tag != width else None
        further = tuple(cells[number - 1].strip() for number in inner)
        rows.append(Row(place, cells[(word or 1) - 1], ent, cells[tag - 1] if tag else None, further))
        if not rows[-1].word or ent == "" or "" in further:
            raise unreadable(place, f"the {'tag' if rows[-1].word else 'word'} is empty")
    if rows:
        yield rows


def sniff_words(source: Source) -> bool:
    lines = [line for line in source.head_lines() if not line.startswith(_DOCUMENT)]
    parts = [part for line in lines for part in line.split()]
    tagged = [part for part in parts if "|" in part and not part.endswith("|")]
    return bool(parts) and all("|" in part for part in lines[0].split()) and len(tagged) > 0.9 * len(parts)


def sentences_of_words(source: Source, settings: ReadSettings, report: Report) -> Iterator[Optional[list[Row]]]:
    """Read ``word|tag``, or ``word|part of speech|tag``: a sentence on each line. The last part is the entity tag."""
    width = None
    for place, line in source.lines():
        if line.startswith(_DOCUMENT):
            yield None
            continue
        rows = []
        for part in line.split():
            width = width or (3 if part.count("|") == 2 and is_tag(part.rpartition("|")[2]) else 2)
            cells = part.rsplit("|", width - 1)
            if len(cells) != width or not cells[0] or not cells[-1]:
                form = "word|tag" if width == 2 else "word|part of speech|tag"
                raise unreadable(place, f"'{part}' is not {form}, as the words before")
            rows.append(Row(place, cells[0], cells[-1], cells[1] if width == 3 else None))
        if rows:
            yield rows


_WORDS = ("tokens", "words")
_ENTS = ("ner_tags", "ner", "tags", "labels")
_TAGS = ("pos_tags", "pos", "upos", "xpos")


def sniff_lists(source: Source) -> bool:
    """Whether items have lists of words and entity tags; or of tags of speech without a text, which may have spans."""
    items = source.head_items() if source.is_json() else ()
    return any(_key(item, _WORDS) and _key(item, _ENTS if "text" in item else (*_ENTS, *_TAGS)) for item in items)


def _key(item: Any, known: tuple[str, ...]) -> Optional[str]:
    """Find the first of some keys whose value is a list of strings or numbers."""
    lists = item.items() if isinstance(item, dict) else ()
    found = {key for key, value in lists if isinstance(value, list) and all(type(part) in (str, int) for part in value)}
    return next((key for key in known if key in found), None)


def sentences_of_lists(source: Source, settings: ReadSettings, report: Report) -> Iterator[list[Row]]:
    """Read a sentence from each item, such as ``{"tokens": […], "ner_tags": […], "pos_tags": […]}``, where one list of tags is
    enough. Numbers as tags need the setting ``tag_names``."""
    for place, value in source.items():
        fields = value.items() if isinstance(value, dict) else ()
        item = {key: part for key, part in fields if key not in settings.ignore}
        words, ents, tags = (_key(item, known) for known in (_WORDS, _ENTS, _TAGS))
        if tags and not all(isinstance(tag, str) for tag in item[tags]):
            tags = None  # they are numbers without names, which `_check` reports
        if words is None or not (ents or tags) or not all(isinstance(word, str) for word in item[words]):
            missing = 'list of words under "tokens", or none of tags under "ner_tags" or "pos_tags"'
            raise unreadable(place, f"it has no {missing}: {shown(value)}")
        _check(item, [key for key in (words, ents, tags) if key], place)
        none = [None] * len(item[words])
        given, of_tags = (item[key] if key else none for key in (ents, tags))
        names = [named(tag, settings.tag_names, place) if isinstance(tag, int) else tag for tag in given]
        rows: list[Any] = [Row(place, *row) for row in zip(item[words], names, of_tags)]
        if any(not row.word.strip() or row.ent == "" for row in rows):
            raise unreadable(place, f"a word or a tag is empty: {shown(value)}")
        if not all(is_unicode(part or "") for row in rows for part in row):
            raise unreadable(place, f"a word or a tag is not valid Unicode: {shown(value)}")
        yield rows


def _check(item: dict[str, Any], used: list[str], place: str) -> None:
    """Check an item. RAISES (ValueError): CRF701 if its lists differ in length, CRF707 if a list of tags would be lost."""
    words, *lists = used
    for key in lists:
        if len(item[key]) != len(item[words]):
            counts = f'{len(item[words])} words under "{words}", but {len(item[key])} tags under "{key}"'
            raise unreadable(place, counts)
    for key, value in item.items():
        if key not in used and isinstance(value, list) and value and key.endswith(("tags", "labels", "ner")):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known=", ".join(lists)))
