"""Settings drawn at random and put together: what holds of every pipeline holds of these. With mistakes in them a pipeline is
built, trained and saved, or what is wrong is said with a code."""

import copy
import random
import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import spacy
from catalogue import RegistryError
from confection import Config, ConfigValidationError
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example
from spacy.util import load_config, registry
from spacy.vectors import Vectors
from thinc.api import fix_random_seed

from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.pipeline import factories
from spacy_crf.pipeline.crf_tagger import CRFTagger
from spacy_crf.pipeline.prediction import CRFEntityRecognizer
from spacy_crf.report.cases import judge
from spacy_crf.report.page import render
from tests.util import ner_examples, plain, tag_examples

SEEDS = [1032, 314, 2182, 1757, 559, 32, 418, 1759, 2333]  # which draw nearly every setting
SEEDS_OF_TEXTS = range(4)
RUNS, CASES = 10, 8
CONFIGS = [
    path
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.cfg"))
    if len(load_config(path)["components"]) == 1
]
TEXTS = [
    "[Ann Lee](PER) left [Rome](GPE) . Lee is ill . Rome is hot .",
    "[Bob](PER) met [Acme Corp](ORG) . Acme lost . Bob won .",
    "[Carla Diaz](PER) runs [Blue Sky](ORG) from [Paris](GPE) . Sky fell .",
    "In [Paris](GPE) it rains . [Bob](PER) left Paris .",
    "[Acme Corp](ORG) hired [Ann Lee](PER) in [Rome](GPE) for $ 5 .",
]
TAGGED = ["the/DT dog/NN barks/VB", "dogs/NN bark/VB loudly/RB", "the/DT old/JJ cat/NN runs/VB her/PRP$ way/NN"]
LABELLED = [
    ("Ann Lee left Rome . Rome is hot .", {"TRAVEL": 1.0}),
    ("Bob met Acme Corp . Acme lost .", {"WORK": 1.0}),
    ("Carla runs Blue Sky from Paris .", {"WORK": 1.0, "TRAVEL": 0.0}),
    ("Bob left Paris . In Paris it rains .", {"TRAVEL": 1.0, "WORK": 0.0, "MONEY": 0.0}),
    ("Acme Corp pays $ 5 .", {"MONEY": 1.0}),
    ("Ann Lee pays Bob $ 7 in Rome .", {"WORK": 0.0}),
    ("Nobody was there .", {}),
]


@registry.misc("test_fuzz.letters.v1")
def make_letters():
    return lambda doc: [[str(len(token))] for token in doc]


@registry.misc("test_fuzz.words.v1")
def make_words():
    return lambda span: float(len(span))


@registry.misc("test_fuzz.allowed.v1")
def allowed(doc):
    return np.ones((len(doc), 13), dtype=bool)  # of BILUO and three labels


# -------------------------------------------------------------------------------------------------- what is well made

RULES = [
    {"rule": "forbid_pair", "labels": ["PER", "ORG"]},
    {"rule": "allow_pairs", "labels": [["PER", "ORG"], ["ORG", "PER"]], "weight": 2.0},
    {"rule": "follows", "label": "GPE", "after": ["O", "START"]},
    {"rule": "order", "labels": ["PER", "GPE"], "per": "doc"},
    {"rule": "at_most", "label": "PER", "n": 1, "per": "sentence"},
    {"rule": "at_most", "label": "PER", "n": 1, "per": "sentence", "weight": 1.5},
    {"rule": "at_least", "label": ["PER", "ORG"], "n": 1, "weight": 1},
    {"rule": "exactly", "label": "GPE", "n": 1, "weight": 0.5},
    {"rule": "requires", "if": ["PER"], "then": ["ORG"], "weight": 1.0},
    {"rule": "excludes", "if": ["ORG"], "then": ["GPE"], "name": "not both"},
    {"rule": "excludes", "if": ["ORG"], "then": ["GPE"], "weight": 1.0},
    {"rule": "length", "label": "*", "max": 2},
    {"rule": "only_on", "label": "GPE", "pattern": [{"IS_TITLE": True}]},
    {"rule": "always_on", "label": "PER", "phrases": ["Bob"], "attr": "LOWER", "weight": 3.0},
    {"rule": "never_on", "label": "*", "pattern": [[{"LOWER": "was"}, {}], [{"TEXT": {"REGEX": r"^\$$"}}]]},
    {"rule": "starts_with", "label": "ORG", "pattern": [{"SHAPE": "Xxxx"}], "weight": 1.0},
    {"rule": "ends_with", "label": "ORG", "phrases": ["Corp"]},
    {"rule": "same_text_same_label"},
]
OF_TAGS = [
    {"rule": "at_most", "label": "NN", "n": 1, "per": "sentence"},
    {"rule": "forbid_pair", "labels": ["PRP$", "VB"]},
    {"rule": "same_text_same_label"},
    {"rule": "never_on", "label": "VB", "pattern": [[{"TEXT": {"REGEX": "^the$"}}]]},
]
CUSTOM = {"rule": "custom", "function": "test_fuzz.allowed.v1"}
LOSSES = [f"spacy_crf.{name}.v1" for name in ("LogLikelihood", "Perceptron", "MaxMargin", "SoftmaxMargin")]
_LBFGS = {"l1": 0.0, "l2": 0.1, "iterations_per_step": 5, "memory": 6}
_LBFGS |= {"tolerance": 1e-5, "period": 10, "delta": 1e-5, "max_line_search": 20}
_SGD = {"l1": 0.0, "l2": 1.0, "calibration_eta": 0.1, "calibration_rate": 2.0, "sequences": None, "seed": 0}
OPTIMIZERS = {
    "spacy_crf.LBFGS.v1": _LBFGS,
    "spacy_crf.SGD.v1": _SGD,
    "spacy_crf.AdaGrad.v1": {"l1": 0.0, "l2": 1.0, "learn_rate": 0.3, "epsilon": 1e-6, "sequences": None, "seed": 0},
    "spacy_crf.AveragedPerceptron.v1": {"use_averages": True, "seed": 0},
    "spacy_crf.BatchPerceptron.v1": {"seed": 0},
    "spacy_crf.PassiveAggressive.v1": {"seed": 0},
    "spacy_crf.AROW.v1": {"variance": 1.0, "gamma": 1.0, "seed": 0},
}
MARGIN = {f"spacy_crf.{name}.v1" for name in ("AveragedPerceptron", "BatchPerceptron", "PassiveAggressive", "AROW")}
_ENCODER = {"@architectures": "spacy.HashEmbedCNN.v2", "pretrained_vectors": None, "width": 8, "depth": 1}
_ENCODER |= {"embed_size": 20, "window_size": 1, "maxout_pieces": 2, "subword_features": True}


def draw(seed):
    """RETURNS (dict): A component, the block of its factory among its settings; an optimizer; and settings of `initialize`."""
    rng = random.Random(seed)
    factory = rng.choice(["crf_ner", "crf_ner", "crf_tagger", "semicrf_ner"])
    is_tagger = factory == "crf_tagger"
    kind = rng.choice(["sparse", "sparse", "sparse", "hashed", "sum", "pool", "encoder"])
    component = {
        "factory": factory,
        "confidence": not is_tagger and rng.random() < 0.5,
        "decode": rng.choice(["viterbi", "posterior", "spans"]),
        "min_prob": rng.choice([0.0, 0.0, 0.3]),
        "max_words": [1, 5, 500_000][seed % 3],
        "model": _model(factory, kind, rng),
    }
    if kind in ("sparse", "hashed") and rng.random() < 0.4:
        component["second_stage"] = {"folds": 2, "iterations": 10, "l1": rng.choice([0.0, 0.1])}
    if factory == "crf_ner":
        component["scheme"] = rng.choice(["IO", "BIO", "IOB1", "BILUO", "auto"])
    if is_tagger:
        component["attribute"], component["overwrite"] = rng.choice(["tag", "tag", "morph"]), rng.random() < 0.5
    has_rules = rng.random() < 0.5 and component.get("attribute") != "morph"
    component |= _learning(component, has_rules, rng)
    if has_rules:
        component["constraints"] = _rules(component, rng)
    read, initialize = str(component["model"]), {}
    if "vector[" in read and kind != "encoder":
        initialize["vectors"] = rng.choice([None, {"dims": 2}, {"length": 1.0}])
    if "in:places" in read:
        initialize["gazetteers"] = {"places": "places.txt"}
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", **_LBFGS}
    if "tok2vec" in component["model"]:
        optimizer = {"@optimizers": "Adam.v1", "learn_rate": 0.01}
    return {"component": component, "optimizer": optimizer, "initialize": initialize}


def _learning(component, has_rules, rng):
    """From what, and by which loss: soft labels are a loss of their own."""
    is_tagger, settings = component["factory"] == "crf_tagger", {}
    if not is_tagger and rng.random() < 0.35 and component.get("scheme") != "IOB1":
        settings["loss"] = {"@losses": "spacy_crf.SoftLabels.v1"}
    elif not has_rules and "second_stage" not in component and rng.random() < 0.5:
        loss = rng.choice(["LogLikelihood", "SoftmaxMargin", "SoftmaxMargin"])
        settings["loss"] = {"@losses": f"spacy_crf.{loss}.v1"}
        if not is_tagger:
            settings["loss"]["label_weights"] = rng.choice([None, {"PER": 2.0}])
        if loss == "SoftmaxMargin" and not is_tagger:
            settings["loss"]["cost"] = rng.choice([None, {"PER": {"ORG": 3.0}}])
    if rng.random() < 0.3 and component.get("scheme") != "IOB1":
        settings["alternatives_spans_key"] = "alternatives"
    return settings


def _rules(component, rng):
    rules = rng.sample(OF_TAGS if component["factory"] == "crf_tagger" else RULES, rng.randrange(1, 4))
    in_training = rng.random() < 0.2 and "loss" not in component and {"rule": "same_text_same_label"} not in rules
    settings = {"in_training": in_training, "max_states": 200, "time_limit": 1.0}
    return {"@misc": "spacy_crf.constraints.v1", "rules": copy.deepcopy(rules), **settings}


def _model(factory, kind, rng):
    architecture = "SemiMarkov" if factory == "semicrf_ner" else "LinearChain"
    model = {"@architectures": f"spacy_crf.{architecture}.v1", "possible_transitions": rng.random() < 0.5}
    model["emissions"] = None if kind == "encoder" else _emissions(factory, kind, rng)
    if kind not in ("sparse", "hashed"):
        model["tok2vec"], model["hidden_width"] = dict(_ENCODER), rng.choice([0, 4])
        if kind == "pool":
            model["joint"] = {"mode": "pool", "held_out": 0.4}
        elif kind == "sum":
            model |= rng.choice([{"dropout": 0.2}, {"joint": {"sparse_rate": 5.0}}])
    if factory == "semicrf_ner":
        model["longest_segment"] = rng.choice([None, 2, 0.9, {"PER": 1}])
        if kind in ("sparse", "hashed") or rng.random() < 0.7:
            model["segments"] = _segments("cluster6[0]" in str(model["emissions"]), rng)
    return model


def _emissions(factory, kind, rng):
    known = ["cluster6[0]", "doc:majority_shape[0]", "doc:title_elsewhere[0]", "in:places[0]"]
    known += ["orth[-1]|orth[0]", "head[0]|lower[0]", "ent_type[0]"]
    known += ["vector[-1..1]"] if kind != "hashed" else []
    extra = [template for template in known if rng.random() < 0.4]
    preset = "tagger" if factory == "crf_tagger" else "ner"
    features = {"@misc": f"spacy_crf.{preset}_features.v1", "extra": extra, "padding": rng.random() < 0.5}
    if rng.random() < 0.3:
        features["extra"] = [*extra, "fn:letters[0]"]
        features["functions"] = {"letters": {"@misc": "test_fuzz.letters.v1"}}
    if kind == "hashed":
        return {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": 512, "features": features}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    if rng.random() < 0.3:
        features["transitions"] = ["shape[0]"]
        emissions["possible_states"] = rng.random() < 0.5
    return emissions


def _segments(has_clusters, rng):
    known = ["seg.length", "seg.first:shape|seg.last:shape", "seg.fn:words", "seg.contains:lower"]
    extra = ["seg.matches:x", *rng.sample(known, 2), *(["seg.first:cluster6"] if has_clusters else [])]
    patterns = {"x": [{"TEXT": {"REGEX": "^[A-Z].*$"}}, {"LOWER": "corp", "OP": "?"}]}
    features = {"@misc": "spacy_crf.segment_features.v1", "extra": extra, "patterns": patterns}
    features["functions"] = {"words": {"@misc": "test_fuzz.words.v1"}} if "seg.fn:words" in extra else {}
    return {"@architectures": "spacy_crf.SparseSegments.v1", "features": features}


def draw_texts(seed):
    """The same of `crf_textcat`."""
    rng = random.Random(f"texts {seed}")
    kind = ["MaxEntText", "NaiveBayes"][seed % 2]
    extra = [each for each in ("vector[0]", "cluster6[0]", "in:places[0]", "fn:letters[0]") if rng.random() < 0.4]
    extra = [each for each in extra if kind != "NaiveBayes" or each != "vector[0]"]
    features = {"@misc": "spacy_crf.text_features.v1", "extra": extra, "padding": rng.random() < 0.5}
    if "fn:letters[0]" in extra:
        features["functions"] = {"letters": {"@misc": "test_fuzz.letters.v1"}}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "min_count": rng.choice([1, 2])}
    if kind != "NaiveBayes" and "vector[0]" not in extra and rng.random() < 0.4:
        emissions = {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": 512}
    component = {
        "factory": "crf_textcat",
        "model": {"@architectures": f"spacy_crf.{kind}.v1", "emissions": {**emissions, "features": features}},
        "loss": {"@losses": f"spacy_crf.{rng.choice(['LogLikelihood', 'SoftmaxMargin'])}.v1"},
        "explain": rng.random() < 0.5,
        "max_words": [1, 5, 500_000][seed // 3 % 3],
    }
    lists = {"vector[0]": {"vectors": {"dims": 2}}, "in:places[0]": {"gazetteers": {"places": "places.txt"}}}
    initialize = {name: given for each in extra for name, given in lists.get(each, {}).items()}
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", **_LBFGS}
    return {"component": component, "optimizer": optimizer, "initialize": initialize}


# ------------------------------------------------------------------------------------------- pipelines and their texts


def build(drawn, folder, *, by_hand=False):
    """RETURNS (Language, Pipe, Optimizer): Of drawn settings. A component that is made by hand is not in the pipeline."""
    drawn = copy.deepcopy(drawn)
    component = drawn["component"]
    factory = component.pop("factory", "crf_ner")
    fix_random_seed(0)
    nlp = _blank()
    if by_hand:  # as in Python: nobody has looked at settings before they are ours
        settings = Config(nlp.get_factory_meta(factory).default_config).merge(component)
        make = getattr(factories, f"make_{factory}")
        pipe = make(nlp, "it", **{key: _resolved(value) for key, value in settings.items()})
        return nlp, pipe, _resolved(drawn["optimizer"])
    # As spaCy does it, which looks at the types of most settings and converts some
    optimizer = registry.resolve({"optimizer": drawn["optimizer"]})["optimizer"]
    pipe = nlp.add_pipe(factory, name="it", config=component)
    nlp.config["initialize"]["components"]["it"] = _initialize(drawn, folder)
    return nlp, pipe, optimizer


def _initialize(drawn, folder):
    settings = dict(drawn["initialize"])
    if settings.get("gazetteers") == {"places": "places.txt"}:
        (folder / "places.txt").write_text("Rome\nBlue Sky\n")
        settings["gazetteers"] = {"places": str(folder / "places.txt")}
    return settings


def _resolved(tree):
    """What a block of a config makes."""
    if isinstance(tree, list):
        return [_resolved(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next((key for key in tree if isinstance(key, str) and key.startswith("@")), None)
    arguments = {key: _resolved(value) for key, value in tree.items() if key != kind}
    return arguments if kind is None else registry.get(kind[1:], tree[kind])(**arguments)


def _blank():
    nlp = spacy.blank("en")
    words = sorted({word for text in TEXTS for word in re.findall(r"\w+", text)})
    data = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    nlp.vocab.vectors = Vectors(data=data, keys=words, strings=nlp.vocab.strings)
    table = {nlp.vocab.strings.add(word): n for n, word in enumerate(words)}
    nlp.vocab.lookups.add_table("lexeme_cluster", table)
    return nlp


def examples_for(nlp, component):
    """What a drawn component learns from."""
    factory = component.get("factory", "crf_ner")
    if factory == "crf_textcat":
        return [Example(with_sentences(nlp, text), with_sentences(nlp, text, cats)) for text, cats in LABELLED]
    if factory == "crf_tagger":
        examples = tag_examples(nlp, TAGGED)
        for token in (token for example in examples for token in example.reference):
            token.set_morph(f"X={token.tag_[:2]}")
        return examples
    examples = ner_examples(nlp, TEXTS)
    for example in examples:
        example.reference.spans["sc"] = list(example.reference.ents)
    doc = examples[0].reference
    doc.spans["alternatives"] = [Span(doc, 0, 1, label="PER"), Span(doc, 3, 4, label="ORG")]
    if "SoftLabels" in str(component.get("loss")):
        examples[1:3] = [_soft(example) for example in examples[1:3]]
    return examples


def with_sentences(nlp, text, cats=()):
    doc = nlp.make_doc(text)
    for token in doc:
        token.is_sent_start = token.i == 0 or doc[token.i - 1].text == "."
    doc.cats.update(cats)
    return doc


def _soft(example):
    gold = example.reference
    doc, score = Doc(gold.vocab, words=[token.text for token in gold]), 0.75
    spans = [Span(doc, ent.start, ent.end, label=ent.label_) for ent in gold.ents]
    spans += [Span(doc, ent.start, ent.start + 1, label="ORG") for ent in gold.ents if ent.label_ == "PER"]
    scores = [score] * len(gold.ents) + [0.25] * (len(spans) - len(gold.ents))
    doc.spans["crf_soft"] = SpanGroup(doc, spans=spans, attrs={"scores": scores})
    return Example(plain(doc), doc)


# --------------------------------------------------------------------------------------------------------- properties


def odd_docs(nlp):
    marked = Doc(nlp.vocab, words=["Rome", "met", "Bob", "Lee"], ents=["B-ORG", "O", "B-PER", "I-PER"])
    forced = Doc(nlp.vocab, words=["Rome", "met", "Bob", "Lee", "."])
    forced.spans["crf_forced"] = [Span(forced, 2, 4, label="ORG")]
    forced.spans["crf_blocked"] = [Span(forced, 0, 1, label="GPE")]
    return [
        marked,
        forced,
        Doc(nlp.vocab),
        Doc(nlp.vocab, words=["Bob"]),
        Doc(nlp.vocab, words=[" "]),
        Doc(nlp.vocab, words=["Bob", "  ", "Lee", "\n", "$", "5"], spaces=[True, False, True, False, False, False]),
        Doc(nlp.vocab, words=["Rome", "is", "hot", "Rome"], sent_starts=[True, False, False, True]),
    ]


def _docs(nlp, examples):
    if pipe_factory(nlp) == "crf_textcat":
        words = [[token.text for token in doc] for doc in odd_docs(nlp)]
        odd = [Doc(nlp.vocab, words=of, sent_starts=[n in (0, 3) for n in range(len(of))]) for of in words]
        return [*(with_sentences(nlp, text) for text, _ in LABELLED), *odd]
    return [*(Doc(nlp.vocab, words=[t.text for t in example.reference]) for example in examples), *odd_docs(nlp)]


def said(docs):
    return [
        (
            [(ent.start, ent.end, ent.label_, _confidence(ent)) for ent in doc.ents],
            [(token.tag_, str(token.morph)) for token in doc],
            {label: round(p, 8) for label, p in doc.cats.items()},
            _reasons(doc),
        )
        for doc in docs
    ]


def _reasons(doc):
    told = doc._.crf_evidence
    return told and (told["label"], told["units"].tolist(), np.round(told["evidence"], 4).tolist())


def _confidence(ent):
    return round(ent._.crf_prob or 0.0, 5)


def ask(nlp, examples):
    return said(nlp.pipe(_docs(nlp, examples)))


def kept_by_saving(nlp, examples, folder):
    expected, [(name, pipe)] = ask(nlp, examples), nlp.pipeline
    nlp.to_disk(folder / "one")
    loaded = spacy.load(folder / "one")
    assert ask(loaded, examples) == expected
    loaded.to_disk(folder / "two")
    assert ask(spacy.load(folder / "two"), examples) == expected
    by_bytes = _blank().from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert ask(by_bytes, examples) == expected
    copied = copy.deepcopy(nlp)
    assert ask(copied, examples) == expected
    assert copied.get_pipe(name).to_bytes() == pipe.to_bytes()
    assert loaded.get_pipe(name).to_bytes() == by_bytes.get_pipe(name).to_bytes()
    return loaded


def the_same_however_it_is_asked(nlp, examples, *, processes):
    docs = _docs(nlp, examples)
    expected = said(nlp.pipe(doc.copy() for doc in docs))
    assert said(nlp(doc.copy()) for doc in docs) == expected
    assert said(nlp.pipe([doc.copy() for doc in docs], batch_size=3)) == expected
    new, shortest_first = copy.deepcopy(nlp), sorted(range(len(docs)), key=lambda n: len(docs[n]))
    assert said(new(docs[n].copy()) for n in shortest_first) == [expected[n] for n in shortest_first]
    with ThreadPoolExecutor(2) as threads:
        assert said(threads.map(nlp, [doc.copy() for doc in docs])) == expected
    if processes:
        assert said(nlp.pipe([doc.copy() for doc in docs], batch_size=4, n_process=2)) == expected


def probabilities_agree(nlp, examples):
    [(_, pipe)] = nlp.pipeline
    for doc in _docs(nlp, examples):
        rows, _ = pipe.marginals(doc)
        assert np.isfinite(rows).all() and (rows >= 0).all() and (rows <= 1 + 1e-6).all()
        best = pipe.n_best(doc, 3)
        found = {(s.start, s.end, s.label_): p for s, p in pipe.span_probabilities(doc, 0.0)}
        assert all(0 <= p <= 1 + 1e-9 for p in found.values())
        assert sum(p for p, _ in best) <= 1 + 1e-6
        assert [p for p, _ in best] == sorted((p for p, _ in best), reverse=True)
        for p, spans in best:
            assert np.exp(pipe.log_probability(doc, spans)) == pytest.approx(p, rel=1e-4, abs=1e-9)
            for span in spans:
                assert found[span.start, span.end, span.label_] >= p * (1 - 1e-4) - 1e-9
        assert isinstance(pipe.proven(doc), bool)
        drawn = pipe.sample(doc, 3, seed=0)
        assert len(drawn) == 3


def texts_are_explained(nlp, examples):
    [(_, pipe)] = nlp.pipeline
    for doc in _docs(nlp, examples):
        found = pipe.probabilities(doc)
        assert set(found) == set(pipe.labels)
        assert pipe.cfg["multilabel"] or sum(found.values()) == pytest.approx(1.0)
        assert list(found.values()) == sorted(found.values(), reverse=True)
        for label in pipe.labels:
            spans, evidence = zip(*pipe.evidence(doc, label)) if len(doc) else ((), ())
            assert [token.i for span in spans for token in span] == [token.i for token in doc]
            assert np.isfinite(evidence).all()
    assert pipe.weights() and all(row.weight != 0.0 for row in pipe.weights(pipe.labels[0]))


def explained(nlp, examples):
    [(_, pipe)] = nlp.pipeline
    for example in examples[:2]:
        doc = plain(example.reference)
        spans = [span for span, _ in pipe.span_probabilities(doc, 0.0)]
        for span in spans[:1]:
            found = pipe.explain(doc, span, kind="contrast")
            assert found.check == pytest.approx(0.0, abs=1e-5 * (1 + abs(found.target)))
            found = pipe.explain(doc, span, kind="log_odds")
            assert found.check == pytest.approx(0.0, abs=1e-4 * (1 + abs(found.target)))


def reported(nlp, examples):
    judged = judge(nlp, [pipe for _, pipe in nlp.pipeline], examples)
    page = render("a title", judged)
    assert page.startswith("<!doctype html>") or "<html" in page


def sourced(nlp, examples):
    """Beside a component of other labels."""
    other = _blank()
    if nlp.get_pipe_meta("it").factory == "crf_tagger":
        return
    expected = ask(nlp, examples)
    other.add_pipe("it", source=nlp)
    assert ask(other, examples) == expected
    mine = other.add_pipe("crf_ner", name="mine", first=True, config={"optimizer": None})
    mine.initialize(lambda: ner_examples(other, ["[Rome](XYZ) is [hot](ABC) ."]), nlp=other)
    ask(other, examples)
    assert ask(nlp, examples) == expected


def goes_on(nlp, examples, optimizer):
    sgd = nlp.resume_training()
    nlp.update(examples, sgd=sgd)
    nlp.update(examples, sgd=optimizer)
    ask(nlp, examples)


def starts_from(drawn, folder, examples):
    nlp, _, optimizer = build(drawn, folder)
    saved = spacy.load(folder / "one")
    nlp.config["initialize"]["components"]["it"]["start_from"] = str(folder / "one")
    nlp.initialize(lambda: examples, sgd=optimizer)
    assert nlp.get_pipe("it").labels == saved.get_pipe("it").labels
    assert ask(nlp, examples) == ask(saved, examples)
    nlp.update(examples, sgd=optimizer)


def unchanged_by_a_failure(nlp, examples):
    [(_, pipe)] = nlp.pipeline
    before, expected = pipe.to_bytes(), ask(nlp, examples)
    calls = 0

    def breaks_off():
        nonlocal calls
        calls += 1
        yield from examples[:2]
        if calls > 2:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, ValueError)):
        pipe.initialize(breaks_off, nlp=nlp, gazetteers=None)
    assert pipe.to_bytes() == before
    assert ask(nlp, examples) == expected


def hold_all(drawn, folder, *, processes=False):
    nlp, _, optimizer = build(drawn, folder)
    examples = examples_for(nlp, drawn["component"])
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(2):
        losses = nlp.update(examples, sgd=optimizer)
        assert np.isfinite(losses["it"])
    of_tokens = drawn["component"]["factory"] != "crf_textcat"
    the_same_however_it_is_asked(nlp, examples, processes=processes)
    for holds in (probabilities_agree, explained) if of_tokens else (texts_are_explained,):
        holds(nlp, examples)
    loaded = kept_by_saving(nlp, examples, folder)
    sourced(nlp, examples)
    unchanged_by_a_failure(nlp, examples)
    starts_from(drawn, folder, examples)
    goes_on(loaded, examples_for(loaded, drawn["component"]), optimizer)
    if of_tokens:
        reported(nlp, examples)


def pipe_factory(nlp):
    return nlp.get_pipe_meta("it").factory


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_of_settings_together(seed, tmp_path):
    hold_all(draw(seed), tmp_path, processes=seed == SEEDS[0])


@pytest.mark.parametrize("seed", SEEDS_OF_TEXTS)
def test_everything_holds_of_settings_of_texts(seed, tmp_path):
    hold_all(draw_texts(seed), tmp_path, processes=seed == 0)


# --------------------------------------------------------------------------------------------------- what goes wrong

# Work that users may ask for as they like: a large number is no mistake, but nobody waits for it here
LONG = {
    "epochs_per_step",
    "iterations_per_step",
    "max_iterations",
    "calibration_candidates",
    "n",
    "min",
    "max",
    "time_limit",
}
_CODED = re.compile(r"CRF\d{3}: ")
_NUMBERS = [0, 1, 2, -1, 1000, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.5]
_NUMBERS += [1e-5, 1e-120, 1e-320, 1e50, 1e99, 1e308, -1e308, float("nan"), float("inf"), -float("inf")]
_ODD = [None, True, False, *_NUMBERS, "", "x", "PER", "5", "nan", "inf", [], [1], ["x"], ["PER"], [[]], [None], {}]
_ODD += [{"x": 1}, {"PER": "x"}, {"PER": -1}, {"x": {"y": 1}}, {1: 2}]
_ENDS = ["", "x", "[", "]", "|", "[0]", "[-1..1]", "[99]", "[1..0]", ":", " ", "\ud800", "\0", "é" * 50]
_NAMED = {
    "@losses": [*LOSSES, "CategoricalCrossentropy.v1", "spacy_crf.None.v1"],
    "@optimizers": [*OPTIMIZERS, "Adam.v1", "SGD.v1", "no.v1"],
    "@architectures": [
        *(
            f"spacy_crf.{name}.v1"
            for name in ("SparseEmissions", "HashedEmissions", "Tok2VecEmissions", "SparseSegments")
        ),
        *(
            "spacy_crf.LinearChain.v1",
            "spacy_crf.LinearChain.v1",
            "spacy_crf.SemiMarkov.v1",
            "spacy.HashEmbedCNN.v2",
            "no.v1",
        ),
    ],
    "@misc": [
        *(f"spacy_crf.{name}.v1" for name in ("features", "ner_features", "tagger_features", "segment_features")),
        *(
            "spacy_crf.ner_features.v1",
            "spacy_crf.tagger_features.v1",
            "spacy_crf.segment_features.v1",
            "spacy_crf.constraints.v1",
            "test_fuzz.letters.v1",
            "test_fuzz.words.v1",
            "no.v1",
        ),
    ],
    "@scorers": ["spacy.ner_scorer.v1", "spacy_crf.tagger_scorer.v1", "spacy.textcat_scorer.v2"],
}


def _places(tree, path=()):
    """All places of a config that are ours: their containers and keys, with the way there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    foreign = isinstance(tree, dict) and any(
        str(key).startswith("@") and not str(value).startswith(("spacy_crf", "test_fuzz"))
        for key, value in tree.items()
    )
    for key, value in items:
        if not foreign or str(key).startswith("@"):
            yield tree, key, (*path, key)
            yield from _places(value, (*path, key))


def _weight(place):
    """Names of registered functions and components are looked up by spaCy, which says when there is none."""
    return 0.2 if str(place[1]).startswith(("@", "factory")) else 1.0


def _odd(key, rng):
    return rng.choice([value for value in _ODD if not (key in LONG and _is_large(value))])


def _is_large(value):
    return isinstance(value, (int, float)) and value > 1000


def _break(config, rng):
    """Makes one mistake, and says which."""
    places = [place for place in _places(config) if len(place[2]) > 1]
    [(container, key, path)] = rng.choices(places, map(_weight, places))
    before, kind = container[key], rng.random()
    if isinstance(key, str) and key in _NAMED:
        container[key] = rng.choice(_NAMED[key])
    elif kind < 0.1 and isinstance(container, dict):
        del container[key]
        return f"{path} is gone"
    elif kind < 0.13 and isinstance(container, dict):
        container["odd"] = copy.deepcopy(rng.choice(_ODD))
        return f"{(*path[:-1], 'odd')} = {container['odd']!r}"
    elif kind < 0.6 and isinstance(before, (int, float)) and not isinstance(before, bool):
        container[key] = rng.choice([value for value in _NUMBERS if not (key in LONG and value > 1000)])
    elif kind < 0.5 and isinstance(before, str):
        at = rng.randrange(len(before) + 1)
        container[key] = before[:at] + rng.choice(_ENDS) + before[at + rng.randrange(2) :]
    elif kind < 0.3 and isinstance(before, list) and before:
        container[key] = [*before, copy.deepcopy(rng.choice([*before, *_ODD]))]
    elif kind < 0.4:
        container[key] = [before]
    else:
        container[key] = copy.deepcopy(_odd(key, rng))
    return f"{path} = {container[key]!r}"


def _is_said(error):
    """Whether a message has a code, or is one of spaCy's own about configs, before anything of ours is called."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, (ConfigValidationError, RegistryError)) or not any("spacy_crf/" in f.filename for f in frames):
        return True
    if isinstance(error, TypeError) and re.search(
        "unexpected keyword|required positional|required keyword", str(error)
    ):
        return True  # Python's
    return isinstance(error, ValueError) and bool(_CODED.match(str(error)) or re.match(r"\[E\d{3,4}\]", str(error)))


def case(seed):
    """RETURNS (dict, list, bool): What is drawn, the mistakes in it, and whether a config makes it."""
    rng = random.Random(f"mistakes {seed}")
    drawn = _shipped(rng) if rng.random() < 0.3 else _any_learning(draw(seed), rng)
    mistakes = [_break(drawn, rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    return drawn, mistakes, rng.random() < 0.3


def _shipped(rng):
    """The component and the optimizer of a config of the repository."""
    config = load_config(rng.choice(CONFIGS), interpolate=True)
    [(_, component)] = config["components"].items()
    return {"component": component, "optimizer": config["training"]["optimizer"], "initialize": {}}


def _any_learning(drawn, rng):
    """With any optimizer, and a loss that fits it as a rule."""
    component = drawn["component"]
    if "tok2vec" not in component["model"]:
        optimizer = rng.choice([*OPTIMIZERS])
        drawn["optimizer"] = {"@optimizers": optimizer, **OPTIMIZERS[optimizer]}
        if optimizer in MARGIN or "loss" not in component:
            loss = "spacy_crf.MaxMargin.v1" if optimizer in MARGIN else rng.choice(LOSSES)
            component["loss"] = {"@losses": loss}
    if "constraints" in component and rng.random() < 0.1:
        component["constraints"]["rules"].append(dict(CUSTOM))
    labels = [None, ["PER", "ORG", "GPE", "NEW"]] if component["factory"] != "crf_tagger" else [None]
    drawn["initialize"].update({"labels": rng.choice(labels), "clusters": None})
    return drawn


def _use(drawn, folder, *, by_config):
    """Builds, trains, predicts, saves and loads."""
    nlp, pipe, optimizer = build(drawn, folder, by_hand=not by_config)
    examples = examples_for(nlp, drawn["component"])
    if by_config:
        nlp.initialize(lambda: examples)
    else:
        pipe.initialize(lambda: examples, nlp=nlp, **_initialize(drawn, folder))
    for _ in range(2):
        pipe.update(examples, sgd=optimizer)
    docs = [plain(example.reference) for example in examples] + [nlp.make_doc("")]
    expected = said(pipe.pipe(docs))
    nlp, again, _ = build(drawn, folder, by_hand=not by_config)
    again.from_bytes(pipe.to_bytes())
    assert said(again.pipe(plain(doc) if len(doc) else Doc(nlp.vocab) for doc in docs)) == expected


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(RUNS))
def test_configs_with_mistakes_work_or_say_what_is_wrong(seed, tmp_path):
    """40 of 1,000 ended with an error of Python's or numpy's."""
    for number in range(seed * CASES, (seed + 1) * CASES):
        drawn, mistakes, by_config = case(number)
        try:
            _use(drawn, tmp_path, by_config=by_config)
        except Exception as error:
            if not _is_said(error):
                pytest.fail(f"case {number}, by_config = {by_config}: {'; '.join(mistakes)}\n{drawn}\n{error!r}")


@pytest.mark.parametrize(
    ("factory", "settings", "named"),
    [
        ("crf_ner", {"loss": -1}, "loss = -1"),
        ("crf_ner", {"min_prob": "x"}, "min_prob = 'x'"),
        ("crf_ner", {"optimizer": 5}, "optimizer = 5"),
        ("crf_tagger", {"overwrite": None}, "overwrite = None"),
        ("crf_tagger", {"attribute": ["tag"]}, "attribute"),
    ],
)
def test_settings_of_components_are_checked_when_they_are_made(factory, settings, named):
    """A loss that is none was noticed at the first update."""
    nlp = spacy.blank("en")
    model = nlp.create_pipe(factory).model
    make = {"crf_ner": CRFEntityRecognizer, "crf_tagger": CRFTagger}[factory]
    with pytest.raises(ValueError, match=f"CRF020: Component 'it': {re.escape(named)}"):
        make(nlp.vocab, model, "it", **{"loss": LogLikelihood(), **settings})
