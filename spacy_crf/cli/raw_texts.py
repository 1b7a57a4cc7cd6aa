"""Texts to be processed: one a line, or in JSON with what came with them."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from ..errors import Errors
from .formats.source import Source

Item = dict[str, Any]  # with its "text"


def of_source(source: Source) -> Iterator[tuple[str, Item]]:
    """The items of a file with their places: lines that are texts if it is no JSON.

    RAISES (ValueError): With the place, if one can't be read.
    """
    if not source.is_json():
        yield from of_lines(source.lines())
        return
    for place, value in source.items():
        yield place, _checked(value, place)


def of_lines(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Item]]:
    """Lines of texts or of JSON objects, which may take turns."""
    for place, line in lines:
        text = line.strip()
        value: Any = {"text": text}
        if text.startswith("{"):
            with suppress(json.JSONDecodeError, RecursionError):  # a text that begins so
                value = json.loads(text)
        if text:
            yield place, _checked(value, place)


def _checked(value: Any, place: str) -> Item:
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError(Errors.CRF709.format(place=place))
    return value
