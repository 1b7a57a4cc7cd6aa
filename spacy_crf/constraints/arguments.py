"""Readers of the arguments of rules: each function takes the value that the user wrote and returns the value that the rule uses.

RAISES (ValueError): The message says what the value must be.
"""

from collections.abc import Callable
from typing import Any, TypeGuard, Union


def _is_list(value: object, is_item: Callable[[object], bool]) -> TypeGuard[list[Any]]:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_item, value))


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def text(value: object) -> str:
    """Read a text. value (object): As the user wrote it. RETURNS (str): The text, which is not empty."""
    if not _is_name(value):
        raise ValueError("text")
    return value


def labels(value: object) -> Union[str, list[str]]:
    """Read labels.

    value (object): One label, several, or "*".
    RETURNS (List[str] or "*"): The labels; "*" stays "*".
    """
    if value == "*":
        return "*"
    names = [value] if isinstance(value, str) else value
    if not _is_list(names, _is_name):
        raise ValueError('a label, a list of labels, or "*"')
    return list(names)


def named_labels(value: object) -> list[str]:
    """Read labels. value (object): One label, or several. RETURNS (List[str]): The labels."""
    names = labels(value)
    if isinstance(names, str):  # "*"
        raise ValueError("a label or a list of labels")
    return names


def pair(value: object) -> list[str]:
    """Read a pair of labels. value (object): A list. RETURNS (List[str]): The two labels."""
    if not _is_list(value, _is_name) or len(value) != 2:
        raise ValueError("two labels")
    return list(value)


def pairs(value: object) -> list[list[str]]:
    """Read pairs of labels. value (object): A list of lists. RETURNS (List[List[str]]): The pairs."""
    if not _is_list(value, lambda item: True):
        raise ValueError("a list of pairs of labels")
    return [pair(item) for item in value]


def order(value: object) -> list[str]:
    """Read labels in an order. value (object): A list. RETURNS (List[str]): At least two labels, each once."""
    names = named_labels(value)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError("two different labels or more")
    return names


def count(value: object) -> int:
    """Read a number of spans or tokens. value (object): A number. RETURNS (int): The number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, at least 0")
    return value


def scope(value: object) -> str:
    """Read the scope of a rule. value (object): A text. RETURNS (str): "doc" or "sentence"."""
    if value not in ("doc", "sentence"):
        raise ValueError("'doc' or 'sentence'")
    return value


def patterns(value: object) -> list[list[dict]]:
    """Read Matcher patterns. value (object): A pattern, or a list of patterns. RETURNS (List[List[dict]]): The patterns."""
    several = [value] if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict) else value
    if not _is_list(several, lambda pattern: _is_list(pattern, lambda token: isinstance(token, dict))):
        raise ValueError("a Matcher pattern (a list of token tables), or a list of such patterns")
    return [list(pattern) for pattern in several]


def phrases(value: object) -> list[str]:
    """Read phrases. value (object): A text, or a list of texts. RETURNS (List[str]): The texts."""
    texts = [value] if isinstance(value, str) else value
    if not _is_list(texts, _is_name):
        raise ValueError("a list of texts")
    return list(texts)
