"""Draw entities for ``spacy evaluate --displacy-path``, whatever component has found them.

spaCy itself draws the entities of the factory ``ner`` alone: for other components it reports files that it has not written.
"""

import importlib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from spacy.tokens import Doc
from wasabi import msg

_MADE = "entities.html"  # spaCy's name for the file


def draw_entities_of_any_component() -> None:
    """Make spaCy's command draw the entities of any component, if this version of spaCy has the function that draws."""
    command = importlib.import_module("spacy.cli.evaluate")
    render_parses = getattr(command, "render_parses", None)
    if render_parses is not None and not hasattr(render_parses, "__wrapped__"):
        command.render_parses = _with_entities(render_parses)


def _with_entities(render_parses: Callable[..., None]) -> Callable[..., None]:
    @wraps(render_parses)
    def render(docs: list[Doc], output_path: Path, model_name: str = "", limit: int = 250, **kinds: Any) -> None:
        if any(kinds.values()):
            render_parses(docs, output_path, model_name=model_name, limit=limit, **kinds)
        if not kinds.get("ents", True):
            _render_ours(docs[:limit], output_path, model_name, is_all=not any(kinds.values()))

    return render


def _render_ours(docs: list[Doc], output_path: Path, model_name: str, *, is_all: bool) -> None:
    from ..explain.displacy_marks import render
    from ..whole_files import write_whole

    found = any(doc.ents for doc in docs)
    if found or (is_all and any(doc.has_annotation("TAG") for doc in docs)):
        docs[0].user_data["title"] = model_name
        write_whole(output_path / _MADE, (render(docs, page=True, jupyter=False) or "").encode("utf8"))
    elif is_all:
        msg.warn("Nothing was drawn: the pipeline found no entities and no tags in these texts")
