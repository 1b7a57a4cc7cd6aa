"""Chains with hidden states: what is asked in tags against every path of states, training, settings, saving."""

import itertools
import logging
import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.cli import tune
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.distribution import of_docs
from spacy_crf.pipeline.excluded import leave_out
from spacy_crf.types import ChainScores, StateGraph
from spacy_crf_lab import latent_chain
from spacy_crf_lab.latent_chain import Labelling, LatentChain, LatentDistribution
from spacy_crf_lab.local_losses import Piecewise, PseudoLikelihood
from tests import components, reference
from tests.components import component
from tests.pipeline import test_components, test_white_space
from tests.structures import assert_derivative
from tests.util import entities, ner_examples, plain, tag_examples

from .util import for_rows, registered

components.MODELS["latent"] = {
    "@architectures": "spacy_crf_lab.LatentChain.v1",
    "emissions": components.EMISSIONS,
    "hidden": {"A": 2},
}

EMISSIONS = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["bias", "lower[-1..1]", "shape[0]"]},
}


COSTS = {"label_weights": {"B": 2.0}, "cost": {"A": {"C": 3.0}}}
LOSSES = [
    LogLikelihood(),
    LogLikelihood(**COSTS),
    SoftmaxMargin(**COSTS),
    Perceptron(),
    MaxMargin(),
    PseudoLikelihood(),
    Piecewise(),
]


def latent(hidden=2, emissions=EMISSIONS, **settings):
    settings = {"spread": 0.5, "possible_transitions": True, **settings}
    return {"@architectures": "spacy_crf_lab.LatentChain.v1", "emissions": emissions, "hidden": hidden, **settings}


def chain(emissions=EMISSIONS):
    return {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions, "possible_transitions": True}


def trained(model, factory="crf_ner", steps=1, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={"model": model, **config})
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = LBFGS(l2=0.3, iterations_per_step=5)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp


# ---------------------------------------------------------------------------------------------------- best labellings


def labelling_sums(scores, tag_of, clamp=None):
    """Every labelling of a single sequence with the sum over its paths, best first."""
    sums = {}
    for score, path in reference.paths(scores, 0, len(scores.emissions), clamp):
        sums.setdefault(tuple(tag_of[list(path)].tolist()), []).append(score)
    return sorted(((reference.log_sum(terms), tags) for tags, terms in sums.items()), reverse=True)


def random_chain(rng, tokens, tag_of, *, per_position=False):
    size = len(tag_of)
    shape = (tokens, size, size) if per_position else (size, size)
    transitions = rng.normal(scale=2.0, size=shape)
    transitions[rng.random(shape) < 0.2] = -np.inf
    emissions, (first, last) = rng.normal(scale=2.0, size=(tokens, size)), rng.normal(size=(2, size))
    return ChainScores(emissions, transitions, first, last)


def check_labellings(answer, every, tag_of, n):
    """Whether they are the best n of all, whose order among equals is nobody's business."""
    [found], [proven] = answer
    assert proven
    assert len(found) == min(n, len(every))
    for (score, states), (expected, tags) in zip(found, every):
        assert score == pytest.approx(expected, abs=1e-8)
        close = [other for total, other in every if abs(total - expected) < 1e-8]
        assert tuple(tag_of[states].tolist()) in close or not close, (tags, close)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("counts", [[1, 1, 1], [2, 2], [3, 1, 2]])
def test_best_labellings_are_those_of_all_paths(counts, per_position):
    rng, tag_of = np.random.default_rng(0), np.repeat(np.arange(len(counts)), counts)
    for tokens in (1, 2, 3, 4):
        scores = random_chain(rng, tokens, tag_of, per_position=per_position)
        clamp = rng.random((tokens, len(tag_of))) < 0.8
        for allowed in (None, clamp):
            every = labelling_sums(scores, tag_of, allowed)
            for n in (1, 3, 100):
                answer = latent_chain.n_best(LinearChain(), scores, tag_of, n, clamp=allowed)
                check_labellings(answer, every, tag_of, n)


def test_what_is_proven_is_true_in_thousands_of_chains():
    """The best labelling against all others, in chains of sixteen sizes, as many of a size at a time."""
    rng, n_chains = np.random.default_rng(2), 250
    for _ in range(16):
        counts = rng.integers(1, 4, size=int(rng.integers(1, 4)))
        tag_of, tokens = np.repeat(np.arange(len(counts)), counts), int(rng.integers(1, 5))
        shared = random_chain(rng, tokens, tag_of)
        parts = [random_chain(rng, tokens, tag_of).emissions for _ in range(n_chains - 1)]
        emissions = np.concatenate([shared.emissions, *parts])
        scores = shared._replace(emissions=emissions, starts=tokens * np.arange(n_chains + 1))
        found, proven = latent_chain.n_best(LinearChain(), scores, tag_of, 1)
        assert proven.all()
        # The sums of each tag sequence, of all chains at once
        best = np.full(n_chains, -np.inf)
        steps = np.exp(shared.transitions)
        by_chain = np.exp(emissions).reshape(n_chains, tokens, len(tag_of))
        for tags in itertools.product(range(len(counts)), repeat=tokens):
            alpha = np.exp(shared.first) * by_chain[:, 0] * (tag_of == tags[0])
            for t in range(1, tokens):
                alpha = (alpha @ steps) * by_chain[:, t] * (tag_of == tags[t])
            with np.errstate(divide="ignore"):
                best = np.maximum(best, np.log(alpha @ np.exp(shared.last)))
        for of_chain, expected in zip(found, best):
            assert (of_chain[0][0] if of_chain else -np.inf) == pytest.approx(expected, abs=1e-8)


def test_best_labellings_in_a_graph():
    rng, tag_of = np.random.default_rng(3), np.array([0, 0, 1, 1])
    scores = random_chain(rng, 4, tag_of)
    # Each state of the model twice; the second copies are entered once tag 1 was met
    state_of = np.repeat(np.arange(4), 2).astype(np.int32)
    arcs = [(i, j) for i in range(8) for j in range(8) if j % 2 == max(i % 2, tag_of[j // 2])]
    source, target = np.array(arcs, dtype=np.int32).T
    first = np.where(np.arange(8) % 2 == tag_of[state_of], 0.0, -np.inf)
    last = np.where(np.arange(8) % 2 == 1, 0.0, -np.inf)  # tag 1 occurs
    graph = StateGraph(source.copy(), target.copy(), np.zeros(len(source)), first, last, state_of)
    every = [(score, tags) for score, tags in labelling_sums(scores, tag_of) if 1 in tags]
    answer = latent_chain.n_best(LinearChain().over(graph), scores, tag_of, 5)
    check_labellings(answer, every, tag_of, 5)


def test_what_is_not_proven_is_said_and_is_no_worse_than_the_best_path():
    rng, tag_of = np.random.default_rng(4), np.repeat(np.arange(4), 4)
    scores = random_chain(rng, 4000, tag_of)._replace(transitions=0.1 * rng.normal(size=(16, 16)))
    scores = scores._replace(emissions=0.1 * scores.emissions)
    [[(score, states)]], [proven] = latent_chain.n_best(LinearChain(), scores, tag_of, 1)
    assert not proven
    path = LinearChain().viterbi(scores).states
    [expected] = LinearChain().log_partition(scores, clamp=tag_of == tag_of[path][:, np.newaxis])
    assert score == pytest.approx(expected)
    np.testing.assert_array_equal(tag_of[states], tag_of[path])


# -------------------------------------------------------------------------------------------- a component's answers


@pytest.fixture(scope="module", params=[2, {"PER": 3, "O": 2}], ids=["two", "by label"])
def nlp(request):
    return trained(latent(request.param))


def key(spans):
    return tuple((span.start, span.end, span.label_) for span in spans)


@pytest.fixture
def doc(nlp):
    return Doc(nlp.vocab, words=["Bob", "left", "Rome"])


def every_labelling(nlp, doc):
    """Probabilities of all labellings, from all paths of states."""
    ner = nlp.get_pipe("crf_ner")
    scores, tag_of = ner.model.predict([doc]), ner.model.attrs["tag_of"]
    sums = labelling_sums(scores, tag_of)
    log_z = reference.log_sum([total for total, _ in sums])
    spelt = [ner.decoding.segments(np.array(tags), np.array([0, len(doc)])) for _, tags in sums]
    return {
        key(ner.spans_of(doc, segments)): (math.exp(total - log_z), tags)
        for (total, tags), segments in zip(sums, spelt)
    }


def test_all_answers_are_sums_over_paths(nlp, doc):
    ner, every = nlp.get_pipe("crf_ner"), every_labelling(nlp, doc)
    marginals, tags = ner.marginals(doc)
    expected = np.zeros(marginals.shape)
    for p, states in every.values():
        expected[np.arange(3), list(states)] += p
    np.testing.assert_allclose(marginals, expected, atol=1e-8)
    assert len(tags) == marginals.shape[1]
    found = ner.n_best(doc, 7)
    best = sorted((p for p, _ in every.values()), reverse=True)
    np.testing.assert_allclose([p for p, _ in found], best[:7], atol=1e-8)
    for p, spans in found:
        assert every[key(spans)][0] == pytest.approx(p, abs=1e-8)
        assert math.exp(ner.log_probability(doc, spans)) == pytest.approx(p, abs=1e-8)
    of_spans = {}
    for labelling, (p, _) in every.items():
        for span in labelling:
            of_spans[span] = of_spans.get(span, 0.0) + p
    for span, p in ner.span_probabilities(doc, 0.0):
        assert p == pytest.approx(of_spans[key([span])[0]], abs=1e-8)
    drawn = [key(spans) for spans in ner.sample(doc, 2000, seed=1)]
    top = key(found[0][1])
    assert drawn.count(top) / 2000 == pytest.approx(every[top][0], abs=0.05)


HOW = {decode: {"decode": decode} for decode in ("viterbi", "posterior")}
HOW["labelling"] = {"decoder": {"@misc": "spacy_crf_lab.labelling.v1"}}


@pytest.mark.parametrize("decode", HOW)
def test_ways_to_decode(nlp, doc, decode):
    ner, before = nlp.get_pipe("crf_ner"), dict(nlp.get_pipe("crf_ner").cfg)
    ner.cfg.update(decode=HOW[decode].get("decode", "viterbi"), confidence=True)
    ner.decoder = Labelling() if "decoder" in HOW[decode] else None
    ner.follow_settings()
    spacy_crf_prob = ner.predict([doc]).probabilities
    found, every = ner.predict([doc]).tags, every_labelling(nlp, doc)
    ner.cfg.update(before)
    ner.decoder = None
    ner.follow_settings()
    scores, tag_of = ner.model.predict([doc]), ner.model.attrs["tag_of"]
    if decode == "viterbi":
        expected = tuple(tag_of[list(reference.paths(scores, 0, 3)[0][1])].tolist())
        assert tuple(found.tolist()) == expected
    elif decode == "labelling":
        assert tuple(found.tolist()) == max(every.values())[1]
    else:
        marginals, _ = ner.marginals(doc)
        worth = {tags: sum(marginals[t, tag] for t, tag in enumerate(tags)) for _, tags in every.values()}
        assert worth[tuple(found.tolist())] == pytest.approx(max(worth.values()))
    spans = ner.spans_of(doc, ner.decoding.segments(found, np.array([0, 3])))
    likely = {key([span]): p for span, p in ner.span_probabilities(doc, 0.0)}
    np.testing.assert_allclose(spacy_crf_prob, [likely[key([span])] for span in spans])


def test_labelling_differs_from_the_best_path():
    """Two states of one tag share what the other tag has for itself alone."""
    nlp = trained(latent(2), "crf_tagger")
    tagger = nlp.get_pipe("crf_tagger")
    doc = Doc(nlp.vocab, words=["dog"])
    tag_of = tagger.model.attrs["tag_of"]
    emissions = np.full(len(tag_of), -9.0)
    emissions[tag_of == 1], emissions[np.flatnonzero(tag_of == 0)[0]] = 0.0, 0.5
    scores = tagger.model.predict([doc])
    zeros = {name: np.zeros_like(getattr(scores, name)) for name in ("transitions", "first", "last")}
    scores = scores._replace(emissions=emissions[np.newaxis], **zeros)
    assert tagger.decoding.best_tags(scores, None).tolist() == [0]
    [(_, best)] = LatentDistribution(of_docs(tagger.decoding, scores, None)).n_best(1)
    assert best.tolist() == [1]


@pytest.mark.parametrize("decode", HOW)
def test_rules_act_on_tags(decode):
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "*", "n": 1}]}
    free = trained(latent())
    nlp = trained(latent(), constraints=rules, confidence=True, **HOW[decode])
    doc = Doc(nlp.vocab, words=["Bob", "left", "Rome"])
    labels = {k: [label for _, _, label in k] for k in every_labelling(free, doc)}
    every = {k: p for k, (p, _) in every_labelling(free, doc).items() if len(set(labels[k])) == len(labels[k])}
    total = sum(every.values())
    ner = nlp.get_pipe("crf_ner")
    for p, spans in ner.n_best(doc, 5):
        assert p == pytest.approx(every[key(spans)] / total, abs=1e-8)
    assert ner.marginals(doc)[0].sum(axis=1) == pytest.approx(1.0)
    found = nlp(plain(doc))
    if decode == "labelling":
        assert key(found.ents) == max(every, key=every.get)
    assert key(found.ents) in every
    assert all(ent._.crf_prob <= 1.0 for ent in found.ents)


def test_functions_of_rules_speak_of_tags():
    @spacy.registry.misc("latent_no_gpe")
    def no_gpe(doc):
        allowed = np.ones((len(doc), 13), dtype=bool)
        allowed[:, 1:5] = False  # GPE comes first
        return allowed

    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "custom", "function": "latent_no_gpe"}]}
    nlp = trained(latent(), constraints=rules)
    for text in ("Paris", "New York"):
        assert not [ent for ent in nlp(text).ents if ent.label_ == "GPE"]


def test_entities_that_are_there_are_kept(nlp):
    doc = Doc(nlp.vocab, words=["Bob", "left", "Rome", "."])
    doc.set_ents([Span(doc, 1, 2, label="ORG")], default="missing")
    found = nlp(doc)
    assert (1, 2, "ORG") in entities(found)
    assert nlp.get_pipe("crf_ner").log_probability(found, found.ents, keep_annotation=True) > -np.inf


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradients_are_those_of_finite_differences(loss):
    rng, tag_of = np.random.default_rng(5), np.array([0, 0, 1, 1, 1, 2])
    scores = random_chain(rng, 5, tag_of)._replace(starts=np.array([0, 3, 5]))
    clamp = tag_of == np.array([0, 1, 1, 2, 0])[:, np.newaxis]
    clamp[1] = True  # partial annotation
    loss = loss.bind(["A", "A", "B", "B", "B", "C"])

    def value(scores):
        return loss(LinearChain(), scores, clamp)[0].sum()

    _, d_scores, impossible = loss(LinearChain(), scores, clamp)
    assert not impossible.any()
    assert_derivative(value, scores, d_scores, tolerance=1e-5)


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_one_hidden_state_is_the_linear_chain(factory):
    """To the bit: weights, scores, and what is said of texts."""
    both = [trained(model, factory, 2).get_pipe(factory) for model in (latent(1), chain())]
    for name in ("transitions", "first", "last"):
        np.testing.assert_array_equal(*[pipe.model.get_param(name) for pipe in both])
    np.testing.assert_array_equal(*[pipe.model.get_ref("emissions").get_param("states") for pipe in both])
    doc = Doc(both[0].vocab, words=["the", "dog", "left", "Rome"])
    np.testing.assert_array_equal(*[pipe.marginals(doc)[0] for pipe in both])


def test_seeds_say_where_training_begins():
    same, again, other = (trained(latent(seed=seed), steps=3).get_pipe("crf_ner") for seed in (0, 0, 1))
    weights = [pipe.model.get_ref("emissions").get_param("states") for pipe in (same, again, other)]
    np.testing.assert_array_equal(*weights[:2])
    assert np.abs(weights[0] - weights[2]).max() > 0.1
    # The states of a tag have parted
    assert np.abs(same.model.get_param("first")[0] - same.model.get_param("first")[1]) > 1e-3


def test_restarts_go_on_with_the_best_beginning(caplog):
    with caplog.at_level(logging.INFO, "spacy.spacy_crf.training"):
        nlp = trained(latent(restarts=3))
    assert "begins with seed" in caplog.text
    assert caplog.text.count("more than one minimum") == 1
    assert nlp(plain(ner_examples(nlp)[0].reference)).ents


def test_tuning_begins_each_time_where_states_differ():
    """The strongest regularizer comes first, and leaves weights of 0."""
    found = []
    for strengths in ([1000.0, 0.1], [0.1]):
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"model": latent(spread=0.1)})
        examples = ner_examples(nlp)
        fold = tune._Fold(nlp, "crf_ner", None, 0, examples, examples, {"ents_f": 1.0})
        *_, last = fold.train([LBFGS(l2=l2, iterations_per_step=10, max_iterations=30) for l2 in strengths], 30)
        found.append((last[:2], nlp.get_pipe("crf_ner").model.get_param("first").tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_learns_saves_and_goes_on(factory, tmp_path):
    nlp = trained(latent(), factory, 6)
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    score = {"crf_ner": "ents_f", "crf_tagger": "crf_tag_acc"}[factory]
    assert nlp.evaluate(examples)[score] == 1.0
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    docs = [plain(example.reference) for example in examples]
    for doc in docs:
        np.testing.assert_array_equal(*[p.get_pipe(factory).marginals(doc)[0] for p in (nlp, loaded)])
    before = [entities(doc) for doc in nlp.pipe(map(plain, docs))]
    assert [entities(doc) for doc in loaded.pipe(map(plain, docs), n_process=2)] == before
    # Another label: its states differ as well
    pipe, optimizer = loaded.get_pipe(factory), loaded.resume_training()
    new = Doc(loaded.vocab, words=["Monday", "came"])
    if factory == "crf_ner":
        new.set_ents([Span(new, 0, 1, label="DATE")], default="outside")
    else:
        new[0].tag_, new[1].tag_ = "NNP", "VB"
    for _ in range(30):
        loaded.update([Example(plain(new), new), *examples], sgd=optimizer)
    assert len(pipe.model.attrs["tag_of"]) == 2 * len(pipe.tags())
    assert loaded.evaluate([Example(plain(new), new)])[score] == 1.0
    last = pipe.model.get_param("first")[-2:]
    assert last[0] != last[1] or factory == "crf_ner"


# -------------------------------------------------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"hidden": 0}, "hidden = 0"),
        ({"hidden": {"PER": 0}}, r"hidden\['PER'\] = 0"),
        ({"hidden": 2.5}, "hidden = 2.5"),
        ({"spread": -0.1}, "spread = -0.1"),
        ({"spread": 0.0}, "spread = 0.0"),
        ({"spread": 1e50}, "spread = 1e\\+50.*1000"),
        ({"seed": -1}, "seed = -1"),
        ({"restarts": 0}, "restarts = 0"),
    ],
)
def test_impossible_settings(settings, message):
    emissions = spacy.registry.architectures.get("spacy_crf.SparseEmissions.v1")
    features = spacy.registry.misc.get("spacy_crf.features.v1")(templates=["lower[0]"])
    with pytest.raises(ValueError, match=f"CRF020.*{message}"):
        LatentChain(emissions(features), **settings)


def test_hidden_states_of_unknown_labels():
    with pytest.raises(ValueError, match=r"CRF846.*PERS.*PER"):
        trained(latent({"PERS": 2}))


@pytest.mark.parametrize("loss", ["BesagPseudoLikelihood", "SoftLabels"])
def test_losses_that_ask_for_states(loss):
    with pytest.raises(ValueError, match=rf"CRF347.*{loss}.*Take .*LogLikelihood"):
        trained(latent(), loss={"@losses": registered(loss)})
    trained(latent(1), loss={"@losses": registered(loss)})


@pytest.mark.parametrize("optimizer", ["ExponentiatedGradient", "FrankWolfe"])
def test_optimizers_that_ask_for_states(optimizer):
    by = {"optimizer": {"@optimizers": registered(optimizer)}, "loss": {"@losses": "spacy_crf.MaxMargin.v1"}}
    with pytest.raises(ValueError, match=rf"CRF347.*{optimizer}.*Take .*AdaGrad.*Adam"):
        trained(latent(), **by)


@pytest.mark.parametrize(
    "optimizer, loss",
    [
        ("Minibatch", "PseudoLikelihood"),
        ("ConjugateGradient", "SoftmaxMargin"),
        ("SGD", "LogLikelihood"),
        ("AdaGrad", "MaxMargin"),
        ("AveragedPerceptron", "Perceptron"),
        ("BatchPerceptron", "MaxMargin"),
        ("PassiveAggressive", "Perceptron"),
        ("AROW", "MaxMargin"),
    ],
)
def test_optimizers_learn_through_hidden_states(optimizer, loss):
    nlp = spacy.blank("en")
    settings = {"loss": {"@losses": registered(loss)}, "optimizer": {"@optimizers": registered(optimizer)}}
    nlp.add_pipe("crf_tagger", config={"model": latent(), **settings})
    examples = tag_examples(nlp)
    nlp.initialize(lambda: examples)
    for _ in range(30):
        nlp.update(examples)
    assert nlp.evaluate(examples)["crf_tag_acc"] > 0.8


def test_templates_of_transitions_weigh_all_pairs_of_states():
    features = {**EMISSIONS["features"], "transitions": ["shape[0]"]}
    nlp = trained(latent(emissions={**EMISSIONS, "features": features}), "crf_tagger", 3)
    tagger = nlp.get_pipe("crf_tagger")
    table = tagger.sparse_features.transitions
    tag_of = tagger.model.attrs["tag_of"]
    pairs = {tuple(pair) for pair in np.stack(np.divmod(table.pair_columns, len(tag_of))).T.tolist()}
    tags = {(tag_of[i], tag_of[j]) for i, j in pairs}
    assert len(pairs) == 4 * len(tags) > 0
    assert nlp.evaluate(tag_examples(nlp))["crf_tag_acc"] == 1.0


def test_other_hidden_states_than_the_saved_ones():
    data = trained(latent(2)).to_bytes()
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"model": latent(3)})
    with pytest.raises(ValueError, match=r"CRF510.*hidden"):
        other.from_bytes(data)


def test_one_label_and_texts_of_any_length():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"model": latent(), "decoder": {"@misc": "spacy_crf_lab.labelling.v1"}})
    words = ["rain"] * 20_000
    reference = Doc(nlp.vocab, words=words[:3], tags=["NN"] * 3)
    nlp.initialize(lambda: [Example(plain(reference), reference)])
    nlp.update([Example(plain(reference), reference)], sgd=LBFGS())
    assert len(nlp("")) == 0
    assert {token.tag_ for token in nlp(Doc(nlp.vocab, words=words))} == {"NN"}


@pytest.mark.parametrize("scheme", ["IO", "IOB1"])
def test_what_single_tags_say_leaves_all_hidden_states(scheme):
    """For optimizers that can't look at steps one state of each tag was left, of those with which the search began."""
    rng, starts = np.random.default_rng(0), np.array([0, 5])
    for _ in range(60):
        allowed, clamps = rng.random((5, 5)) < 0.5, []
        for decoding in (component((model, scheme)).decoding for model in ("chain", "latent")):
            clamp, steps = decoding.encode_clamp(allowed, starts)
            if len(steps):
                leave_out(decoding, steps, clamp, starts)
            clamps.append(clamp)
        np.testing.assert_array_equal(clamps[1], clamps[0][:, decoding.tag_of])


# ----------------------------------------------------------------- what holds of components with random scores

globals().update(
    for_rows(
        "kind",
        {f"latent-{scheme}": ("latent", scheme) for scheme in components.SCHEMES},
        test_components.test_the_spans_that_are_chosen_are_worth_most,
        test_components.test_the_loss_is_that_of_the_labellings_that_keep_the_rules_of_each_text,
        test_white_space.test_answers_are_those_of_the_labellings_without_white_space_at_edges,
        test_white_space.test_rules_choose_among_them,
        test_white_space.test_training_sums_over_the_same_labellings,
    )
)
