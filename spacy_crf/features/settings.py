"""What configs say of features, checked before it is used."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from ..errors import Errors, shown


def require(possible: bool, parameter: str, value: Any, allowed: str) -> None:
    """RAISES (ValueError): CRF115, with what would be possible."""
    if not possible:
        raise ValueError(Errors.CRF115.format(parameter=parameter, value=shown(value), allowed=allowed))


def listed(parameter: str, value: Any) -> list[Any]:
    """A list, an empty one if None."""
    require(value is None or isinstance(value, (list, tuple)), parameter, value, "give a list of templates")
    return list(value or [])


def table(parameter: str, value: Any) -> dict[str, Any]:
    """A table, an empty one if None."""
    is_table = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    require(value is None or is_table, parameter, value, "give a table of names")
    return dict(value or {})


def functions(value: Any) -> dict[str, Any]:
    found = table("functions", value)
    for name, function in found.items():
        allowed = "give a function that is registered, [....functions.NAME] @misc = ..."
        require(callable(function), f"functions.{name}", function, allowed)
    return found


def flag(parameter: str, value: Any) -> bool:
    require(isinstance(value, bool), parameter, value, "it is true or false")
    return value


def count(parameter: str, value: Any) -> int:
    is_count = isinstance(value, Integral) and not isinstance(value, bool) and value >= 1
    require(is_count, parameter, value, "it is a whole number, at least 1")
    return int(value)
