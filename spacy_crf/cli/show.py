"""What a trained pipeline finds in a few texts."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Annotated, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc, Span
from wasabi import msg, table

from ..errors import Errors
from ..whole_files import write_whole
from .formats.spans import check_length
from .group import app
from .raw_texts import STANDARD, read_items
from .shared import CodeOption, ModelArgument, check_writable, load_pipeline, told_briefly


@app.command("show")
def show_cli(
    model: ModelArgument,
    texts: Annotated[
        Optional[list[str]],
        typer.Argument(help='Texts; lines of the standard input if there are none, or JSONL with a "text" in each.'),
    ] = None,
    html: Annotated[Optional[Path], typer.Option("--html", help="Also write the marked texts to this file.")] = None,
    code: CodeOption = None,
) -> None:
    """Print the entities of texts. Where the pipeline sets none, the labels of the texts, or the tags."""
    with told_briefly():
        if html is not None:
            check_writable(html)
        nlp, docs = load_pipeline(model, code), []
        if html is not None:
            from ..pipeline.crf_pipe import CRFPipe
            from ..pipeline.prediction import tell_probabilities

            tell_probabilities(pipe for _, pipe in nlp.pipeline if isinstance(pipe, CRFPipe))
        for doc in nlp.pipe(texts or _standard_texts(nlp)):
            docs.append(doc)
            print(f"\n{doc.text}")
            print(indent(table(_rows(doc) or [("nothing found",)], max_col=50).strip("\n"), "  "))
        if not docs:
            raise ValueError(Errors.CRF718)
        if html is not None:
            from ..explain.marks import render

            write_whole(html, (render(docs, page=True, jupyter=False) or "").encode("utf8"))
            msg.good(f"Marked texts in {html}")


def _standard_texts(nlp: Language) -> Iterator[str]:
    """RAISES (ValueError): With the place, if a text can't be read or is too long."""
    for place, item in read_items(Path(STANDARD)):
        check_length(item["text"], nlp, place)
        yield item["text"]


def _rows(doc: Doc) -> list[tuple[str, ...]]:
    """What was found, as columns: the words, what they are, and how probable that is, if the pipeline says so."""
    if doc.has_annotation("ENT_IOB"):
        return [(" ".join(ent.text.split()), ent.label_, *_probability(ent)) for ent in doc.ents]
    rows = [(token.text, token.tag_, token.pos_, str(token.morph)) for token in doc if not token.is_space]
    found = [row for row in rows if any(row[1:])]
    return found or [(label, f"{share:.0%}") for label, share in sorted(doc.cats.items(), key=lambda item: -item[1])]


def _probability(span: Span) -> tuple[str, ...]:
    return () if span._.crf_prob is None else (f"{span._.crf_prob:.0%}",)
