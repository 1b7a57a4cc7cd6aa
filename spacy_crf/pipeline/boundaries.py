"""Reads the boundaries of words and sentences from reference Docs, for the trainable tokenizer."""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, Optional, TypeVar, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokenizer import Tokenizer
from spacy.tokens import Doc

from ..errors import Errors, announcements, in_number
from ..features.characters import UNICODE, Lexicon, Texts
from ..kernels.characters import BEGINNING, BLANK
from ..models.characters import INSIDE, Annotated
from ..types import UNKNOWN_WORDS, Bools

BATCH = 1 << 16  # code points in a batch of training, and in a batch of `pipe`
YES = 1
NO = -1
NOT_KNOWN = 0

Item = TypeVar("Item")


class Gold(NamedTuple):
    """Annotation of a text: for each character, whether a boundary is before it (YES, NO or NOT_KNOWN)."""

    text: str
    words: NDArray[np.int8]  # [T] whether a word begins here
    sentences: NDArray[np.int8]  # [T] whether a sentence begins here


class AnnotatedTexts(NamedTuple):
    """The training data as tags."""

    batches: list[Annotated]
    joins_words: bool  # whether words never begin inside of a run of letters, marks and digits, which then is one unit
    has_blanks: bool  # whether words have white space inside


def read_gold(doc: Doc, annotation: str, lexicon: Lexicon) -> Gold:
    """Read the annotation of a text from a reference Doc.

    doc (Doc): The reference.
    annotation (str): What the reference says, "tokens" or "partial", see `CharacterTokenizer.initialize`.
    lexicon (Lexicon): The words whose edges are known with "partial".
    """
    text = doc.text
    lengths = doc.to_array("LENGTH").astype(np.int64)
    ends = np.cumsum(lengths + doc.to_array("SPACY").astype(np.int64))
    starts = np.append(0, ends)[: len(doc)]
    if annotation == "tokens":
        words = np.full(len(text), NO, dtype=np.int8)
        words[starts[doc.to_array("IS_SPACE") == 0]] = YES
        for span in doc.spans.get(UNKNOWN_WORDS, ()):
            words[starts[span.start + 1 : span.end]] = NOT_KNOWN
    else:
        words = lexicon.annotation(text)
        for ent in doc.ents:
            words[ent.start_char] = YES
            words[ent.end_char : ent.end_char + 1] = YES  # a slice, since the text may end there
    sentences = np.where(words == NO, NO, NOT_KNOWN).astype(np.int8)
    # spaCy's values are 1, -1 and 0, as unsigned numbers
    sentences[starts] = doc.to_array("SENT_START").astype(np.int64) if doc.has_annotation("SENT_START") else NOT_KNOWN
    return Gold(text, words, sentences)


def sentences_at_words(doc: Doc) -> Doc:
    """The words and sentences of a Doc (`doc`), where a sentence that begins with white space begins with the word behind it, as
    the tokenizer finds it. White space at the beginning of the text belongs to the first sentence."""
    if not doc.has_annotation("SENT_START"):
        return doc
    begins: list[Union[bool, int, None]] = [bool(token.is_sent_start) for token in doc]
    begins.append(False)  # behind the text
    for token in doc[1:]:
        if token.is_space and begins[token.i]:
            begins[token.i] = False
            begins[token.i + 1] = True
    spaces = [bool(token.whitespace_) for token in doc]
    return Doc(doc.vocab, words=[token.text for token in doc], spaces=spaces, sent_starts=begins[:-1])


def tell_sentences(golds: Iterable[Gold]) -> bool:
    """Whether a sentence is known to begin behind the first word of a text, and some word is known to begin none."""
    tell_starts = False
    tell_others = False
    for gold in golds:
        words = np.flatnonzero(gold.words != NO)
        starts = np.flatnonzero(gold.sentences == YES)  # also with white space
        tell_starts = tell_starts or bool((starts > words[:1]).any())
        tell_others = tell_others or bool((gold.sentences[words] == NO).any())
    return tell_starts and tell_others


def known_words(gold: Gold) -> Iterator[str]:
    """The words of a text both of whose edges are known."""
    places = np.flatnonzero(gold.words != NO).tolist()
    edges = [*gold.words.tolist(), YES]
    for start, behind in pairwise([*places, len(gold.text)]):
        if edges[start] == edges[behind] == YES:
            yield gold.text[start:behind].rstrip()


def annotated_texts(
    golds: list[Gold], *, with_sentences: bool, may_join: bool, language_rules: Optional[Tokenizer]
) -> AnnotatedTexts:
    """Turn what is known of texts into tags.

    golds (list[Gold]): The texts, and what is known.
    with_sentences (bool): Whether tags tell sentences too.
    may_join (bool): Whether runs of letters, marks and digits may become single units.
    language_rules (Optional[Tokenizer]): See `Texts.of`.
    RAISES (ValueError): CRF992 if no text has a word, CRF993 if nothing tells where sentences begin, or where none does, and
        sentences are to be found; CRF994 if nothing tells where words go on.
    """
    n_moved = 0
    has_blanks = False
    goes_on_somewhere = False
    says_all = True  # whether each boundary is known
    joins_words = may_join
    batches = []
    batches_of_runs = []  # the same texts with runs as units
    for batch in batches_of(golds, lambda gold: len(gold.text), len(golds)):
        texts_of_batch = [gold.text for gold in batch]
        texts = Texts.of(texts_of_batch, joins_words=False, language_rules=language_rules)
        clamp, n_moved_here = _clamp(texts, batch, n_tags=3 if with_sentences else 2)
        n_moved += n_moved_here
        goes_on = np.logical_not(clamp[:, :INSIDE].any(axis=1))
        is_unknown = clamp[:, INSIDE] & ~goes_on & (texts.gaps != BEGINNING)
        goes_on_somewhere = goes_on_somewhere or bool(goes_on.any())
        says_all = says_all and not is_unknown.any()
        has_blanks = has_blanks or bool(goes_on[texts.gaps == BLANK].any())
        batches.append(Annotated(texts, clamp))
        if joins_words:
            runs = Texts.of(texts_of_batch, joins_words=True, language_rules=language_rules)
            begins_run = np.isin(texts.units, runs.units)
            joins_words = not clamp[~begins_run, :INSIDE].any()
            batches_of_runs.append(Annotated(runs, clamp[begins_run]))
    if not any(len(texts.units) for texts, _ in batches):
        raise ValueError(Errors.CRF992)
    if not (goes_on_somewhere or says_all):
        raise ValueError(Errors.CRF994)
    if with_sentences and not tell_sentences(golds):
        raise ValueError(Errors.CRF993)
    if n_moved:
        text = "tokenizer: %s inside of characters (grapheme clusters of Unicode %s) moved behind them"
        announcements.info(text, in_number(n_moved, "boundary|boundaries"), UNICODE)
    return AnnotatedTexts(batches_of_runs if joins_words else batches, joins_words, has_blanks)


def batches_of(items: Iterable[Item], size_of: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Batches of at most so many items, and of about `BATCH` characters, whose number `size_of` returns for an item."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= BATCH or len(batch) >= most:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _clamp(texts: Texts, golds: list[Gold], *, n_tags: int) -> tuple[Bools, int]:
    """The tags that the annotation of texts allows.

    texts (Texts): The texts, with grapheme clusters as units.
    golds (list[Gold]): Their annotation.
    n_tags (int): S.
    RETURNS (bool[U, S], int): The tags of each unit; and how many boundaries were inside of grapheme clusters.
    """
    words = np.concatenate([gold.words for gold in golds])
    sentences = np.concatenate([gold.sentences for gold in golds])
    known_words = words[texts.units]
    known_sentences = sentences[texts.units]
    places = np.flatnonzero((words == YES) | (sentences == YES))
    # A boundary before white space, or inside of a cluster, is one before the next unit
    units = np.searchsorted(texts.units, places)
    is_inside = units < len(texts.units)
    known_words[units[is_inside]] = YES
    starts_sentence = sentences[places[is_inside]] == YES
    known_sentences[units[is_inside][starts_sentence]] = YES
    n_moved = int((~texts.begins[places]).sum())
    clamp = np.ones((len(texts.units), n_tags), dtype=bool)
    clamp[known_words == YES, INSIDE] = False
    clamp[known_words == NO, :INSIDE] = False
    if n_tags > 2:
        clamp[known_sentences == YES, 1:] = False
        clamp[known_sentences == NO, 0] = False
    clamp[texts.gaps == BEGINNING] = True  # where a word, and a sentence, begins anyway
    return clamp, n_moved
