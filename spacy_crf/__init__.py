from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .explain.marks import render

__all__ = ["__version__", "render"]
__version__ = "0.6.0"


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: every ``spacy.blank()`` imports this package."""
    if name == "render":
        from .explain.marks import render

        return render
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
