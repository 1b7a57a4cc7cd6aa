"""``python -m spacy crf …``: each command is a function in one of these files, and the file is imported when the command is used.

This file also makes ``spacy evaluate --displacy-path`` draw the entities of every component. spaCy alone draws only the entities
of the factory ``ner``; for other components it reports files that it has not written.
"""

import importlib
from functools import wraps
from pathlib import Path
from typing import Any

from spacy.tokens import Doc
from wasabi import msg

from .group import app as app


def draw_entities_of_any_component() -> None:
    """Make `spacy evaluate` draw the entities of any component, if this version of spaCy has the function that draws them."""
    command: Any = importlib.import_module("spacy.cli.evaluate")
    render_parses = getattr(command, "render_parses", None)
    if render_parses is None or hasattr(render_parses, "__wrapped__"):
        return

    @wraps(render_parses)
    def render_ours(docs: list[Doc], output_path: Path, model_name: str = "", limit: int = 250, **kinds: Any) -> None:
        """Draw what spaCy draws. If that does not include entities, draw them in the page that spaCy would write.

        kinds: What spaCy draws; `spacy evaluate` passes ents=False if the pipeline has no factory `ner`.
        """
        spacy_draws = any(kinds.values())
        if spacy_draws:
            render_parses(docs, output_path, model_name=model_name, limit=limit, **kinds)
        if kinds.get("ents", True):
            return
        from ..explain.displacy_marks import render
        from ..whole_files import write_whole

        docs = docs[:limit]
        # `render` draws tags where there are no entities: only if spaCy has drawn nothing
        if any(doc.ents for doc in docs) or (not spacy_draws and any(doc.has_annotation("TAG") for doc in docs)):
            docs[0].user_data["title"] = model_name
            page = render(docs, page=True, jupyter=False) or ""
            # spaCy's name of the file
            write_whole(output_path / "entities.html", page.encode("utf8"))
        elif not spacy_draws:
            msg.warn("Nothing was drawn: the pipeline found no entities and no tags in these texts")

    command.render_parses = render_ours


draw_entities_of_any_component()
