"""The same phrase at several places of a Doc: where a single word says little, as of names that share their words with others."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ... import checks
from ...errors import Errors
from ...features.doc_batch import DocBatch
from ..kernels.ties import repeated
from .groups import Phrases, PhraseTemplate
from .repeated_words import ATTRIBUTES
from .template import flags, has_heads

_MIX = np.uint64(0x9E3779B97F4A7C15)


class RepeatedPhrases(PhraseTemplate):
    """Ties the places at which a Doc has the same phrase.

    phrases (str): What a phrase is. "words", words that stand in this order twice, as many as do; "noun_chunks", those of the
        Doc, which needs a parser; "spans:KEY", those of `doc.spans[KEY]`, such as what a `span_ruler` finds of a list.
    attr (str): By which words are the same, as of `RepeatedWords`.
    only (Union[str, List[str]]): Flags of which each word must have one where phrases are words; None for any words.
    shortest (int), longest (int): Words of a phrase.
    words (str): "first", the first words of two phrases are tied; "all", the second ones, the third ones … as well.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool): See `CliqueTemplate`.
    """

    def __init__(
        self,
        phrases: str = "words",
        attr: str = "ORTH",
        only: Any = "is_title",
        shortest: int = 2,
        longest: int = 8,
        words: str = "first",
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges, words)
        owner = self.owner
        is_known = phrases in ("words", "noun_chunks") or (isinstance(phrases, str) and phrases[6:])
        must = 'one of "words", "noun_chunks" and "spans:KEY", with a key of doc.spans'
        checks.expect(is_known and (phrases[:6] == "spans:" or ":" not in phrases), owner, "phrases", phrases, must)
        self.source = phrases
        self.attr = checks.one_of(owner, "attr", attr, ATTRIBUTES)
        self.only = flags(owner, "only", only)
        self.longest = checks.count(owner, "longest", longest, most=1000)
        self.shortest = checks.count(owner, "shortest", shortest, most=self.longest)

    @property
    def attributes(self) -> list[str]:
        return [self.attr.lower(), *self.only]

    @property
    def reads(self) -> list[str]:
        return [*super().reads, *(["head"] if self.source == "noun_chunks" else [])]

    def phrases(self, docs: DocBatch) -> Phrases:
        """RAISES (ValueError): CRF367 for a Doc without heads, CRF370 for one of a language without noun chunks, CRF371 for one
        without the spans."""
        if self.source == "words":
            return self._of_words(docs)
        return self.of_spans(docs, lambda doc: [(span, self._key(span)) for span in self._spans(doc)])

    def _of_words(self, docs: DocBatch) -> Phrases:
        """Words that stand in this order twice: the longest first, and shorter ones that stand anywhere else too."""
        [words] = self.read(docs, [self.attr.lower()])
        usable = (words != 0) & self.having(docs, self.only)
        left, begins, lengths, keys = _runs(usable, docs.sequence_starts()), [], [], []
        covered = np.zeros(len(words), dtype=bool)
        hashes = _hashes_of_runs(words, min(self.longest, int(left.max(initial=0))))
        for length in range(len(hashes), self.shortest - 1, -1):
            key = hashes[length - 1] ^ np.uint64(length)
            some = repeated(key, left >= length, docs.bounds)
            of_docs = key[some] ^ (docs.of_tokens(some).astype(np.uint64) * _MIX)
            some = some[np.isin(of_docs, of_docs[~covered[some]])]
            begins.append(some)
            lengths.append(np.full(len(some), length))
            keys.append(key[some])
            covered[(some[:, np.newaxis] + np.arange(length)).ravel()] = True
        if not begins:
            return Phrases.of([])
        return Phrases(np.concatenate(begins), np.concatenate(lengths), np.concatenate(keys))

    def _spans(self, doc: Doc) -> list[Span]:
        if self.source != "noun_chunks":
            return spans_of(self.owner, doc, self.source[6:])
        if len(doc) > 1 and not has_heads(doc):
            raise ValueError(Errors.CRF367.format(owner=self.owner, text=doc.text[:40]))
        try:
            return list(doc.noun_chunks) if len(doc) > 1 else []
        except (NotImplementedError, ValueError) as error:
            raise ValueError(Errors.CRF370.format(owner=self.owner, text=doc.text[:40], reason=error)) from error

    def _key(self, span: Span) -> Optional[int]:
        if not self.shortest <= len(span) <= self.longest:
            return None
        read = [getattr(token, self.attr.lower()) for token in span]
        return int(_hashes_of_runs(np.array(read, dtype=np.uint64), len(read))[-1][0]) ^ len(read)


def spans_of(owner: str, doc: Doc, key: str) -> list[Span]:
    """RAISES (ValueError): CRF371 where the Doc has no such spans."""
    if key not in doc.spans:
        if not len(doc):
            return []
        known = ", ".join(map(repr, doc.spans)) or "none"
        raise ValueError(Errors.CRF371.format(owner=owner, key=key, text=doc.text[:40], known=known))
    return list(doc.spans[key])


def _runs(usable: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many usable tokens of its sentence follow one another from each token on: int64[T]."""
    stops = ~usable
    n_tokens = len(usable)
    ends = np.where(stops, np.arange(n_tokens), n_tokens)
    last = np.repeat(starts[1:], np.diff(starts))  # the end of the sentence
    next_stop = np.minimum.accumulate(ends[::-1])[::-1]
    return np.maximum(np.minimum(next_stop, last) - np.arange(n_tokens), 0)


def _hashes_of_runs(words: NDArray[np.uint64], longest: int) -> list[NDArray[np.uint64]]:
    """Of the 1, 2 … words from each token on: uint64[T] each, of those that go beyond the end anything."""
    found, last = [], np.full(len(words), _MIX)
    for n in range(longest):
        following = np.append(words[n:], np.zeros(n, dtype=np.uint64))[: len(words)]
        last = (last ^ following) * np.uint64(0xBF58476D1CE4E5B9)
        last = last ^ (last >> np.uint64(29))
        found.append(last)
    return found
