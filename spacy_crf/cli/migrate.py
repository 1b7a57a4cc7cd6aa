"""The command that imports models of other programs as pipelines."""

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Optional

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.util import registry
from thinc.api import Config
from wasabi import msg

from .. import checks
from ..errors import Errors, counted, known_names
from ..whole_files import write_whole
from .shared import LangOption, PipelineOption, check_writable, command, save_pipeline

if TYPE_CHECKING:
    from ..migrate.checking import Comparison
    from ..migrate.foreign import ForeignModel
    from ..migrate.native import Native

Blocks = dict[str, dict[str, Any]]  # of functions in a config, by their names
PROGRAMS = ("crfsuite", "crfpp", "wapiti")
# First bytes of files of templates or patterns
_LINES = (b"#", b"U", b"u", b"B", b"b", b"*")
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
    names = [name.strip() for name in columns.split(",")] if columns else []
    with file.open("rb") as stream:
        head = stream.read(1000).removeprefix(BOM_UTF8).lstrip()
        stream.seek(0)
        # The first line tells templates from models, whatever the file is called
        if (
            program in _SYNTAX and head[:1] in _LINES and not head.startswith(b"#mdl#")
        ):  # no model: templates or patterns
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
        from ..migrate.functions import write_registration

        makes = " and ".join(paths) + (" make" if len(paths) > 1 else " makes")
        registered = write_registration(output, paths)
        msg.info(f"{makes} its features: give --code {registered} to commands that load the pipeline")
    if comparison is None:
        return
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
    from ..migrate.functions import find_function
    from ..migrate.native import native_of_words

    checks.expect(model.program == "crfsuite", "crf import", "--word-features", path, "for a model of crfsuite")
    names = tuple(name.strip() for name in edges.split(","))
    checks.expect(len(names) == 2, "crf import", "--edges", edges, "two names with a comma between them")
    native = native_of_words(model, find_function(path)[1], names)
    left = [name for name, _ in native.replayed]
    if left and features is None:
        some = f"{known_names(left[:_MOST_SHOWN])}{', …' if len(left) > _MOST_SHOWN else ''}"
        raise ValueError(Errors.CRF897.format(path=path, n=len(left), total=len(model.states.names), names=some))
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
    from ..migrate.functions import SOURCE, WORDS
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
    """Register the function that a path names. RETURNS (dict[str, str]): Its block for a config.
    RAISES (ValueError): CRF861 without a path."""
    from ..migrate.functions import find_function, register_features

    if path is None:
        raise ValueError(Errors.CRF861)
    name, function = find_function(path)
    if not registry.has("misc", name):
        register_features(name, function, columns=columns)
    return {"@misc": name}


def _lines(templates: list[str], program: str) -> tuple[list[str], list[str]]:
    """Split lines into lines for features of labels, and lines with commands for features of pairs of labels."""
    _, _, of_labels, of_pairs = _SYNTAX[program]
    reading = [line for line in templates if line[0] in of_pairs and "%" in line]
    return [line for line in templates if line[0] in of_labels], reading


def _functions(program: str, lines: tuple[list[str], list[str]], columns: list[str]) -> Blocks:
    """Blocks of functions for a config: one for features of labels and, if there are lines for them, one for features of pairs of
    labels."""
    from ..migrate.functions import PAIRS, SOURCE, for_config

    source, argument, _, _ = _SYNTAX[program]
    return {
        name: {"@misc": source, argument: [*map(for_config, some)], "columns": columns}
        for name, some in zip((SOURCE, PAIRS), lines)
        if some or name == SOURCE
    }


def _resolved(functions: Blocks) -> dict[str, Callable]:
    """Resolve blocks of functions. RAISES (ValueError): CRF856, CRF868 or CRF864 for wrong lines or columns."""
    return {name: registry.resolve({"source": block})["source"] for name, block in functions.items()}


def features_block(text: str, program: str, columns: list[str]) -> Config:
    """Make the block of features for a config from the text of a file of templates or patterns.

    RAISES (ValueError): CRF856 for a line that is not a template, CRF864 for too few columns.
    """
    from ..migrate.crfpp import read_templates
    from ..migrate.functions import PAIRS, SOURCE
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
    from ..migrate.checking import RIVALS, compare, read_columns
    from ..migrate.functions import SOURCE

    if model.program in _SYNTAX:
        blocks = _functions(model.program, _lines(model.templates, model.program), columns)
    else:
        blocks = {SOURCE: _registered(features, columns)}
    functions = _resolved(blocks)
    rival = RIVALS[model.program](file, columns)
    return compare(nlp, model, read_columns(data, nlp, columns), rival, functions)
