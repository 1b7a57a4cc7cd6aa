"""States that training can't tell apart are one in its passes: the same function, over fewer states."""

import time
from functools import partial

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, SoftmaxMargin
from spacy_crf.models.merged import MergedStates, _split
from spacy_crf.models.objective import CorpusObjective, TiedObjective
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.initialization import warn_of_long_passes
from spacy_crf.schemes import SCHEMES

# A and C are never of one token, D and E always are, B is both
TEXTS = [
    ("v a a o b c c c", ["O", "B-A", "I-A", "O", "B-B", "B-C", "I-C", "I-C"]),
    ("d b b e a a a", ["B-D", "B-B", "I-B", "B-E", "B-A", "I-A", "I-A"]),
    ("o e d d c c", ["O", "B-E", "B-D", "B-D", "B-C", "I-C"]),
]


def make(texts=TEXTS, **config):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"scheme": "BILUO", **config})
    examples = []
    for words, tags in texts:
        gold = Doc(nlp.vocab, words=words.split())
        gold.set_ents(spacy.training.biluo_tags_to_spans(gold, spacy.training.iob_to_biluo(tags)), default="outside")
        examples.append(Example(nlp.make_doc(words), gold))
    nlp.initialize(lambda: examples)
    return pipe, examples


def blanked(examples):
    """The examples with a token of white space behind each word."""
    for example in examples:
        gold = Doc(example.reference.vocab, words=[word for token in example.reference for word in (token.text, "\n")])
        gold.set_ents(
            [Span(gold, 2 * ent.start, 2 * ent.end - 1, ent.label_) for ent in example.reference.ents],
            default="outside",
        )
        yield Example(Doc(gold.vocab, words=[token.text for token in gold]), gold)


def both(pipe, *corpus, loss=LogLikelihood):
    """The objective over all states, and over those that are left."""
    every, fewer = (CorpusObjective(pipe.model, loss(), corpus) for _ in range(2))
    fewer.merge_states()
    return every, fewer


def tags_of(pipe):
    return pipe.annotation.tags()


def n_states(objective):
    """Of its passes."""
    return objective._layers[0].features.n_states


def assert_same(every, fewer, weights):
    """RETURNS (float64[n]): The gradient over fewer states."""
    value, gradient = fewer.evaluate(weights)
    expected, of_every = every.evaluate(weights)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, of_every, rtol=1e-10, atol=1e-12)
    return gradient


def descend(every, fewer, steps=4):
    weights = np.zeros_like(fewer.weights())
    for _ in range(steps):
        weights = weights - 0.3 * assert_same(every, fewer, weights)
    return weights


def test_white_space_masks_merged_states_too():
    """Line breaks in one text kept all states of the corpus apart."""
    pipe, examples = make(TEXTS)
    batches = pipe.training.data(examples[:1]), pipe.training.data([*blanked(examples)])
    every, fewer = both(pipe, *batches)
    assert n_states(fewer) < n_states(every)
    weights = descend(every, fewer)
    weights[:] = np.random.default_rng(0).normal(size=len(weights))  # no states are equal any more
    assert_same(every, fewer, weights)
    assert n_states(fewer) == n_states(every)


@pytest.mark.parametrize("loss", [LogLikelihood, SoftmaxMargin])
@pytest.mark.parametrize("possible", [True, False])
@pytest.mark.parametrize("scheme, n_left", [("BILUO", 17), ("BIO", 11)])
def test_merged_states_give_the_same_loss_and_gradient(scheme, n_left, possible, loss):
    pipe, examples = make(scheme=scheme, model={"possible_transitions": possible})
    every, fewer = both(pipe, pipe.training.data(examples[:2]), pipe.training.data(examples[2:]), loss=loss)
    # U-A and U-C are one, B-D and B-E, I-D and I-E, L-D and L-E; I-B, behind B-B alone, is like no other. Nor is any of BIO
    assert (n_states(every), n_states(fewer)) == (len(tags_of(pipe)), n_left)
    descend(every, fewer)
    assert n_states(fewer) == n_left


@pytest.mark.parametrize("loss", [MaxMargin, partial(SoftmaxMargin, label_weights={"A": 2.0})])
def test_losses_that_tell_states_apart_or_sum_nothing_up(loss):
    pipe, examples = make()
    every, fewer = both(pipe, pipe.training.data(examples), loss=loss)
    assert n_states(fewer) == n_states(every) == len(tags_of(pipe))


def test_states_whose_weights_differ_are_apart_from_there_on():
    pipe, examples = make()
    every, fewer = both(pipe, pipe.training.data(examples))
    weights = descend(every, fewer)
    observed = pipe.model.attrs["observed"].astype(bool)  # transitions, first and last: the weights at the end
    step = np.zeros_like(observed)
    step[tags_of(pipe).index("U-A"), tags_of(pipe).index("O")] = True
    weights[-np.count_nonzero(observed) :][step[observed]] += 0.5
    for _ in range(2):
        assert_same(every, fewer, weights)
        assert n_states(fewer) == len(tags_of(pipe))


def test_annotation_that_leaves_several_states():
    pipe, examples = make()
    data = pipe.training.data(examples)
    allowed = data.allowed.copy()
    allowed[2:4] = True  # nobody has looked at them
    every, fewer = both(pipe, data._replace(allowed=allowed))
    assert n_states(fewer) < n_states(every)
    descend(every, fewer)
    # Where it tells the states of a group apart they stay apart
    allowed[2, tags_of(pipe).index("U-A")] = False
    every, fewer = both(pipe, data._replace(allowed=allowed))
    assert n_states(fewer) == n_states(every)
    descend(every, fewer)


def test_optimizers_keep_equal_weights_equal():
    pipe, examples = make()
    corpus = [pipe.training.data(examples)]
    tied, every = (view(pipe.model, LogLikelihood(), corpus) for view in (TiedObjective, CorpusObjective))
    for l1 in (0.0, 0.05):
        tied.assign(np.zeros_like(tied.weights()))
        LBFGS(l1=l1, l2=0.1, iterations_per_step=30).step(tied, key=str(l1))
        assert n_states(tied) == 17
        variables = tied.weights()
        assert tied.evaluate(variables)[0] == pytest.approx(every.evaluate(every.weights())[0], rel=1e-5)


def test_all_features_have_weights_for_all_states():
    emissions = {"features": {"@misc": "spacy_crf.ner_features.v1"}, "possible_states": True}
    pipe, examples = make(model={"emissions": emissions})
    every, fewer = both(pipe, pipe.training.data(examples))
    assert n_states(fewer) == n_states(every)  # in another order
    descend(every, fewer, steps=2)


def test_four_hundred_labels_are_merged_in_seconds():
    """The states of 400 labels were split into groups by products of S·S integers, which took minutes before the first step."""
    mask = SCHEMES["BILUO"].transition_mask(400)
    possible = {"transitions": mask.transitions, "first": mask.first, "last": mask.last}
    is_known = np.arange(len(mask.first)) % 3 > 0
    begin = time.process_time()
    merged = MergedStates(possible, {name: may & False for name, may in possible.items()}, is_known)
    assert time.process_time() - begin < 5.0
    assert is_known.sum() < merged.n_states < len(is_known)


@pytest.mark.parametrize("seed", range(20))
def test_states_of_one_group_have_equal_numbers_of_steps_between_groups(seed):
    """The groups by random sums are those by counting the steps to and from each group."""
    rng = np.random.default_rng(seed)
    like = rng.integers(0, 3, 12)
    kinds = {
        "transitions": rng.integers(0, 3, (3, 3))[like][:, like],
        "first": rng.integers(0, 3, 3)[like],
        "last": rng.integers(0, 3, 3)[like],
    }
    if seed % 2:
        kinds["transitions"][rng.integers(12), rng.integers(12)] = rng.integers(3)
    before = rng.integers(0, 2, 12)
    group = _split(kinds, before)

    expected = before
    for _ in range(12):  # until nothing is split
        counts = [(kinds["transitions"] == kind).astype(int) for kind in (1, 2)]
        inside = (expected[:, np.newaxis] == np.arange(12)).astype(int)
        columns = [step @ inside for count in counts for step in (count, count.T)]
        rows_of = np.column_stack([expected, kinds["first"], kinds["last"], *columns])
        expected = np.unique(rows_of, axis=0, return_inverse=True)[1].ravel()
    np.testing.assert_array_equal(group[:, np.newaxis] == group, expected[:, np.newaxis] == expected)


def test_too_many_tags_are_told_before_training(caplog):
    """The first iteration of 400 labels took minutes, and nothing said why, or what to do."""
    pipe, _ = make()
    for count, message in ((1_000_000, []), (100_000_000, ["CRFW907"])):
        caplog.clear()
        warn_of_long_passes(pipe, count)
        assert [record.message[:7] for record in caplog.records] == message
    assert 'scheme = "IO"' in caplog.text and "21 tags and 100,000,000 tokens" in caplog.text
