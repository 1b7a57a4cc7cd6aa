"""Cuts texts into tokens as spaCy's rule tokenizer does, or as the trained tokenizer of spacy_crf, from what an export has of it.

Letters in shapes of the trained tokenizer: N characters, U units that may begin a word, S tags, C columns of weights, and M items
of one kind (characters, runs of characters, or what they look like) of which n-grams are made.
"""

import re
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from .content import LEAST, WRONG_FORM, Array, LiteError, numbers

_MOST_CACHED = 10_000  # chunks whose tokens are kept, as in spaCy
_CHUNK = re.compile(r"\S+|\s+")
_NEVER = "(?!)"  # a pattern that matches nothing
_END = ""  # key of a trie of phrases: a phrase ends here

# Kinds of code points; WORD is a letter, mark or digit
_SPACE = 0
_WORD = 1
_OTHER = 2
# The grapheme clusters of Unicode Standard Annex 29 in the letters of break properties, see docs/lite_format.md
_CLUSTER = re.compile(
    "sn|[snq]"
    "|(?:p*(?:rr?|y(?:[wix]*zy)*|l+(?:[vo]v*t*|ct*)?|[vo]v*t*|ct*|t+|[ij](?:[xz]*k)?|[^snqp])|p+)"
    "(?:[mwxz]|i(?:[xz]*k)?)*"
)
# What stands before a run of characters: another run, white space with no line end, one, or more; or the beginning of the text
_TOUCHES = 1
_SPACE_BEFORE = 2
_PARAGRAPH_BEFORE = 4
_LARGEST_WINDOW = 100  # items; more are a damaged file
_LONGEST_SHAPE = 6  # changes of class in the shape of a run
_RULE_START = np.uint64(1 << 16)  # added to the class of a character where a token of a language's rules begins
_GAP = np.uint64(1 << 63)  # stands between items of different kinds; no feature has it
_FIRST_HASH = np.uint64(0x9E3779B97F4A7C15)
_SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_THIRD_FACTOR = np.uint64(0x94D049BB133111EB)


class Words(NamedTuple):
    """The tokens of a text."""

    words: list[str]
    starts: list[int]  # the code point where each begins
    sentences: Optional[list[bool]] = None  # whether a sentence begins with each; None where the tokenizer finds none


def make_tokenizer(content: dict[str, Any]) -> "Union[RuleTokenizer, CharacterTokenizer]":
    """Make the tokenizer of an export.

    content (dict): What the export has as "tokenizer".
    RETURNS (RuleTokenizer or CharacterTokenizer): The tokenizer.
    RAISES (LiteError): If the content is damaged or of a kind that is not known here.
    """
    try:
        kind = content["kind"]
        if kind == "rules":
            return RuleTokenizer(content)
        if kind == "characters":
            return CharacterTokenizer(content)
    except LiteError:
        raise
    except (re.error, RecursionError, OverflowError, *WRONG_FORM) as error:
        raise LiteError(f"its tokenizer is damaged ({error!r}). Export the model again.") from error
    raise LiteError(
        f"this reader does not know tokenizers of the kind {kind!r}. Take that of the spacy_crf that wrote it."
    )


class RuleTokenizer:
    """Cuts a text at white space, and the chunks between by patterns and exceptions.

    content (dict): The tokenizer of an export.
    """

    def __init__(self, content: dict[str, Any]):
        patterns = {}
        for name in ("prefix", "suffix", "infix", "token_match", "url_match"):
            pattern = content["patterns"][name]
            patterns[name] = re.compile(_NEVER if pattern is None else pattern)
        self._prefix = patterns["prefix"]
        self._suffix = patterns["suffix"]
        self._infix = patterns["infix"]
        self._token_match = patterns["token_match"]
        self._url_match = patterns["url_match"]
        self._searches_all = not content["faster_heuristics"]
        self._exceptions: dict[str, list[str]] = {}
        # A trie of the exceptions that are searched for in the tokens of a text, by the tokens that patterns make of them
        self._phrases: dict[str, Any] = {}
        self._cache: dict[str, list[str]] = {}
        for text, words in content["exceptions"]:
            self._add_exception(text, [*words])

    def _add_exception(self, text: str, words: list[str]) -> None:
        """Cut a text (`text`) into these tokens (`words`) from now on. RAISES (LiteError): If they are not those of the text."""
        if not all(words) or "".join(words) != text or not text:
            raise LiteError(f"the exception {text!r} has the tokens {words}. Copy the file again.")
        # The chunks of the last exception stay cached as patterns cut them, even if they contain exceptions: so it is in spaCy
        self._cache.clear()
        self._exceptions[text] = words
        has_affix = _match_length(self._prefix, text) or _match_length(self._suffix, text)
        if self._searches_all or has_affix or self._infix.search(text) or " " in text:
            node = self._phrases
            for word in self._cut_at_spaces(text, {}).words:
                node = node.setdefault(word, {})
            node[_END] = {}

    def cut(self, text: str) -> Words:
        """Cut a text.

        text (str): The text.
        RETURNS (Words): Its tokens. White space is a token too, but for a single space, or the first one of several, behind a
            token.
        """
        tokens = self._cut_at_spaces(text, self._exceptions)
        phrases = self._find_phrases(tokens.words)
        if not phrases:
            return tokens
        words = []
        starts = []
        behind = 0  # the first token behind the phrase before
        for begin, end in phrases:
            first = tokens.starts[begin]
            last = end - 1
            phrase = text[first : tokens.starts[last] + len(tokens.words[last])]
            # With other white space between its tokens the phrase is no exception, and stays as it is
            if phrase in self._exceptions:
                words += tokens.words[behind:begin]
                starts += tokens.starts[behind:begin]
                _append(words, starts, self._exceptions[phrase], first)
                behind = end
        return Words(words + tokens.words[behind:], starts + tokens.starts[behind:])

    def _cut_at_spaces(self, text: str, exceptions: dict[str, list[str]]) -> Words:
        """Cut a text (`text`) at white space, and the chunks between by patterns and by `exceptions`."""
        words: list[str] = []
        starts: list[int] = []
        for match in _CHUNK.finditer(text):
            chunk = match.group()
            start = match.start()
            if start and chunk[0] == " ":  # a space that belongs to the token before
                chunk = chunk[1:]
                start += 1
                if not chunk:
                    continue
            tokens = exceptions.get(chunk) or self._cache.get(chunk)
            if tokens is None:
                tokens = self._cut_chunk(chunk, exceptions)
                if len(self._cache) < _MOST_CACHED:
                    self._cache[chunk] = tokens
            _append(words, starts, tokens, start)
        return Words(words, starts)

    def _cut_chunk(self, chunk: str, exceptions: dict[str, list[str]]) -> list[str]:
        """Cut prefixes and suffixes off a chunk (`chunk`) until `exceptions` or a pattern know the rest, and cut the rest."""
        prefixes = []
        suffixes = []  # the last one first
        rest = chunk
        size = 0  # of the rest before the last cut
        while rest and len(rest) != size and rest not in exceptions and not self._token_match.match(rest):
            size = len(rest)
            prefix_end = _match_length(self._prefix, rest)
            suffix_start = size - _match_length(self._suffix, rest[prefix_end:])
            if rest[prefix_end:] in exceptions:
                suffix_start = size
            elif rest[:suffix_start] in exceptions:
                prefix_end = 0
            if prefix_end:
                prefixes.append(rest[:prefix_end])
            if suffix_start < size:
                suffixes.append(rest[suffix_start:])
            rest = rest[prefix_end:suffix_start]
        return prefixes + self._cut_rest(rest, exceptions) + suffixes[::-1]

    def _cut_rest(self, rest: str, exceptions: dict[str, list[str]]) -> list[str]:
        """Cut what remains of a chunk without its prefixes and suffixes (`rest`), if `exceptions` have it, or at infixes."""
        if not rest:
            return []
        known = exceptions.get(rest) or self._cache.get(rest)
        if known is not None:
            return known
        if self._token_match.match(rest) or self._url_match.match(rest):
            return [rest]
        words = []
        behind = 0  # where the infix before ends
        for match in self._infix.finditer(rest):
            begin, end = match.span()
            if begin > 0:  # an infix stands between two words
                words += [rest[behind:begin], rest[begin:end]]
                behind = end
        words.append(rest[behind:])
        return [word for word in words if word]

    def _find_phrases(self, words: list[str]) -> list[tuple[int, int]]:
        """Find the tokens that exceptions may replace.

        words (list[str]): The tokens of a text.
        RETURNS (list[tuple[int, int]]): First tokens and ends of phrases, in order. No two overlap: the longest count, of equals
            the first.
        """
        phrases = []
        for begin, first_word in enumerate(words):
            if first_word not in self._phrases:
                continue
            node = self._phrases
            end = begin
            while end < len(words) and words[end] in node:
                node = node[words[end]]
                end += 1
                if _END in node:
                    phrases.append((begin, end))
        phrases.sort(key=lambda phrase: (phrase[0] - phrase[1], phrase[0]))
        taken: set[int] = set()
        chosen = []
        for begin, end in phrases:
            if begin not in taken and end - 1 not in taken:
                chosen.append((begin, end))
            taken.update(range(begin, end))
        return sorted(chosen)


def _match_length(pattern: "re.Pattern[str]", text: str) -> int:
    """The length of the first match of a pattern in a text, 0 if there is none."""
    match = pattern.search(text)
    return 0 if match is None else match.end() - match.start()


def _append(words: list[str], starts: list[int], tokens: list[str], start: int) -> None:
    """Append neighbouring tokens (`tokens`), the first of which begins at `start`, to words and their starts."""
    for token in tokens:
        words.append(token)
        starts.append(start)
        start += len(token)


class CharacterTokenizer:
    """Cuts a text by a trained chain over the units that may begin a word: grapheme clusters, or runs of letters.

    content (dict): The tokenizer of an export.
    """

    def __init__(self, content: dict[str, Any]):
        code_points = content["code_points"]
        # Code points with equal properties: where they start, and the properties
        self._run_starts = numbers(code_points["starts"], np.int64, least=0)
        shape = self._run_starts.shape
        self._breaks = np.array([*code_points["breaks"]])
        self._kinds = numbers(code_points["kinds"], np.int64, shape, least=0)
        self._classes = numbers(code_points["classes"], np.uint64, shape, least=0)
        self._has_sentences = content["sentences"]
        n_columns = 2 if self._has_sentences else 1
        n_tags = n_columns + 1  # of which the last says that a word goes on
        self._tags = numbers(content["tags"], shape=(n_columns, n_tags), least=LEAST)
        self._transitions = numbers(content["transitions"], shape=(n_tags, n_tags), least=LEAST)
        self._longest_ngram = content["longest_ngram"]
        self._window = content["window"]
        self._keys = _hashes(content["keys"])
        self._rows = numbers(content["rows"], np.int64, self._keys.shape, least=0)
        weights = numbers(content["weights"], least=LEAST)  # [R, C]
        lexicon = content["lexicon"]
        self._beginnings = _hashes(lexicon["keys"])
        self._lengths = numbers(lexicon["lengths"], np.int64, self._beginnings.shape, least=0)
        self._lexicon_weights = numbers(lexicon["weights"], least=LEAST)  # [3 * longest, C]
        self._longest_word = len(self._lexicon_weights) // 3
        n_lexicon_rows = 3 * self._longest_word
        fits = weights.shape[1:] == (n_columns,) and self._lexicon_weights.shape == (n_lexicon_rows, n_columns)
        has_rows = self._rows.max(initial=0) <= len(weights)
        is_small = 1 <= self._longest_ngram <= _LARGEST_WINDOW and 1 <= self._window <= _LARGEST_WINDOW
        if not (fits and has_rows and is_small and self._breaks.shape == shape and len(self._breaks)):
            raise LiteError("the arrays of its tokenizer do not fit together. Copy the file again.")
        # So that a damaged file reads no rows that are not there
        self._weights = np.pad(weights, [(0, 2 * self._window), (0, 0)])
        self._joins_words = content["joins_words"]
        self._has_blanks = content["has_blanks"]
        self._always_split = [*map(re.compile, content["always_split"])]
        self._never_split = [*map(re.compile, content["never_split"])]
        self._user_words = [*map(re.compile, content["user_words"])]
        language_rules = content["language_rules"]
        self._language_rules = None if language_rules is None else RuleTokenizer(language_rules)

    def cut(self, text: str) -> Words:
        """Cut a text.

        text (str): The text.
        RETURNS (Words): Its tokens. White space is a token too, but for a single space, or the first one of several, behind a
            token.
        """
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        run = np.searchsorted(self._run_starts, points, side="right") - 1
        kinds = self._kinds[run]
        units = self._find_units("".join(self._breaks[run].tolist()), kinds)
        tags = np.zeros(0, dtype=np.int64)
        if len(units.starts):
            sums = self._sums(text, points.astype(np.uint64), kinds, self._classes[run])
            emissions = sums[units.starts] @ self._tags
            emissions[~self._possible(text, units)] = -np.inf
            tags = np.array(_best_path(emissions, self._transitions))
        return self._words(text, units, tags)

    def _find_units(self, breaks: str, kinds: Array) -> "_Units":
        """Find the units of a text.

        breaks (str): The letter of the break property of each character.
        kinds (int[N]): The kind of each character.
        """
        starts = np.array([match.start() for match in _CLUSTER.finditer(breaks)], dtype=np.int64)
        ends = np.append(starts[1:], len(breaks))[: len(starts)]
        kinds_of_clusters = kinds[starts]
        # White space with a mark has to stay visible
        is_marked = (ends > starts + 1) & (kinds[np.minimum(starts + 1, len(kinds) - 1)] != _SPACE)
        kinds_of_clusters[(kinds_of_clusters == _SPACE) & is_marked] = _OTHER
        is_visible = kinds_of_clusters != _SPACE
        kinds_before = np.append(_SPACE, kinds_of_clusters[:-1])[: len(starts)]
        continues_word = (kinds_of_clusters == _WORD) & (kinds_before == _WORD)
        begins = is_visible
        if self._joins_words and not (self._always_split or self._user_words):  # which may cut a run of letters
            begins = is_visible & ~continues_word
        # A unit ends with the last visible cluster before the next unit
        is_last = np.append(begins[is_visible][1:], True)[: is_visible.sum()]
        return _Units(
            starts[begins], ends[is_visible][is_last], (kinds_before == _SPACE)[begins], continues_word[begins]
        )

    def _sums(self, text: str, points: Array, kinds: Array, classes: Array) -> Array:
        """Sum the weights of the features at each character.

        text (str): The text.
        points (uint64[N]), kinds (int64[N]), classes (uint64[N]): Its characters, their kinds and their classes.
        RETURNS (float64[N, C]): The sums.
        """
        every_place = np.arange(len(points))
        run_starts, runs, shapes = _find_runs(points, kinds, classes)
        items = [(every_place, points), (every_place, classes), (run_starts, runs), (run_starts, shapes)]
        if self._language_rules is not None:
            tokens = self._language_rules.cut(text)
            is_visible = kinds[tokens.starts] != _SPACE
            starts = np.array(tokens.starts)[is_visible]
            lengths = np.array([*map(len, tokens.words)])[is_visible]
            classes[starts] += _RULE_START
            items.append((starts, _hash_sequences(np.full(len(starts), _FIRST_HASH), points, starts, lengths)))
        sums = self._lexicon_marks(points) @ self._lexicon_weights
        # Items of all kinds in one row, with a gap behind each kind, so that no window reaches those of another kind
        gap = np.full(self._window, _GAP)
        codes = []
        seeds = []
        for number, (_, codes_of_kind) in enumerate(items, 1):
            codes += [codes_of_kind, gap]
            seeds.append(np.full(len(codes_of_kind) + len(gap), number << 40, dtype=np.uint64))
        item_sums = self._ngram_sums(np.concatenate(codes), np.concatenate(seeds))
        first = 0
        for places, _ in items:
            sums[places] += item_sums[first : first + len(places)]
            first += len(places) + len(gap)
        return sums

    def _ngram_sums(self, codes: Array, seeds: Array) -> Array:
        """Sum the weights of n-grams of items at the boundary before each item.

        codes (uint64[M]): The items.
        seeds (uint64[M]): The first value of the hashes of n-grams that begin with each item.
        RETURNS (float64[M, C]): The sums.
        """
        window = self._window
        sums = np.zeros((len(codes) + 2 * window, self._weights.shape[1]))  # with places before and behind the items
        hashes = seeds
        for n in range(1, min(self._longest_ngram, len(codes)) + 1):
            hashes = _mixed(hashes[: len(codes) - n + 1], codes[n - 1 :])
            features = _find(self._keys, np.maximum(hashes, np.uint64(1)))
            first_items = np.flatnonzero(features >= 0)
            rows = self._rows[features[first_items]]
            # The rows of a feature are those of the boundaries that have it in their windows, from left to right
            for k in range(2 * window - n + 1):
                sums[first_items + n + k] += self._weights[rows + k]
        return sums[window : window + len(codes)]

    def _lexicon_marks(self, points: Array) -> Array:
        """Where words of the lexicon begin, have ended and go on, by their length.

        points (uint64[N]): The text.
        RETURNS (float64[N, 3 * longest]): 1 for these places.
        """
        longest = self._longest_word
        marks = np.zeros((len(points) + 1, 3 * longest))
        starts = np.arange(len(points))
        hashes = np.full(len(points), _FIRST_HASH)
        length = 0
        while len(starts):
            # Beginnings of words, one character longer each time
            hashes = _mixed(hashes, points[starts + length])
            length += 1
            rows = _find(self._beginnings, hashes)
            is_known = rows >= 0
            starts = starts[is_known]
            hashes = hashes[is_known]
            begins = starts[self._lengths[rows[is_known]] > 0]  # of words that end here
            column = min(length, longest) - 1
            marks[begins, column] = 1
            marks[begins + length, longest + column] = 1
            marks[begins + 1, 2 * longest + column] += 1
            marks[begins + length, 2 * longest + column] -= 1
            goes_on = starts + length < len(points)
            starts = starts[goes_on]
            hashes = hashes[goes_on]
        marks[:, 2 * longest :] = np.cumsum(marks[:, 2 * longest :], axis=0) > 0
        return marks[:-1]

    def _possible(self, text: str, units: "_Units") -> Array:
        """The tags that white space and rules leave to the units of a text (`text`): bool[U, S]."""
        possible = np.ones((len(units.starts), len(self._transitions)), dtype=bool)
        if not self._has_blanks:
            possible[units.is_behind_blank, -1] = False
        possible[0, 1:] = False
        if self._joins_words:
            possible[units.continues_word, :-1] = False
        for pattern in self._always_split:
            for match in pattern.finditer(text):
                _cut_at_edges(text, units, possible, match)
        for pattern in self._never_split:
            for match in pattern.finditer(text):
                _join(units, possible, match)
        for pattern in self._user_words:
            for match in pattern.finditer(text):
                _join(units, possible, match)
                _cut_at_edges(text, units, possible, match)
        return possible

    def _words(self, text: str, units: "_Units", tags: Array) -> Words:
        """The tokens of a text (`text`) whose units have these tags (`tags`, int[U])."""
        firsts = np.flatnonzero(tags < len(self._transitions) - 1)
        word_starts = units.starts[firsts].tolist()
        next_firsts = np.append(firsts[1:], len(tags))[: len(firsts)]
        word_ends = units.ends[next_firsts - 1].tolist()
        words: list[str] = []
        starts: list[int] = []
        behind = 0  # the word before
        for start, end in [*zip(word_starts, word_ends), (len(text), len(text))]:
            # A space behind a word belongs to it, other white space is a token
            blank_start = behind
            if behind > 0 and text[behind : behind + 1] == " ":
                blank_start += 1
            if blank_start < start:
                words.append(text[blank_start:start])
                starts.append(blank_start)
            if start < end:
                words.append(text[start:end])
                starts.append(start)
                behind = end
        if not self._has_sentences:
            return Words(words, starts)
        # White space at the beginning belongs to the first sentence
        sentence_starts = {0, *units.starts[1:][tags[1:] == 0].tolist()}
        return Words(words, starts, [start in sentence_starts for start in starts])


class _Units(NamedTuple):
    """The smallest parts of a text that may be words, without white space."""

    starts: Array  # int64[U]
    ends: Array  # int64[U]
    is_behind_blank: Array  # bool[U] whether white space, or the beginning of the text, stands before
    continues_word: Array  # bool[U] whether it continues a run of letters, marks and digits


def _cut_at_edges(text: str, units: _Units, possible: Array, match: "re.Match[str]") -> None:
    """Let tokens begin at the edges of a match in a text, or behind the white space there: change `possible` (bool[U, S])."""
    for place in match.span():
        unit = int(np.searchsorted(units.starts, place))
        if 0 < unit < len(possible) and not text[place : units.starts[unit]].strip():
            possible[unit] = True
            possible[unit, -1] = False


def _join(units: _Units, possible: Array, match: "re.Match[str]") -> None:
    """Let no token begin inside of a match in a text: change `possible` (bool[U, S])."""
    first = max(1, int(np.searchsorted(units.starts, match.start(), side="right")))
    behind = int(np.searchsorted(units.starts, match.end()))
    possible[first:behind] = False
    possible[first:behind, -1] = True


def _best_path(emissions: Array, transitions: Array) -> list[int]:
    """The tags with the highest total score; of equal ones the lower tags, from the end.

    emissions (float64[U, S]): The scores of the tags of each unit.
    transitions (float64[S, S]): The scores of pairs of tags.
    """
    scores_from = transitions.T.tolist()  # by the second tag
    scores, *rows = emissions.tolist()
    origins = []
    for row in rows:
        sums = [[a + b for a, b in zip(scores, column)] for column in scores_from]
        best = [*map(max, sums)]
        origins.append([of_tag.index(score) for of_tag, score in zip(sums, best)])
        scores = [a + b for a, b in zip(best, row)]
    path = [scores.index(max(scores))]
    for origins_of_unit in reversed(origins):
        path.append(origins_of_unit[path[-1]])
    return path[::-1]


def _find_runs(points: Array, kinds: Array, classes: Array) -> tuple[Array, Array, Array]:
    """Find runs of letters, marks and digits, and runs of one other character.

    points (uint64[N]), kinds (int64[N]), classes (uint64[N]): The characters of a text, their kinds and their classes.
    RETURNS (int64[M], uint64[M], uint64[M]): Where runs begin; the hash of the characters of each run; and of its changes of
        class, with what stands before.
    """
    continues = (kinds[1:] == kinds[:-1]) & ((kinds[1:] == _WORD) | (points[1:] == points[:-1]))
    edges = np.append(0, 1 + np.flatnonzero(~continues))
    is_visible = kinds[edges] != _SPACE
    starts = edges[is_visible]
    ends = np.append(edges[1:], len(points))[is_visible]
    ends_before = np.append(0, ends[:-1])
    n_lines = np.append(0, np.cumsum(points == ord("\n")))  # that end before each character
    gaps = _SPACE_BEFORE + np.minimum(n_lines[starts] - n_lines[ends_before], _PARAGRAPH_BEFORE - _SPACE_BEFORE)
    gaps[starts == ends_before] = _TOUCHES
    gaps[0] = _PARAGRAPH_BEFORE
    first_hashes = np.full(len(starts), _FIRST_HASH)
    classes_before = np.append(0, classes[:-1]).astype(np.uint64)
    classes_before[starts] = 0
    changes = np.flatnonzero((classes != classes_before) & (kinds != _SPACE))
    first_changes = np.searchsorted(changes, starts)
    n_changes = np.minimum(np.searchsorted(changes, ends) - first_changes, _LONGEST_SHAPE)
    shapes = _hash_sequences(_mixed(first_hashes, gaps.astype(np.uint64)), classes[changes], first_changes, n_changes)
    runs = _hash_sequences(first_hashes, points, starts, ends - starts)
    return starts, runs, _mixed(shapes, np.minimum(ends - starts, 2).astype(np.uint64))


def _hash_sequences(hashes: Array, values: Array, starts: Array, lengths: Array) -> Array:
    """Mix sequences of values into hashes.

    hashes (uint64[M]): The hashes before.
    values (uint64[V]): All values.
    starts (int64[M]), lengths (int64[M]): The first value and the number of values of each sequence.
    RETURNS (uint64[M]): The hashes.
    """
    hashes = hashes.copy()
    longer = np.arange(len(hashes))
    for n in range(int(lengths.max(initial=0))):
        longer = longer[lengths[longer] > n]
        hashes[longer] = _mixed(hashes[longer], values[starts[longer] + n])
    return hashes


def _mixed(hashes: Array, values: Array) -> Array:
    """Mix values into hashes (uint64[N] each): the finaliser of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = (hashes ^ values) + _FIRST_HASH
    z = (z ^ (z >> np.uint64(30))) * _SECOND_FACTOR
    z = (z ^ (z >> np.uint64(27))) * _THIRD_FACTOR
    return z ^ (z >> np.uint64(31))


def _find(keys: Array, hashes: Array) -> Array:
    """The places of hashes (uint64[N]) in sorted keys (uint64[K]): int64[N]; -1 for unknown hashes."""
    if not len(keys):
        return np.full(len(hashes), -1)
    places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
    return np.where(keys[places] == hashes, places, -1)


def _hashes(values: Any) -> Array:
    """Read sorted hashes (uint64[N]), which JSON has in hexadecimal digits."""
    hashes = np.array([int(value, 16) for value in values] if isinstance(values, list) else values, dtype=np.uint64)
    if hashes.ndim != 1 or (hashes[1:] <= hashes[:-1]).any():
        raise LiteError("hashes of its tokenizer are out of order. Copy the file again.")
    return hashes
