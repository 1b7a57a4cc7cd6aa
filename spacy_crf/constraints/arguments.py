"""Readers of the arguments of rules: each function takes the value that the user wrote and returns the value that the rule uses.

RAISES (ValueError): The message says what the value must be.
"""

from collections.abc import Callable
from typing import Any, Union


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_item, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def text(value: Any) -> str:
    if not _is_name(value):
        raise ValueError("text")
    return value


def labels(value: Any) -> Union[str, list[str]]:
    """A list of labels from one label or several; "*" stays "*"."""
    if value == "*":
        return value
    names = [value] if isinstance(value, str) else value
    if not _is_list(names, _is_name):
        raise ValueError('a label, a list of labels, or "*"')
    return list(names)


def named_labels(value: Any) -> list[str]:
    names = labels(value)
    if isinstance(names, str):  # "*"
        raise ValueError("a label or a list of labels")
    return names


def pair(value: Any) -> list[str]:
    if not _is_list(value, _is_name) or len(value) != 2:
        raise ValueError("two labels")
    return list(value)


def pairs(value: Any) -> list[list[str]]:
    if not _is_list(value, lambda item: True):
        raise ValueError("a list of pairs of labels")
    return [pair(item) for item in value]


def order(value: Any) -> list[str]:
    names = named_labels(value)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError("two different labels or more")
    return names


def count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, at least 0")
    return value


def scope(value: Any) -> str:
    if value not in ("doc", "sentence"):
        raise ValueError("'doc' or 'sentence'")
    return value


def patterns(value: Any) -> list[list[dict]]:
    several = [value] if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict) else value
    if not _is_list(several, lambda pattern: _is_list(pattern, lambda token: isinstance(token, dict))):
        raise ValueError("a Matcher pattern (a list of token tables), or a list of such patterns")
    return [list(pattern) for pattern in several]


def phrases(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not _is_list(texts, _is_name):
        raise ValueError("a list of texts")
    return list(texts)
