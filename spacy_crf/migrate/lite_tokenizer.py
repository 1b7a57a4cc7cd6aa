"""Describes the tokenizer of a pipeline for exports, which `spacy_crf.lite.tokenizer` replays."""

import re
from functools import cache
from typing import Any, Optional

import numpy as np
from spacy.attrs import ORTH, intify_attrs
from spacy.language import Language
from spacy.tokenizer import Tokenizer

from ..errors import Errors
from ..features.characters import CODE_POINTS, N_POINTS, break_properties
from ..kernels.characters import LONGEST_NGRAM, WINDOW
from ..pipeline.tokenizer import CharacterTokenizer
from ..types import Settings
from .javascript import UntranslatableError, to_javascript

# What spaCy's tokenizer keeps of each pattern, and the method of a compiled pattern that it has to be
_PATTERNS = {
    "prefix": ("prefix_search", "search"),
    "suffix": ("suffix_search", "search"),
    "infix": ("infix_finditer", "finditer"),
    "token_match": ("token_match", "match"),
    "url_match": ("url_match", "match"),
}
# Letters of the properties that grapheme clusters depend on, by their numbers in kernels/characters.py
_BREAKS = ".snqlvtocpmrykjwixz"
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def tokenizer_content(nlp: Language) -> Settings:
    """Describe the tokenizer of a pipeline as values for JSON.

    nlp (Language): The pipeline.
    RETURNS (dict): The tokenizer, see docs/lite_format.md.
    RAISES (ValueError): CRF791 for tokenizers other than spaCy's rules, and for rules that are functions.
    """
    tokenizer = nlp.tokenizer
    if isinstance(tokenizer, CharacterTokenizer):
        return _characters(tokenizer)
    if type(tokenizer) is not Tokenizer:
        what = f"the class {type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
        raise _refused(what, "Take spaCy's rules, spacy.Tokenizer.v1, or train spacy_crf.Tokenizer.v1")
    return _rules(tokenizer)


def _refused(what: str, how: str) -> ValueError:
    """The error CRF791: an export can't hold this part of the tokenizer."""
    return ValueError(Errors.CRF791.format(name="tokenizer", what=what, form="an export for lite", how=how))


def _rules(tokenizer: Tokenizer) -> Settings:
    """Describe spaCy's tokenizer.

    RAISES (ValueError): CRF791 for rules that are functions.
    """
    patterns = {name: _pattern(tokenizer, *attribute) for name, attribute in _PATTERNS.items()}
    exceptions = []
    for text, tokens in tokenizer.rules.items():
        words = [intify_attrs(token, _do_deprecated=True)[ORTH] for token in tokens]
        exceptions.append([text, words])
    return {
        "kind": "rules",
        "patterns": patterns,
        "patterns_js": {name: _in_javascript(name, pattern) for name, pattern in patterns.items()},
        "exceptions": exceptions,
        "faster_heuristics": tokenizer.faster_heuristics,
    }


def _pattern(tokenizer: Tokenizer, attribute: str, method: str) -> Optional[str]:
    """The regular expression of a rule, with its flags in front.

    tokenizer (Tokenizer): spaCy's tokenizer.
    attribute (str): Its attribute that has the rule, such as "prefix_search".
    method (str): The method of a compiled pattern that the attribute has to be, such as "search".
    RETURNS (Optional[str]): The expression; None if there is no such rule.
    RAISES (ValueError): CRF791 for other functions.
    """
    rule = getattr(tokenizer, attribute)
    if rule is None:
        return None
    pattern: Any = getattr(rule, "__self__", None)
    if not isinstance(pattern, re.Pattern) or rule.__name__ != method:
        raise _refused(f"a function as {attribute}", f"Set it to re.compile(...).{method}")
    flags = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
    return f"(?{flags}){pattern.pattern}" if flags else pattern.pattern


def _in_javascript(name: str, pattern: Optional[str]) -> Optional[Settings]:
    """The regular expression of a rule (`name`) for JavaScript; why there is none if it can't be translated."""
    if pattern is None:
        return None
    try:
        source, flags = to_javascript(pattern)
    except UntranslatableError as error:
        return {"untranslated": name, "why": str(error)}
    return {"source": source, "flags": flags}


def _characters(tokenizer: CharacterTokenizer) -> Settings:
    """Describe a trained tokenizer.

    RAISES (ValueError): CRF991 if it was never trained, CRF791 for one with a limit.
    """
    model = tokenizer._trained()
    rules = tokenizer._rules
    if rules.longest is not None:
        raise _refused("the setting longest", "Set longest = null")
    order = np.argsort(model.keys)
    first_rows = np.cumsum(model.widths) - model.widths
    n_rows = int(model.widths.sum())
    weights = model.weights.astype(np.float32)
    lexicon_order = np.argsort(model.lexicon.keys)
    words = sorted(filter(None, rules.settings["user_words"]), key=len, reverse=True)  # the longest counts
    language_rules = tokenizer._language_rules
    patterns = {
        "always_split": rules.settings["always_split"],
        "never_split": rules.settings["never_split"],
        "user_words": ["|".join(map(_whole_word, words))] if words else [],
    }
    return {
        "kind": "characters",
        "code_points": _code_points(),
        "tags": model.tags.tolist(),
        "transitions": model.transitions.tolist(),
        "sentences": model.has_sentences,
        "joins_words": model.joins_words,
        "has_blanks": model.has_blanks,
        "longest_ngram": LONGEST_NGRAM,
        "window": WINDOW,
        "keys": model.keys[order],
        "rows": first_rows[order],
        "weights": weights[:n_rows],
        "lexicon": {
            "keys": model.lexicon.keys[lexicon_order],
            "lengths": model.lexicon.lengths[lexicon_order],
            "weights": weights[n_rows:],
        },
        "language_rules": None if language_rules is None else _rules(language_rules),
        **patterns,
        "patterns_js": {name: [_in_javascript(name, pattern) for pattern in patterns[name]] for name in patterns},
    }


@cache
def _code_points() -> Settings:
    """The properties of code points that the trained tokenizer reads, by runs of code points with equal ones."""
    CODE_POINTS.learn(np.arange(N_POINTS, dtype=np.uint32))
    properties = np.column_stack([break_properties(), CODE_POINTS.kinds, CODE_POINTS.classes])
    is_first = np.append(True, (properties[1:] != properties[:-1]).any(axis=1))
    breaks, kinds, classes = properties[is_first].T
    return {
        "starts": np.flatnonzero(is_first),
        "breaks": "".join(_BREAKS[number] for number in breaks.tolist()),
        "kinds": kinds,
        "classes": classes,
    }


def _whole_word(word: str) -> str:
    """A regular expression for a word, which in scripts with upper and lower case touches no other letters or digits."""
    before = r"(?<!\w)" if word[0].lower() != word[0].upper() else ""
    behind = r"(?!\w)" if word[-1].lower() != word[-1].upper() else ""
    return f"{before}{re.escape(word)}{behind}"
