"""Models that go on from what they have learned: they keep it, and learn what is new, with every optimizer."""

import itertools
import logging

import numpy as np
import pytest
import spacy
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from spacy.cli._util import app
from spacy.tokens import DocBin
from spacy.util import registry
from thinc.api import Adam
from typer.testing import CliRunner

import spacy_crf.cli  # noqa: F401
from spacy_crf.models.node import Evidence
from spacy_crf.optimizers.anchor import LATER, STRENGTH, Anchor, Anchored
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.new_texts import complete
from spacy_crf.pipeline.prepared import VIEWS
from tests.pipeline.test_new_labels import COMPONENTS, NEW_OF_ENTITIES, OPTIMIZERS, SLOW, found, make, texts_of, wanted
from tests.util import NER_TEXTS, ner_examples


def continued(component="crf_ner", optimizer="spacy_crf.LBFGS.v1", steps=5, **config):
    """A trained pipeline, saved and loaded."""
    nlp, _, _ = make(component, optimizer, steps, **config)
    again = spacy.blank("en")
    again.add_pipe(component, config={"loss": nlp.config["components"][component]["loss"], **config})
    return again.from_bytes(nlp.to_bytes())


def vector(nlp, component="crf_ner"):
    return nlp.get_pipe(component).training.frame().weights()


def set_evidence(pipe, count):
    """As if the earlier data had `count` texts with each feature."""
    continuation = pipe.training.continuation
    counts = {name: np.full_like(before, count) for name, before in continuation.evidence.counts.items()}
    continuation.evidence = Evidence(counts, count, count)


def anchored(nlp, component, texts):
    """The objective that a step about some texts is given."""
    pipe = nlp.get_pipe(component)
    pipe.training.add_labels_and_features(texts)
    anchor = pipe.training.continuation.anchor(
        pipe, pipe.training.frame().evidence_of([example.predicted for example in texts])
    )
    return Anchored(VIEWS["objective"](pipe.model, pipe.loss, [pipe.training.data(texts)]), anchor), anchor


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_anchored_objective_and_its_gradient(component):
    nlp = continued(component)
    texts = texts_of(nlp, component, new=True)
    objective, anchor = anchored(nlp, component, texts)
    pipe = nlp.get_pipe(component)
    plain = VIEWS["objective"](pipe.model, pipe.loss, [pipe.training.data(texts)])
    rng = np.random.default_rng(0)
    distance = rng.normal(size=len(anchor.begin))
    value, gradient = objective.evaluate(distance)
    expected = plain.evaluate(anchor.begin + distance)[0] + np.sum(anchor.hold * distance**2)
    assert_allclose(value, expected, rtol=1e-12)
    for n in rng.permutation(len(distance))[:20]:
        step = np.zeros(len(distance))
        step[n] = 1e-5
        slope = (objective.evaluate(distance + step)[0] - objective.evaluate(distance - step)[0]) / 2e-5
        assert_allclose(gradient[n], slope, rtol=1e-5, atol=1e-5)


def test_evidence_counts_what_training_met():
    nlp = continued()
    ner = nlp.get_pipe("crf_ner")
    texts = [example.predicted for example in ner_examples(nlp)]
    evidence, before = ner.training.continuation.evidence, ner.training.frame()
    assert (evidence.tokens, evidence.sequences) == (sum(map(len, texts)), len(texts))
    for name, count in zip(ner.sparse_features.states.index.names(), evidence.counts["states"]):
        if name.startswith("lower[0]=") and "|" not in name:
            assert count == sum(token.lower_ == name.removeprefix("lower[0]=") for doc in texts for token in doc)
    ner.training.continuation.begin(ner)
    ner.add_label("SONG")
    frame = ner.training.frame()
    met = frame.met(evidence)
    assert met.max() == evidence.tokens
    # What came later weighs next to nothing
    later = np.setdiff1d(np.arange(len(met)), frame.places(before))
    hold = ner.training.continuation.anchor(ner, frame.evidence_of(texts)).hold
    assert len(later) and met[later].all()
    assert_allclose(hold[later], LATER * STRENGTH * met[later])
    assert_allclose(np.delete(hold, later), STRENGTH * np.delete(met, later))


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_minimum_is_that_of_scipy(component):
    nlp = continued(component)
    objective, anchor = anchored(nlp, component, texts_of(nlp, component, new=True))
    optimizer = LBFGS(l2=0.1, tolerance=1e-7, delta=0.0, iterations_per_step=500)

    def regularized(distance):
        value, gradient = objective.evaluate(distance)
        return value + 0.1 * distance @ distance, gradient + 0.2 * distance

    best = minimize(regularized, np.zeros(len(anchor.begin)), jac=True, method="L-BFGS-B", options={"gtol": 1e-7})
    assert_allclose(optimizer.step(objective, key=component), best.fun, rtol=1e-6)
    assert_allclose(objective.weights(), best.x, atol=1e-3)
    assert_allclose(vector(nlp, component), anchor.begin + best.x, atol=1e-3)
    assert optimizer.step(objective, key=component) <= best.fun * (1 + 1e-6)  # goes on where it was


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS])
@pytest.mark.parametrize("component", COMPONENTS)
def test_what_was_met_without_end_stays(component, optimizer):
    """And where there is nothing to learn from, everything does."""
    _, settings = OPTIMIZERS[optimizer]
    nlp = continued(component, optimizer)
    pipe = nlp.get_pipe(component)
    before, frame = vector(nlp, component), pipe.training.frame()
    sgd = nlp.resume_training(sgd=registry.get("optimizers", optimizer)(**settings))
    set_evidence(pipe, 10**12)
    texts = texts_of(nlp, component)[1:3]
    for example in texts:
        example.reference.set_ents([], default="outside")
        for token in example.reference:
            token.tag_ = "NN"
    for _ in range(3):
        nlp.update(texts, sgd=sgd)
    assert_allclose(vector(nlp, component)[pipe.training.frame().places(frame)], before, atol=2e-5)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS])
@pytest.mark.parametrize("component", COMPONENTS)
def test_one_text_does_not_make_it_forget_the_others(component, optimizer):
    """The saved optimizer fitted the one example: F on the others fell from 0.83 to 0.09."""
    nlp = continued(component, optimizer, 40 if optimizer in SLOW else 10)
    examples = texts_of(nlp, component)
    assert found(nlp, component, examples) == wanted(component, examples)
    sgd = nlp.resume_training(sgd=registry.get("optimizers", optimizer)(**OPTIMIZERS[optimizer][1]))
    for _ in range(20 if optimizer in SLOW else 1):  # whose first steps may be far from where it converges
        nlp.update(texts_of(nlp, component, new=True), sgd=sgd)
    after = found(nlp, component, examples)
    if (component, optimizer) == ("semicrf_ner", "spacy_crf.AROW.v1"):
        # Reaches its margin at once: "it" becomes a song, too
        after = [[entity for entity in entities if entity[2] != "SONG"] for entities in after]
    assert after == wanted(component, examples)


# The optimizers that come to the minimum with batches, and how near. Adam's steps and AdaGrad's do not get smaller.
# Settings, rounds, and how near to the minimum they lead
INCREMENTAL = {
    "spacy_crf.LBFGS.v1": ({"l2": 0.0, "iterations_per_step": 20}, 6, 0.01),
    "spacy_crf.SGD.v1": ({}, 15, 0.05),
}


@pytest.mark.parametrize("optimizer", INCREMENTAL)
@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
def test_batches_lead_to_the_minimum_of_all(component, optimizer):
    """Texts were counted anew in each epoch, and what a model knew was given up batch by batch."""
    nlp = continued(component)
    texts = texts_of(nlp, component)[:3]
    for example in texts:
        example.reference.set_ents([], default="outside")
    objective, anchor = anchored(nlp, component, texts)
    best = minimize(objective.evaluate, np.zeros(len(anchor.begin)), jac=True, method="L-BFGS-B")
    settings, rounds, near = INCREMENTAL[optimizer]
    sgd = registry.get("optimizers", optimizer)(**settings)
    for _ in range(rounds):
        for example in texts:
            nlp.update([example], sgd=sgd)
    before = objective.evaluate(np.zeros(len(anchor.begin)))[0]
    reached = objective.evaluate(vector(nlp, component) - anchor.begin)[0]
    assert best.fun <= reached + 1e-9 and reached - best.fun < near * (before - best.fun)


def test_an_optimizer_whose_regularizer_shrank_the_weights_goes_on():
    """SGD keeps the weights and a scale that l2 makes smaller; draws towards the first weights are of their product."""
    nlp, examples, _ = make(optimizer="spacy_crf.SGD.v1", steps=1)
    sgd = registry.get("optimizers", "spacy_crf.SGD.v1")(l2=50.0)
    for _ in range(5):
        nlp.update(examples, sgd=sgd)
    before = vector(nlp)
    nlp.resume_training(sgd=sgd)
    set_evidence(nlp.get_pipe("crf_ner"), 10**12)
    nlp.update(examples[:1], sgd=sgd)
    assert np.abs(before).max() > 1e-3
    assert_allclose(vector(nlp), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["AveragedPerceptron", "BatchPerceptron"])
def test_perceptrons_move_weights_by_their_scale(optimizer):
    """Where moves cost nothing, weights that are 64 times as large get updates 64 times as large."""
    moves = []
    for scale in (1.0, 64.0):
        nlp = continued("crf_ner", f"spacy_crf.{optimizer}.v1")
        pipe = nlp.get_pipe("crf_ner")
        for node in pipe.model.walk():
            for name in node.param_names:
                node.set_param(name, scale * node.get_param(name))
        nlp.resume_training()
        set_evidence(pipe, 0)
        examples = texts_of(nlp, "crf_ner")
        examples[0].reference.set_ents([], default="outside")
        before, frame = vector(nlp), pipe.training.frame()
        nlp.update(examples[:1], sgd=registry.get("optimizers", f"spacy_crf.{optimizer}.v1")())
        moves.append(vector(nlp)[pipe.training.frame().places(frame)] - before)
    assert moves[0].any()
    assert_allclose(moves[1], 64.0 * moves[0], rtol=1e-6)


def test_a_proximal_step_weighs_the_cost_against_the_move():
    """It minimizes the cost of its share of the new sequences, and the squared distance from the weights over twice the rate."""
    rng = np.random.default_rng(0)
    first, weights = rng.normal(size=(2, 5))
    hold, rates = rng.uniform(0.1, 2.0, size=(2, 5))
    anchor = Anchor(first, hold, now=first, others=np.zeros(5), n_since=6, share=1.0)

    def objective(after):
        return np.sum(2 / 6 * hold * (after - first) ** 2 + (after - weights) ** 2 / (2.0 * rates))

    assert_allclose(anchor.draw_back(weights, rates, 2), minimize(objective, weights).x, atol=1e-5)


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_new_is_learned(component):
    nlp = continued(component)
    sgd = nlp.resume_training(sgd=LBFGS(l2=0.01))
    both = texts_of(nlp, component) + texts_of(nlp, component, new=True)
    for _ in range(5):
        nlp.update(both[-1:], sgd=sgd)
    assert found(nlp, component, both) == wanted(component, both)


def test_a_pipeline_in_memory_goes_on_after_resume_training(caplog):
    nlp, examples, sgd = make()
    nlp.update(examples, sgd=sgd)
    ner = nlp.get_pipe("crf_ner")
    assert ner.training.continuation is None
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf"):
        sgd = nlp.resume_training(sgd=LBFGS(l2=0.01))
        new = ner_examples(nlp, NEW_OF_ENTITIES)
        for _ in range(3):
            nlp.update(new, sgd=sgd)
    assert caplog.text.count("continues from a model of 6 sequences") == 1
    assert found(nlp, "crf_ner", examples) == wanted("crf_ner", examples)
    ner.initialize(lambda: examples, nlp=nlp)
    assert ner.training.continuation is None


def test_start_from_goes_on(tmp_path):
    nlp, examples, _ = make()
    nlp.to_disk(tmp_path)
    again = spacy.blank("en")
    ner = again.add_pipe("crf_ner")
    new = ner_examples(again, NEW_OF_ENTITIES)
    ner.initialize(lambda: new, nlp=again, start_from=tmp_path)
    assert ner.training.continuation.evidence.sequences == len(NER_TEXTS)
    assert ner.model.attrs["met"][1] == len(NER_TEXTS) + 1
    for _ in range(5):
        again.update(new, sgd=LBFGS(l2=0.01))
    examples += new
    assert found(again, "crf_ner", examples) == wanted("crf_ner", examples)


def test_every_batch_joins_what_came_before():
    """Optimizers that solve for a batch take those before it for known, and count each text once."""
    nlp = continued()
    ner = nlp.get_pipe("crf_ner")
    sgd = nlp.resume_training(sgd=LBFGS(l2=0.01, iterations_per_step=50))
    texts = ner_examples(
        nlp, [*NEW_OF_ENTITIES, "[Zed Orr](PER) sings [La Mer](SONG) .", "[Yes](ORG) plays [Roundabout](SONG) ."]
    )
    for _ in range(2):
        for example in texts:
            nlp.update([example], sgd=sgd)
    assert ner.training.continuation.evidence.sequences == len(NER_TEXTS)
    assert ner.training.continuation.since.sequences == 3
    assert ner.model.attrs["met"][1] == len(NER_TEXTS) + 3
    both = ner_examples(nlp) + texts
    assert found(nlp, "crf_ner", both) == wanted("crf_ner", both)


def test_counts_are_saved():
    nlp = continued()
    ner, again = nlp.get_pipe("crf_ner"), spacy.blank("en").add_pipe("crf_ner")
    again.from_bytes(ner.to_bytes())
    assert_array_equal(
        again.training.continuation.evidence.counts["states"], ner.training.continuation.evidence.counts["states"]
    )
    assert again.training.continuation.evidence[1:] == ner.training.continuation.evidence[1:]


def test_the_command(tmp_path):
    nlp, _, _ = make()
    nlp.to_disk(tmp_path / "model")
    for name, texts in (("dev", NER_TEXTS), ("new", NEW_OF_ENTITIES)):
        DocBin(docs=[example.reference for example in ner_examples(nlp, texts)]).to_disk(tmp_path / f"{name}.spacy")
    options = ["--output", tmp_path / "updated", "--dev", tmp_path / "dev.spacy", "--l2", "0.01"]
    arguments = ["crf", "update", tmp_path / "model", tmp_path / "new.spacy", *options]
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    rows = [[*filter(None, line.replace("│", " ").split())] for line in result.output.splitlines()]
    assert ["ents_f", "100.00", "100.00"] in rows and ["SONG", "0.00", "100.00"] in rows
    again = spacy.load(tmp_path / "updated")
    both = ner_examples(again, NER_TEXTS + NEW_OF_ENTITIES)
    assert found(again, "crf_ner", both) == wanted("crf_ner", both)
    spacy.blank("en").to_disk(tmp_path / "blank")
    arguments[2] = tmp_path / "blank"
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 1 and "CRF710" in result.output


@pytest.mark.parametrize("component", ["crf_ner", "crf_tagger", "semicrf_ner"])
def test_initialize_begins_anew(component):
    """It kept weights and features of a trained component, and said that it set them to zero."""
    nlp, examples, sgd = make(component)
    nlp.update(examples, sgd=sgd)
    nlp.update(examples, sgd=Adam(0.01))  # whose gradients have another shape than what comes
    pipe = nlp.get_pipe(component)
    labels, names = pipe.labels, set(pipe.sparse_features.states.index.names())
    nlp.initialize(lambda: examples[:1], sgd=sgd)
    assert pipe.labels == labels and set(pipe.sparse_features.states.index.names()) < names
    assert not vector(nlp, component).any() and pipe.training.continuation is None
    assert pipe.model.attrs["met"] == [len(examples[0].predicted), 1]
    fresh = spacy.blank("en")
    other = fresh.add_pipe(component)
    for label in labels:
        other.add_label(label)
    fresh.initialize(lambda: examples[:1], sgd=LBFGS())
    assert set(pipe.sparse_features.states.index.names()) == set(other.sparse_features.states.index.names())
    for model in (nlp, fresh):
        for _ in range(3):
            model.update(examples[:1], sgd=LBFGS(l2=0.01))
    assert_allclose(vector(nlp, component), vector(fresh, component), atol=1e-5)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=Adam(0.01))


NEURAL = {
    "emissions": None,
    "tok2vec": {"@architectures": "spacy.HashEmbedCNN.v2", "width": 8, "depth": 1, "embed_size": 50}
    | {"window_size": 1, "maxout_pieces": 2, "subword_features": False, "pretrained_vectors": None},
}


@pytest.mark.parametrize("starts_from", [False, True])
@pytest.mark.parametrize(
    ("component", "model"), [*zip(COMPONENTS, [None] * 3), ("crf_tagger", NEURAL)], ids=[*COMPONENTS, "neural"]
)
def test_initialize_that_fails_changes_nothing(component, model, starts_from, tmp_path, caplog):
    """A trained component was left without features and weights, and what it went on from was forgotten."""
    config = {} if model is None else {"model": model}
    nlp, examples, _ = make(component, "Adam.v1", 3, **config)
    nlp.to_disk(tmp_path)
    nlp.resume_training()
    pipe, other = nlp.get_pipe(component), spacy.load(tmp_path)
    other.resume_training()
    before, new = pipe.to_bytes(), texts_of(nlp, component, new=True)

    def reader(fails_at):
        """Whose reading fails the n-th time: when labels are looked for, when features are counted, or after that."""
        n_read = itertools.count(1)

        def read():
            if next(n_read) == fails_at:
                yield new[0]
                raise OSError("the disk is full")
            yield from (*new, *examples)

        return read

    start_from = tmp_path if starts_from else None
    for n_readings in itertools.count(1):
        try:
            pipe.initialize(reader(n_readings), nlp=nlp, start_from=start_from)
        except OSError:
            assert pipe.to_bytes() == before and pipe.labels == other.get_pipe(component).labels
            assert found(nlp, component, [*examples, *new]) == found(other, component, [*examples, *new])
        else:
            break
    assert "CRFW412" not in caplog.text  # layers that were there already have no need to see the texts
    assert n_readings > 2 and len(pipe.labels) > len(other.get_pipe(component).labels)
    again = spacy.load(tmp_path)
    again.resume_training()
    pipe = again.get_pipe(component)
    with pytest.raises(OSError, match="the disk is full"):
        pipe.initialize(reader(n_readings - 1), nlp=again, start_from=start_from)
    for model in (again, other):  # which go on in the same way
        for _ in range(2):
            model.update(new, sgd=Adam(0.01))
    assert pipe.to_bytes() == other.get_pipe(component).to_bytes()


def test_a_folder_to_start_from_that_is_gone_is_said_first(tmp_path):
    nlp, examples, _ = make()
    ner = nlp.get_pipe("crf_ner")
    before = nlp.to_bytes()

    def unread():
        raise AssertionError("read before the folder was looked for")

    with pytest.raises(ValueError, match=r"CRF670.*'crf_ner'.*gone is no folder"):
        ner.initialize(unread, start_from=tmp_path / "gone")
    with pytest.raises(ValueError, match=r"CRF670.*has no component of this name"):
        ner.initialize(unread, start_from=str(tmp_path))
    assert nlp.to_bytes() == before
    nlp.config["initialize"]["components"]["crf_ner"] = {"start_from": str(tmp_path / "gone")}
    nlp.to_disk(tmp_path / "trained")
    loaded = spacy.load(tmp_path / "trained")  # which needs it no more
    assert found(loaded, "crf_ner", examples) == found(nlp, "crf_ner", examples)


DOGS = ["Ann Lee left [Rex](DOG) .", "In New York [Fido](DOG) ran .", "[Rex](DOG) is old ."] * 3


def with_dogs(component, path):
    """A pipeline that knows no dogs, and texts in which only dogs are annotated."""
    nlp = spacy.blank("en")
    nlp.add_pipe(component)
    examples = ner_examples(nlp)
    texts = ner_examples(nlp, DOGS)
    for example in [*examples, *texts]:
        example.reference.spans["sc"] = [*example.reference.ents]
    nlp.initialize(lambda: examples, sgd=LBFGS(l2=0.01))
    nlp.update(examples, sgd=LBFGS(l2=0.01, iterations_per_step=50))
    nlp.to_disk(path / "model")
    DocBin(docs=[example.reference for example in texts]).to_disk(path / "dogs.spacy")
    return nlp, examples


@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner", "crf_spancat"])
def test_texts_that_are_annotated_for_a_new_label_alone_keep_the_others(component, tmp_path, caplog):
    """They taught that there are no persons and places: F fell from 100 to 71, without a word."""
    nlp, examples = with_dogs(component, tmp_path)

    def update(*options):
        caplog.clear()
        command = ["update", str(tmp_path / "model"), str(tmp_path / "dogs.spacy"), *options]
        result = CliRunner().invoke(app, ["crf", *command, "--output", str(tmp_path / "new")])
        return result, [record.message[:7] for record in caplog.records if record.levelno == logging.WARNING]

    assert update()[1] == ["CRFW908", "CRFW908"]
    assert "no PER where" in caplog.text and "'Ann Lee' in 'Ann Lee left Rex" in caplog.text
    result, told = update("--labels", "DOG")
    assert result.exit_code == 0 and told == []
    score = "spans_sc_f" if component == "crf_spancat" else "ents_f"
    updated = spacy.load(tmp_path / "new")
    assert updated.evaluate(examples)[score] == nlp.evaluate(examples)[score] == 1.0
    found = updated("Rex barked")
    spans = found.spans["sc"] if component == "crf_spancat" else found.ents
    assert [(span.text, span.label_) for span in spans] == [("Rex", "DOG")]
    result, _ = update("--labels", "DOG,CAT")
    assert result.exit_code == 1 and "CRF846" in result.stdout and "CAT" in result.stdout


def test_what_the_model_is_not_sure_of_counts_as_not_annotated(tmp_path):
    nlp, _ = with_dogs("crf_ner", tmp_path)
    ner = nlp.get_pipe("crf_ner")
    [example] = ner_examples(nlp, ["[Rex](DOG) saw Ann Lee in Oslo ."])
    likely = {(span.start, span.end): p for span, p in ner.span_probabilities(example.predicted, 0.05)}
    assert likely[2, 4] > 0.9 and 0.05 < max(p for (start, _), p in likely.items() if start == 5) < 0.9
    complete(nlp, ner, [example], ["DOG"])
    doc = example.reference
    assert [(ent.start, ent.end, ent.label_) for ent in doc.ents] == [(0, 1, "DOG"), (2, 4, "PER")]
    assert [token.ent_iob_ for token in doc] == ["B", "O", "B", "I", "O", "", "O"]
