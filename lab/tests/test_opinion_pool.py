"""Opinion pools: against enumeration, the experts by themselves, and finite differences."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose
from spacy.tokens import Doc
from thinc.api import Adam

from spacy_crf.explain.weights import overview as overview_of
from spacy_crf.features.templates import parse_templates
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.corpus import corpus_by
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.pool import held_out_sequences
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.sgd import SGD
from spacy_crf.schemes import TransitionMask
from spacy_crf.types import ChainScores
from spacy_crf_lab.experts import Experts, HeldOut, SharesObjective, at_random, by_position
from spacy_crf_lab.opinion_pool import PoolLBFGS
from tests.util import check_leave_out, entities, ner_examples, tag_examples

from .util import registered

TEMPLATES = ["bias", "lower[-1..1]", "shape[0]", "lower[-1]|lower[0]"]
KINDS = ("random", "positions", "labels", "named")
each_kind = pytest.mark.parametrize("kind", KINDS)


def emissions_of(*templates):
    features = {"@misc": "spacy_crf.features.v1", "templates": list(templates or TEMPLATES)}
    return {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}


def chain(emissions, **settings):
    usual = {"@architectures": "spacy_crf.LinearChain.v1", "possible_transitions": False}
    return {**usual, "emissions": emissions, **settings}


KERNEL = {
    "@architectures": "spacy_crf_lab.KernelEmissions.v1",
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]},
    "select": "all",
}
NAMED = {"words": chain(emissions_of("lower[-1..1]")), "shapes": chain(emissions_of("shape[-1..1]"))}


def pool_of(kind, **settings):
    experts, emissions = (NAMED, None) if kind == "named" else (kind, emissions_of())
    model = {
        "@architectures": "spacy_crf_lab.OpinionPool.v1",
        "experts": experts,
        "emissions": emissions,
        "holdout": 0.5,
    }
    return {**model, **settings}


def trained(kind, steps=3, examples=ner_examples, factory="crf_ner", of_pipe=None, iterations=5, **settings):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={"model": pool_of(kind, **settings), **(of_pipe or {})})
    examples = examples(nlp)
    nlp.initialize(lambda: examples)
    optimizer = PoolLBFGS(l2=0.01, iterations_per_step=iterations)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, pipe, examples


def parts_of(pipe, docs):
    """The scores of each expert for all S states, by the definition: float64[k, T, S], [k, S, S], [k, S], [k, S]."""
    model, node = pipe.model, pipe.model.attrs["node"]
    emissions = [layer.predict(docs).scores for layer in model.layers]
    n_states = pipe.decoding.n_states
    labels = pipe.decoding.state_labels
    found = []
    for expert, own in enumerate(node.experts.columns):
        scores = emissions[expert] if node.kind == "named" else emissions[0][:, own]
        steps = model.get_param("transitions")[np.ix_(own, own)]
        found.append((scores, steps, model.get_param("first")[own], model.get_param("last")[own]))
        if node.kind == "labels":  # states of other labels score as no label does
            others = [y for y in range(n_states) if labels[y] not in ("O", pipe.labels[expert])]
            outside = labels.index("O")
            assert (scores[:, others] == scores[:, [outside]]).all() and len(others) > 1
    return found


@each_kind
def test_scores_are_the_weighted_sum_of_those_of_the_experts(kind):
    _, pipe, examples = trained(kind)
    model, docs = pipe.model, [example.reference for example in examples]
    shares = model.get_param("shares")
    shares[:] = np.linspace(-0.5, 2.0, len(shares))
    parts, found = parts_of(pipe, docs), model.predict(docs)
    possible = model.attrs["allowed"]._asdict()
    for name, of_experts in zip(("emissions", "transitions", "first", "last"), zip(*parts)):
        assert all(np.ptp(array) > 0 for array in of_experts)
        expected = sum(share * array.astype(np.float64) for share, array in zip(shares, of_experts))
        expected = np.where(possible.get(name, True), expected, -np.inf)
        assert_allclose(getattr(found, name), expected, atol=1e-5)


@each_kind
def test_texts_may_have_as_many_tokens_as_the_experts_have_columns(kind):
    """Their scores were taken for transitions."""
    _, pipe, examples = trained(kind)
    doc = examples[0].reference
    words = [doc[n % len(doc)].text for n in range(pipe.model.attrs["node"].experts.size)]
    docs = [Doc(doc.vocab, words), Doc(doc.vocab, [*words, "."])]
    found, longer = (pipe.model.predict([each]).emissions for each in docs)
    assert_allclose(found[:-2], longer[:-3], atol=1e-6)


@each_kind
def test_probabilities_are_products_of_those_of_the_experts(kind):
    """The log probability of each labelling of a text, against the sum of the weighed log probabilities of single chains."""
    nlp, pipe, _ = trained(kind)
    doc, chain_of, allowed = nlp.make_doc("Ann in Rome"), LinearChain(), pipe.model.attrs["allowed"]
    labellings = np.array(list(product(range(pipe.decoding.n_states), repeat=3)))
    found = pipe.model.predict([doc])
    labellings = labellings[_totals(found, labellings) > -np.inf]
    expected = 0.0
    for share, (emissions, *shared) in zip(pipe.model.get_param("shares").astype(np.float64), parts_of(pipe, [doc])):
        masked = [np.where(mask, array, -np.inf) for mask, array in zip(allowed, shared)]
        scores = ChainScores(emissions, *masked, np.array([0, 3]))
        expected = expected + share * (_totals(scores, labellings) - chain_of.log_partition(scores)[0])
    expected -= np.logaddexp.reduce(expected)
    assert len(expected) > 80 and np.ptp(expected) > 1.0
    assert_allclose(_totals(found, labellings) - chain_of.log_partition(found)[0], expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_with_as_many_tokens_as_experts_have_columns(kind):
    """The emissions of such a text have the shape of the transitions."""
    nlp, pipe, _ = trained(kind, steps=1)
    n = pipe.model.attrs["node"].experts.size
    long, short = (Doc(nlp.vocab, words=["Ann", *(size - 1) * ["sings"]]) for size in (n, n - 1))
    assert_allclose(pipe.model.predict([long]).emissions[: n - 2], pipe.model.predict([short]).emissions[: n - 2])


def _totals(scores, labellings):
    emissions, transitions, first, last, _ = scores
    total = emissions[np.arange(len(emissions)), labellings].sum(axis=1) + first[labellings[:, 0]]
    return total + transitions[labellings[:, :-1], labellings[:, 1:]].sum(axis=1) + last[labellings[:, -1]]


def test_the_identity_of_divergences():
    """KL(p*, p) = sum_i w_i KL(p*, p_i) - sum_i w_i KL(p, p_i), for the pool of the experts of a model."""
    _, pipe, _ = trained("random", weights="equal")
    doc = Doc(pipe.vocab, words=["Ann", "sings"])
    labellings = np.array(list(product(range(pipe.decoding.n_states), repeat=2)))
    allowed = pipe.model.attrs["allowed"]

    def distribution(scores):
        totals = _totals(scores, labellings)
        return np.exp(totals - np.logaddexp.reduce(totals))

    parts = []
    for emissions, *shared in parts_of(pipe, [doc]):
        masked = [np.where(mask, array, -np.inf) for mask, array in zip(allowed, shared)]
        parts.append(distribution(ChainScores(emissions, *masked, np.array([0, 2]))))
    pool = distribution(pipe.model.predict([doc]))
    drawn = np.random.default_rng(0).random(len(labellings)) * (pool > 0)
    truth, weights = drawn / drawn.sum(), pipe.model.get_param("shares")
    assert weights.sum() == pytest.approx(1.0) and len(weights) == 4

    def divergence(p, q):
        some = p > 0
        return (p[some] * np.log(p[some] / q[some])).sum()

    expected = sum(w * (divergence(truth, q) - divergence(pool, q)) for w, q in zip(weights, parts))
    assert divergence(truth, pool) == pytest.approx(expected, abs=1e-5) and expected > 0.1


@pytest.mark.parametrize("kind", ["random", "positions", "named"])
def test_experts_learn_as_though_alone(kind):
    """The objective is the sum of their own losses of the texts that are not held out."""
    _, pipe, examples = trained(kind)
    docs, data = [example.predicted for example in examples], pipe.training.data(examples)
    held_out = held_out_sequences(docs, data.starts, 0.5)
    assert 1 < held_out.sum() < len(held_out) - 1
    allowed, expected, clamp = pipe.model.attrs["allowed"], 0.0, data.allowed.chains[0]
    for emissions, *shared in parts_of(pipe, docs):
        masked = [np.where(mask, array, -np.inf).astype(float) for mask, array in zip(allowed, shared)]
        losses, _, _ = LogLikelihood()(LinearChain(), ChainScores(emissions, *masked, data.starts), clamp)
        expected += losses[~held_out].sum()
    objective = CorpusObjective(pipe.model, pipe.loss, [data])
    assert objective.evaluate(objective.weights())[0] == pytest.approx(expected, rel=1e-5) and expected > 0.1


def test_an_expert_of_a_label_is_a_chain_that_knows_no_other():
    _nlp, pipe, examples = trained("labels", steps=1, iterations=60, weights="equal")
    assert pipe.model.get_param("shares").tolist() == [1.0, 1.0, 1.0]
    node, docs = pipe.model.attrs["node"], [example.reference for example in examples]
    for expert, label in enumerate(pipe.labels):
        alone = spacy.blank("en")
        other = alone.add_pipe("crf_ner", config={"model": chain(emissions_of()), "scheme": pipe.cfg["scheme"]})
        copies = ner_examples(alone)
        for example in copies:
            example.reference.set_ents([ent for ent in example.reference.ents if ent.label_ == label])
        alone.initialize(lambda copies=copies: copies)
        alone.update(copies, sgd=LBFGS(l2=0.01, iterations_per_step=60))
        own = node.experts.states_of[expert]
        found, expected = pipe.model.layers[0].predict(docs).scores[:, own], other.model.predict(docs).emissions
        assert_allclose(found - found[:, :1], expected - expected[:, :1], atol=0.05)


def random_scores(experts, starts, seed=0):
    draw = np.random.default_rng(seed).normal
    size = experts.size
    return ChainScores(draw(size=(starts[-1], size)), draw(size=(size, size)), draw(size=size), draw(size=size), starts)


LAYOUTS = {"all": Experts.of_all(3, 4), "labels": Experts.of_labels(["O", "A", "A", "B", "B"])}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_tells_the_weights_has_their_gradient(layout):
    experts = LAYOUTS[layout]
    _, pipe, _ = trained("random", steps=0)
    model, node = pipe.model, pipe.model.attrs["node"]
    n_states, starts = experts.columns.shape[1], np.array([0, 3, 4, 4])
    node.experts, every = experts, np.ones((n_states, n_states), bool)
    every[1, 0] = False
    model.attrs["allowed"] = TransitionMask(every, every[0], every[0])
    clamp = np.random.default_rng(1).random((4, n_states)) < 0.3
    clamp[:, 1] = True
    held_out = HeldOut(slice(None), starts, clamp, np.array([1.0, 2.0, 1.0]), LinearChain())
    problem = SharesObjective(model, [(random_scores(experts, starts), held_out)])
    weights = np.random.default_rng(2).normal(size=len(experts.columns))
    value, gradient = problem.evaluate(weights)
    assert value > 0.1
    for n in range(len(weights)):
        step = 1e-5 * np.eye(len(weights))[n]
        expected = (problem.evaluate(weights + step)[0] - problem.evaluate(weights - step)[0]) / 2e-5
        assert gradient[n] == pytest.approx(expected, abs=1e-6)


@each_kind
def test_weights_are_the_likeliest_for_texts_that_are_held_out(kind):
    """Small changes of them make these texts less probable."""
    _, pipe, examples = trained(kind, steps=2)
    starts = pipe.decoding.starts([example.predicted for example in examples])
    held_out = held_out_sequences([example.predicted for example in examples], starts, 0.5)
    texts = [example.reference for example, is_out in zip(examples, held_out) if is_out]
    shares = pipe.model.get_param("shares")
    assert np.ptp(shares) > 0.1

    def value():
        return sum(pipe.log_probability(doc, doc.ents) for doc in texts)

    best = value()
    for n in range(len(shares)):
        for step in (0.1, -0.1):
            shares[n] += np.float32(step)
            assert value() < best + 1e-6
            shares[n] -= np.float32(step)


@each_kind
def test_when_the_optimizer_stops_experts_learn_from_all_texts(kind, caplog):
    nlp, pipe, examples = trained(kind, steps=1, iterations=5)
    optimizer = PoolLBFGS(l2=0.01, iterations_per_step=4, max_iterations=8)
    node, weights = pipe.model.attrs["node"], pipe.model.get_param("shares")
    nlp.update(examples, sgd=optimizer)
    assert node.holds_out
    nlp.update(examples, sgd=optimizer)  # eight iterations, and four of all texts
    assert not node.holds_out and optimizer.iterations_made("crf_ner") == 4
    before = pipe.model.get_param("shares").copy()
    for _ in range(6):
        nlp.update(examples, sgd=optimizer)
    assert optimizer.stop_reason("crf_ner") is not None
    assert (pipe.model.get_param("shares") == before).all() and len(weights) == len(before)
    objective = pipe.training.corpus.objective
    every = CorpusObjective(pipe.model, pipe.loss, [pipe.training.data(examples)])
    assert objective.evaluate(objective.weights())[0] == pytest.approx(every.evaluate(every.weights())[0], abs=1e-4)
    pipe.training.begin()
    assert node.holds_out


def test_equal_weights_hold_out_nothing():
    _, pipe, examples = trained("random", weights="equal", n=3)
    assert_allclose(pipe.model.get_param("shares"), 1 / 3)
    assert (pipe.training.data(examples).weights == 1.0).all()


@each_kind
def test_gradients_against_finite_differences(kind):
    _, pipe, examples = trained(kind, steps=0)
    objective = CorpusObjective(pipe.model, pipe.loss, [pipe.training.data(examples)])
    weights = np.random.default_rng(0).normal(size=len(objective.weights()))
    value, gradient = objective.evaluate(weights)
    assert value > 1.0 and len(weights) == len(gradient)
    for n in np.random.default_rng(1).permutation(len(weights))[:40]:
        step = np.zeros(len(weights))
        step[n] = 1e-5
        expected = (objective.evaluate(weights + step)[0] - objective.evaluate(weights - step)[0]) / 2e-5
        assert gradient[n] == pytest.approx(expected, abs=1e-5)


@each_kind
def test_the_parts_of_an_explanation_add_up(kind):
    _nlp, pipe, examples = trained(kind, steps=2, iterations=20)
    doc = examples[0].reference
    for how in ("contrast", "log_odds"):
        why = pipe.explain(doc, doc.ents[0], kind=how)
        assert why.rows and why.check == pytest.approx(0.0, abs=1e-3)
    check_leave_out(pipe, doc, doc.ents[0])
    names = {row.feature for row in pipe.weights("PER")}
    assert any(name.startswith("lower[0]=") for name in names) and "transition" in names
    overview = overview_of(pipe)
    assert np.shape(overview["transitions"]["transitions"]) == (pipe.decoding.n_states,) * 2


def _found(doc):
    return [(ent.start, ent.end, ent.label_, round(ent._.crf_prob, 6)) for ent in doc.ents]


@each_kind
def test_saved_loaded_copied_and_in_other_processes(kind, tmp_path):
    nlp, pipe, examples = trained(kind, of_pipe={"confidence": True})
    texts = [example.reference.text for example in examples] + ["", "Rome"]
    expected = [_found(doc) for doc in nlp.pipe(texts)]
    assert any(expected)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert [_found(doc) for doc in again.pipe(texts)] == expected
    assert [_found(doc) for doc in again.pipe(texts, n_process=2, batch_size=3)] == expected
    other = again.get_pipe("crf_ner")
    assert (other.model.get_param("shares") == pipe.model.get_param("shares")).all()
    with ThreadPoolExecutor(2) as both:
        assert list(both.map(lambda text: _found(nlp(text)), texts)) == expected
    assert other.from_bytes(pipe.to_bytes()).to_bytes() == pipe.to_bytes()
    # Who goes on learns from all texts, and keeps the weights of the experts
    again.update(ner_examples(again, ["[Dee](NEW) sings ."]), sgd=PoolLBFGS(iterations_per_step=5))
    n = len(pipe.model.get_param("shares"))
    assert (other.model.get_param("shares")[:n] == pipe.model.get_param("shares")).all()
    assert "NEW" in other.labels and (other.training.data(examples).weights == 1.0).all()


@each_kind
def test_rules_hold_and_documents_of_any_size_pass(kind):
    rules = {
        "@misc": "spacy_crf.constraints.v1",
        "rules": [{"rule": "at_most", "label": "PER", "n": 1, "per": "sentence"}],
    }
    nlp, pipe, examples = trained(kind, steps=4, iterations=20, of_pipe={"constraints": rules})
    doc = nlp.make_doc("Ann Lee lives in Rome , Bob Ray lives in Rome .")
    assert sum(ent.label_ == "PER" for ent in nlp(doc).ents) <= 1
    assert not nlp("").ents and len(nlp("Rome")) == 1
    for decode in ("posterior", "spans"):
        pipe.cfg["decode"] = decode
        nlp(examples[0].reference.text)


def test_rules_in_training_hold_for_each_expert():
    rules = {"@misc": "spacy_crf.constraints.v1", "in_training": True}
    rules["rules"] = [{"rule": "at_most", "label": "PER", "n": 1, "per": "sentence"}]
    _, pipe, examples = trained("random", of_pipe={"constraints": rules})
    data = pipe.training.data(examples)
    assert (data.weights == 0.0).any() and data.structure.structures[0] is not pipe.model.attrs["node"].in_training
    with pytest.raises(ValueError, match=r"CRF633: Component 'crf_ner': experts = \"labels\" can't learn from rules"):
        trained("labels", of_pipe={"constraints": rules})


@pytest.mark.parametrize("loss", ["SoftmaxMargin", "PseudoLikelihood", "LogLikelihood"])
@pytest.mark.parametrize("kind", ["random", "labels"])
def test_losses_with_costs_of_labels(kind, loss):
    """An expert of a label knows the costs of its label alone."""
    settings = {"@losses": registered(loss), "label_weights": {"PER": 2.0, "O": 0.5}}
    _, pipe, examples = trained(kind, of_pipe={"loss": settings})
    structure = pipe.training.data(examples).structure
    weights = [
        of_expert.state_weights(len(own)) for of_expert, own in zip(structure.losses(pipe.loss), structure.states_of)
    ]
    for label, of_expert in zip(pipe.labels, weights):
        expected = [0.5, *(len(of_expert) - 1) * [2.0 if label == "PER" else 1.0]]
        if kind == "random":
            expected = pipe.loss.state_weights(len(of_expert))
        assert of_expert.tolist() == list(expected)


def test_a_single_label_a_single_token_and_tags():
    nlp, pipe, _ = trained("labels", examples=lambda nlp: ner_examples(nlp, ["[Ann](A)", "sings"]))
    assert len(pipe.model.get_param("shares")) == 1 and entities(nlp("Ann")) is not None
    nlp, pipe, examples = trained("positions", examples=tag_examples, factory="crf_tagger", iterations=20)
    assert nlp.evaluate(examples)["tag_acc"] > 0.9


def test_which_templates_experts_read():
    templates = parse_templates(["bias", "lower[-1..1]", "lower[-1]|lower[1]", "shape[0]|lower[1]"])
    found = {str(one): row.astype(int).tolist() for one, row in zip(templates, by_position(templates))}
    assert found["bias"] == found["lower[0]"] == [0, 1, 0, 1]
    assert found["lower[-1]"] == [1, 0, 0, 1] and found["lower[1]"] == found["shape[0]|lower[1]"] == [0, 0, 1, 1]
    assert found["lower[-1]|lower[1]"] == [1, 0, 1, 1]
    reads = at_random(templates, n=3, share=0.5, seed=1)
    assert reads[:, 0].all() and reads.sum(axis=0).tolist() == [6, 3, 3] and (reads[:, 1] != reads[:, 2]).any()
    assert (reads == at_random(templates, n=3, share=0.5, seed=1)).all()
    _, pipe, _ = trained("positions", steps=0)
    table, experts = pipe.sparse_features.states, pipe.model.attrs["node"].experts
    for row in range(len(table.index)):
        [own] = by_position(parse_templates([table.index.name(row).split("=")[0].replace("bias", "bias")]))
        columns = table.pair_columns[table.pair_starts[row] : table.pair_starts[row + 1]]
        assert {*experts.expert_of[columns].tolist()} == {*np.flatnonzero(own).tolist()}


def test_experts_of_kernels_and_fixed_layers_have_weights_of_their_own():
    named = {
        "words": chain(emissions_of("lower[0]")),
        "kernel": chain(KERNEL),
        "shapes": chain(emissions_of("shape[0]")),
    }
    nlp, pipe, examples = trained("named", experts=named, iterations=10)
    assert [corpus_by(layer.attrs["node"], layer).__class__.__name__ for layer in pipe.model.layers] == [
        "SparseCorpus",
        "KernelCorpus",
        "SparseCorpus",
    ]
    assert all(np.ptp(emissions) > 0 for emissions, *_ in parts_of(pipe, [examples[0].reference]))
    assert len(nlp(examples[0].reference.text).ents) > 0


def test_no_text_is_held_out(caplog):
    trained("random", holdout=0.01)
    assert sum("CRFW633" in record.message for record in caplog.records) == 1


def test_optimizers_that_do_not_fit():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": pool_of("random")})
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF347: .*experts of 'crf_ner'.*weights to \"equal\""):
        nlp.update(examples, sgd=Adam(0.01))
    with pytest.raises(ValueError, match=r"CRF347: SGD"):
        nlp.update(examples, sgd=SGD())
    nlp, _pipe, examples = trained("random", steps=0, weights="equal")
    losses = [nlp.update(examples, sgd=Adam(0.05))["crf_ner"] for _ in range(20)]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"experts": "halves"}, "CRF020: OpinionPool: experts = 'halves'.*'positions'"),
        ({"experts": "named"}, "CRF020: OpinionPool: experts = 'named'.*table"),
        (
            {"experts": {"one": NAMED["words"]}, "emissions": None},
            r"CRF020: OpinionPool: experts = \['one'\].*two models",
        ),
        ({"experts": NAMED}, "CRF020: OpinionPool: emissions.*null"),
        ({"emissions": None}, "CRF020: OpinionPool: emissions = None"),
        ({"emissions": KERNEL}, "CRF020: OpinionPool: emissions = 'kernel_emissions'.*SparseEmissions"),
        ({"n": 1}, "CRF020: OpinionPool: n = 1"),
        ({"share": 0.0}, "CRF020: OpinionPool: share = 0.0"),
        ({"weights": "best"}, "CRF020: OpinionPool: weights = 'best'"),
        ({"holdout": 0.9}, "CRF020: OpinionPool: holdout = 0.9"),
        ({"emissions": emissions_of("lower[-1..0]"), "experts": "positions"}, "CRF634: OpinionPool.*'future'.*behind"),
        (
            {
                "experts": {**NAMED, "other": {**pool_of("random"), "@architectures": "spacy_crf_lab.OpinionPool.v1"}},
                "emissions": None,
            },
            "CRF020: OpinionPool: experts.other = 'opinion_pool'.*LinearChain",
        ),
        (
            {"experts": {**NAMED, "other": chain(emissions_of(), possible_transitions=True)}, "emissions": None},
            "CRF020: OpinionPool: experts.other.possible_transitions",
        ),
    ],
)
def test_settings_that_are_not_possible(settings, says):
    with pytest.raises(ValueError, match=says):
        spacy.blank("en").add_pipe("crf_ner", config={"model": pool_of("random", **settings)})


def test_tags_have_no_experts_of_labels():
    with pytest.raises(
        ValueError, match=r"CRF633: Component 'crf_tagger': experts = \"labels\" needs tokens without a label"
    ):
        trained("labels", examples=tag_examples, factory="crf_tagger")
