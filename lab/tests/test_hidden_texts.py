"""Components whose labels have hidden states: as other labels of texts, and what hidden states add."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from spacy.tokens import Doc
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.explain.weights import state_names
from spacy_crf_lab.hidden_chain import HiddenScores
from tests.explain import test_explain_labels
from tests.explain.test_explain_labels import about, scores_of
from tests.pipeline import test_crf_textcat
from tests.pipeline.test_crf_textcat import LBFGS, TEXTS, WORDS, blank, examples_of, label

from .util import registered

HIDDEN = {
    "hidden": {"@architectures": "spacy_crf_lab.HiddenChain.v1", "hidden": 3},
    "own states": {"@architectures": "spacy_crf_lab.HiddenChain.v1", "hidden": 2, "shared": False},
    "sentences": {"@architectures": "spacy_crf_lab.HiddenChain.v1", "hidden": 4, "unit": "sent"},
}


def trained(kind="hidden", *texts, **settings):
    return test_crf_textcat.trained(HIDDEN.get(kind, kind) if isinstance(kind, str) else kind, *texts, **settings)


@pytest.fixture(scope="module", params=HIDDEN)
def model(request):
    """A trained pipeline of each kind. Do not change."""
    return trained(request.param)


@pytest.fixture(scope="module", params=HIDDEN)
def nlp(request):
    """A trained pipeline of each kind. Do not change."""
    return trained(request.param)


test_learns_its_texts_and_gives_probabilities = test_crf_textcat.test_learns_its_texts_and_gives_probabilities
test_saved_models_say_the_same = test_crf_textcat.test_saved_models_say_the_same
test_show_prints_the_labels_of_texts = test_crf_textcat.test_show_prints_the_labels_of_texts
test_rows_add_up = test_explain_labels.test_rows_add_up
test_what_is_left_out_is_as_if_it_had_no_weight = test_explain_labels.test_what_is_left_out_is_as_if_it_had_no_weight


def test_one_hidden_state_for_each_label_is_the_bag_of_features():
    one = {"@architectures": "spacy_crf_lab.HiddenChain.v1", "hidden": 1, "shared": False}
    exact = {**LBFGS, "tolerance": 1e-9, "period": 50, "delta": 1e-12}
    bag, chain = (trained(kind, steps=30, optimizer=exact) for kind in ("bag", one))
    for text in [text for text, _ in TEXTS] + ["", "play a table on monday", "new"]:
        assert bag(text).cats == pytest.approx(chain(text).cats, abs=1e-5)


def words_in_order(seed, n):
    """Texts of the same words, in which A comes before B or after it."""
    random = np.random.default_rng(seed)
    for _ in range(n):
        filler = random.choice(["c", "d", "e"], size=random.integers(4, 12)).tolist()
        first, second = sorted(random.choice(len(filler) + 1, size=2, replace=False))
        order = random.random() < 0.5
        filler.insert(second, "b" if order else "a")
        filler.insert(first, "a" if order else "b")
        yield " ".join(filler), "A_B" if order else "B_A"


@pytest.mark.parametrize("shared", [True, False])
def test_order_is_learned_where_a_bag_of_words_can_not(shared):
    train_texts, test_texts = [*words_in_order(0, 120)], [*words_in_order(1, 120)]
    hidden = {"@architectures": "spacy_crf_lab.HiddenChain.v1", "hidden": 4, "shared": shared}
    right = {}
    for name, kind in (("bag", "bag"), ("hidden", hidden)):
        nlp = trained(kind, train_texts, steps=12, features=WORDS)
        docs = nlp.pipe([text for text, _ in test_texts])
        right[name] = np.mean([label(doc) == cats for doc, (_, cats) in zip(docs, test_texts)])
    assert right["bag"] <= 0.6
    assert right["hidden"] >= 0.95


def test_seeds_and_restarts(caplog):
    """One seed, one model, bit by bit; of several beginnings the best one is taken."""
    nlps = [trained({**HIDDEN["hidden"], **more}, steps=1) for more in ({}, {}, {"seed": 1}, {"restarts": 3})]
    one, again, other, best = ([nlp(text).cats for text, _ in TEXTS] for nlp in nlps)
    assert one == again != other
    [told] = [record.message for record in caplog.records if "begins with seed" in record.message]
    assert "that of the others is" in told and [max(cats, key=cats.get) for cats in best] == [cats for _, cats in TEXTS]


@pytest.mark.parametrize("kind", HIDDEN)
def test_explain_tells_each_doc(kind):
    nlp = trained(kind, explain=True)
    for doc in nlp.pipe(["book a table . play some jazz", "", "rain"]):
        told = doc._.crf_evidence
        units = [(sent.start, sent.end) for sent in doc.sents] if kind == "sentences" else [(t.i, t.i + 1) for t in doc]
        assert told["label"] == label(doc) and [*map(tuple, told["units"].tolist())] == units
        found = nlp.get_pipe("crf_textcat").evidence(doc)
        assert [(span.start, span.end) for span, _ in found] == units
        assert [value for _, value in found] == pytest.approx(told["evidence"])
        assert told["states"].shape == (len(units), HIDDEN[kind]["hidden"])
        assert np.allclose(told["states"].sum(axis=1), 1.0)


@pytest.mark.parametrize("kind", ["hidden", "own states"])
def test_inspect_and_weights(kind, tmp_path):
    nlp = trained(kind)
    pipe = nlp.get_pipe("crf_textcat")
    rows = pipe.weights("PLAY")
    names = {name for row in rows for name in row.tags}
    assert "PLAY" in names <= {"PLAY", *state_names(pipe.decoding)}
    for row in rows:
        if row.template == "transitions":
            place = [state_names(pipe.decoding).index(name) for name in row.tags]
            y, i, j = place[0], *((n - 3) % HIDDEN[kind]["hidden"] for n in place[1:])
            assert row.weight == pytest.approx(float(pipe.model.get_param("transitions")[y, i, j]))
    assert len(pipe.dump().splitlines()) == len(pipe.weights())
    nlp.to_disk(tmp_path)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert result.exit_code == 0 and "lower[0]" in result.output


def test_missing_and_partial_annotation():
    """A text that says what a text is not rules that out."""
    more = [("sing a song", {"BOOK": 0.0, "WEATHER": 0.0})]
    nlp = trained("hidden", [*TEXTS, *more], steps=6)
    pipe, cats = nlp.get_pipe("crf_textcat"), nlp("sing a song").cats
    [partial] = examples_of(nlp, more)
    loss, _ = pipe.get_loss([partial], pipe.model.predict([partial.predicted]))
    assert cats["PLAY"] > 0.5 and loss == pytest.approx(-math.log(1 - cats["BOOK"] - cats["WEATHER"]))


@pytest.mark.parametrize("settings, code", [({"hidden": 0}, "CRF020.*hidden = 0"), ({"unit": "text"}, "CRF020.*unit")])
def test_settings_that_are_not_possible(settings, code):
    with pytest.raises(ValueError, match=code):
        blank({**HIDDEN["hidden"], **settings})


def test_sentences_have_to_be_there():
    nlp = trained("sentences")
    with pytest.raises(ValueError, match=r"CRF470.*sentencizer"):
        nlp.get_pipe("crf_textcat")(nlp.make_doc("no sentences here"))
    with pytest.raises(ValueError, match="CRF470"):
        nlp.update([Example.from_dict(nlp.make_doc("play jazz"), {"cats": {"PLAY": 1.0}})])


def test_long_texts():
    nlp = trained("sentences")
    words = ["play", "."] * 50_000
    doc = Doc(nlp.vocab, words=words, sent_starts=[n % 2 == 0 for n in range(len(words))])
    nlp.get_pipe("crf_textcat")(doc)
    assert label(doc) == "PLAY" and math.isclose(sum(doc.cats.values()), 1.0)


def test_labels_are_added_and_learned():
    nlp = trained("own states")
    assert nlp.get_pipe("crf_textcat").add_label("NEWS") == 1
    more = examples_of(nlp, [*TEXTS, ("tell me what happened today", "NEWS")])
    for _ in range(5):
        nlp.update(more)
    assert label(nlp("tell me what happened today")) == "NEWS" and label(nlp("play some jazz")) == "PLAY"


@pytest.mark.parametrize("optimizer", ["ConjugateGradient", "Minibatch", "SGD"])
def test_optimizers(optimizer):
    optimizer = {"@optimizers": registered(optimizer)}
    if optimizer["@optimizers"] == "spacy_crf.SGD.v1":
        with pytest.raises(ValueError, match=r"CRF365.*hidden_chain.*spacy_crf\.LBFGS\.v1"):
            blank(HIDDEN["hidden"], optimizer=optimizer)
        return
    nlp = trained("hidden", steps=40, optimizer=optimizer)
    assert [label(nlp(text)) for text, _ in TEXTS] == [cats for _, cats in TEXTS]


@pytest.mark.parametrize("loss", ["SoftmaxMargin", "MaxMargin", "Perceptron"])
def test_losses(loss):
    minibatch = {"@optimizers": "spacy_crf.Minibatch.v1", "learn_rate": 0.1}
    nlp = trained("hidden", steps=25, optimizer=minibatch, loss={"@losses": registered(loss)})
    assert [label(nlp(text)) for text, _ in TEXTS] == [cats for _, cats in TEXTS]


# ------------------------------------------------------------------------------------------------------ explanations


def test_uses_of_hidden_states_are_expected_ones_and_the_base_is_their_entropy():
    pipe, doc = about(trained("own states", features=WORDS), "play the now")
    scores = scores_of(pipe, doc)
    entropy, expected = {}, {}
    for y, name in enumerate(pipe.labels):
        columns, paths = slice(2 * y, 2 * y + 2), [*product(range(2), repeat=3)]
        logs = np.array([_score(scores, y, scores.units[:, columns], path) for path in paths])
        shares = np.exp(logs - np.logaddexp.reduce(logs))
        entropy[name] = -float(shares @ np.log(shares))
        expected[name] = [sum(p for p, path in zip(shares, paths) if path[1] == state) for state in range(2)]
    found = pipe.explain(doc, "PLAY", "BOOK", kind="contrast")
    assert found.base == pytest.approx(entropy["PLAY"] - entropy["BOOK"])
    of_word = [row for row in found.rows if row.feature == "lower[0]=the"]
    assert of_word
    for row in of_word:
        name, state = row.tags[0].split(" state ")
        sign = {"PLAY": 1.0, "BOOK": -1.0}[name]
        assert row.token == 1 and row.use == pytest.approx(sign * expected[name][int(state)])


def _score(scores: HiddenScores, y, units, path):
    total = scores.labels[0, y] + scores.first[y, path[0]] + scores.last[y, path[-1]]
    total += sum(scores.transitions[y, a, b] for a, b in pairwise(path))
    return total + sum(units[t, h] + scores.states[y, h] for t, h in enumerate(path))


def test_there_are_no_shares_of_texts():
    nlp = trained("hidden")
    pipe, doc = about(nlp)
    with pytest.raises(ValueError, match="CRF840"):
        pipe.explain(doc, "PLAY", kind="texts", corpus=examples_of(nlp), l2=0.1)
