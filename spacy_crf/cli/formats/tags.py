"""Sentences of words with tags: which scheme their tags are of, and the Docs that they become."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Optional, TypeVar

from spacy.tokens import Doc
from spacy.vocab import Vocab

from ...errors import Errors
from .settings import Report, Settings

# The letters that each puts before labels. Of the first that has all letters of a file, the file is.
SCHEMES = {"BIO": "BI", "IOB1": "BI", "BILUO": "BILU", "BIOES": "BIES", "BMES": "BMES", "bare": ""}
_IN_BILUO = {"E": "L", "S": "U", "M": "I"}
_TAG = re.compile(r"([BILUESM])-(.+)")
_UNLABELLED = {"B", "I", "L", "U", "E", "S", "M"}  # tags of one kind of entity, whose name is not told

T = TypeVar("T")


class Row(NamedTuple):
    """A token. None is what its file does not annotate; the entity tag ``-`` is what is missing here."""

    place: str
    word: str
    ent: Optional[str] = None
    tag: Optional[str] = None


# The rows of a sentence, or None where a document ends
Sentences = Callable[[], Iterator[Optional[list[Row]]]]


def is_tag(text: str) -> bool:
    return text in ("O", "-") or _TAG.fullmatch(text) is not None


def tagged_docs(sentences: Sentences, vocab: Vocab, settings: Settings, report: Report) -> Iterator[Doc]:
    """Docs of so many sentences as was asked for. Reads the file twice where its tags have to tell the scheme.

    RAISES (ValueError): With the place, where a tag is none of the scheme.
    """
    scheme = settings.scheme or find_scheme(sentences())
    report.scheme = scheme
    for group in in_groups(sentences(), settings.n_sents):
        report.has_spans |= group[0][0].ent is not None
        yield _make_doc(group, vocab, scheme, has_sents=settings.n_sents != 1)


def in_groups(sentences: Iterable[Optional[list[T]]], n: int) -> Iterator[list[list[T]]]:
    """The sentences of one Doc: so many, or with 0 all up to where a document ends, which is where none goes on."""
    waiting: list[list[T]] = []
    for sentence in sentences:
        if sentence:
            waiting.append(sentence)
        if waiting and (sentence is None or len(waiting) == n):
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _make_doc(sentences: list[list[Row]], vocab: Vocab, scheme: str, *, has_sents: bool) -> Doc:
    rows = [row for sentence in sentences for row in sentence]
    ents = [tag for sentence in sentences for tag in in_bio(sentence, scheme)]
    first = {0}
    for sentence in sentences:
        first.add(max(first) + len(sentence))
    return Doc(
        vocab,
        words=[row.word for row in rows],
        tags=[row.tag or "" for row in rows] if rows[0].tag is not None else None,
        ents=ents if rows[0].ent is not None else None,
        sent_starts=[n in first for n in range(len(rows))] if has_sents else None,
    )


# --------------------------------------------------------------------------------------------------------- schemes


def find_scheme(sentences: Iterable[Optional[list[Row]]]) -> str:
    """The scheme that the entity tags of a file are of.

    RAISES (ValueError): If it can't be told: CRF704 with the first tag that is none, CRF867 if none of the tags is.
    """
    letters: set[str] = set()
    bare: Optional[Row] = None
    has_outside = opens_with_i = opens_with_b = False
    for sentence in sentences:
        before = ""
        for row in sentence or ():
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
    return found[0] if found else "BILUO"  # which will name the first tag that is none of it


def in_bio(rows: list[Row], scheme: str) -> list[Optional[str]]:
    """Entity tags of a sentence as spaCy's Docs take them: None where they are missing.

    RAISES (ValueError): With the place, where one is none of the scheme, or can't follow the one before.
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
    """The letter, as BILUO has it, and the label."""
    if tag in ("O", "-"):
        return tag, ""
    if scheme == "bare":
        return "I", tag
    match = _TAG.fullmatch(tag)
    if match is None or match[1] not in SCHEMES[scheme]:
        raise ValueError(Errors.CRF704.format(place=place, tag=tag))
    return _IN_BILUO.get(match[1], match[1]) if scheme in ("BIOES", "BMES") else match[1], match[2]
