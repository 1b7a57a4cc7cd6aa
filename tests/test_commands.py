"""What all commands share: each says with a code what is wrong with its files, and knows functions given with --code."""

import inspect
import re

import catalogue
import pytest
import spacy
from spacy.cli._util import app
from spacy.tokens import DocBin
from typer.testing import CliRunner

import spacy_crf.cli
from spacy_crf.cli.main import print_table

from .test_configs import ROOT
from .test_probabilities import trained, with_rules
from .util import ner_examples


def run(*arguments, stdin=None):
    """Exit code and output of a command that ends as it should: without a traceback."""
    result = CliRunner().invoke(app, ["crf", *map(str, arguments)], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a pipeline and its data. Do not change."""
    folder = tmp_path_factory.mktemp("files")
    nlp = trained(**with_rules([{"rule": "at_most", "label": "*", "n": 1}]))
    nlp.to_disk(folder / "model")
    spacy.blank("en").to_disk(folder / "blank")
    docs = [example.reference for example in ner_examples(nlp)]
    DocBin(docs=docs).to_disk(folder / "data.spacy")
    rows = [
        [f"{token.text}\t{token.ent_iob_}{'-' * bool(token.ent_type)}{token.ent_type_}" for token in doc]
        for doc in docs
    ]
    (folder / "data.conll").write_text("\n\n".join("\n".join(lines) for lines in rows) + "\n")
    (folder / "data.jsonl").write_text('{"text": "Bob left Rome .", "label": [[0, 3, "PER"], [9, 13, "GPE"]]}\n')
    (folder / "data.txt").write_text("Bob left Rome .\n")
    (folder / "bad.spacy").write_bytes((folder / "data.spacy").read_bytes()[:-20])
    (folder / "bad.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    for name in ("empty.spacy", "empty.jsonl", "empty.conll"):
        (folder / name).touch()
    return folder


# ------------------------------------------------------------------------------------------------------- pipelines


def missing(folder):
    return folder / "nothing"


def empty_folder(folder):
    folder.mkdir()
    return folder


def no_folder(folder):
    folder.write_text("text")
    return folder


def config_of(data):
    def write(folder):
        folder.mkdir()
        (folder / "config.cfg").write_bytes(data)
        (folder / "meta.json").write_text("{}")
        return folder

    return write


def damaged(name):
    def write(folder):
        trained().to_disk(folder)
        path = folder / name
        path.write_bytes(b"\xff" + path.read_bytes()[:-9])
        return folder

    return write


BROKEN = {
    "missing": missing,
    "empty folder": empty_folder,
    "a file": no_folder,
    "empty config": config_of(b""),
    "config not UTF-8": config_of(b'[nlp]\nlang = "\xe9"\n'),
    "no config": config_of(b"once upon a time"),
    "no pipeline": lambda folder: "numpy",
    "damaged tokenizer": damaged("tokenizer"),
    "damaged strings": damaged("vocab/strings.json"),
    "damaged component": damaged("crf_ner/model"),
    "damaged meta": damaged("meta.json"),
}


# What commands that load a pipeline want besides, here and in `rest`
COMMANDS = {
    "annotate": ["data.txt", "ANNOTATED"],
    "show": ["A text"],
    "calibrate": ["data.spacy"],
    "threshold": ["data.spacy"],
    "rules": [],
    "update": ["data.spacy", "--output", "OUTPUT"],
}


def rest(command, files, tmp_path):
    paths = {name: files / name for name in ("data.spacy", "data.txt")} | {
        "OUTPUT": tmp_path / "updated",
        "ANNOTATED": tmp_path / "annotated.jsonl",
    }
    return [paths.get(argument, argument) for argument in COMMANDS[command]]


@pytest.mark.issue(12)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("broken", BROKEN)
def test_pipelines_that_cannot_be_loaded(files, tmp_path, command, broken):
    code, output = run(command, BROKEN[broken](tmp_path / "broken"), *rest(command, files, tmp_path))
    assert code == 1 and "CRF715" in output


@pytest.mark.issue(12)
@pytest.mark.parametrize(
    "command, code",
    [
        ("annotate", "CRF710"),
        ("calibrate", "CRF710"),
        ("threshold", "CRF710"),
        ("rules", "CRF711"),
        ("update", "CRF414"),
    ],
)
def test_pipelines_without_what_is_asked(files, tmp_path, command, code):
    others = rest(command, files, tmp_path)
    for arguments in ([files / "blank", *others], [files / "model", *others, "--component", "ner"]):
        exit_code, output = run(command, *arguments)
        assert exit_code == 1 and code in output
    assert "named 'ner'" in output and "crf_ner" in output


@pytest.mark.issue(15)
def test_every_command_takes_code():
    """Whatever loads a pipeline, or a language, may need functions that have to be registered before."""
    commands = {command.callback.__module__: command.callback for command in spacy_crf.cli.app.registered_commands}
    assert not [name for name, command in commands.items() if "code" not in inspect.signature(command).parameters]


@pytest.mark.issue(20)
def test_first_sentences_fit_into_the_list_of_commands(monkeypatch):
    """Of 80 columns, of which the longest name takes nine: what is longer ends in dots."""
    monkeypatch.setenv("COLUMNS", "80")
    listed = CliRunner().invoke(app, ["crf", "--help"]).output.partition("Commands:")[2]
    assert len(spacy_crf.cli.app.registered_commands) == len(listed.strip().splitlines())  # none on two lines
    assert "..." not in listed and "…" not in listed


@pytest.mark.issue(20)
def test_tables_show_texts_as_they_are(monkeypatch, capsys):
    """All of them in a narrow terminal, and brackets, which rich would take for its markup."""
    monkeypatch.setenv("COLUMNS", "40")
    long = "lower[-1]|suffix3[0]|shape[+1]|prefix2[0]|in:cities[0]"
    print_table("[/b]", ("[b]", "met"), [("word=[/b]", "1"), (long, "1,234,567")], n_texts=1)
    printed = re.sub(r"[\s│]", "", capsys.readouterr().out.partition("1,234,567")[0])
    assert "[/b]" in printed and "[b]" in printed and "word=[/b]" in printed
    print_table("", ("template",), [(long,)], n_texts=1)
    assert long in re.sub(r"[\s│]", "", capsys.readouterr().out)


FUNCTION = """
import spacy

@spacy.registry.misc("test_commands.vowels.v1")
def make():
    return lambda doc: [[str(sum(letter in "aeiou" for letter in token.text))] for token in doc]
"""


@pytest.mark.issue(12)
def test_functions_come_with_code(files, tmp_path):
    """One after the other: each command registers the function, which is taken out again between them."""
    (tmp_path / "code.py").write_text(FUNCTION)
    exec(FUNCTION, {})
    features = {
        "@misc": "spacy_crf.features.v1",
        "templates": ["fn:vowels[0]", "lower[0]"],
        "functions": {"vowels": {"@misc": "test_commands.vowels.v1"}},
    }
    rules = with_rules([{"rule": "at_most", "label": "*", "n": 1}])
    trained(**{"model": {"emissions": {"features": features}}, **rules}).to_disk(tmp_path / "model")
    for command in COMMANDS:
        others = rest(command, files, tmp_path)
        del catalogue.REGISTRY["spacy", "misc", "test_commands.vowels.v1"]
        code, output = run(command, tmp_path / "model", *others)
        assert code == 1 and "CRF715" in output and "--code" in output
        code, output = run(command, tmp_path / "model", *others, "--code", tmp_path / "code.py")
        assert code == 0, output
    assert "not found" in run("show", tmp_path / "model", "Bob", "--code", tmp_path / "nothing.py")[1]


# ------------------------------------------------------------------------------------------------------------ data


@pytest.mark.issue(12)
@pytest.mark.parametrize("name", ["data.spacy", "data.conll", "data.jsonl"])
def test_calibrate_and_update_read_what_convert_reads(files, tmp_path, name):
    code, output = run("calibrate", files / "model", files / name)
    assert code == 0 and "expected calibration error" in output
    code, output = run("update", files / "model", files / name, "--dev", files / name, "--output", tmp_path / "updated")
    assert code == 0 and "dev" in output and "new texts" in output
    assert run("show", tmp_path / "updated", "Bob left Rome .")[0] == 0


def test_calibrate_says_when_nothing_is_found(files, tmp_path):
    (tmp_path / "unknown.jsonl").write_text('{"text": "xyz"}\n')
    code, output = run("calibrate", files / "model", tmp_path / "unknown.jsonl")
    assert code == 0 and "finds nothing" in output and "probability" not in output


BAD_DATA = [
    ("nothing.spacy", 2, "does not exist"),
    ("blank", 1, "CRF708"),  # a folder without .spacy files
    ("empty.spacy", 1, "CRF717"),
    ("bad.spacy", 1, "CRF717"),
    ("empty.jsonl", 1, "CRF708"),
    ("bad.jsonl", 1, "CRF701"),
    ("empty.conll", 1, "CRF708"),
    ("bad.spacy/inside.jsonl", 2, "does not exist"),
]


@pytest.mark.issue(12)
@pytest.mark.filterwarnings("ignore:.*W090")
@pytest.mark.parametrize("name, exit_code, says", BAD_DATA, ids=[name for name, *_ in BAD_DATA])
def test_calibrate_and_update_say_what_is_wrong_with_data(files, tmp_path, name, exit_code, says):
    code, output = run("calibrate", files / "model", files / name)
    assert code == exit_code and says in output
    good, bad = files / "data.spacy", files / name
    for arguments in ([bad], [good, "--dev", bad]):
        code, output = run("update", files / "model", *arguments, "--output", tmp_path / "updated")
        assert code == exit_code and says in output
        assert not (tmp_path / "updated" / "meta.json").exists()


@pytest.mark.issue(12)
@pytest.mark.parametrize(
    "stdin, says",
    [
        ("", "CRF718"),
        (" \n\n", "CRF718"),
        ('{"spans": []}\n', "CRF709: the standard input, line 1"),
        ('Bob\n{"text": 1}\n', "CRF709: the standard input, line 2"),
        (b"caf\xe9\n", "CRF701: the standard input, line 1"),
        ('Bob\n{"text": "cut o', "CRF701: the standard input, line 2"),
        ("{'text': 'Bob'}", "CRF701: the standard input, line 1"),
    ],
)
def test_show_says_what_is_wrong_with_texts(files, stdin, says):
    code, output = run("show", files / "model", stdin=stdin)
    assert code == 1 and says in output


@pytest.mark.issue(12)
def test_show_reads_jsonl(files):
    code, output = run("show", files / "model", stdin='{"text": "Bob left", "id": 1}\n{not JSON}\n')
    assert code == 0 and output.count("Bob") == 2 and "{not JSON}" in output and "id" not in output


# ------------------------------------------------------------------------------------------------- what is written


@pytest.mark.issue(12)
@pytest.mark.parametrize("target", ["a_file/inside", "."])
def test_what_cannot_be_written_is_named(files, tmp_path, target):
    (tmp_path / "a_file").touch()
    code, output = run("show", files / "model", "Bob", "--html", tmp_path / target)
    assert code == 1 and "CRF706" in output
    if target != ".":  # a folder is one to write into
        code, output = run("convert", files / "data.jsonl", tmp_path / target)
        assert code == 1 and "CRF706" in output
    config = ["tune", ROOT / "configs" / "crf_ner.cfg", "--paths.train", files / "data.spacy"]
    code, output = run(*config, "--paths.dev", files / "data.spacy", "--output", tmp_path / target)
    assert code == 1 and "CRF706" in output and "score" not in output  # before anything is trained
    update = ["update", files / "model", files / "empty.jsonl"]  # which would be said later
    if target != ".":
        code, output = run(*update, "--output", tmp_path / target)
        assert code == 1 and "CRF706" in output


BAD_CONFIGS = {  # what spaCy says of them names what is wrong
    "missing": (None, 2, "does not exist"),
    "empty": (b"", 1, "E985"),
    "not UTF-8": (b'[nlp]\nlang = "\xe9"\n', 1, "CRF725"),
    "no config": (b"once upon a time", 1, "CRF725"),
    "no corpora": (
        b'[nlp]\nlang = "en"\npipeline = ["a"]\n[components]\n[components.a]\nfactory = "crf_ner"\n',
        1,
        "E913",
    ),
    "no component": (b'[nlp]\nlang = "en"\npipeline = []\n[components]\n', 1, "CRF721"),
}


@pytest.mark.issue(12)
@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_tune_says_what_is_wrong_with_a_config(tmp_path, kind):
    data, exit_code, says = BAD_CONFIGS[kind]
    if data is not None:
        (tmp_path / "a.cfg").write_bytes(data)
    code, output = run("tune", tmp_path / "a.cfg")
    assert code == exit_code and says in output


@pytest.mark.issue(12)
@pytest.mark.filterwarnings("ignore:.*W090")
@pytest.mark.parametrize(
    "name, says",
    [
        ("nothing.spacy", "CRF706"),
        ("empty.spacy", "E1014"),
        ("bad.spacy", "E1014"),
        ("data.jsonl", "CRF708"),
        ("blank", "CRF708"),
    ],
)
@pytest.mark.parametrize("corpus", ["train", "dev"])
def test_tune_says_what_is_wrong_with_data(files, name, says, corpus):
    paths = {"train": files / "data.spacy", "dev": files / "data.spacy", corpus: files / name}
    overrides = [part for key, path in paths.items() for part in (f"--paths.{key}", path)]
    code, output = run("tune", ROOT / "configs" / "crf_ner.cfg", "--l2", "1", "--iterations", 2, *overrides)
    assert code == 1 and says in output
    assert says != "CRF708" or f"corpora.{corpus}" in output
