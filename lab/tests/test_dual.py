"""The dual of max-margin training against its definition: every labelling of each sequence, one after the other."""

import logging
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose, assert_array_equal
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import load_config, registry

from spacy_crf.features.segment_templates import SegmentFeatureSet
from spacy_crf.kernels.online.work import make_room
from spacy_crf.losses.clamped import MaxMargin
from spacy_crf.optimizers.online import CorpusPass
from spacy_crf.optimizers.sgd import SGD
from spacy_crf.types import ChainScores, SegmentScores, SpanList
from spacy_crf_lab import CONFIGS
from spacy_crf_lab.dual import ExponentiatedGradient, FrankWolfe
from spacy_crf_lab.kernels.dual import make_table
from tests import reference
from tests.optimizers.test_online import SENTENCES, TEMPLATES, make_pipe, objectives
from tests.pipeline.test_initial_corpus import assert_same_weights, initialize
from tests.pipeline.test_initial_corpus import make as make_streamed
from tests.pipeline.test_train_as_run import assert_knows_the_texts, run
from tests.util import ner_examples

from .util import registered

DUAL = (FrankWolfe, ExponentiatedGradient)
L2 = 0.2
WEIGHTS = (1.0, 2.0, 0.5, 1.0, 0.0)  # of the first sequences
each_component = pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
each_optimizer = pytest.mark.parametrize("make", DUAL)


class Sequence(NamedTuple):
    """All labellings of one sequence."""

    labellings: list
    costs: np.ndarray
    differences: np.ndarray  # how often each uses each weight more than the annotation does
    weight: float

    def loss(self, weights):
        return self.weight * float(np.max(self.costs + self.differences @ weights))


def enumerate_labellings(component, scores, begin, end, clamp=None):
    """(Score, labelling, states of its tokens), best first."""
    if component == "crf_ner":
        return [(score, path, path) for score, path in reference.paths(scores, begin, end, clamp)]
    found = reference.segment_paths(scores, begin, end, clamp)
    return [(score, path, [j for b, e, j in path for _ in range(b, e)]) for score, path in found]


def uses_of(component, scores, begin, end, labelling):
    if component == "crf_ner":
        return reference.uses(scores, begin, end, labelling)
    return reference.segment_uses(scores, labelling)


def read_sequences(pipe, examples, costs):
    component = pipe.name
    batch, online = objectives(pipe, examples)
    size = len(batch.weights())
    docs = [example.predicted for example in examples]

    def scores_at(weights):
        batch.assign(weights)
        return pipe.model.predict(docs)

    # Scores are sums of weights: how often each score has each of them
    zero = scores_at(np.zeros(size))
    counts = {name: [] for name in zero._fields if name not in ("listed", "starts")}
    for weight in np.eye(size):
        scores = scores_at(weight)
        for name, found in counts.items():
            found.append(getattr(scores, name))
    batch.assign(np.zeros(size))
    clamp = pipe.training.data(examples).allowed
    sequences = []
    for b, (begin, end) in enumerate(zip(zero.starts, zero.starts[1:])):
        labellings = enumerate_labellings(component, zero, begin, end)
        [(_, annotated, states)] = enumerate_labellings(component, zero, begin, end, clamp)

        def count(labelling, begin=begin, end=end):
            found = uses_of(component, zero, begin, end, labelling)
            return sum(np.array([score[index] for score in counts[name]]) for name, index in found)

        own = count(annotated)
        sequences.append(
            Sequence(
                [labelling for _, labelling, _ in labellings],
                np.array([costs[states, others].sum() for _, _, others in labellings]),
                np.array([count(labelling) - own for _, labelling, _ in labellings]),
                online.corpus.weights[b],
            )
        )
    return sequences


def make_corpus(component):
    """Some of the sentences, short enough for all of their labellings."""
    return *_make_pipe(component), read_corpus(component)


@cache
def read_corpus(component):
    """Do not change."""
    _, pipe, examples = _make_pipe(component)
    return read_sequences(pipe, examples, pipe.loss.costs(len(pipe.tags())))


def _make_pipe(component):
    loss = MaxMargin(cost={"PER": {"O": 2.0}}, label_weights={"LOC": 1.5})
    nlp, pipe, examples = make_pipe(loss, component, weights=WEIGHTS)
    return nlp, pipe, examples[1:]


def primal_at(sequences, weights):
    return L2 * weights @ weights + sum(sequence.loss(weights) for sequence in sequences)


def theta_of(pipe, corpus, room, theta, b):
    """The scores of a distribution of exponentiated gradients."""
    parts = np.split(theta, make_table(corpus, room).rows[b])[1:-1]
    nodes, chain = parts[:2]
    if corpus.segments is None:
        return ChainScores(nodes, chain[:-2], chain[-2], chain[-1])
    begins, ends, spans, lengths = parts[2:]
    bounds = corpus.segments.listed_starts[corpus.starts[b] : corpus.starts[b + 1] + 1]
    listed = SpanList(bounds - bounds[0], corpus.segments.listed_lengths[bounds[0] : bounds[-1]])
    return SegmentScores(nodes, begins, ends, lengths, spans, chain[:-2], chain[-2], chain[-1], listed)


@each_component
@each_optimizer
def test_primal_dual_and_gap_are_those_of_the_enumeration(component, make):
    nlp, pipe, examples, sequences = make_corpus(component)
    optimizer = make(l2=L2, gap_tolerance=0.0)
    duals = []
    for _ in range(6):
        value = nlp.update(examples, sgd=optimizer)[component]
        batch, online = objectives(pipe, examples)
        weights = optimizer._runs[component].slots[online.corpus.slot_of_weight]
        assert_allclose(batch.weights(), weights, rtol=1e-6)
        primal = primal_at(sequences, weights)
        assert value == pytest.approx(primal)
        duals.append(value - optimizer.duality_gap(component))
    assert all(np.diff(duals) > -1e-9)
    assert duals[-1] > duals[0]
    if make is ExponentiatedGradient:
        run, corpus = optimizer._runs[component], online.corpus
        room = make_room(corpus, maximum=True)
        cost, used = 0.0, np.zeros(len(weights))
        for b, sequence in enumerate(sequences):
            if sequence.weight == 0.0:
                continue
            scores = theta_of(pipe, corpus, room, run.arrays["theta"], b)
            found = enumerate_labellings(component, scores, 0, int(corpus.starts[b + 1] - corpus.starts[b]))
            log_z = reference.log_sum([score for score, *_ in found])
            first = int(corpus.starts[b]) if component == "semicrf_ner" else 0
            for score, labelling, _ in found:
                if component == "semicrf_ner":
                    labelling = tuple((begin + first, end + first, j) for begin, end, j in labelling)
                n = sequence.labellings.index(labelling)
                probability = sequence.weight * np.exp(score - log_z)
                cost += probability * sequence.costs[n]
                used += probability * sequence.differences[n]
        assert_allclose(weights, -used / (2.0 * L2), atol=1e-8)
        assert duals[-1] == pytest.approx(cost - L2 * weights @ weights)


@each_component
def test_frank_wolfe_is_the_papers_rule(component):
    nlp, pipe, examples, sequences = make_corpus(component)
    optimizer = FrankWolfe(l2=L2, gap_tolerance=0.0)
    weights = np.zeros(sequences[0].differences.shape[1])
    means = [(0.0, np.zeros(len(weights))) for _ in sequences]  # cost, and uses less the annotation's
    for epoch in range(2):
        for b in np.random.default_rng((0, epoch)).permutation(len(sequences)):
            sequence, (cost, used) = sequences[b], means[b]
            values = sequence.weight * (sequence.costs + sequence.differences @ weights)
            best = next(n for n, value in enumerate(values) if value > max(values) - 1e-9)
            other_cost, other = sequence.weight * sequence.costs[best], sequence.weight * sequence.differences[best]
            direction = other - used
            if direction.any():
                gap = direction @ weights + other_cost - cost
                step = min(max(2.0 * L2 * gap / (direction @ direction), 0.0), 1.0)
                weights = weights - step * direction / (2.0 * L2)
                means[b] = cost + step * (other_cost - cost), used + step * direction
        nlp.update(examples, sgd=optimizer)
        _, online = objectives(pipe, examples)
        assert_allclose(optimizer._runs[component].slots[online.corpus.slot_of_weight], weights, atol=1e-9)


@each_component
def test_both_close_the_gap_at_the_minimum(component):
    found = []
    for make, tolerance, most_steps in ((ExponentiatedGradient, 2e-3, 40), (FrankWolfe, 5e-2, 80)):
        nlp, pipe, examples, sequences = make_corpus(component)
        optimizer = make(l2=L2, gap_tolerance=tolerance, epochs_per_step=20)
        for _ in range(most_steps):
            value = nlp.update(examples, sgd=optimizer)[component]
            gap = optimizer.duality_gap(component)
            assert gap > -1e-9
            if gap <= tolerance * value:
                break
        assert gap <= tolerance * value
        batch, _ = objectives(pipe, examples)
        found.append((batch.weights(), gap))
    # The objective grows with l2 |w - minimum|², and a minimum is no further below than the gap
    (weights, gap), (others, other_gap) = found
    assert np.linalg.norm(weights - others) < np.sqrt(gap / L2) + np.sqrt(other_gap / L2)
    # A subgradient method on the primal ends a little above the same minimum
    nlp, pipe, examples, sequences = make_corpus(component)
    nlp.update(examples, sgd=SGD(l2=L2, epochs_per_step=1000))
    value = primal_at(sequences, objectives(pipe, examples)[0].weights())
    least = primal_at(sequences, found[0][0]) - found[0][1]
    assert least < value < 1.05 * least


@registry.misc("test_dual.no_segment_features")
def make_no_segment_features():
    return SegmentFeatureSet([])


@each_optimizer
def test_segments_of_one_token_are_a_chain(make):
    found = []
    for component in ("crf_ner", "semicrf_ner"):
        nlp = spacy.blank("en")
        model = {"emissions": {"features": {"@misc": "spacy_crf.features.v1", "templates": TEMPLATES}}}
        config = {"model": model, "scheme": "IO"}
        if component == "semicrf_ner":
            features = {"@misc": "test_dual.no_segment_features"}
            model["segments"] = {"@architectures": "spacy_crf.SparseSegments.v1", "features": features}
            model["longest_segment"] = 1
            del config["scheme"]
        pipe = nlp.add_pipe(component, config=config)
        docs = [Doc(nlp.vocab, text.split(), ents=tags) for text, tags in SENTENCES]
        examples = [Example(Doc(nlp.vocab, [token.text for token in doc]), doc) for doc in docs]
        nlp.initialize(lambda examples=examples: examples)
        pipe.loss = MaxMargin().bind(pipe.annotation.tag_labels())
        optimizer = make(l2=0.1, gap_tolerance=0.0)
        steps = [(nlp.update(examples, sgd=optimizer)[component], optimizer.duality_gap(component)) for _ in range(8)]
        found.append((np.array(steps), objectives(pipe, examples)[0].weights()))
    for of_chain, of_segments in zip(*found):
        assert_allclose(of_segments, of_chain, rtol=1e-9)


@each_component
@each_optimizer
def test_sequences_that_no_labelling_can_be_teach_nothing(component, make):
    """They had been given the cost of the labelling before."""
    nlp, pipe, examples, _ = make_corpus(component)
    optimizer = make(l2=L2)
    nlp.update(examples, sgd=optimizer)
    _, online = objectives(pipe, examples)
    corpus, run = online.corpus, optimizer._runs[component]
    first_start = corpus.chain_start + corpus.n_states * corpus.n_states
    run.slots[first_start + corpus.gold[0]] = -np.inf  # nothing begins like the first sequence
    costs = pipe.loss.costs(corpus.n_states)
    pass_ = CorpusPass(corpus, np.array([0]), costs, make_room(corpus, maximum=True))
    before = run.slots.copy(), *(array.copy() for array in run.arrays.values())
    assert optimizer.ascend(pass_, run, learns=True) == (0.0, -1)
    for array, old in zip((run.slots, *run.arrays.values()), before):
        assert_array_equal(array, old)


@each_component
def test_complete_annotation_is_needed_and_no_pairs(component):
    for config, code in (({"partial": True}, "CRF347"), ({"pairs": True}, "CRF347")):
        nlp, _, examples = make_pipe(MaxMargin(), component, **config)
        with pytest.raises(ValueError, match=code):
            nlp.update(examples, sgd=FrankWolfe())


@each_component
@each_optimizer
def test_a_component_with_its_own_is_saved_and_goes_on(component, make, tmp_path):
    own = {
        "optimizer": {"@optimizers": registered(make.__name__), "l2": 0.1, "epochs_per_step": 10},
        "loss": {"@losses": "spacy_crf.MaxMargin.v1"},
    }
    nlp, _, examples = make_pipe(MaxMargin(), component, own=own)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(6):
        losses = nlp.update(examples, sgd=optimizer)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    again = [Example(loaded.make_doc(example.text), example.reference) for example in examples]
    assert loaded.evaluate(again)["ents_f"] == 1.0
    # It goes on from the weights that were loaded: what is left to learn is next to nothing, and nothing is forgotten
    optimizer = loaded.resume_training()
    for _ in range(6):
        resumed = loaded.update(again, sgd=optimizer)
    assert resumed[component] < 0.1 * losses[component]
    assert loaded.evaluate(again)["ents_f"] == 1.0


@pytest.mark.parametrize("optimizer", ["FrankWolfe", "ExponentiatedGradient", "SMO", "CuttingPlane"])
def test_users_read_the_duality_gap_where_it_ended(optimizer, caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf.MaxMargin.v1"}})
    examples = ner_examples(nlp)
    sgd = spacy.registry.optimizers.get(registered(optimizer))(l2=1.0, gap_tolerance=0.2)
    nlp.initialize(lambda: examples, sgd=sgd)
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf.training"):
        while sgd.stop_reason("crf_ner") is None:
            nlp.update(examples, sgd=sgd)
        nlp.update(examples, sgd=sgd)  # says no more
    [said] = [r.message for r in caplog.records if "gap" in r.message and r.name == "spacy.spacy_crf.training"]
    assert f"gap {sgd.duality_gap('crf_ner'):.6f} is within gap_tolerance = 0.2" in said


def test_exponentiated_gradients_find_their_way_from_a_first_step_too_far():
    """A first step whatever the dual says put all mass at wrong labellings; rates then fell to 0, and 0 times -inf was NaN."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf.MaxMargin.v1"}})
    examples = ner_examples(nlp)
    sgd = spacy.registry.optimizers.get("spacy_crf_lab.ExponentiatedGradient.v1")(l2=0.1, epochs_per_step=100)
    nlp.initialize(lambda: examples, sgd=sgd)
    gaps = []
    for _n in range(2):
        nlp.update(examples, sgd=sgd)
        gaps.append(sgd.duality_gap("crf_ner"))
    assert gaps[1] < gaps[0] < 1.0


FRANK_WOLFE = {"@optimizers": "spacy_crf_lab.FrankWolfe.v1", "l2": 0.1, "epochs_per_step": 2}


def test_frank_wolfe_sees_the_whole_corpus_too():
    loss = {"@losses": "spacy_crf.MaxMargin.v1"}
    nlp, sgd = make_streamed(optimizer=FRANK_WOLFE, streamed=False, loss=loss)
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    expected = [nlp.update(examples, sgd=sgd)["crf_ner"] for _ in range(2)]
    lean, sgd = make_streamed(optimizer=FRANK_WOLFE, loss=loss)
    initialize(lean, lambda nlp: iter(ner_examples(nlp)))
    assert [lean.update(examples[:1], sgd=sgd)["crf_ner"] for _ in range(2)] == expected
    assert_same_weights(lean, nlp)


def test_the_dual_ends_at_its_gap(tagged_paths):
    overrides = {**tagged_paths, "training.patience": 0, "training.max_epochs": 1}
    config = load_config(CONFIGS / "crf_ner_svm.cfg", overrides=overrides)
    config["training"]["batcher"] = {"@batchers": "spacy_crf.clock.v1"}
    nlp, rows = run(config)
    assert len(rows) > 1
    assert_knows_the_texts(nlp)
