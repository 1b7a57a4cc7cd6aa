"""The task, the settings, the language and the files that `fit`, `init-config --for` and `data` find in annotated texts."""

import json
from importlib import import_module

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.util import Config, load_config, load_model_from_config
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.configs import Part, join_parts
from spacy_crf.cli.look import FIELDS, NO_SPANS, Search, find_files, language_of, look
from spacy_crf.cross_validation import fit

ENTITIES = "Ann\tB-PER\nlives\tO\nin\tO\nthe\tO\ncity\tO\nof\tO\nRome\tB-GPE\n.\tO\n"
FIELDS_FILE = "12\tB-NUMBER\nElm\tB-STREET\nSt\tI-STREET\n,\tO\nBend\tB-CITY\n"
TAGS = "Ann\tNNP\nlives\tVBZ\nin\tIN\nRome\tNNP\n.\t.\n"
PLAIN_FIELDS = "12\tNumber\nElm\tStreet\nSt\tStreet\nBend\tCity\n"
NESTED = "Bank\tB-ORG\tO\nof\tI-ORG\tO\nRome\tI-ORG\tB-GPE\nis\tO\tO\nin\tO\tO\nOslo\tB-GPE\tO\n"
FLAT = "Ann\tB-PER\tO\nand\tO\tO\nBob\tB-PER\tO\n"
INSIDE = "Acme\tB-ORG\tB-ORG\nBank\tI-ORG\tO\n"
CONLL2003 = "Ann\tNNP\tB-NP\tB-PER\nlives\tVBZ\tB-VP\tO\nin\tIN\tB-PP\tO\nRome\tNNP\tB-NP\tB-GPE\nand\tCC\tO\tO\n"
WORDS = ["Ann", "lives", "in", "Rome"]
TEXT = " ".join(WORDS)
SPANS = [{"start": 0, "end": 3, "label": "PER"}, {"start": 13, "end": 17, "label": "GPE"}]
OVERLAPPING = [*SPANS, {"start": 10, "end": 17, "label": "PP"}]


def lines(*values):
    return "\n".join(map(json.dumps, values))


# The name of a file, its contents, and the component, kind of search, and number of spans that it is for
FORMS = {
    "columns": ("a.conll", ENTITIES, "crf_ner", Search()),
    "four columns": ("a.conll", CONLL2003, "crf_ner", Search()),
    "BILOU": ("a.biluo", ENTITIES.replace("B-", "U-"), "crf_ner", Search()),
    "fields": ("a.conll", FIELDS_FILE, "crf_ner", FIELDS),
    "fields without prefixes": ("a.conll", PLAIN_FIELDS, "crf_ner", FIELDS),
    "tags": ("a.conll", TAGS, "crf_tagger", NO_SPANS),
    "nested columns": ("a.conll", NESTED, "crf_spancat", Search()),
    "words with tags": ("a.iob", "Ann|B-PER lives|O in|O Rome|B-GPE\nthe|O city|O", "crf_ner", Search()),
    "table": ("a.csv", "sentence,word,tag\n1,Ann,B-PER\n1,lives,O\n1,in,O\n1,Rome,B-GPE\n", "crf_ner", Search()),
    "labels in a table": ("a.csv", "text,label\nAnn is here,YES\nthat is all,NO\n", "crf_textcat", NO_SPANS),
    "CoNLL-U": ("a.conllu", f"# text = {TEXT}\n" + "".join(
        f"{n}\t{word}\t_\t{tag}\t{tag}\t_\t0\troot\t_\t_\n" for n, (word, tag) in enumerate(
            zip(WORDS, ("PROPN", "VERB", "ADP", "PROPN")), start=1)) + "\n", "crf_tagger", NO_SPANS),
    "Prodigy": ("a.jsonl", lines({"text": TEXT, "spans": SPANS, "answer": "accept"}), "crf_ner", Search()),
    "overlapping spans": ("a.jsonl", lines({"text": TEXT, "spans": OVERLAPPING}), "crf_spancat", Search()),
    "doccano": ("a.jsonl", lines({"id": 1, "text": TEXT, "label": [[0, 3, "PER"]]}), "crf_ner", Search()),
    "spaCy 2": ("a.json", json.dumps([[TEXT, {"entities": [[0, 3, "PER"]]}]]), "crf_ner", Search()),
    "words in JSON": ("a.jsonl", lines({"tokens": WORDS, "tags": ["B-PER", "O", "O", "B-GPE"]}), "crf_ner", Search()),
    "GLiNER": ("a.json", json.dumps([{"tokenized_text": WORDS, "ner": [[0, 0, "PER"]]}]), "crf_ner", Search()),
    "labels of texts": ("a.jsonl", lines({"text": TEXT, "cats": {"A": 1.0, "B": 0.0}}), "crf_textcat", NO_SPANS),
    "no letter": ("a.jsonl", lines({"text": "? !", "spans": [{"start": 0, "end": 1, "label": "Q"}]}), "crf_ner", Search()),
    "several labels": ("a.jsonl", lines({"text": TEXT, "cats": {"A": 1.0, "B": 1.0}}), "crf_textcat_multilabel", NO_SPANS),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_kind_is_that_of_the_annotation(form, tmp_path):
    name, contents, file, search = FORMS[form]
    path = tmp_path / name
    path.write_text(contents, encoding="utf8")
    found = look([path], "en")
    (task,) = found.tasks
    assert (task.part.file, task.search) == (file, search)
    nlp = load_model_from_config(Config().from_str(found.config("a.cfg")), auto_fill=False)
    assert nlp.pipe_names == [task.part.component]
    assert found.examples(nlp)


def test_spans_in_groups_of_a_spacy_file_stay_where_they_are(tmp_path):
    nlp = spacy.blank("en")
    doc = Doc(nlp.vocab, words=WORDS)
    doc.spans["mine"] = [Span(doc, 0, 1, "PER"), Span(doc, 2, 4, "PP"), Span(doc, 3, 4, "GPE")]
    DocBin(docs=[doc] * 6, store_user_data=True).to_disk(tmp_path / "a.spacy")
    found = look([tmp_path / "a.spacy"], "en")
    (tmp_path / "a.cfg").write_text(found.config("a.cfg"), encoding="utf8")
    config = load_config(tmp_path / "a.cfg", interpolate=True)
    assert config["components"]["crf_spancat"]["spans_key"] == "mine"
    assert config["training"]["score_weights"] == {"spans_mine_f": 1.0, "spans_mine_p": 0.0, "spans_mine_r": 0.0}
    nlp, _ = fit(config, found.examples, folds=2, words=False, l1=[0.0], l2=[0.1])
    (found_doc,) = nlp.pipe([Doc(nlp.vocab, words=WORDS)])
    assert [span.label_ for span in found_doc.spans["mine"]] == ["PER", "PP", "GPE"]


@pytest.mark.parametrize(
    "contents, nested", [(NESTED, False), (f"{NESTED}\n{FLAT}", True), (f"{NESTED}\n{INSIDE}", True)]
)
def test_labels_are_layers_if_many_spans_overlap_and_none_of_their_own_label(contents, nested, tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(contents, encoding="utf8")
    config_path = tmp_path / "a.cfg"
    config_path.write_text(look([path], "en").config("a.cfg"), encoding="utf8")
    settings = load_config(config_path)["components"]["crf_spancat"]
    templates = settings["model"]["emissions"]["features"]["extra"] or []
    assert (settings["groups"], settings["nested"]) == ("auto", nested)
    assert any("outer" in template for template in templates) == nested


def test_tags_of_tokens_are_read_as_tags(tmp_path):
    (tmp_path / "a.conll").write_text(TAGS)
    (example,) = look([tmp_path / "a.conll"], "en").examples(spacy.blank("en"))
    assert [token.tag_ for token in example.reference] == ["NNP", "VBZ", "IN", "NNP", "."]
    assert not example.reference.ents


def test_a_few_overlaps_are_mistakes(tmp_path):
    rows = [{"text": TEXT, "spans": SPANS}] * 150
    (tmp_path / "a.jsonl").write_text(lines({"text": TEXT, "spans": OVERLAPPING}, *rows))
    found = look([tmp_path / "a.jsonl"], "en")
    assert [task.part.file for task in found.tasks] == ["crf_ner"]
    assert len(found.examples(spacy.blank("en"))) == 151


def test_entities_and_labels_of_texts_make_a_pipeline_of_two(tmp_path):
    rows = [{"text": TEXT, "spans": SPANS, "cats": {"A": float(n % 2), "B": float(1 - n % 2)}} for n in range(6)]
    path = tmp_path / "a.jsonl"
    path.write_text(lines(*rows))
    found = look([path], "en")
    (tmp_path / "a.cfg").write_text(found.config("a.cfg"), encoding="utf8")
    config = load_config(tmp_path / "a.cfg", interpolate=True)
    assert config["nlp"]["pipeline"] == ["crf_ner", "crf_textcat"]
    weights = config["training"]["score_weights"]
    assert (weights["ents_f"], weights["cats_score"]) == (0.5, 0.5)
    nlp, fitted = fit(config, found.examples, folds=2, words=False, l1=[0.0], l2=[0.1])
    assert [component.name for component in fitted] == ["crf_ner", "crf_textcat"]
    assert [ent.label_ for ent in nlp(TEXT).ents] == ["PER", "GPE"] and nlp(TEXT).cats


def test_a_config_of_one_part_is_its_file(tmp_path):
    from spacy_crf.cli.configs import CONFIGS

    (tmp_path / "a.cfg").write_text(join_parts([Part("crf_ner")], "# mine\n"), encoding="utf8")
    assert load_config(tmp_path / "a.cfg") == load_config(CONFIGS / "crf_ner.cfg")


# ------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
    "names, train, test",
    [
        (["train.conll", "dev.conll", "test.conll"], ["dev.conll", "train.conll"], ["test.conll"]),
        (["train.conll", "train_small.conll", "test.conll"], ["train.conll"], ["test.conll"]),
        (["en-ud-train.conllu", "en-ud-test.conllu"], ["en-ud-train.conllu"], ["en-ud-test.conllu"]),
        (["eng.train.conll", "eng.testa.conll", "eng.testb.conll"], ["eng.testa.conll", "eng.train.conll"], ["eng.testb.conll"]),
        (["monday.jsonl", "tuesday.jsonl", "notes.txt"], ["monday.jsonl", "tuesday.jsonl"], []),
        (["attest.jsonl", "trained.jsonl"], ["attest.jsonl", "trained.jsonl"], []),
    ],
)  # fmt: skip
def test_files_of_a_folder(names, train, test, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    files = find_files([tmp_path])
    assert [path.name for path in files.train] == train
    assert [path.name for path in files.test] == test


def test_a_file_that_is_named_is_trained_on(tmp_path):
    path = tmp_path / "test.conll"
    assert find_files([path]).train == [path]


@pytest.mark.parametrize("paths", [[], ["folder"]])
def test_no_files(paths, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="CRF708"):
        find_files([tmp_path / path for path in paths])


# --------------------------------------------------------------------------------------------------- language

# Examples of spaCy; those of other languages are too few, or too much like a sister's
SHOWN = [
    "ar",
    "ca",
    "cs",
    "da",
    "de",
    "el",
    "en",
    "es",
    "eu",
    "fa",
    "fi",
    "fr",
    "hr",
    "hu",
    "it",
    "lb",
    "nb",
    "nl",
    "pl",
    "pt",
]
SHOWN += ["ro", "ru", "si", "sk", "sq", "sv", "uk", "ur", "vi", "yo"]


@pytest.mark.parametrize("lang", SHOWN)
def test_words_show_the_language(lang):
    nlp = spacy.blank("xx")
    docs = [nlp.make_doc(text) for text in import_module(f"spacy.lang.{lang}.examples").sentences]
    found, reason = language_of(docs)
    assert found in (lang, None) and reason


@pytest.mark.parametrize("lang", ["ja", "zh", "ko", "th", "el", "he"])
def test_letters_show_the_language(lang):
    sentences = {"th": ["ภาษาไทยไม่มีช่องว่าง"]}.get(lang) or import_module(f"spacy.lang.{lang}.examples").sentences
    docs = [spacy.blank("xx").make_doc(text) for text in sentences]
    assert language_of(docs)[0] == lang


@pytest.mark.parametrize("text", ["12 Elm St Bend OR 97701", "", "... 12 !", "xqzt"])
def test_a_language_that_nothing_shows(text):
    lang, reason = language_of([spacy.blank("xx").make_doc(text)])
    assert lang is None and reason.startswith("only ")


# --------------------------------------------------------------------------------------------------- commands


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        (folder / f"{name}.conll").write_text("\n".join([ENTITIES.replace("Ann", name)] * 6))
    return folder


def test_fit_without_a_config_writes_it_beside_the_pipeline(folder, tmp_path):
    output = tmp_path / "model"
    code, printed = run("fit", folder, "-o", output, "--folds", 2, "--no-words", "--l1", "0", "--l2", "0.1")
    assert code == 0, printed
    for words in ("12 texts of dev.conll, train.conll", "Task: crf_ner", "Language: en", "test.conll is left", "Next:"):
        assert words in printed
    text = (tmp_path / "model.cfg").read_text(encoding="utf8")
    assert text.startswith("# crf_ner: ")
    # The same config serves again; one that somebody has changed is not replaced
    assert run("fit", folder, "-o", output, "--folds", 2, "--no-words", "--l1", "0", "--l2", "0.1")[0] == 0
    (tmp_path / "model.cfg").write_text(text.replace("window = 2", "window = 3"))
    code, printed = run("fit", folder, "-o", output)
    assert code == 1 and "CRF750" in printed and "window = 3" in (tmp_path / "model.cfg").read_text()


def test_init_config_writes_what_fit_writes(folder, tmp_path):
    path = tmp_path / "a.cfg"
    code, printed = run("init-config", "--for", folder, "-o", path)
    assert code == 0 and "Task: crf_ner" in printed
    assert path.read_text(encoding="utf8") == look([folder]).config(str(path))
    code, printed = run("init-config", "--for", folder, "--component", "crf_ner")
    assert code == 1 and "CRF745" in printed


def test_data_prints_the_findings(folder):
    code, printed = run("data", folder / "train.conll")
    assert code == 0 and "Task: crf_ner" in printed and "Language: en" in printed


def test_a_language_must_be_named_if_nothing_shows_it(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("\n".join([FIELDS_FILE] * 4))
    code, printed = run("fit", path, "-o", tmp_path / "model")
    assert code == 1 and "CRF774" in printed and "--lang en" in printed and not (tmp_path / "model").exists()
    code, printed = run("fit", path, "-o", tmp_path / "model", "--folds", 2, "--lang", "en", "--no-words")
    assert code == 0, printed
    config = load_config(tmp_path / "model" / "config.cfg")
    assert config["components"]["crf_ner"]["model"]["emissions"]["features"]["padding"] is True
    assert config["training"]["optimizer"]["l1"] in FIELDS.l1


def test_texts_with_nothing_to_learn(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(lines({"text": "the cat is on the mat and that is all"}))
    code, printed = run("fit", path, "-o", tmp_path / "model")
    assert code == 1 and "CRF773" in printed


def test_the_language_is_in_a_config_that_is_named(folder, tmp_path):
    run("init-config", "--component", "crf_ner", "-o", tmp_path / "a.cfg")
    code, printed = run(
        "fit", folder / "train.conll", "-o", tmp_path / "m", "--config", tmp_path / "a.cfg", "--lang", "de"
    )
    assert code == 1 and "CRF020" in printed and "--lang" in printed
