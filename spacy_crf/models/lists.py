"""Gazetteers and clusters that several nodes of a model have: saved with the first of them, and one object again when loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

from .role import check_equal

# Those met so far in the model that is being saved or loaded; None where nodes are by themselves
_met: ContextVar[Optional[list[Any]]] = ContextVar("met", default=None)


@contextmanager
def shared_lists() -> Iterator[None]:
    """What is saved or loaded inside is one model, whose nodes come in the same order both times."""
    token = _met.set([])
    try:
        yield
    finally:
        _met.reset(token)


def write(each: Any) -> Any:
    """What `read` makes it of: all it says, or its number where an earlier node has said it."""
    met = _met.get()
    if met is None:
        return each.to_dict()
    number = next((n for n, other in enumerate(met) if other is each), None)
    if number is not None:
        return number
    met.append(each)
    return each.to_dict()


def read(saved: Any, kind: type) -> Any:
    """RAISES (ValueError): CRF509 for a number that stands for nothing of this kind."""
    met = _met.get()
    if isinstance(saved, int):
        found = met[saved] if met is not None and 0 <= saved < len(met) else None
        check_equal("a list that nodes share", type(found), kind)
        return found
    made = kind.from_dict(saved)
    if met is not None:
        met.append(made)
    return made
