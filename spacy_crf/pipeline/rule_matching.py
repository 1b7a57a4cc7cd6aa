"""What the rules' patterns and functions say of Docs: spaCy's Matcher, PhraseMatcher and registered functions."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.errors import MatchPatternError
from spacy.matcher import Matcher, PhraseMatcher
from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab

from ..constraints.rules import Match, Rule
from ..errors import Errors
from ..features.columns import doc_bounds
from ..features.feature_index import HashTable

_MOST_WORDS = 1_000_000  # kept with what patterns say of them, until the table starts anew

# Keys of token patterns that look at nothing but the word
_LEXICAL = frozenset(
    [
        "ORTH",
        "TEXT",
        "LOWER",
        "SHAPE",
        "LENGTH",
        "PREFIX",
        "SUFFIX",
        "IS_ALPHA",
        "IS_ASCII",
        "IS_DIGIT",
        "IS_LOWER",
        "IS_UPPER",
        "IS_TITLE",
        "IS_PUNCT",
        "IS_SPACE",
        "IS_STOP",
        "LIKE_NUM",
        "LIKE_URL",
        "LIKE_EMAIL",
        "IS_BRACKET",
        "IS_QUOTE",
        "IS_LEFT_PUNCT",
        "IS_RIGHT_PUNCT",
        "IS_CURRENCY",
    ]
)


class RuleMatcher:
    """Finds the facts that rules about tokens depend on.

    vocab (Vocab): The pipeline's.
    rules (list[Rule]): All rules of the component.
    n_tags (int): How many tags it has.
    RAISES (ValueError): If the Matcher refuses a pattern, or no such function is registered.
    """

    def __init__(self, vocab: Vocab, rules: list[Rule], n_tags: int):
        self._vocab = vocab
        self._n_tags = n_tags
        words: dict[int, Matcher] = {}
        self._matchers: dict[int, Any] = {}
        self._functions: dict[int, tuple[Rule, Callable]] = {}
        for rule in rules:
            if rule.reads_tags:
                self._functions[rule.place] = (rule, _function(rule))
            elif rule.reads_pattern and rule.phrases is not None:
                self._matchers[rule.place] = _phrase_matcher(vocab, rule)
            elif rule.reads_pattern:
                matcher = _matcher(vocab, rule)
                if all(len(pattern) == 1 and _is_lexical(pattern[0]) for pattern in rule.pattern):
                    words[rule.place] = matcher
                else:
                    self._matchers[rule.place] = matcher
        self._words = _WordPatterns(vocab, words)

    def __call__(self, docs: list[Doc]) -> dict[int, Any]:
        """RETURNS (Dict[int, Any]): By the place of each rule, its Match or the tags it allows."""
        facts: dict[int, Any] = self._words(docs)
        if self._matchers:
            bounds = doc_bounds(docs)
            facts.update((place, _find(matcher, docs, bounds)) for place, matcher in self._matchers.items())
        for place, (rule, function) in self._functions.items():
            allowed = [self._checked(rule, doc, function(doc)) for doc in docs]
            facts[place] = np.concatenate(allowed) if allowed else np.zeros((0, self._n_tags), dtype=bool)
        return facts

    def _checked(self, rule: Rule, doc: Doc, allowed) -> NDArray[np.bool_]:
        array = np.asarray(allowed)
        expected = (len(doc), self._n_tags)
        if array.shape != expected or array.dtype != np.bool_:
            got = f"{array.dtype} of shape {array.shape}"
            values = {"function": rule.function, "tokens": len(doc), "start": doc.text[:40], "expected": expected}
            raise ValueError(Errors.CRF612.format(name=rule.name, got=got, **values))
        return array


class _WordPatterns:
    """Patterns of one token whose answer depends on the word alone: each word is asked for once.

    matchers (Dict[int, Matcher]): By the place of their rule.
    """

    def __init__(self, vocab: Vocab, matchers: dict[int, Matcher]):
        self._vocab = vocab
        self._matchers = matchers
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # Both at once: other threads may be reading
        self._known = HashTable(), np.zeros((0, len(self._matchers)), dtype=bool)

    def __call__(self, docs: list[Doc]) -> dict[int, Match]:
        if not self._matchers or not docs:
            return {}
        words = np.concatenate([doc.to_array(ORTH) for doc in docs])
        table, answers = self._known
        rows = table.rows(words)
        if (rows < 0).any() or (len(rows) and rows.max() >= len(answers)):
            with self._lock:
                if len(self._known[0]) > _MOST_WORDS:
                    self._forget()
                table, answers = self._known
                new = np.unique(words[table.rows(words) < 0])
                answers = np.concatenate([answers, np.array(list(map(self._ask, new.tolist()))).reshape(len(new), -1)])
                table.insert(new)
                self._known = table, answers
            rows = table.rows(words)
        matched = answers[rows].T
        return {place: Match(found, found, found) for place, found in zip(self._matchers, matched)}

    def _ask(self, word: int) -> list[bool]:
        doc = Doc(self._vocab, words=[self._vocab.strings[word]])
        return [bool(matcher(doc)) for matcher in self._matchers.values()]


def _is_lexical(token: dict) -> bool:
    return all(isinstance(key, str) and key.upper() in _LEXICAL for key in token)


def _find(matcher, docs: list[Doc], bounds: NDArray[np.int64]) -> Match:
    match = Match(*np.zeros((3, int(bounds[-1])), dtype=bool))
    for doc, shift in zip(docs, bounds.tolist()):
        for _, begin, end in matcher(doc):
            if begin < end:
                match.covered[shift + begin : shift + end] = True
                match.begins[shift + begin] = True
                match.ends[shift + end - 1] = True
    return match


def _matcher(vocab: Vocab, rule: Rule) -> Matcher:
    matcher = Matcher(vocab, validate=True)
    try:
        matcher.add("rule", rule.pattern)
    except (MatchPatternError, ValueError, KeyError, TypeError) as error:
        raise ValueError(Errors.CRF610.format(name=rule.name, reason=error)) from error
    return matcher


def _phrase_matcher(vocab: Vocab, rule: Rule) -> PhraseMatcher:
    from spacy.util import get_lang_class

    try:
        matcher = PhraseMatcher(vocab, attr=rule.attr)
        make_doc = (
            get_lang_class(vocab.lang)().make_doc if vocab.lang else (lambda text: Doc(vocab, words=text.split()))
        )
        phrases = [make_doc(text) for text in rule.phrases]
        matcher.add(
            "rule",
            [Doc(vocab, words=[t.text for t in doc], spaces=[bool(t.whitespace_) for t in doc]) for doc in phrases],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(Errors.CRF610.format(name=rule.name, reason=error)) from error
    return matcher


def _function(rule: Rule) -> Callable:
    if rule.function not in registry.misc.get_all():
        raise ValueError(Errors.CRF611.format(name=rule.name, function=rule.function))
    return registry.misc.get(rule.function)
