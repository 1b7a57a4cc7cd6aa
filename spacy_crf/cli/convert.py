"""Annotated text as annotation tools and shared tasks write it, to the ``.spacy`` files that ``spacy train`` reads."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Optional, TypeVar

import typer
from wasabi import msg

from ..errors import Errors, counted
from ..pipeline.doc_bin import doc_bin
from ..whole_files import write_whole
from .formats import FORMATS, Report, Settings, Source, brat, read
from .formats.tags import SCHEMES
from .group import app
from .shared import CodeOption, LangOption, blank, brief_errors, check_writable, choice, import_code

SUFFIXES = (
    *(".jsonl", ".ndjson", ".json", ".conllu", ".conllx", ".csv", ".tsv"),
    *(".conll", ".iob", ".iob2", ".bio", ".biluo", ".bioes"),
)
_LONG = 2_000_000  # bytes of a file that has a progress bar
FormatName = choice("FormatName", FORMATS)
SchemeName = choice("SchemeName", SCHEMES)
Overlaps = choice("Overlaps", ("longest", "error"))
T = TypeVar("T")


@app.command("convert")
def convert_cli(
    input_path: Annotated[Path, typer.Argument(help="A file, or a folder of files.", exists=True)],
    output_path: Annotated[Path, typer.Argument(help="The .spacy file, or a folder for them.")],
    lang: LangOption = "en",
    format_: Annotated[
        Optional[FormatName],
        typer.Option("--format", "-f", help="By default the contents tell."),
    ] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Of the files.")] = "utf-8",
    word_column: Annotated[
        Optional[str], typer.Option("--word-column", "-w", help="Of the word, or of the text: number, or name; or 1.")
    ] = None,
    label_column: Annotated[
        Optional[str],
        typer.Option("--label-column", help="Of the entity tag, or of the text's label: number, or name; or the last."),
    ] = None,
    tag_column: Annotated[
        Optional[str], typer.Option("--tag-column", "-t", help="Column that gives token.tag: number, or name.")
    ] = None,
    scheme: Annotated[Optional[SchemeName], typer.Option("--scheme", help="By default the tags tell.")] = None,
    n_sents: Annotated[
        int, typer.Option("--n-sents", "-n", min=0, help="Sentences of a Doc; 0 for whole documents.")
    ] = 1,
    tag_names: Annotated[
        str, typer.Option("--tag-names", help="Of tags that are numbers, from 0: O,B-PER,I-PER …")
    ] = "",
    ignore: Annotated[
        Optional[list[str]],
        typer.Option("--ignore", help="Key of JSON whose annotation is left out; may be repeated."),
    ] = None,
    overlaps: Annotated[
        Overlaps, typer.Option("--overlaps", help="Of spans: keep the longest, or refuse.")
    ] = Overlaps.longest,
    without_spans: Annotated[bool, typer.Option("--without-spans", help="Nothing is annotated, and rightly.")] = False,
    predictions: Annotated[
        bool, typer.Option("--predictions", help="Label Studio: what a model found counts where nobody annotated.")
    ] = False,
    code: CodeOption = None,
) -> None:
    """Convert annotated text to .spacy files. It reads what Prodigy, doccano, Label Studio, brat and spaCy 2 write, JSON of words
    and tags, CoNLL-U, columns and tables: spans, tags, and labels of whole texts. What a file is, its contents tell.

    Says what it took each file for, and what could not be used: spans that do not align with the tokens count as missing
    annotation, of spans that overlap the longest is kept. Annotation that is not understood is an error, unless --ignore names
    it; so is a file in which nothing is annotated.
    """
    with brief_errors():
        import_code(code)
        settings = Settings(
            format=format_ and format_.value,
            encoding=encoding,
            word_column=word_column,
            label_column=label_column,
            tag_column=tag_column,
            scheme=scheme and scheme.value,
            n_sents=n_sents,
            tag_names=[name.strip() for name in tag_names.split(",") if name.strip()],
            ignore=ignore or (),
            overlaps=overlaps.value,
            without_spans=without_spans,
            predictions=predictions,
        )
        convert(input_path, output_path, lang, settings)


def convert(input_path: Path, output_path: Path, lang: str, settings: Settings) -> None:
    """Writes the .spacy file of a file, or those of a folder's files, and tells what was read.

    RAISES (ValueError): If one can't be read. Nothing is written of that one.
    """
    nlp = blank(lang)
    for path, target in _files(input_path, output_path):
        check_writable(target, path)
        source, report = Source(path, settings.encoding), Report()
        docs = doc_bin(_with_bar(read(source, nlp, settings, report), source))
        write_whole(target, docs.to_bytes())
        scheme = f", {report.scheme} tags" if report.scheme and report.has_spans else ""
        msg.info(f"{path}: {FORMATS[report.format].title}{scheme}")
        tagged = f", {report.tagged:,} documents with tags" if report.tagged else ""
        each = "one label each" if report.exclusive else "some with several labels: crf_textcat takes one of a text"
        labelled = (
            f", {report.labelled:,} documents with labels (doc.cats; {counted(len(report.labels), 'label')}, {each})"
            if report.labelled
            else ""
        )
        incorrect = f", {report.incorrect:,} spans that are none" if report.incorrect else ""
        msg.good(f"{target}: {report.documents:,} documents, {report.spans:,} entities{incorrect}{tagged}{labelled}")
        if not report.has_spans and not report.tagged and not report.labelled:
            msg.warn(
                f"{path} has no annotation: all of its tokens count as outside of entities. If texts have labels under "
                "another key, name it with --label-column"
            )
        report.tell()


def _files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    if not source.is_dir():
        return [(source, target / f"{source.stem}.spacy" if target.is_dir() else target)]
    if target.is_file():
        raise ValueError(Errors.CRF716.format(source=source, target=target))
    files = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
    targets = [(path, target / f"{path.stem}.spacy") for path in files]
    if brat.is_collection(source):
        targets = sorted([*targets, (source, target / f"{source.resolve().name}.spacy")], key=lambda pair: pair[1])
    if not targets:
        raise ValueError(Errors.CRF700.format(path=source, known=", ".join((*SUFFIXES, brat.SUFFIX))))
    for (one, path), (other, following) in pairwise(targets):  # in order
        if path == following:
            raise ValueError(Errors.CRF713.format(one=one, other=other, target=path))
    return targets


def _with_bar(items: Iterable[T], source: Source) -> Iterator[T]:
    """A long file's items, behind a bar that shows how much of it has been read."""
    if source.size < _LONG:
        yield from items
        return
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task(f"reading {source.path.name}", total=source.size)
        for item in items:
            progress.update(task, completed=source.position)
            yield item
