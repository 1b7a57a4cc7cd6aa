"""Functions of a word beside functions of a Doc that call them for each token, and models of CRFsuite with such features."""

import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.util import registry

from spacy_crf.cli.migrate import find_words, make_pipeline
from spacy_crf.features.extractor import FeatureSet
from spacy_crf.migrate.checking import compare
from spacy_crf.migrate.crfsuite import read_crfsuite, write_crfsuite
from spacy_crf.migrate.foreign import ForeignModel, Weighted
from spacy_crf.migrate.functions import FILE_NAME, WordFunction
from spacy_crf.migrate.tokenizer import WORDS_OF
from tests.migrate.test_migrate import random_words, run
from tests.util import tag_examples

CALLS = Counter()


def spelling(word):
    """A word's strings and numbers, as functions for CRFsuite give them."""
    CALLS[word] += 1
    return {"end": word[-1:], "long": len(word) / 8, "pieces": {"pairs": [word[:2], word[2:4]]}, "digit": False}


def of_doc(doc):
    return [spelling(token.text) for token in doc]


TEMPLATES = ["lower[0]", "SPELLING[-1..1]", "SPELLING[-1]|lower[0]", "SPELLING[2]|shape[0]"]


def trained(source, templates=TEMPLATES, function=None, **settings):
    nlp = spacy.blank("en")
    block = {
        "@misc": "spacy_crf.features.v1",
        "templates": [template.replace("SPELLING", source) for template in templates],
        "functions": {"f": {"@misc": function or f"tests.{source}.v1"}},
    }
    nlp.add_pipe("crf_tagger", config={"model": {"emissions": {"features": block}}, **settings})
    examples = tag_examples(nlp)
    optimizer = registry.optimizers.get("spacy_crf.LBFGS.v1")(l2=0.1, iterations_per_step=10)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=optimizer)
    return nlp


@pytest.fixture(scope="module", autouse=True)
def registered():
    registry.misc.register("tests.word:f.v1", func=lambda: spelling)
    registry.misc.register("tests.fn:f.v1", func=lambda: of_doc)


def probabilities(nlp, texts):
    docs = [Doc(nlp.vocab, words=words) for words in texts]
    return np.concatenate([nlp.get_pipe("crf_tagger").marginals(doc)[0] for doc in docs])


NEW = [["a", "cat", "of", "1999", "barks"], ["dogs"], [], ["the", "dogs", "of", "a", "cat", "bark"]]


@pytest.mark.parametrize("settings", [{}, {"max_words": 1}], ids=str)
def test_functions_of_words_give_what_functions_of_docs_give(settings, tmp_path):
    of_words, of_docs = (trained(source, **settings) for source in ("word:f", "fn:f"))
    names = [nlp.get_pipe("crf_tagger").sparse_features.states.index.names() for nlp in (of_words, of_docs)]
    assert [name.replace("word:", "fn:") for name in names[0]] == names[1]
    expected = probabilities(of_docs, NEW)
    assert probabilities(of_words, NEW) == pytest.approx(expected, abs=1e-6)
    of_words.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert probabilities(loaded, NEW) == pytest.approx(expected, abs=1e-6)


def test_texts_of_words_can_be_joined(tmp_path):
    """A word with several features is the only such part of a template; one with a single text is like any other."""

    def plain(doc):
        ends = ["<BOS1>", *(word.text[-1:] for word in doc), "<EOS1>"]
        return [[f"1{a}|{b}", f"2{b}|{c}"] for a, b, c in zip(ends, ends[1:], ends[2:])]

    registry.misc.register("tests.text.v1", func=lambda: lambda word: word[-1:] if word != "of" else None)
    registry.misc.register("tests.plain.v1", func=lambda: plain)
    of_texts = trained(
        "text:f", templates=["SPELLING[-1]|SPELLING[0]", "SPELLING[0]|SPELLING[1]"], function="tests.text.v1"
    )
    of_docs = trained("fn:f", templates=["SPELLING[0]"], function="tests.plain.v1")
    names = of_texts.get_pipe("crf_tagger").sparse_features.states.index.names()
    assert "text:f[-1]|text:f[0]=<BOS1>|e" in names and "text:f[0]|text:f[1]=k|y" in names
    texts = [words for words in NEW if "of" not in words]
    expected = probabilities(of_docs, texts)
    assert probabilities(of_texts, texts) == pytest.approx(expected, abs=1e-6)
    of_texts.to_disk(tmp_path)
    assert probabilities(spacy.load(tmp_path), texts) == pytest.approx(expected, abs=1e-6)
    assert (
        not of_texts.get_pipe("crf_tagger")
        .sparse_features.look_up([Doc(of_texts.vocab, words=["of"])])
        .features["states"]
        .rows.size
    )


@pytest.mark.parametrize("given", [1, ["x"], b"x", True])
def test_texts_are_strings(given):
    reader = FeatureSet(["text:g[0]"], functions={"g": lambda word: given}).reader({})
    with pytest.raises(
        ValueError, match=r"CRF899: The feature function 'text:g', for the word 'Rome': .+ is not a text"
    ):
        reader.read([Doc(spacy.blank("en").vocab, words=["Rome"])])


def test_a_function_is_called_once_for_each_word():
    nlp = trained("word:f")
    CALLS.clear()
    probabilities(nlp, NEW * 3)
    assert dict.fromkeys({word for words in NEW for word in words}, 1) == CALLS


def feature_names(given):
    feature_set = FeatureSet(["word:g[0]"], functions={"g": lambda word: given})
    reader = feature_set.reader({})
    reader.keep_names(True)
    items = reader.read([Doc(spacy.blank("en").vocab, words=["Rome"])]).items["word:g"]
    return {reader.names[hashed]: value for hashed, value in zip(items.hashes.tolist(), items.values.tolist())}


@pytest.mark.parametrize(
    "given, names",
    [
        ("x", {"x": 1}),
        (2.5, {"0": 2.5}),
        (np.int64(3), {"0": 3}),
        (None, {}),
        (["a", "b"], {"a": 1, "b": 1}),
        (np.array([0.5, 2]), {"0": 0.5, "1": 2}),
        ({"a": "b", "n": 2}, {"a:b": 1, "n": 2}),
    ],
)
def test_what_functions_of_words_may_give(given, names):
    assert feature_names(given) == names


@pytest.mark.parametrize("given", [b"x", object(), {"a": None}, float("nan"), [float("inf")], 10**400, [["x"]], True])
def test_what_functions_of_words_may_not_give_is_shown(given):
    with pytest.raises(ValueError, match=r"CRF111: The feature function 'word:g', for the word 'Rome': .+"):
        feature_names(given)


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"CRF106.*'word:g\[0\]' names the function 'g'.*functions\.g"):
        FeatureSet(["word:g[0]"])


# ----------------------------------------------------------------------------------------------------------- import


def of_neighbours(words, own=spelling):
    """The features of a word, and of its neighbours, as usaddress makes them."""
    rows = [own(word) for word in words]
    for t, row in enumerate(rows):
        row |= {"previous": own(words[t - 1])} if t else {"text.start": True}
        row |= {"+1": own(words[t + 1])} if t + 1 < len(words) else {"text.end": True}
        if t == 1:
            row["previous"]["text.start"] = True
        if t == len(words) - 2:
            row["+1"]["text.end"] = True
    return rows


def with_memory(words):
    """The features of `of_neighbours`, and one that depends on all words before."""
    rows = of_neighbours(words)
    for t, row in enumerate(rows):
        row["seen.dog"] = "dog" in words[:t]
    return rows


def only_memory(words):
    return [{"seen.dog": "dog" in words[:t]} for t in range(len(words))]


def fails(word):
    raise KeyError(word)


EDGES = "text.start,text.end"
HERE = "tests.features.test_word_functions"


def crfsuite_model(function, path, labels="ABC"):
    pycrfsuite = pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    trainer = pycrfsuite.Trainer(verbose=False, params={"c1": 0.0, "c2": 0.01, "max_iterations": 30})
    rng = random.Random(1)
    for words in random_words(30, 1):
        trainer.append(function(words), [rng.choice(labels) for _ in words])
    trainer.train(str(path))
    tagger = pycrfsuite.Tagger()
    tagger.open(str(path))
    return read_crfsuite(path.read_bytes(), path.name), tagger


@pytest.mark.parametrize("function, rest", [(of_neighbours, None), (with_memory, "only_memory")])
def test_models_are_imported_word_by_word(function, rest, tmp_path):
    model, tagger = crfsuite_model(function, tmp_path / "model")
    features = rest and f"{HERE}:{rest}"
    native = find_words(model, f"{HERE}:spelling", EDGES, features)
    assert [name for name, _ in native.replayed] == (["seen.dog"] if rest else [])
    nlp = make_pipeline(model, ["orth"], features, native=native, word_features=f"{HERE}:spelling")
    docs = [Doc(nlp.vocab, words=words) for words in [*random_words(60, 2), ["of"], ["dog", "of"]]]
    rows = {"imported": lambda doc: function([token.text for token in doc])}
    assert compare(nlp, model, docs, lambda doc, rows: tagger.tag(rows), rows).different == 0
    for doc in docs[-10:]:
        marginals, tags = nlp.get_pipe("crf_tagger").marginals(doc)
        tagger.set(function([token.text for token in doc]))
        expected = [[tagger.marginal(tag, t) for tag in tags] for t in range(len(doc))]
        assert marginals == pytest.approx(np.array(expected), abs=1e-5)


def test_words_are_imported_by_the_command(tmp_path):
    crfsuite_model(of_neighbours, tmp_path / "model")
    texts = random_words(20, 8)
    (tmp_path / "data.conll").write_text("".join("\n".join(words) + "\n\n" for words in texts), encoding="utf8")
    files = [tmp_path / "model", "--from", "crfsuite", "--output", tmp_path / "nlp", "--columns", "orth"]
    settings = ["--word-features", f"{HERE}:spelling", "--edges", EDGES, "--features", f"{HERE}:of_neighbours"]
    code, output = run("import", *files, *settings, "--check", tmp_path / "data.conll")
    assert code == 0 and "same labels" in output, output
    registration = (tmp_path / "nlp" / FILE_NAME).read_text(encoding="utf8")
    assert "spelling" in registration and "of_neighbours" not in registration
    exec(compile(registration, FILE_NAME, "exec"), {})
    nlp = spacy.load(tmp_path / "nlp")
    assert [token.tag_ for token in nlp(Doc(nlp.vocab, words=texts[0]))]


def model_of(names):
    rows = np.arange(len(names))
    return ForeignModel("crfsuite", ["A", "B"], Weighted(names, rows, rows % 2, 1.0 + rows), np.zeros((2, 2)))


@pytest.mark.parametrize(
    "names, left",
    [
        (["end:x", "next:end:x", "-1:-1:end:y", "+2:long", "digit", "pieces:pairs:ab"], []),
        (["fish", "next:fish:x", "END:x", ""], ["fish", "next:fish:x", "END:x", ""]),
        (["+20:end:x", "+19:end:x", "previous:text.start", "text.end", "BOS"], ["+20:end:x", "BOS"]),
    ],
)
def test_names_that_nothing_makes_are_listed(names, left):
    native = find_words(model_of(names), f"{HERE}:spelling", EDGES, "a:b")
    assert [name for name, _ in native.replayed] == left
    if left:
        with pytest.raises(
            ValueError, match=rf"CRF897: {HERE}:spelling does not make {len(left)} of the {len(names)} "
        ):
            find_words(model_of(names), f"{HERE}:spelling", EDGES, None)


@pytest.mark.parametrize(
    "settings, code",
    [
        (["--word-features", "nowhere:nothing"], "CRF859"),
        (["--word-features", f"{HERE}:fails"], "CRF896.*KeyError"),
        (["--word-features", "builtins:callable"], "CRF111"),
        (["--word-features", f"{HERE}:spelling"], "CRF897.*text.start"),
        (["--word-features", f"{HERE}:spelling", "--edges", "a"], "CRF020.*--edges"),
        (["--word-features", f"{HERE}:spelling", "--edges", EDGES, "--check", __file__], "CRF861"),
    ],
)
def test_what_can_not_be_imported_word_by_word_is_told(settings, code, tmp_path):
    write_crfsuite(model_of(["end:x", "text.start"]), tmp_path / "model")
    files = [tmp_path / "model", "--from", "crfsuite", "--output", tmp_path / "nlp"]
    status, output = run("import", *files, *settings)
    assert status == 1
    assert re.search(code, output.replace("\n", " ")), output


@pytest.mark.parametrize("template", ["word:g[0]", "text:g[0]", "fn:g[0]"])
def test_a_function_that_fails_is_named_with_its_word(template):
    """A comma alone was a raw IndexError of usaddress' function."""
    word = "," if template != "fn:g[0]" else "Ann ,"
    reader = FeatureSet([template], functions={"g": lambda given: {}[given]}).reader({})
    with pytest.raises(
        ValueError, match=rf"CRF987: The feature function '{template[:-3]}' failed for .*{word}.*KeyError"
    ):
        reader.read([Doc(spacy.blank("en").vocab, words=["Ann", ","][template[0] != "f" :])])


def test_a_function_of_sentences_that_fails_is_named_with_its_word():
    function = WordFunction("my.features", lambda words: [{"first": 1 / (word != ",")} for word in words], ["orth"])
    with pytest.raises(
        ValueError, match=r"CRF987: The feature function 'my\.features' failed for the word ',': ZeroDiv"
    ):
        function(Doc(spacy.blank("en").vocab, words=["Ann", ",", "Bob"]))


PROGRAM_WORDS = [
    ("usaddress", "123 Main St, Chicago IL 60601", "123|Main|St,|Chicago|IL|60601"),
    ("usaddress", " - 1 (Rear)  Main St. ;; Apt #5,\nX &amp; Y", "1|(Rear)|Main|St.|Apt|#|5,\n|X|&|Y"),
    ("usaddress", "Oak , Elm", "Oak|Elm"),
    ("usaddress", " , ", ""),
    ("usaddress", "", ""),
    (
        "probablepeople",
        "Dr. Mary Ann O'Neil, Jr. C/O 'Bob' & Co/Lee ;",
        "Dr.|Mary|Ann|O'Neil,|Jr.|C/O|'Bob'|&|Co|/|Lee",
    ),
]


@pytest.mark.parametrize("program, text, words", PROGRAM_WORDS)
def test_words_are_those_of_the_program(program, text, words, tmp_path):
    """spaCy's tokens, without commas, gave other fields."""
    nlp = spacy.blank(
        "en", config={"nlp": {"tokenizer": {"@tokenizers": "spacy_crf.ProgramTokenizer.v1", "program": program}}}
    )
    nlp.to_disk(tmp_path)
    doc = spacy.load(tmp_path)(text)
    assert [token._.crf_word for token in doc] == [word for word in words.split("|") if word]
    assert doc.text == (text if words else "")
    of_token = WORDS_OF[program].of_token
    assert [of_token(token.text) for token in doc] == [token._.crf_word for token in doc]


@pytest.mark.parametrize("program, text, words", PROGRAM_WORDS)
def test_the_program_finds_these_words(program, text, words):
    assert pytest.importorskip(program).tokenize(text) == [word for word in words.split("|") if word]


def test_fields_are_those_of_usaddress(tmp_path):
    usaddress = pytest.importorskip("usaddress")
    model = read_crfsuite(Path(usaddress.MODEL_PATH).read_bytes(), "usaddress")
    nlp = make_pipeline(model, ["orth"], "usaddress:tokens2features", entities=True, program="usaddress")
    for text in ("123 Main St, Chicago IL 60601", "PO Box 12 , Oak Park, (IL)", "1 W  Elm St. Apt #5;", ",", ""):
        fields = {label: field.text for label, field in nlp(text)._.crf_fields.items()}
        assert fields == usaddress.tag(text)[0]


# ---------------------------------------------------------------------------------------------------------- entities


@pytest.mark.parametrize("outside", ["C", "O"])
def test_models_are_imported_as_entities(outside, tmp_path):
    """Runs of one label are the entities, whether the model has a label for no entity or not."""
    model, tagger = crfsuite_model(of_neighbours, tmp_path / "model", labels=["A", "B", outside])
    native = find_words(model, f"{HERE}:spelling", EDGES, None)
    nlp = make_pipeline(model, ["orth"], None, native=native, word_features=f"{HERE}:spelling", entities=True)
    ner = nlp.get_pipe("crf_ner")
    docs = [Doc(nlp.vocab, words=words) for words in [*random_words(60, 2), ["of"], []]]
    rows = {"imported": lambda doc: of_neighbours([token.text for token in doc])}
    assert compare(nlp, model, docs[:-1], lambda doc, rows: tagger.tag(rows), rows).different == 0
    order = [ner.annotation.tag_labels().index(label) for label in model.labels]
    for doc in docs[:10]:
        tagger.set(rows["imported"](doc))
        marginals, tags = ner.marginals(doc)
        expected = [[tagger.marginal(label, t) for label in model.labels] for t in range(len(doc))]
        assert marginals[:, order] == pytest.approx(np.array(expected), abs=1e-5)
        assert marginals[:, [n for n in range(len(tags)) if n not in order]] == pytest.approx(0, abs=1e-12)
        labels = tagger.tag()
        found = nlp(doc.copy())
        assert [token.ent_type_ or "O" for token in found] == labels
        assert len(found.ents) == sum(a != b and a != "O" for a, b in zip(labels, [None, *labels]))
        assert ner.log_probability(doc, found.ents) == pytest.approx(np.log(tagger.probability(labels)), abs=1e-4)


def test_rules_count_entities(tmp_path):
    """usaddress raises an error for an address with a label in two places."""
    model, tagger = crfsuite_model(of_neighbours, tmp_path / "model")
    native = find_words(model, f"{HERE}:spelling", EDGES, None)
    nlp = make_pipeline(model, ["orth"], None, native=native, word_features=f"{HERE}:spelling", entities=True)
    nlp.get_pipe("crf_ner").add_rule({"rule": "at_most", "label": "*", "n": 1})
    repeated = 0
    for words in random_words(40, 4):
        labels = tagger.tag(of_neighbours(words))
        runs = [label for label, before in zip(labels, [None, *labels]) if label != before]
        doc = nlp(Doc(nlp.vocab, words=words))
        assert len({ent.label for ent in doc.ents}) == len(doc.ents) and all(token.ent_type for token in doc)
        if len(runs) == len(set(runs)):
            assert [token.ent_type_ for token in doc] == labels
        else:
            repeated += 1
    assert repeated


def test_tags_of_a_scheme_are_no_entities(tmp_path):
    model = model_of(["end:x"])
    model.labels = ["B-PER", "O"]
    write_crfsuite(model, tmp_path / "model")
    files = [tmp_path / "model", "--from", "crfsuite", "--output", tmp_path / "nlp"]
    status, output = run("import", *files, "--word-features", f"{HERE}:spelling", "--as", "entities")
    assert status == 1 and "CRF898" in output and "B-PER" in output
    status, output = run("import", *files, "--word-features", f"{HERE}:spelling", "--as", "spans")
    assert status == 1 and "CRF020" in output
