"""What the tests of the lab share beside `tests.util`."""

import functools
from collections.abc import Callable, Iterable
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest

LAB = {entry.name for entry in metadata.distribution("spacy-crf-lab").entry_points}


def registered(name: str) -> str:
    """Under which name of a config the lab, or else the plugin, has a system of this name."""
    return f"spacy_crf_lab.{name}.v1" if f"spacy_crf_lab.{name}.v1" in LAB else f"spacy_crf.{name}.v1"


def with_table(module: ModuleType, names: str) -> list[Callable]:
    """The tests of a module that have a table of these parameters."""
    return [test for name, test in vars(module).items() if name.startswith("test_") and _table(test, names)]


def for_rows(names: str, rows: Iterable[Any] | dict[str, Any], *tests: Callable) -> dict[str, Callable]:
    """Tests of the plugin with rows of the lab in place of their own, by name.

    names: The parameters that a row has, as the tests write them. rows: By their ids, or without.
    """
    ids = list(rows) if isinstance(rows, dict) else None
    table = pytest.mark.parametrize(names, list(rows.values()) if isinstance(rows, dict) else list(rows), ids=ids)
    return {test.__name__: _with(test, names, table.mark) for test in tests}


def _with(test: Callable, names: str, table: Any) -> Callable:
    @functools.wraps(test)
    def copy(*args, **kwargs):
        return test(*args, **kwargs)

    others = [mark for mark in copy.pytestmark if mark not in _table(test, names)]
    copy.pytestmark = [*others, table]
    return copy


def _table(test: Callable, names: str) -> list[Any]:
    return [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize" and mark.args[0] == names]
