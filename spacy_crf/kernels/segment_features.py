"""Features of whole spans: hashes of their words, and the nearest phrases of a list."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Ints
from . import helper, kernel
from .hashing import ABSENT, sift
from .numerics import NO_FEATURE, mix

# Kinds of template parts, by the value that they read from a span of the tokens b to e - 1
LENGTH = 0
WHOLE = 1
FIRST = 2
LAST = 3


@kernel
def hash_whole(column, begin, length):
    """Hash of all values of a span, word by word.

    column (uint64[T]): One value per token.
    begin (int64[N]), length (int32[N]): The spans; if they are sorted by first token, then by length, each takes one step.
    RETURNS (uint64[N])
    """
    hashes = np.empty(len(begin), dtype=np.uint64)
    for n in range(len(begin)):
        if n > 0 and begin[n] == begin[n - 1] and length[n] == length[n - 1] + 1:
            hashes[n] = mix(hashes[n - 1], column[begin[n] + length[n] - 1])
        else:
            hashed = NO_FEATURE
            for t in range(begin[n], begin[n] + length[n]):
                hashed = mix(hashed, column[t])
            hashes[n] = hashed
    return hashes


class SpanTokens(NamedTuple):
    """The columns of T tokens that span templates read."""

    values: NDArray[np.uint64]  # [C, P] at all positions, see `hashing.place`
    positions: Ints  # [T] position of each token
    closing: Ints  # [T] where the sequence of each token ends


class SpanTemplates(NamedTuple):
    """M span templates with P parts in total."""

    seeds: NDArray[np.uint64]  # [M] the templates' own hashes
    part_starts: Ints  # [M + 1]
    kinds: Ints  # [P]
    columns: Ints  # [P]
    offsets: Ints  # [P] distance of the token that a part reads from the first or last token of the span, at most R


@kernel
def hash_spans(tokens, templates, begin, length, wholes):
    """Hash of every template at every span: uint64[N, M], NO_FEATURE where a part is absent.

    begin (int64[N]), length (int32[N]): The spans.
    wholes (uint64[N, C]): `hash_whole` of the spans, for the columns that parts of the kind WHOLE read.
    """
    # Read each array from its tuple once: reference counting took ten times as long as everything else
    values, positions, _ = tokens
    seeds, part_starts, kinds, columns, offsets = templates
    hashes = np.empty((len(begin), len(seeds)), dtype=np.uint64)
    for n in range(len(begin)):
        b = positions[begin[n]]
        for m in range(len(seeds)):
            hashed = seeds[m]
            for p in range(part_starts[m], part_starts[m + 1]):
                if kinds[p] == LENGTH:
                    value = np.uint64(length[n])
                elif kinds[p] == WHOLE:
                    value = wholes[n, columns[p]]
                else:
                    last = length[n] - 1 if kinds[p] == LAST else 0
                    value = values[columns[p], b + last + offsets[p]]
                if value == ABSENT:
                    hashed = NO_FEATURE
                    break
                hashed = mix(hashed, value)
            hashes[n, m] = hashed
    return hashes


@helper
def _grown(numbers, size, room):
    """The first `size` of some numbers (int32[N]), in an array that has room for more."""
    grown = np.empty(room, np.int32)
    for n in range(size):
        grown[n] = numbers[n]
    return grown


@kernel
def list_known(tokens, longest, seeds, columns, table):
    """The features that spans of at most ``longest`` tokens have in a table, by span and by template.

    tokens (SpanTokens)
    seeds (uint64[M]), columns (int64[M]): Templates with one part each, of the kind WHOLE, each with its own column.
    table: As in `hashing.sift`.
    RETURNS (begin int64[F], length int32[F], rows int32[F])
    """
    values, positions, closing = tokens
    n_tokens = len(positions)
    n_positions = values.shape[1]
    size = 0
    # Vectorised over spans: all spans of one length, then of the next
    whole = np.zeros(values.shape, np.uint64)
    hashes = np.empty((1, n_positions), np.uint64)
    # Spans of k tokens begin at the tokens `asked`, fewer for each k
    asked = np.empty(n_tokens, np.int32)
    for t in range(n_tokens):
        asked[t] = t
    asked_positions = np.empty(n_tokens, np.int64)
    n_asked = n_tokens
    keys = np.empty(n_tokens + 1, np.uint64)
    room = 4 * n_tokens + 1
    found = np.empty(room, np.int32)
    rows = np.empty(room, np.int32)
    lengths = np.empty(room, np.int32)
    for k in range(longest):
        left = 0
        for n in range(n_asked):
            asked[left] = asked[n]
            asked_positions[left] = positions[asked[n]]
            left += closing[asked[n]] - asked[n] > k
        n_asked = left
        for m in range(len(seeds) if left else 0):
            behind = n_positions - k
            target = whole[columns[m], :behind]
            source = values[columns[m], k:]
            for p in range(behind):
                # The hash of k + 1 words from position p, from that of k words
                target[p] = mix(target[p], source[p])
                hashes[0, p] = mix(seeds[m], target[p])
            if size + left + 1 > len(found):
                room = 2 * len(found) + left + 1
                found = _grown(found, size, room)
                rows = _grown(rows, size, room)
                lengths = _grown(lengths, size, room)
            before = size
            size = sift(hashes, asked_positions[:left], table, keys, found, rows, size)
            for n in range(before, size):
                found[n] = asked[found[n]]
                lengths[n] = k + 1
    # Counting sort by first token, which is stable
    place = np.zeros(n_tokens + 1, np.int64)
    for n in range(size):
        place[found[n] + 1] += 1
    for t in range(n_tokens):
        place[t + 1] += place[t]
    begin = np.empty(size, np.int64)
    length = np.empty(size, np.int32)
    row = np.empty(size, np.int32)
    for n in range(size):
        at = place[found[n]]
        place[found[n]] += 1
        begin[at] = found[n]
        length[at] = lengths[n]
        row[at] = rows[n]
    return begin, length, row


@kernel
def list_repeats(keys, closing, longest):
    """Repeated features in spans: an entry for each token of a span whose feature an earlier token of the span has too.

    keys (int32[T]): Row of the feature of each token, -1 for none.
    closing (int64[T]): Where the sequence of each token ends. longest (int): Tokens of the longest span.
    RETURNS (begin int64[M], length int32[M], rows int32[M])
    """
    size = 0
    for fill in range(2):
        begin = np.empty(size if fill else 0, dtype=np.int64)
        length = np.empty(len(begin), dtype=np.int32)
        rows = np.empty(len(begin), dtype=np.int32)
        size = 0
        for token in range(len(keys)):
            if keys[token] < 0:
                continue
            before = token - 1  # the nearest earlier token with the same feature
            while before >= 0 and before > token - longest and keys[before] != keys[token]:
                before -= 1
            if before < 0 or before <= token - longest or closing[before] != closing[token]:
                continue
            # All spans that contain both tokens
            t = before
            while t >= 0 and t > token - longest and closing[t] == closing[token]:
                for stop in range(token + 1, min(closing[token], t + longest) + 1):
                    if fill:
                        begin[size] = t
                        length[size] = stop - t
                        rows[size] = keys[token]
                    size += 1
                t -= 1
    return begin, length, rows


@helper
def _bucket(characters, at, n, n_buckets):
    """The bucket of the n characters from `at` on."""
    hashed = NO_FEATURE
    for c in range(at, at + n):
        hashed = mix(hashed, np.uint64(characters[c]))
    return np.int64(hashed % np.uint64(n_buckets))


@kernel
def index_grams(characters, text_starts, n, n_buckets):
    """Index of the texts that contain each n-gram of characters, hashed into buckets.

    characters (uint32[C]), text_starts (int64[N + 1])
    RETURNS (bucket_starts int64[n_buckets + 1], texts int32[P]): Texts of each bucket, each once and in rising order.
    """
    bucket_starts = np.zeros(n_buckets + 1, dtype=np.int64)
    latest = np.full(n_buckets, -1, dtype=np.int32)
    for text in range(len(text_starts) - 1):
        for c in range(text_starts[text], text_starts[text + 1] - n + 1):
            bucket = _bucket(characters, c, n, n_buckets)
            if latest[bucket] != text:
                latest[bucket] = text
                bucket_starts[bucket + 1] += 1
    for bucket in range(n_buckets):
        bucket_starts[bucket + 1] += bucket_starts[bucket]
    free = bucket_starts[:-1].copy()
    latest[:] = -1
    texts = np.empty(bucket_starts[n_buckets], dtype=np.int32)
    for text in range(len(text_starts) - 1):
        for c in range(text_starts[text], text_starts[text + 1] - n + 1):
            bucket = _bucket(characters, c, n, n_buckets)
            if latest[bucket] != text:
                latest[bucket] = text
                texts[free[bucket]] = text
                free[bucket] += 1
    return bucket_starts, texts


@kernel
def find_candidates(characters, text_starts, n, bucket_starts, texts, probes, most_postings, candidates):
    """For each query, the texts that share most of the query's rarest n-grams.

    characters (uint32[C]), text_starts (int64[Q + 1]): The queries.
    bucket_starts, texts: From `index_grams`.
    probes (int): Number of rare n-grams to look up.
    most_postings (int): Most texts that contain an n-gram for it to be looked up.
    candidates (int32[Q, N]): Receives the texts, -1 where there are fewer.
    """
    n_buckets = len(bucket_starts) - 1
    width = candidates.shape[1]
    chosen = np.empty(probes, dtype=np.int64)
    pool = np.empty(probes * most_postings, dtype=np.int32)
    for query in range(len(text_starts) - 1):
        candidates[query] = -1
        n_chosen = 0
        for c in range(text_starts[query], text_starts[query + 1] - n + 1):
            bucket = _bucket(characters, c, n, n_buckets)
            size = bucket_starts[bucket + 1] - bucket_starts[bucket]
            if size == 0 or size > most_postings:
                continue
            # Insertion sort of the rarest n-grams of the query, each once, by number of texts
            place = n_chosen
            is_repeated = False
            for i in range(n_chosen):
                is_repeated |= chosen[i] == bucket
            if is_repeated:
                continue
            while place > 0 and bucket_starts[chosen[place - 1] + 1] - bucket_starts[chosen[place - 1]] > size:
                place -= 1
            if place == probes:
                continue
            for i in range(min(n_chosen, probes - 1), place, -1):
                chosen[i] = chosen[i - 1]
            chosen[place] = bucket
            n_chosen = min(n_chosen + 1, probes)
        size = 0
        for i in range(n_chosen):
            for p in range(bucket_starts[chosen[i]], bucket_starts[chosen[i] + 1]):
                pool[size] = texts[p]
                size += 1
        # Equal texts become neighbours: a text has a vote for each n-gram that it shares with the query
        pool[:size] = np.sort(pool[:size])
        votes = np.zeros(width, dtype=np.int64)
        first = 0
        while first < size:
            stop = first + 1
            while stop < size and pool[stop] == pool[first]:
                stop += 1
            n_votes = stop - first
            # Insertion sort of the candidates by votes
            place = width
            while place > 0 and votes[place - 1] < n_votes:
                place -= 1
            if place < width:
                for i in range(width - 1, place, -1):
                    votes[i] = votes[i - 1]
                    candidates[query, i] = candidates[query, i - 1]
                votes[place] = n_votes
                candidates[query, place] = pool[first]
            first = stop


class Postings(NamedTuple):
    """The texts that contain each of R words."""

    starts: Ints  # [R + 1] word r is in the texts ``texts[starts[r]:starts[r + 1]]``
    texts: Ints  # [P] each text once per word
    sizes: Ints  # [N] number of distinct words of each text
    label_of: NDArray[np.int32]  # [N] label of each text


@kernel
def best_jaccard(words, rows, begin, length, postings, best):
    """For each span and label, the largest Jaccard similarity of the span's words with the words of a text of this label.

    words (uint64[T]): Words of all tokens.
    rows (int32[T]): Row of each word in the postings, -1 for words that no text contains.
    begin (int64[M]), length (int32[M]): The spans.
    best (float32[M, L]): Zeros; receives the similarities.
    """
    shared = np.zeros(len(postings.sizes), dtype=np.int64)  # number of words that the span shares with each text
    met = np.empty(len(postings.sizes), dtype=np.int64)  # texts that share a word
    for span in range(len(begin)):
        n_words = 0
        n_met = 0
        for w in range(begin[span], begin[span] + length[span]):
            is_repeated = False
            for v in range(begin[span], w):
                is_repeated |= words[v] == words[w]
            if is_repeated:
                continue
            n_words += 1
            if rows[w] < 0:
                continue
            for p in range(postings.starts[rows[w]], postings.starts[rows[w] + 1]):
                text = postings.texts[p]
                if shared[text] == 0:
                    met[n_met] = text
                    n_met += 1
                shared[text] += 1
        for text in met[:n_met]:
            # |A and B| / (|A| + |B| - |A and B|)
            similarity = shared[text] / (n_words + postings.sizes[text] - shared[text])
            best[span, postings.label_of[text]] = max(best[span, postings.label_of[text]], similarity)
            shared[text] = 0


@kernel
def jaccard(words, starts, lengths, other_words, other_starts, others, similarity):
    """Jaccard similarity of pairs of word sets: size of the intersection divided by size of the union.

    words (uint64[W]), starts (int64[P]), lengths (int32[P]): The words of the first set of each pair.
    other_words (uint64[V]), other_starts (int64[N + 1]), others (int32[P]): The words of the second set.
    similarity (float64[P]): Receives the similarity.
    """
    for p in range(len(starts)):
        begin = starts[p]
        end = starts[p] + lengths[p]
        other_begin = other_starts[others[p]]
        other_end = other_starts[others[p] + 1]
        n_shared = 0
        n_words = 0  # distinct words of both sets
        for i in range(begin, end):
            is_repeated = False
            for k in range(begin, i):
                is_repeated |= words[k] == words[i]
            if is_repeated:
                continue
            n_words += 1
            for k in range(other_begin, other_end):
                if other_words[k] == words[i]:
                    n_shared += 1
                    break
        for i in range(other_begin, other_end):
            is_repeated = False
            for k in range(other_begin, i):
                is_repeated |= other_words[k] == other_words[i]
            n_words += not is_repeated
        similarity[p] = n_shared / max(1, n_words - n_shared)
