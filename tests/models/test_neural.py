"""Encoders: their scores beside those of sparse features, those that other components share, and spaCy's commands about them."""

import io
from pathlib import Path

import numpy as np
import pytest
import spacy
import thinc.backends.ops
import thinc.optimizers
from spacy import registry
from spacy.cli import app
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, load_model_from_config
from thinc.api import Model, NumpyOps, Ops, fix_random_seed, get_current_ops, set_current_ops
from typer.testing import CliRunner

from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, plain, tag_examples

CONFIGS = Path(__file__).parents[2] / "configs"
ENCODER = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 16,
    "depth": 1,
    "embed_size": 100,
    "window_size": 1,
    "maxout_pieces": 2,
    "subword_features": True,
}
LISTENER = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
SPARSE = {
    "@architectures": "spacy_crf.SparseEmissions.v1",
    "features": {"@misc": "spacy_crf.features.v1", "templates": ["lower[-1..1]", "shape[0]", "bias"]},
}


def chain_of(**settings):
    return {"model": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": None, **settings}}


def segments_of(**settings):
    return {"model": {"@architectures": "spacy_crf.SemiMarkov.v1", "emissions": None, "segments": None, **settings}}


OF_SEGMENTS = {
    "@architectures": "spacy_crf.SparseSegments.v1",
    "features": {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.length", "seg.lower", "seg.first:shape"]},
}
HYBRID = chain_of(emissions=SPARSE, tok2vec=ENCODER)
MODELS = {
    "encoder": ("crf_ner", chain_of(tok2vec=ENCODER)),
    "hidden layer": ("crf_ner", chain_of(tok2vec=ENCODER, hidden_width=8)),
    "sum": ("crf_ner", HYBRID),
    "sum with dropout": ("crf_ner", chain_of(emissions=SPARSE, tok2vec=ENCODER, dropout=0.3)),
    "pool": ("crf_ner", chain_of(emissions=SPARSE, tok2vec=ENCODER, joint={"mode": "pool"})),
    "sparse": ("crf_ner", chain_of(emissions=SPARSE)),
    "segments of an encoder": ("semicrf_ner", segments_of(tok2vec=ENCODER, hidden_width=8)),
    "segments, encoder and features": ("semicrf_ner", segments_of(tok2vec=ENCODER, segments=OF_SEGMENTS)),
    "segments, sum": ("semicrf_ner", segments_of(emissions=SPARSE, tok2vec=ENCODER, segments=OF_SEGMENTS, dropout=0.3)),
    "segments, features of tokens": ("semicrf_ner", segments_of(emissions=SPARSE)),
}


@pytest.fixture(autouse=True)
def seed():
    """Of the encoders."""
    fix_random_seed(0)


def trained_pipeline(config, steps=40, factory="crf_ner"):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config=config)
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.02
    for _ in range(steps):
        nlp.update(examples, sgd=sgd)
    return nlp, pipe, examples


def _listening(*others):
    """A pipeline with an encoder that crf_ner listens to, beside others."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": ENCODER})
    for name in others:
        nlp.add_pipe(name, config={"model": {"tok2vec": LISTENER}})
    nlp.add_pipe("crf_ner", config=chain_of(tok2vec=LISTENER))
    return nlp


def said_by(nlp, examples):
    return [entities(doc) for doc in nlp.pipe([plain(example.reference) for example in examples])]


@pytest.fixture
def corpus(tmp_path):
    nlp = spacy.blank("en")
    docs = [ner_doc(nlp, text) for text in NER_TEXTS]
    for doc in docs:
        for token in doc:
            token.tag_ = "NNP" if token.ent_type else "X"
    DocBin(docs=docs).to_disk(tmp_path / "corpus.spacy")
    return tmp_path / "corpus.spacy"


def _config(name, corpus, **overrides):
    paths = {"paths.train": str(corpus), "paths.dev": str(corpus)}
    short = {"training.max_steps": 2, "training.eval_frequency": 1, "training.max_epochs": 0}
    return load_config(CONFIGS / f"{name}.cfg", overrides={**paths, **short, **overrides})


def _run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.output


# ------------------------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize("name", MODELS)
def test_overfits_and_is_saved(name, tmp_path):
    factory, config = MODELS[name]
    nlp, _, examples = trained_pipeline(config, factory=factory)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.to_disk(tmp_path)
    again = load_model_from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert said_by(spacy.load(tmp_path), examples) == said_by(again, examples) == said_by(nlp, examples)


def test_long_segments_have_no_mean():
    from spacy_crf.models.segments import MOST_TOKENS

    texts = ["[" + "very " * 29 + "long](PER) , [short](ORG) .", "[Bob](PER)"]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("semicrf_ner", config=segments_of(tok2vec=ENCODER))
    examples = ner_examples(nlp, texts)
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.02
    for _ in range(40):
        nlp.update(examples, sgd=sgd)
    assert said_by(nlp, examples) == [entities(example.reference) for example in examples]
    assert pipe.model.predict([examples[0].reference]).listed.lengths.max() == MOST_TOKENS
    assert not nlp("").ents


def test_scores_are_the_sum_of_the_parts():
    _, pipe, examples = trained_pipeline(HYBRID, steps=3)
    docs = [example.reference for example in examples]
    parts = [layer.predict(docs).scores for layer in pipe.model.layers]
    assert all(part.any() for part in parts)
    np.testing.assert_array_equal(pipe.model.predict(docs).emissions, parts[0] + parts[1])


_WEIGHTS = ["emissions.states", "encoder.W", "transitions"]


@pytest.mark.parametrize(
    "factory, where",
    [("crf_ner", where) for where in _WEIGHTS]
    + [("semicrf_ner", where) for where in (*_WEIGHTS, "segments.spans", "lengths")],
)
def test_gradient_is_that_of_the_loss(factory, where):
    """Against finite differences."""
    parts = {"emissions": SPARSE, "tok2vec": ENCODER, "hidden_width": 8}
    config = chain_of(**parts) if factory == "crf_ner" else segments_of(**parts, segments=OF_SEGMENTS)
    _, pipe, examples = trained_pipeline(config, steps=3, factory=factory)
    model, docs = pipe.model, [example.predicted for example in examples]
    part, _, name = where.rpartition(".")
    node = model.get_ref(part) if part else model
    node = node.get_ref("output") if part == "encoder" else node
    scores, backprop = model.begin_update(docs)
    backprop(pipe.get_loss(examples, scores)[1])
    gradient, weights = node.get_grad(name).copy(), node.get_param(name)
    chosen = np.argsort(-abs(gradient), axis=None)[:20:4]  # of all kinds; 0 where there is no weight
    chosen = chosen[gradient.flat[chosen] != 0]
    assert len(chosen) > 1
    for place in chosen:
        values = []
        for step in (0.01, -0.01):
            weights.flat[place] += step
            values.append(pipe.get_loss(examples, model.begin_update(docs)[0])[0])
            weights.flat[place] -= step
        assert (values[0] - values[1]) / 0.02 == pytest.approx(gradient.flat[place], rel=5e-3, abs=2e-3)


def test_segments_have_the_sum_of_all_scores():
    """By hand: a score of each token, of the ends and the mean, and what sparse features say."""
    config = segments_of(emissions=SPARSE, tok2vec=ENCODER, segments=OF_SEGMENTS)
    _, pipe, examples = trained_pipeline(config, steps=3, factory="semicrf_ner")
    model, doc = pipe.model, examples[5].reference
    scores, sparse = model.predict([doc]), model.get_ref("segments").predict([doc])
    [vectors] = model.get_ref("tok2vec").predict([doc])
    tokens, begins, ends, means = np.split(model.get_ref("encoder").get_ref("output").predict(vectors), 4, axis=1)
    tokens, begins, ends = (
        tokens + model.get_ref("emissions").predict([doc]).scores + sparse.tokens,
        begins + sparse.begins,
        ends + sparse.ends,
    )
    own = dict(zip(_spans(sparse.listed), sparse.spans))
    found = dict(zip(_spans(scores.listed), scores.spans))
    longest = len(scores.lengths)
    assert sorted(found) == [(b, e) for b in range(len(doc)) for e in range(b + 1, min(len(doc), b + longest) + 1)]
    assert any(span in own for span in found)
    np.testing.assert_allclose(scores.tokens, tokens, atol=1e-5)
    np.testing.assert_allclose(scores.begins, begins, atol=1e-5)
    np.testing.assert_allclose(scores.ends, ends, atol=1e-5)
    for (begin, end), score in found.items():
        np.testing.assert_allclose(score, means[begin:end].mean(axis=0) + own.get((begin, end), 0.0), atol=1e-5)


def _spans(listed):
    begins = np.repeat(np.arange(len(listed.starts) - 1), np.diff(listed.starts))
    return [*zip(begins.tolist(), (begins + listed.lengths).tolist())]


def test_dropout_of_features_leaves_the_expected_score():
    """And nothing out where the pipeline predicts."""
    _, pipe, examples = trained_pipeline(chain_of(emissions=SPARSE, tok2vec=ENCODER, dropout=0.5), steps=5)
    sparse, docs = pipe.model.get_ref("emissions"), [example.reference for example in examples]
    expected = sparse.predict(docs).scores
    drawn = np.array([sparse.begin_update(docs)[0].scores for _ in range(400)])
    assert len(np.unique(drawn[:, 0, 0])) > 1
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=5 * drawn.std(axis=0).max() / 20)


def test_parts_learn_at_their_own_rates():
    """A step of SGD is the rate times the gradient."""
    rates = {"chain_rate": 7.0, "sparse_rate": 3.0}
    _, pipe, examples = trained_pipeline(chain_of(emissions=SPARSE, tok2vec=ENCODER, joint=rates), steps=2)
    model, docs = pipe.model, [example.predicted for example in examples]
    nodes = {(model, "first"): 7.0, (model.get_ref("emissions"), "states"): 3.0}
    nodes[model.get_ref("encoder").get_ref("output"), "b"] = 1.0
    scores, backprop = model.begin_update(docs)
    backprop(pipe.get_loss(examples, scores)[1])
    before = [(node.get_param(name).copy(), node.get_grad(name).copy()) for node, name in nodes]
    pipe.finish_update(registry.get("optimizers", "SGD.v1")(0.01, grad_clip=0.0, L2=0.0))
    for (weights, gradient), (node, name), rate in zip(before, nodes, nodes.values()):
        assert gradient.any()
        np.testing.assert_allclose(node.get_param(name), weights - 0.01 * rate * gradient, rtol=1e-4, atol=1e-7)


def test_new_labels_and_features_keep_what_a_sum_has_learned():
    nlp, pipe, examples = trained_pipeline(HYBRID)
    nlp.resume_training()
    tok2vec = pipe.model.get_ref("tok2vec")
    before = tok2vec.to_bytes()
    nlp.update(ner_examples(nlp, ["[Dee](NEW) sings ."]), sgd=registry.get("optimizers", "Adam.v1")(1e-9))
    assert "NEW" in pipe.labels and len(tok2vec.to_bytes()) == len(before)
    assert said_by(nlp, examples) == [entities(example.reference) for example in examples]


def _frozen(**settings):
    return {**settings, "tok2vec": ENCODER, "joint": {"mode": "frozen"}}


FROZEN = {
    "encoder": ("crf_ner", chain_of(**_frozen())),
    "sum": ("crf_ner", chain_of(**_frozen(emissions=SPARSE))),
    "segments": ("semicrf_ner", segments_of(**_frozen())),
    "segments, sum": ("semicrf_ner", segments_of(**_frozen(emissions=SPARSE, segments=OF_SEGMENTS))),
}


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("optimizer", ["spacy_crf.LBFGS.v1", "Adam.v1"])
def test_a_frozen_encoder_stays_and_the_rest_learns(name, optimizer, tmp_path):
    factory, config = FROZEN[name]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, config=config)
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    before, sgd = pipe.model.get_ref("tok2vec").to_bytes(), registry.get("optimizers", optimizer)()
    for _ in range(60 if optimizer == "Adam.v1" else 5):
        nlp.update(examples, sgd=sgd)
    assert nlp.evaluate(examples)["ents_f"] > 0.9  # random vectors need not tell all words apart
    assert pipe.model.get_ref("tok2vec").to_bytes() == before
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert said_by(again, examples) == said_by(nlp, examples)
    again.resume_training()
    again.update(ner_examples(again, ["[Dee](NEW) sings ."]), sgd=registry.get("optimizers", optimizer)())
    assert "NEW" in again.get_pipe(factory).labels
    assert again.evaluate(ner_examples(again))["ents_f"] > 0.3  # one text has not made it forget all others


def test_a_frozen_encoder_may_be_another_components():
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": ENCODER})
    nlp.add_pipe("crf_ner", config=chain_of(tok2vec=LISTENER, joint={"mode": "frozen"}))
    examples, sgd = ner_examples(nlp), registry.get("optimizers", "spacy_crf.LBFGS.v1")()
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF962.*doc.tensor"):
        nlp.update(examples, sgd=sgd, exclude=["tok2vec"])
    for _ in range(10):
        nlp.update(examples, sgd=sgd, exclude=["tok2vec"], annotates=["tok2vec"])
    assert nlp.evaluate(examples)["ents_f"] > 0.9  # random vectors need not tell all words apart


@pytest.mark.parametrize("name", FROZEN)
def test_the_objective_is_the_loss_and_its_gradient(name):
    """Of all weights, against finite differences and the loss that thinc's optimizers see."""
    factory, config = FROZEN[name]
    _, pipe, examples = trained_pipeline(config, steps=3, factory=factory)
    objective = pipe.training.objective(registry.get("optimizers", "spacy_crf.LBFGS.v1")(), examples)
    weights = objective.weights()
    value, gradient = objective.evaluate(weights)
    scores, _ = pipe.model.begin_update([example.predicted for example in examples])
    assert value == pytest.approx(pipe.get_loss(examples, scores)[0], rel=1e-5)
    for place in np.random.default_rng(0).choice(len(weights), 30, replace=False):
        step = 1e-4 * np.eye(1, len(weights), place)[0]
        above, below = (objective.evaluate(weights + sign * step)[0] for sign in (1, -1))
        assert (above - below) / 2e-4 == pytest.approx(gradient[place], rel=1e-4, abs=1e-5)
    objective.assign(weights + 1.0)
    np.testing.assert_allclose(objective.weights(), weights + 1.0, rtol=1e-5)


def test_what_does_not_go_with_a_frozen_encoder():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=FROZEN["sum"][1])
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF347.*SGD.*LBFGS"):
        nlp.update(examples, sgd=registry.get("optimizers", "spacy_crf.SGD.v1")())
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": ENCODER})
    nlp.add_pipe("crf_ner", config=chain_of(tok2vec=LISTENER, joint={"mode": "frozen"}))
    sgd = nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"CRF964.*'tok2vec'.*annotating_components"):
        nlp.update(examples, sgd=sgd)


@pytest.mark.parametrize("name", ["encoder", "sum", "segments, sum"])
def test_training_starts_from_what_a_saved_component_has_learned(name, tmp_path):
    """The encoder began anew."""
    factory, config = MODELS[name]
    nlp, pipe, examples = trained_pipeline(config, factory=factory)
    nlp.to_disk(tmp_path)
    again = spacy.blank("en")
    other = again.add_pipe(factory, config=config)
    other.initialize(lambda: ner_examples(again, [*NER_TEXTS, "[Dee](NEW) sings ."]), nlp=again, start_from=tmp_path)
    assert set(other.labels) == {*pipe.labels, "NEW"}
    assert said_by(again, examples) == [entities(example.reference) for example in examples]


@pytest.mark.parametrize("name", ["encoder", "hidden layer", "pool", "segments, sum"])
def test_a_component_loads_one_with_other_labels(name):
    """The layer of the scores had a size that could not change."""
    factory, config = MODELS[name]
    nlp, pipe, examples = trained_pipeline(config, factory=factory)
    fewer = spacy.blank("en")
    other = fewer.add_pipe(factory, config=config)
    sgd = fewer.initialize(lambda: ner_examples(fewer, ["[Dee](NEW) sings ."]))
    few, many, says = other.to_bytes(), pipe.to_bytes(), said_by(nlp, examples)
    other.from_bytes(many)
    assert other.labels == pipe.labels and said_by(fewer, examples) == says
    fewer.update(examples, sgd=sgd)
    pipe.from_bytes(few)
    assert pipe.labels == ("NEW",) and pipe.to_bytes() == few
    pipe.from_bytes(many)
    assert said_by(nlp, examples) == says
    pipe.from_bytes(spacy.blank("en").add_pipe(factory, config=config).to_bytes())
    assert not pipe.is_initialized and not pipe.labels


LOSSES = [f"spacy_crf.{name}.v1" for name in ("LogLikelihood", "Perceptron", "MaxMargin", "SoftmaxMargin")]


@pytest.mark.parametrize("name", ["sum", "segments, sum"])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_a_sum(name, loss):
    factory, config = MODELS[name]
    nlp, _, examples = trained_pipeline({**config, "loss": {"@losses": loss}}, steps=40, factory=factory)
    assert nlp.evaluate(examples)["ents_f"] == 1.0


@pytest.mark.parametrize("name", ["sum", "segments, sum", "pool"])
def test_averages_are_of_all_parts(name):
    factory, config = MODELS[name]
    nlp, pipe, examples = trained_pipeline(config, steps=1, factory=factory)
    sgd = registry.get("optimizers", "Adam.v1")(0.02, use_averages=True)
    docs = [example.reference for example in examples]
    for _ in range(3):
        nlp.update(examples, sgd=sgd)
    last = pipe.model.predict(docs)[0]
    with nlp.use_params(sgd.averages):
        averaged = pipe.model.predict(docs)[0]
    assert not np.allclose(averaged, last, atol=1e-3)
    np.testing.assert_array_equal(pipe.model.predict(docs)[0], last)
    params = [(node, name) for node in pipe.model.walk() for name in node.param_names if node.has_grad(name)]
    assert {pipe.model.get_ref("emissions"), pipe.model.get_ref("encoder").get_ref("output")} < {
        node for node, _ in params
    }
    for node, name in params:
        if node.get_param(name).size:  # there may be no feature of a kind
            node.set_param(name, sgd.averages[node.id, name])
    np.testing.assert_array_equal(pipe.model.predict(docs)[0], averaged)


@pytest.mark.parametrize("name", ["sum", "segments, sum"])
def test_partial_annotation_rules_and_confidence_of_a_sum(name):
    rules = {"@misc": "spacy_crf.constraints.v1", "in_training": True}
    rules["rules"] = [{"rule": "at_most", "label": "ORG", "n": 1, "per": "sentence"}]
    factory, config = MODELS[name]
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={**config, "confidence": True, "constraints": rules})
    examples = ner_examples(nlp)
    free = examples[1].reference
    free.set_ents([free.ents[0]], missing=[free[3:]])
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.01
    for _ in range(40):
        losses = nlp.update(examples, sgd=sgd)
    assert losses[factory] < 1.0
    for example in examples[:1] + examples[2:]:
        doc = nlp(plain(example.reference))
        assert entities(doc) == entities(example.reference)
        assert all(ent._.crf_prob > 0.5 for ent in doc.ents)


# --------------------------------------------------------------------------------------------------------- listeners


def test_components_learn_one_encoder_together():
    nlp = _listening("ner")
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.01
    encoder = nlp.get_pipe("tok2vec").model
    before = encoder.to_bytes()
    for _ in range(40):
        nlp.update(examples, sgd=sgd)
    assert encoder.to_bytes() != before
    assert nlp.evaluate(examples)["ents_f"] == 1.0


@pytest.mark.parametrize("others", [[], ["ner"]])
def test_listeners_are_replaced(others, tmp_path):
    nlp = _listening(*others)
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    for _ in range(5):
        nlp.update(examples, sgd=sgd)
    nlp.to_disk(tmp_path / "listening")
    before = said_by(nlp, examples)
    nlp.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    for name in others:
        nlp.remove_pipe(name)
    assert nlp.get_pipe_config("crf_ner")["model"]["tok2vec"]["@architectures"] == ENCODER["@architectures"]
    nlp.to_disk(tmp_path / "alone")
    sourced = spacy.blank("en")
    sourced.add_pipe("crf_ner", source=spacy.load(tmp_path / "alone"))
    config = {
        "nlp": {"lang": "en", "pipeline": ["crf_ner"]},
    }
    config["components"] = {"crf_ner": {"source": str(tmp_path / "listening"), "replace_listeners": ["model.tok2vec"]}}
    from_config = load_model_from_config(config, auto_fill=True)
    for each in (spacy.load(tmp_path / "alone"), sourced, from_config):
        np.testing.assert_array_equal(*(_emissions(pipeline, examples) for pipeline in (nlp, each)))
    assert others or said_by(nlp, examples) == before
    nlp.update(examples, sgd=nlp.resume_training())  # the encoder learns on


def _emissions(nlp, examples):
    return nlp.get_pipe("crf_ner").model.predict([example.reference for example in examples]).emissions


def test_segments_listen(tmp_path):
    """Beside sparse features, with a component that listens too; from a copy of the encoder they say the same."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": ENCODER})
    nlp.add_pipe("ner", config={"model": {"tok2vec": LISTENER}})
    nlp.add_pipe("semicrf_ner", config=segments_of(emissions=SPARSE, tok2vec=LISTENER, segments=OF_SEGMENTS))
    examples = ner_examples(nlp)
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.01
    before = nlp.get_pipe("tok2vec").to_bytes()
    for _ in range(20):
        nlp.update(examples, sgd=sgd)
    assert nlp.get_pipe("tok2vec").to_bytes() != before
    nlp.remove_pipe("ner")
    says = said_by(nlp, examples)
    assert says == [entities(example.reference) for example in examples]
    nlp.replace_listeners("tok2vec", "semicrf_ner", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    nlp.to_disk(tmp_path)
    sourced = spacy.blank("en")
    sourced.add_pipe("semicrf_ner", source=spacy.load(tmp_path))
    assert said_by(nlp, examples) == said_by(sourced, examples) == says


@pytest.fixture
def trained(corpus, tmp_path):
    """A pipeline of configs/crf_ner_listener.cfg on disk."""
    nlp = init_nlp(_config("crf_ner_listener", corpus))
    train(nlp, tmp_path, stdout=io.StringIO())
    return tmp_path / "model-last"


def _going_on(corpus, trained, frozen, **overrides):
    config = _config("crf_ner_listener", corpus, **overrides)
    config["training"]["frozen_components"] = frozen
    for name in frozen:
        config["components"][name] = {"source": str(trained)}
    if "crf_ner" not in frozen:
        config["components"]["crf_ner"]["model"]["tok2vec"]["width"] = 96
    return init_nlp(config)


def test_a_frozen_encoder_annotates(corpus, trained):
    frozen = ["tok2vec", "tagger"]
    with pytest.raises(ValueError, match=r"CRF961.*'crf_ner'.*upstream = 'tok2vec'.*annotating_components"):
        train(_going_on(corpus, trained, frozen), stdout=io.StringIO())
    nlp = _going_on(corpus, trained, frozen, **{"training.annotating_components": ["tok2vec"]})
    before = nlp.get_pipe("tok2vec").to_bytes()
    output = nlp.get_pipe("crf_ner").model.get_ref("encoder").get_ref("output")
    assert not output.get_param("W").any()
    train(nlp, stdout=io.StringIO())
    assert nlp.get_pipe("tok2vec").to_bytes() == before and output.get_param("W").any()


def test_a_frozen_component_stays(corpus, trained):
    nlp = _going_on(corpus, trained, ["crf_ner"])
    before = nlp.get_pipe("crf_ner").to_bytes()
    train(nlp, stdout=io.StringIO())
    assert nlp.get_pipe("crf_ner").to_bytes() == before


def test_without_an_upstream():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config=chain_of(tok2vec=LISTENER))
    nlp.add_pipe("tok2vec", config={"model": ENCODER})
    with pytest.raises(
        ValueError, match=r"CRF960.*\[components.crf_ner.model.tok2vec\].*'tok2vec'.*Before it are: none"
    ):
        nlp.initialize(lambda: ner_examples(nlp))


@pytest.mark.parametrize("ask", ["predict", "marginals"])
def test_without_vectors(ask):
    nlp = _listening()
    examples = ner_examples(nlp)
    nlp.initialize(lambda: examples)
    doc, pipe = nlp.make_doc("Ann Lee lives there"), nlp.get_pipe("crf_ner")
    with pytest.raises(ValueError, match=r"CRF962.*'crf_ner'.*doc.tensor of the text 'Ann Lee lives there...'"):
        pipe.predict([doc]) if ask == "predict" else pipe.marginals(doc)
    assert not nlp("").ents and not nlp("Ann").ents


# --------------------------------------------------------------------------------------------------- spaCy's commands


@pytest.mark.parametrize("name", ["crf_ner_tok2vec", "crf_ner_hybrid", "crf_ner_pool", "crf_ner_listener"])
def test_debug_model(name, corpus):
    options = ["--paths.train", corpus, "--paths.dev", corpus]
    assert "model looks good" in _run("debug", "model", CONFIGS / f"{name}.cfg", "crf_ner", *options)


@pytest.mark.parametrize("name", ["crf_ner_tok2vec", "crf_ner_hybrid", "crf_ner_pool"])
def test_pretraining(name, corpus, tmp_path):
    """The vectors to be learned are of the words' characters."""
    (tmp_path / "raw.jsonl").write_text('{"text": "Ann Lee lives in New York."}\n' * 20)
    pretraining = {
        "component": "crf_ner",
        "layer": "tok2vec",
        "corpus": "corpora.raw",
        "objective": {
            "@architectures": "spacy.PretrainCharacters.v1",
            "maxout_pieces": 2,
            "hidden_size": 8,
            "n_characters": 2,
        },
        "max_epochs": 1,
        "batcher": {"@batchers": "spacy.batch_by_words.v1", "size": 50, "discard_oversize": False, "tolerance": 0.2},
        "optimizer": {"@optimizers": "Adam.v1", "learn_rate": 0.001},
        "n_save_every": None,
        "n_save_epoch": None,
        "dropout": 0.2,
    }
    config, lengths = load_config(CONFIGS / f"{name}.cfg"), {"min_length": 0, "max_length": 0, "limit": 0}
    config["pretraining"] = pretraining
    config["corpora"]["raw"] = {"@readers": "spacy.JsonlCorpus.v1", "path": str(tmp_path / "raw.jsonl"), **lengths}
    config.to_disk(tmp_path / "config.cfg")
    _run("pretrain", tmp_path / "config.cfg", tmp_path / "pretrained")
    weights = tmp_path / "pretrained" / "model-last.bin"
    nlp = init_nlp(
        load_config(tmp_path / "config.cfg", overrides=dict(_paths(corpus), **{"paths.init_tok2vec": str(weights)}))
    )
    assert nlp.get_pipe("crf_ner").model.get_ref("tok2vec").to_bytes() == weights.read_bytes()


def _paths(corpus):
    return {"paths.train": str(corpus), "paths.dev": str(corpus)}


# --------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "settings, says",
    [
        ({}, "emissions = None.*SparseEmissions.v1.*tok2vec"),
        (
            {"emissions": {"@architectures": "spacy_crf.Tok2VecEmissions.v1", "tok2vec": ENCODER}},
            "emissions = .*sparse",
        ),
        ({"emissions": SPARSE, "dropout": 0.5}, "dropout = 0.5.*both"),
        ({"emissions": SPARSE, "hidden_width": 8}, "hidden_width = 8.*tok2vec"),
        ({"tok2vec": ENCODER, "dropout": 1.0}, "dropout = 1.0"),
        ({"tok2vec": ENCODER, "hidden_width": -1}, "hidden_width = -1"),
        ({"tok2vec": ENCODER, "joint": {"mode": "sgd"}}, "joint.mode = 'sgd'.*'adam'"),
        ({"tok2vec": ENCODER, "hidden_width": 8, "joint": {"mode": "frozen"}}, "joint.mode = 'frozen'.*hidden_width"),
        ({"tok2vec": ENCODER, "joint": {"rate": 1.0}}, "joint: setting = 'rate'.*'chain_rate'"),
        ({"tok2vec": ENCODER, "joint": {"chain_rate": 0.0}}, "joint.chain_rate = 0.0"),
        ({"tok2vec": ENCODER, "joint": {"sparse_rate": 1e50}}, "joint.sparse_rate = 1e\\+50.*10000"),
    ],
)
def test_settings_that_are_not_possible(settings, says):
    with pytest.raises(ValueError, match=f"CRF020: LinearChain.*{says}"):
        spacy.blank("en").add_pipe("crf_ner", config=chain_of(**settings))


# --------------------------------------------------------------------------------------------------- another device


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that, like one on a GPU, becomes none of numpy's by itself, and is joined with none."""

    def __init__(self, data):
        self.data = data

    def __array__(self, *args, **kwargs):
        raise TypeError("an implicit transfer to the host")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if out is not None:
            kwargs["out"] = tuple(map(_on_device, out))
        result = getattr(ufunc, method)(*map(_on_device, inputs), **kwargs)
        return self if out is not None else _to_device(result)

    def __getattr__(self, name):
        found = getattr(self.data, name)
        return _calling(found) if callable(found) else _to_device(found)

    def __getitem__(self, key):
        return _to_device(self.data[_on_device(key)])

    def __setitem__(self, key, value):
        self.data[_on_device(key)] = _on_device(value)

    def __len__(self):
        return len(self.data)

    def __bool__(self):
        return bool(self.data)


def _on_device(value):
    """What the device calculates with."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_device, value))
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("an implicit transfer to the device")
    return value.data if isinstance(value, DeviceArray) else value


def _to_device(value):
    return DeviceArray(value) if isinstance(value, np.ndarray) else value


def _calling(function):
    def call(*args, **kwargs):
        return _to_device(function(*map(_on_device, args), **{key: _on_device(each) for key, each in kwargs.items()}))

    return call


class DeviceModule:
    def split(self, array, places):  # which are on the host, as cupy has it
        return [*map(_to_device, np.split(array.data, places))]

    def __getattr__(self, name):
        found = getattr(np, name)
        return _calling(found) if callable(found) and not isinstance(found, type) else found


class DeviceOps(Ops):
    name, xp = "device", DeviceModule()

    def __init__(self):
        super().__init__()
        self.transfers = []

    def to_numpy(self, data, *, byte_order=None):
        if isinstance(data, DeviceArray):
            self.transfers.append(("to the host", data.shape))
            return data.data.copy()
        return data

    def asarray(self, data, dtype=None):
        if isinstance(data, DeviceArray):
            return data
        self.transfers.append(("to the device", np.shape(data)))
        return DeviceArray(np.array(data, dtype=dtype))


@pytest.fixture
def device(monkeypatch):
    """The device that spaCy prefers."""
    ops, before = DeviceOps(), get_current_ops()
    for module, name, ours in (
        (thinc.optimizers, "get_array_ops", ops),
        (thinc.backends.ops, "get_array_module", ops.xp),
    ):
        theirs = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda array, *, o=ours, t=theirs: o if isinstance(array, DeviceArray) else t(array)
        )
    set_current_ops(ops)
    yield ops
    set_current_ops(before)


@registry.architectures("test_neural.device_encoder.v1")
def make_device_encoder(rows: int, width: int):
    """A vector for each word."""

    def forward(model, docs, is_train):
        table, places = model.get_param("E"), [[token.orth % rows for token in doc] for doc in docs]

        def backprop(d_vectors):
            gradient = model.ops.alloc(table.shape)
            for of_doc, d_doc in zip(places, d_vectors):
                for place, d_vector in zip(of_doc, d_doc):
                    gradient[place] += d_vector
            model.inc_grad("E", gradient)
            return []

        return [table[of_doc] for of_doc in places], backprop

    def init(model, X=None, Y=None):
        values = np.random.default_rng(0).normal(size=(rows, width)).astype("f")
        model.set_param("E", model.ops.asarray(values))

    return Model("device_encoder", forward, init=init, params={"E": None}, dims={"nO": width})


DEVICE_ENCODER = {"@architectures": "test_neural.device_encoder.v1", "rows": 50, "width": 8}


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
@pytest.mark.parametrize("hidden_width, mode", [(0, "adam"), (8, "adam"), (0, "pool")])
def test_an_encoder_on_a_device_sends_its_scores_to_the_host_once(factory, hidden_width, mode, device):
    parts = {"emissions": SPARSE, "tok2vec": DEVICE_ENCODER, "hidden_width": hidden_width, "joint": {"mode": mode}}
    nlp, pipe, examples = trained_pipeline(
        chain_of(**parts) if factory == "crf_ner" else segments_of(**parts), 40, factory
    )
    encoder = pipe.model.get_ref("encoder")
    assert isinstance(encoder.get_ref("output").get_param("W"), DeviceArray)
    assert all(isinstance(pipe.model.get_param(name), np.ndarray) for name in pipe.model.param_names)
    docs = [example.predicted for example in examples]
    shape = (sum(map(len, docs)), encoder.get_ref("output").get_dim("nO"))
    device.transfers.clear()
    scores, backprop = pipe.model.begin_update(docs)
    assert device.transfers == [("to the host", shape)]
    backprop(pipe.get_loss(examples, scores)[1])
    assert device.transfers == [("to the host", shape), ("to the device", shape)]
    pipe.finish_update(registry.get("optimizers", "Adam.v1")(0.001))
    device.transfers.clear()
    assert said_by(nlp, examples) == [entities(example.reference) for example in examples]
    assert device.transfers == [("to the host", shape)]
    pipe.add_label("NEW")
    assert said_by(nlp, examples) == [entities(example.reference) for example in examples]


@pytest.mark.parametrize("name", ["crf_ner", "crf_tagger", "semicrf_ner"])
@pytest.mark.parametrize("optimizer", ["Adam.v1", "spacy_crf.LBFGS.v1"])
def test_sparse_models_stay_on_the_host(name, optimizer, device):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(name)
    examples = tag_examples(nlp) if name == "crf_tagger" else ner_examples(nlp)
    nlp.initialize(lambda: examples)
    for _ in range(3):
        nlp.update(examples, sgd=registry.get("optimizers", optimizer)())
    again = spacy.blank("en")
    again.add_pipe(name).from_bytes(pipe.to_bytes())  # spaCy's vectors are on the device
    assert all(isinstance(node.ops, NumpyOps) for node in pipe.model.walk())
    assert said_by(again, examples) == said_by(nlp, examples)
    assert device.transfers == []
