"""What all commands share: each says with a code what is wrong with its files, and knows functions given with --code."""

import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from socketserver import BaseServer

import catalogue
import pytest
import spacy
from spacy.cli._util import app
from spacy.tokens import DocBin
from typer.main import get_command
from typer.testing import CliRunner

from spacy_crf.cli import group
from spacy_crf.cli.shared import print_table
from spacy_crf.errors import known_names
from tests.pipeline.test_probabilities import trained, with_rules
from tests.util import ner_examples


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
    "annotate": ["data.txt", "--output", "ANNOTATED"],
    "show": ["A text"],
    "evaluate": ["data.spacy"],
    "threshold": ["data.spacy"],
    "inspect": [],
    "demo": ["--port", "0"],
    "card": ["data.spacy", "--output", "CARD"],
    "update": ["data.spacy", "--output", "OUTPUT"],
}


def rest(command, files, tmp_path):
    paths = {name: files / name for name in ("data.spacy", "data.txt")} | {
        "OUTPUT": tmp_path / "updated",
        "ANNOTATED": tmp_path / "annotated.jsonl",
        "CARD": tmp_path / "card",
    }
    return [paths.get(argument, argument) for argument in COMMANDS[command]]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("broken", BROKEN)
def test_pipelines_that_cannot_be_loaded(files, tmp_path, command, broken):
    code, output = run(command, BROKEN[broken](tmp_path / "broken"), *rest(command, files, tmp_path))
    assert code == 1 and "CRF715" in output


def test_hints_for_a_misspelled_pipeline_and_a_misspelled_value(files, tmp_path):
    """The one was to register functions; the other was in two kinds of quotation marks."""
    for command in ("show", "annotate"):
        code, output = run(command, tmp_path / "modle", *rest(command, files, tmp_path))
        assert code == 1 and "Name an installed package" in output and "--code" not in output, output
    assert str(known_names(["'missed'", "'spurious'"], "'mised'")).endswith("(did you mean 'missed'?)")


@pytest.mark.parametrize(
    "command, code",
    [
        ("evaluate", "CRF710"),
        ("threshold", "CRF710"),
        ("inspect", "CRF710"),
        ("demo", "CRF710"),
        ("update", "CRF710"),
    ],
)
def test_pipelines_without_what_is_asked(files, tmp_path, command, code):
    others = rest(command, files, tmp_path)
    for arguments in ([files / "blank", *others], [files / "model", *others, "--component", "ner"]):
        exit_code, output = run(command, *arguments)
        assert exit_code == 1 and code in output
    assert "named 'ner'" in output and "crf_ner" in output


def test_any_pipeline_annotates_that_finds_something(files, tmp_path):
    others = rest("annotate", files, tmp_path)
    for arguments, code in (
        ([files / "blank", *others], "CRF874"),
        ([files / "model", *others, "--component", "ner"], "CRF710"),
    ):
        exit_code, output = run("annotate", *arguments)
        assert exit_code == 1 and code in output


def test_every_command_takes_code():
    """Whatever loads a pipeline, or a language, may need functions that have to be registered before."""
    group.import_commands()
    commands = get_command(group.app).commands.items()
    options = {name: [option for each in command.params for option in each.opts] for name, command in commands}
    lacking = [name for name, of_command in options.items() if "--code" not in of_command]
    assert sorted(lacking) == ["compile", "project"]  # which load no pipeline and no functions
    short = {option for of_command in options.values() for option in of_command if len(option) == 2}
    assert short == {"-o"}


def commands_listed():
    """The lines of the list of commands, without the titles of groups; older versions of typer draw a box around it."""
    listed = CliRunner().invoke(app, ["crf", "--help"]).output.partition("Start")[2]
    lines = [line.strip("│ ") for line in listed.splitlines()[1:] if line.strip("│╰╯─ ")]
    return [line for line in lines if not line.endswith(":")]


def test_first_sentences_fit_into_the_list_of_commands(monkeypatch):
    """Of 80 columns, of which the longest name takes eleven: what is longer ends in dots."""
    monkeypatch.setenv("COLUMNS", "80")
    listed = commands_listed()
    assert len(group.app.registered_commands) == len(listed)  # none on two lines
    assert not [line for line in listed if line.endswith(("...", "…"))]


def test_every_command_is_found():
    """Whatever file it is in: the group knows them by a table, and imports one when it is asked for."""
    listed = [line.split()[0] for line in commands_listed()]
    group.import_commands()
    assert sorted(listed) == sorted(command.name for command in group.app.registered_commands)
    for name in listed:
        shown = CliRunner().invoke(app, ["crf", name, "--help"])
        assert shown.exit_code == 0 and f"crf {name} [OPTIONS]" in shown.output
    assert CliRunner().invoke(group.app, ["tune", "--help"]).exit_code == 0  # without spaCy's
    misspelt = CliRunner().invoke(app, ["crf", "tun"])
    assert misspelt.exit_code == 2 and "No such command 'tun'" in misspelt.output


def test_names_that_spacy_uses_are_answered_with_ours():
    for habit, name in (("predict", "annotate"), ("find-threshold", "threshold"), ("info", "inspect")):
        code, output = run(habit)
        assert code == 2 and f"No such command '{habit}'" in output and name in output
    of_habits = " ".join(group._HABITS.values())
    assert set(re.findall(r"[a-z-]+", of_habits)) - {"texts", "that", "you", "type", "or", "files"} <= {
        *group.command_modules()
    }


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


def test_functions_come_with_code(files, tmp_path, monkeypatch):
    """One after the other: each command registers the function, which is taken out again between them."""

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(BaseServer, "serve_forever", stop)  # of `demo`
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
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    (tmp_path / "functions.txt").write_text(FUNCTION)
    for name, says in (
        ("nothing.py", "No such file"),
        ("wrong.py", "ZeroDivisionError"),
        ("functions.txt", "end with .py"),
    ):
        for command in (["show", tmp_path / "model", "Bob"], ["data", files / "data.spacy"]):
            code, output = run(*command, "--code", tmp_path / name)
            assert code == 1 and "CRF701" in output and name in output and says in output


# ------------------------------------------------------------------------------------------------------------ data


@pytest.mark.parametrize("name", ["data.spacy", "data.conll", "data.jsonl"])
def test_evaluate_and_update_read_what_convert_reads(files, tmp_path, name):
    code, output = run("evaluate", files / "model", files / name, "--calibration")
    assert code == 0 and "expected calibration error" in output
    code, output = run("update", files / "model", files / name, "--dev", files / name, "--output", tmp_path / "updated")
    assert code == 0 and "dev" in output and "new texts" in output
    assert run("show", tmp_path / "updated", "Bob left Rome .")[0] == 0


def test_evaluate_says_when_nothing_is_found(files, tmp_path):
    (tmp_path / "unknown.jsonl").write_text('{"text": "xyz"}\n')
    code, output = run("evaluate", files / "model", tmp_path / "unknown.jsonl", "--calibration")
    assert code == 0 and "finds nothing" in output and "probability" not in output


BAD_DATA = [
    ("nothing.spacy", 2, "does not exist"),
    ("blank", 1, "CRF708"),  # a folder without .spacy files
    ("empty.spacy", 1, "CRF701"),
    ("bad.spacy", 1, "CRF701"),
    ("empty.jsonl", 1, "CRF708"),
    ("bad.jsonl", 1, "CRF701"),
    ("empty.conll", 1, "CRF708"),
    ("bad.spacy/inside.jsonl", 2, "does not exist"),
]


@pytest.mark.filterwarnings("ignore:.*W090")
@pytest.mark.parametrize("name, exit_code, says", BAD_DATA, ids=[name for name, *_ in BAD_DATA])
def test_evaluate_and_update_say_what_is_wrong_with_data(files, tmp_path, name, exit_code, says):
    code, output = run("evaluate", files / "model", files / name, "--calibration")
    assert code == exit_code and says in output
    good, bad = files / "data.spacy", files / name
    for arguments in ([bad], [good, "--dev", bad]):
        code, output = run("update", files / "model", *arguments, "--output", tmp_path / "updated")
        assert code == exit_code and says in output
        assert not (tmp_path / "updated" / "meta.json").exists()


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


def test_show_reads_jsonl(files):
    code, output = run("show", files / "model", stdin='{"text": "Bob left", "id": 1}\n{not JSON}\n')
    assert code == 0 and output.count("Bob") == 2 and "{not JSON}" in output and "id" not in output


# ------------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("target", ["a_file/inside", "."])
def test_what_cannot_be_written_is_named(files, tmp_path, target):
    (tmp_path / "a_file").touch()
    code, output = run("show", files / "model", "Bob", "-o", tmp_path / target)
    assert code == 1 and "CRF706" in output
    if target != ".":  # a folder is one to write into
        code, output = run("convert", files / "data.jsonl", "-o", tmp_path / target)
        assert code == 1 and "CRF706" in output
    tune = ["tune", files / "data.spacy", "--dev", files / "data.spacy"]
    code, output = run(*tune, "--output", tmp_path / target)
    assert code == 1 and "CRF706" in output and "score" not in output  # before anything is trained
    update = ["update", files / "model", files / "empty.jsonl"]  # which would be said later
    if target != ".":
        code, output = run(*update, "--output", tmp_path / target)
        assert code == 1 and "CRF706" in output


def test_what_is_read_is_not_written_over(files, tmp_path):
    """Converting a file to itself lost the annotation that it had."""
    for name in ("data.spacy", "data.jsonl", "data.txt"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    (tmp_path / "link.jsonl").symlink_to("data.jsonl")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    model, data, texts = files / "model", tmp_path / "data.spacy", tmp_path / "data.txt"
    for arguments in (
        ["convert", tmp_path / "data.jsonl", "-o", tmp_path / "link.jsonl"],
        ["convert", data, "-o", tmp_path],
        ["annotate", model, texts, "-o", texts],
        ["distil", model, texts, "--output", texts],
        ["evaluate", model, data, "--output", data],
        ["evaluate", model, files / "data.spacy", "--train", data, "--output", data],
        ["explain", model, "Bob", "--kind", "texts", "--train", data, "-o", data],
        ["clusters", texts, "-o", texts],
    ):
        code, output = run(*arguments)
        assert code == 1 and "CRF730" in output, output
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_is_left_of_what_fails(files, tmp_path):
    """Neither folders nor the beginning of an output."""
    (tmp_path / "bad.jsonl").write_text('{"text": null}\n')
    model, bad = files / "model", tmp_path / "bad.jsonl"
    for arguments in (
        ["annotate", model, bad, "-o", tmp_path / "new" / "out.jsonl"],
        ["distil", model, bad, "--output", tmp_path / "new" / "out.spacy"],
        ["update", model, bad, "--output", tmp_path / "new" / "out"],
        ["threshold", model, bad, "--output", tmp_path / "new" / "out"],
        ["import", bad, "--from", "crfsuite", "--output", tmp_path / "new" / "out"],
        ["vectors", bad, "-o", tmp_path / "new" / "out"],
        ["evaluate", model, bad, "--output", tmp_path / "new" / "out.html"],
    ):
        code, output = run(*arguments)
        made = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file() and path != bad]
        assert code == 1 and "CRF" in output and not made, output
        assert arguments[0] == "annotate" or not (tmp_path / "new").exists()
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


def test_a_stop_while_a_pipeline_is_saved_leaves_the_old_one(files, tmp_path, monkeypatch):
    nlp = spacy.load(files / "model")
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").touch()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    monkeypatch.setattr(type(nlp.get_pipe("crf_ner")), "to_disk", interrupted)
    update = ["crf", "update", str(tmp_path / "model"), str(files / "data.spacy"), "--output"]
    for target in ("model", "new"):
        assert CliRunner().invoke(app, [*update, str(tmp_path / target)]).exit_code != 0
        assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    monkeypatch.undo()
    assert run(*update[1:], tmp_path / "model")[0] == 0 and (tmp_path / "model" / "notes.txt").exists()
    assert run("show", tmp_path / "model", "Bob left Rome .")[0] == 0


def interrupted(*arguments, **settings):
    raise KeyboardInterrupt


def test_pipes_and_links_stay_what_they_are(files, tmp_path):
    """A device or a pipe gets the output, and was replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "target").touch(mode=0o600)
    for arguments in (
        ["convert", files / "data.jsonl", "-o"],
        ["annotate", files / "model", files / "data.txt", "-o"],
        ["show", files / "model", "Bob left Rome .", "-o"],
        ["distil", files / "model", files / "data.txt", "--output"],
        ["evaluate", files / "model", files / "data.spacy", "--output"],
    ):
        with ThreadPoolExecutor(1) as reader:
            read = reader.submit((tmp_path / "pipe").read_bytes)
            assert run(*arguments, tmp_path / "pipe")[0] == 0 and len(read.result(timeout=60)) > 50
        assert (tmp_path / "pipe").is_fifo() and sorted(path.name for path in tmp_path.iterdir()) == [
            "link",
            "pipe",
            "target",
        ]
        assert run(*arguments, tmp_path / "link")[0] == 0
        target = (tmp_path / "target").stat()
        assert (tmp_path / "link").is_symlink() and target.st_size > 50 and stat.S_IMODE(target.st_mode) == 0o600


def test_texts_that_are_no_unicode_are_named(files, tmp_path):
    """JSON can write halves of characters."""
    (tmp_path / "half.jsonl").write_text('{"text": "a"}\n{"text": "\\ud800 b", "label": []}\n')
    model, half = files / "model", tmp_path / "half.jsonl"
    for arguments in (
        ["convert", half, "-o", tmp_path / "out.spacy"],
        ["data", half],
        ["annotate", model, half, "-o", tmp_path / "out.jsonl"],
        ["evaluate", model, half],
    ):
        code, output = run(*arguments)
        assert code == 1 and "CRF701" in output and "half.jsonl, line 2" in output, output
    code, output = run("show", model, "\ud800")
    assert code == 1 and "CRF733" in output


@pytest.mark.parametrize("command", ["tune", "curve"])
def test_options_that_are_not_known(command):
    for option in (["--nothing"], ["--nothing", "1"], ["-x"]):
        code, output = run(command, *option)
        assert code != 0 and option[0] in output


BAD_CONFIGS = {  # what spaCy says of them names what is wrong
    "missing": (None, 2, "does not exist"),
    "empty": (b"", 1, "E985"),
    "not UTF-8": (b'[nlp]\nlang = "\xe9"\n', 1, "CRF701"),
    "no config": (b"once upon a time", 1, "CRF701"),
    "a name that is a number": (b"[training]\n[training.optimizer]\n@optimizers = 5\n", 1, "CRF726"),
    "a name that is a table": (b'[nlp]\n[nlp.tokenizer]\n@tokenizers = {"a": 1}\n', 1, "CRF726"),
    "no corpora": (
        b'[nlp]\nlang = "en"\npipeline = ["a"]\n[components]\n[components.a]\nfactory = "crf_ner"\n',
        1,
        "E913",
    ),
    "no component": (b'[nlp]\nlang = "en"\npipeline = []\n[components]\n', 1, "CRF710"),
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_tune_says_what_is_wrong_with_a_config(tmp_path, kind):
    data, exit_code, says = BAD_CONFIGS[kind]
    if data is not None:
        (tmp_path / "a.cfg").write_bytes(data)
    code, output = run("tune", "--config", tmp_path / "a.cfg")
    assert code == exit_code and says in output


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
    code, output = run("tune", "--try", "l2=1", "--iterations", 2, *overrides)
    assert code == 1 and says in output
    assert f"[corpora.{corpus}]" in output or says == "CRF706"


def test_names_of_packages_that_are_not_installed(tmp_path):
    """spaCy lists every name that there is, and does not say what to install."""
    spacy.blank("en").to_disk(tmp_path)
    config = (tmp_path / "config.cfg").read_text()
    named = config.replace('"spacy.Tokenizer.v1"', '"spacy_crf_other.Words.v1"')
    (tmp_path / "config.cfg").write_text(named)
    code, output = run("show", tmp_path, "Ann ran")
    assert code == 1 and "CRF717" in output and "pip install spacy-crf-other" in " ".join(output.split())
    assert "Available" not in output
