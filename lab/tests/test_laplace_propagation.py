"""Weights with variances: their training, and probabilities averaged over them."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.weights import Weights
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.laplace_propagation import COLD, Curvature, LaplacePropagation
from spacy_crf_lab.posterior import disagreement, drawn_weights, posterior_of

from .util import registered

WORDS = ["orth[0]"]
TEXTS = [
    ("Ann met Lee in Rome", [(0, 1, "PER"), (2, 3, "PER"), (4, 5, "GPE")]),
    ("Rome in June", [(0, 1, "GPE")]),
    ("Lee saw Ann Lee", [(0, 1, "PER"), (2, 4, "PER")]),
    ("in June", []),
]


def annotated(nlp, words, spans, weight=1.0):
    doc = Doc(nlp.vocab, words=words.split(), tags=["X"] * len(words.split()))
    for begin, end, label in spans:
        for token in doc[begin:end]:
            token.tag_ = label
    doc.set_ents([spacy.tokens.Span(doc, *span) for span in spans])
    doc._.crf_weight = weight
    return Example(nlp.make_doc(words), doc)


def model(architecture="LinearChain", templates=(*WORDS, "lower[-1..1]", "suffix2[0]")):
    features = {"@misc": "spacy_crf.features.v1", "templates": [*templates]}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    return {"@architectures": registered(architecture), "emissions": emissions}


def trained(component="crf_ner", texts=TEXTS, optimizer=None, steps=1, own=None, **settings):
    nlp = spacy.blank("en")
    own = {"model": model()} if own is None and component != "semicrf_ner" else own or {}
    pipe = nlp.add_pipe(component, config={"confidence": True, **own, **settings})
    examples = [annotated(nlp, *text) for text in texts]
    sgd = optimizer or LaplacePropagation(method="diagonal_laplace", l2=0.1, temperature=0.5)
    nlp.initialize(lambda: examples, sgd=sgd)
    for _ in range(steps):
        nlp.update(examples, sgd=sgd)
    return nlp, pipe, examples


def precision(pipe):
    return posterior_of(pipe.model)["precision"]


def draws(n):
    return {"@misc": "spacy_crf_lab.draws.v1", "n": n}


def exact(**settings):
    """Settings of L-BFGS that goes on to the minimum."""
    return {"l2": 0.1, "delta": 0.0, "tolerance": 1e-10, "iterations_per_step": 2000, **settings}


# ----------------------------------------------------------------------------------------------------------- variances


@pytest.mark.parametrize("component", ["crf_tagger", "crf_ner", "semicrf_ner"])
def test_the_curvature_is_the_diagonal_of_the_second_derivatives(component):
    # Documents of one token: no two uses of a weight depend on each other
    texts = [("Ann", [(0, 1, "PER")], 2.0), ("Rome", [(0, 1, "GPE")]), ("Ann", [(0, 1, "GPE")]), ("in", [])]
    _, pipe, examples = trained(component, texts)
    objective = CorpusObjective(pipe.model, pipe.loss, [pipe.training.data(examples)])
    weights, small = objective.weights(), 1e-4
    found = objective.evaluate_loss(weights, loss=Curvature())[1]
    for n, move in enumerate(small * np.eye(len(weights))):
        ends = [objective.evaluate(weights + sign * move)[1][n] for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * small)
        if n < len(weights) - sum(block.size for block in objective._shared):
            assert found[n] == pytest.approx(expected, rel=1e-6, abs=1e-9)
        else:
            assert found[n] >= 0.0


def test_texts_without_annotation_tell_nothing_about_the_weights():
    blank = Doc(spacy.blank("en").vocab, words=["Ann", "Rome"])

    def curvature(texts):
        _, pipe, examples = trained("crf_tagger")
        examples = [*examples, *texts]
        objective = CorpusObjective(pipe.model, pipe.loss, [pipe.training.data(examples)])
        return objective.evaluate_loss(objective.weights(), loss=Curvature())[1]

    with_blank, without = curvature([Example(blank.copy(), blank)]), curvature([])
    n = len(without) - 5 * 3  # the shared scores, of which a share of all uses counts
    np.testing.assert_allclose(with_blank[:n], without[:n], atol=1e-9)


def two_weights(**settings):
    """A model with exactly two weights, each of one word and its label, which do not depend on each other."""
    texts = [("f", [(0, 1, "A")], 10.0), ("g", [(0, 1, "B")], 30.0)]
    own = {"model": model("MaxEnt", WORDS)}
    optimizer = LaplacePropagation(method="diagonal_laplace", **exact(**{"l2": 20.0, "temperature": 1.0, **settings}))
    return trained("crf_tagger", texts, optimizer, own=own)[1]


def log_posterior(weight, n):
    return -n * np.log1p(np.exp(-weight)) - 20.0 * weight**2


def test_one_weight_has_the_moments_of_its_posterior():
    pipe = two_weights()
    weights = Weights(pipe.model).weights()
    assert len(weights) == 2
    grid = np.linspace(-2.0, 3.0, 200_001)
    for weight, of_weight, n in zip(weights, precision(pipe), (10.0, 30.0)):
        density = np.exp(log_posterior(grid, n) - log_posterior(grid, n).max())
        density /= density.sum()
        mean = density @ grid
        assert weight == pytest.approx(grid[density.argmax()], abs=1e-4)
        assert weight == pytest.approx(mean, abs=2e-3)
        assert 1.0 / of_weight == pytest.approx(density @ (grid - mean) ** 2, rel=1e-3)


def test_variances_are_those_of_samples_by_langevin_dynamics():
    """The Metropolis-adjusted Langevin algorithm (Roberts & Tweedie 1996) on the whole objective of a chain."""
    optimizer = LaplacePropagation(method="diagonal_laplace", **exact(l2=2.0, temperature=1.0))
    texts = [("a b", [(0, 1, "A")]), ("b a", [(1, 2, "A")]), ("a", [])]
    _, pipe, examples = trained("crf_tagger", texts, optimizer, own={"model": model(templates=WORDS)})
    objective = CorpusObjective(pipe.model, pipe.loss, [pipe.training.data(examples)])
    rng, step, weights = np.random.default_rng(0), 0.3, objective.weights()

    def energy(at):
        loss, gradient = objective.evaluate(at)
        return loss + 2.0 * at @ at, gradient + 4.0 * at

    def proposal(there, here, gradient):
        return -np.sum((there - here + 0.5 * step * gradient) ** 2) / (2 * step)

    value, gradient = energy(weights)
    samples, accepted = [], 0
    for _ in range(3000):
        other = weights - 0.5 * step * gradient + np.sqrt(step) * rng.standard_normal(len(weights))
        its_value, its_gradient = energy(other)
        ratio = value - its_value + proposal(weights, other, its_gradient) - proposal(other, weights, gradient)
        if np.log(rng.random()) < ratio:
            weights, value, gradient = other, its_value, its_gradient
            accepted += 1
        samples.append(weights)
    assert 0.4 < accepted / len(samples) < 0.99
    ratio = np.var(samples, axis=0) * precision(pipe)
    assert ratio.min() > 0.75 and ratio.max() < 1.3 and np.mean(ratio) == pytest.approx(1.0, abs=0.1)
    assert np.mean(samples, axis=0) == pytest.approx(Weights(pipe.model).weights(), abs=0.1)


# --------------------------------------------------------------------------------------------------------- propagation


@pytest.mark.parametrize(("l2", "damping"), [(0.1, 0.5), (0.1, 0.0), (2.0, 0.5)])
def test_the_fixed_point_of_propagation_is_the_map(l2, damping):
    by_lbfgs = trained(optimizer=LaplacePropagation(method="diagonal_laplace", **exact(l2=l2)))[1]
    propagation = LaplacePropagation(l2=l2, damping=damping, delta=1e-9, sweeps=1000)
    _, pipe, _ = trained(optimizer=propagation)
    assert "a sweep moved the weights" in propagation.stop_reason("crf_ner")
    np.testing.assert_allclose(Weights(pipe.model).weights(), Weights(by_lbfgs.model).weights(), atol=1e-6)
    n = sum(block.size for block in Weights(pipe.model)._of_layers)
    np.testing.assert_allclose(precision(pipe)[:n], precision(by_lbfgs)[:n], rtol=1e-4)
    np.testing.assert_allclose(
        precision(pipe)[n:], precision(by_lbfgs)[n:], rtol=0.2
    )  # a share by sequence, not of all


def test_propagation_learns_from_incomplete_annotation_and_weighted_texts():
    nlp = spacy.blank("en")
    half = Doc(nlp.vocab, words=["Ann", "met", "Rome"], ents=["B-PER", "", "B-GPE"])
    found = []
    for optimizer in (
        LaplacePropagation(method="diagonal_laplace", **exact()),
        LaplacePropagation(l2=0.1, delta=1e-9, sweeps=1000),
    ):
        nlp = spacy.blank("en")
        pipe = nlp.add_pipe("crf_ner", config={"model": model()})
        heavy = annotated(nlp, *TEXTS[0], 2.5)
        examples = [heavy, annotated(nlp, *TEXTS[1]), Example(nlp.make_doc(half.text), half)]
        nlp.initialize(lambda examples=examples: examples, sgd=optimizer)
        nlp.update(examples, sgd=optimizer)
        found.append(Weights(pipe.model).weights())
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_propagation_says_once_that_it_has_not_converged(caplog):
    optimizer = LaplacePropagation(l2=0.1, max_iterations=3, sweeps=5)
    trained(optimizer=optimizer, steps=3)
    [message] = [record.getMessage() for record in caplog.records if "CRFW644" in record.getMessage()]
    assert "crf_ner" in message and "3 sweeps" in message and "delta = 1e-05" in message
    assert optimizer.iterations_made("crf_ner") == 3


def test_propagation_continues_from_a_checkpoint():
    whole = LaplacePropagation(l2=0.1, sweeps=2)
    _, pipe, _ = trained(optimizer=whole, steps=3)
    first = LaplacePropagation(l2=0.1, sweeps=2)
    nlp, other, examples = trained(optimizer=first)
    second = LaplacePropagation(l2=0.1, sweeps=2).from_bytes(first.to_bytes())
    for _ in range(2):
        nlp.update(examples, sgd=second)
    np.testing.assert_array_equal(Weights(other.model).weights(), Weights(pipe.model).weights())
    np.testing.assert_array_equal(precision(other), precision(pipe))
    with pytest.raises(ValueError, match="CRF204"):
        LaplacePropagation(l2=0.1, damping=0.1).from_bytes(first.to_bytes())
    resumed = LaplacePropagation(l2=0.1, sweeps=2)
    objective = pipe.training.objective(resumed, examples)
    assert resumed.resume(objective, b"".join(whole.checkpoint("crf_ner")), key="crf_ner") == 6


def test_propagation_begins_anew_with_other_weights(caplog):
    optimizer = LaplacePropagation(l2=0.1)
    nlp, pipe, examples = trained(optimizer=optimizer)
    weights = Weights(pipe.model)
    weights.assign(weights.weights() + 1.0)
    nlp.update(examples, sgd=optimizer)
    assert optimizer.iterations_made("crf_ner") == 5 and "CRFW201" in caplog.text


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"l2": 0.0}, "CRF020.*l2.*0.0"),
        ({"l1": 0.1}, "CRF020.*l1"),
        ({"damping": 1.0}, "CRF020.*damping"),
        ({"temperature": 0.0}, "CRF020.*temperature"),
        ({"method": "laplace"}, "CRF020.*diagonal_laplace"),
    ],
)
def test_impossible_settings_of_the_optimizer(settings, code):
    with pytest.raises(ValueError, match=code):
        trained(optimizer=LaplacePropagation(**settings))


def test_what_it_cannot_train():
    with pytest.raises(ValueError, match=r"CRF347.*LaplacePropagation.*diagonal_laplace"):
        trained("semicrf_ner", optimizer=LaplacePropagation())
    with pytest.raises(ValueError, match="CRF210"):
        trained(loss={"@losses": "spacy_crf.Perceptron.v1"}, optimizer=LaplacePropagation())
    kernel = model()
    kernel["emissions"] = {**kernel["emissions"], "@architectures": "spacy_crf_lab.KernelEmissions.v1"}
    with pytest.raises(ValueError, match=r"CRF347.*a kernel"):
        trained("crf_tagger", own={"model": kernel})


# ------------------------------------------------------------------------------------------------------------- average


def by_each_draw(nlp, pipe, ask):
    """The answers of a component that has one drawn weight vector after the other as its weights."""
    weights, decoder = Weights(pipe.model), pipe.decoder
    mean, random = weights.weights(), np.random.default_rng(0)
    deviations = 1.0 / np.sqrt(precision(pipe).astype(np.float64))
    found, pipe.decoder = [], None
    for _ in range(decoder.n):
        weights.assign(mean + deviations * random.standard_normal(len(mean)))
        found.append(ask())
    weights.assign(mean)
    pipe.decoder = decoder
    return found


COMPONENTS = {"crf_ner": "GPE", "semicrf_ner": "GPE", "crf_tagger": "X"}


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("rules", [False, True])
def test_probabilities_are_means_over_drawn_weights(component, rules):
    constraints = {
        "@misc": "spacy_crf.constraints.v1",
        "rules": [{"rule": "at_most", "label": COMPONENTS[component], "n": 1}],
    }
    nlp, pipe, _ = trained(component, decoder=draws(4), constraints=constraints if rules else None)
    doc = nlp.make_doc("Rome met Ann Lee")
    spans = pipe.spans_of(doc, pipe.decoding.segments(pipe.predict([doc]).tags, np.array([0, 4])))

    def ask():
        probabilities = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
        return pipe.marginals(doc)[0], probabilities, np.exp(pipe.log_probability(doc, spans))

    marginals, probabilities, whole = zip(*by_each_draw(nlp, pipe, ask))
    found = ask()
    np.testing.assert_allclose(found[0], np.mean(marginals, axis=0), atol=1e-5)
    assert found[2] == pytest.approx(np.mean(whole), abs=1e-5)
    for span, p in found[1].items():
        assert p == pytest.approx(np.mean([each[span] for each in probabilities]), abs=1e-5)
    labelled = nlp(doc)
    written = labelled if component == "crf_tagger" else labelled.ents
    assert len(written) > 0
    for each in written:
        key = (each.i, each.i + 1, each.tag_) if component == "crf_tagger" else (each.start, each.end, each.label_)
        of_draws = [probability[key] for probability in probabilities]
        assert each._.crf_prob == pytest.approx(np.mean(of_draws), abs=1e-5)
        assert each._.crf_prob_sd == pytest.approx(np.std(of_draws), abs=1e-5) and each._.crf_prob_sd > 1e-3
    best = pipe.n_best(doc, 3)
    assert [p for p, _ in best] == sorted((p for p, _ in best), reverse=True)
    assert best[0][0] == pytest.approx(np.exp(pipe.log_probability(doc, best[0][1])), abs=1e-6)
    assert len(pipe.sample(doc, 6, 0)) == 6 and pipe.sample(doc, 6, 0) == pipe.sample(doc, 6, 0)


@pytest.mark.parametrize("component", COMPONENTS)
def test_disagreement_is_what_a_tag_would_tell_about_the_weights(component):
    nlp, pipe, _ = trained(component, decoder=draws(4))
    doc = nlp.make_doc("Rome met Ann Lee")

    def entropy(distribution):
        return -sum(p * math.log(p) for p in distribution if p > 0.0)

    every = by_each_draw(nlp, pipe, lambda: pipe.marginals(doc)[0].tolist())
    expected = 0.0
    for of_token in zip(*every):
        mean = [sum(column) / len(of_token) for column in zip(*of_token)]
        expected += entropy(mean) - sum(map(entropy, of_token)) / len(of_token)
    assert disagreement(pipe, doc) == pytest.approx(expected / len(doc), abs=1e-6) and expected > 0.01


def test_the_temperature_is_a_share_of_the_features_of_a_token():
    _, by_formula, _ = trained(optimizer=LaplacePropagation(method="diagonal_laplace", **exact(temperature=1.0)))
    _, pipe, _ = trained(optimizer=LaplacePropagation(method="diagonal_laplace", **exact()))
    n_features = 5  # orth[0], suffix2[0], lower[-1..1]
    np.testing.assert_allclose(precision(pipe) / precision(by_formula), n_features / COLD, rtol=1e-4)


@pytest.mark.parametrize("decode", ["posterior", "spans"])
def test_decoding_by_probabilities_uses_the_means(decode):
    nlp, pipe, _ = trained("crf_ner", decoder=draws(5), decode=decode, min_prob=0.3)
    doc = nlp("Rome met Ann Lee in June")
    assert doc.ents
    probable = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
    for ent in doc.ents:
        assert ent._.crf_prob == pytest.approx(probable[ent.start, ent.end, ent.label_], abs=1e-9)
        assert ent._.crf_prob >= 0.3 and ent._.crf_prob_sd > 0.0
    labelled = pipe.marginals(doc)[0].argmax(axis=1)
    if decode == "posterior":
        assert labelled.tolist() == pipe.predict([nlp.make_doc(doc.text)]).tags.tolist()


def test_annotation_that_is_there_stays_and_is_certain():
    nlp, pipe, _ = trained(decoder=draws(5))
    doc = nlp.make_doc("Rome met Ann Lee in Rome")
    doc.spans["crf_blocked"] = [doc[5:6]]
    doc.set_ents([spacy.tokens.Span(doc, 0, 1, "ORG")], default="missing")
    found = {ent.text: (ent.label_, ent._.crf_prob, ent._.crf_prob_sd) for ent in pipe(doc).ents}
    assert found["Rome"] == ("ORG", 1.0, 0.0)
    assert found["Ann Lee"][0] == "PER" and 0.0 < found["Ann Lee"][1] < 1.0 and found["Ann Lee"][2] > 0.0
    assert pipe.distribution(doc, keep_annotation=True).marginals().shape == (6, len(pipe.tags()))


def test_labels_are_those_of_the_trained_weights():
    nlp, pipe, _ = trained(decoder=draws(8))
    texts = ["Ann Lee in Rome", "June met Lee", "saw saw saw"]
    averaged = [[*nlp(text).ents] for text in texts]
    pipe.decoder = None
    assert [[(e.start, e.end, e.label_) for e in nlp(text).ents] for text in texts] == [
        [(e.start, e.end, e.label_) for e in ents] for ents in averaged
    ]
    assert nlp(texts[0]).ents[0]._.crf_prob_sd is None


def found_by(nlp, text="Ann met Rome"):
    return [(ent.text, ent._.crf_prob, ent._.crf_prob_sd) for ent in nlp(text).ents]


def test_saved_copied_and_other_processes_find_the_same(tmp_path):
    nlp, pipe, _ = trained(decoder=draws(5))
    expected = found_by(nlp)
    assert expected and all(sd > 0.0 for _, _, sd in expected)
    nlp.to_disk(tmp_path)
    assert found_by(spacy.load(tmp_path)) == expected
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"confidence": True, "decoder": draws(5), "model": model()}, name="crf_ner")
    other.from_bytes(nlp.to_bytes())
    assert found_by(other) == expected
    assert precision(copy.deepcopy(pipe)).tolist() == precision(pipe).tolist()
    texts = ["Ann met Rome", "", "Ann"] * 3
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(partial(found_by, nlp), texts)] == [found_by(nlp, text) for text in texts]
    docs = [*nlp.pipe(texts, n_process=2)]
    assert [(ent.text, ent._.crf_prob, ent._.crf_prob_sd) for ent in docs[3].ents] == expected


def test_an_earlier_model_without_variances_loads():
    nlp, pipe, _ = trained(decoder=draws(5))
    plain = trained(optimizer=LBFGS(l2=0.1))[1]
    saved = plain.to_bytes()
    pipe.from_bytes(saved)
    with pytest.raises(ValueError, match=r"CRF644.*'crf_ner'.*has none.*LaplacePropagation"):
        nlp("Ann met Lee")


def test_variances_of_other_weights_are_refused():
    nlp, pipe, examples = trained(decoder=draws(5))
    assert found_by(nlp)
    nlp.update(examples, sgd=LBFGS(l2=3.0))
    with pytest.raises(ValueError, match=r"CRF644.*belong to other weights"):
        nlp("Ann met Lee")
    pipe.add_label("ORG")
    pipe.decoder = None
    assert nlp("Ann met Lee") is not None
    with pytest.raises(ValueError, match="CRF644"):
        drawn_weights(pipe.model, "crf_ner", 2)
    nlp.initialize(lambda: examples)
    assert pipe.model.attrs["beside"] is None


def test_training_that_continues_has_variances():
    nlp, pipe, examples = trained(decoder=draws(5))
    before = precision(pipe).copy()
    nlp.resume_training()
    nlp.update(examples[:2], sgd=LaplacePropagation(method="diagonal_laplace", l2=0.1, temperature=0.5))
    assert len(precision(pipe)) == len(before) and (precision(pipe) > before / 2).all()
    assert found_by(nlp)


def test_what_has_no_average():
    nlp = spacy.blank("en")
    for architecture in ("MEMM", "OutputCodes"):
        model = {
            "@architectures": registered(architecture),
            "emissions": {"@architectures": "spacy_crf.SparseEmissions.v1"},
        }
        model["emissions"]["features"] = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]"]}
        with pytest.raises(ValueError, match=r"CRF645.*other scores than training"):
            spacy.blank("en").add_pipe("crf_ner", config={"decoder": draws(3), "model": model})
    with pytest.raises(ValueError, match=r"CRF645.*several chains"):
        nlp.add_pipe("crf_tagger", name="several", config={"attribute": ["tag", "pos"], "decoder": draws(3)})
    encoder = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 8, "depth": 1, "embed_size": 50}
    encoder |= {"window_size": 1, "maxout_pieces": 2, "subword_features": True, "pretrained_vectors": None}
    neural = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": None, "tok2vec": encoder}
    with pytest.raises(ValueError, match=r"CRF645.*'neural'.*encoder"):
        nlp.add_pipe("crf_ner", name="neural", config={"model": neural, "decoder": draws(3)})
    with pytest.raises(ValueError, match=r"CRF020.*n = -1"):
        nlp.add_pipe("crf_ner", config={"decoder": draws(-1)})


@pytest.mark.parametrize("texts", [[("Ann", [(0, 1, "PER")])], [("Ann", [(0, 1, "PER")]), ("", [])]])
@pytest.mark.parametrize("method", ["propagation", "diagonal_laplace"])
def test_one_token_and_one_label(texts, method):
    nlp, _, _ = trained("crf_ner", texts, LaplacePropagation(method=method, l2=0.1), decoder=draws(3))
    assert len(nlp("")) == 0
    assert [0.0 <= ent._.crf_prob <= 1.0 for ent in nlp("Ann").ents] in ([True], [])
