"""Sentences of words with tags: the scheme of the tags, and the Docs that are made of them."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Optional, TypeVar

from spacy.tokens import Doc
from spacy.vocab import Vocab

from ...errors import Errors
from .source import ReadSettings, Report

# The letters that a scheme puts before labels. A file has the first scheme with all of its letters
SCHEMES = {"BIO": "BI", "IOB1": "BI", "BILUO": "BILU", "BIOES": "BIES", "BMES": "BMES", "bare": ""}
_IN_BILUO = {"E": "L", "S": "U", "M": "I"}
_TAG = re.compile(r"([BILUESM])-(.+)")
_UNLABELLED = {"B", "I", "L", "U", "E", "S", "M"}  # tags without label, in files with one kind of entity

T = TypeVar("T")


class Row(NamedTuple):
    """A token. None: the file does not annotate this at all; the entity tag ``-``: the annotation of this token is missing."""

    place: str
    word: str
    ent: Optional[str] = None
    tag: Optional[str] = None


# Gives the rows of each sentence, and None at the end of each document
Sentences = Callable[[], Iterator[Optional[list[Row]]]]


def is_tag(text: str) -> bool:
    return text in ("O", "-") or _TAG.fullmatch(text) is not None


def tagged_docs(sentences: Sentences, vocab: Vocab, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Make Docs of as many sentences as the settings say. Without a scheme in the settings, the sentences are read twice.

    RAISES (ValueError): With the place, if a tag does not belong to the scheme.
    """
    scheme = settings.scheme or find_scheme(sentences())
    report.scheme = scheme
    for group in in_groups(sentences(), settings.n_sents):
        report.has_spans |= group[0][0].ent is not None
        yield _make_doc(group, vocab, scheme, has_sents=settings.n_sents != 1)


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
    """Find the scheme of a file's entity tags.

    RAISES (ValueError): CRF704 with the first wrong tag, if others are entity tags; CRF867 if none of them is an entity tag.
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
    return found[0] if found else "BILUO"  # whose check will name the first wrong tag


def in_bio(rows: list[Row], scheme: str) -> list[Optional[str]]:
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
