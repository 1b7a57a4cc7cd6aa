"""``crf_senter``: a chain over whole Docs that finds where sentences begin."""

import itertools

import numpy as np
import pytest
import spacy
from spacy.attrs import SENT_START
from spacy.cli import app
from spacy.tokens import Doc, Span
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf import LBFGS
from spacy_crf.cli.demo import Demo
from spacy_crf.pipeline.annotation.entities import GoldReport
from spacy_crf.pipeline.annotation.sentences import _aligned_starts
from spacy_crf.report.suspects import judged_by
from tests.reference import log_sum
from tests.util import check_copies

# Sentences end at |
TEXTS = [
    "Art. 5 says so . | It does . | Nobody asked",
    "He left . | See art. 7 ! | Done",
    "One line | Two lines | It is art. 9 .",
    "Who ? | Me ! | See art. 5 .",
    "It is so",
]
RAW = ["It does . See art. 5 . Done", "Who left ? Nobody", "", "He asked", "See art. 9 . It is so . He left"]


def annotated(nlp, text):
    """An Example of a text in which | stands before each sentence but the first."""
    words, starts = [], []
    for sentence in text.split("|"):
        starts += [n == 0 for n in range(len(sentence.split()))]
        words += sentence.split()
    return Example(Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words, sent_starts=starts))


def trained(texts=TEXTS, examples=None, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_senter", config=config)
    examples = examples or [annotated(nlp, text) for text in texts]
    nlp.initialize(lambda: examples, sgd=(optimizer := LBFGS(l2=0.05)))
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    return nlp


def words(nlp, text):
    return Doc(nlp.vocab, words=text.split())


def sentences(doc):
    return [sentence.text for sentence in doc.sents] if len(doc) else []


@pytest.fixture(scope="module")
def nlp():
    """Do not change."""
    return trained()


def test_it_learns_sentences_and_scores_them_as_senter_does(nlp):
    assert nlp.get_pipe("crf_senter").labels == ("S",)
    assert nlp.get_pipe_meta("crf_senter").assigns == ["token.is_sent_start"]
    assert nlp.get_pipe_meta("crf_senter").default_score_weights == {"sents_f": 1.0, "sents_p": 0.0, "sents_r": 0.0}
    scores = nlp.evaluate([annotated(nlp, text) for text in TEXTS])
    assert (scores["sents_f"], scores["sents_p"], scores["sents_r"]) == (1.0, 1.0, 1.0)
    assert sentences(nlp(words(nlp, RAW[0]))) == ["It does .", "See art. 5 .", "Done"]
    doc = nlp(words(nlp, RAW[0]))
    assert doc.to_array(SENT_START).astype(np.int64).tolist() == [1, -1, -1, 1, -1, -1, -1, 1]


def test_a_sequence_is_the_doc_whatever_sentences_it_has(nlp):
    """Known starts would otherwise cut the sequence, and the words before them would be padding."""
    pipe = nlp.get_pipe("crf_senter")
    plain, split = words(nlp, RAW[0]), words(nlp, RAW[0])
    split[4].is_sent_start = True
    np.testing.assert_array_equal(pipe.marginals(plain)[0], pipe.marginals(split)[0])
    assert not split[3].is_sent_start and pipe.marginals(split)[0][0].tolist() == pytest.approx([0.0, 1.0])


def test_present_starts_are_kept_unless_overwritten(nlp):
    doc = words(nlp, RAW[0])
    doc[1].is_sent_start, doc[3].is_sent_start = True, False
    assert sentences(nlp(doc)) == ["It", "does . See art. 5 .", "Done"]
    other = spacy.blank("en")
    other.add_pipe("crf_senter", config={"overwrite": True})
    other.get_pipe("crf_senter").from_bytes(nlp.get_pipe("crf_senter").to_bytes())
    doc = words(other, RAW[0])
    doc[1].is_sent_start, doc[3].is_sent_start = True, False
    assert sentences(other(doc)) == ["It does .", "See art. 5 .", "Done"]


def test_a_parsed_doc_is_taken_as_senter_takes_it():
    nlp = trained(overwrite=True)
    heads = [0, 0, 0, 3, 3, 3, 3, 3]
    doc = Doc(
        nlp.vocab, words=RAW[0].split(), heads=heads, deps=["ROOT" if n == h else "x" for n, h in enumerate(heads)]
    )
    assert sentences(nlp(doc)) == ["It does .", "See art. 5 .", "Done"]


def test_what_is_not_annotated_may_be_either():
    """Tokens whose value is None: the partial annotation teaches what the whole does, where other texts tell them apart."""
    nlp = spacy.blank("en")
    partial = [annotated(nlp, text) for text in TEXTS]
    for example in partial[:3]:
        for token in example.reference:
            token.is_sent_start = None if token.i % 2 else token.is_sent_start
    known = trained(examples=partial)
    pipe = known.get_pipe("crf_senter")
    supervision = pipe.training.supervise(partial[:1], np.array([0, 10]), None)
    assert supervision.clamp.all(axis=1).tolist() == [False, True] * 5
    assert sentences(known(words(known, "See art. 5 . Done"))) == ["See art. 5 .", "Done"]


def test_only_starts_are_no_annotation():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_senter")
    examples = [annotated(nlp, text) for text in TEXTS]
    for token in (token for example in examples for token in example.reference if not token.is_sent_start):
        token.is_sent_start = None
    with pytest.raises(ValueError, match=r"CRF414: .*'crf_senter'.*is known to begin no sentence"):
        nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF020.*a label.*'X'"):
        nlp.get_pipe("crf_senter").add_label("X")


def test_other_tokens_than_those_of_the_reference(nlp):
    """A start stays at the first of the tokens into which a word is cut; white space begins no sentence."""
    annotation = nlp.get_pipe("crf_senter").annotation
    reference = Doc(nlp.vocab, words=["a", "bcd", "e", "f"], sent_starts=[True, True, False, True])
    cut = Example(
        Doc(nlp.vocab, words=["a", "bc", "d", "\n", "e", "f"], spaces=[True, False, True, False, True, False]),
        reference,
    )
    joined = Example(Doc(nlp.vocab, words=["abcd", "e", "f"]), reference)
    gold, found = annotation.mentions(cut)
    assert [mention.start for mention in gold] == [2, 9] and not found
    from spacy_crf.pipeline.annotation.entities import GoldReport
    from spacy_crf.pipeline.annotation.sentences import _aligned_starts

    assert _aligned_starts(cut, GoldReport()).tolist() == [1, 1, -1, -1, -1, 1]
    report = GoldReport()
    assert _aligned_starts(joined, report).tolist() == [1, -1, 1]
    assert report._counts == {"sentences begin inside of tokens, and are not learned": 1}


def test_probabilities_are_those_of_all_labellings(nlp):
    pipe, doc = nlp.get_pipe("crf_senter"), words(nlp, "It does . See art. 5")
    every = [(True, *rest) for rest in itertools.product([False, True], repeat=5)]
    spans = [[Span(doc, n, n + 1, label="S") for n, is_start in enumerate(way) if is_start] for way in every]
    logs = [pipe.log_probability(doc, way) for way in spans]
    assert log_sum(logs) == pytest.approx(0.0, abs=1e-9)
    marginals, names = pipe.marginals(doc)
    assert names == ["O", "S"]
    for n in range(6):
        of_start = np.exp([log for log, way in zip(logs, every) if way[n]]).sum()
        assert marginals[n, 1] == pytest.approx(of_start, abs=1e-9)
    best = sorted(np.exp(logs), reverse=True)
    assert [p for p, _ in pipe.n_best(doc, 4)] == pytest.approx(best[:4], abs=1e-9)
    assert pipe.log_probability(doc, spans[0][1:]) == -np.inf  # the Doc begins with a sentence


def test_confidence_and_min_prob():
    nlp = trained(confidence=True)
    doc = nlp(words(nlp, RAW[0]))
    probabilities = [token._.crf_prob for token in doc]
    assert [p is not None for p in probabilities] == [token.is_sent_start for token in doc]
    assert probabilities[0] == pytest.approx(1.0)
    pipe = nlp.get_pipe("crf_senter")
    pipe.cfg["min_prob"] = (probabilities[3] + probabilities[7]) / 2
    kept = [token.i for token in nlp(words(nlp, RAW[0])) if token.is_sent_start]
    assert kept == [0, *(n for n in (3, 7) if probabilities[n] > pipe.cfg["min_prob"])] and len(kept) == 2
    pipe.cfg.update(decode="spans", min_prob=1e-6)  # whatever is possible at all
    assert len(sentences(nlp(words(nlp, RAW[0])))) > 3


@pytest.mark.parametrize(
    "rule, expected",
    [
        ({"rule": "never_after", "phrases": ["."]}, ["It does . See art. 5 . Done"]),
        ({"rule": "always_after", "pattern": [{"TEXT": "art."}]}, ["It does .", "See art.", "5 .", "Done"]),
        ({"rule": "only_after", "pattern": [{"TEXT": "5"}, {"IS_PUNCT": True}]}, ["It does . See art. 5 .", "Done"]),
        ({"rule": "never_on", "phrases": ["Done"]}, ["It does .", "See art. 5 . Done"]),
        ({"rule": "at_most", "n": 2}, None),
    ],
)
def test_rules(rule, expected):
    nlp = trained()
    nlp.get_pipe("crf_senter").add_rule({"label": "S", **rule})
    found = sentences(nlp(words(nlp, RAW[0])))
    assert len(found) == 2 if expected is None else found == expected
    # The rule of one Doc does not reach into the next
    both = [*nlp.pipe([words(nlp, "It is ."), words(nlp, "Done")])]
    assert [doc[0].is_sent_start for doc in both] == [True, True]


def test_results_do_not_depend_on_the_batch(nlp, tmp_path):
    alone = [sentences(nlp(words(nlp, text))) for text in RAW]
    for size in (1, 2, 5):
        assert [sentences(doc) for doc in nlp.pipe([words(nlp, text) for text in RAW], batch_size=size)] == alone
    together = nlp.pipe([words(nlp, text) for text in RAW], n_process=2)
    assert [sentences(doc) for doc in together] == alone
    check_copies(nlp, "crf_senter", [annotated(nlp, text) for text in TEXTS], [trained(TEXTS[:2])], tmp_path / "saved")
    again = spacy.load(tmp_path / "saved")
    assert [sentences(again(words(again, text))) for text in RAW] == alone


def test_blocked_and_forced_tokens(nlp):
    doc = words(nlp, RAW[0])
    doc.spans["crf_blocked"] = [Span(doc, 3, 4, label="S")]
    doc.spans["crf_forced"] = [Span(doc, 2, 3, label="S")]
    assert sentences(nlp(doc)) == ["It does", ". See art. 5 .", "Done"]


def test_other_annotation_teaches_too():
    """Tokens that may begin a sentence, and tokens that begin none."""
    keys = {"alternatives_spans_key": "maybe", "incorrect_spans_key": "wrong"}
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_senter", config=keys)
    examples = [annotated(nlp, text) for text in TEXTS]
    doc = examples[0].reference
    doc[5].is_sent_start, doc[1].is_sent_start = None, None
    doc.spans["maybe"] = [Span(doc, 5, 6, label="S"), Span(doc, 2, 3, label="S")]
    doc.spans["wrong"] = [Span(doc, 1, 2, label="S")]
    nlp.initialize(lambda: examples, sgd=LBFGS())
    from spacy_crf.pipeline.annotation.entities import GoldReport

    supervision = nlp.get_pipe("crf_senter").training.supervise(examples[:1], np.array([0, 10]), GoldReport())
    possible = supervision.clamp.astype(int).tolist()
    assert possible[5] == [0, 1] and possible[2] == [1, 1] and possible[3] == [1, 0]
    assert len(nlp.update(examples, sgd=LBFGS()))


def test_an_explanation_is_about_the_whole_doc(nlp):
    """Also after the component has written its sentences, which do not cut what the explanation reads."""
    pipe, doc = nlp.get_pipe("crf_senter"), nlp(words(nlp, RAW[0]))
    split, plain = (pipe.explain(each, each[3:4], kind="contrast") for each in (doc, words(nlp, RAW[0])))
    assert split.target == pytest.approx(plain.target)
    assert pipe.explain(doc, doc[3:4], kind="words", candidates=0).table(3)


def test_a_million_tokens(nlp):
    doc = Doc(nlp.vocab, words=["It", "does", ".", "See", "art.", "5", "."] * 143_000)
    assert len(list(nlp(doc).sents)) == 286_000


@pytest.mark.parametrize(
    "gold, start, predicted, expected",
    [
        (["ab", " ", "cd", "e"], 1, ["ab ", "cd", "e"], [1, 1, -1]),  # the space is no token of its own
        (["ab", " ", "cde"], 1, ["ab ", "cd", "e"], [1, 1, -1]),
        (["ab", "\n", "\n", "cd."], 2, ["ab", "\n\n", "cd", "."], [1, -1, 1, -1]),
        (["ab", "\n\n", "cd."], 1, ["ab", "\n", "\n", "cd", "."], [1, 1, -1, -1, -1]),
        (["ab", "cd", "\n"], 2, ["ab", "c", "d", "\n"], [1, -1, -1, 1]),
        (["ab", "cd", " "], 2, ["ab", "c", "d "], [1, -1, -1]),  # nothing behind it
    ],
)
def test_sentences_that_begin_with_white_space(nlp, gold, start, predicted, expected):
    """A word that ends with a space has the space behind it."""
    sent_starts = [1 if n in (0, start) else -1 for n in range(len(gold))]
    reference = Doc(nlp.vocab, words=gold, spaces=[False] * len(gold), sent_starts=sent_starts)
    words = [word if word.isspace() else word.rstrip() for word in predicted]
    doc = Doc(nlp.vocab, words=words, spaces=[word.endswith(" ") for word in predicted])
    report = GoldReport()
    assert _aligned_starts(Example(doc, reference), report).tolist() == expected


@pytest.mark.parametrize("label", ["S", ""])
def test_the_first_token_begins_a_sentence_even_if_it_is_blocked(nlp, label):
    free = nlp.make_doc(RAW[0])
    expected = [token.is_sent_start for token in nlp.get_pipe("crf_senter")(free)]
    doc = nlp.make_doc(RAW[0])
    doc.spans["crf_blocked"] = [Span(doc, 0, 1, label)]
    assert [token.is_sent_start for token in nlp.get_pipe("crf_senter")(doc)] == expected
    doc = nlp.make_doc(RAW[0])
    doc.spans["crf_blocked"] = [Span(doc, 0, len(doc), label)]
    assert [token.is_sent_start for token in nlp.get_pipe("crf_senter")(doc)] == [True] + (len(doc) - 1) * [False]


def test_commands_know_it(nlp, tmp_path):
    """The first token always begins a sentence: there is nothing to explain."""
    nlp.to_disk(tmp_path / "model")
    result = CliRunner().invoke(app, ["crf", "explain", str(tmp_path / "model"), RAW[0]])
    assert result.exit_code == 0 and "Done" in result.output, result.output
    result = CliRunner().invoke(app, ["crf", "explain", str(tmp_path / "model"), "Done"])
    assert result.exit_code == 1 and "CRF838" in result.output, result.output
    loaded = spacy.load(tmp_path / "model")
    [component] = Demo(loaded).find({"text": "It does . Done"})["components"]
    assert [span[:3] for span in component["spans"]] == [[0, 1, "S"], [3, 4, "S"]]
    with pytest.raises(ValueError, match=r"CRF978.*is_sent_start"):
        Demo(loaded, file=tmp_path / "new.jsonl")


def test_only_texts_that_are_labelled_otherwise_are_suspects(nlp):
    right = [annotated(nlp, text) for text in TEXTS]
    wrong = annotated(nlp, "It does . See art. | 5 .")
    predicted = [Example(nlp(each.predicted.copy()), each.reference) for each in [*right, wrong]]
    assert [suspect.text for suspect in judged_by(nlp.get_pipe("crf_senter"), predicted)] == [wrong.reference.text]
