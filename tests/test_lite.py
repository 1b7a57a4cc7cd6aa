"""Exports of small components, which `spacy_crf.lite` labels like the component itself."""

import ast
import contextlib
import gzip
import json
import math
import pickle
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.strings import hash_string
from spacy.tokens import Doc, DocBin, Span, Token
from spacy.training import Example, biluo_to_iob, iob_to_biluo
from thinc.api import Config
from typer.testing import CliRunner

from spacy_crf import __version__, lite
from spacy_crf.cli import app
from spacy_crf.features.lexemes import LEXEME_ATTRIBUTES
from spacy_crf.features.token_columns import ColumnReader
from spacy_crf.lite import features as lite_features
from spacy_crf.migrate.lite import ENGLISH_NUMBERS, export_lite, write_lite
from spacy_crf.migrate.pipeline import weights_of
from spacy_crf.migrate.wapiti_export import export_wapiti
from spacy_crf.schemes import SCHEMES
from tests.components import FEATURES
from tests.migrate.test_templates import DATA
from tests.pipeline.test_crf_ner import train
from tests.test_package import ROOT
from tests.test_size import n_statements
from tests.util import NER_TEXTS, TAG_TEXTS, ner_examples, tag_examples

WORDS = [
    "Ann",
    "Lee",
    "Bob",
    "Paris",
    "New",
    "York",
    "Acme",
    "Corp",
    "in",
    "the",
    "left",
    ".",
    "x-9",
    "B-52s",
    "1,000",
    "é",
]
WORDS += ["ÉTÉ", "ﬁ", "新", "McDonald", "--", "$", "$$", "^", "US$", "^x", "(", "second", "ORTH", "PERSON"]
ODD = [
    *WORDS,
    "",
    " ",
    "ß",
    "ǅ",
    "İ",
    "a" * 120,
    "٣",
    "½",
    "Ⅷ",
    "ªx",
    "a\u0301",
    "12/3",
    "+4.5",
    "3rd",
    "x@y.com",
    "''",
    "🙂",
]

READER = Path(lite.__file__).parent


def some_texts(n, seed=0, words=WORDS):
    rng = random.Random(seed)
    return [[], ["Paris"], *([rng.choice(words) for _ in range(rng.randint(1, 9))] for _ in range(n))]


def exported(nlp, path, form="npz", **settings):
    """The only component of a pipeline, exported."""
    write_lite(export_lite(nlp, **settings), path, form)
    [component] = lite.load(path).components.values()
    return component


def both(nlp, model, texts):
    """The spans that the component finds, and those that its export finds, with their probabilities."""
    [(_, pipe)] = nlp.pipeline
    pipe.cfg["confidence"] = True
    docs = [*nlp.pipe(Doc(nlp.vocab, words=words) for words in texts)]
    ours = [{(span.start, span.end, span.label_): span._.crf_prob for span in doc.ents} for doc in docs]
    return ours, [{tuple(entity[:3]): entity.prob for entity in found} for found in model.entities_all(texts)]


def assert_same(nlp, model, texts):
    for ours, theirs in zip(*both(nlp, model, texts), strict=True):
        assert theirs == pytest.approx(ours, abs=1e-6)


def templates(*lines, padding=True, transitions=(), **more):
    features = {"@misc": "spacy_crf.features.v1", "templates": [*lines], "padding": padding}
    return {"model": {"emissions": {"features": {**features, "transitions": [*transitions]}, **more}}}


def make(factory, config=None, examples=None, **initialize):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=config or {})
    nlp.config["initialize"]["components"][factory] = initialize
    train(nlp, examples or ner_examples(nlp))
    return nlp


# ------------------------------------------------------------------------------------------------- as the component


LONG = ["lower[-2..2]", "ngrams3[0]", "if:is_title[-1..1]", "lower[-1]|lower[0]", "suffix3[0]|shape[1]", "is_upper[1]"]


@pytest.mark.parametrize("form", ["npz", "json"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {**templates(*LONG), "scheme": "BILUO", "min_prob": 0.3},
        {**templates(*LONG, padding=False), "scheme": "IO", "min_prob": {"PER": 0.5, "*": 0.1}},
        {
            **templates(*LONG, padding={"before": ["b1", "b2"], "behind": [".", "b3"]}, possible_states=True),
            "scheme": "IOB1",
        },
        {**templates("shape[0]", transitions=["lower[0]", "bias"]), "scheme": "BIO"},
    ],
)
def test_entities_of_a_chain(config, form, tmp_path):
    nlp = make("crf_ner", config)
    assert_same(nlp, exported(nlp, tmp_path / "model", form), some_texts(60))


def test_many_texts_are_labelled_as_one(tmp_path):
    model, texts = exported(make("crf_ner"), tmp_path / "model"), some_texts(300)
    for together, alone in zip(model.entities_all(texts), map(model.entities, texts)):
        assert [e[:3] for e in together] == [e[:3] for e in alone]
        assert [e.prob for e in together] == pytest.approx([e.prob for e in alone])
    assert model.tag_all(texts) == [model.tag(text) for text in texts]
    assert model.tag_all([]) == model.tag([]) == model.entities([]) == []


def test_tags_marginals_and_the_best_labellings_of_a_tagger(tmp_path):
    nlp = spacy.blank("en")
    nlp = make("crf_tagger", templates(*LONG), tag_examples(nlp))
    tagger, model = nlp.get_pipe("crf_tagger"), exported(nlp, tmp_path / "model")
    for words in some_texts(30, words=[word.split("/")[0] for text in TAG_TEXTS for word in text.split()] + ODD[:9]):
        doc = Doc(nlp.vocab, words=words)
        probabilities, names = tagger.marginals(doc)
        assert model.tags == [*names] and model.marginals(words) == pytest.approx(probabilities, abs=1e-6)
        assert model.tag(words) == [token.tag_ for token in nlp(doc)]
        best = model.n_best(words, 3)
        assert best[0][1] == model.tag(words) and len(best) == min(3, len(names) ** len(words))
        assert [p for p, _ in best] == pytest.approx([p for p, _ in tagger.n_best(Doc(nlp.vocab, words=words), 3)])
    with pytest.raises(lite.LiteError, match=r"no entities\. Take tag"):
        model.entities(["a"])
    with pytest.raises(lite.LiteError, match=r"classify does not fit a model of words\. Take tag"):
        model.classify(["a"])


@pytest.mark.parametrize("scheme", ["IO", "BIO", "IOB1", "BILUO"])
def test_n_best_of_entities(scheme, tmp_path):
    nlp = make("crf_ner", {**templates("lower[0]", "shape[0]"), "scheme": scheme})
    ner, model = nlp.get_pipe("crf_ner"), exported(nlp, tmp_path / "model")
    for words in some_texts(8):
        ours = [p for p, _ in ner.n_best(Doc(nlp.vocab, words=words), 9)]
        found = model.n_best(words, 9)
        assert [p for p, _ in found] == pytest.approx(ours, abs=1e-6)
        assert len({tuple(tags) for _, tags in found}) == len(found)


def test_words_may_have_the_marks_of_ngrams(tmp_path):
    """U+E000 inside of a word, an icon of a font, was taken for its beginning."""
    nlp = make("crf_ner")
    texts = [["\ue000Paris"], ["Bob\ue001", "left", "Pa\ue000ris"]]
    assert_same(nlp, exported(nlp, tmp_path / "model"), texts)


@pytest.mark.parametrize("form", ["npz", "json"])
def test_gazetteers_and_clusters(form, tmp_path):
    phrases = ["New York", "New", "Acme Corp left", {"text": "york", "label": "city"}, "Corp left Paris", "ORTH"]
    (tmp_path / "places.jsonl").write_text("\n".join(map(json.dumps, phrases)), encoding="utf8")
    paths = ["0011\tann\t5", "0011\tbob\t4", "01\tNew\t3", "1101101\tparis\t3", "0010\tORTH\t1", "11010\tx-0\t1"]
    (tmp_path / "paths").write_text("\n".join(paths), encoding="utf8")
    config = templates("in:places[-1..1]", "cluster[0]", "cluster4[-1..1]", "in:places[0]|cluster6[0]", padding=True)
    lists = {"gazetteers": {"places": str(tmp_path / "places.jsonl")}, "clusters": str(tmp_path / "paths")}
    nlp = make("crf_ner", config, **lists)
    words = [*WORDS[:10], "YORK", "ORTH", "x-9", "left", "NEW"]
    assert_same(nlp, exported(nlp, tmp_path / "model", form), some_texts(80, words=words))


EVERY_PLACE = [
    "seg.length",
    "seg.lower",
    "seg.shape|seg.length",
    "seg.first:lower[-1..1]|seg.last:shape",
    "seg.after:lower",
]
EVERY_PLACE += [
    "seg.last:ngrams2",
    "seg.contains:shape",
    "seg.count:lower",
    "seg.first:suffix2",
    "seg.before:lower",
    "seg.in:places",
]
RULES = {
    "pairs": [
        {"rule": "forbid_pair", "labels": ["O", "GPE"]},
        {"rule": "follows", "label": "ORG", "after": ["O", "PER"]},
    ],
    "soft": [{"rule": "at_most", "label": "PER", "n": 1, "weight": 2.0}, {"rule": "length", "label": "GPE", "max": 1}],
    "hard": [{"rule": "at_most", "label": "*", "n": 1}, {"rule": "order", "labels": ["PER", "GPE"]}],
    "needs": [{"rule": "requires", "if": ["PER"], "then": ["GPE"], "per": "sentence"}],
}
AT_LEAST = [{"rule": "at_least", "label": "GPE", "n": 1}]  # among unknown words several best paths are worth the same


ON_TOKENS = {"rule": "never_on", "name": "never", "label": "PER", "phrases": ["Bob"]}
ONCE = {"rule": "at_most", "label": "*", "n": 1, "name": "once"}
MANY = {"rule": "at_most", "label": "*", "n": 4}


@pytest.mark.parametrize("config", [{}, {"min_prob": 0.4}, {"every place": True}])
def test_segments(config, tmp_path):
    (tmp_path / "places.jsonl").write_text('{"text": "New York", "label": "city"}\n"Paris"\n"Acme Corp"\n')
    if config.pop("every place", False):
        features = {"@misc": "spacy_crf.segment_features.v1", "templates": EVERY_PLACE}
        config = {"model": {"segments": {"features": features}}}
        nlp = make("semicrf_ner", config, gazetteers={"places": str(tmp_path / "places.jsonl")})
    else:
        nlp = make("semicrf_ner", config)
    model, texts = exported(nlp, tmp_path / "model"), some_texts(40)
    assert_same(nlp, model, texts)
    ner = nlp.get_pipe("semicrf_ner")
    for words in texts[:8]:
        ours = [p for p, _ in ner.n_best(Doc(nlp.vocab, words=words), 5)]
        assert [p for p, _ in model.n_best(words, 5)] == pytest.approx(ours, abs=1e-6)


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("rules", RULES)
def test_rules_that_are_masks_or_automata(factory, rules, tmp_path):
    config = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": RULES[rules]}}
    nlp = make(factory, config)
    assert_same(nlp, exported(nlp, tmp_path / "model"), some_texts(60))


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_a_text_that_can_not_keep_the_rules_has_labellings(factory, tmp_path, caplog):
    """Tags and entities had dropped the rules; there were no best labellings, and the marginals were NaN."""
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "exactly", "label": "PER", "n": 2}]}
    nlp = make(factory, {"constraints": rules})
    model, ner = exported(nlp, tmp_path / "model"), nlp.get_pipe(factory)
    for words in (["Paris"], ["Ann", "saw", "Bob"]):
        doc = Doc(nlp.vocab, words=words)
        assert_same(nlp, model, [words])
        ours = [p for p, _ in ner.n_best(doc, 3)]
        assert ours and [p for p, _ in model.n_best(words, 3)] == pytest.approx(ours, abs=1e-6)
        assert model.tag(words) == model.n_best(words, 1)[0][1]
        if factory == "crf_ner":
            np.testing.assert_allclose(model.marginals(words), ner.marginals(doc)[0], atol=1e-6)
    assert "CRFW601" in caplog.text  # of the component, for the one word


@pytest.mark.parametrize("rules", [None, *RULES.values(), AT_LEAST], ids=["none", *RULES, "at least"])
@pytest.mark.parametrize("factory, scheme", [*(("crf_ner", name) for name in SCHEMES), ("semicrf_ner", None)])
def test_decoding_by_spans(factory, scheme, rules, tmp_path):
    """`crf fit` makes such components: the most valuable set of spans, by a threshold for all labels or for each."""
    config = {"decode": "spans", "min_prob": 0.3, **({"scheme": scheme} if scheme else {})}
    if rules is not None:
        config["constraints"] = {"@misc": "spacy_crf.constraints.v1", "rules": rules}
    nlp, texts = make(factory, config), some_texts(30)
    [(_, pipe)], found = nlp.pipeline, {}
    for form, least in (("npz", 0.6), ("json", 0.3), ("npz", {"PER": 0.5, "*": 0.1}), ("npz", 0.0)):
        pipe.cfg["min_prob"] = least
        model = exported(nlp, tmp_path / "model", form)
        assert_same(nlp, model, texts)
        found[str(least)] = model.entities_all(texts)
        if least == 0.3:
            assert model.tag_all(texts) == [model.tag(text) for text in texts]
            for words, tags, entities in zip(texts, model.tag_all(texts), found["0.3"]):
                spelled = Doc(
                    nlp.vocab, words=words, ents=biluo_to_iob(tags if scheme == "BILUO" else iob_to_biluo(tags))
                )
                assert [(span.start, span.end, span.label_) for span in spelled.ents] == [e[:3] for e in entities]
    assert found["0.6"] != found["0.3"] != found["0.0"]


def test_spans_of_a_tagger(tmp_path):
    """Its spans are tokens, and those below the threshold get no tag."""
    nlp = spacy.blank("en")
    nlp = make("crf_tagger", {**templates(*LONG), "decode": "spans", "min_prob": 0.4}, tag_examples(nlp))
    model, texts = exported(nlp, tmp_path / "model"), some_texts(60, words=["the", "dog", "barks", *ODD[:9]])
    tags = [[token.tag_ for token in nlp(Doc(nlp.vocab, words=words))] for words in texts]
    assert model.tag_all(texts) == tags and any("" in some for some in tags)


@pytest.mark.parametrize("architecture", ["MaxEntText", "NaiveBayes"])
def test_texts_with_one_label(architecture, tmp_path):
    texts = {
        "book a table for two": "book",
        "play some jazz": "play",
        "play the next song": "play",
        "a table in town": "book",
    }
    nlp = spacy.blank("en")
    examples = [Example.from_dict(nlp.make_doc(text), {"cats": {label: 1.0}}) for text, label in texts.items()]
    features = {"@misc": "spacy_crf.text_features.v1"}
    config = {
        "model": {
            "@architectures": f"spacy_crf.{architecture}.v1",
            "emissions": {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features},
        }
    }
    nlp = make("crf_textcat", config, examples)
    model = exported(nlp, tmp_path / "model", "json")
    for words in [*map(str.split, texts), [], ["table", "New", "song"]]:
        found = model.classify(words)
        assert found == pytest.approx(nlp(Doc(nlp.vocab, words=words)).cats, abs=1e-6)
        assert [*found.values()] == sorted(found.values(), reverse=True)


def test_rows_of_columns(tmp_path):
    nlp = make("crf_ner", templates("lower[0]", "tag[-1..1]", "tag[0]|shape[0]"))
    model = exported(nlp, tmp_path / "model", columns=["tag", "orth"])
    doc = Doc(nlp.vocab, words=["Ann", "left", "Paris"], tags=["NNP", "VBD", "NNP"])
    ents = {(span.start, span.end, span.label_) for span in nlp(doc).ents}
    rows = [["NNP", "Ann", "x"], ["VBD", "left", "x"], ["NNP", "Paris", "x"]]
    assert {entity[:3] for entity in model.entities(rows)} == ents and model.tag_rows(rows) == model.tag(rows)
    with pytest.raises(lite.LiteError, match="Row 2 is 1 columns, and the model reads the columns tag, orth"):
        model.tag_rows([["NNP", "Ann"], ["VBD"]])
    with pytest.raises(lite.LiteError, match="Row 1 is a word, and the model reads the columns"):
        model.tag(["Ann"])
    with pytest.raises(lite.LiteError, match=r"one string\. Split it"):
        model.tag("Ann left")


# -------------------------------------------------------------------------------------------------- whole pipelines


def small_pipeline(*factories, **configs):
    """A pipeline with components that are trained one after the other, each on what the earlier ones predict."""
    nlp = spacy.blank("en")
    for factory in factories:
        nlp.add_pipe(factory, config=configs.get(factory, {}))
    examples = []
    for example in ner_examples(nlp):
        doc = example.reference
        for token in doc:
            token.tag_ = "NNP" if token.text.istitle() else "X"
            token.pos_ = "PROPN" if token.text.istitle() else "X"
            token.is_sent_start = token.i == 0 or doc[token.i - 1].text in ".!?"
        first_words = [Span(doc, span.start, span.start + 1, label="FIRST") for span in doc.ents if len(span) > 1]
        doc.spans["sc"] = [*doc.ents, *first_words]
        doc.cats = {"first": float(doc[0].text < "M"), "last": float(doc[0].text >= "M")}
        examples.append(example)
    nlp.initialize(lambda: examples)
    annotates = [name for name in factories if name not in ("crf_textcat",)]
    for _ in range(8):
        nlp.update(examples, sgd=nlp._optimizer, annotates=annotates)
    return nlp


LONG_TEXTS = [
    "Ann Lee left Paris. Bob saw  New York! He is in the U.S. Acme Corp. left\n\nParis",
    "",
    " ",
    '... "Quoted." (Bob Lee)? x-9',
    " ".join(NER_TEXTS),
]


def of_spacy(doc, finds_sentences):
    """The tokens, sentences and labels of a Doc, in the form of `Parsed.to_json`."""
    spans = {}
    for key, group in doc.spans.items():
        scores = group.attrs["scores"]
        spans[key] = [(s.start_char, s.end_char, s.label_, pytest.approx(p, abs=1e-6)) for s, p in zip(group, scores)]
    return {
        "tokens": [(token.idx, token.text) for token in doc],
        "sentences": [(s.start_char, s.end_char) for s in doc.sents] if finds_sentences else [],
        "entities": [(s.start_char, s.end_char, s.label_, pytest.approx(s._.crf_prob, abs=1e-6)) for s in doc.ents],
        "spans": spans,
        "cats": pytest.approx(doc.cats, abs=1e-6),
        "tags": [(token.tag_, token.pos_) for token in doc],
    }


def of_lite(parsed):
    found = parsed.to_json()
    assert json.loads(json.dumps(found)) == found
    place = ["start", "end", "label", "prob"]
    return {
        "tokens": [(token["start"], token["text"]) for token in found["tokens"]],
        "sentences": [(sentence["start"], sentence["end"]) for sentence in found["sentences"]],
        "entities": [tuple(map(span.get, place)) for span in found["entities"]],
        "spans": {key: [tuple(map(span.get, place)) for span in spans] for key, spans in found["spans"].items()},
        "cats": found["cats"],
        "tags": [(token.get("tag", ""), token.get("pos", "")) for token in found["tokens"]],
    }


READS_TAGS = templates("lower[0]", "tag[-1..1]", "pos[0]|shape[0]")
READS_ENTITIES = templates("lower[0]", "ent_type[-1..1]", "ent_iob[0]|shape[0]", "sent_start[0]")
READS_TAG = {"model": {"segments": {"features": {"templates": ["seg.lower", "seg.first:tag[-1]"]}}}}
READS_TAG["model"]["segments"]["features"]["@misc"] = "spacy_crf.segment_features.v1"
PIPELINES = {
    "sentencizer": [("sentencizer", {}), ("crf_ner", {}), ("crf_textcat", {})],
    "crf_senter": [("crf_ner", {}), ("crf_senter", {}), ("crf_tagger", READS_ENTITIES)],
    "segments": [("sentencizer", {}), ("crf_tagger", {}), ("semicrf_ner", READS_TAG)],
    "set": [("crf_tagger", {"attribute": ["tag", "pos"]}), ("crf_ner", READS_TAGS), ("crf_spancat", {})],
    "groups": [("sentencizer", {}), ("crf_spancat", {"groups": "auto", "max_positive": 1, "threshold": 0.3})],
    "thresholds": [("crf_senter", {"decode": "spans", "min_prob": 0.4}), ("crf_tagger", {"min_prob": 0.4})],
}


@pytest.mark.parametrize("form", ["npz", "json.gz"])
@pytest.mark.parametrize("name", PIPELINES)
def test_texts_are_parsed_as_in_the_pipeline(name, form, tmp_path):
    factories = dict(PIPELINES[name])
    nlp = small_pipeline(*factories, **factories)
    for _, pipe in nlp.pipeline:
        getattr(pipe, "cfg", {})["confidence"] = True
    path = tmp_path / f"model.{form}"
    write_lite(export_lite(nlp), path, form[:4].removesuffix("."))
    parse = lite.load(path)
    assert [*parse.components] == nlp.pipe_names
    finds_sentences = any(component.writes == "sents" for component in parse.components.values())
    expected = [of_spacy(doc, finds_sentences) for doc in nlp.pipe(LONG_TEXTS)]
    assert [*map(of_lite, parse.batch(LONG_TEXTS))] == expected
    assert [of_lite(parse(text)) for text in LONG_TEXTS] == expected
    words = [[token.text for token in nlp.make_doc(text)] for text in LONG_TEXTS]
    docs = nlp.pipe(Doc(nlp.vocab, words=text) for text in words)
    assert [*map(of_lite, parse.batch(words))] == [of_spacy(doc, finds_sentences) for doc in docs]


def ruled(rules):
    return {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": rules}}


@pytest.mark.parametrize(
    "names, configs, options, reason",
    [
        (["merge_entities", "crf_ner"], {}, {}, r"'merge_entities' has the factory merge_entities.*by --component"),
        (
            ["sentencizer", "crf_senter"],
            {},
            {},
            r"'crf_senter' has 'sents' to write, which the component 'sentencizer'",
        ),
        (["crf_spancat"], {"nested": True}, {}, r"'crf_spancat' has nested spans"),
        (
            ["sentencizer", "crf_ner"],
            ruled([ONCE]),
            {},
            r"'crf_ner' has the rule 'once' \(at_most\) of whole texts.*per = \"sentence\"",
        ),
        (
            ["crf_tagger", "crf_ner"],
            READS_TAGS,
            {"components": ["crf_ner"]},
            r"'crf_ner' .*reads 'tag'.*--columns orth,tag",
        ),
    ],
)
def test_what_pipelines_can_not_export_is_told(names, configs, options, reason):
    nlp = spacy.blank("en")
    for name in names:
        nlp.add_pipe(name, config=configs if name == names[-1] else {})
    examples = ner_examples(nlp)
    for example in examples:
        doc = example.reference
        doc.spans["sc"] = doc.ents
        for token in doc:
            token.tag_ = "X"
            token.is_sent_start = token.i == 0
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=nlp._optimizer, annotates=names[:-1])  # templates without weights are not exported
    with pytest.raises(ValueError, match="CRF791: Component " + reason):
        export_lite(nlp, **options)


def test_rules_of_sentences_are_exported(tmp_path):
    nlp = small_pipeline("sentencizer", "crf_ner", crf_ner=ruled([{**ONCE, "per": "sentence"}]))
    nlp.get_pipe("crf_ner").cfg["confidence"] = True
    write_lite(export_lite(nlp), tmp_path / "model.npz", "npz")
    parse = lite.load(tmp_path / "model.npz")
    assert [*map(of_lite, parse.batch(LONG_TEXTS))] == [of_spacy(doc, True) for doc in nlp.pipe(LONG_TEXTS)]


# ------------------------------------------------------------------------------------------------------- attributes


def test_every_attribute_has_the_same_values_as_in_spacy():
    nlp = spacy.blank("en")
    words = [word for word in ODD if word] + [token.text for text in NER_TEXTS for token in nlp.make_doc(text)]
    content = {"stop_words": [*nlp.Defaults.stop_words], "columns": ["orth"], "padding": True, "tables": {}}
    content |= {"gazetteers": {}, "clusters": {}, **ENGLISH_NUMBERS}
    getters = lite_features.Features(content, 1).getters
    names = [name for name in LEXEME_ATTRIBUTES if not name.startswith("cluster") and "like_url" not in name]
    assert set(names) <= getters.keys()
    single = [name for name in names if not name.startswith("ngrams")]
    reader = ColumnReader(single, [], {}, {}, clusters={}, vectors=None, word_functions={}, reach=0, padding=True)
    reader.keep_names(True)
    columns = reader.read([Doc(nlp.vocab, words=words)])
    for name, values in zip(reader.table.attributes, columns.table.columns[columns.lexemes].T):
        absent = values == 1 << 63
        texts = reader.texts_of(name, values, nlp.vocab)
        expected = [lite_features.ABSENT if missing else text for missing, text in zip(absent.tolist(), texts)]
        assert [getters[name](word) for word in words] == expected, name
    for word in words:
        assert lite_features.hash_text(word) == hash_string(word)


# ------------------------------------------------------------------------------------------------------- the command


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Do not change: the folder of a pipeline for all tests below."""
    path = tmp_path_factory.mktemp("lite") / "model"
    make("crf_ner").to_disk(path)
    return path


def test_export(folder, tmp_path):
    data = tmp_path / "data.spacy"
    DocBin(docs=[example.reference for example in ner_examples(spacy.blank("en"))]).to_disk(data)
    sizes = []
    for name, *options in (
        ["a.npz", "--with-reader"],
        ["a.json"],
        ["a.json.gz", "--bits", 16],
        ["b", "--to", "npz", "--prune", 0.05, "--bits", 16],
    ):
        code, output = run("export", folder, tmp_path / name, "--check", data, *options)
        assert code == 0, output
        assert "crf_ner: 6 texts: 0 get other labels; F1 100.00 before, 100.00 after" in output
        sizes.append((tmp_path / name).stat().st_size)
    assert sizes[0] < sizes[1] and sizes[3] < sizes[0]
    for path in READER.glob("*.py"):
        assert (tmp_path / "lite" / path.name).read_bytes() == path.read_bytes()
    assert run("export", folder, tmp_path / "c.npz", "--to", "xml")[0] == 1


@pytest.mark.parametrize(
    "config, reason",
    [
        (templates("lower[0]", "ext:lite_test[0]"), "the template ext:lite_test[0], which reads 'ext:lite_test'"),
        (templates("lower[0]", "dep[-1]"), "the template dep[-1], which reads 'dep'.*--columns orth,dep"),
        (templates("lower[0]", "like_url[0]"), "the template like_url[0], which reads 'like_url'"),
        (templates("ngrams2[0]|lower[1]"), "the template ngrams2[0]|lower[1], which joins n-grams"),
        ({"decode": "posterior"}, 'decode = "posterior"'),
        (
            {"model": {"emissions": {"@architectures": "spacy_crf.HashedEmissions.v1", "features": FEATURES}}},
            "hashed features",
        ),
        ({"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": [ON_TOKENS]}}, "the rule 'never' (never_on)"),
        (
            {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": [MANY]}},
            "rules whose automata.*states together",
        ),
        (
            {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": [ONCE], "max_states": 3}},
            "the rule 'once', which its probabilities leave out",
        ),
    ],
)
def test_what_lite_can_not_compute_is_told(config, reason):
    if not Token.has_extension("lite_test"):
        Token.set_extension("lite_test", default="x")
    nlp = make("crf_ner", config)
    parts = map(re.escape, reason.split(".*"))
    with pytest.raises(ValueError, match="CRF791: Component 'crf_ner' has " + ".*".join(parts)):
        export_lite(nlp, ["crf_ner"])


def test_exports_take_a_component_and_known_columns(folder):
    nlp = spacy.load(folder)
    with pytest.raises(ValueError, match="CRF710"):
        export_lite(nlp, ["tagger"])
    for settings in ({"columns": ["orth", "x"]}, {"columns": ["tag"]}, {"bits": 8}, {"prune": -1.0}):
        with pytest.raises(ValueError, match="CRF020: crf export"):
            export_lite(nlp, **settings)


# ------------------------------------------------------------------------------------------------------------- files

STATES = {
    "tag_of": [0, 1],
    "source": [0, 0, 1, 1],
    "target": [0, 1, 0, 1],
    "scores": [0.0, 0.0, 0.0, 1.0],
    "first": [0.0, 0.0],
    "last": [0.0, 0.0],
}
TABLE = {
    "templates": [{"name": "lower[0]", "keys": ["oslo"], "parts": [["lower", 0]]}],
    "counts": [1],
    "columns": [1],
    "weights": [1.0],
}
BY_HAND = {
    "format": "spacy_crf.lite",
    "version": 4,
    "made_by": "by hand",
    "lang": "en",
    "columns": ["orth"],
    "tokenizer": None,
    "components": [
        {
            "name": "crf_ner",
            "kind": "chain",
            "writes": "ents",
            "labels": ["GPE"],
            "scheme": "IO",
            "letters": "I",
            "columns": ["orth"],
            "min_prob": [0.7],
            "states": STATES,
            "readers": [{"padding": True, "tables": {"states": TABLE}}],
            "gazetteers": {},
            "clusters": {},
            "stop_words": [],
            "number_words": [],
            "number_endings": [],
        }
    ],
}


def test_an_export_written_by_hand_is_read(tmp_path):
    """Without `choice` a model labels by the best path."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(BY_HAND), encoding="utf8")
    parse = lite.load(path)
    model = parse.components["crf_ner"]
    scores = {"O": 0.0, "I-GPE": 1.0}  # of "Oslo" alone
    total = sum(map(math.exp, scores.values()))
    assert model.marginals(["Oslo"])[0] == pytest.approx([math.exp(score) / total for score in scores.values()])
    assert model.entities(["Oslo"]) == [(0, 1, "GPE", pytest.approx(math.e / total))]
    # Of "Oslo Oslo" the best path is one span of two tokens, with exp(3) of 1 + 2 e + exp(3)
    probability = pytest.approx(math.exp(3) / (1 + 2 * math.e + math.exp(3)))
    assert model.entities(["Oslo", "Oslo"]) == [(0, 2, "GPE", probability)]
    assert model.tag(["x"]) == ["O"]
    assert parse.words(["Oslo", "Oslo"]).entities == [(0, 9, "Oslo Oslo", "GPE", probability, "crf_ner")]
    with pytest.raises(lite.LiteError, match=r"holds no tokenizer\. Take parse\.words"):
        parse("to Oslo")


# ------------------------------------------------------------------------------------------------------ broken files


def changed(path, place, value):
    content = json.loads(path.read_text(encoding="utf8"))
    *folders, last = place
    inner = content
    for folder in folders:
        inner = inner[folder]
    inner[last] = value
    path.write_text(json.dumps(content), encoding="utf8")


COMPONENT = ("components", 0)
READER_STATES = (*COMPONENT, "readers", 0, "tables", "states")


@pytest.mark.parametrize(
    "place, value, reason",
    [
        (["version"], 3, "version 3 of the format, and this reader reads version 4. Take the reader"),
        (["format"], "x", "no export of spacy_crf"),
        ([*COMPONENT, "kind"], "tree", "components of the kind 'tree'. Take a newer one"),
        ([*READER_STATES, "weights", 0], math.nan, "a number is nan"),
        ([*READER_STATES, "weights", 0], None, "a number is -inf"),
        ([*READER_STATES, "columns", 0], 99, "a number is 99.0, out of the range from 0 to 12"),
        ([*READER_STATES, "columns", 0], -1, "out of the range"),
        ([*READER_STATES, "counts"], [1], "shape"),
        ([*READER_STATES, "templates", 0, "parts", 0, 0], "colour", "reads 'colour', which this reader does not know"),
        ([*COMPONENT, "states", "tag_of", 0], 77, "a number is 77.0"),
        ([*COMPONENT, "states", "source", 0], 77, "a number is 77.0"),
        ([*COMPONENT, "states", "choice"], {}, "cut off or no export"),
        ([*COMPONENT, "states", "choice"], {"tag_of": [4]}, "out of the range from 0 to 3"),
        ([*COMPONENT, "states"], None, "cut off or no export"),
        ([*COMPONENT, "labels"], 3, "cut off or no export"),
    ],
)
def test_a_broken_export_is_told(folder, tmp_path, place, value, reason):
    path = tmp_path / "model.json"
    write_lite(export_lite(spacy.load(folder)), path, "json")
    lite.load(path)
    changed(path, place, value)
    with pytest.raises(lite.LiteError, match=re.escape(reason)) as error:
        lite.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["model.npz", "model.json", "model.json.gz"])
def test_a_cut_export_is_told(folder, tmp_path, name):
    path = tmp_path / name
    write_lite(export_lite(spacy.load(folder)), path, name.split(".")[1])
    whole = path.read_bytes()
    for size in (0, 1, 2, 50, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(lite.LiteError, match="cut off or no export"):
            lite.load(path)
    for at in range(0, len(whole), len(whole) // 40):  # any other content, but no other error
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with contextlib.suppress(lite.LiteError):
            lite.load(path)("Ann")
    path.write_bytes(pickle.dumps({"format": lite.FORMAT}))
    with pytest.raises(lite.LiteError):
        lite.load(path)
    with pytest.raises(FileNotFoundError):
        lite.load(tmp_path / "nowhere")


def test_numbers_of_another_byte_order(folder, tmp_path):
    path = tmp_path / "model.npz"
    write_lite(export_lite(spacy.load(folder)), path, "npz")
    with np.load(path) as arrays:
        swapped = {name: arrays[name].astype(arrays[name].dtype.newbyteorder(">")) for name in arrays.files}
    np.savez(tmp_path / "swapped.npz", **swapped)
    texts = some_texts(20)
    swapped = [text.to_json() for text in lite.load(tmp_path / "swapped.npz").batch(texts)]
    assert swapped == [text.to_json() for text in lite.load(path).batch(texts)]


ALONE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "lite"):
            raise ImportError(f"{name} is neither NumPy nor of the standard library")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, ".")
import lite
parse = lite.load("model.npz")
print(*parse.components["crf_ner"].tag("Bob left Paris for Acme Corp .".split()), *parse("Bob left.").fields["PER"])
lite.load("model.json")
for module in list(sys.modules.values()):
    file = getattr(module, "__file__", None) or ""
    assert not file.endswith((".so", ".pyd")) or "numpy" in file or "lib-dynload" in file or "DLLs" in file, file
"""


def test_lite_needs_numpy_alone(folder, tmp_path):
    for name in ("model.npz", "model.json"):
        write_lite(export_lite(spacy.load(folder)), tmp_path / name, name[6:])
    shutil.copytree(READER, tmp_path / "lite", ignore=shutil.ignore_patterns("__pycache__"))
    result = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["U-PER", "O", "U-GPE", "O", "B-ORG", "L-ORG", "O", "Bob"]
    loaded = "import spacy_crf.lite, sys; assert not {'spacy', 'thinc', 'numba'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", loaded], check=True)


def test_lite_stays_small():
    sources = [path.read_text(encoding="utf8") for path in READER.glob("*.py")]
    assert sum(map(n_statements, sources)) <= 1_666
    assert len(sources) <= 7
    names = re.findall(r"^(?:from|import) (\S+)", "\n".join(sources), re.MULTILINE)
    imported = {name.partition(".")[0] for name in names}
    assert imported - sys.stdlib_module_names == {"numpy", ""}  # "" for those of its own


def test_the_distribution_holds_the_same_files(tmp_path):
    """Its setup.py copies them, and its tests pass without spaCy."""
    shutil.copytree(ROOT / "lite", tmp_path / "lite", ignore=shutil.ignore_patterns("js", "spacy_crf_lite"))
    shutil.copytree(READER, tmp_path / "spacy_crf" / "lite", ignore=shutil.ignore_patterns("__pycache__"))
    done = run_python(tmp_path / "lite", "setup.py", "--version")
    assert done.stdout.split()[-1] == __version__
    copies = {path.name: path.read_bytes() for path in (tmp_path / "lite" / "spacy_crf_lite").iterdir()}
    assert copies == {**{path.name: path.read_bytes() for path in READER.glob("*.py")}, "py.typed": b""}
    done = run_python(tmp_path / "lite", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_parser.py")
    assert done.returncode == 0, done.stdout


def run_python(folder, *arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_lite_runs_in_python_3_9():
    """Also where the plugin does not."""
    for path in READER.glob("*.py"):
        ast.parse(path.read_text(encoding="utf8"), feature_version=(3, 9))


# --------------------------------------------------------------------------------------------------- rows of columns


def test_tag_reads_and_writes_columns(folder, tmp_path):
    export = tmp_path / "model.npz"
    write_lite(export_lite(spacy.load(folder)), export, "npz")
    lines = ["Bob\tNNP", "left VBD", "Paris  NNP", "", "", "Ann\r", "Lee"]
    for model in (export, folder):
        result = CliRunner().invoke(app, ["tag", str(model)], input="\n".join(lines))
        assert result.exit_code == 0, result.output
        assert result.output == ("Bob\tNNP\tU-PER\nleft VBD\tO\nParis  NNP\tU-GPE\n\nAnn\tB-PER\nLee\tL-PER\n\n")
        options = ["--n-best", "2", "--marginals"]
        result = CliRunner().invoke(app, ["tag", str(model), *options], input="Bob\n\nAnn\nLee\n")
        blocks = [block.split("\n") for block in result.output.strip().split("\n\n")]
        assert [block[0][:4] for block in blocks] == ["# 0 ", "# 1 ", "# 0 ", "# 1 "]
        probability = float(blocks[0][0].split()[2])
        assert re.fullmatch(r"Bob\tU-PER/0\.\d{6}", blocks[0][1])
        assert float(blocks[0][1].partition("/")[2]) == pytest.approx(probability, abs=1e-5)
        assert CliRunner().invoke(app, ["tag", str(model)], input="\n \n").output == ""


@pytest.mark.skipif(not DATA.is_dir(), reason="the models of the benchmark data are not at hand (SPACY_CRF_DATA)")
@pytest.mark.parametrize(
    "program, output", [("crfpp", "crfpp_test_v2.out.gz"), ("wapiti", "wapiti_test_viterbi.out.gz")]
)
def test_imported_models_write_what_their_programs_write(program, output, tmp_path):
    name = "crfpp.model" if program == "crfpp" else "wapiti.model.gz"
    data = (DATA / name).read_bytes()
    (tmp_path / "model").write_bytes(gzip.decompress(data) if name.endswith(".gz") else data)
    options = ["--from", program, "--columns", "orth,tag", "--output", tmp_path / "pipeline"]
    assert run("import", tmp_path / "model", *options)[0] == 0
    models = [[tmp_path / "pipeline", "--columns", "orth,tag"]]
    if program == "crfpp":
        assert run("export", tmp_path / "pipeline", tmp_path / "model.npz", "--columns", "orth,tag")[0] == 0
        models.append([tmp_path / "model.npz"])
    text = gzip.decompress((DATA / "test.txt.gz").read_bytes()).decode("utf8")
    expected = []
    for line in gzip.decompress((DATA / output).read_bytes()).decode("utf8").splitlines():
        if not line.startswith("# "):  # crf_test -v2: its probability, and that of each tag
            expected.append(line.replace("\t", " ").split("/")[0] if program == "crfpp" else line.replace("\t", " "))
    for model in models:
        result = CliRunner().invoke(app, ["tag", *map(str, model)], input=text)
        found = result.output.replace("\t", " ").splitlines()
        assert [line.split(" ")[:4] for line in found if line] == [line.split(" ")[:4] for line in expected if line]
        assert found.count("") == 300


def test_tag_splits_at_tabs_and_blanks_alone(folder, tmp_path):
    """No-break spaces, ideographic spaces and separators of Unicode split words and ended sequences; the byte order mark was part
    of the first word, and the encoding that of the locale."""
    export = tmp_path / "model.npz"
    write_lite(export_lite(spacy.load(folder)), export, "npz")
    words = ["Bob", "10\u00a0000", "\u3000", "a\u2028b\x85c", "Zoë"]
    for model in (export, folder):
        for data in ("\n".join(words).encode("utf-8-sig"), "\r".join(words).encode(), "\r\n".join(words).encode()):
            result = CliRunner(charset="latin-1").invoke(app, ["tag", str(model)], input=data)
            assert result.exit_code == 0, result.output
            lines = result.stdout_bytes.decode("utf8").split("\n")
            assert [line.partition("\t")[0] for line in lines] == [*words, "", ""]
            assert lines[0] == "Bob\tU-PER"
    result = CliRunner().invoke(app, ["tag", str(export)], input="Zoë".encode("latin-1"))
    assert result.exit_code == 1 and "CRF701: the standard input, line 1" in result.output
    result = CliRunner().invoke(app, ["tag", str(folder)], input="Bob\tx\n\tx\n")  # it was spaCy's E031
    assert result.exit_code == 1
    assert "CRF701: the standard input, line 2: can't be read: the word in column 1 is empty" in result.output


def test_tag_of_segments_and_of_pipelines_with_columns(tmp_path):
    make("semicrf_ner").to_disk(tmp_path / "segments")
    make("crf_ner", templates("orth[0]", "tag[0]")).to_disk(tmp_path / "columns")
    code, output = run("export", tmp_path / "columns", tmp_path / "columns.npz", "--columns", "tag,orth")
    assert code == 0, output
    rows = "NNP Bob\nVBD left\nNNP Paris\n"
    for model, options in (("columns", ["--columns", "tag,orth"]), ("columns.npz", [])):
        arguments = ["tag", str(tmp_path / model), *options]
        assert CliRunner().invoke(app, arguments, input=rows).output == (
            "NNP Bob\tU-PER\nVBD left\tO\nNNP Paris\tU-GPE\n\n"
        )
        result = CliRunner().invoke(app, arguments, input=rows + "\nNNP Ann\nLee\n")
        assert (
            result.exit_code == 1
            and "CRF703: the standard input, line 6: has 1 columns, but 2 or more" in result.output
        )
    result = CliRunner().invoke(app, ["tag", str(tmp_path / "segments"), "--n-best", "1"], input="Ann\nLee\n")
    assert re.fullmatch(r"# 0 0\.\d+\nAnn\tB-PER\nLee\tI-PER\n\n", result.output)
    for options in (["--n-best", "-1"], ["--columns", "tag"], ["--columns", "orth,nothing"]):
        assert CliRunner().invoke(app, ["tag", str(tmp_path / "segments"), *options], input="Ann\n").exit_code == 1


def test_sets_of_chains_have_no_single_tags(tmp_path):
    """A set of a single chain decides by a threshold, too."""
    nlp = spacy.blank("en")
    pipe, examples = nlp.add_pipe("crf_spancat", config={"groups": "auto"}), ner_examples(nlp)
    for doc in (example.reference for example in examples):
        doc.spans["sc"] = doc.ents
    nlp.initialize(lambda: examples)
    assert len(pipe.chains) == 1
    nlp.to_disk(tmp_path / "model")
    assert "CRF710" in run("export", tmp_path / "model", tmp_path / "file", "--to", "crfsuite")[1]
    for options in ([], ["--n-best", "2"]):
        result = CliRunner().invoke(app, ["tag", str(tmp_path / "model"), *options], input="Ann\nLee\n")
        assert result.exit_code == 1 and "CRF710" in result.output and "one tag" in result.output


@pytest.mark.parametrize("options", [("--prune", 0.1), ("--bits", 16), ("--with-reader",), ("--columns", "orth,tag")])
@pytest.mark.parametrize("form", ["crfsuite", "wapiti"])
def test_options_of_other_formats_are_refused(options, form, folder, tmp_path):
    code, output = run("export", folder, tmp_path / "file", "--to", form, *options)
    assert code == 1 and "CRF020" in output and options[0] in output
    assert not [*tmp_path.iterdir()]


# ------------------------------------------------------------------------------------------------------------ Wapiti

PATTERNS = ["u:word=%x[0,0]", "*:before=%x[-1,0]/%x[0,1]", "b:tag=%x[0,1]", 'u:big=%t[0,0,"^\\u"]', "b"]


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_a_model_trained_on_patterns_is_exported_to_wapiti(factory, tmp_path, caplog):
    (tmp_path / "patterns").write_text("\n".join(PATTERNS) + "\n", encoding="utf8")
    written = run(
        *("import", tmp_path / "patterns", "--from", "wapiti", "--columns", "orth,tag", "--output", tmp_path / "f.cfg")
    )
    assert written[0] == 0, written[1]
    features = Config().from_disk(tmp_path / "f.cfg")["features"]
    examples = (ner_examples if factory == "crf_ner" else tag_examples)(spacy.blank("en"))
    for example in examples:
        for token in example.predicted:
            token.tag_ = "NNP" if token.text.istitle() else "X"
    config = {"model": {"emissions": {"features": features}}, **({} if factory == "crf_ner" else {"overwrite": True})}
    nlp = make(factory, config, examples)
    nlp.to_disk(tmp_path / "model")
    code, output = run("export", tmp_path / "model", tmp_path / "wapiti.model", "--to", "wapiti")
    assert code == 0, output
    again = tmp_path / "again"
    options = ["--from", "wapiti", "--columns", "orth,tag", "--replay", "--output", again]
    assert run("import", tmp_path / "wapiti.model", *options)[0] == 0
    pipe, other = nlp.get_pipe(factory), spacy.load(again).get_pipe("crf_tagger")
    for words in some_texts(30)[1:]:
        tags = ["NNP" if word.istitle() else "X" for word in words]
        probabilities, names = pipe.marginals(Doc(nlp.vocab, words=words, tags=tags))
        others, same = other.marginals(Doc(other.vocab, words=words, tags=tags))
        assert names == same and others == pytest.approx(probabilities, abs=1e-5)
    assert "CRFW858" not in caplog.text
    pipe.cfg["min_prob"] = 0.5
    export_wapiti(nlp)
    assert f"CRFW858: {factory} has min_prob = 0.5" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"decode": "spans", "min_prob": {"PER": 0.5, "*": 0.1}}])
def test_other_programs_keep_no_thresholds(settings, caplog):
    """A component of `crf fit` exported without a word, and CRFsuite found other entities."""
    nlp = make("crf_ner", settings)
    assert weights_of(nlp).labels == nlp.get_pipe("crf_ner").tags()
    told = "CRFW858: crf_ner has decode = 'spans' and min_prob = {'PER': 0.5, '*': 0.1}, and CRFsuite labels by"
    assert (told in caplog.text) == bool(settings)


def test_other_templates_are_not_exported_to_wapiti(folder, tmp_path):
    code, output = run("export", folder, tmp_path / "model", "--to", "wapiti")
    assert code == 1
    assert "CRF791" in output and "no pattern of Wapiti" in " ".join(output.split())
