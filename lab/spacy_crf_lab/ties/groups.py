"""Templates that tie related places of a Doc: equal words (skip-chains: Sutton & McCallum 2004; Finkel, Grenager & Manning 2005),
equal phrases, or spans that an earlier component has linked."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from spacy_crf import checks
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.objective import setting

from ..errors import Errors, Warnings
from .templates import TieTemplate, TokenPairs, flags, has_heads, template

EDGES = ("next", "all", "hub", "group")
WORDS = ("first", "all")
ATTRIBUTES = ("ORTH", "LOWER", "NORM", "LEMMA", "SHAPE", "PREFIX", "SUFFIX")
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Places(NamedTuple):
    """Words or phrases of a batch."""

    begin: NDArray[np.int64]  # [N]
    key: NDArray[np.uint64]  # [N] equal for those of a Doc that belong together
    length: Optional[NDArray[np.int64]] = None  # [N] None for words

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> "Places":
        """rows: Begins, keys and lengths."""
        begin, key, length = np.array(rows, dtype=object).reshape(-1, 3).T
        return cls(begin.astype(np.int64), key.astype(np.uint64), length.astype(np.int64))


@dataclass(kw_only=True, eq=False, repr=False)
class GroupTemplate(TieTemplate):
    """Base of the templates that tie groups of places in a Doc: words, or phrases by their first words or all words.

    edges (str): "next" ties each place to the next one; "hub" ties it to the first one; "all" ties it to all others, which needs
        a number of ties that grows with the square of the places; "group" gives the tokens that "next" would connect one reward
        for each label, which they get if all have it (needs `associative`, and an inference that takes groups).
    max_edges (int): A group that would get more ties in a Doc gets none there; a warning is logged once.
    """

    edges: str = setting("next", checks.one_of, allowed=EDGES)
    max_edges: int = setting(1000, checks.count, most=10_000_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.expect(
            self.edges != "group" or self.associative,
            self.owner,
            "edges",
            self.edges,
            'other edges, or "group" with associative = true',
        )

    def places(self, docs: DocBatch) -> Places:
        """Find the places, and the keys of their groups."""
        raise NotImplementedError

    def find(self, docs: DocBatch) -> TokenPairs:
        """The tied tokens of places whose keys are equal."""
        begin, key, length = self.places(docs)
        one, other = self._tie(docs, begin, key)
        source = begin[one]
        target = begin[other]
        if length is None:
            return TokenPairs(source, target)
        if getattr(self, "words", "first") == "all":  # a setting of the templates of phrases
            # Spans of different lengths: as many words as the shorter one has
            several = np.minimum(length[one], length[other])
            further = counted_up(several)
            source = np.repeat(source, several) + further
            target = np.repeat(target, several) + further
        apart = source != target  # spans may begin together, or follow one another twice
        return TokenPairs(*np.unique(np.stack([source, target])[:, apart], axis=1).astype(np.int64))

    def _tie(
        self, docs: DocBatch, places: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tie places (int64[N]) with equal keys (uint64[N]). RETURNS: The numbers of tied places, the earlier place first."""
        of_doc = docs.of_tokens(places)
        # By Doc, then by key; places of equal keys in their order
        order = np.lexsort((places, keys, of_doc))
        of_doc = of_doc[order]
        keys = keys[order]
        is_new = np.append(True, (np.diff(of_doc) > 0) | (keys[1:] != keys[:-1]))[: len(order)]
        first = np.flatnonzero(is_new)
        counts = np.diff(np.append(first, len(order)))
        many = counts * (counts - 1) // 2 if self.edges == "all" else counts - 1
        self.warn_many(docs, places[order[first[many > self.max_edges]]])
        is_usable = np.repeat(many <= self.max_edges, counts)
        order = order[is_usable]
        is_new = is_new[is_usable]
        counts = counts[many <= self.max_edges]
        later = np.flatnonzero(~is_new)
        if self.edges in ("next", "group"):
            return order[later - 1], order[later]
        first = np.repeat(np.flatnonzero(is_new), counts)
        if self.edges == "hub":
            return order[first[later]], order[later]
        before = later - first[later]  # how many earlier places each has
        return order[np.repeat(first[later], before) + counted_up(before)], np.repeat(order[later], before)

    def warn_many(self, docs: DocBatch, tokens: NDArray[np.int64]) -> None:
        """Warn that the first of some tokens would have too many ties."""
        if len(tokens):
            d = int(docs.of_tokens(tokens[:1])[0])
            word = docs[d][int(tokens[0] - docs.bounds[d])].text
            self.warn_once(Warnings.CRFW040, word=word, text=docs[d][:40].text[:40], most=self.max_edges)

    def in_spans(self, docs: DocBatch, read: Callable[[Doc], Iterable[tuple[Span, Optional[int]]]]) -> Places:
        """The spans of each Doc.

        read (Callable): Returns spans and their keys; spans without a key are left out.
        RAISES (ValueError): CRF369 for a span that is not in its Doc.
        """
        rows = []
        for doc, begin in zip(docs, docs.bounds.tolist()):
            for span, key in read(doc):
                if not 0 <= span.start < span.end <= len(doc):
                    raise ValueError(
                        Errors.CRF369.format(
                            owner=self.owner, span=f"{span.start} to {span.end}", text=doc.text[:40], n=len(doc)
                        )
                    )
                if key is not None:
                    rows.append((begin + span.start, key, span.end - span.start))
        return Places.of(rows)


def _repeated(docs: DocBatch, keys: NDArray[np.uint64], usable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The usable tokens (of bool[T]) whose key another usable token of the Doc has: int64[N]."""
    some = np.flatnonzero(usable)
    keys = _in_docs(docs, some, keys[some])
    distinct, counts = np.unique(keys, return_counts=True)
    return some[np.isin(keys, distinct[counts > 1])]


def _in_docs(docs: DocBatch, tokens: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys of tokens that differ from Doc to Doc."""
    return keys ^ (docs.of_tokens(tokens).astype(np.uint64) * _MIX)


def counted_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … up to each count."""
    after = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(after - counts, counts)


@template
class RepeatedWords(GroupTemplate):
    """Ties the places of equal words in a Doc.

    attr (str): Attribute by which words are compared: ORTH, LOWER, NORM, LEMMA, SHAPE, PREFIX or SUFFIX.
    only (Union[str, List[str]]): Flags, such as "is_title", at least one of which a word must have; None for any word.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]): See `TieTemplate`.
    symmetric (bool), associative (bool): See `TieTemplate`.
    """

    attr: str = setting("ORTH", checks.one_of, allowed=ATTRIBUTES)
    only: Union[str, list[str], None] = setting("is_title", flags)

    def places(self, docs: DocBatch) -> Places:
        """The words that a Doc has more than once."""
        [words] = self.read(docs, [self.attr.lower()])
        some = _repeated(docs, words, (words != 0) & self.usable(docs))
        return Places(some, words[some])


def _phrases(owner: str, name: str, value: Any) -> str:
    is_known = value in ("words", "noun_chunks") or (isinstance(value, str) and value[:6] == "spans:" and value[6:])
    checks.expect(
        is_known, owner, name, value, 'one of "words", "noun_chunks" and "spans:KEY", with a key of doc.spans'
    )
    return value


@template
class RepeatedPhrases(GroupTemplate):
    """Ties the places of equal phrases in a Doc.

    phrases (str): Source of phrases: "words" for the longest sequences of words that occur twice; "noun_chunks" for the Doc's
        noun chunks, which need a parser; "spans:KEY" for `doc.spans[KEY]`, such as the matches of a `span_ruler`.
    attr (str): Attribute by which words are compared, as in `RepeatedWords`.
    only (Union[str, List[str]]): For "words", flags at least one of which each word must have; None for any words.
    shortest (int), longest (int): Number of words in a phrase.
    words (str): "first" ties the first words of two phrases; "all" also ties the second words, the third words, and so on.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool), associative (bool): See `TieTemplate`.
    """

    phrases: str = setting("words", _phrases)
    attr: str = setting("ORTH", checks.one_of, allowed=ATTRIBUTES)
    only: Union[str, list[str], None] = setting("is_title", flags)
    shortest: int = setting(2, checks.count)
    longest: int = setting(8, checks.count, most=1000)
    words: str = setting("first", checks.one_of, allowed=WORDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count(self.owner, "shortest", self.shortest, most=self.longest)

    @property
    def reads(self) -> list[str]:
        """Attributes that earlier components set, with the heads that noun chunks need."""
        return [*super().reads, *(["head"] if self.phrases == "noun_chunks" else [])]

    def places(self, docs: DocBatch) -> Places:
        """RAISES (ValueError): CRF367 for a Doc without heads, or of a language without noun chunks, CRF371 for a Doc without the
        spans."""
        if self.phrases == "words":
            return self._of_words(docs)
        return self.in_spans(docs, lambda doc: [(span, self._key(span)) for span in self._spans(doc)])

    def _of_words(self, docs: DocBatch) -> Places:
        """Sequences of words that occur twice: the longest first, and shorter ones that occur anywhere else too."""
        [words] = self.read(docs, [self.attr.lower()])
        left = _runs((words != 0) & self.usable(docs), docs.sequence_starts())
        begins = []
        lengths = []
        keys = []
        covered = np.zeros(len(words), dtype=bool)
        hashes = _hashes_of_runs(words, min(self.longest, int(left.max(initial=0))))
        for length in range(len(hashes), self.shortest - 1, -1):
            # Phrases of different lengths have different keys
            key = hashes[length - 1] ^ np.uint64(length)
            some = _repeated(docs, key, left >= length)
            of_docs = _in_docs(docs, some, key[some])
            # At least one place of the phrase must be outside of longer phrases
            some = some[np.isin(of_docs, of_docs[~covered[some]])]
            begins.append(some)
            lengths.append(np.full(len(some), length))
            keys.append(key[some])
            covered[(some[:, np.newaxis] + np.arange(length)).ravel()] = True
        return Places(*map(np.concatenate, (begins, keys, lengths))) if begins else Places.of([])

    def _spans(self, doc: Doc) -> list[Span]:
        if self.phrases != "noun_chunks":
            return spans_of(self.owner, doc, self.phrases[6:])
        if len(doc) > 1 and not has_heads(doc):
            raise ValueError(
                Errors.CRF367.format(owner=self.owner, what="heads", text=doc.text[:40], reason="noun chunks need them")
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
    """Lengths of the runs of usable tokens, within sentences, from each token on: int64[T]."""
    n_tokens = len(usable)
    ends = np.where(usable, n_tokens, np.arange(n_tokens))
    last = np.repeat(starts[1:], np.diff(starts))  # the end of the sentence
    next_stop = np.minimum.accumulate(ends[::-1])[::-1]
    return np.maximum(np.minimum(next_stop, last) - np.arange(n_tokens), 0)


def _hashes_of_runs(words: NDArray[np.uint64], longest: int) -> list[NDArray[np.uint64]]:
    """Hashes of the 1, 2 … words from each token on: uint64[T] each; beyond the end they mean nothing."""
    found = []
    last = np.full(len(words), _MIX)
    for n in range(longest):
        following = np.append(words[n:], np.zeros(n, dtype=np.uint64))[: len(words)]
        last = (last ^ following) * np.uint64(0xBF58476D1CE4E5B9)
        last = last ^ (last >> np.uint64(29))
        found.append(last)
    return found


@template
class LinkedSpans(GroupTemplate):
    """Ties spans of a Doc that are linked.

    spans_key (str): "KEY" links the spans of `doc.spans[KEY]` that have the same `span.id_`, except spans without one; "KEY*"
        links the spans of each group whose name begins with KEY, such as "coref_clusters_*".
    words (str): "first" ties the first words of two spans; "all" also ties the second words, the third words, and so on.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool), associative (bool): See `TieTemplate`.
    """

    spans_key: str = setting("links", checks.text)
    words: str = setting("first", checks.one_of, allowed=WORDS)

    def places(self, docs: DocBatch) -> Places:
        """RAISES (ValueError): CRF371 for a Doc without the spans."""
        return self.in_spans(docs, self._linked)

    def _linked(self, doc: Doc) -> Iterator[tuple[Span, Optional[int]]]:
        """Spans, and the numbers of the links."""
        if not self.spans_key.endswith("*"):
            for span in spans_of(self.owner, doc, self.spans_key):
                yield span, span.id or None
            return
        groups = [name for name in doc.spans if name.startswith(self.spans_key[:-1])]
        for number, name in enumerate(groups):
            for span in doc.spans[name]:
                yield span, number
