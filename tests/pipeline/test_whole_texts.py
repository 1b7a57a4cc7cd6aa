"""The share of texts that are right as a whole: ``ents_texts``, and ``spans_sc_texts`` of overlapping spans."""

import io
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from tests.pipeline.test_crf_spancat import trained as trained_spancat
from tests.util import ner_examples, plain, tag_examples, write_corpus

CONFIGS = Path(__file__).parents[2] / "configs"
WORDS = ["Ann", "Lee", "left", "Rome", "."]
ANN, ROME = (0, 2, "PER"), (3, 4, "GPE")


def with_ents(doc, places, missing=()):
    spans = [Span(doc, start, end, label=label) for start, end, label in places]
    doc.set_ents(spans, missing=[doc[n : n + 1] for n in missing], default="outside")
    return doc


@pytest.fixture(scope="module", params=["crf_ner", "semicrf_ner"])
def pipe(request):
    return spacy.blank("en").add_pipe(request.param)


@pytest.mark.parametrize(
    "gold, found, missing, right",
    [
        ([ANN, ROME], [ANN, ROME], [], True),
        ([ANN, ROME], [ANN], [], False),
        ([ANN], [ANN, ROME], [], False),
        ([ANN, ROME], [ANN, (3, 4, "ORG")], [], False),
        ([ANN, ROME], [(1, 2, "PER"), ROME], [], False),
        ([], [], [], True),
        ([], [ROME], [], False),
        ([ROME], [], [], False),
        # judged by what is annotated
        ([ANN], [ANN, ROME], [3], True),
        ([ANN], [ROME], [3], False),
        ([], [ROME], [3], True),
        # not judged
        ([], [ROME], [0, 1, 2, 3, 4], None),
        ([], [], [0, 1, 2, 3, 4], None),
    ],
)
def test_one_text(pipe, gold, found, missing, right):
    vocab = pipe.vocab
    example = Example(with_ents(Doc(vocab, words=WORDS), found), with_ents(Doc(vocab, words=WORDS), gold, missing))
    scores = pipe.score([example])
    assert scores["ents_texts"] == (None if right is None else float(right))
    assert pipe.annotation.texts_right([example, example]) == ([] if right is None else [right, right])


def test_texts_with_other_tokens_are_compared_by_characters(pipe):
    predicted = Doc(pipe.vocab, words=["Ann", "Lee", "left", "Rome."], spaces=[True, True, True, False])
    reference = Doc(pipe.vocab, words=["Ann Lee", "left", "Rome", "."], spaces=[True, True, False, False])
    gold = with_ents(reference, [(0, 1, "PER")])
    assert pipe.score([Example(with_ents(predicted, [ANN]), gold)])["ents_texts"] == 1.0
    assert pipe.score([Example(with_ents(predicted, [ANN, ROME]), gold)])["ents_texts"] == 0.0


def test_three_texts_of_four():
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": name} for name in ("Rome", "Oslo")])
    ner = nlp.add_pipe("crf_ner")
    texts = ["[Rome](GPE) and [Oslo](GPE)", "[Rome](GPE) and [Lima](GPE)", "in [Oslo](GPE) .", "nobody was there"]
    examples = ner_examples(nlp, texts)
    ner.initialize(lambda: ner_examples(nlp, ["[Bonn](GPE)"]), nlp=nlp)
    with nlp.select_pipes(disable="crf_ner"):
        found = list(nlp.pipe(example.predicted for example in examples))
    judged = [Example(doc, example.reference) for doc, example in zip(found, examples)]
    assert ner.score(judged)["ents_texts"] == 0.75
    assert ner.score([])["ents_texts"] is None


def test_overlapping_spans_count_too_and_texts_without_the_key_do_not():
    nlp, pipe, examples = trained_spancat()
    found = [Example(nlp(plain(example.reference)), example.reference) for example in examples]
    assert pipe.score(found)["spans_sc_texts"] == 1.0
    found[0].predicted.spans["sc"] = []
    assert pipe.score(found)["spans_sc_texts"] == 1 - 1 / len(found)
    del found[0].reference.spans["sc"]
    assert pipe.score(found)["spans_sc_texts"] == 1.0


def test_taggers_have_no_such_score():
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger")
    examples = tag_examples(nlp)
    tagger.initialize(lambda: examples, nlp=nlp)
    assert not [name for name in tagger.score(examples) if name.endswith("_texts")]


def test_spacy_train_shows_the_score_and_chooses_by_it(tmp_path):
    config = load_config(
        CONFIGS / "crf_ner.cfg", overrides=dict.fromkeys(("paths.train", "paths.dev"), str(tmp_path / "texts.spacy"))
    )
    config["training"]["score_weights"] = {"ents_f": 0.0, "ents_texts": 1.0}
    write_corpus(tmp_path / "texts.spacy")
    printed = io.StringIO()
    train(init_nlp(config), tmp_path, stdout=printed, stderr=io.StringIO())
    table = printed.getvalue()
    header, _, *rows = table[table.index("E    #") :].splitlines()
    assert header.split()[-2:] == ["ENTS_TEXTS", "SCORE"]
    epochs = [row.split() for row in rows if row.strip()[:1].isdigit()]
    assert epochs
    for *_, whole_texts, score in epochs:
        assert 0.01 * float(whole_texts) == pytest.approx(float(score), abs=0.01)
