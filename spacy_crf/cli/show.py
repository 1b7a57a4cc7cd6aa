"""What a trained pipeline finds in a few texts."""

import sys
import warnings
from pathlib import Path
from textwrap import indent
from typing import Annotated, Optional

import spacy
import typer
from spacy import displacy
from spacy.tokens import Doc, Span
from wasabi import msg, table

from .main import app, told_briefly


@app.command("show")
def show_cli(
    model: Annotated[str, typer.Argument(help="A pipeline: the name of a package, or a folder.")],
    texts: Annotated[
        Optional[list[str]], typer.Argument(help="Texts; lines of the standard input if there are none.")
    ] = None,
    html: Annotated[Optional[Path], typer.Option("--html", help="Also write the marked texts to this file.")] = None,
) -> None:
    """Process texts and print their entities, or their tags where the pipeline finds no entities."""
    with told_briefly():
        nlp = spacy.load(model)
        docs = list(nlp.pipe(texts or (line.strip() for line in sys.stdin if line.strip())))
    for doc in docs:
        print(f"\n{doc.text}")
        print(indent(table(_rows(doc) or [("nothing found",)], max_col=50).strip("\n"), "  "))
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*W006")  # a text without entities is no mistake
            html.write_text(displacy.render(docs, style="ent", page=True, jupyter=False), encoding="utf8")
        msg.good(f"Marked texts in {html}")


def _rows(doc: Doc) -> list[tuple[str, ...]]:
    """What was found, as columns: the words, what they are, and how probable that is, if the pipeline says so."""
    if doc.has_annotation("ENT_IOB"):
        return [(" ".join(ent.text.split()), ent.label_, *_probability(ent)) for ent in doc.ents]
    rows = [(token.text, token.tag_, token.pos_, str(token.morph)) for token in doc if not token.is_space]
    return [row for row in rows if any(row[1:])]


def _probability(span: Span) -> tuple[str, ...]:
    known = Span.has_extension("crf_prob") and span._.crf_prob is not None
    return (f"{span._.crf_prob:.0%}",) if known else ()
