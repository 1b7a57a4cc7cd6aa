"""Settings that were each made by themselves, drawn at random and put together: what holds of every pipeline holds of these."""

import copy
import random
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example
from spacy.vectors import Vectors
from thinc.api import Adam, fix_random_seed

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.report.cases import judge
from spacy_crf.report.page import render
from tests.models.test_neural import ENCODER
from tests.pipeline import test_fuzz_configs  # noqa: F401  registers functions
from tests.util import ner_examples, plain, tag_examples

SEEDS = [0, 5, 29, 115, 145, 272, 1024]  # which draw every setting
SEEDS_OF_TEXTS = range(4)
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
RULES = [
    {"rule": "at_most", "label": "PER", "n": 1, "per": "sentence"},
    {"rule": "at_least", "label": ["PER", "ORG"], "n": 1, "weight": 1.0},
    {"rule": "forbid_pair", "labels": ["PER", "ORG"]},
    {"rule": "never_on", "label": "*", "pattern": [[{"TEXT": {"REGEX": r"^\$$"}}]]},
    {"rule": "always_on", "label": "PER", "phrases": ["Bob"], "weight": 2.0},
    {"rule": "same_text_same_label"},
    {"rule": "length", "label": "*", "max": 2},
    {"rule": "excludes", "if": ["ORG"], "then": ["GPE"], "weight": 1.0},
]
OF_TAGS = [
    {"rule": "at_most", "label": "NN", "n": 1, "per": "sentence"},
    {"rule": "forbid_pair", "labels": ["PRP$", "VB"]},
    {"rule": "same_text_same_label"},
    {"rule": "never_on", "label": "VB", "pattern": [[{"TEXT": {"REGEX": "^the$"}}]]},
]


def draw(seed):
    """RETURNS (str, dict, dict): A factory, its settings, and those of `initialize`."""
    rng = random.Random(seed)
    factory = rng.choice(["crf_ner", "crf_ner", "crf_tagger", "semicrf_ner"])
    is_tagger = factory == "crf_tagger"
    known = ["vector[-1..1]", "cluster6[0]", "doc:majority_shape[0]", "doc:title_elsewhere[0]", "in:places[0]"]
    extra = [template for template in known if rng.random() < 0.4]
    kind = rng.choice(["sparse", "sparse", "sparse", "hashed", "sum", "pool", "encoder"])
    preset = "tagger" if is_tagger else "ner"
    features = {"@misc": f"spacy_crf.{preset}_features.v1", "extra": extra}
    config = {
        "confidence": not is_tagger and rng.random() < 0.5,
        "decode": rng.choice(["viterbi", "posterior", "spans"]),
        "min_prob": rng.choice([0.0, 0.0, 0.3]),
        "max_words": [1, 5, 500_000][seed % 3],
        "model": _model(factory, kind, features, rng),
    }
    if kind in ("sparse", "hashed") and rng.random() < 0.4:
        config["second_stage"] = {"folds": 2, "iterations": 10, "l1": rng.choice([0.0, 0.1])}
    if factory == "crf_ner":
        config["scheme"] = rng.choice(["IO", "BIO", "IOB1", "BILUO", "auto"])
    if not is_tagger and rng.random() < 0.35 and config.get("scheme") != "IOB1":
        config["loss"] = {"@losses": "spacy_crf.SoftLabels.v1"}
    if rng.random() < 0.5:
        rules = rng.sample(OF_TAGS if is_tagger else RULES, rng.randrange(1, 4))
        in_training = rng.random() < 0.2 and "loss" not in config
        config["constraints"] = {"@misc": "spacy_crf.constraints.v1", "rules": rules, "in_training": in_training}
    _draw_more(config, rng)
    read = str(config["model"])
    initialize = {}
    if "vector[" in read and kind != "encoder":
        initialize["vectors"] = rng.choice([None, {"dims": 2}, {"length": 1.0}])
    if "in:places" in read:
        initialize["gazetteers"] = {"places": "places.txt"}
    return factory, config, initialize


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
    model = {"@architectures": f"spacy_crf.{kind}.v1", "emissions": {**emissions, "features": features}}
    loss = {"@losses": f"spacy_crf.{rng.choice(['LogLikelihood', 'SoftmaxMargin'])}.v1"}
    config = {
        "model": model,
        "loss": loss,
        "explain": rng.random() < 0.5,
        "max_words": [1, 5, 500_000][seed // 3 % 3],
    }
    lists = {"vector[0]": {"vectors": {"dims": 2}}, "in:places[0]": {"gazetteers": {"places": "places.txt"}}}
    return "crf_textcat", config, {name: given for each in extra for name, given in lists.get(each, {}).items()}


def _draw_more(config, rng):
    emissions = config["model"].get("emissions")
    if emissions is not None and rng.random() < 0.3:
        emissions["features"]["extra"] = [*emissions["features"]["extra"], "fn:letters[0]", "head[0]|lower[0]"]
        emissions["features"]["functions"] = {"letters": {"@misc": "test_fuzz.letters.v1"}}
    reads = "" if emissions is None else emissions["@architectures"] + emissions["features"]["@misc"]
    if "Sparse" in reads and not reads.endswith("v1") and rng.random() < 0.3:
        emissions["features"]["transitions"] = ["shape[0]"]
        emissions["possible_states"] = rng.random() < 0.5
    if "longest_segment" not in config["model"] and "SemiMarkov" in config["model"]["@architectures"]:
        config["model"]["longest_segment"] = rng.choice([None, 2, 0.9, {"PER": 1}])
    if (
        "tok2vec" in config["model"]
        and config["model"]["emissions"]
        and "joint" not in config["model"]
        and rng.random() < 0.5
    ):
        config["model"]["dropout"] = 0.2
    if rng.random() < 0.3:
        config["alternatives_spans_key"] = "alternatives"
        if config.get("scheme") == "IOB1":
            config["scheme"] = "BIO"
    if "loss" not in config and "constraints" not in config and rng.random() < 0.4:
        loss = rng.choice(["LogLikelihood", "SoftmaxMargin", "SoftmaxMargin"])
        if "second_stage" not in config:
            config["loss"] = {"@losses": f"spacy_crf.{loss}.v1"}


def _model(factory, kind, features, rng):
    architecture = "SemiMarkov" if factory == "semicrf_ner" else "LinearChain"
    model = {"@architectures": f"spacy_crf.{architecture}.v1"}
    if kind == "encoder":
        model["emissions"] = None
    if kind != "encoder":
        emissions = "HashedEmissions" if kind == "hashed" else "SparseEmissions"
        model["emissions"] = {"@architectures": f"spacy_crf.{emissions}.v1", "features": features}
        if kind == "hashed":
            model["emissions"]["rows"] = 512
            model["emissions"]["features"]["extra"] = [t for t in features["extra"] if not t.startswith("vector")]
    if kind not in ("sparse", "hashed"):
        model["tok2vec"] = ENCODER
        model["hidden_width"] = rng.choice([0, 4])
        if kind == "pool":
            model["joint"] = {"mode": "pool", "held_out": 0.4}
    if factory == "semicrf_ner" and (kind in ("sparse", "hashed") or rng.random() < 0.7):
        segments = {"@misc": "spacy_crf.segment_features.v1", "extra": ["seg.matches:x"]}
        segments["patterns"] = {"x": [{"TEXT": {"REGEX": "^[A-Z].*$"}}]}
        if "cluster6[0]" in features["extra"]:
            segments["extra"] = [*segments["extra"], "seg.first:cluster6"]
        model["segments"] = {"@architectures": "spacy_crf.SparseSegments.v1", "features": segments}
    return model


def build(drawn, folder):
    """A pipeline that is not trained, what it learns from, and by what."""
    factory, config, initialize = drawn
    if "gazetteers" in initialize:
        (folder / "places.txt").write_text("Rome\nBlue Sky\n")
        initialize = {**initialize, "gazetteers": {"places": str(folder / "places.txt")}}
    fix_random_seed(0)
    nlp = _blank()
    nlp.add_pipe(factory, name="it", config=config)
    nlp.config["initialize"]["components"]["it"] = initialize
    optimizer = Adam(0.01) if "tok2vec" in config["model"] else LBFGS(l2=0.1, iterations_per_step=5)
    return nlp, examples_for(nlp, factory, config), optimizer


def _blank():
    nlp = spacy.blank("en")
    words = sorted({word for text in TEXTS for word in re.findall(r"\w+", text)})
    data = np.random.default_rng(0).normal(size=(len(words), 4)).astype(np.float32)
    nlp.vocab.vectors = Vectors(data=data, keys=words, strings=nlp.vocab.strings)
    table = {nlp.vocab.strings.add(word): n for n, word in enumerate(words)}
    nlp.vocab.lookups.add_table("lexeme_cluster", table)
    return nlp


def examples_for(nlp, factory, config):
    if factory == "crf_textcat":
        return [Example(with_sentences(nlp, text), with_sentences(nlp, text, cats)) for text, cats in LABELLED]
    if factory == "crf_tagger":
        return tag_examples(nlp, TAGGED)
    examples = ner_examples(nlp, TEXTS)
    if config.get("alternatives_spans_key"):
        doc = examples[0].reference
        doc.spans["alternatives"] = [Span(doc, 0, 1, label="PER"), Span(doc, 3, 4, label="ORG")]
    if "SoftLabels" in str(config.get("loss")):
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
            [token.tag_ for token in doc],
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
        for span in spans[:2]:
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
    nlp, examples, optimizer = build(drawn, folder)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(2):
        losses = nlp.update(examples, sgd=optimizer)
        assert np.isfinite(losses["it"])
    of_tokens = drawn[0] != "crf_textcat"
    the_same_however_it_is_asked(nlp, examples, processes=processes)
    for holds in (probabilities_agree, explained) if of_tokens else (texts_are_explained,):
        holds(nlp, examples)
    loaded = kept_by_saving(nlp, examples, folder)
    sourced(nlp, examples)
    unchanged_by_a_failure(nlp, examples)
    starts_from(drawn, folder, examples)
    goes_on(loaded, examples_for(loaded, *drawn[:2]), optimizer)
    if of_tokens:
        reported(nlp, examples)


def pipe_factory(nlp):
    return nlp.get_pipe_meta("it").factory


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_of_settings_together(seed, tmp_path):
    hold_all(draw(seed), tmp_path, processes=seed == 0)


@pytest.mark.parametrize("seed", SEEDS_OF_TEXTS)
def test_everything_holds_of_settings_of_texts(seed, tmp_path):
    hold_all(draw_texts(seed), tmp_path, processes=seed == 0)
