"""Describes the tokenizer of a pipeline for exports, which `spacy_crf.lite.tokenizer` replays."""

import re
from typing import Any, Optional

from spacy.attrs import ORTH, intify_attrs
from spacy.language import Language
from spacy.tokenizer import Tokenizer

from ..errors import Errors
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
_FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def tokenizer_content(nlp: Language) -> Settings:
    """Describe the tokenizer of a pipeline as values for JSON.

    nlp (Language): The pipeline.
    RETURNS (dict): The tokenizer, see docs/lite_format.md.
    RAISES (ValueError): CRF791 for tokenizers other than spaCy's rules, and for rules that are functions.
    """
    tokenizer = nlp.tokenizer
    if type(tokenizer) is not Tokenizer:
        what = f"the class {type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
        raise _refused(what, "Take spaCy's rules, spacy.Tokenizer.v1")
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
