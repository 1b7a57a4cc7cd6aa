"""Convert annotated texts of annotation tools and shared tasks to the ``.spacy`` files that ``spacy train`` reads."""
# pyright: reportInvalidTypeForm=false

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Optional

from spacy.cli._util import Arg, Opt
from spacy.tokens import Doc
from wasabi import msg

from .. import checks
from ..errors import Errors, counted
from ..pipeline.corpora import doc_bin
from ..whole_files import write_whole
from .formats import FORMATS, ReadSettings, Report, Source, brat, read
from .formats.columns import SCHEMES
from .formats.offsets import HABITS
from .shared import LangOption, blank, check_writable, choice, command, progress_bar

SUFFIXES = (
    *(".jsonl", ".ndjson", ".json", ".conllu", ".conllx", ".csv", ".tsv", ".xml"),
    *(".conll", ".iob", ".iob2", ".bio", ".biluo", ".bioes"),
)
_SHOWN = 5  # names of files in a warning
FormatName = choice("FormatName", FORMATS)
SchemeName = choice("SchemeName", SCHEMES)
Overlaps = choice("Overlaps", ("longest", "error"))


@command("convert")
def convert_cli(
    source: Path = Arg(..., metavar="INPUT", help="A file, or a folder of files.", exists=True),
    output: Path = Opt(..., "--output", "-o", help="The .spacy file, or a folder for them."),
    lang: LangOption = "en",
    format_: Optional[FormatName] = Opt(None, "--format", help="By default detected from the contents."),
    encoding: str = Opt("utf-8", help="Encoding of the files."),
    word_column: Optional[str] = Opt(None, help="Number or name of the word or text column; by default 1."),
    label_column: Optional[str] = Opt(None, help="Number or name of the tag or label column; by default the last."),
    tag_column: Optional[str] = Opt(None, help="Number or name of the column for token.tag."),
    scheme: Optional[SchemeName] = Opt(None, help="By default detected from the tags."),
    n_sents: int = Opt(1, min=0, help="Number of sentences of a Doc; 0 for whole documents."),
    tag_names: str = Opt("", help="For tags that are numbers: their names from 0 on, O,B-PER,I-PER …"),
    ignore: Optional[list[str]] = Opt(None, help="Skip the annotation under this key of JSON; may be repeated."),
    overlaps: Overlaps = Opt(Overlaps.longest, help="Keep the longest of overlapping spans, or refuse them."),
    without_spans: bool = Opt(False, "--without-spans", help="Accept files without annotation."),
    predictions: bool = Opt(False, "--predictions", help="Label Studio: read predictions of texts without annotation."),
    retokenize: bool = Opt(False, "--retokenize", help="Columns: join words by spaces, for the tokenizer to cut them."),
    spans_key: Optional[str] = Opt(
        None, help="Key of doc.spans for all spans, which may overlap, in place of doc.ents."
    ),
    offsets: str = Opt("", help="How the file counts characters: utf16, crlf (CR LF is one), or utf16,crlf."),
    skip_broken: bool = Opt(False, "--skip-broken", help="Leave out broken spans: missing annotation, and counted."),
) -> None:
    """Convert annotated text to .spacy files. The command reads files of Prodigy, doccano, Label Studio, brat and spaCy 2, JSON
    of words and tags, CoNLL-U, XML, columns and tables, with spans, tags, or labels of whole texts. It detects the format from
    the contents.

    The command prints the format of each file and the annotation that it could not use. Where a span does not align with tokens,
    their annotation is missing; of overlapping spans it keeps the longest. Unknown annotation is an error unless --ignore names
    its key; a file without any annotation is an error too. With --spans-key sc, `crf_spancat` finds overlapping spans, of columns
    those of several: --label-column 3,4.
    """
    habits = [name.strip() for name in offsets.split(",") if name.strip()]
    for habit in habits:
        checks.one_of("crf convert", "--offsets", habit, [*HABITS])
    settings = ReadSettings(
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
        retokenize=retokenize,
        spans_key=spans_key,
        offsets=habits,
        skip_broken=skip_broken,
    )
    nlp = blank(lang)
    targets = _files(source, output)
    unread = _unread(source, [path for path, _ in targets])
    if unread:
        msg.warn(
            f"{counted(len(unread), 'file')} of {source} not read because of the name: {', '.join(unread[:_SHOWN])}"
        )
    for path, target in targets:
        check_writable(target, path)
        file = Source(path, settings.encoding)
        report = Report()
        with progress_bar(f"reading {path.name}") as progress:
            docs = doc_bin(_followed(read(file, nlp, settings, report), file, progress))
        write_whole(target, docs.to_bytes())
        scheme = f", {report.scheme} tags" if report.scheme and report.has_spans else ""
        msg.info(f"{path}: {FORMATS[report.format].title}{scheme}")
        each = (
            "one label each" if report.exclusive else "some with several labels, for multilabel = true of crf_textcat"
        )
        labels = f"(doc.cats; {counted(len(report.labels), 'label')}, {each})"
        counts = [counted(report.documents, "document"), counted(report.spans, "span" if spans_key else "entity")]
        counts += [f"{counted(n, 'span')} in doc.spans['{key}']" for key, n in sorted(report.groups.items())]
        counts += [f"{counted(report.incorrect, 'span')} annotated as wrong"] if report.incorrect else []
        counts += [f"{counted(report.tagged, 'document')} with tags"] if report.tagged else []
        counts += [f"{counted(report.labelled, 'document')} with labels {labels}"] if report.labelled else []
        counts += [f"{counted(report.extended, 'document')} with extensions"] if report.extended else []
        msg.good(f"{target}: {', '.join(counts)}")
        # The file may be annotated in a way that was not recognized
        if not (report.has_spans or report.groups or report.tagged or report.labelled or report.extended):
            msg.warn(
                f"{path} has no annotation: all of its tokens count as outside of entities. If texts have labels under "
                "another key, name it with --label-column"
            )
        report.print_warnings()


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
    # a.json and a.jsonl would both become a.spacy
    for (one, path), (other, following) in pairwise(targets):  # in order
        if path == following:
            raise ValueError(Errors.CRF713.format(one=one, other=other, target=path))
    return targets


def _unread(folder: Path, files: list[Path]) -> list[str]:
    """Names of the other files of a folder that is converted; those of brat are read together."""
    if not folder.is_dir():
        return []
    read = {*files}
    if brat.is_collection(folder):
        annotated = list(folder.glob(f"*{brat.SUFFIX}"))
        read.update(annotated, (file.with_suffix(".txt") for file in annotated))
    others = [path for path in folder.iterdir() if path.is_file() and path not in read]
    return sorted(path.name for path in others if not path.name.startswith("."))


def _followed(docs: Iterable[Doc], source: Source, progress: Callable[..., None]) -> Iterator[Doc]:
    for doc in docs:
        progress(completed=source.position, total=source.size)
        yield doc
