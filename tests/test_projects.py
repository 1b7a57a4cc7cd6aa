"""``projects/``: pipelines to train with two commands, ``crf project``, ``crf card`` and ``doc._.crf_fields``."""

import json
import re
import shlex
import sqlite3
import subprocess
import sys

import pytest
import spacy
import srsly
from spacy.cli._util import app
from spacy.cli.package import generate_readme
from spacy.tokens import Doc, DocBin
from typer.main import get_command
from weasel.schemas import ProjectConfigSchema, validate
from weasel.util import load_project_config

from spacy_crf.cli import projects
from tests.cli.test_commands import run
from tests.pipeline.test_probabilities import trained
from tests.test_package import ROOT
from tests.util import ner_examples

NAMES = sorted(path.parent.name for path in (ROOT / "projects").glob("*/project.yml"))
STEPS = ["convert", "train", "evaluate", "report", "package"]
ADDRESSES = ("123\tB-Number\nMain\tB-Street\nSt\tB-Type\n", "9\tB-Number\nElm\tB-Street\nAve\tB-Type\n")
DECISIONS = ("Das\tO\nBGH\tB-GRT\nurteilt\tO\n", "Die\tO\nBAG\tB-GRT\nirrt\tO\n")


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    nlp = trained(confidence=True)
    nlp.to_disk(folder / "model")
    DocBin(docs=[example.reference for example in ner_examples(nlp)]).to_disk(folder / "data.spacy")
    return folder


def commands(name):
    return {command["name"]: command for command in load_project_config(ROOT / "projects" / name)["commands"]}


# -------------------------------------------------------------------------------------------------------- projects


def test_the_projects_are_those_that_the_docs_list():
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "start.md").read_text(encoding="utf8"), re.MULTILINE)
    assert sorted(listed) == NAMES and len(NAMES) == 8


@pytest.mark.parametrize("name", NAMES)
def test_projects_look_alike(name):
    config = load_project_config(ROOT / "projects" / name)
    assert not validate(ProjectConfigSchema, {key: config[key] for key in config if key != "workflows"})
    assert config["workflows"]["all"] == STEPS == list(commands(name))
    for asset in config.get("assets", ()):
        assert re.match(r"https://raw\.githubusercontent\.com/[\w-]+/[\w-]+/[0-9a-f]{40}/", asset["url"])
    meta = srsly.read_json(ROOT / "projects" / name / "meta.json")
    assert set(meta) <= set(projects._KEYS_OF_META) and meta["license"] and meta["sources"]
    assert config["vars"] == {
        "package": f"{'de' if name == 'german_law' else 'en'}_{meta['name']}",
        "version": meta["version"],
    }
    notes = (ROOT / "projects" / name / "notes.md").read_text(encoding="utf8")
    assert notes.startswith("### Use") and f'"{config["vars"]["package"]}"' in notes and "### Limits" in notes


@pytest.mark.parametrize("name", NAMES)
def test_their_commands_have_the_options_that_they_use(name):
    of_crf = get_command(app).commands["crf"]
    for step in commands(name).values():
        for line in step["script"]:
            words = shlex.split(line)
            if words[:4] == ["python", "-m", "spacy", "crf"]:
                command = of_crf.get_command(None, words[4])
                known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
                used = {word for word in words if word.startswith("--") and "." not in word}
                assert used <= known, (name, words[4], used - known)


def test_a_project_is_copied_with_its_texts(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for split in ("train", "test"):
        (texts / f"{split}.jsonl").write_text('{"text": "Bob left", "label": [[0, 3, "PER"]]}\n')
    (texts / "other.jsonl").write_text("")
    code, output = run("project", "names", "-o", tmp_path / "made", "--assets", texts)
    assert code == 0 and "spacy project run all" in output
    made = tmp_path / "made"
    assert sorted(path.name for path in (made / "assets").iterdir()) == ["test.jsonl", "train.jsonl"]
    assert {path.name for path in made.iterdir()} == {"assets", "meta.json", "notes.md", "project.yml"}
    code, output = run("project", "names", "-o", made, "--assets", texts)
    assert code == 1 and "CRF796" in output and str(made.name) in output
    code, output = run("project", "names", "-o", tmp_path / "more", "--assets", tmp_path)
    assert code == 1 and "CRF797" in output and not (tmp_path / "more").exists()
    code, output = run("project", "name", "-o", tmp_path / "more")
    assert code == 1 and "CRF020" in output and "'names'" in output and not (tmp_path / "more").exists()
    code, output = run("project")
    assert code == 0 and all(name in output for name in NAMES)


def _fetch(folder, names=("assets/train.xml", "assets/test.xml")):
    for name in names:
        (folder / name).write_text("<AddressCollection/>")


def test_texts_are_fetched_where_no_folder_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(projects, "project_assets", _fetch)
    monkeypatch.chdir(tmp_path)
    assert run("project", "addresses")[0] == 0
    assert run("project", "redaction", "-o", "letters")[0] == 0  # has no assets: it makes its texts
    assert sorted(path.name for path in tmp_path.rglob("*.xml")) == ["test.xml", "train.xml"]


def _stop(folder):
    raise KeyboardInterrupt


def _fail(folder):
    (folder / "assets" / "train.xml").write_text("<Addr")
    raise OSError("no network")


@pytest.mark.parametrize(
    "fetch", [lambda folder: None, lambda folder: _fetch(folder, ["assets/test.xml"]), _fail, _stop]
)
@pytest.mark.parametrize("was_there", [True, False])
def test_without_a_network_nothing_is_left(fetch, was_there, tmp_path, monkeypatch):
    """Half of a project was left, which the same command refused to fill, and nothing said what to do."""
    made = tmp_path / "made"
    if was_there:
        made.mkdir()
    monkeypatch.setattr(projects, "project_assets", fetch)
    code, output = run("project", "addresses", "-o", made)
    assert code and made.exists() == was_there and not list(tmp_path.glob("made/*"))
    if fetch is not _stop:
        assert all(part in output for part in ("CRF982", "assets/t", "--assets FOLDER"))
    monkeypatch.setattr(projects, "project_assets", _fetch)
    assert run("project", "addresses", "-o", made)[0] == 0 and (made / "assets" / "train.xml").is_file()


def test_only_files_of_texts_are_copied(tmp_path, monkeypatch):
    """`--assets /` copied /dev, which has no end."""
    texts, made = tmp_path / "texts", tmp_path / "made"
    (texts / "train").mkdir(parents=True)
    (texts / "train" / "a.jsonl").write_text("{}")
    (texts / "dev").mkdir()
    code, output = run("project", "addresses", "-o", made, "--assets", texts)
    assert code == 1 and "CRF797" in output  # as of /, where dev alone has such a name
    (texts / "test.jsonl").write_text("{}")
    for name in ("train/b.jsonl", "train/c"):
        (texts / name).symlink_to(tmp_path if name == "train/c" else "/dev/zero")
        code, output = run("project", "addresses", "-o", made, "--assets", texts)
        assert code == 1 and "CRF983" in output and not made.exists()
        (texts / name).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(projects, "MOST_BYTES", 3)
        code, output = run("project", "addresses", "-o", made, "--assets", texts)
    assert code == 1 and "CRF983" in output and not made.exists()
    assert run("project", "addresses", "-o", made, "--assets", texts)[0] == 0
    copied = {path.relative_to(made / "assets").as_posix() for path in (made / "assets").rglob("*.jsonl")}
    assert copied == {"train/a.jsonl", "test.jsonl"}


def test_upstream_texts_are_prepared(tmp_path):
    upstream, assets = tmp_path / "upstream", tmp_path / "assets"
    upstream.mkdir()
    assets.mkdir()

    def prepare(name):
        script = ROOT / "projects" / name / "scripts" / "prepare.py"
        subprocess.run([sys.executable, script, upstream, assets], check=True)

    prepare("restaurant")
    prepare("ingredients")
    assert not list(assets.iterdir())  # the texts came from a folder
    (upstream / "train").write_text(
        "a:O cheap:B-Price thai:B-Cuisine place:O <=> <NULL>\nat:O 5:30:B-Hours <=> <NULL>\n"
    )
    prepare("restaurant")
    first, second = srsly.read_jsonl(assets / "train.jsonl")
    assert first == {"tokens": ["a", "cheap", "thai", "place"], "ner_tags": ["O", "B-Price", "B-Cuisine", "O"]}
    assert second["tokens"] == ["at", "5:30"]

    rows = [("2 cups", ["2", "cups"], ["QTY", "UNIT"]), ("x", ["x"], ["OTHER"])]
    labels = ["B_NAME_TOK", "B_NAME_TOK", "PUNC", "NAME_MOD", "NAME_MOD"]
    rows += [(f"salt {n}, red pepper", ["salt", str(n), ",", "red", "pepper"], labels) for n in range(40)]
    connection = sqlite3.connect(upstream / "training.sqlite3")
    connection.execute(
        "CREATE TABLE training (id INTEGER PRIMARY KEY, source TEXT, sentence TEXT, tokens JSON, labels JSON)"
    )
    for sentence, tokens, labels in rows:
        values = ("bbc", sentence, json.dumps(tokens), json.dumps(labels))
        connection.execute("INSERT INTO training (source, sentence, tokens, labels) VALUES (?, ?, ?, ?)", values)
    connection.commit()
    connection.close()
    prepare("ingredients")
    splits = {split: list(srsly.read_jsonl(assets / f"{split}.jsonl")) for split in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 41 and len(splits["train"]) > 25 and splits["dev"] and splits["test"]
    tags = {tuple(text["ner_tags"]) for texts in splits.values() for text in texts}
    assert tags == {("B-QTY", "B-UNIT"), ("B-NAME_TOK", "B-NAME_TOK", "O", "B-NAME_MOD", "I-NAME_MOD")}


def test_letters_of_the_redaction_project_are_annotated_where_they_say(tmp_path):
    script = ROOT / "projects" / "redaction" / "scripts" / "generate.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    texts = [text for split in ("train", "dev", "test") for text in srsly.read_jsonl(tmp_path / f"{split}.jsonl")]
    assert len(texts) == 1100 and len({text["text"] for text in texts}) > 1000
    for text in texts:
        for span in text["spans"]:
            part = text["text"][span["start"] : span["end"]]
            assert ("@" in part) == (span["label"] == "EMAIL") and part == part.strip()
    mine = (tmp_path / "train.jsonl").write_text("{}\n")
    subprocess.run([sys.executable, script, tmp_path], check=True)
    assert (tmp_path / "train.jsonl").stat().st_size == mine


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_project_ends_with_a_wheel(name, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    lines = "\n".join((DECISIONS if name == "german_law" else ADDRESSES) * 40)
    for split in ("train", "dev", "test"):
        (texts / f"{split}.conll").write_text(lines, encoding="utf8")
    if name == "names":
        (texts / "train.conll").rename(tmp_path / "person.conll")
        (texts / "train").mkdir()
        (tmp_path / "person.conll").rename(texts / "train" / "person.conll")
        (texts / "test.conll").rename(texts / "test.xml")
        (texts / "test.xml").write_text("<NameCollection><Name><GivenName>Bob</GivenName></Name></NameCollection>")
    with_texts = () if name == "redaction" else ("--assets", texts)
    assert run("project", name, "-o", tmp_path / "made", *with_texts)[0] == 0
    done = subprocess.run(
        [sys.executable, "-m", "spacy", "project", "run", "all", tmp_path / "made"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (tmp_path / "made").glob("*/dist/*.whl")
    assert wheel.stat().st_size < 5_000_000
    [readme] = (tmp_path / "made").glob("*/README.md")
    assert "| all |" in readme.read_text(encoding="utf8")


# ------------------------------------------------------------------------------------------------------------ the card


def test_the_card_is_what_spacy_package_makes_a_readme_of(trained_folder, tmp_path):
    meta, notes = tmp_path / "meta.json", tmp_path / "notes.md"
    srsly.write_json(meta, {"name": "crf_people", "version": "1.2.3", "license": "MIT", "description": "People"})
    notes.write_text("### Limits\n\nNone known.\n")
    arguments = ("card", trained_folder / "model", trained_folder / "data.spacy", "--output", tmp_path / "packaged")
    code, output = run(*arguments, "--meta", meta, "--notes", notes)
    assert code == 0, output
    saved = srsly.read_json(tmp_path / "packaged" / "meta.json")
    readme = generate_readme(saved)
    assert "In 6 texts, 6 of which it has learned from (in new texts it makes more mistakes), 100.0% without" in readme
    assert "`en_crf_people`" in readme and "None known." in readme and "words a second" in readme and "People" in readme
    rows = dict(re.findall(r"^\| (\w+) \| ([\d,]+ \| .*) \|$", readme, re.MULTILINE))
    assert set(rows) == {"all", "PER", "GPE", "ORG"} and rows["all"].startswith("12 | 100.0 | 100.0 | 100.0 | ")
    assert saved["performance"]["ents_f"] == 1.0 and not [name for name in saved["performance"] if "token" in name]
    nlp, packaged = (spacy.load(folder) for folder in (trained_folder / "model", tmp_path / "packaged"))
    assert nlp.config["components"] == packaged.config["components"]
    assert run(*arguments)[0] == 0  # replaces a pipeline, and nothing else
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    code, output = run(*arguments[:4], tmp_path / "other")
    assert code == 1 and "CRF796" in output
    srsly.write_json(meta, {"nam": "crf_people"})
    code, output = run(*arguments, "--meta", meta)
    assert code == 1 and "CRF798" in output and "license" in output
    meta.write_text("{")
    code, output = run(*arguments, "--meta", meta)
    assert code == 1 and "CRF798" in output


# ---------------------------------------------------------------------------------------------------------- the fields


def test_fields_are_the_entities_in_their_order():
    nlp = trained(confidence=True)
    doc = nlp("Ann Lee left Paris and Bob left Rome .")
    fields = doc._.crf_fields
    assert list(fields) == [*dict.fromkeys(fields)] and len(fields) == len(doc.ents) > 2
    assert [field.text for field in fields.values()] == [ent.text for ent in doc.ents]
    assert [field.prob for field in fields.values()] == [ent._.crf_prob for ent in doc.ents]
    assert "PER" in fields and "PER 2" in fields
    assert nlp("")._.crf_fields == {}
    doc = Doc(nlp.vocab, words=["a", "b", "c", "d"], ents=["B-X 2", "B-X", "B-X", "B-X"])
    assert [(name, field.text) for name, field in doc._.crf_fields.items()] == [
        *zip(("X 2", "X", "X 3", "X 4"), "abcd")
    ]
    doc = trained()("Ann Lee left Paris")
    assert {field.prob for field in doc._.crf_fields.values()} == {None}
