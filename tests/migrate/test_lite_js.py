"""lite.js labels exports like `spacy_crf.lite` in Python. Needs Node."""

import json
import random
import re
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
import spacy
from spacy.training import Example

import spacy_crf
from spacy_crf import lite
from spacy_crf.lite import features as lite_features
from spacy_crf.migrate.lite import ENGLISH_NUMBERS, export_lite, write_lite
from spacy_crf.migrate.page import MODULES, bundle
from tests import unicode_tables
from tests.hostile_texts import hostile_text
from tests.pipeline.test_crf_ner import train
from tests.test_lite import AT_LEAST, EVERY_PLACE, LONG, ODD, RULES, make, some_texts, templates
from tests.test_lite_tokenizer import RULES as RULES_OF_TOKENIZER
from tests.test_lite_tokenizer import SENTENCES, trained
from tests.util import ner_examples, tag_examples

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")


def answers(**tasks):
    """Let lite.js do tasks, by lite_answers.mjs, and return its answers."""
    script = Path(__file__).with_name("lite_answers.mjs")
    asked = json.dumps(tasks)
    result = subprocess.run([NODE, script], input=asked, capture_output=True, text=True, check=False, encoding="utf8")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def assert_close(ours, theirs, place=""):
    """Two answers have the same keys, texts and places, and probabilities that differ by less than 1e-9."""
    if isinstance(ours, dict):
        assert [*ours] == [*theirs], place
        for key, value in ours.items():
            assert_close(value, theirs[key], f"{place}/{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), place
        for n, values in enumerate(zip(ours, theirs)):
            assert_close(*values, f"{place}/{n}")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=1e-9), place
    else:
        assert ours == theirs, place


def assert_same(nlp, rows, path, texts=(), **settings):
    """The export of a pipeline gives the same answers in both, to words or rows, and to texts."""
    write_lite(export_lite(nlp, **settings), path, "json")
    parse = lite.load(path)
    content = json.loads(path.read_text(encoding="utf8"))
    found = answers(words={"content": content, "texts": rows}, texts={"content": content, "texts": texts})
    for some_words, answer in zip(rows, found["words"], strict=True):
        assert_close(parse.words(some_words).to_json(), answer, some_words)
    for text, answer in zip(texts, found["texts"], strict=True):
        assert_close(parse(text).to_json(), answer, text)
    return content


TEXTS = [*some_texts(40), *some_texts(40, words=ODD), ["\ue000Paris", "Bob\ue001"]]
CHAINS = {
    "presets": {},
    "padding": {
        **templates(*LONG, padding={"before": ["b1", "b2"], "behind": [".", "b3"]}, possible_states=True),
        "scheme": "IOB1",
        "min_prob": 0.3,
    },
    "no padding": {**templates(*LONG, padding=False), "scheme": "IO", "min_prob": {"PER": 0.5, "*": 0.1}},
    "pairs": {**templates("shape[0]", transitions=["lower[0]", "bias"]), "scheme": "BIO"},
    "spans": {"decode": "spans", "min_prob": 0.3, "scheme": "IOB1"},
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name, tmp_path):
    assert_same(make("crf_ner", CHAINS[name]), TEXTS, tmp_path / "model.json")


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("decode, rules", [("viterbi", RULES["hard"] + RULES["soft"]), ("spans", AT_LEAST)])
def test_rules(factory, decode, rules, tmp_path):
    constraints = {"@misc": "spacy_crf.constraints.v1", "rules": rules}
    nlp = make(factory, {"decode": decode, "min_prob": 0.3, "constraints": constraints})
    assert_same(nlp, TEXTS, tmp_path / "model.json")


def test_segments_gazetteers_and_clusters(tmp_path):
    (tmp_path / "places.jsonl").write_text('{"text": "New York", "label": "city"}\n"Paris"\n"Acme Corp left"\n"Acme"\n')
    (tmp_path / "paths").write_text("0011\tann\t5\n01\tNew\t3\n1101101\tparis\t3\n11010\tx-0\t1\n")
    lists = {"gazetteers": {"places": str(tmp_path / "places.jsonl")}}
    features = {"@misc": "spacy_crf.segment_features.v1", "templates": EVERY_PLACE}
    nlp = make("semicrf_ner", {"model": {"segments": {"features": features}}}, **lists)
    assert_same(nlp, TEXTS, tmp_path / "model.json")
    config = templates("in:places[-1..1]", "cluster[0]", "cluster4[-1..1]", "in:places[0]|cluster6[0]")
    nlp = make("crf_ner", config, **lists, clusters=str(tmp_path / "paths"))
    assert_same(nlp, TEXTS, tmp_path / "model.json")


def test_tags_and_texts(tmp_path):
    nlp = make("crf_tagger", {**templates(*LONG), "min_prob": 0.4}, tag_examples(spacy.blank("en")))
    assert_same(nlp, TEXTS, tmp_path / "model.json")
    nlp = spacy.blank("en")
    texts = {"book a table for two": "book", "play some jazz": "play", "play the next song": "play"}
    examples = [Example.from_dict(nlp.make_doc(text), {"cats": {label: 1.0}}) for text, label in texts.items()]
    nlp = make("crf_textcat", {}, examples)
    nlp.add_pipe("sentencizer", first=True)
    more = ["Book a table. Play jazz!", "Ann Lee: don't  play\n\n🙂 jazz.", "", " "]
    assert_same(nlp, [*map(str.split, texts), [], ["table", "New"]], tmp_path / "model.json", texts=[*texts, *more])


def test_overlapping_spans(tmp_path):
    texts = ["Ann Lee left Paris for New York.", "👍🏽 Bob (Acme Corp)"]
    assert_same(of_spans(), TEXTS, tmp_path / "model.json", texts=texts)


def test_keys_may_be_names_of_javascript(tmp_path):
    """Spans of the key "__proto__" were lost."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_spancat", config={"groups": "auto", "spans_key": "__proto__"})
    examples = ner_examples(nlp)
    for doc in (example.reference for example in examples):
        doc.spans["__proto__"] = doc.ents
    train(nlp, examples)
    assert_same(nlp, TEXTS[:20], tmp_path / "model.json")


def test_rows_of_columns(tmp_path):
    nlp = make("crf_ner", templates("lower[0]", "tag[-1..1]", "tag[0]|shape[0]"))
    rows = [[["NNP", "Ann"], ["VBD", "left"], ["NNP", "Paris"]], [["X", "New"]]]
    assert_same(nlp, rows, tmp_path / "model.json", columns=["tag", "orth"])


def several_components():
    """A pipeline of sentences, tags and entities."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("crf_tagger")
    nlp.add_pipe("crf_ner", config=templates("lower[0]", "shape[-1..1]", "tag[-1..0]"))
    nlp.get_pipe("crf_tagger").cfg["overwrite"] = True
    examples = []
    for example in ner_examples(nlp):
        doc = example.reference
        for token in doc:
            token.tag_ = "NNP" if token.text.istitle() else "X"
        examples.append(Example(example.predicted, doc))
    train(nlp, examples)
    return nlp


HOSTILE = [" ".join(words) for words in some_texts(20, words=[*ODD, "🙂", "don't", "\n", "U.S.A.", '("Paris")'])]


def test_several_components(tmp_path):
    """A component reads the sentences and the tags that earlier ones found."""
    assert_same(several_components(), TEXTS, tmp_path / "model.json", texts=HOSTILE)


@pytest.mark.parametrize("settings", [RULES_OF_TOKENIZER, {"language_rules": True}], ids=["rules", "language rules"])
@pytest.mark.parametrize("cuts_words", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trained_tokenizers(cuts_words, settings, tmp_path):
    nlp = trained(cuts_words, sentences=cuts_words, **settings)
    ner = make("crf_ner")
    nlp.add_pipe("crf_ner", source=ner)
    rng = random.Random(3)
    texts = [hostile_text(rng, [*SENTENCES, "don't", "New York", "items", "กำลัง"]) for _ in range(120)]
    texts += ["", " ", "\n", " a", "\u0301", " \u0301 a", "\u1100\u1161\u11a8각", "🇩🇪🇩🇪🇩 क्षि", *SENTENCES]
    content = assert_same(nlp, [], tmp_path / "model.json", texts=texts)
    assert content["tokenizer"]["kind"] == "characters"


def test_names_of_modules_differ():
    """They share one scope in pages."""
    names = re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", bundle(), re.MULTILINE)
    assert len(names) > 100 and len(names) == len({*names})
    for name in MODULES:
        source = (unicode_tables.PATH.parent / f"{name}.js").read_text(encoding="utf8")
        assert not re.search(r"^import \{[^}]* as ", source, re.MULTILINE)


# ----------------------------------------------------------------------------------------------- damaged exports


def of_spans():
    """A pipeline with a set of two chains."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_spancat", config={"groups": [["PER"], ["GPE", "ORG"]], "max_positive": 1})
    examples = ner_examples(nlp)
    for doc in (example.reference for example in examples):
        doc.spans["sc"] = doc.ents
    train(nlp, examples)
    return nlp


def of_characters():
    """A pipeline with a trained tokenizer."""
    nlp = trained(True, **RULES_OF_TOKENIZER)
    nlp.add_pipe("sentencizer")
    return nlp


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda: make("crf_ner", {"decode": "spans", "min_prob": 0.3, "scheme": "IOB1"}),
        lambda: make("semicrf_ner"),
        of_spans,
        of_characters,
    ],
    ids=["chain", "segments", "set", "tokenizer"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_exports_are_refused_or_answer(pipeline, tmp_path):
    """Any error is a LiteError, whose message says what to do."""
    path = tmp_path / "model.json"
    write_lite(export_lite(pipeline()), path, "json")
    content = json.loads(path.read_text(encoding="utf8"))
    texts = ["Ann Lee left Paris for New York.", "", "a  b"]
    outcomes = answers(damaged={"content": content, "texts": texts, "n": 250})["damaged"]
    assert outcomes["raw"] == []
    assert outcomes["refused"] > 50 and outcomes["answered"] > 20


def test_the_folder_for_npm():
    """Its tests need no packages; its version is that of the plugin, and the script without modules is that of pages."""
    folder = Path(__file__).parents[2] / "lite" / "js"
    assert json.loads((folder / "package.json").read_text(encoding="utf8"))["version"] == spacy_crf.__version__
    result = subprocess.run([NODE, "--test"], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert bundle() in (folder / "build" / "lite.global.js").read_text(encoding="utf8")


# ------------------------------------------------------------------------------------------------------ characters


def test_attributes_are_those_of_python():
    """Attributes are compared for odd words, and for every character alone, behind a letter and before one."""
    content = {"stop_words": ["the", "ß"], "columns": ["orth"], "padding": True, "tables": {}}
    content |= {"gazetteers": {}, "clusters": {}, **ENGLISH_NUMBERS}
    getters = lite_features.Features(content, 1).getters
    step = 1 if unicodedata.unidata_version == unicode_tables.version() else 17
    characters = [
        chr(point) for point in range(0, 0x30000, step) if unicodedata.category(chr(point)) not in ("Cs", "Cn")
    ]
    words = [
        *ODD,
        *characters[::7],
        *(f"a{char}Σ" for char in characters[::11]),
        *(f"Σ{char}A" for char in characters[::101]),
    ]
    found = answers(attributes={"content": content, "words": words})["attributes"]
    assert found.keys() == getters.keys()
    for name, values in found.items():
        assert values == [getters[name](word) for word in words], name
    hashes = answers(hashes=words)["hashes"]
    assert hashes == [f"{lite_features.hash_text(word):016x}" for word in words]


@pytest.mark.skipif(unicodedata.unidata_version != unicode_tables.version(), reason="this Python has another Unicode")
def test_tables_of_characters_are_those_of_python():
    assert unicode_tables.PATH.read_text(encoding="utf8") == unicode_tables.unicode_js()
    expected = [chr(point).lower() for point in range(0x30000)]
    assert answers(lower=expected)["lower"] == []
