"""``joint.mode = "pool"``: features and an encoder that learn each as though alone, and what either is worth."""

import numpy as np
import pytest
import spacy
from spacy import registry
from thinc.api import fix_random_seed

from spacy_crf.models.pool import held_out_sequences
from tests.models.test_neural import (
    ENCODER,
    LISTENER,
    OF_SEGMENTS,
    SPARSE,
    chain_of,
    said_by,
    segments_of,
    trained_pipeline,
)
from tests.util import entities, ner_examples

POOL = {"emissions": SPARSE, "tok2vec": ENCODER, "joint": {"mode": "pool", "held_out": 0.5}}
POOLS = {"crf_ner": chain_of(**POOL), "semicrf_ner": segments_of(**POOL, segments=OF_SEGMENTS)}
FACTORIES = pytest.mark.parametrize("factory", POOLS)


@pytest.fixture(autouse=True)
def seed():
    """Of the encoder."""
    fix_random_seed(0)


@FACTORIES
def test_scores_are_the_weighted_sum(factory):
    _, pipe, examples = trained_pipeline(POOLS[factory], steps=3, factory=factory)
    model, docs = pipe.model, [example.reference for example in examples]
    shares = model.get_param("shares")
    shares[:] = [0.25, 2.0]
    members, found = [member.predict(docs) for member in model.layers], model.predict(docs)
    assert all(member[0].any() for member in members)
    for name in ("transitions", "first", "last", *(("lengths", "begins", "ends") if factory == "semicrf_ner" else ())):
        expected = [getattr(member, name) for member in members]
        possible = expected[0] > -np.inf
        array = getattr(found, name)
        np.testing.assert_allclose(
            array[possible], 0.25 * expected[0][possible] + 2.0 * expected[1][possible], atol=1e-6
        )
        assert (array[~possible] == -np.inf).all()
    np.testing.assert_allclose(found[0], 0.25 * members[0][0] + 2.0 * members[1][0], atol=1e-6)
    if factory == "semicrf_ner":
        sparse, neural, both = (_of_spans(scores) for scores in (*members, found))
        assert sorted(both) == sorted({**sparse, **neural})
        none = np.zeros(model.get_dim("nO"))
        for span, score in both.items():
            expected = 0.25 * sparse.get(span, none) + 2.0 * neural.get(span, none)
            np.testing.assert_allclose(score, expected, atol=1e-6)


def _of_spans(scores):
    begins = np.repeat(np.arange(len(scores.listed.starts) - 1), np.diff(scores.listed.starts))
    return dict(zip(zip(begins.tolist(), scores.listed.lengths.tolist()), scores.spans))


@FACTORIES
def test_members_learn_as_though_alone(factory):
    """Their gradients are those of their own loss, on the texts that are not held out."""
    _, pipe, examples = trained_pipeline(POOLS[factory], steps=3, factory=factory)
    model = pipe.model
    scores, backprop = model.begin_update([example.predicted for example in examples])
    assert 0 < scores.held_out.sum() < len(examples)
    backprop(pipe.get_loss(examples, scores)[1])
    kept = [example for example, is_out in zip(examples, scores.held_out) if not is_out]
    for member in model.layers:
        params = [(node, name) for node in member.walk() for name in node.param_names if node.has_grad(name)]
        found = [node.get_grad(name).copy() for node, name in params]
        for node, name in params:
            node.get_grad(name)[...] = 0.0
        scores, backprop = member.begin_update([example.predicted for example in kept])
        backprop(pipe.get_loss(kept, scores)[1])
        assert len(params) > 2 and any(gradient.any() for gradient in found)
        for (node, name), gradient in zip(params, found):
            np.testing.assert_allclose(gradient, node.get_grad(name), rtol=1e-3, atol=1e-5)


@FACTORIES
@pytest.mark.parametrize("loss", ["LogLikelihood", "Perceptron"])
def test_what_members_are_worth_tell_texts_that_are_held_out(factory, loss):
    """The gradient is that of their log probability, against finite differences, whatever members learn by."""
    _, pipe, examples = trained_pipeline({**POOLS[factory], "loss": {"@losses": f"spacy_crf.{loss}.v1"}}, 3, factory)
    model, docs = pipe.model, [example.predicted for example in examples]
    scores, backprop = model.begin_update(docs)
    backprop(pipe.get_loss(examples, scores)[1])
    gradient, shares = model.get_grad("shares").copy(), model.get_param("shares")
    held_out = [example.reference for example, is_out in zip(examples, scores.held_out) if is_out]

    def value():
        return -sum(pipe.log_probability(doc, doc.ents) for doc in held_out)

    for n in range(2):
        values = []
        for step in (0.01, -0.01):
            shares[n] += step
            values.append(value())
            shares[n] -= step
        assert (values[0] - values[1]) / 0.02 == pytest.approx(gradient[n], rel=1e-3, abs=1e-4)


def test_the_same_texts_are_held_out_wherever_they_stand():
    nlp = spacy.blank("en")
    docs = [nlp.make_doc(f"Text number {n} .") for n in range(400)]
    docs.insert(3, nlp.make_doc(""))
    starts = np.cumsum([0, *map(len, docs)])
    found = held_out_sequences(docs, starts, 0.1)
    assert 20 < found.sum() < 60
    turned = held_out_sequences(docs[::-1], np.cumsum([0, *map(len, docs[::-1])]), 0.1)
    np.testing.assert_array_equal(np.delete(found, 3), np.delete(turned[::-1], 3))
    assert not held_out_sequences(docs, starts, 0.0).any()


@FACTORIES
def test_who_goes_on_learns_from_all_texts_and_weighs_members_as_before(factory, tmp_path):
    nlp, pipe, examples = trained_pipeline(POOLS[factory], factory=factory)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    before = again.get_pipe(factory).model.get_param("shares").copy()
    assert before.tolist() == pipe.model.get_param("shares").tolist() and (before != 0.5).all()
    assert said_by(again, examples) == said_by(nlp, examples)
    more = ner_examples(again, [f"[Dee {n}](NEW) sings ." for n in range(8)])
    sgd = again.resume_training()
    sgd.learn_rate = 0.02
    for _ in range(20):
        again.update([*ner_examples(again), *more], sgd=sgd)
    assert said_by(again, [*examples, *more]) == [entities(example.reference) for example in (*examples, *more)]
    assert again.get_pipe(factory).model.get_param("shares").tolist() == before.tolist()


LBFGS = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1, "iterations_per_step": "auto"}


@FACTORIES
def test_features_have_their_optimum_before_the_encoder_learns(factory, tmp_path):
    """That of the texts that are not held out, where they learn by an optimizer of the component's own."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config={**POOLS[factory], "optimizer": LBFGS})
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    sparse, neural = pipe.model.layers
    before, start = sparse.to_bytes(), neural.to_bytes()
    held_out = pipe.model.begin_update([example.predicted for example in examples])[0].held_out
    alone = spacy.blank("en")
    parts = {name: part for name, part in POOLS[factory]["model"].items() if name not in ("tok2vec", "joint")}
    other = alone.add_pipe(factory, config={"model": parts})
    other.initialize(lambda: examples, nlp=alone)
    kept = [example for example, is_out in zip(examples, held_out) if not is_out]
    for _ in range(20):
        other.update(kept, sgd=registry.resolve({"optimizer": LBFGS})["optimizer"])
    docs = [example.reference for example in examples]
    np.testing.assert_allclose(sparse.predict(docs)[0], other.model.predict(docs)[0], atol=0.05)
    for _ in range(30):
        nlp.update(examples, sgd=sgd)
    assert sparse.to_bytes() == before and neural.to_bytes() != start
    assert (pipe.model.get_param("shares") != 0.5).all()
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert said_by(again, examples) == said_by(nlp, examples)
    again.update(ner_examples(again, ["[Dee](NEW) sings ."]), sgd=again.resume_training())
    assert again.get_pipe(factory).model.layers[0].to_bytes() != before  # who goes on learns with all parts


def test_only_what_ends_finds_an_optimum():
    optimizer = {"@optimizers": "spacy_crf.SGD.v1"}
    with pytest.raises(ValueError, match=r"CRF965.*SGD.*LBFGS"):
        spacy.blank("en").add_pipe("crf_ner", config={**POOLS["crf_ner"], "optimizer": optimizer})


def test_members_of_a_pool_may_listen():
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": ENCODER})
    nlp.add_pipe("crf_ner", config=chain_of(emissions=SPARSE, tok2vec=LISTENER, joint={"mode": "pool"}))
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.01
    before = nlp.get_pipe("tok2vec").to_bytes()
    for _ in range(40):
        nlp.update(examples, sgd=sgd)
    assert nlp.get_pipe("tok2vec").to_bytes() != before
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_partial_annotation_and_rules_in_a_pool():
    rules = {"@misc": "spacy_crf.constraints.v1", "in_training": True}
    rules["rules"] = [{"rule": "at_most", "label": "ORG", "n": 1, "per": "sentence"}]
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={**POOLS["crf_ner"], "confidence": True, "constraints": rules})
    examples = ner_examples(nlp)
    free = examples[1].reference
    free.set_ents([free.ents[0]], missing=[free[3:]])
    sgd = nlp.initialize(lambda: examples)
    losses = [nlp.update(examples, sgd=sgd)["crf_ner"] for _ in range(20)]
    assert losses[-1] < losses[0]
    assert all(ent._.crf_prob > 0 for ent in nlp(examples[0].reference.text).ents)


def test_optimizers_that_ask_for_the_objective_do_not_fit():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=POOLS["crf_ner"])
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF347.*LBFGS"):
        nlp.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")())


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"tok2vec": ENCODER, "joint": {"mode": "pool"}}, "joint.mode = 'pool'.*both"),
        ({"emissions": SPARSE, "joint": {"mode": "pool"}}, "joint.mode = 'pool'.*both"),
        ({**POOL, "joint": {"mode": "pool", "held_out": 0.9}}, "joint.held_out = 0.9.*0.01 to 0.5"),
    ],
)
def test_settings_of_a_pool_that_are_not_possible(settings, says):
    with pytest.raises(ValueError, match=f"CRF020: LinearChain.*{says}"):
        spacy.blank("en").add_pipe("crf_ner", config=chain_of(**settings))
