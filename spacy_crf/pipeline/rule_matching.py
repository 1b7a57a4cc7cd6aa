"""Matches of the rules' patterns and functions in Docs: spaCy's Matcher, PhraseMatcher and registered functions."""

import re
import threading
from collections.abc import Callable
from inspect import signature
from itertools import chain
from typing import Optional, Union

import numpy as np
from spacy.errors import MatchPatternError
from spacy.matcher import Matcher, PhraseMatcher
from spacy.tokens import Doc, Token
from spacy.util import registry
from spacy.vocab import Vocab

from ..constraints.rule import Match, PatternMatches, Rule, WordKinds
from ..errors import Errors
from ..features.doc_batch import DocBatch, DocPart
from ..features.feature_index import HashTable
from ..types import Bools, Ints

_MOST_WORDS = 1 << 18  # words whose matches are cached, until the table starts anew

# Keys of token patterns that depend on the word alone
_LEXICAL_KEYS = """
ORTH TEXT LOWER SHAPE LENGTH PREFIX SUFFIX IS_ALPHA IS_ASCII IS_DIGIT IS_LOWER IS_UPPER IS_TITLE IS_PUNCT IS_SPACE IS_STOP
LIKE_NUM LIKE_URL LIKE_EMAIL IS_BRACKET IS_QUOTE IS_LEFT_PUNCT IS_RIGHT_PUNCT IS_CURRENCY
"""
_LEXICAL = frozenset(_LEXICAL_KEYS.split())


class RuleMatcher:
    """Finds the matches on which rules about tokens depend.

    vocab (Vocab): The pipeline's vocabulary.
    rules (list[Rule]): All rules of the component.
    tag_of (int64[S]): The tag of each state, in order, since functions return allowed tags.
    RAISES (ValueError): If the Matcher refuses a pattern, or a function is not registered.
    """

    def __init__(self, vocab: Vocab, rules: list[Rule], tag_of: Ints):
        self._vocab = vocab
        self._tag_of = tag_of
        self._n_tags = 1 + int(tag_of.max(initial=-1))
        words: dict[int, Matcher] = {}
        self._matchers: dict[int, Union[Matcher, PhraseMatcher]] = {}
        self._functions: dict[int, tuple[Rule, Callable]] = {}
        self._rules = {rule.place: rule for rule in rules}
        for rule in rules:
            if rule.reads_tags:
                self._functions[rule.place] = (rule, _function(rule))
            elif rule.reads_pattern and rule.phrases is not None:
                self._matchers[rule.place] = _phrase_matcher(vocab, rule)
            elif rule.reads_pattern:
                matcher = _matcher(vocab, rule)
                keys = list(chain.from_iterable(chain.from_iterable(rule.pattern)))
                is_lexical = all(isinstance(key, str) and key.upper() in _LEXICAL for key in keys)
                if is_lexical and all(len(pattern) == 1 for pattern in rule.pattern):
                    words[rule.place] = matcher
                else:
                    self._matchers[rule.place] = matcher
        self._words = _WordPatterns(vocab, words)

    def __call__(self, docs: list[Doc]) -> PatternMatches:
        docs = DocBatch.of(docs)
        # Patterns may match tokens that do not take part
        if isinstance(docs, DocPart):
            return self(docs.whole).at(docs.kept)
        found = {place: self._find(place, docs) for place in self._matchers}
        facts = PatternMatches(found, self._words(docs))
        for place, (rule, function) in self._functions.items():
            allowed = [self._allowed(rule, function, doc) for doc in docs]
            of_tags = np.concatenate(allowed) if allowed else np.zeros((0, self._n_tags), dtype=bool)
            facts[place] = of_tags[:, self._tag_of]
        return facts

    def _find(self, place: int, docs: DocBatch) -> Match:
        """Match the pattern of the rule with this `place` in a batch. RAISES (ValueError): CRF623 if that fails."""
        n_tokens = int(docs.bounds[-1])
        match = Match(*np.zeros((3, n_tokens), dtype=bool))
        for doc, shift in zip(docs, docs.bounds.tolist()):
            try:
                found = self._matchers[place](doc)
            except ValueError as error:  # such as patterns for attributes that no component has set
                raise ValueError(
                    Errors.CRF623.format(name=self._rules[place].name, doc=doc.text[:40], reason=error)
                ) from error
            for _, begin, end in found:
                if begin < end:
                    match.covered[shift + begin : shift + end] = True
                    match.begins[shift + begin] = True
                    match.ends[shift + end - 1] = True
        return match

    def _allowed(self, rule: Rule, function: Callable[[Doc], object], doc: Doc) -> Bools:
        """The tags that a function allows: bool[T, tags]. RAISES (ValueError): CRF908 if it fails, CRF612 if it returns anything
        else."""
        try:
            array = np.asarray(function(doc))
        except Exception as error:  # whatever users' functions raise
            reason = f"{type(error).__name__}: {error}"
            values = {"function": rule.function, "start": doc.text[:40], "reason": reason}
            raise ValueError(Errors.CRF908.format(name=rule.name, **values)) from error
        expected = (len(doc), self._n_tags)
        if array.shape != expected or array.dtype != np.bool_:
            values = {"function": rule.function, "tokens": len(doc), "start": doc.text[:40], "expected": expected}
            raise ValueError(
                Errors.CRF612.format(name=rule.name, got=f"{array.dtype} of shape {array.shape}", **values)
            )
        return array


class _WordPatterns:
    """Patterns of one token that depend on the word alone: each word is matched once.

    matchers (Dict[int, Matcher]): Matchers by place of the rule.
    """

    def __init__(self, vocab: Vocab, matchers: dict[int, Matcher]):
        self._vocab = vocab
        self._matchers = list(matchers.values())
        self._places = {place: column for column, place in enumerate(matchers)}
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        # The words, the kind of each word, and which patterns match words of each kind (bool[kinds, patterns]). Replaced as a
        # whole, since other threads may be reading
        self._known = HashTable(), np.zeros(0, dtype=np.int32), np.zeros((0, len(self._matchers)), dtype=bool)

    def __call__(self, docs: DocBatch) -> Optional[WordKinds]:
        if not self._matchers:
            return None
        table, kind_of, matched = self._known
        rows = table.rows(docs.words)
        if rows.min(initial=0) < 0 or rows.max(initial=-1) >= len(kind_of):
            with self._lock:
                if len(self._known[0]) > _MOST_WORDS:
                    self._clear()
                table, kind_of, matched = self._known
                new = np.unique(docs.words[table.rows(docs.words) < 0])
                # Words that the same patterns match are of one kind
                kinds = {tuple(kind): n for n, kind in enumerate(matched.tolist())}
                of_new = [kinds.setdefault(tuple(kind), len(kinds)) for kind in self._ask(new.tolist(), docs)]
                if len(kinds) > len(matched):
                    matched = np.array(list(kinds), dtype=bool)
                kind_of = np.append(kind_of, np.array(of_new, dtype=np.int32))
                # Other threads see either the old tables or the new ones
                table.insert(new)
                self._known = table, kind_of, matched
            rows = table.rows(docs.words)
        return WordKinds(kind_of[rows], matched, self._places)

    def _ask(self, words: list[int], docs: DocBatch) -> list[list[bool]]:
        """For each word, which patterns match it. One call for all words takes little longer than a call for one word."""
        vocabs = {doc.vocab for doc in docs}
        doc = Doc(self._vocab, words=[_text_of(word, vocabs) for word in words])
        matched = np.zeros((len(words), len(self._matchers)), dtype=bool)
        for column, matcher in enumerate(self._matchers):
            rows = [begin for _, begin, _ in matcher(doc)]  # a token is a word
            matched[rows, column] = True
        return matched.tolist()


def _text_of(word: int, vocabs: set[Vocab]) -> str:
    """The text of a hash that one of the vocabularies knows."""
    return next(
        str(vocab.strings[word])
        for vocab in vocabs
        if word in vocab.strings  # pyright: ignore[reportOperatorIssue]  hashes too
    )


def _matcher(vocab: Vocab, rule: Rule) -> Matcher:
    """The matcher of a rule's patterns. RAISES (ValueError): CRF610 for patterns that spaCy refuses, or unknown extensions."""
    matcher = Matcher(vocab, validate=True)
    try:
        for token in chain.from_iterable(rule.pattern):
            for extension in token.get("_", ()):
                if not Token.has_extension(extension):
                    raise ValueError(f"there is no extension token._.{extension}")
        matcher.add("rule", rule.pattern)
    except (MatchPatternError, ValueError, KeyError, TypeError, AttributeError, re.error) as error:
        raise ValueError(Errors.CRF610.format(owner=f"Rule '{rule.name}'", reason=error)) from error
    return matcher


def _phrase_matcher(vocab: Vocab, rule: Rule) -> PhraseMatcher:
    """The matcher of a rule's phrases. RAISES (ValueError): CRF610 for phrases or an attribute that spaCy refuses."""
    from spacy.util import get_lang_class

    try:
        matcher = PhraseMatcher(vocab, attr=rule.attr)
        tokenizer = get_lang_class(vocab.lang)().make_doc if vocab.lang else None
        phrases = []
        for text in rule.phrases:
            doc = tokenizer(text) if tokenizer is not None else Doc(vocab, words=text.split())
            spaces = [bool(token.whitespace_) for token in doc]
            phrases.append(Doc(vocab, words=[token.text for token in doc], spaces=spaces))  # of this vocabulary
        matcher.add("rule", phrases)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(Errors.CRF610.format(owner=f"Rule '{rule.name}'", reason=error)) from error
    return matcher


def _function(rule: Rule) -> Callable:
    """The registered function of a rule. RAISES (ValueError): CRF611 for an unknown one, CRF907 if it does not take one Doc."""
    if rule.function not in registry.misc.get_all():
        raise ValueError(Errors.CRF611.format(name=rule.name, function=rule.function))
    function = registry.misc.get(rule.function)
    try:
        signature(function).bind(None)
    except TypeError as error:
        raise ValueError(Errors.CRF907.format(name=rule.name, function=rule.function, reason=error)) from error
    except ValueError:  # built-in functions have no signature
        pass
    return function
