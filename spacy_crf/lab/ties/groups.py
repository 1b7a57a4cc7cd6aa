"""Templates that tie places of a Doc which have something in common: the same word (skip-chains: Sutton & McCallum 2004; Finkel,
Grenager & Manning 2005), the same phrase, or a link that something before the component has made."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ... import checks
from ...errors import Errors, Warnings, announcements
from ...features.doc_batch import DocBatch
from ..kernels.ties import repeated
from .templates import TieTemplate, TokenPairs, flags, has_heads

EDGES = ("next", "all", "hub")
WORDS = ("first", "all")


class GroupTemplate(TieTemplate):
    """Base of the templates that tie places of a Doc that have something in common.

    edges (str): "next", each place is tied to the next one; "hub", to the first one; "all", to all others: their number grows
        with the square of the places.
    max_edges (int): What would get more ties in a Doc gets none there: this is said once.
    """

    def __init__(self, features: Any, symmetric: bool, edges: str, max_edges: int):
        super().__init__(features, symmetric)
        self.edges = checks.one_of(self.owner, "edges", edges, EDGES)
        self.max_edges = checks.count(self.owner, "max_edges", max_edges, most=10_000_000)
        self._told = False

    def tie(
        self, docs: DocBatch, places: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of the places (int64[N]) with equal keys (uint64[N]) are tied: their numbers, the earlier one first."""
        if not len(places):
            none = np.zeros(0, dtype=np.int64)
            return none, none
        of_doc = docs.of_tokens(places)
        # By Doc, then by key; places of equal ones in their order
        order = np.lexsort((places, keys, of_doc))
        of_doc, keys = of_doc[order], keys[order]
        is_new = np.append(True, (np.diff(of_doc) > 0) | (keys[1:] != keys[:-1]))
        first = np.flatnonzero(is_new)
        counts = np.diff(np.append(first, len(order)))
        many = counts * (counts - 1) // 2 if self.edges == "all" else counts - 1
        self.tell_many(docs, places[order[first[many > self.max_edges]]])
        usable = np.repeat(many <= self.max_edges, counts)
        return self._tie(order[usable], is_new[usable], counts[many <= self.max_edges])

    def _tie(self, numbers: NDArray[np.int64], is_new: NDArray[np.bool_], counts: NDArray[np.int64]):
        """Ties what stands side by side.

        is_new (bool[N]): The first of each group. counts (int64[W]): Of each.
        """
        later = np.flatnonzero(~is_new)
        if self.edges == "next":
            return numbers[later - 1], numbers[later]
        first = np.repeat(np.flatnonzero(is_new), counts)
        if self.edges == "hub":
            return numbers[first[later]], numbers[later]
        before = later - first[later]  # how many earlier places each has
        source = np.repeat(first[later], before) + counted_up(before)
        return numbers[source], np.repeat(numbers[later], before)

    def tell_many(self, docs: DocBatch, tokens: NDArray[np.int64]) -> None:
        """Says of the first of some tokens that there would be too many ties."""
        if len(tokens) and not self._told:
            self._told = True
            d = int(docs.of_tokens(tokens[:1])[0])
            word = docs[d][int(tokens[0] - docs.bounds[d])].text
            message = Warnings.CRFW040.format(
                owner=self.owner, word=word, text=docs[d][:40].text[:40], most=self.max_edges
            )
            announcements.warning(message)


class Phrases(NamedTuple):
    """Spans of a batch, and what says which of those of a Doc belong together."""

    begin: NDArray[np.int64]  # [N]
    length: NDArray[np.int64]  # [N]
    key: NDArray[np.uint64]  # [N]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> "Phrases":
        """rows: Their begins, lengths and keys."""
        begin, length, key = zip(*rows) if rows else ((), (), ())
        return cls(np.array(begin, np.int64), np.array(length, np.int64), np.array(key, np.uint64))


class PhraseTemplate(GroupTemplate):
    """Base of the templates that tie phrases.

    words (str): "first", the first words of two phrases are tied; "all", the second ones, the third ones … as well.
    """

    def __init__(self, features: Any, symmetric: bool, edges: str, max_edges: int, words: str):
        super().__init__(features, symmetric, edges, max_edges)
        self.words = checks.one_of(self.owner, "words", words, WORDS)

    def phrases(self, docs: DocBatch) -> Phrases:
        raise NotImplementedError

    def find(self, docs: DocBatch) -> TokenPairs:
        found = self.phrases(docs)
        one, other = self.tie(docs, found.begin, found.key)
        source, target = found.begin[one], found.begin[other]
        if self.words == "all":
            several = np.minimum(found.length[one], found.length[other])
            further = counted_up(several)
            source, target = np.repeat(source, several) + further, np.repeat(target, several) + further
        apart = source != target  # spans may begin together, or follow one another twice
        pairs = np.unique(np.stack([source, target])[:, apart], axis=1)
        return TokenPairs(*pairs.astype(np.int64))

    def of_spans(self, docs: DocBatch, read: Callable[[Doc], Iterable[tuple[Span, Optional[int]]]]) -> Phrases:
        """Those of each Doc.

        read (Callable): Gives spans and their keys; those without one are left out.
        RAISES (ValueError): CRF369 for a span that is not in its Doc.
        """
        rows = []
        for doc, begin in zip(docs, docs.bounds.tolist()):
            for span, key in read(doc):
                if not 0 <= span.start < span.end <= len(doc):
                    where = f"{span.start} to {span.end}"
                    raise ValueError(Errors.CRF369.format(owner=self.owner, span=where, text=doc.text[:40], n=len(doc)))
                if key is not None:
                    rows.append((begin + span.start, span.end - span.start, key))
        return Phrases.of(rows)


def counted_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … up to each count."""
    after = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(after - counts, counts)


ATTRIBUTES = ("ORTH", "LOWER", "NORM", "LEMMA", "SHAPE", "PREFIX", "SUFFIX")


class RepeatedWords(GroupTemplate):
    """Ties the places at which a Doc has the same word.

    attr (str): By which words are the same: ORTH, LOWER, NORM, LEMMA, SHAPE, PREFIX or SUFFIX.
    only (Union[str, List[str]]): Flags of which a word must have one, such as "is_title"; None for any word.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]): See `TieTemplate`.
    symmetric (bool): See `TieTemplate`.
    """

    def __init__(
        self,
        attr: str = "ORTH",
        only: Any = "is_title",
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges)
        self.attr = checks.one_of(self.owner, "attr", attr, ATTRIBUTES)
        self.only = flags(self.owner, "only", only)

    @property
    def attributes(self) -> list[str]:
        return [self.attr.lower(), *self.only]

    def find(self, docs: DocBatch) -> TokenPairs:
        [words] = self.read(docs, [self.attr.lower()])
        some = repeated(words, (words != 0) & self.having(docs, self.only), docs.bounds)
        one, other = self.tie(docs, some, words[some])
        return TokenPairs(some[one], some[other])


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
    features (List[str]), symmetric (bool): See `TieTemplate`.
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
        """RAISES (ValueError): CRF367 for a Doc without heads, CRF367 for one of a language without noun chunks, CRF371 for one
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
            raise ValueError(
                Errors.CRF367.format(
                    owner=self.owner, what="heads", text=doc.text[:40], reason="noun chunks are found by them"
                )
            )
        try:
            return list(doc.noun_chunks) if len(doc) > 1 else []
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                Errors.CRF367.format(owner=self.owner, what="noun chunks", text=doc.text[:40], reason=error)
            ) from error

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


class LinkedSpans(PhraseTemplate):
    """Ties spans of a Doc that are linked.

    spans_key (str): "KEY", spans of `doc.spans[KEY]` that have the same `span.id_` are linked, those without one to none; "KEY*",
        the spans of each group are whose name begins with this, as with "coref_clusters_*".
    words (str): "first", the first words of two spans are tied; "all", the second ones, the third ones … as well.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool): See `TieTemplate`.
    """

    def __init__(
        self,
        spans_key: str = "links",
        words: str = "first",
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges, words)
        self.spans_key = checks.text(self.owner, "spans_key", spans_key)

    def phrases(self, docs: DocBatch) -> Phrases:
        """RAISES (ValueError): CRF371 for a Doc without the spans."""
        return self.of_spans(docs, self._linked)

    def _linked(self, doc: Doc) -> Iterator[tuple[Span, Optional[int]]]:
        """Spans and the numbers of what they are linked by."""
        if not self.spans_key.endswith("*"):
            for span in spans_of(self.owner, doc, self.spans_key):
                yield span, span.id or None
            return
        groups = [name for name in doc.spans if name.startswith(self.spans_key[:-1])]
        for number, name in enumerate(groups):
            for span in doc.spans[name]:
                yield span, number
