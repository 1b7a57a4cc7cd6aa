"""Losses over single tokens or segments and their neighbours, against their definition by enumeration and against finite
differences: a chain is a chain of segments of one token, in other arrays."""

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.semi_markov import SemiMarkov, every_span
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.schemes import Segments
from spacy_crf.types import GOES_ON, ChainScores, SegmentClamp, SegmentScores
from spacy_crf_lab.local_losses import BesagPseudoLikelihood, Piecewise, PseudoLikelihood
from tests import reference
from tests.inference import test_higher_order
from tests.inference.test_semi_markov import random_scores
from tests.losses import test_losses
from tests.models import test_neural, test_new_structure
from tests.pipeline import test_supervision
from tests.pipeline.test_supervision import IN_TRAINING
from tests.pipeline.test_supervision import make as make_ner
from tests.pipeline.test_white_space import marked
from tests.structures import as_path, assert_derivative, assert_scores_close
from tests.test_configs import train_three_steps
from tests.util import entities, ner_examples, plain

from .util import for_rows, registered

semi, chain = SemiMarkov(), LinearChain()
FIELDS = tuple(SegmentScores.AXES)
STATES = ("O", "A", "B")
WEIGHTS = {"A": 2.0, "O": 0.5}
LENGTHS = [4, 0, 1, 3]
LOSSES = [PseudoLikelihood, BesagPseudoLikelihood, Piecewise]
each = pytest.mark.parametrize("loss", LOSSES)
kinds = pytest.mark.parametrize("kind", ["full", "partial", "free"])


def problem(kind, *, per_position=False, seed=0):
    """Scores of four sequences, whose segments of O have one token, a clamp, and the factors of the sequences."""
    scores = random_scores(LENGTHS, 3, seed=seed, per_position=per_position)
    scores.lengths[1:, 0] = -np.inf
    rng = np.random.default_rng(1 + seed)
    tokens = sum(LENGTHS)
    states, begins = np.zeros((tokens, 3), dtype=bool), np.zeros(tokens, dtype=bool)
    for begin, end in reference.segment_sequences(scores):
        while begin < end:
            state = rng.integers(0, 3)
            length = min(end - begin, rng.integers(1, 4)) if state else 1
            states[begin : begin + length, state] = True
            begins[begin] = True
            begin += length
    clamp = SegmentClamp(states, begins.copy(), begins.copy())
    if kind == "partial":
        states |= rng.random(states.shape) < 0.2
        clamp = SegmentClamp(states, begins | (rng.random(tokens) < 0.3), begins & (rng.random(tokens) < 0.7))
    if kind == "free":
        every = np.ones(tokens, dtype=bool)
        clamp = SegmentClamp(np.ones_like(states), every, ~every)
    return scores, clamp, np.array([1.0, 3.0, 0.5, 2.0])


def chain_problem(kind, *, per_position=False):
    """The same of tokens, the other structure, and what defines its loss: the same scores as segments of one token."""
    scores, clamp, weights = problem(kind, per_position=per_position)
    clamp = SegmentClamp(clamp.states, *np.ones((2, len(clamp.states)), dtype=bool))
    of_chain = ChainScores(scores.tokens, scores.transitions, scores.first, scores.last, scores.starts)
    return of_chain, clamp.states, as_segments(of_chain), clamp, weights


def as_segments(scores):
    (tokens, size), none = scores.emissions.shape, np.zeros((0, 3))
    zeros = np.zeros((tokens, size)), np.zeros((tokens, size)), np.zeros((1, size)), none
    return SegmentScores(scores.emissions, *zeros, scores.transitions, scores.first, scores.last, None, scores.starts)


class Excluding(SemiMarkov):
    """What a component gives for spans known to be wrong."""

    def __init__(self, *wrong):
        super().__init__()
        self.wrong = Segments(*(np.array(column, dtype=np.int64) for column in zip(*wrong)))


def is_allowed(clamp, segment, opening, closing, wrong=()):
    begin, end, state = segment
    return (
        clamp.states[begin:end, state].all()
        and (begin == opening or clamp.may_begin[begin])
        and (end == closing or clamp.may_begin[end])
        and not clamp.must_begin[begin + 1 : end].any()
        and (begin, end, state - 1) not in wrong
    )


def marginal_terms(scores, clamp, begin, end, wrong):
    paths = reference.segment_paths(scores, begin, end)
    log_z = reference.log_sum([score for score, _ in paths])
    for t in range(begin, end):
        if t == begin or clamp.may_begin[t]:
            inside = [
                score
                for score, path in paths
                for segment in path
                if segment[0] <= t < segment[1] and is_allowed(clamp, segment, begin, end, wrong)
            ]
            yield t, log_z - reference.log_sum(inside)


def conditional_terms(scores, clamp, begin, end, wrong):
    """Of all labellings that say the same as the annotation at the tokens around t, those that do so at t too."""
    named = {}
    for t in range(begin, end):
        entries = [j for j in range(3) if clamp.states[t, j] and (t == begin or clamp.may_begin[t])]
        both = clamp.states[t] & clamp.states[t - 1] & (scores.lengths[1:] > -np.inf).any(axis=0)
        if t > begin and not clamp.must_begin[t] and both.any():
            entries.append(GOES_ON)
        if len(entries) == 1:
            named[t] = entries[0]
    paths = [(score, as_path(path, begin, end)) for score, path in reference.segment_paths(scores, begin, end)]
    for t in range(begin, end):
        first, last = t - 1, t + 1  # one beginning of a segment in front, one behind
        while first > begin and named.get(first) == GOES_ON:
            first -= 1
        while last < end and named.get(last) == GOES_ON:
            last += 1
        around = [u for u in range(max(first, begin), min(last + 1, end)) if u != t]
        if all(u in named for u in (t, *around)):
            same = [(s, path) for s, path in paths if all(path[u - begin] == named[u] for u in around)]
            right = [score for score, path in same if path[t - begin] == named[t]]
            yield t, reference.log_sum([score for score, _ in same]) - reference.log_sum(right)


def piece_terms(scores, clamp, begin, end, wrong):
    longest, size = scores.lengths.shape
    for t in range(begin, end):
        found = {"all": [], "allowed": []}
        crossed = set()
        for b in range(begin, end):
            for e in range(max(b, t) + 1, min(b + longest, end) + 1):
                for j in range(size):
                    for i in range(size) if b > begin else [None]:
                        score = sum(
                            float(getattr(scores, name)[index])
                            for name, index in reference.segment_uses(scores, [(b, e, j)])
                            if name not in ("first", "last")
                        )
                        score += scores.first[j] if b == begin else reference.transition(scores, b, i, j)
                        score += scores.last[j] if e == end else 0.0
                        right = is_allowed(clamp, (b, e, j), begin, end, wrong)
                        right = right and (i is None or clamp.states[b - 1, i])
                        if b > t or score == -np.inf:
                            continue
                        for name in ("all", "allowed") if right else ("all",):
                            if e == t + 1:
                                found[name].append(score)
                            else:
                                crossed.add(name)
        yield (
            t,
            (
                reference.log_sum(found["all"] + [0.0] * ("all" in crossed))
                - reference.log_sum(found["allowed"] + [0.0] * ("allowed" in crossed))
            ),
        )


TERMS = {
    PseudoLikelihood: marginal_terms,
    BesagPseudoLikelihood: conditional_terms,
    Piecewise: piece_terms,
}


def defined(loss, scores, clamp, sequence_weights, weights=None, wrong=()):
    """Every term by going through all segmentations, path entries or pieces."""
    total = []
    for b, (begin, end) in enumerate(reference.segment_sequences(scores)):
        value = 0.0
        for t, term in TERMS[loss](scores, clamp, begin, end, wrong):
            only = clamp.states[t].sum() == 1
            value += term * (weights.get(STATES[clamp.states[t].argmax()], 1.0) if weights and only else 1.0)
        total.append(sequence_weights[b] * value)
    return np.array(total)


@each
@kinds
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("per_position", [False, True])
def test_values_and_gradients(loss, kind, weights, per_position):
    scores, clamp, sequence_weights = problem(kind, per_position=per_position)
    bound = loss(label_weights=weights).bind(STATES)

    def call(at):
        return bound(semi, at, clamp, weights=sequence_weights)

    losses, d_scores, impossible = call(scores)
    np.testing.assert_allclose(losses, defined(loss, scores, clamp, sequence_weights, weights), atol=1e-10)
    assert not impossible.any()
    assert d_scores.starts is scores.starts and d_scores.listed is scores.listed
    assert_derivative(lambda at: call(at)[0].sum(), scores, d_scores)


@each
@kinds
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("per_position", [False, True])
def test_values_and_gradients_of_chains(loss, kind, weights, per_position):
    scores, states, segments, clamp, sequence_weights = chain_problem(kind, per_position=per_position)
    bound = loss(label_weights=weights).bind(STATES)

    def call(at):
        return bound(chain, at, states, weights=sequence_weights)

    losses, d_scores, impossible = call(scores)
    np.testing.assert_allclose(losses, defined(loss, segments, clamp, sequence_weights, weights), atol=1e-10)
    assert not impossible.any()
    assert_derivative(lambda at: call(at)[0].sum(), scores, d_scores)


@each
def test_impossible_annotation_of_chains_teaches_nothing(loss):
    scores, states, *_ = chain_problem("full")
    scores.emissions[1, states[1]] = -np.inf
    losses, d_scores, impossible = loss()(chain, scores, states)
    assert impossible.tolist() == [True, False, False, False]
    assert losses[0] == 0.0 and (d_scores.emissions[:3] == 0.0).all()
    assert np.isfinite(losses).all() and all(np.isfinite(array).all() for array in d_scores[:4])


@each
@pytest.mark.parametrize("seed", range(1, 9))
def test_values_of_more_annotations(loss, seed):
    for kind in ("full", "partial"):
        scores, clamp, sequence_weights = problem(kind, seed=seed)
        losses, _, impossible = loss()(semi, scores, clamp, weights=sequence_weights)
        assert not impossible.any()
        np.testing.assert_allclose(losses, defined(loss, scores, clamp, sequence_weights), atol=1e-10)


@each
@pytest.mark.parametrize("seed", range(40))
def test_any_annotation_of_any_scores(loss, seed):
    """Sequences of no token or of no labelling, forbidden and far away scores, clamps that contradict themselves."""
    rng = np.random.default_rng(seed)
    lengths, longest = rng.integers(0, 4, size=3).tolist(), int(rng.integers(1, 4))
    settings = {"spread": rng.choice([0, 1, 5, 30]), "forbidden": rng.choice([0, 0.3]), "per_position": seed % 2 == 0}
    scores = random_scores(lengths, 3, longest, seed=seed, **settings)
    for name in FIELDS:
        array = getattr(scores, name)
        if name != "transitions" and rng.random() < 0.4:
            array[rng.random(array.shape) < 0.25] = -np.inf
    tokens = sum(lengths)
    states = rng.random((tokens, 3)) < rng.choice([0.4, 0.8, 1.0])
    clamp = SegmentClamp(states, rng.random(tokens) < 0.6, rng.random(tokens) < 0.3)
    losses, d_scores, impossible = loss()(semi, scores, clamp)
    assert all(np.isfinite(getattr(d_scores, name)).all() for name in FIELDS)
    possible = reference.segment_log_partition(scores) > -np.inf
    for b, (begin, end) in enumerate(reference.segment_sequences(scores)):
        if loss is BesagPseudoLikelihood and not possible[b]:
            continue  # what is impossible elsewhere does not matter to a term, but enumeration finds nothing
        with np.errstate(invalid="ignore"):
            expected = sum(np.float64(term) for _, term in TERMS[loss](scores, clamp, begin, end, ()))
        assert impossible[b] == (not np.isfinite(expected))
        assert losses[b] == pytest.approx(0.0 if impossible[b] else expected, abs=1e-8, rel=1e-9)


@pytest.mark.parametrize("loss", [PseudoLikelihood, Piecewise])
def test_spans_known_to_be_wrong_are_left_out(loss):
    scores, clamp, weights = problem("free")
    wrong = [(0, 2, 0), (1, 2, 1), (4, 5, 0), (5, 8, 1)]
    structure = Excluding(*wrong)
    losses, d_scores, _ = loss()(structure, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, defined(loss, scores, clamp, weights, wrong=wrong), atol=1e-10)
    assert losses.tolist() != loss()(semi, scores, clamp, weights=weights)[0].tolist()
    assert_derivative(lambda at: loss()(structure, at, clamp, weights=weights)[0].sum(), scores, d_scores)


@each
@kinds
@pytest.mark.parametrize("forbidden", [0.0, 0.3])
def test_segments_of_one_token_are_a_linear_chain(loss, kind, forbidden):
    """Exactly the loss of chains, at sizes that no enumeration reaches."""
    lengths, size = [40, 3, 0, 77], 5
    scores = random_scores(lengths, size, 1, forbidden=forbidden)
    emissions = scores.tokens + scores.begins + scores.ends + scores.lengths[0]
    [listed] = np.nonzero(np.diff(scores.listed.starts))
    emissions[listed] += scores.spans
    chain_scores = ChainScores(emissions, scores.transitions, scores.first, scores.last, scores.starts)
    rng = np.random.default_rng(5)
    states = np.eye(size, dtype=bool)[LinearChain().viterbi(chain_scores).states]
    states |= rng.random(states.shape) < {"full": 0.0, "partial": 0.3, "free": 1.0}[kind]
    every = np.ones(len(states), dtype=bool)
    bound = loss(label_weights={"A": 2.0}).bind(["O", "A", "A", "B", "B"])
    expected, d_expected, no_state = bound(LinearChain(), chain_scores, states)
    for must_begin in (every, ~every):
        losses, d_scores, impossible = bound(semi, scores, SegmentClamp(states, every, must_begin))
        np.testing.assert_allclose(losses, expected, atol=1e-9)
        assert impossible.tolist() == no_state.tolist() == [False] * 4
        np.testing.assert_allclose(d_scores.tokens, d_expected.emissions, atol=1e-9)
        np.testing.assert_allclose(d_scores.begins, d_expected.emissions, atol=1e-9)
        np.testing.assert_allclose(d_scores.spans, d_expected.emissions[listed], atol=1e-9)
        for name in ("transitions", "first", "last"):
            np.testing.assert_allclose(getattr(d_scores, name), getattr(d_expected, name), atol=1e-9)


@each
@pytest.mark.parametrize("field", ["tokens", "begins", "ends", "spans", "lengths", "transitions", "first", "last"])
def test_what_is_forbidden_has_no_part_in_it(loss, field):
    """Scores of -inf that the annotation does not need."""
    scores, clamp, weights = problem("full")
    used = reference.segment_expectations(
        scores._replace(**{name: np.zeros_like(getattr(scores, name)) for name in FIELDS}), clamp
    )
    unused = getattr(used, field) == 0.0
    unused &= np.random.default_rng(2).random(unused.shape) < 0.6
    getattr(scores, field)[unused] = -np.inf
    losses, d_scores, impossible = loss()(semi, scores, clamp, weights=weights)
    assert not impossible.any()
    np.testing.assert_allclose(losses, defined(loss, scores, clamp, weights), atol=1e-10)
    assert (getattr(d_scores, field)[unused] == 0.0).all()
    assert_derivative(lambda at: loss()(semi, at, clamp, weights=weights)[0].sum(), scores, d_scores)


@each
@pytest.mark.parametrize("how", ["token", "end", "transition"])
def test_impossible_annotation_teaches_nothing(loss, how):
    scores, clamp, weights = problem("full", per_position=True)
    segments = next(path for _, path in reference.segment_paths(scores, 0, 4, clamp))
    assert len(segments) == 2
    if how == "token":
        scores.tokens[1, clamp.states[1]] = -np.inf
    elif how == "end":
        _, end, state = segments[0]
        scores.ends[end - 1, state] = -np.inf
    else:
        scores.transitions[segments[1][0], segments[0][2], segments[1][2]] = -np.inf
        if loss is PseudoLikelihood:  # each of the segments is possible, with other neighbours
            assert not loss()(semi, scores, clamp)[2].any()
            return
    losses, d_scores, impossible = loss()(semi, scores, clamp, weights=weights)
    assert impossible.tolist() == [True, False, False, False]
    assert losses[0] == 0.0 and np.isfinite(losses).all()
    for name in FIELDS:
        assert np.isfinite(getattr(d_scores, name)).all()
    others = problem("full", per_position=True)
    expected, d_expected, _ = loss()(semi, others[0], clamp, weights=[0.0, *weights[1:]])
    np.testing.assert_allclose(losses, expected, atol=1e-12)
    assert_scores_close(d_scores, d_expected)


@each
def test_a_segment_longer_than_the_longest_is_impossible(loss):
    scores, _, _ = problem("full")
    states = np.repeat([[False, True, False]], 8, axis=0)
    begins = np.zeros(8, dtype=bool)
    _, _, impossible = loss()(semi, scores, SegmentClamp(states, begins, begins))
    assert impossible.tolist() == [True, False, False, False]


@each
def test_nothing_is_lost_without_tokens(loss):
    scores = random_scores([0, 0], 2)
    none = np.zeros(0, dtype=bool)
    losses, d_scores, impossible = loss()(semi, scores, SegmentClamp(np.zeros((0, 2), dtype=bool), none, none))
    assert losses.tolist() == [0.0, 0.0] and not impossible.any()
    assert all((getattr(d_scores, name) == 0.0).all() for name in FIELDS)


@each
def test_long_batches_are_cut_into_parts(loss, monkeypatch):
    scores, clamp, weights = problem("partial", per_position=True)
    structure = Excluding((4, 5, 0), (5, 8, 1))
    whole = loss()(structure, scores, clamp, weights=weights)
    monkeypatch.setattr("spacy_crf_lab.local_losses._LARGEST_TABLE", 9)
    parts = loss()(structure, scores, clamp, weights=weights)
    np.testing.assert_allclose(parts[0], whole[0])
    assert_scores_close(parts[1], whole[1], atol=1e-12)
    single = scores._replace(tokens=scores.tokens[:4], begins=scores.begins[:4], ends=scores.ends[:4])
    single = single._replace(transitions=scores.transitions[:4], spans=scores.spans[:0], listed=None, starts=None)
    of_single = loss()(semi, single, SegmentClamp(*(array[:4] for array in clamp)))
    np.testing.assert_allclose(
        of_single[0], loss()(semi, single._replace(starts=np.array([0, 4])), SegmentClamp(*(a[:4] for a in clamp)))[0]
    )


def block_terms(scores, clamp, size):
    """The loss of each sequence. Each block sums all labellings that agree with the annotation everywhere else."""
    gold = np.where(clamp.sum(axis=1) == 1, clamp.argmax(axis=1), -1)
    found = []
    for begin, end in reference.sequences(scores):
        paths, terms = reference.paths(scores, begin, end), []
        for first in range(begin, end, size):
            last = min(end, first + size)
            around = range(max(begin, first - 1), min(end, last + 1))
            if any(gold[t] < 0 for t in around):
                continue
            agree = [
                (score, all(path[t - begin] == gold[t] for t in range(first, last)))
                for score, path in paths
                # What is open behind the neighbours does not matter: one of its labellings stands for all
                if all(path[t - begin] == max(gold[t], 0) for t in range(begin, end) if not first <= t < last)
            ]
            terms.append(
                reference.log_sum([score for score, _ in agree])
                - reference.log_sum([score for score, right in agree if right])
            )
        found.append(sum(terms))
    return np.array(found)


@kinds
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_blocks(kind, per_position, size):
    scores, clamp, *_, weights = chain_problem(kind, per_position=per_position)
    loss = BesagPseudoLikelihood(block=size).bind(STATES)
    losses, d_scores, impossible = loss(chain, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, weights * block_terms(scores, clamp, size), atol=1e-10)
    assert not impossible.any()
    assert_derivative(lambda scores: loss(chain, scores, clamp, weights=weights)[0].sum(), scores, d_scores)
    if size == 9 and kind == "full":
        np.testing.assert_allclose(losses, LogLikelihood()(chain, scores, clamp, weights=weights)[0], atol=1e-10)


def test_blocks_have_the_mean_weight_of_their_tokens():
    scores, clamp, *_ = chain_problem("full")
    one = BesagPseudoLikelihood({"O": 2.0, "A": 2.0, "B": 2.0}, block=2).bind(STATES)(chain, scores, clamp)[0]
    np.testing.assert_allclose(one, 2 * BesagPseudoLikelihood(block=2).bind(STATES)(chain, scores, clamp)[0])


def test_a_component_learns_by_blocks():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": "spacy_crf_lab.BesagPseudoLikelihood.v1", "block": 3}})
    examples = ner_examples(nlp)
    optimizer = LBFGS(iterations_per_step=30, l2=0.01)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_blocks_that_are_impossible_teach_nothing():
    scores, clamp, *_ = chain_problem("full")
    scores.emissions[1][clamp[1]] = -np.inf
    losses, d_scores, impossible = BesagPseudoLikelihood(block=2).bind(STATES)(chain, scores, clamp)
    assert impossible.tolist() == [True, False, False, False] and losses[0] == 0.0
    assert not d_scores.emissions[:4].any() and np.isfinite(d_scores.emissions).all()


@pytest.mark.parametrize(
    "factory, model",
    [("semicrf_ner", {}), ("crf_ner", {"@architectures": "spacy_crf_lab.FactorGraph.v1", "cliques": {}})],
)
def test_blocks_are_those_of_chains(factory, model):
    config: dict = {"loss": {"@losses": "spacy_crf_lab.BesagPseudoLikelihood.v1", "block": 3}}
    if model:
        words = {"@misc": "spacy_crf_lab.RepeatedWords.v1"}
        features = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
        emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
        config["model"] = {**model, "cliques": {"words": words}, "emissions": emissions}
    with pytest.raises(ValueError, match=r"CRF347.*block = 1"):
        nlp = spacy.blank("en")
        nlp.add_pipe(factory, config=config)
        examples = [Example.from_dict(nlp.make_doc("Ann left"), {"entities": [(0, 3, "PER")]})]
        nlp.update(examples, sgd=nlp.initialize(lambda: examples))
    with pytest.raises(ValueError, match=r"CRF020.*block = 0"):
        BesagPseudoLikelihood(block=0)


def test_piecewise_bounds_the_likelihood():
    for seed in range(6):
        scores, clamp, _ = problem("full", seed=seed)
        assert (Piecewise()(semi, scores, clamp)[0] >= LogLikelihood()(semi, scores, clamp)[0] - 1e-12).all()
    scores, states, *_ = chain_problem("full")
    assert (Piecewise()(chain, scores, states)[0] >= LogLikelihood()(chain, scores, states)[0] - 1e-12).all()


def test_the_marginal_of_an_entity_counts_once():
    scores, clamp, _ = problem("full")
    probability = reference.segment_marginals(scores)
    for b, (begin, end) in enumerate(reference.segment_sequences(scores)):
        [(_, gold)] = reference.segment_paths(scores, begin, end, clamp)
        expected = -sum(np.log(probability[segment]) for segment in gold)
        assert PseudoLikelihood()(semi, scores, clamp)[0][b] == pytest.approx(expected, abs=1e-10)


def test_segments_that_nearly_never_occur_keep_their_precision():
    """Rewards of 1 / p differ by many magnitudes: sums of them must not be differences of running sums."""
    scores, clamp, weights = problem("full")
    scores.tokens[:3] -= np.where(clamp.states[:3], 60.0, 0.0)
    losses, d_scores, _ = PseudoLikelihood()(semi, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, defined(PseudoLikelihood, scores, clamp, weights), rtol=1e-12)
    assert_derivative(lambda at: PseudoLikelihood()(semi, at, clamp, weights=weights)[0].sum(), scores, d_scores)


@pytest.mark.parametrize("per_position", [False, True])
def test_scores_of_segments_are_sums_and_their_derivative_goes_back(per_position):
    scores, _, _ = problem("full", per_position=per_position)
    scores.tokens[5, 1] = -np.inf
    every = every_span(scores.starts, 4)  # one token more than the longest
    begin = np.repeat(np.arange(8), np.diff(every.starts))
    end = begin + every.lengths
    expected = np.full((len(begin), 3), -np.inf)
    for n, j in np.ndindex(expected.shape):
        if every.lengths[n] <= 3:
            uses = reference.segment_uses(scores, [(int(begin[n]), int(end[n]), j)])
            expected[n, j] = sum(getattr(scores, name)[at] for name, at in uses if name not in ("first", "last"))
    work = semi.prepare(scores)
    np.testing.assert_allclose(semi.score_segments(work, begin, end), expected, atol=1e-12)
    derivative = np.random.default_rng(0).normal(size=expected.shape)
    back = semi.segments_derivative(work, begin, end, derivative)
    used = scores._replace(**{name: np.zeros_like(getattr(scores, name)) for name in FIELDS})
    for n, j in np.ndindex(expected.shape):
        if every.lengths[n] <= 3:
            for name, at in reference.segment_uses(scores, [(int(begin[n]), int(end[n]), j)]):
                opens, closes = begin[n] in scores.starts, end[n] in scores.starts
                if name not in ("first", "last") or (opens if name == "first" else closes):
                    getattr(used, name)[at] += derivative[n, j]
    assert_scores_close(back, used)


# end to end


@pytest.mark.jit
@each
def test_a_component_learns(loss):
    nlp = spacy.blank("en")
    settings = {"loss": {"@losses": registered(loss.__name__), "label_weights": {"PER": 1.5}}}
    pipe = nlp.add_pipe("semicrf_ner", config=settings)
    examples = ner_examples(nlp)
    optimizer = LBFGS(iterations_per_step=30, l2=0.01)
    nlp.initialize(lambda: examples, sgd=optimizer)
    assert type(pipe.loss) is loss
    losses = [nlp.update(examples, sgd=optimizer)["semicrf_ner"] for _n in range(2)]
    assert losses[1] <= losses[0]
    right = [entities(nlp(plain(example.reference))) == entities(example.reference) for example in examples]
    # What differs from the annotation at several tokens is never compared with it by terms of single tokens.
    assert sum(right) >= (5 if loss is BesagPseudoLikelihood else 6)


FEATURES = {
    "emissions": {"@misc": "spacy_crf.features.v1", "templates": ["lower[-2..2]", "shape[-1..1]", "prefix2[0]"]},
    "segments": {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.lower", "seg.shape", "seg.length"]},
}


@pytest.mark.jit
@each
def test_wrong_spans_of_a_component(loss, caplog):
    """Left out where the loss sums over what the annotation leaves open, and named where it does not."""
    words, probability = ["Ann", "Lee", "left", "Paris"], {}
    for key in (None, "wrong"):
        nlp = spacy.blank("en")
        settings = {"loss": {"@losses": registered(loss.__name__)}, "incorrect_spans_key": key}
        # The more features say that it is a name, the less one text can say against them
        features = {name: {"features": block} for name, block in FEATURES.items()}
        pipe = nlp.add_pipe("semicrf_ner", config={**settings, "model": features})
        reference = Doc(nlp.vocab, words=words)
        reference.spans["wrong"] = [Span(reference, 0, 2, "PER")]
        examples = [*ner_examples(nlp), Example(Doc(nlp.vocab, words=words), reference)]
        optimizer = LBFGS(iterations_per_step=100, l2=0.01)
        nlp.initialize(lambda examples=examples: examples, sgd=optimizer)
        with caplog.at_level("WARNING", logger="spacy.spacy_crf"):
            nlp.update(examples, sgd=optimizer)
        spans = pipe.span_probabilities(plain(reference), 0.0)
        probability[key] = {(span.start, span.end, span.label_): p for span, p in spans}[0, 2, "PER"]
    told = [record.message for record in caplog.records if "CRFW402" in record.message]
    if loss is BesagPseudoLikelihood:
        assert len(told) == 1 and "BesagPseudoLikelihood" in told[0]
        assert probability["wrong"] == probability[None]
    else:
        assert not told
        assert probability["wrong"] < 0.9 * probability[None]


def test_rules_in_training_are_refused_as_for_chains():
    rules = [{"rule": "at_most", "label": "ORG", "n": 1}]
    constraints = {"@misc": "spacy_crf.constraints.v1", "rules": rules, "in_training": True}
    piecewise = {"loss": {"@losses": "spacy_crf_lab.Piecewise.v1"}, "constraints": constraints}
    with pytest.raises(ValueError, match=r"CRF347.*Piecewise"):
        spacy.blank("en").add_pipe("semicrf_ner", config=piecewise)


@pytest.mark.jit
@pytest.mark.parametrize("loss", LOSSES)
def test_segments_train_three_steps(loss, corpus, tmp_path):
    trained = train_three_steps("semicrf_ner", "spacy_crf.LBFGS.v1", {}, registered(loss.__name__), corpus, tmp_path)
    assert [ent.label_ for ent in trained("Bob left Paris for Acme Corp .").ents] == ["PER", "GPE", "ORG"]


def test_losses_that_do_not_ask_the_rules_are_refused_when_the_component_is_made():
    piecewise = {"loss": {"@losses": "spacy_crf_lab.Piecewise.v1"}}
    with pytest.raises(ValueError, match=r"CRF347.*Piecewise"):
        make_ner(**piecewise, **IN_TRAINING)


@pytest.mark.parametrize(
    "factory, loss, optimizer",
    [
        ("crf_ner", "LogLikelihood", "Newton"),  # asks for variances
        ("semicrf_ner", "PseudoLikelihood", "LBFGS"),
        ("semicrf_ner", "Piecewise", "LBFGS"),
    ],
)
def test_losses_that_ask_other_questions_train_too(factory, loss, optimizer):
    """These raised IndexError and AttributeError on texts with line breaks."""
    nlp = spacy.blank("en")
    config = {"scheme": "BIO"} if factory == "crf_ner" else {}
    nlp.add_pipe(factory, config={"loss": {"@losses": registered(loss)}, **config})
    words = ["Ann", "\n", "Lee", "\n", "met", "Bo"]
    gold = marked(nlp, words, [(0, 3, "PER"), (5, 6, "LOC")])
    examples = [Example(Doc(nlp.vocab, words=words), gold)]
    chosen = registry.get("optimizers", registered(optimizer))()
    nlp.initialize(lambda: examples, sgd=chosen)
    nlp.update(examples, sgd=chosen)
    assert entities(nlp(Doc(nlp.vocab, words=words))) == [(0, 3, "PER"), (5, 6, "LOC")]


def test_losses_that_want_each_token_s_state_are_refused():
    with pytest.raises(ValueError, match="CRF347"):
        test_new_structure.blank("crf_ner", loss={"@losses": "spacy_crf_lab.BesagPseudoLikelihood.v1"})


def test_chains_of_higher_order_do_not_take_them():
    nlp, _ = test_higher_order.pipeline("crf_ner", 0)
    settings = {"model": nlp.config["components"]["crf_ner"]["model"]}
    config = {**settings, "loss": {"@losses": "spacy_crf_lab.PseudoLikelihood.v1"}}
    with pytest.raises(ValueError, match=r"CRF347.*PseudoLikelihood.*'crf_ner'.*LogLikelihood"):
        spacy.blank("en").add_pipe("crf_ner", config=config)


# ------------------------------------------------------------------------------ what holds of the losses of the plugin

globals().update(
    for_rows("loss", LOSSES, test_losses.test_settings_that_make_no_sense_are_refused)
    | for_rows("loss", ["spacy_crf_lab.PseudoLikelihood.v1"], test_neural.test_losses_of_a_sum)
    | for_rows(
        "settings, optimizer, who",
        [
            (
                {"loss": {"@losses": "spacy_crf_lab.PseudoLikelihood.v1"}},
                LBFGS(iterations_per_step=1),
                "PseudoLikelihood",
            )
        ],
        test_supervision.test_who_can_not_use_incorrect_spans_says_so_once,
    )
)
