"""Explanations, against all labellings of small texts, one by one."""

import json
import math

import numpy as np
import pytest
import spacy
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin, Span, Token
from spacy.training import Example
from spacy.util import import_file
from spacy.vectors import Vectors
from thinc.api import Config
from typer.testing import CliRunner

import spacy_crf.cli  # noqa: F401
from spacy_crf.explain.explain import compare_labels, compare_spans
from spacy_crf.explain.reading import Reading, read_by
from spacy_crf.explain.training_texts import LeftOut, effects_of_texts
from spacy_crf.explain.weights import overview
from spacy_crf.explain.words import changed
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.features.templates import parse_template
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.weights import Weights
from spacy_crf.optimizers.lbfgs import LBFGS
from tests import reference
from tests.models.test_neural import ENCODER
from tests.pipeline.test_probabilities import trained, with_rules
from tests.util import ner_examples, tag_examples

TEMPLATES = ["bias", "lower[-1..1]", "shape[0]", "suffix2[-1]|lower[0]", "ngrams2[0]"]
FEATURES = {"@misc": "spacy_crf.features.v1", "templates": TEMPLATES, "transitions": ["shape[0]"]}
SEGMENTS = {
    "@architectures": "spacy_crf.SparseSegments.v1",
    "features": {
        "@misc": "spacy_crf.segment_features.v1",
        "templates": ["seg.length", "seg.first:lower[-1]", "seg.after:lower", "seg.lower", "seg.contains:shape"],
    },
}
CHAINS = [("crf_ner", {"scheme": scheme}) for scheme in ("BILUO", "BIO", "IO", "IOB1")]
COMPONENTS = [*CHAINS, ("crf_tagger", {}), ("semicrf_ner", {})]


def made(factory, scale=1.0, seed=0, features=FEATURES, path=None, **config):
    """A component whose weights are drawn: its features are those of a few texts."""
    segments = factory == "semicrf_ner"
    model = {"@architectures": f"spacy_crf.{'SemiMarkov' if segments else 'LinearChain'}.v1"}
    model["emissions"] = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    if segments:
        model["segments"] = SEGMENTS
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={"model": config.pop("model", model), **config})
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    words = ["Bob", "Ann", "York", "left"]
    nlp.vocab.vectors = Vectors(data=np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32), keys=words)
    nlp.initialize(lambda: examples)
    draw(pipe, scale, seed)
    if path is not None:
        nlp.to_disk(path)
    return pipe


def draw(pipe, scale, seed=0):
    random = np.random.default_rng(seed)
    for node in pipe.model.walk():
        for name in node.param_names:
            if node.has_param(name):
                node.set_param(name, random.normal(0, scale, node.get_param(name).shape).astype(np.float32))
    pipe.clear_scores()


def words_of(pipe):
    return ["the", "cat", "barks"] if pipe.name == "crf_tagger" else ["Bob", "left", "York"]


def text(pipe, words=None, **kwargs):
    return Doc(pipe.vocab, words=words or words_of(pipe), **kwargs)


def enumerated(pipe, doc, scores=None):
    """Score and spans of every labelling."""
    scores = Reading(pipe, DocBatch([doc])).scores if scores is None else scores
    labels, found = pipe.labels, []
    if hasattr(scores, "tokens"):
        assert len(scores.starts) == 2
        for score, segments in reference.segment_paths(scores, 0, len(doc)):
            found.append((score, frozenset((b, e, labels[s - 1]) for b, e, s in segments if s)))
        return found
    assert len(scores.starts) == 2
    for score, path in reference.paths(scores, 0, len(doc)):
        begin, end, label = pipe.decoding.segments(np.array(path), scores.starts)
        found.append((score, frozenset(zip(begin.tolist(), end.tolist(), (labels[n] for n in label)))))
    return found


def odds(labellings, span, against=None):
    """Log of how much likelier the span is than that it is not there; and the best score with it, less the best without."""
    having = [score for score, spans in labellings if span in spans]
    lacking = [score for score, spans in labellings if (span not in spans if against is None else against in spans)]
    return reference.log_sum(having) - reference.log_sum(lacking), max(having) - max(lacking)


@pytest.fixture(scope="module", params=COMPONENTS, ids=lambda given: "-".join([given[0], *given[1].values()]))
def pipe(request):
    factory, config = request.param
    return made(factory, **config)


def as_span(doc, span):
    return Span(doc, span[0], span[1], label=span[2])


def test_scores_are_those_of_prediction(pipe):
    doc = text(pipe)
    ours, predicted = Reading(pipe, DocBatch([doc])).scores, pipe.model.predict([doc])
    for name in type(ours).AXES:
        np.testing.assert_allclose(getattr(ours, name), getattr(predicted, name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.5, 3.0, 40.0])
def test_sums_are_those_of_all_labellings(pipe, scale):
    """Also of spans of which the probability can't be told from 1, or from 0."""
    doc = text(pipe)
    for seed in range(1, 20):
        draw(pipe, scale, seed)
        labellings = enumerated(pipe, doc)
        spans = sorted({span for _, spans in labellings for span in spans})
        best = max(spans, key=lambda span: odds(labellings, span)[0])
        if scale < 40.0 or odds(labellings, best)[0] > -math.log(1e-9):
            break
    chosen = np.random.default_rng(0).permutation(len(spans))[:3]
    for span in [spans[n] for n in chosen] + [best]:
        expected, gap = odds(labellings, span)
        found = pipe.explain(doc, as_span(doc, span), kind="log_odds")
        assert found.target == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert found.check == pytest.approx(0.0, abs=1e-6 * abs(expected) + 1e-9)
        assert found.totals["1 - probability"] == pytest.approx(1 / (1 + math.exp(expected)), rel=1e-6)
        found = pipe.explain(doc, as_span(doc, span), kind="contrast")
        assert found.target == pytest.approx(gap, rel=1e-6, abs=1e-9)
        assert found.check == pytest.approx(0.0, abs=1e-6 * abs(gap) + 1e-9)
        assert span in found.labelling and span not in found.rival
    assert scale < 40.0 or expected > -math.log(1e-9)  # the last one's


@pytest.mark.parametrize("scale", [0.5, 8.0])
def test_what_is_left_out_is_as_if_it_had_no_weight(pipe, scale):
    draw(pipe, scale, seed=2)
    doc = text(pipe)
    reading = Reading(pipe, DocBatch([doc]))
    labellings = enumerated(pipe, doc, reading.scores)
    span = max({span for _, spans in labellings for span in spans}, key=lambda span: odds(labellings, span)[0])
    found = pipe.explain(doc, as_span(doc, span), kind="leave_out")
    assert found.check is None and found.target == pytest.approx(odds(labellings, span)[0])
    features = pipe.sparse_features
    names, weights = features.states.index.names(), pipe.model.get_ref("emissions").get_param("states")
    of_tokens = [row for row in found.rows if row.feature in names and len(row.tags) == 1]
    assert len(of_tokens) > 5
    for row in of_tokens[:8]:
        n = names.index(row.feature)
        pairs = slice(*features.states.pair_starts[n : n + 2])
        emissions = reading.scores[0].copy()
        emissions[row.token, features.states.pair_columns[pairs]] -= row.value * weights[pairs]
        without = enumerated(pipe, doc, reading.scores._replace(**{reading.scores._fields[0]: emissions}))
        expected = odds(labellings, span)[0] - odds(without, span)[0]
        assert row.contribution == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_transitions_and_ends_that_are_left_out(pipe):
    draw(pipe, 1.0, seed=3)
    doc = text(pipe)
    scores = Reading(pipe, DocBatch([doc])).scores
    scores = scores._replace(
        transitions=np.array(np.broadcast_to(scores.transitions, (3, *scores.transitions.shape[-2:])))
    )
    labellings = enumerated(pipe, doc, scores)
    span = sorted({span for _, spans in labellings for span in spans})[0]
    rows = {(row.feature, row.token): row for row in pipe.explain(doc, as_span(doc, span), kind="leave_out").rows}
    before = odds(labellings, span)[0]
    first, last = (np.where(getattr(scores, name) > -np.inf, 0.0, -np.inf) for name in ("first", "last"))
    expected = before - odds(enumerated(pipe, doc, scores._replace(first=first)), span)[0]
    assert rows["first", 0].contribution == pytest.approx(expected, rel=1e-6, abs=1e-9)
    expected = before - odds(enumerated(pipe, doc, scores._replace(last=last)), span)[0]
    assert rows["last", 2].contribution == pytest.approx(expected, rel=1e-6, abs=1e-9)
    steps = scores.transitions.copy()
    steps[1] -= np.where(steps[1] > -np.inf, pipe.model.get_param("transitions"), 0.0)
    expected = before - odds(enumerated(pipe, doc, scores._replace(transitions=steps)), span)[0]
    assert rows["transition", 1].contribution == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_rows_say_what_their_weights_are(pipe):
    draw(pipe, 1.0, seed=4)
    doc = text(pipe)
    found = pipe.explain(doc, kind="contrast")
    assert found.span is None and found.check == pytest.approx(0.0, abs=1e-9)
    (_, best), (_, second) = pipe.n_best(doc, 2)
    assert found.labelling == [(span.start, span.end, span.label_) for span in best]
    assert found.rival == [(span.start, span.end, span.label_) for span in second]
    assert all(row.contribution == pytest.approx(row.value * row.weight * row.use) for row in found.rows)
    of_words = [row for row in found.rows if row.template == "lower[1]"]
    assert all(row.offset == 1 for row in of_words)
    assert sum(found.by("template").values()) == pytest.approx(found.target)
    assert sum(found.by("token", "tags").values()) == pytest.approx(found.target)


def test_what_it_is_compared_with(pipe):
    draw(pipe, 1.0, seed=5)
    doc = text(pipe)
    labellings = enumerated(pipe, doc)
    one, other = pipe.labels[:2]
    here = Span(doc, 1, 2, label=one)
    for against in (other, Span(doc, 1, 2, label=other)):
        for kind in ("contrast", "log_odds"):
            found = pipe.explain(doc, here, against, kind)
            expected = odds(labellings, (1, 2, one), (1, 2, other))
            assert found.target == pytest.approx(expected[kind == "contrast"], rel=1e-6, abs=1e-9)
            assert found.check == pytest.approx(0.0, abs=1e-6)
            assert "probability" not in found.totals
    labelling = [as_span(doc, span) for span in min(labellings, key=lambda item: item[0])[1]]
    found = pipe.explain(doc, here, labelling, kind="contrast")
    best = max(score for score, spans in labellings if (1, 2, one) in spans)
    assert found.target == pytest.approx(best - min(labellings)[0], rel=1e-5)
    if pipe.name == "crf_tagger":
        return
    found = pipe.explain(doc, here, "O", "log_odds")
    outside = [score for score, spans in labellings if not any(b <= 1 < e for b, e, _ in spans)]
    having = [score for score, spans in labellings if (1, 2, one) in spans]
    assert found.target == pytest.approx(reference.log_sum(having) - reference.log_sum(outside), abs=1e-6)


def test_the_label_need_not_be_given(pipe):
    doc = text(pipe)
    best = next(span for span, _ in pipe.span_probabilities(doc, 0.0) if (span.start, span.end) == (1, 2))
    assert pipe.explain(doc, doc[1:2], kind="contrast").span == (1, 2, best.label_)


def test_sentences_that_have_nothing_to_do_with_it(pipe):
    words = words_of(pipe)
    doc, alone = text(pipe, words + words, sent_starts=[True, False, False] * 2), text(pipe)
    for kind in ("contrast", "log_odds", "leave_out"):
        expected = pipe.explain(alone, Span(alone, 1, 2, label=pipe.labels[0]), kind=kind)
        found = pipe.explain(doc, Span(doc, 4, 5, label=pipe.labels[0]), kind=kind)
        assert found.target == pytest.approx(expected.target)
        assert {row.token for row in found.rows} <= {3, 4, 5, None}
        theirs = [row.contribution for row in expected.rows]
        np.testing.assert_allclose(sorted(row.contribution for row in found.rows), sorted(theirs), atol=1e-9)


@pytest.mark.parametrize("kind", ["contrast", "log_odds", "leave_out", "words"])
def test_texts_of_one_token(pipe, kind):
    """Nothing was left out where there are no transitions: an error of numpy's."""
    doc = text(pipe, words_of(pipe)[:1])
    assert pipe.explain(doc, Span(doc, 0, 1, label=pipe.labels[0]), kind=kind).rows


def test_what_the_doc_settles(pipe):
    doc, label = text(pipe), pipe.labels[0]
    doc.spans["crf_blocked"] = [Span(doc, 0, 1, label=label)]
    doc.spans["crf_forced"] = [Span(doc, 2, 3, label=pipe.labels[1])]
    here = Span(doc, 1, 2, label=label)
    found = pipe.explain(doc, here, kind="log_odds")
    expected = next(p for span, p in pipe.span_probabilities(doc, 0.0) if span == here)
    assert found.totals["probability"] == pytest.approx(expected, rel=1e-5)
    assert found.check == pytest.approx(0.0, abs=1e-6)
    assert (2, 3, pipe.labels[1]) in pipe.explain(doc, here, kind="contrast").rival
    with pytest.raises(ValueError, match="CRF838"):
        pipe.explain(doc, Span(doc, 0, 1, label=label), kind="contrast")


def test_words_answer_by_default(pipe):
    """Who asked why a name was found was told of the bias of the words beside it. The table said each word three times."""
    doc = text(pipe)
    span = Span(doc, 1, 2, label=pipe.labels[0])
    found = pipe.explain(doc, span)
    assert found.kind == "words" and {row.feature for row in found.rows} == {*words_of(pipe)}
    assert {len(row) for row in found.table()} == {len(found.heads)} == {2}
    assert "how much the log-odds fall" in found.to_text() and 'scope="col">word<' in found.to_html()
    near = pipe.explain(doc, span, candidates=0, near=1)
    assert {row.token for row in near.rows} == {0, 1, 2} and not near.flips
    assert [row for row in found.rows if row.token in (0, 1, 2)] == near.rows


@pytest.mark.parametrize("kind", ["contrast", "words"])
@pytest.mark.parametrize("words", [["dogs"], ["old", "dogs"], ["dogs", "bark"]])
def test_tokens_without_any_tag_have_no_most_probable_one(words, kind):
    """The tag of a token was looked up among the tags of the tokens that are left: an error of numpy's."""
    tagger = made("crf_tagger")
    doc = text(tagger, words)
    at = words.index("dogs")
    doc.spans["crf_blocked"] = [Span(doc, at, at + 1, "")]
    for token in range(len(doc)):
        with pytest.raises(ValueError, match=r"CRF838: .*crf_blocked.* without any label"):
            tagger.explain(doc, doc[token : token + 1], kind=kind)


def test_as_text_and_values(pipe):
    doc = text(pipe)
    found = pipe.explain(doc, Span(doc, 1, 2, label=pipe.labels[0]), kind="contrast")
    assert f"'{doc[1].text}' as {pipe.labels[0]}" in found.to_text(top=1) and "others" in found.to_text(top=1)
    for show in (found.to_text, found.to_html, found.table):
        with pytest.raises(ValueError, match="CRF020: An explanation: top = -1"):
            show(top=-1)
    again = json.loads(found.to_json())
    assert again["target"] == found.target and len(again["rows"]) == len(found.rows)
    assert again["rows"][0]["feature"] == found.rows[0].feature and again["check"] == found.check


def test_what_can_not_be_explained_is_said():
    ner, tagger = made("crf_ner"), made("crf_tagger")
    doc = text(ner, ["Bob", "left", "York"], sent_starts=[True, False, True])
    for span, against, code in [
        (Span(doc, 0, 1, label="XYZ"), None, "CRF846"),
        (Span(doc, 0, 1, label="PER"), "XYZ", "CRF846"),
        (Span(doc, 1, 3, label="PER"), None, "CRF838"),
        (Span(doc, 0, 1, label="PER"), "PER", "CRF838"),
        (None, "PER", "CRF838"),
        ("Bob", None, "CRF461"),
    ]:
        with pytest.raises(ValueError, match=code):
            ner.explain(doc, span, against, kind="contrast")
    with pytest.raises(ValueError, match="CRF020"):
        ner.explain(doc, kind="shap")
    with pytest.raises(ValueError, match="candidates"):
        ner.explain(doc, candidates=3, kind="contrast")
    with pytest.raises(ValueError, match="CRF479"):
        ner.explain("Bob", kind="contrast")
    doc = text(tagger)
    with pytest.raises(ValueError, match="CRF838"):
        tagger.explain(doc, Span(doc, 0, 2, label="NN"), kind="contrast")


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_rules_have_their_part(factory):
    rules = [
        {"rule": "at_most", "label": "PER", "n": 1, "weight": 2.0, "name": "few"},
        {"rule": "forbid_pair", "labels": ["GPE", "ORG"], "weight": 1.5, "name": "apart"},
        {"rule": "never_on", "label": "ORG", "phrases": ["left"], "name": "never"},
    ]
    pipe = made(factory, scale=2.0, seed=7, **with_rules(rules))
    doc = text(pipe)

    def ruled(score, spans):
        score -= 2.0 * (max(0, sum(label == "PER" for *_, label in spans) - 1))
        at = {begin: label for begin, _, label in spans}
        score -= 1.5 * sum(label == "GPE" and at.get(end) == "ORG" for _, end, label in spans)
        broken = any(begin <= 1 < end and label == "ORG" for begin, end, label in spans)
        return -math.inf if broken else score

    labellings = [(ruled(score, spans), spans) for score, spans in enumerated(pipe, doc)]
    labellings = [item for item in labellings if item[0] > -math.inf]
    seen = 0
    for span in sorted({span for _, spans in labellings for span in spans})[::3]:
        expected, gap = odds(labellings, span)
        found = pipe.explain(doc, as_span(doc, span), kind="contrast")
        assert found.target == pytest.approx(gap, rel=1e-6) and found.check == pytest.approx(0.0, abs=1e-6)
        seen += any(row.feature.startswith("rule ") for row in found.rows)
        found = pipe.explain(doc, as_span(doc, span), kind="log_odds")
        assert found.target == pytest.approx(expected, rel=1e-6) and found.check == pytest.approx(0.0, abs=1e-6)
    assert seen
    found = pipe.explain(doc, Span(doc, 1, 2, label="ORG"), kind="contrast")
    assert [(rule.name, rule.effect) for rule in found.rules][:1] == [("never", "forbids the span")]
    assert "rule never (never_on) forbids the span" in found.to_text()


# -------------------------------------------------------------------------------------------------- what was learned


def test_weights_are_those_of_the_model(pipe):
    draw(pipe, 1.0, seed=9)
    label = pipe.labels[0]
    rows = pipe.weights(label)
    assert [abs(row.weight) for row in rows] == sorted((abs(row.weight) for row in rows), reverse=True)
    assert all(any(tag.endswith(label) for tag in row.tags) for row in rows)
    assert pipe.weights(label, top=5) == rows[:5] and pipe.weights(label, top=0) == []
    for top in (-1, 2.0, True, "3", float("nan")):  # of which -1 left out the last one, silently
        with pytest.raises(ValueError, match=r"CRF020: Component .*: top"):
            pipe.weights(label, top=top)
    features = pipe.sparse_features
    of_feature = [row for row in pipe.weights() if row.feature == "lower[0]=bob" or row.feature == "lower[0]=cat"]
    n = features.states.index.names().index(of_feature[0].feature)
    pairs = slice(*features.states.pair_starts[n : n + 2])
    weights = pipe.model.get_ref("emissions").get_param("states")[pairs]
    tags = [pipe.tags()[column] for column in features.states.pair_columns[pairs]]
    assert {(row.tags, row.weight) for row in of_feature} == {((tag,), float(w)) for tag, w in zip(tags, weights)}
    assert {row.count for row in of_feature} == {int(features.states.counts[n])}
    steps = {row.tags: row.weight for row in pipe.weights() if row.feature == "transition"}
    shared = pipe.model.get_param("transitions")
    assert steps and all(
        weight == shared[tuple(map(pipe.tags().index, tags))] for tags, weight in steps.items()
    )  # fmt: skip
    with pytest.raises(ValueError, match="CRF846"):
        pipe.weights("XYZ")


def test_a_dump_has_a_line_for_each_weight(pipe):
    lines = pipe.dump().splitlines()
    assert len(lines) == len(pipe.weights())
    assert all(len(line.split("\t")) == 3 for line in lines)


def test_words_that_are_no_words_do_not_break_lines():
    pipe = made("crf_ner")
    doc = Doc(pipe.vocab, words=["a\tb\nc\\", "d"], ents=["B-PER", "O"])
    pipe.initialize(lambda: [Example(Doc(pipe.vocab, words=["a\tb\nc\\", "d"]), doc)])
    draw(pipe, 1.0)
    assert any(line.split("\t")[1] == "lower[0]=a\\tb\\nc\\\\" for line in pipe.dump().splitlines())


def test_an_overview_adds_up(pipe):
    found = overview(pipe, top=3)
    assert sum(row["weights"] for row in found["templates"]) == found["weights"]
    masses = {row["template"]: row["mass"] for row in found["templates"] if row["of"] == "states"}
    rows = [row for row in pipe.weights() if row.template == "lower[1]"]
    assert masses["lower[1]"] == pytest.approx(sum(abs(row.weight) for row in rows), rel=1e-5)
    assert set(found["top"]) - {"O"} == set(pipe.labels)
    assert all(row["weight"] > 0 for sides in found["top"].values() for row in sides["for"])
    assert len(found["transitions"]["transitions"]) == len(pipe.tags())
    json.dumps(found)


def run(*arguments):
    return CliRunner().invoke(app, ["crf", *map(str, arguments)], env={"COLUMNS": "120"})


CODE = """
import spacy

@spacy.registry.misc("test_explain_last.v1")
def make():
    return lambda doc: [[token.text[-1:]] for token in doc]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved pipeline whose features are made by a function that only a file of code knows."""
    folder = tmp_path_factory.mktemp("explained")
    (folder / "code.py").write_text(CODE)
    import_file("test_explain_code", folder / "code.py")
    functions = {"last": {"@misc": "test_explain_last.v1"}}
    features = {**FEATURES, "templates": [*TEMPLATES, "fn:last[0]"], "functions": functions}
    rules = with_rules([{"rule": "at_most", "label": "*", "n": 1, "name": "once"}])
    made("crf_ner", features=features, path=folder / "model", **rules)
    return folder


def test_commands(model):
    pipeline, code = model / "model", ("--code", model / "code.py")
    result = run("inspect", pipeline, *code, "--top", 2)
    assert result.exit_code == 0, result.output
    for expected in (
        "3 labels: GPE, ORG, PER",
        "fn:last[0]",
        "for PER",
        "against ORG",
        "transitions",
        "at_most",
        "for a config: templates = [",
    ):
        assert expected in result.output
    result = run("inspect", pipeline, *code, "--label", "PER", "--json")
    assert list(json.loads(result.output)[0]["top"]) == ["PER"]
    assert "CRF846" in run("inspect", pipeline, *code, "--label", "XYZ").output
    result = run("explain", pipeline, "Bob left York", *code, "--span", "0:1:PER", "--kind", "log_odds")
    assert result.exit_code == 0 and "'Bob' as PER" in result.output
    shorter = run("explain", pipeline, "Bob left York", *code, "--span", "0:1:PER", "--kind", "log_odds", "--top", 1)
    assert " others" in shorter.output and len(shorter.output.splitlines()) < len(result.output.splitlines())
    result = run("explain", pipeline, "Bob left York", *code, "--json", "--kind", "contrast")
    assert all(abs(found["check"]) < 1e-6 for found in json.loads(result.output))
    found = json.loads(run("explain", pipeline, "Bob left York", *code, "--json").output)
    assert {row["template"] for explanation in found for row in explanation["rows"]} == {"word"}
    page = model / "why.html"
    result = run("explain", pipeline, "Bob <left> York", *code, "--span", "0:1", "-o", page)
    assert result.exit_code == 0 and "&lt;" in page.read_text() and "<left>" not in page.read_text()
    assert page.read_text().count("<style>") == 1 and ":root { color-scheme: light dark }" in page.read_text()
    assert "CRF847" in run("explain", pipeline, "Bob left", *code, "--span", "1:7").output
    spacy.blank("en").to_disk(model / "blank")
    refused = run("explain", model / "blank", "Bob").output
    assert "CRF710" in refused and "--label" in refused


# --------------------------------------------------------------------------------------------------- other features


def _model(of_segments=False, **parts):
    name = "SemiMarkov" if of_segments else "LinearChain"
    unless = dict.fromkeys(["emissions", *(["segments"] if of_segments else [])])
    return {"@architectures": f"spacy_crf.{name}.v1", **unless, **parts}


SPARSE = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}
VECTORS = {**FEATURES, "templates": ["bias", "vector[-1..0]"], "transitions": []}
HASHED = {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": 64, "features": {**FEATURES, "transitions": []}}
OTHERS = {
    "hashed": ("crf_ner", _model(emissions=HASHED)),
    "encoder": ("crf_ner", _model(tok2vec=ENCODER, hidden_width=4)),
    "sum": ("crf_tagger", _model(emissions=SPARSE, tok2vec=ENCODER)),
    "pool": ("crf_ner", _model(emissions=SPARSE, tok2vec=ENCODER, joint={"mode": "pool"})),
    "vectors": ("crf_ner", _model(emissions={**SPARSE, "features": VECTORS})),
    "segments of an encoder": ("semicrf_ner", _model(True, emissions=SPARSE, segments=SEGMENTS, tok2vec=ENCODER)),
    "pool of segments": (
        "semicrf_ner",
        _model(True, emissions=SPARSE, segments=SEGMENTS, tok2vec=ENCODER, joint={"mode": "pool"}),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_of_other_parts(name):
    factory, model = OTHERS[name]
    pipe = made(factory, scale=0.7, model=model)
    doc = text(pipe)
    test_scores_are_those_of_prediction(pipe)
    labellings = enumerated(pipe, doc)
    for span in sorted({span for _, spans in labellings for span in spans})[::5]:
        expected, gap = odds(labellings, span)
        found = pipe.explain(doc, as_span(doc, span), kind="contrast")
        assert found.target == pytest.approx(gap) and found.check == pytest.approx(0.0, abs=1e-6)
        assert all(row.contribution == pytest.approx(row.value * row.weight * row.use) for row in found.rows)
        found = pipe.explain(doc, as_span(doc, span), kind="log_odds")
        assert found.target == pytest.approx(expected) and found.check == pytest.approx(0.0, abs=1e-6)
        assert pipe.explain(doc, as_span(doc, span), kind="leave_out").target == pytest.approx(expected)
    templates = {row.template for row in found.rows}
    assert ("tok2vec" in templates) == ("tok2vec" in model)
    if name == "hashed":
        assert {"lower[0]=bob", "lower[-1]=<BOS1>", "bias"} <= {row.feature for row in found.rows}
        assert {row.template for row in pipe.weights("PER")} == {"hashed rows", "transitions", "first", "last"}
    if name == "vectors":
        assert {row.feature for row in found.rows if row.token == 0} >= {"vector[0]", "bias"}
        assert any(row.feature == "vector[0]=#1" for row in pipe.weights("PER"))
    overview(pipe)


def test_hashed_features_of_a_first_stage():
    """They are read once more for their names, by a reader that knew of none."""
    emissions = {**HASHED, "features": {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}}
    config = {"model": _model(emissions=emissions), "second_stage": {"folds": 2, "iterations": 5}}
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config=config)
    pipe.initialize(lambda: ner_examples(nlp), nlp=nlp)
    draw(pipe, 1.0)
    doc = text(pipe, ["Bob", "met", "Bob"])
    found = pipe.explain(doc, Span(doc, 0, 1, label="PER"), kind="log_odds")
    assert found.check == pytest.approx(0.0, abs=1e-6)
    assert any(row.feature.startswith("stage:token_majority[0]=") for row in found.rows)


# ------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    "template, expected",
    [
        ("lower[-1]|shape[2]", ([-1, 2], [], False)),
        ("bias", ([], [], False)),
        ("seg.first:lower[-2]|seg.length", ([-2], [], False)),
        ("seg.before:lower|seg.after:shape", ([-1], [1], False)),
        ("seg.last:lower", ([], [0], False)),
        ("seg.lower", ([], [], True)),
    ],
)
def test_which_tokens_a_template_reads(template, expected):
    assert read_by(template) == expected


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_a_word_that_is_erased_is_read_by_nothing(factory):
    pipe = made(factory, scale=1.0, seed=11)
    doc, label = text(pipe), pipe.labels[0]
    features, layer = pipe.sparse_features, pipe.model.get_ref("emissions")
    scores, found = Reading(pipe, DocBatch([doc])).scores, features.look_up([doc]).features
    rows = {row.token: row for row in pipe.explain(doc, Span(doc, 1, 2, label=label), kind="words").rows}
    assert sorted(rows) == [0, 1, 2]
    before = odds(enumerated(pipe, doc, scores), (1, 2, label))[0]
    for erased, row in rows.items():
        emissions, steps = scores.emissions.copy(), scores.transitions.copy()
        for kind, target in (("states", emissions), ("transitions", steps)):
            table, weights = features.tables[kind], layer.get_param(kind)
            for t in range(3):
                for n in range(*found[kind].starts[t : t + 2]):
                    feature = int(found[kind].rows[n])
                    [template] = parse_template(
                        table.index.feature_names.templates[table.index.feature_names.template_of[feature]]
                    )
                    value = 1.0 if found[kind].values is None else found[kind].values[n]
                    pairs = slice(*table.pair_starts[feature : feature + 2])
                    if str(template) != "bias" and any(t + offset == erased for _, offset in template.parts):
                        target[t].ravel()[table.pair_columns[pairs]] -= value * weights[pairs]
        without = enumerated(pipe, doc, scores._replace(emissions=emissions, transitions=steps))
        assert row.contribution == pytest.approx(before - odds(without, (1, 2, label))[0], abs=1e-6)


@pytest.mark.parametrize("name", ["crf_ner", "semicrf_ner", "pool"])
def test_other_words_change_the_decision(name):
    factory, model = OTHERS.get(name, (name, None))
    pipe = made(factory, scale=1.0, seed=3, **({"model": model} if model else {}))
    doc = text(pipe)
    best = next(span for span, _ in pipe.span_probabilities(doc, 0.0))
    found = pipe.explain(doc, best, kind="words")
    here = (best.start, best.end, best.label_)
    was_found = here in pipe.explain(doc, kind="contrast").labelling
    assert found.flips
    for flip in found.flips:
        other = changed(doc, {token: word for token, _, word in flip.words})
        assert [other[token].text for token, _, _ in flip.words] == [word for _, _, word in flip.words]
        now = [(span.start, span.end, span.label_) for span in pipe.n_best(other, 1)[0][1]]
        assert (here in now) != was_found and now == flip.spans
    assert f"another decision with {found.flips[0].words[0][2]} instead of" in found.to_text()
    with pytest.raises(ValueError, match="CRF020"):
        pipe.explain(doc, best, kind="words", candidates=-1)


def test_a_changed_text_keeps_all_the_rest():
    nlp = spacy.blank("en")
    Token.set_extension("explain_flag", default=None, force=True)
    words, spaces = ["Ann", "left", "York"], [True, True, False]
    tree = {"heads": [1, 1, 1], "deps": ["x", "y", "z"]}
    doc = Doc(nlp.vocab, words, spaces, tags=["A", "B", "C"], pos=["NOUN"] * 3, lemmas=["a", "b", "c"], **tree)
    doc[2]._.explain_flag = "x"
    doc.spans["crf_forced"] = [Span(doc, 2, 3, label="GPE")]
    doc.set_ents([Span(doc, 0, 1, label="PER")])
    other = changed(doc, {0: "Annabella"})
    assert other.text == "Annabella left York" and other[2]._.explain_flag == "x"
    assert [(t.tag_, t.pos_, t.lemma_, t.head.i) for t in other] == [(t.tag_, t.pos_, t.lemma_, t.head.i) for t in doc]
    assert [(s.text, s.label_) for s in (*other.ents, *other.spans["crf_forced"])] == [
        ("Annabella", "PER"),
        ("York", "GPE"),
    ]
    Token.remove_extension("explain_flag")
    parted = Doc(nlp.vocab, words, spaces, sent_starts=[True, False, True])
    assert [token.is_sent_start for token in changed(parted, {1: "x"})] == [True, False, True]


# ------------------------------------------------------------------------------------------------------------- texts


def converged(factory, l1=0.0, l2=0.3, **config):
    pipe = made(factory, **config)
    examples = tag_examples(spacy.blank("en")) if factory == "crf_tagger" else ner_examples(spacy.blank("en"))
    draw(pipe, 0.0)
    pipe.update(examples, sgd=LBFGS(l1=l1, l2=l2, delta=1e-14, iterations_per_step=2000), losses={})
    return pipe, examples


@pytest.mark.parametrize("l1", [0.0, 0.05])
@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger", "semicrf_ner"])
def test_a_contrast_is_a_sum_over_texts(factory, l1):
    pipe, examples = converged(factory, l1)
    doc = text(pipe)
    span = next(span for span, _ in pipe.span_probabilities(doc, 0.0))
    found = pipe.explain(doc, span, kind="texts", corpus=examples, l2=0.3, l1=l1)
    of_weights = pipe.explain(doc, span, kind="contrast")
    assert found.target == pytest.approx(of_weights.target)
    assert abs(found.check) <= 1e-3 * sum(abs(row.contribution) for row in of_weights.rows)
    if l1:
        return
    # What one text adds to all weights, by its own gradient, is what it adds to the contrast of the two labellings.
    weights = Weights(pipe.model)
    learned, shares = weights.weights(), {int(row.feature[1:].split()[0]): row.contribution for row in found.rows}

    def gap(vector):
        weights.assign(vector)
        pipe.clear_scores()
        labellings = dict(map(reversed, enumerated(pipe, doc)))
        return labellings[frozenset(found_labelling)] - labellings[frozenset(of_weights.rival)]

    found_labelling = of_weights.labelling
    for n, example in enumerate(examples):
        data = pipe.training.data([example])
        _, gradient = CorpusObjective(pipe.model, pipe.loss, [data]).evaluate(learned)
        step = -gradient / (2 * 0.3)
        expected = gap(learned + step) - gap(learned)
        weights.assign(learned)
        assert shares.get(n, 0.0) == pytest.approx(expected, abs=1e-4)


def test_options_of_a_kind_that_has_none_are_refused():
    """An option had to be "one of ", and nothing behind it."""
    pipe, _ = converged("crf_ner")
    with pytest.raises(ValueError, match=r"CRF020: .*option = 'candidates' .* left out"):
        pipe.explain(text(pipe), kind="contrast", candidates=3)


def test_texts_that_can_not_be_the_reason_are_refused():
    pipe, examples = converged("crf_ner")
    doc = text(pipe)
    span = Span(doc, 0, 1, label="PER")
    for options, code in [
        ({}, "CRF840"),
        ({"corpus": examples}, "CRF840"),
        ({"corpus": examples[:2], "l2": 0.3}, "CRF840"),
        ({"corpus": examples, "l2": 0.1}, "CRF840"),
    ]:
        with pytest.raises(ValueError, match=code):
            pipe.explain(doc, span, kind="texts", **options)
    with pytest.raises(ValueError, match="CRF840"):
        made(*OTHERS["sum"][:1], model=OTHERS["sum"][1]).explain(doc, kind="texts", corpus=examples, l2=0.1)


def test_texts_are_printed(tmp_path):
    pipe, examples = converged("crf_ner", path=tmp_path / "model")
    pipe.to_disk(tmp_path / "model" / "crf_ner")
    config = Config().from_disk(tmp_path / "model" / "config.cfg", interpolate=False)
    config["training"]["optimizer"] = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.3}
    config.to_disk(tmp_path / "model" / "config.cfg")
    DocBin(docs=[example.reference for example in examples]).to_disk(tmp_path / "train.spacy")
    asked = ("explain", tmp_path / "model", "Bob left York", "--span", "0:1:PER", "--kind", "texts")
    result = run(*asked, "--train", tmp_path / "train.spacy")
    assert result.exit_code == 0 and "Bob left Paris for Acme Corp" in result.output
    result = run(*asked, "--train", tmp_path / "train.spacy", "--effect", "--top", 1, "--json")
    [found] = json.loads(result.output)
    assert [row["effect"] is None for row in found["rows"]] == [False] + [True] * (len(found["rows"]) - 1)
    assert "CRF840" in run(*asked).output


def test_texts_with_wrong_spans_and_rules_in_training():
    rules = [{"rule": "at_most", "label": "PER", "n": 1}]
    nlp = spacy.blank("en")
    examples = ner_examples(nlp)
    examples[0].reference.spans["wrong"] = [Span(examples[0].reference, 3, 4, label="ORG")]
    pipe = made("crf_ner", incorrect_spans_key="wrong", **with_rules(rules, in_training=True))
    draw(pipe, 0.0)
    pipe.update(examples, sgd=LBFGS(l2=0.3, delta=1e-14, iterations_per_step=2000), losses={})
    doc = text(pipe)
    found = pipe.explain(doc, Span(doc, 0, 1, label="PER"), kind="texts", corpus=examples, l2=0.3)
    assert found.check == pytest.approx(0.0, abs=1e-3 * abs(found.target))


def test_untrained_components_and_empty_texts_are_told():
    """`crf inspect` ended in a KeyError, and an empty text was explained by rules that nobody had given."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    ner.add_label("PER")
    for asking in (lambda: overview(ner), lambda: ner.weights("PER"), ner.dump):
        with pytest.raises(ValueError, match="CRF402"):
            asking()
    trained_nlp = trained()
    with pytest.raises(ValueError, match="CRF838"):
        trained_nlp.get_pipe("crf_ner").explain(Doc(trained_nlp.vocab), kind="contrast")


# -------------------------------------------------------------------------------------------- texts that are left out

NAMES, VERBS, PLACES = ["Ann", "Bob", "Eve", "Tom"], ["left", "saw", "likes"], ["Paris", "York", "Rome", "Acme", "Ford"]


def drawn_texts(nlp, n, seed=0):
    random, found = np.random.default_rng(seed), []
    for _ in range(n):
        words = [random.choice(some) for some in (NAMES, VERBS, PLACES, VERBS, NAMES)][: random.integers(3, 6)]
        doc = Doc(nlp.vocab, words=[*map(str, words)])
        labels = ["ORG" if word in ("Acme", "Ford") else "GPE" if word in PLACES else "PER" for word in words]
        spans = [Span(doc, n, n + 1, label=labels[n]) for n, word in enumerate(words) if word not in VERBS]
        doc.ents = [span for span in spans if random.random() < 0.9]  # some are overlooked
        found.append(Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc))
    return found


@pytest.mark.parametrize(
    "factory, l1, n",
    [
        ("crf_ner", 0.0, 8),
        ("crf_ner", 0.02, 16),
        ("semicrf_ner", 0.0, 7),
        ("crf_textcat", 0.0, 12),
    ],
)
def test_effects_of_texts_are_those_of_training_without_them(factory, l1, n):
    """Shares of a contrast, which `kind="texts"` gives, were read as these."""
    nlp, is_textcat = spacy.blank("en"), factory == "crf_textcat"
    architectures = {"crf_ner": "LinearChain.v1", "semicrf_ner": "SemiMarkov.v1", "crf_textcat": "MaxEntText.v1"}
    features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[-1..1]"]}
    model = {"emissions": {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}}
    model["@architectures"] = f"spacy_crf.{architectures[factory]}"
    if factory == "semicrf_ner":
        model["segments"] = SEGMENTS
    pipe, examples = nlp.add_pipe(factory, config={"model": model}), drawn_texts(nlp, n)
    for example in examples:
        example.reference.cats = {"firm" if example.reference[2].text in ("Acme", "Ford") else "place": 1.0}
    nlp.initialize(lambda: examples)
    learn(pipe, examples, l1)
    learned = Weights(pipe.model).weights()
    docs = [Doc(nlp.vocab, words=words) for words in (["Eve", "saw", "Ford", "left"], ["Rome", "likes", "Ann"])]
    spans = [(0, "PER"), (0, "GPE"), (2, "GPE")]
    if is_textcat:
        asked = [compare_labels(pipe, doc, "firm", None) for doc in docs]
    else:
        asked = [compare_spans(pipe, docs[0], Span(docs[0], at, at + 1, label=label), None) for at, label in spans]
    left_out, effects, before = LeftOut(pipe, examples, 0.3, l1), [], []
    for each in asked:
        odds, of_texts = effects_of_texts(each, left_out, n)
        effects.append([of_texts[number] for number in range(n)])
        before.append(odds)
    anew = []
    for number in range(n):
        learn(pipe, examples[:number] + examples[number + 1 :], l1)
        anew.append([each.repeat(DocBatch([each.doc])).measure().odds for each in asked])
        Weights(pipe.model).assign(learned)
        pipe.clear_scores()
    anew = np.array(anew).T - np.array(before)[:, np.newaxis]
    for predicted, true in zip(effects, anew):
        assert np.corrcoef(predicted, true)[0, 1] > 0.95
    slope = (np.array(effects) * anew).sum() / np.square(effects).sum()
    assert slope == pytest.approx(1.0, abs=0.15)  # as large, too


def test_effects_are_told_of_the_texts_that_matter_most():
    pipe, examples = converged("crf_ner", l2=0.3)
    doc = text(pipe)
    span, options = Span(doc, 0, 1, label="PER"), {"kind": "texts", "corpus": examples, "l2": 0.3}
    shares, every = (pipe.explain(doc, span, effect=effect, **options).rows for effect in (False, True))
    assert all(row.effect is None for row in shares) and len(every) == len(examples)
    sizes = [abs(row.effect) for row in every]
    assert sizes == sorted(sizes, reverse=True)
    few = pipe.explain(doc, span, effect=2, **options)
    assert [row.effect is None for row in few.rows] == [False, False] + [True] * (len(few.rows) - 2)
    assert few.rows[0] in every and few.check == pytest.approx(0.0, abs=1e-3)
    lines = few.to_text().splitlines()
    assert lines[3].endswith(f"without it log-odds {few.rows[0].effect:+.4f}") and "effect=True" not in lines[2]


def learn(pipe, examples, l1):
    pipe.update(examples, sgd=LBFGS(l1=l1, l2=0.3, delta=1e-9, iterations_per_step=500), losses={})


def test_effects_that_are_not_known_are_refused():
    pipe, examples = converged("crf_ner", l2=0.3)
    span = Span(text(pipe), 0, 1, label="PER")
    pipe.loss.smooth = False
    with pytest.raises(ValueError, match=r"CRF834.*no second derivatives"):
        pipe.explain(span.doc, span, kind="texts", corpus=examples, l2=0.3, effect=True)
    del pipe.loss.smooth
    assert "effect=True" in pipe.explain(span.doc, span, kind="texts", corpus=examples, l2=0.3).to_text()
    with pytest.raises(ValueError, match=r"CRF020.*effect"):
        pipe.explain(span.doc, span, kind="texts", corpus=examples, l2=0.3, effect=-1)


def test_explanations_and_weights_are_printed_as_tables():
    """Hundreds of named tuples were."""
    pipe = made("crf_ner")
    found = pipe.explain(text(pipe), kind="contrast")
    assert str(found) == found.to_text()
    weights = pipe.weights("PER")
    assert isinstance(weights, list) and weights == [*weights] and isinstance(weights[:3], list)
    lines = repr(weights).splitlines()
    assert len(lines) == 22 and lines[0].split() == ["weight", "for", "feature", "count"]
    assert f"{weights[0].weight:+.4f}" in lines[1] and weights[0].feature in lines[1] and "others" in lines[-1]
    html = weights._repr_html_()
    assert html.count("<tr>") == 22 and weights[0].feature in html
    assert repr(weights[:0]).split() == lines[0].split()
