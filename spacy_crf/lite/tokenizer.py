"""Cuts texts into tokens as spaCy's rule tokenizer does, from the patterns and exceptions of an export."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from .content import WRONG_FORM, LiteError

_MOST_CACHED = 10_000  # chunks whose tokens are kept, as in spaCy
_CHUNK = re.compile(r"\S+|\s+")
_END = ""  # key of a trie of phrases: a phrase ends here
_Pattern = Optional["re.Pattern[str]"]


class Words(NamedTuple):
    """The tokens of a text."""

    words: list[str]
    starts: list[int]  # the code point where each begins
    sentences: Optional[list[bool]] = None  # whether a sentence begins with each; None where the tokenizer finds none


def make_tokenizer(content: dict[str, Any]) -> "RuleTokenizer":
    """Make the tokenizer of an export.

    content (dict): What the export has as "tokenizer".
    RETURNS (RuleTokenizer): The tokenizer.
    RAISES (LiteError): If the content is damaged or of a kind that is not known here.
    """
    try:
        kind = content["kind"]
        if kind == "rules":
            return RuleTokenizer(content)
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
        patterns = content["patterns"]
        self._prefix = _compiled(patterns["prefix"])
        self._suffix = _compiled(patterns["suffix"])
        self._infix = _compiled(patterns["infix"])
        self._token_match = _compiled(patterns["token_match"])
        self._url_match = _compiled(patterns["url_match"])
        self._searches_all = not content["faster_heuristics"]
        self._exceptions: dict[str, list[str]] = {}
        # A trie of the exceptions that are searched for in the tokens of a text, by the tokens that patterns make of them
        self._phrases: dict[str, Any] = {}
        self._cache: dict[str, list[str]] = {}
        for text, words in content["exceptions"]:
            self._add_exception(text, words)

    def _add_exception(self, text: str, words: list[str]) -> None:
        """Cut a text (`text`) into these tokens (`words`) from now on. RAISES (LiteError): If they are not those of the text."""
        if not all(words) or "".join(words) != text or not text:
            raise LiteError(f"the exception {text!r} has the tokens {words}. Copy the file again.")
        # The chunks of the last exception stay cached as patterns cut them, even if they contain exceptions: so it is in spaCy
        self._cache.clear()
        self._exceptions[text] = words
        has_affix = _match_length(self._prefix, text) or _match_length(self._suffix, text)
        has_infix = self._infix is not None and self._infix.search(text) is not None
        if self._searches_all or has_affix or has_infix or " " in text:
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

    def cut_all(self, texts: Sequence[str]) -> list[Words]:
        """Cut texts (`texts`), see `cut`."""
        return [self.cut(text) for text in texts]

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
        while rest and len(rest) != size and rest not in exceptions and not _matches(self._token_match, rest):
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
        if self._infix is None or _matches(self._token_match, rest) or _matches(self._url_match, rest):
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


def _compiled(pattern: Optional[str]) -> _Pattern:
    """Compile a pattern, if there is one."""
    return None if pattern is None else re.compile(pattern)


def _matches(pattern: _Pattern, text: str) -> bool:
    """Whether a pattern, if there is one, matches at the beginning of a text."""
    return pattern is not None and pattern.match(text) is not None


def _match_length(pattern: _Pattern, text: str) -> int:
    """The length of the first match of a pattern in a text; 0 if there is no match or no pattern."""
    match = None if pattern is None else pattern.search(text)
    return 0 if match is None else match.end() - match.start()


def _append(words: list[str], starts: list[int], tokens: list[str], start: int) -> None:
    """Append neighbouring tokens (`tokens`), the first of which begins at `start`, to words and their starts."""
    for token in tokens:
        words.append(token)
        starts.append(start)
        start += len(token)
