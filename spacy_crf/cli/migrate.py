"""Commands that import models of other programs as pipelines, that export components, and that label rows of columns."""

import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Optional

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Config
from wasabi import msg

from .. import checks
from ..blanks import is_blank, split_columns
from ..errors import Errors, counted, known_names, no_component
from ..migrate.functions import (
    PAIRS,
    SOURCE,
    WORDS,
    Columns,
    find_function,
    for_config,
    register_features,
    set_columns,
    write_registration,
)
from ..schemes import SCHEMES
from ..whole_files import write_whole
from .formats.source import read_lines, unreadable
from .shared import (
    LangOption,
    ModelArgument,
    PipelineOption,
    check_writable,
    command,
    load_pipeline,
    our_pipes,
    save_pipeline,
)
from .texts import read_examples

if TYPE_CHECKING:
    from ..migrate.checking import Comparison
    from ..migrate.foreign import ForeignModel
    from ..migrate.native import Native


Blocks = dict[str, dict[str, Any]]  # of functions in a config, by their names
PROGRAMS = ("crfsuite", "crfpp", "wapiti")
_FIRST_BYTES = (b"#", b"U", b"u", b"B", b"b", b"*")  # of files of templates or patterns
_MOST_SHOWN = 10  # names of features in a message


@command("import")
def import_cli(
    output: PipelineOption,
    file: Path = Arg(..., help="The model, or a file of templates or patterns.", exists=True, dir_okay=False),
    program: str = Opt(..., "--from", help=f"The program that trained it: {', '.join(PROGRAMS)}."),
    columns: Optional[str] = Opt(None, help="Attributes of tokens in the columns, such as orth,tag."),
    features: Optional[str] = Opt(None, help="crfsuite: function that makes the features, as package.module:function."),
    word_features: Optional[str] = Opt(None, help="crfsuite: function that makes the features of one word."),
    edges: str = Opt("BOS,EOS", help="--word-features: names of the features of the first and the last word."),
    check: Optional[Path] = Opt(
        None, help="File of columns on which to compare the labels of both programs.", exists=True, dir_okay=False
    ),
    lang: LangOption = "en",
    kind: str = Opt("tags", "--as", help="tags, or entities: each run of tokens with one label is an entity."),
    attribute: str = Opt("tag", help="Attribute of tokens that gets the labels (as tags)."),
    replay: bool = Opt(
        False, "--replay", help="crfpp, wapiti: make features as that program does, without native templates."
    ),
) -> None:
    """Make a pipeline from another program's model.

    The component, a crf_tagger or (as entities) a crf_ner, gives each token the same label as the other program. If the
    file holds templates (crfpp) or patterns (wapiti) in place of a model, the command writes the block of features for a config
    to the file --output.
    """
    from ..migrate.tokenizer import WORDS_OF

    checks.one_of("crf import", "--as", kind, ("tags", "entities"))
    names = _names(columns) if columns else []
    with file.open("rb") as stream:
        head = stream.read(1000).removeprefix(BOM_UTF8).lstrip()
        stream.seek(0)
        # The first line tells templates and patterns from models, whatever the file is called. "#mdl#" begins a model of Wapiti
        if program in _SYNTAX and head[:1] in _FIRST_BYTES and not head.startswith(b"#mdl#"):
            check_writable(output, file)
            block = features_block(stream.read().decode("utf-8-sig"), program, names)
            write_whole(output, block.to_str().encode("utf8"))
            msg.good(f"Features in {output}")
            return
        check_writable(output / "meta.json")
        model = read_model(stream if program == "wapiti" else stream.read(), str(file), program)
    if word_features is not None:
        native = find_words(model, word_features, edges, features)
    else:
        native = None if replay or program not in _SYNTAX else find_native(model, names)
    settings = {"lang": lang, "attribute": attribute, "native": native, "word_features": word_features}
    # Programs such as usaddress cut words in their own way, which the tokenizer repeats
    packages = [path.partition(":")[0] for path in (word_features, features) if path is not None]
    settings["program"] = next((package for package in packages if package in WORDS_OF), None)
    nlp = make_pipeline(model, names, features, **settings, entities=kind == "entities")
    counts = [counted(len(model.labels), "label"), counted(len(model.states.names), "feature")]
    msg.good(", ".join([*counts, counted(model.n_weights, "weight")]))
    if native is not None:
        n_native = len(native.of_labels.templates) + len(native.of_pairs.templates)
        if n_native:
            msg.info(f"{counted(n_native, 'native template')}")
        for line, reason in native.replayed:
            msg.info(f"Replayed: {line}: {reason}")
    comparison = check_model(nlp, model, file, check, names or ["orth"], features) if check is not None else None
    save_pipeline(nlp, output)
    msg.good(f"Pipeline in {output}")
    paths: dict[str, Any] = {word_features: ()} if word_features is not None else {}
    if features is not None and (native is None or native.replayed):
        paths[features] = names
    if paths:
        makes = " and ".join(paths) + (" make" if len(paths) > 1 else " makes")
        registered = write_registration(output, paths)
        msg.info(f"{makes} its features: give --code {registered} to commands that load the pipeline")
    if comparison is not None:
        _print_comparison(comparison)


def _print_comparison(comparison: "Comparison") -> None:
    """Print how many labels of a pipeline differ from those of the other program.

    RAISES (SystemExit): If labels of tokens differ.
    """
    counts = f"{counted(comparison.sequences, 'sequence')}, {counted(comparison.tokens, 'token')}"
    if comparison.is_same:
        ties = f", but for {comparison.ties} in ties" if comparison.ties else ""
        msg.good(f"{counts}: both programs give the same labels{ties}")
    else:
        gap = f"the largest difference of scores is {comparison.largest_gap:.2g}"
        msg.fail(f"{counts}: {comparison.different - comparison.ties} tokens get other labels, {gap}", exits=1)


# How programs write the lines that make features: the registered function and its argument, and the first letters of the lines
# for features of labels and of the lines for features of pairs of labels
_SYNTAX = {
    "crfpp": ("spacy_crf.crfpp_features.v1", "templates", "U", "B"),
    "wapiti": ("spacy_crf.wapiti_features.v1", "patterns", "uU*", "bB*"),
}


def read_model(data: "bytes | BinaryIO", source: str, program: str) -> "ForeignModel":
    """Read the model of a program, from its bytes or (wapiti) from the open file.

    RAISES (ValueError): CRF020 for an unknown program; CRF854 and others if the file is not a model of that program.
    """
    from ..migrate.crfpp import read_crfpp
    from ..migrate.crfsuite import read_crfsuite
    from ..migrate.wapiti import read_wapiti

    readers = {"crfsuite": read_crfsuite, "crfpp": read_crfpp, "wapiti": read_wapiti}
    return readers[checks.one_of("crf import", "--from", program, readers)](data, source)


def find_native(model: "ForeignModel", columns: list[str]) -> "Native":
    """Find native templates for a model whose file contains the lines that make its features.

    RAISES (ValueError): CRF868 or CRF864 for wrong columns.
    """
    from ..migrate.native import native_of

    lines = _lines(model.templates, model.program)
    _resolved(_functions(model.program, lines, columns))
    return native_of(model, *lines, columns)


def find_words(model: "ForeignModel", path: str, edges: str, features: Optional[str]) -> "Native":
    """Find templates for a model of CRFsuite whose features a function makes word by word.

    path (str): Path of the function of a word.
    edges (str): Names of the features of the first and the last word, with a comma between them.
    features (str): Path of the function that makes the other features, if there is one.
    RAISES (ValueError): CRF897 if there is none, and features are left.
    """
    from ..migrate.native import native_of_words

    checks.expect(model.program == "crfsuite", "crf import", "--word-features", path, "for a model of crfsuite")
    names = tuple(name.strip() for name in edges.split(","))
    checks.expect(len(names) == 2, "crf import", "--edges", edges, "two names with a comma between them")
    native = native_of_words(model, find_function(path)[1], names)
    others = [name for name, _ in native.replayed]  # which the function of a word does not make
    if others and features is None:
        shown = f"{known_names(others[:_MOST_SHOWN])}{', …' if len(others) > _MOST_SHOWN else ''}"
        raise ValueError(Errors.CRF897.format(path=path, n=len(others), total=len(model.states.names), names=shown))
    return native


def make_pipeline(
    model: "ForeignModel",
    columns: list[str],
    features: Optional[str],
    *,
    lang: str = "en",
    attribute: str = "tag",
    native: Optional["Native"] = None,
    word_features: Optional[str] = None,
    entities: bool = False,
    program: Optional[str] = None,
) -> Language:
    """Make a pipeline from a model.

    columns (List[str]): Attributes of tokens that the features read.
    features (str): Path of the function that makes the features, for models whose file has no templates or patterns.
    native (Native): Native templates; by default none, and all features are made as the other program makes them.
    word_features (str): Path of the function of a word, see `find_words`.
    entities (bool): Whether each run of tokens with one label is an entity.
    program (str): The program whose words the tokenizer finds; None for spaCy's tokens.
    RAISES (ValueError): CRF861 if the model has neither templates nor patterns, and `features` is None.
    """
    from ..migrate.native import NOTHING
    from ..migrate.pipeline import build_pipeline

    if model.program in _SYNTAX:
        lines = _lines(model.templates, model.program) if native is None else native.lines_replayed
        functions = _functions(model.program, lines, columns)
        if native is not None and native.of_labels.templates and not native.of_labels.replayed:
            del functions[SOURCE]
    else:
        functions = {} if word_features is None else {WORDS: _registered(word_features)}
        if native is None or native.replayed:
            functions[SOURCE] = _registered(features, columns)
    return build_pipeline(
        model,
        functions,
        native=native or NOTHING,
        lang=lang,
        attribute=attribute,
        reads=columns,
        entities=entities,
        program=program,
    )


def _registered(path: Optional[str], columns: Sequence[str] = ()) -> dict[str, str]:
    """Register the function that a path names.

    RETURNS (dict[str, str]): The block of the function for a config.
    RAISES (ValueError): CRF861 without a path.
    """
    if path is None:
        raise ValueError(Errors.CRF861)
    name, function = find_function(path)
    if not registry.has("misc", name):
        register_features(name, function, columns=columns)
    return {"@misc": name}


def _lines(templates: list[str], program: str) -> tuple[list[str], list[str]]:
    """Split lines into lines for features of labels, and lines for features of pairs of labels. Of the latter, lines that insert
    no word (without "%") are left out: their features are the same everywhere, and their weights are transitions."""
    _, _, of_labels, of_pairs = _SYNTAX[program]
    pair_lines = [line for line in templates if line[0] in of_pairs and "%" in line]
    return [line for line in templates if line[0] in of_labels], pair_lines


def _functions(program: str, lines: tuple[list[str], list[str]], columns: list[str]) -> Blocks:
    """Blocks of functions for a config: one for features of labels and, if there are lines for them, one for features of pairs of
    labels.

    lines (Tuple[List[str], List[str]]): The lines for both, as `_lines` splits them.
    """
    source, argument, _, _ = _SYNTAX[program]
    return {
        name: {"@misc": source, argument: list(map(for_config, lines_of_kind)), "columns": columns}
        for name, lines_of_kind in zip((SOURCE, PAIRS), lines)
        if lines_of_kind or name == SOURCE
    }


def _resolved(functions: Blocks) -> dict[str, Callable]:
    """Make the functions of blocks. RAISES (ValueError): CRF856, CRF868 or CRF864 for wrong lines or columns."""
    return {name: registry.resolve({"source": block})["source"] for name, block in functions.items()}


def features_block(text: str, program: str, columns: list[str]) -> Config:
    """Make the block of features for a config from the text of a file of templates or patterns.

    RAISES (ValueError): CRF856 for a line that is not a template, CRF864 for too few columns.
    """
    from ..migrate.crfpp import read_templates
    from ..migrate.wapiti import read_patterns

    templates = {"crfpp": read_templates, "wapiti": read_patterns}[program](text)
    functions = _functions(program, _lines(templates, program), columns)
    _resolved(functions)
    of_pairs = [f"fn:{PAIRS}[0]"] if PAIRS in functions else []
    block = {"@misc": "spacy_crf.features.v1", "templates": [f"fn:{SOURCE}[0]"], "transitions": of_pairs}
    return Config({"features": {**block, "functions": functions}})


def check_model(
    nlp: Language, model: "ForeignModel", file: Path, data: Path, columns: list[str], features: Optional[str] = None
) -> "Comparison":
    """Compare a pipeline with the program that trained the model.

    features (str): Path of the function that makes all features for that program, if its file has no lines for them.
    RAISES (ValueError): CRF781 if the program is not installed, CRF861 without the function.
    """
    from ..migrate.checking import RIVALS, compare

    if model.program in _SYNTAX:
        blocks = _functions(model.program, _lines(model.templates, model.program), columns)
    else:
        blocks = {SOURCE: _registered(features, columns)}
    functions = _resolved(blocks)
    rival = RIVALS[model.program](file, columns)
    return compare(nlp, model, read_columns(data, nlp, columns), rival, functions)


def read_columns(path: Path, nlp: Language, columns: Sequence[str]) -> Iterator[Doc]:
    """Read Docs from a file with columns between tabs or blanks, and an empty line after each sentence.

    columns (Sequence[str]): Attributes of tokens in the first columns, one of them the word; further columns are ignored.
    RAISES (ValueError): CRF703 for a line with too few columns.
    """
    with path.open("rb") as file:
        for sequence in _sequences(read_lines(file, str(path)), len(columns)):
            yield _doc_of_rows(nlp.vocab, columns, sequence.rows)


FORMS = ("npz", "json", "page", "crfsuite", "wapiti")
OWNER = "crf export"


@command("export")
def export_cli(
    model: ModelArgument,
    output: Path = Arg(..., help="The file to write."),
    form: Optional[str] = Opt(
        None, "--to", help=f"{', '.join(FORMS)}; by default the suffix of the file (html: page), or crfsuite."
    ),
    component: Optional[str] = Opt(
        None, help="npz, json, page: names between commas, by default all; else one, by default the first that fits."
    ),
    columns: str = Opt("orth", help="npz, json: attributes of tokens in the columns of rows, such as orth,tag."),
    words: bool = Opt(False, "--words", help="npz, json: leave out the tokenizer; the export reads words, not texts."),
    prune: float = Opt(0.0, help="npz, json, page: leave out weights whose absolute value is at most this."),
    bits: int = Opt(32, help="npz, json, page: 16 for weights that are whole numbers with a scale."),
    check: Optional[Path] = Opt(None, help="npz, json: annotated texts; tells how many labels change.", exists=True),
    with_reader: bool = Opt(
        False, "--with-reader", help="npz, json: write the folder lite, which reads the export, beside it."
    ),
) -> None:
    """Write a pipeline for NumPy or a browser, CRFsuite or Wapiti.

    `spacy_crf.lite` parses texts with NumPy alone, a page in a browser without a server. In a model of CRFsuite features
    keep their names, such as lower[0]=the; `spacy_crf.migrate.pipeline.features_of` makes them. For Wapiti it was trained on the
    features that `import PATTERNS --from wapiti` wrote.
    """
    if form is None:
        suffix = output.name.removesuffix(".gz").rpartition(".")[2]
        form = "page" if suffix == "html" else suffix if suffix in FORMS else "crfsuite"
    kind = checks.one_of(OWNER, "--to", form, FORMS)
    if kind not in ("npz", "json"):
        # Whether the user gives the options of npz and json, two of which pages have too
        is_given = {"--columns": columns != "orth", "--words": words, "--check": check is not None}
        is_given["--with-reader"] = with_reader
        if kind != "page":
            is_given |= {"--prune": prune != 0.0, "--bits": bits != 32}
        for option, is_wrong in is_given.items():
            checks.expect(not is_wrong, OWNER, option, f"with --to {kind}", "left out: it is for npz and json")
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
    from .. import lite
    from ..migrate.lite import compare_lite, export_lite, write_lite

    nlp = load_pipeline(model)
    names = _names(columns)
    chosen = _names(component) if component else []
    content = export_lite(nlp, chosen, columns=names, tokenizer=not words, prune=prune, bits=bits)
    if kind == "page":
        from ..migrate.page import render_page

        write_whole(output, render_page(content, f"{nlp.lang}_{nlp.meta['name']}").encode("utf8"))
    else:
        write_lite(content, output, kind)
    n_weights = 0
    for part in content["components"]:
        for reader in part.get("readers", ()):
            n_weights += sum(len(table["weights"]) for table in reader["tables"].values())
    exported = ", ".join(part["name"] for part in content["components"])
    size = output.stat().st_size / 1e6
    msg.good(f"{output}: {exported}, {counted(n_weights, 'weight')}, {size:.2f} MB")
    if with_reader:
        folder = output.parent / "lite"
        folder.mkdir(exist_ok=True)
        for path in Path(lite.__file__).parent.glob("*.py"):
            write_whole(folder / path.name, path.read_bytes())
        msg.good(f"{folder}: reads it, with NumPy alone")
    if check is not None:
        for comparison in compare_lite(nlp, lite.load(output), read_examples(check, nlp)):
            f1 = f"F1 {100 * comparison.before:.2f} before, {100 * comparison.after:.2f} after"
            different = f"{comparison.different:,} get other labels"
            msg.info(f"{comparison.component}: {counted(comparison.texts, 'text')}: {different}; {f1}")


def _names(names: str) -> list[str]:
    """The names in an option, between commas."""
    return [name.strip() for name in names.split(",")]


# ------------------------------------------------------------------------------------------------- rows of columns

_AT_ONCE = 1000  # sequences


@command("tag")
def tag_cli(
    model: str = Arg(..., help="An export for lite (.npz, .json), or a pipeline: a package, or a folder."),
    columns: str = Opt("orth", help="Of a pipeline: attributes of tokens in the first columns, such as orth,tag."),
    component: Optional[str] = Opt(None, help="By default the first one that fits."),
    n_best: int = Opt(0, "--n-best", help="Write so many labellings of each sequence, each below its probability."),
    marginals: bool = Opt(False, "--marginals", help="Write the probability of each tag beside it."),
) -> None:
    """Add a column of tags to the rows of the standard input.

    A line in UTF-8 is a word and further columns between tabs or blanks; an empty line ends a sequence. Other components of a
    pipeline do not run: what they would write is read from columns.
    """
    checks.expect(n_best >= 0, "crf tag", "--n-best", n_best, "0 or more")
    if Path(model).is_file():
        from .. import lite

        parse = lite.load(model)
        fitting = [part for part in parse.components.values() if part.kind in ("chain", "segments")]
        fitting = [part for part in fitting if component in (None, part.name)]
        if not fitting:
            raise no_component(_ONE_TAG, list(parse.components), component)
        tagger: Any = fitting[0]
    else:
        tagger = _PipelineTagger(load_pipeline(model), component, _names(columns))
    lines = read_lines(sys.stdin.buffer, "the standard input")
    word_column = tagger.columns.index("orth") if isinstance(tagger, _PipelineTagger) else None
    sequences = _sequences(lines, len(tagger.columns), word_column)
    # In batches, so that the output begins before the input ends
    while batch := [*islice(sequences, _AT_ONCE)]:
        text = "".join(_tagged_lines(tagger, batch, n_best, marginals))
        sys.stdout.buffer.write(text.encode("utf8"))
        sys.stdout.buffer.flush()


class _Sequence(NamedTuple):
    lines: list[str]  # as they were read
    rows: list[list[str]]  # the columns of each line


def _sequences(lines: Iterable[tuple[str, str]], width: int, word_column: Optional[int] = None) -> Iterator[_Sequence]:
    """The sequences of a file of columns.

    lines (Iterable[Tuple[str, str]]): The place and the text of each line.
    width (int): The number of columns that each line needs.
    word_column (Optional[int]): The column of words, of which none may be empty; None if words are not checked.
    RAISES (ValueError): CRF703 for a line with too few columns, CRF701 for a line without a word.
    """
    sequence = _Sequence([], [])
    for place, line in chain(lines, [("", "")]):  # an empty line ends the last sequence
        if not is_blank(line):
            row = split_columns(line)
            if len(row) < width:
                raise ValueError(Errors.CRF703.format(place=place, got=len(row), expected=f"{width} or more"))
            if word_column is not None and not row[word_column]:
                raise unreadable(place, f"the word in column {word_column + 1} is empty")
            sequence.lines.append(line)
            sequence.rows.append(row)
        elif sequence.lines:
            yield sequence
            sequence = _Sequence([], [])


def _tagged_lines(tagger: Any, batch: list[_Sequence], n_best: int, marginals: bool) -> Iterator[str]:
    """The lines of sequences, each with its tag in a further column, and an empty line behind each sequence.

    tagger (lite.Component or _PipelineTagger): Finds the tags.
    n_best (int): How many labellings of each sequence to write, each below its rank and probability; 0 for the best alone.
    marginals (bool): Whether to write the probability of each tag behind it.
    """
    number_of_tag = {tag: number for number, tag in enumerate(tagger.tags)}
    best = [] if n_best else tagger.tag_all([sequence.rows for sequence in batch])
    for n, (lines, rows) in enumerate(batch):
        labellings = tagger.n_best(rows, n_best) if n_best else [(None, best[n])]
        probabilities = tagger.marginals(rows).tolist() if marginals else None
        for rank, (probability, tags) in enumerate(labellings):
            if probability is not None:
                yield f"# {rank} {probability:.6f}\n"
            for t, (line, tag) in enumerate(zip(lines, tags)):
                # White space of a pipeline's tokens has no tag, thus no probability
                if probabilities is not None and tag in number_of_tag:
                    tag = f"{tag}/{probabilities[t][number_of_tag[tag]]:.6f}"
                yield f"{line}\t{tag}\n"
            yield "\n"


_ONE_TAG = "that gives each word one tag: a crf_ner, semicrf_ner, or crf_tagger of one attribute"
# The arguments of Doc for attributes of tokens
_ARGUMENTS = {"tag": "tags", "pos": "pos", "lemma": "lemmas"}


class _PipelineTagger:
    """A component of a pipeline, with the methods of `lite.Component` that `crf tag` calls."""

    def __init__(self, nlp: Language, component: Optional[str], columns: list[str]):
        self.columns = columns
        Columns(columns)  # checks the names
        checks.expect("orth" in columns, "crf tag", "--columns", ",".join(columns), "with orth, the column of the word")
        self._doc = partial(_doc_of_rows, nlp.vocab, columns)
        [self._pipe, *_] = our_pipes(nlp, component, _ONE_TAG, lambda pipe: pipe.chains[0] is pipe)
        self.tags = self._pipe.tags()
        # Segments of a label are written as B- and I- tags
        labels = self._pipe.labels if self._pipe.labelled == "segments" else ()
        self._names = [*SCHEMES["BIO"].tags(list(labels))] if labels else self.tags

    def tag_all(self, sequences: list[list[list[str]]]) -> list[list[str]]:
        """The best tags of several sequences, each a list of rows."""
        prediction = self._pipe.predict([*map(self._doc, sequences)])
        names = [*self._names, ""]  # tokens without a tag have the number -1
        tags = [names[tag] for tag in prediction.tags.tolist()]
        return [tags[begin:end] for begin, end in pairwise(prediction.doc_starts.tolist())]

    def marginals(self, rows: list[list[str]]) -> Any:
        """The probability of each of `tags` at each row of a sequence."""
        return self._pipe.marginals(self._doc(rows))[0]

    def n_best(self, rows: list[list[str]], n: int) -> list[tuple[float, list[str]]]:
        """The `n` most probable labellings of a sequence, each its probability and tags."""
        labellings = self._pipe.distribution(self._doc(rows)).n_best(n)
        return [(probability, [self._names[tag] for tag in tags.tolist()]) for probability, tags in labellings]


def _doc_of_rows(vocab: Vocab, columns: Sequence[str], rows: list[list[str]]) -> Doc:
    """Make the Doc of a sequence, with the attributes in its first columns. The words are in the column orth, or else in the
    first one."""
    values: dict[str, Any] = dict(zip(columns, zip(*rows)))
    words = values.pop("orth", None) or values[columns[0]]
    # To set these attributes token by token would take longer than to label the tokens
    arguments: dict[str, Any] = {_ARGUMENTS[name]: values.pop(name) for name in [*values] if name in _ARGUMENTS}
    doc = Doc(vocab, words=words, **arguments)
    set_columns(doc, [*values], [*values.values()])
    return doc
