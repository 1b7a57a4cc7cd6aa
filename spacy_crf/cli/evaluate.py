"""``spacy evaluate --displacy-path`` draws the entities of the factory ``ner`` alone: for others it says that it has made files,
and makes none. Here is what draws those of ours in its place."""

import importlib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from spacy.tokens import Doc
from wasabi import msg

_MADE = "entities.html"  # as spaCy calls it


def draw_entities_of_any_component() -> None:
    """Lets spaCy's command draw entities whatever found them. Leaves a spaCy alone that has no such function."""
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
    from ..explain.marks import render
    from ..whole_files import write_whole

    found = any(doc.ents for doc in docs)
    if found or (is_all and any(doc.has_annotation("TAG") for doc in docs)):
        docs[0].user_data["title"] = model_name
        write_whole(output_path / _MADE, (render(docs, page=True, jupyter=False) or "").encode("utf8"))
    elif is_all:
        msg.warn("Nothing was drawn: the pipeline found no entities and no tags in these texts")
