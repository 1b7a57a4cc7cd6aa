"""Explanations of ``crf_textcat``, against all labels, one by one."""

import json
import math

import numpy as np
import pytest
from spacy.tokens import Span
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.explain.reading import Reading
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.pipeline import test_independent_labels
from tests.pipeline.test_crf_textcat import MODELS, TEXTS, WORDS, examples_of, trained

TEXT = "is there a record on monday . play it"


@pytest.fixture(scope="module", params=MODELS)
def nlp(request):
    """A trained pipeline of each kind. Do not change."""
    return trained(request.param)


def about(nlp, text=TEXT):
    return nlp.get_pipe("crf_textcat"), nlp.get_pipe("sentencizer")(nlp.make_doc(text))


def log_odds(probabilities, label, against=None):
    others = [p for name, p in probabilities.items() if (name != label if against is None else name == against)]
    return math.log(probabilities[label]) - math.log(sum(others))


def scores_of(pipe, doc):
    return Reading(pipe, DocBatch([doc])).scores


def labels_of(pipe, scores):
    """Probability of each label."""
    [row] = pipe.decoding.structure.marginals(scores)
    return dict(zip(pipe.labels, row.tolist()))


@pytest.mark.parametrize("against", [None, "WEATHER"])
def test_rows_add_up(nlp, against):
    pipe, doc = about(nlp)
    probabilities = pipe.probabilities(doc)
    for label in ("PLAY", "BOOK"):
        odds = log_odds(probabilities, label, against)
        found = pipe.explain(doc, label, against, kind="log_odds")
        assert found.target == pytest.approx(odds, abs=1e-4) and found.check == pytest.approx(0.0, abs=1e-6)
        assert found.base == pytest.approx(0.0 if against else -math.log(2), abs=1e-9)
        found = pipe.explain(doc, label, against, kind="contrast")
        rival = against or max((p, name) for name, p in probabilities.items() if name != label)[1]
        assert (found.labelling, found.rival) == ([(0, len(doc), label)], [(0, len(doc), rival)])
        assert found.target == pytest.approx(log_odds(probabilities, label, rival), abs=1e-4)
        assert found.check == pytest.approx(0.0, abs=1e-9) and found.totals["log-odds"] == pytest.approx(odds, abs=1e-4)
        assert all(row.contribution == pytest.approx(row.value * row.weight * row.use) for row in found.rows)
        assert len({row.token for row in found.rows}) > 5
    assert pipe.explain(doc, kind="contrast").span == (0, len(doc), next(iter(probabilities)))
    assert f"as {label}, against {against or 'everything else'}" in str(found)


def test_what_is_left_out_is_as_if_it_had_no_weight(nlp):
    pipe, doc = about(nlp)
    reading = Reading(pipe, DocBatch([doc]))
    before = log_odds(labels_of(pipe, reading.scores), "PLAY")
    found = pipe.explain(doc, "PLAY", kind="leave_out")
    assert found.check is None and found.target == pytest.approx(before)
    [terms] = reading._layers[0][0].terms
    array = "units" if hasattr(reading.scores, "units") else "emissions"
    compared = 0
    for row in found.rows[:6]:
        chosen = np.array(
            [
                terms.place[n] == row.token and terms.name(int(terms.feature[n])).name == row.feature
                for n in range(len(terms.place))
            ]
        )
        changed = getattr(reading.scores, array).copy()
        np.subtract.at(changed, (terms.row[chosen], terms.column[chosen]), (terms.value * terms.weight)[chosen])
        after = log_odds(labels_of(pipe, reading.scores._replace(**{array: changed})), "PLAY")
        if row.token is not None:
            assert row.contribution == pytest.approx(before - after, rel=1e-6, abs=1e-9)
            compared += 1
    assert compared > 3
    name = "labels" if array == "units" else "first"
    own = next(row for row in found.rows if row.template == name)
    none = reading.scores._replace(**{name: np.zeros_like(getattr(reading.scores, name))})
    assert own.contribution == pytest.approx(before - log_odds(labels_of(pipe, none), "PLAY"), abs=1e-9)


def test_words_are_what_evidence_says_where_features_read_one_each():
    pipe, doc = about(trained("bag", features=WORDS))
    found = pipe.explain(doc, "PLAY", kind="words", candidates=1)
    assert [row.contribution for row in sorted(found.rows, key=lambda row: row.token)] == pytest.approx(
        [value for _, value in pipe.evidence(doc, "PLAY")], abs=1e-4
    )
    assert found.flips and ("PLAY" in {flip.spans[0][2] for flip in found.flips}) != (
        pipe.explain(doc, kind="contrast").span[2] == "PLAY"
    )


def test_features_of_naive_bayes_are_logarithms_of_frequencies():
    pipe, doc = about(trained("counts", features=WORDS, steps=0), "play rain")
    found = pipe.explain(doc, "PLAY", "WEATHER", kind="contrast")
    n_words = {label: sum(len(text.split()) for text, own in TEXTS if own == label) for label in pipe.labels}
    vocabulary = len({word for text, _ in TEXTS for word in text.split()})
    met = {("play", "PLAY"): 2, ("play", "WEATHER"): 0, ("rain", "PLAY"): 0, ("rain", "WEATHER"): 2}
    rows = {(row.feature.partition("=")[2], row.tags[0]): row for row in found.rows if row.token is not None}
    assert {key: row.weight for key, row in rows.items()} == {
        (word, label): pytest.approx(math.log((n + 1) / (n_words[label] + vocabulary)), rel=1e-5)
        for (word, label), n in met.items()
    }
    assert all(row.use == (1.0 if row.tags == ("PLAY",) else -1.0) for row in found.rows)


def test_what_can_not_be_explained_is_said():
    nlp = trained("bag")
    pipe, doc = about(nlp)
    examples = examples_of(nlp)
    for arguments, code in [(("X",), "CRF846"), (("PLAY", "X"), "CRF846"), (("PLAY", "PLAY"), "CRF838")]:
        with pytest.raises(ValueError, match=code):
            pipe.explain(doc, *arguments, kind="contrast")
    with pytest.raises(ValueError, match="CRF846"):
        pipe.explain(doc, Span(doc, 0, 1, label="PLAY"), kind="contrast")
    with pytest.raises(ValueError, match="CRF838"):
        pipe.explain(nlp.make_doc(""), kind="contrast")
    pipe, doc = about(trained("counts"))
    with pytest.raises(ValueError, match="CRF840"):
        pipe.explain(doc, "PLAY", kind="texts", corpus=examples, l2=0.1)


@pytest.mark.parametrize("against", [None, "BOOK", "WEATHER"])
def test_every_label_of_a_text_is_a_sum_over_texts(against):
    """The number of the label among its rivals was taken for the label: all labels but the first were refused."""
    nlp = trained("bag", steps=0, optimizer=None)
    pipe, doc = about(nlp)
    examples = examples_of(nlp)
    nlp.update(examples, sgd=LBFGS(l2=0.1, delta=0.0, tolerance=1e-11, iterations_per_step=3000))
    for label in pipe.labels:
        if label != against:
            found = pipe.explain(doc, label, against, kind="texts", corpus=examples, l2=0.1)
            assert found.target == pytest.approx(pipe.explain(doc, label, against, kind="contrast").target)
            assert sum(row.contribution for row in found.rows) == pytest.approx(found.target, abs=1e-3)


def test_command(tmp_path):
    nlp = trained("bag")
    nlp.to_disk(tmp_path / "model")
    run = CliRunner().invoke
    found = run(app, ["explain", str(tmp_path / "model"), TEXT, "--json"])
    assert found.exit_code == 0, found.output
    [explanation] = json.loads(found.output)
    assert explanation["span"][2] == nlp.get_pipe("crf_textcat").explain(about(nlp)[1], kind="contrast").span[2]
    found = run(
        app, ["explain", str(tmp_path / "model"), TEXT, "--label", "BOOK", "--against", "WEATHER", "--top", "3"]
    )
    assert found.exit_code == 0 and "as BOOK, against WEATHER" in " ".join(found.output.split())
    refused = run(app, ["explain", str(tmp_path / "model"), TEXT, "--span", "0:1"])
    assert refused.exit_code == 1 and "CRF710" in refused.output


def test_each_label_that_a_text_gets_is_explained(tmp_path):
    """With several labels, only the most probable one was."""
    nlp = test_independent_labels.trained(steps=1, threshold=0.001)
    nlp.to_disk(tmp_path / "model")
    found = CliRunner().invoke(app, ["explain", str(tmp_path / "model"), "love and war", "--json"])
    labels = [explanation["span"][2] for explanation in json.loads(found.output)]
    assert len(labels) > 1 and labels == nlp.get_pipe("crf_textcat").labels_of(nlp.make_doc("love and war"))
