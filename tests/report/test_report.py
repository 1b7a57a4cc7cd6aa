"""Reports: what kind of mistake is what, figures with intervals, wrong annotation, the page, and the commands."""

import base64
import hashlib
import itertools
import json
import math
import re
from html.parser import HTMLParser

import catalogue
import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.scorer import Scorer
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from spacy_crf.cli.evaluate import _around
from spacy_crf.pipeline.annotation.trimming import Mention
from spacy_crf.report import charts, figures, suspects
from spacy_crf.report.cases import KINDS, Case, Judged, judge, match
from spacy_crf.report.page import parts, render
from tests.cli.test_commands import run
from tests.pipeline import test_crf_textcat
from tests.pipeline.test_probabilities import trained, with_rules
from tests.util import NER_TEXTS, draws, ner_doc, ner_examples, tag_examples


@pytest.fixture(scope="module")
def nlp():
    """Do not change."""
    return trained(iterations=4, **with_rules([{"rule": "at_most", "label": "GPE", "n": 1}]))


@pytest.fixture(scope="module")
def examples(nlp):
    texts = [
        *NER_TEXTS,
        "[Bob](ORG) left [Rome](GPE) and [Paris](GPE) .",
        "[Bob left](PER) [Oslo](PER) for Acme Corp .",
    ]
    return ner_examples(nlp, texts)


@pytest.fixture(scope="module")
def judged(nlp, examples):
    return judge(nlp, [nlp.get_pipe("crf_ner")], examples)[0]


def mentions(*places):
    return [Mention(start, end, label) for start, end, label in places]


# ---------------------------------------------------------------------------------------------------- what is what


@pytest.mark.parametrize(
    "gold, found, kinds",
    [
        ([(0, 3, "A")], [(0, 3, "A")], ["right"]),
        ([(0, 3, "A")], [(0, 3, "B")], ["label"]),
        ([(0, 3, "A")], [(0, 5, "A")], ["boundary"]),
        ([(0, 3, "A")], [(2, 5, "B")], ["both"]),
        ([(0, 3, "A")], [(3, 5, "A")], ["missed", "spurious"]),
        ([(0, 3, "A")], [], ["missed"]),
        ([], [(0, 3, "A")], ["spurious"]),
        # the right one is not taken for a wrong one that begins before it
        ([(2, 4, "A")], [(0, 3, "A"), (2, 4, "A")], ["spurious", "right"]),
        # the same label before more characters
        ([(0, 9, "A")], [(0, 5, "B"), (6, 9, "A")], ["boundary", "spurious"]),
        ([(0, 4, "A"), (5, 9, "A")], [(0, 9, "A")], ["boundary", "missed"]),
    ],
)
def test_kinds(gold, found, kinds):
    matched = match(mentions(*gold), mentions(*found))
    assert sorted(case.kind for case in matched) == sorted(kinds)


spans = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 4), st.sampled_from("AB")), max_size=6, unique_by=lambda item: item[0]
)


@given(gold=spans, found=spans)
def test_everything_is_matched_once(gold, found):
    gold, found = (mentions(*((s, s + n, label) for s, n, label in items)) for items in (gold, found))
    matched = match(gold, found)
    assert sorted(case.gold for case in matched if case.gold) == sorted(gold)
    assert sorted(case.found for case in matched if case.found) == sorted(found)
    assert sum(case.kind == "right" for case in matched) == len({*gold} & {*found})
    for _, kind, g, f in matched:
        assert (kind == "missed") == (f is None) and (kind == "spurious") == (g is None)
        assert g is None or f is None or (g.start < f.end and f.start < g.end)


def test_a_chart_of_confusions_has_every_number_and_is_darkest_where_the_row_is():
    chart = charts.confusion(["A&B", "LONGER_THAN_THAT"], np.array([[3, 1, 0], [0, 5, 0], [0, 0, 0]]))
    assert re.findall(r'fill="(#\w+)">(\d+)<', chart) == [("#fff", "3"), ("#000", "1"), ("#fff", "5")]
    assert re.findall(r'fill-opacity="(.*?)"', chart) == ["0.75", "0.25", "1.00"]
    assert "A&amp;B" in chart and "LONGER_THAN_THAT" not in chart and chart.count("spurious") == 1
    assert chart._repr_svg_() == charts.alone(chart).decode("utf8")


def test_probabilities_are_those_of_the_component(nlp, judged, examples):
    ner, wrong = nlp.get_pipe("crf_ner"), judged.errors
    assert {case.kind for case in wrong} >= {"label", "missed"}
    for case in wrong:
        known = {
            (span.start_char, span.end_char, span.label_): p
            for span, p in ner.span_probabilities(examples[case.doc].predicted, 1e-3)
        }
        for mention in filter(None, (case.gold, case.found)):
            assert mention.probability == pytest.approx(known.get(mention.place, 0.0))


def test_what_is_not_annotated_is_not_judged(nlp):
    doc = ner_doc(nlp, "[Bob](PER) left [Paris](GPE) .")
    doc.set_ents([doc.ents[0]], missing=[doc[1:4]], default="outside")
    example = Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc)
    (judged,) = judge(nlp, [nlp.get_pipe("crf_ner")], [example])
    assert [(case.kind, case.found.label) for case in judged.cases] == [("right", "PER")]


# ---------------------------------------------------------------------------------------------------------- figures


def test_scores_are_those_of_spacy(judged):
    expected = Scorer.score_spans(judged.examples, "ents")
    rows = {row.label: row for row in figures.scores(judged)}
    everything = rows.pop("all")
    assert everything.f.value == pytest.approx(expected["ents_f"])
    assert everything.precision.value == pytest.approx(expected["ents_p"])
    assert everything.recall.value == pytest.approx(expected["ents_r"])
    assert {label: row.f.value for label, row in rows.items()} == {
        label: pytest.approx(scores["f"]) for label, scores in expected["ents_per_type"].items()
    }


def test_the_share_of_whole_texts_is_that_of_texts_without_mistakes(nlp, judged):
    wrong = {case.doc for case in judged.errors}
    share = figures.whole_texts(judged)
    assert 0 < len(wrong) < len(judged.examples)
    assert (
        share.value
        == 1 - len(wrong) / len(judged.examples)
        == nlp.get_pipe("crf_ner").score(judged.examples)["ents_texts"]
    )
    assert share == figures.wilson(len(judged.examples) - len(wrong), len(judged.examples))
    assert f"no others: {100 * share.value:.1f} %" in render("texts", [judged])


def test_intervals_are_quantiles_of_samples_of_texts(judged):
    """Against all samples of a few texts, each as probable as the others."""
    few = judged._replace(examples=judged.examples[4:], cases=[])
    few = few._replace(cases=[case._replace(doc=case.doc - 4) for case in judged.cases if case.doc >= 4])
    counts = [
        [sum(c.doc == d and bool(t(c)) for c in few.cases) for t in (lambda c: c.gold, lambda c: c.found)]
        for d in range(4)
    ]
    right = [sum(c.doc == d and c.kind == "right" for c in few.cases) for d in range(4)]
    values = []
    for sample in itertools.product(range(4), repeat=4):
        both = sum(sum(counts[d]) for d in sample)
        values.append(2 * sum(right[d] for d in sample) / both if both else 0.0)
    low, high = np.quantile(values, [0.025, 0.975])
    f = figures.scores(few)[0].f
    assert (f.low, f.high) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))
    assert f.low < f.value < f.high
    assert figures.scores(few) == figures.scores(few)


def test_confusion(judged):
    labels = figures.labels_of(judged.cases)
    table = figures.confusion(judged.cases, labels)
    assert table.sum() == len(judged.cases) and table[-1, -1] == 0
    assert table[:-1].sum() == sum(len(example.reference.ents) for example in judged.examples)
    assert table[:, :-1].sum() == sum(len(example.predicted.ents) for example in judged.examples)
    by_label = {row.label: row for row in figures.scores(judged)[1:]}
    assert [int(n) for n in table[:-1].sum(axis=1)] == [by_label[label].n_gold for label in labels]


def test_wilson():
    """The example of Brown, Cai & DasGupta's calculators: 8 of 10."""
    assert figures.wilson(8, 10) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-6)
    assert figures.wilson(0, 0) == (0.0, 0.0, 1.0)
    assert figures.wilson(0, 5).low == pytest.approx(0.0) and figures.wilson(5, 5).high == pytest.approx(1.0)


def test_groups(nlp, judged):
    judged = judged._replace(training=ner_examples(nlp))
    for groups in (figures.by_length(judged), figures.by_frequency(judged), figures.by_words(judged)):
        assert sum(group.n for group in groups) == sum(case.gold is not None for case in judged.cases)
    length = {group.name: group.n for group in figures.by_length(judged)}
    assert length == {"1 token": 8, "2 tokens": 8, "3 tokens": 1}
    frequency = {group.name: group.n for group in figures.by_frequency(judged)}
    # never: Bob (ORG), Bob left, Oslo; once: Paris twice, Rome twice, Carla Diaz, Blue Sky Ltd; the others twice
    assert frequency == {"0 times in training": 3, "1 time in training": 6, "2 to 4 times in training": 8}
    assert {group.name: group.n for group in figures.by_words(judged)} == {
        "all words known": 16,
        "with unknown words": 1,
    }


# ----------------------------------------------------------------------------------------------------------- suspects


def test_annotation_that_was_spoilt_is_found(nlp):
    texts = [text for text in NER_TEXTS for _ in range(4)]
    texts[6] = texts[6].replace("[Paris](GPE)", "[Paris](ORG)")
    texts[14] = "Acme Corp hired [Ann Lee](PER) and [Bob](PER) ."
    examples = ner_examples(nlp, texts)
    folds = []
    found = suspects.cross_validated(nlp, nlp.get_pipe("crf_ner"), examples, 4, on_fold=lambda: folds.append(1))
    assert len(folds) == 4
    first = found[:2]
    assert {suspect.text for suspect in first} == {examples[6].reference.text, examples[14].reference.text}
    assert all(suspect.log_ratio > 0 for suspect in first)
    wrong = next(suspect for suspect in first if "Paris" in suspect.text)
    assert ({m.label for m in wrong.gold}, {m.label for m in wrong.best}) == ({"PER", "ORG"}, {"PER", "GPE", "ORG"})


def test_suspects_of_texts_with_other_ends_of_lines_are_read_again():
    suspect = suspects.Suspect(
        "Ann\u2028ran\x85\r\n", 1.5, [], [Mention(0, 3, "PER")], {"place": "a.jsonl, line 3", "id": 7}
    )
    assert suspects.of_jsonl(suspects.to_jsonl([suspect, suspect])) == [suspect, suspect]
    assert suspects.of_jsonl("") == []


def test_the_ratio_is_that_of_the_two_labellings(nlp):
    ner = nlp.get_pipe("crf_ner")
    (example,) = ner_examples(nlp, ["[Ann Lee](ORG) lives in [New York](GPE) ."])
    (suspect,) = suspects.judged_by(ner, [example])
    probabilities = [
        ner.log_probability(
            example.predicted, [example.predicted.char_span(m.start, m.end, label=m.label) for m in said]
        )
        for said in (suspect.best, suspect.gold)
    ]
    assert suspect.log_ratio == pytest.approx(probabilities[0] - probabilities[1])
    assert math.exp(probabilities[0]) == pytest.approx(ner.n_best(example.predicted, 1)[0][0])


def test_mistakes_are_explained(judged):
    from spacy_crf.report.cases import reasons

    (number,) = (n for n, case in enumerate(judged.errors) if case.kind == "label")
    case = judged.errors[number]
    doc = judged.examples[case.doc].predicted
    found, gold = (doc.char_span(m.start, m.end, label=m.label) for m in (case.found, case.gold))
    rows = judged.pipe.explain(doc, found, against=gold).table(6)[:6]
    assert [(f"{amount:+.4f}", word) for word, amount in reasons(judged)[number]] == rows
    assert len(reasons(judged, 2)) == 2


def test_only_what_has_no_rival_is_left_unexplained(nlp, monkeypatch):
    """Any ValueError passed for that, also spaCy's about an installation that is out of date."""
    from spacy_crf.report.cases import reasons

    ner = nlp.get_pipe("crf_ner")
    doc = Doc(nlp.vocab, words=["Bob", "left", "Ann", "Lee"], sent_starts=[True, False, False, True])
    found, crossing = Mention(0, 3, "PER", 0.9), Mention(9, 16, "PER", 0.1)
    cases = [Case(0, "missed", crossing, None), Case(0, "spurious", None, found)]
    judged = Judged(ner, [Example(doc, doc)], cases, [doc.text])
    assert list(reasons(judged)) == [1]
    monkeypatch.setattr(type(ner), "explain", lambda *_, **__: catalogue.create("test").get("nothing"))
    with pytest.raises(catalogue.RegistryError):
        reasons(judged)


def test_the_component_stays_as_it_is(nlp):
    ner = nlp.get_pipe("crf_ner")
    before = ner.to_bytes()
    suspects.cross_validated(nlp, ner, ner_examples(nlp), 2)
    assert ner.to_bytes() == before


@pytest.mark.parametrize("folds", [1, 7])
def test_folds_need_texts(nlp, folds):
    with pytest.raises(ValueError, match=r"CRF890.*folds on 6 texts"):
        suspects.cross_validated(nlp, nlp.get_pipe("crf_ner"), ner_examples(nlp), folds)


# --------------------------------------------------------------------------------------------------------------- page


class Page(HTMLParser):
    """The elements of a page with what is in them."""

    def __init__(self, html):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self._open:
            self._open[-1][2].append(data)

    def named(self, tag):
        return [(attrs, "".join(texts)) for name, attrs, texts in self.elements if name == tag]


def test_a_page_is_whole_and_asks_for_nothing(judged, nlp):
    html = render("A report", [judged._replace(training=ner_examples(nlp))], curve=[(10, 0.5), (20, 0.75)])
    page = Page(html)
    used = {
        value for _, attrs, _ in page.elements for name, value in attrs.items() if name in ("src", "href", "action")
    }
    assert not used and "http://" not in html and "https://" not in html and "@import" not in html
    policy = next(attrs["content"] for attrs, _ in page.named("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")
    sources = [text for attrs, text in page.named("style") + page.named("script") if "type" not in attrs]
    for source in sources:
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(sources) == 2 and not re.search(r'\sstyle="', html)
    errors = json.loads(next(text for attrs, text in page.named("script") if "type" in attrs))
    assert len(errors) == len(judged.errors)
    assert {error["kind"] for error in errors} == {KINDS[case.kind] for case in judged.errors}
    assert [error["at"] for error in errors if "why" not in error] == []
    assert len(page.named("svg")) == 6  # scores, calibration, three groups, the curve
    assert "at_most" in html


HOSTILE = "</script><script>alert(1)</script>"


def test_texts_and_labels_are_no_markup():
    nlp = spacy.blank("en")
    label = "<b>&\"'"
    nlp.add_pipe("crf_ner").add_label(label)
    doc = Doc(nlp.vocab, words=["say", HOSTILE, "now"], ents=["O", f"B-{label}", "O"])
    other = Doc(nlp.vocab, words=["say", "that", "now"], ents=["O"] * 3)
    examples = [Example(Doc(nlp.vocab, words=[token.text for token in gold]), gold) for gold in (doc, other)]
    nlp.initialize(lambda: examples)
    html = render(HOSTILE, [judge(nlp, [nlp.get_pipe("crf_ner")], examples)[0]._replace(training=examples)])
    assert HOSTILE not in html and label not in html
    page = Page(html)
    assert len(page.named("script")) == 2
    (error,) = json.loads(page.named("script")[0][1])
    assert (error["gold"][0], "".join(text for text, _ in error["parts"])) == (label, f"say {HOSTILE} now ")


@draws(25)
@given(start=st.integers(0, 300), width=st.integers(1, 60), shift=st.integers(-80, 80))
def test_parts_are_the_text_around_a_mistake(start, width, shift):
    from spacy_crf.report.cases import Case

    text = "".join(chr(97 + n % 26) for n in range(500))
    gold = Mention(start, start + width, "A")
    found = Mention(max(0, start + shift), max(0, start + shift) + width, "A")
    pieces = parts(text, Case(0, "boundary", gold, found))
    shown = [piece for piece in pieces if piece[0] not in ("… ", " …")]
    assert "".join(piece for piece, _ in shown) in text
    for name, mention in (("gold", gold), ("found", found)):
        assert "".join(t for t, role in shown if role in (name, "both")) == text[mention.start : mention.end]


# ------------------------------------------------------------------------------------------------------ the commands


@pytest.fixture(scope="module")
def files(tmp_path_factory, nlp, examples):
    folder = tmp_path_factory.mktemp("report")
    nlp.to_disk(folder / "model")
    DocBin(docs=[example.reference for example in examples]).to_disk(folder / "data.spacy")
    DocBin(docs=[example.reference for example in examples[:6]]).to_disk(folder / "train.spacy")
    (folder / "curve.json").write_text('[{"texts": 3, "score": 0.5}, {"texts": 6, "score": 0.625}]')
    (folder / "bad.json").write_text('[{"texts": 3}]')
    return folder


def test_report(files, tmp_path):
    target = tmp_path / "new" / "report.html"
    options = ["--train", files / "train.spacy", "--folds", "2", "--curve", files / "curve.json", "--output", target]
    code, printed = run("evaluate", files / "model", files / "data.spacy", *options)
    assert code == 0 and "Report in" in printed
    html = target.read_text(encoding="utf8")
    assert "data.spacy, document 8" in html  # where the text with the last mistake stands
    assert "/model on data.spacy" in html and "in the training texts" in html and "Learning curve" in html


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a b [x] c d", "a b x c d"),
        (
            "Everything before that place was told [x] and after it\nthere is something to say",
            "before that place was told x and after it there is",
        ),
        (
            "東京都千代田区丸の内一丁目九番一号東京都千代田区丸の内一丁目九番一号[x]",
            "代田区丸の内一丁目九番一号東京都千代田区丸の内一丁目九番一号x",
        ),
        (f"[{'x' * 40}]", "x" * 40),
    ],
)
def test_mistakes_are_shown_between_whole_words(text, shown):
    first = text.index("[")
    text = text.replace("[", "").replace("]", "")
    last = text.rindex("x") + 1
    assert _around(text, first, last) == shown


def test_errors(files, capsys):
    code, printed = run("evaluate", files / "model", files / "data.spacy", "--kind", "missed")
    assert code == 0 and "missed" in printed and "wrong label" not in printed and "whole texts right" in printed
    code, printed = run("evaluate", files / "model", files / "data.spacy", "--label", "GPE", "--json")
    found = json.loads(printed)["crf_ner"]
    assert code == 0 and found["scores"]["all"]["annotated"] == 17
    assert {*found["whole_texts"]} == {"value", "low", "high"}
    assert all(e["place"] == f"{files / 'data.spacy'}, document {e['text'] + 1}" for e in found["errors"])
    assert all("GPE" in ((e["annotated"] or {}).get("label"), (e["found"] or {}).get("label")) for e in found["errors"])


@pytest.mark.parametrize(
    "command, message",
    [
        (["evaluate", "model", "data.spacy", "--folds", "2"], "CRF788"),
        (["evaluate", "model", "data.spacy", "--train", "train.spacy", "--calibration"], "CRF788"),
        (["evaluate", "model", "data.spacy", "--curve", "bad.json"], "CRF701"),
        (["evaluate", "model", "data.spacy", "--train", "train.spacy", "--folds", "9"], "CRF890"),
        (["evaluate", "model", "data.spacy", "--kind", "odd"], "CRF020"),
        (["evaluate", "model", "data.spacy", "--component", "other"], "CRF710"),
    ],
)
def test_what_is_wrong_is_said(files, tmp_path, command, message):
    paths = [files / word if (files / word).exists() else word for word in command]
    code, printed = run(*paths, "--output", tmp_path / "report.html")
    assert code == 1 and message in printed
    assert not any(tmp_path.iterdir())


def test_taggers():
    nlp = trained("crf_tagger", iterations=2)
    examples = tag_examples(nlp, ["the/NN dog/NN barks/VB", "a/DT cat/NN sleeps/VB"])
    (judged,) = judge(nlp, [nlp.get_pipe("crf_tagger")], examples)
    rows = figures.scores(judged)
    accuracy = nlp.evaluate(examples)["tag_acc"]
    assert rows[0].n_gold == 6 and rows[0].f.value == pytest.approx(accuracy) and accuracy < 1
    html = render("tags", [judged._replace(training=examples)])
    assert "by length" not in html and "wrong label" in html and "right as a whole" not in html
    assert figures.whole_texts(judged) is None
    assert [suspect.text for suspect in suspects.judged_by(judged.pipe, examples)] == ["the dog barks "]


WRONG_TEXTS = [("play rain on monday", "WEATHER"), ("the table", "PLAY"), ("is there rain", {"BOOK": 0.0})]


@pytest.mark.parametrize("kind", ["bag", "counts"])
def test_labels_of_texts(kind, tmp_path):
    """The README and report.md spoke of every component; `report` and `errors` refused this one."""
    nlp = test_crf_textcat.trained(kind)
    pipe = nlp.get_pipe("crf_textcat")
    examples = test_crf_textcat.examples_of(nlp, [*test_crf_textcat.TEXTS, *WRONG_TEXTS])
    (judged,) = judge(nlp, [pipe], examples)
    assert len(judged.cases) == len(examples) - 1  # the last text is annotated in part
    probabilities = [pipe.probabilities(example.predicted) for example in judged.examples]
    for case in judged.cases:
        [gold] = [label for label, value in examples[case.doc].reference.cats.items() if value]
        best = next(iter(probabilities[case.doc]))
        assert (case.gold.label, case.found.label) == (gold, best) and case.kind in ("right", "label")
        assert case.gold.probability == pytest.approx(probabilities[case.doc][gold])
        assert (case.kind == "right") == (gold == best)
    for suspect in suspects.judged_by(pipe, judged.examples):
        [number] = [n for n, example in enumerate(examples) if example.reference.text == suspect.text]
        [gold], [best] = suspect.gold, suspect.best
        ratio = probabilities[number][best.label] / probabilities[number][gold.label]
        assert suspect.log_ratio == pytest.approx(math.log(ratio), abs=1e-5)
    if kind == "bag":
        assert suspects.cross_validated(nlp, pipe, examples, 2)
        assert "the table" in render("texts", [judged._replace(training=examples)])
        nlp.to_disk(tmp_path / "model")
        DocBin(docs=[example.reference for example in examples]).to_disk(tmp_path / "data.spacy")
        paths = tmp_path / "model", tmp_path / "data.spacy"
        code, printed = run("evaluate", *paths, "--train", paths[1], "--folds", 2, "-o", tmp_path / "report.html")
        assert code == 0, printed
        page = (tmp_path / "report.html").read_text(encoding="utf8")
        assert "Recall by length, words" in page and "wrong label" in page and "missed</li>" not in page
        code, printed = run("evaluate", *paths)
        assert code == 0 and "wrong label" in printed and "the table" in printed


def test_rules(nlp, examples):
    from spacy_crf.report.cases import rule_effects

    (judged,) = judge(nlp, [nlp.get_pipe("crf_ner")], examples)
    (effect,) = rule_effects(judged)
    assert effect["weight"] == "hard"
    # "Bob left Rome and Paris" has two places: one of them is lost
    assert effect["changed"] >= 1 and effect["broken"] >= 1
    assert Span.has_extension("crf_prob")
