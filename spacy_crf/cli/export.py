"""Commands that export components, and label rows of columns."""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from operator import add
from pathlib import Path
from typing import Any, NamedTuple, Optional

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc
from wasabi import msg

from .. import checks, lite
from ..blanks import is_blank, split_columns
from ..errors import Errors, counted
from ..migrate.functions import Columns, set_columns
from ..schemes import SCHEMES
from ..whole_files import write_whole
from .formats.source import read_lines, unreadable
from .shared import FileOption, ModelArgument, check_writable, command, load_pipeline, our_pipes
from .texts import read_examples

FORMS = ("npz", "json", "crfsuite", "wapiti")
OWNER = "crf export"


@command("export")
def export_cli(
    model: ModelArgument,
    output: FileOption,
    form: Optional[str] = Opt(
        None, "--to", help=f"{', '.join(FORMS)}; by default the suffix of the file, or crfsuite."
    ),
    component: Optional[str] = Opt(None, help="By default the first exportable one."),
    columns: str = Opt("orth", help="npz, json: attributes of tokens in the columns of rows, such as orth,tag."),
    prune: float = Opt(0.0, help="npz, json: leave out weights whose absolute value is at most this."),
    bits: int = Opt(32, help="npz, json: 16 for weights that are whole numbers with a scale."),
    check: Optional[Path] = Opt(None, help="npz, json: annotated texts; tells how many labels change.", exists=True),
    with_reader: bool = Opt(False, "--with-reader", help="npz, json: write lite.py into the same folder."),
) -> None:
    """Write a component for `spacy_crf.lite`, CRFsuite or Wapiti.

    `spacy_crf.lite` labels words with NumPy alone. In a model of CRFsuite features keep their names, such as lower[0]=the;
    `spacy_crf.migrate.pipeline.features_of` makes them. For Wapiti it was trained on the features that
    `import PATTERNS --from wapiti` wrote.
    """
    own = {"--columns": columns != "orth", "--prune": prune != 0.0, "--bits": bits != 32, "--check": check is not None}
    suffixes = output.name.removesuffix(".gz").rpartition(".")[2]
    kind = checks.one_of(OWNER, "--to", form or (suffixes if suffixes in FORMS else "crfsuite"), FORMS)
    for option in (name for name, given in {**own, "--with-reader": with_reader}.items() if given):
        checks.expect(kind in ("npz", "json"), OWNER, option, f"with --to {kind}", "left out: it is for npz and json")
    check_writable(output, check)
    if kind == "crfsuite":
        from ..migrate.crfsuite import write_crfsuite
        from ..migrate.pipeline import weights_of

        weights = weights_of(load_pipeline(model), component)
        write_crfsuite(weights, output)
        msg.good(f"{output}: {counted(len(weights.labels), 'label')}, {counted(weights.n_weights, 'weight')}")
        return
    if kind == "wapiti":
        from ..migrate.wapiti_export import export_wapiti

        write_whole(output, export_wapiti(load_pipeline(model), component))
        msg.good(f"{output}: a model of Wapiti")
        return
    from ..migrate.lite import compare_lite, export_lite, write_lite

    nlp = load_pipeline(model)
    names = [name.strip() for name in columns.split(",")]
    content = export_lite(nlp, component, columns=names, prune=prune, bits=bits)
    write_lite(content, output, kind)
    tables = chain.from_iterable(reader["tables"].values() for reader in content["readers"])
    n_weights = sum(len(table["weights"]) for table in tables)
    size = output.stat().st_size / 1e6
    msg.good(f"{output}: {counted(len(content['labels']), 'label')}, {counted(n_weights, 'weight')}, {size:.2f} MB")
    if with_reader:
        write_whole(output.parent / "lite.py", Path(lite.__file__).read_bytes())
        msg.good(f"{output.parent / 'lite.py'}: reads it, with NumPy alone")
    if check is not None:
        found = compare_lite(nlp, content["component"], lite.load(output), read_examples(check, nlp))
        before, after = (f"{100 * f1:.2f}" for f1 in (found.before, found.after))
        msg.info(
            f"{counted(found.texts, 'text')}: {found.different:,} get other labels; F1 {before} before, {after} after"
        )


# ------------------------------------------------------------------------------------------------- rows of columns

_AT_ONCE = 1000  # sequences


@command("tag")
def tag_cli(
    model: str = Arg(..., help="An export for lite (.npz, .json), or a pipeline: a package, or a folder."),
    columns: str = Opt("orth", help="Of a pipeline: attributes of tokens in the first columns, such as orth,tag."),
    component: Optional[str] = Opt(None, help="Of a pipeline: by default the first one that fits."),
    n_best: int = Opt(0, "--n-best", help="Write so many labellings of each sequence, each below its probability."),
    marginals: bool = Opt(False, "--marginals", help="Write the probability of each tag beside it."),
) -> None:
    """Add a column of tags to the rows of the standard input.

    A line in UTF-8 is a word and further columns between tabs or blanks; an empty line ends a sequence. Other components of a
    pipeline do not run: what they would write is read from columns.
    """
    checks.expect(n_best >= 0, "crf tag", "--n-best", n_best, "0 or more")
    if Path(model).is_file():
        tagger: Any = lite.load(model)
    else:
        tagger = _PipelineTagger(load_pipeline(model), component, [name.strip() for name in columns.split(",")])
    lines = read_lines(sys.stdin.buffer, "the standard input")
    word = tagger.columns.index("orth") if isinstance(tagger, _PipelineTagger) else None
    sequences = _sequences(lines, len(tagger.columns), word)
    # In batches, so that the output begins before the input ends
    while batch := [*islice(sequences, _AT_ONCE)]:
        text = "".join(_written(tagger, batch, n_best, marginals))
        sys.stdout.buffer.write(text.encode("utf8"))
        sys.stdout.buffer.flush()


class _Sequence(NamedTuple):
    lines: list[str]
    rows: list[list[str]]


def _sequences(lines: Iterable[tuple[str, str]], width: int, word: Optional[int]) -> Iterator[_Sequence]:
    """The sequences of a file of columns, from its lines with their places.

    word (Optional[int]): The column of words, of which none is empty.
    RAISES (ValueError): CRF703 for a line with too few columns, CRF701 for one without a word.
    """
    gathered = _Sequence([], [])
    for place, line in chain(lines, [("", "")]):
        if not is_blank(line):
            row = split_columns(line)
            if len(row) < width:
                raise ValueError(Errors.CRF703.format(place=place, got=len(row), expected=f"{width} or more"))
            if word is not None and not row[word]:
                raise unreadable(place, f"the word in column {word + 1} is empty")
            gathered.lines.append(line)
            gathered.rows.append(row)
        elif gathered.lines:
            yield gathered
            gathered = _Sequence([], [])


def _written(tagger: Any, batch: list[_Sequence], n_best: int, marginals: bool) -> Iterator[str]:
    """The lines with their tags."""
    texts = [sequence.rows for sequence in batch]
    best = [] if n_best else tagger.tag_all(texts)
    for n, (lines, rows) in enumerate(batch):
        found = [(None, best[n])] if not n_best else tagger.n_best(rows, n_best)
        of_tags = tagger.marginals(rows).tolist() if marginals else None
        place = {tag: number for number, tag in enumerate(tagger.tags)}
        for rank, (probability, tags) in enumerate(found):
            if probability is not None:
                yield f"# {rank} {probability:.6f}\n"
            if of_tags is not None:
                beside = [f"/{row[place[tag]]:.6f}" if tag in place else "" for row, tag in zip(of_tags, tags)]
                tags = map(add, tags, beside)
            yield from map("{}\t{}\n".format, lines, tags)
            yield "\n"


_ONE_TAG = "that gives each word one tag: a crf_ner, semicrf_ner, or crf_tagger of one attribute"
# Of Doc, by attribute
_ARGUMENTS = {"tag": "tags", "pos": "pos", "lemma": "lemmas"}


class _PipelineTagger:
    """A component of a pipeline, with the methods of `lite.Model` that `crf tag` calls."""

    def __init__(self, nlp: Language, component: Optional[str], columns: list[str]):
        self._nlp = nlp
        self.columns = columns
        Columns(columns)  # checks the names
        checks.expect("orth" in columns, "crf tag", "--columns", ",".join(columns), "with orth, the column of the word")
        [self._pipe, *_] = our_pipes(nlp, component, _ONE_TAG, lambda pipe: pipe.chains[0] is pipe)
        self.tags = self._pipe.tags()
        labels = self._pipe.labels if self._pipe.labelled == "segments" else ()
        self._names = [*SCHEMES["BIO"].tags(list(labels))] if labels else self.tags

    def tag_all(self, texts: list[list[list[str]]]) -> list[list[str]]:
        prediction = self._pipe.predict([*map(self._doc, texts)])
        names = [*self._names, ""]  # the last for no tag
        tags = [names[tag] for tag in prediction.tags.tolist()]
        return [tags[b:e] for b, e in pairwise(prediction.doc_starts.tolist())]

    def marginals(self, rows: list[list[str]]) -> Any:
        return self._pipe.marginals(self._doc(rows))[0]

    def n_best(self, rows: list[list[str]], n: int) -> list[tuple[float, list[str]]]:
        found = self._pipe.distribution(self._doc(rows)).n_best(n)
        return [(probability, list(map(self._names.__getitem__, tags.tolist()))) for probability, tags in found]

    def _doc(self, rows: list[list[str]]) -> Doc:
        values: dict[str, Any] = dict(zip(self.columns, zip(*rows)))
        words = values.pop("orth")
        # Token by token, columns would take longer than the labels
        quick: dict[str, Any] = {_ARGUMENTS[name]: values.pop(name) for name in [*values] if name in _ARGUMENTS}
        doc = Doc(self._nlp.vocab, words=words, **quick)
        set_columns(doc, [*values], [*values.values()])
        return doc
