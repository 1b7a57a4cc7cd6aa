"""Annotated text as annotation tools and shared tasks write it, to the ``.spacy`` files that ``spacy train`` reads."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Optional

import spacy
import typer
from spacy.tokens import DocBin
from wasabi import msg

from ..errors import Errors
from .main import app, check_writable, told_briefly
from .reading import COLUMN_SUFFIXES, Report, read_docs

_SHOWN = 3  # places named of what could not be used


@app.command("convert")
def convert_cli(
    input_path: Annotated[Path, typer.Argument(help="A file, or a folder of files.", exists=True)],
    output_path: Annotated[Path, typer.Argument(help="The .spacy file, or a folder for them.")],
    lang: Annotated[str, typer.Option("--lang", "-l", help="Language of the tokenizer, for JSONL.")] = "en",
    tag_column: Annotated[
        Optional[int], typer.Option("--tag-column", "-t", min=2, help="Column that gives token.tag.")
    ] = None,
    ignore: Annotated[
        Optional[list[str]],
        typer.Option("--ignore", help="Key of JSONL whose annotation is left out; may be repeated."),
    ] = None,
) -> None:
    """Convert annotated text to .spacy files.

    JSONL (.jsonl): one {"text": …, "spans": […]} per line. Spans are found under "spans" (Prodigy), "entities" (spaCy),
    "label" or "labels" (doccano), as {"start": …, "end": …, "label": …} or as the list of the three. Those that do not align
    with the tokens count as missing annotation there. Another key that holds annotation is an error, unless --ignore names it.

    Columns (any other suffix): one token per line, the word in the first column and the entity tag (IOB2: B-LABEL,
    I-LABEL, O; - where annotation is missing) in the last; a line without words ends a sentence. If the last column is the
    one of --tag-column, there are no entities.

    Of a folder, the files *.jsonl, *.conll, *.iob, *.bio and *.tsv are converted.
    """
    with told_briefly():
        nlp = spacy.blank(lang)
        for source, target in _files(input_path, output_path):
            check_writable(target)
            report = Report()
            docs = read_docs(source, nlp, tag_column=tag_column, ignore=ignore or (), report=report)
            DocBin(docs=docs).to_disk(target)
            msg.good(f"{target}: {len(docs)} documents, {sum(len(doc.ents) for doc in docs)} entities")
            _tell(report.misaligned, "spans do not align with the tokens, and count as missing annotation")
            _tell(report.rejected, "lines were not accepted by the annotator, and are left out")


def _files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    if not source.is_dir():
        return [(source, target / f"{source.stem}.spacy" if target.is_dir() else target)]
    suffixes = (".jsonl", *COLUMN_SUFFIXES)
    files = sorted(path for path in source.iterdir() if path.suffix in suffixes)
    if not files:
        raise ValueError(Errors.CRF700.format(path=source, known=", ".join(suffixes)))
    targets = [(path, target / f"{path.stem}.spacy") for path in files]
    for (one, path), (other, following) in pairwise(targets):  # in order
        if path == following:
            raise ValueError(Errors.CRF713.format(one=one, other=other, target=path))
    return targets


def _tell(places: list[str], what: str) -> None:
    if places:
        msg.warn(f"{len(places)} {what}. First: {'; '.join(places[:_SHOWN])}")
