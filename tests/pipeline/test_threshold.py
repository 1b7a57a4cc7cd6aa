"""`crf threshold` and ``spacy_crf.fit_min_prob.v1``: which min_prob does best where components decode by spans."""

import json
from collections import Counter

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry

from spacy_crf.cli.evaluate import threshold
from spacy_crf.pipeline.thresholds import THRESHOLDS, Point, best, best_of_labels, measure, shrunk
from tests.cli.test_commands import run
from tests.pipeline.test_probabilities import key, trained, with_rules
from tests.test_configs import ROOT
from tests.util import NER_TEXTS, ner_examples, tag_examples

ONCE = with_rules([{"rule": "at_most", "label": "*", "n": 1}])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threshold")
    nlp = trained(iterations=2)
    nlp.to_disk(folder / "model")
    DocBin(docs=[example.reference for example in ner_examples(nlp)]).to_disk(folder / "dev.spacy")
    (folder / "raw.txt").write_text("Bob left Rome .\nAcme Corp hired Ann Lee .\n")
    return folder


def point(min_prob, right, judged=10, gold=10, **others):
    return Point(min_prob, judged, 0.0, 0.0, {"PER": Counter(judged=judged, right=right, gold=gold), **others})


def test_the_best_f_is_taken_and_of_equals_the_one_nearest_to_half_of_it():
    assert best([point(0.1, 5), point(0.3, 6), point(0.7, 4)]).min_prob == 0.3
    assert best([point(0.1, 6), point(0.2, 6), point(0.5, 6)]).min_prob == 0.2  # F1 is 0.6
    assert best([point(0.1, 6), point(0.2, 6), point(0.5, 6)], beta=0.5).min_prob == 0.5
    assert best([point(0.1, 10, 100, 10), point(0.5, 2, 2, 10)], beta=1.0).min_prob == 0.5
    assert best([point(0.1, 10, 100, 10), point(0.5, 2, 2, 10)], beta=4.0).min_prob == 0.1
    assert best([point(0.1, 0, 0, 0)]).f() == 0.0


@pytest.mark.parametrize(
    "factory, config",
    [("crf_ner", {}), ("crf_ner", {"scheme": "IO"}), ("crf_ner", ONCE), ("semicrf_ner", {}), ("crf_tagger", {})],
    ids=["chain", "IO", "rules", "segments", "tags"],
)
def test_what_is_measured_is_what_the_component_finds(factory, config):
    nlp = trained(factory, iterations=2, **config)
    pipe = nlp.get_pipe(factory)
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    before = dict(pipe.cfg)
    points = measure(pipe, examples)
    assert pipe.cfg == before and not any(example.predicted.ents for example in examples)
    assert [each.min_prob for each in points] == list(THRESHOLDS)
    for each in points[::8]:
        pipe.cfg.update(decode="spans", min_prob=each.min_prob)
        found = [Example(nlp(example.predicted.copy()), example.reference) for example in examples]
        pairs = [(set(gold), set(said)) for gold, said in map(_places, [pipe] * len(found), found)]
        assert each.found == each.all["judged"] == sum(len(said) for _, said in pairs)
        assert each.all["right"] == sum(len(gold & said) for gold, said in pairs)
        assert each.all["gold"] == sum(len(gold) for gold, _ in pairs)
    assert all(0.0 <= each.expected_f() <= 1.0 for each in points)
    found = [each.found for each in points]
    assert found[0] > found[-1] and points[0].recall >= points[-1].recall


def _places(pipe, example):
    return [[mention.place for mention in mentions] for mentions in pipe.annotation.mentions(example)]


def test_what_the_model_expects_is_the_sum_of_probabilities():
    nlp = trained(iterations=2)
    ner = nlp.get_pipe("crf_ner")
    points = measure(ner, ner_examples(nlp), judge=False)
    docs = [nlp.make_doc(example.text) for example in ner_examples(nlp)]
    exact = [{key([span])[0]: p for span, p in ner.span_probabilities(doc, 0.001)} for doc in docs]
    one = points[THRESHOLDS.index(0.3)]
    ner.cfg.update(decode="spans", min_prob=0.3)
    found = [exact[n][span] for n, doc in enumerate(docs) for span in key(nlp(doc.text).ents)]
    assert (one.found, one.by_label) == (len(found), {})
    assert one.expected_right == pytest.approx(sum(found))
    assert one.expected_gold == pytest.approx(sum(p for of_doc in exact for p in of_doc.values()), rel=1e-3)


def test_texts_without_annotation_count_for_nothing():
    nlp = trained(iterations=2)
    ner = nlp.get_pipe("crf_ner")
    unset = nlp.make_doc("Bob left Acme Corp for New York")
    points = measure(ner, [*ner_examples(nlp), Example(unset.copy(), unset)])
    alone = measure(ner, ner_examples(nlp))
    assert [each.by_label for each in points] == [each.by_label for each in alone]
    assert points[0].found > alone[0].found


def test_earlier_components_are_asked(folder):
    nlp = spacy.load(folder / "model")
    ruler = nlp.add_pipe("entity_ruler", before="crf_ner")
    ruler.add_patterns([{"label": "PER", "pattern": "left"}])
    [points] = threshold(nlp, folder / "dev.spacy").values()
    assert points[-1].found >= sum(text.count("left") for text in NER_TEXTS)


def test_the_command_prints_and_saves(folder, tmp_path):
    code, output = run("threshold", folder / "model", folder / "dev.spacy", "--output", tmp_path / "better")
    assert code == 0 and "precision" in output and "recall" in output and "expected F1" in output
    nlp = spacy.load(tmp_path / "better")
    settings = nlp.get_pipe("crf_ner").cfg
    assert settings["decode"] == "spans" and f"min_prob = {settings['min_prob']}" in output
    assert nlp.config["components"]["crf_ner"]["min_prob"] == settings["min_prob"]
    scores = nlp.evaluate(ner_examples(nlp))
    [points] = threshold(spacy.load(folder / "model"), folder / "dev.spacy").values()
    assert scores["ents_f"] == pytest.approx(best(points).f())


def test_labels_get_thresholds_of_their_own(folder, tmp_path):
    rare = [
        Counter(judged=30, right=10, gold=20),
        Counter(judged=12, right=8, gold=20),
        Counter(judged=4, right=4, gold=20),
    ]
    points = [
        point(t, *per, ORG=org) for t, per, org in zip((0.1, 0.4, 0.8), [(15, 16, 20), (9, 9, 20), (2, 2, 20)], rare)
    ]
    assert best(points).min_prob == 0.1
    assert best_of_labels(points) == {"PER": 0.1, "ORG": 0.4, "*": 0.1}
    code, output = run("threshold", folder / "model", folder / "dev.spacy", "--per-label", "-o", tmp_path / "better")
    assert code == 0 and "per label" in output and "[components.crf_ner.min_prob]" in output
    nlp = spacy.load(tmp_path / "better")
    chosen = nlp.get_pipe("crf_ner").cfg["min_prob"]
    assert set(chosen) == {"PER", "GPE", "ORG", "*"} and nlp.config["components"]["crf_ner"]["min_prob"] == chosen
    points = threshold(spacy.load(folder / "model"), folder / "dev.spacy", per_label=True)["crf_ner"]
    assert nlp.evaluate(ner_examples(nlp))["ents_f"] == pytest.approx(points[-1].f())
    code, output = run("threshold", folder / "model", folder / "raw.txt", "--per-label", "--expected")
    assert code == 1 and "CRF020" in output


def test_raw_texts_will_do_for_what_the_model_expects(folder):
    code, output = run("threshold", folder / "model", folder / "raw.txt", "--expected", "--beta", "2")
    assert code == 0 and "expected F2" in output and "recall" not in output
    code, output = run("threshold", folder / "model", folder / "dev.spacy", "--beta", "0")
    assert code == 1 and "CRF020" in output and "beta" in output
    nlp = spacy.load(folder / "model")
    DocBin(docs=[nlp.make_doc("Bob left")]).to_disk(folder / "plain.spacy")
    code, output = run("threshold", folder / "model", folder / "plain.spacy")
    assert code == 1 and "CRF423" in output and "--expected" in output


def test_training_saves_the_best_threshold(folder, tmp_path):
    settings = {
        "paths": {"train": str(folder / "dev.spacy"), "dev": str(folder / "dev.spacy")},
        "components": {"crf_ner": {"decode": "spans", "min_prob": 0.9}},
        "training": {
            "max_steps": 2,
            "eval_frequency": 1,
            "optimizer": {"iterations_per_step": 1},
            "before_to_disk": {"@callbacks": "spacy_crf.fit_min_prob.v1", "path": "${paths.dev}"},
        },
    }
    config = load_config(ROOT / "configs" / "crf_ner.cfg", interpolate=False).merge(settings)
    nlp = init_nlp(config)
    train(nlp, tmp_path)
    saved = spacy.load(tmp_path / "model-last")
    chosen = saved.get_pipe("crf_ner").cfg["min_prob"]
    [points] = threshold(saved, folder / "dev.spacy").values()
    assert chosen == shrunk(points) == saved.config["components"]["crf_ner"]["min_prob"] < 0.9
    assert json.loads((tmp_path / "model-last" / "meta.json").read_text())["pipeline"] == ["crf_ner"]


def test_nothing_to_fit_is_an_error(folder):
    fit = registry.callbacks.get("spacy_crf.fit_min_prob.v1")
    with pytest.raises(ValueError, match=r'CRF710.*decode = "spans"'):
        fit(folder / "dev.spacy")(spacy.load(folder / "model"))
    with pytest.raises(ValueError, match=r"CRF020.*beta"):
        fit(folder / "dev.spacy", beta=-1.0)
