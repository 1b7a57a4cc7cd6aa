"""What holds of the optimizers of the plugin, of those of the lab: the same tests."""

import io
import itertools
import math
from functools import partial

import pytest
import spacy
from numpy.testing import assert_allclose
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from spacy_crf.losses.clamped import LogLikelihood, MaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.conjugate_gradient import ConjugateGradient
from spacy_crf_lab.cutting_plane import CuttingPlane
from spacy_crf_lab.dual import ExponentiatedGradient, FrankWolfe
from spacy_crf_lab.feature_induction import FeatureInduction
from spacy_crf_lab.iterative_scaling import GIS, IIS
from spacy_crf_lab.laplace_propagation import LaplacePropagation
from spacy_crf_lab.newton import Newton
from spacy_crf_lab.smo import SMO
from tests import test_configs
from tests.cli import test_tune
from tests.features import test_vectors
from tests.models import test_loaded_arrays
from tests.optimizers import test_online, test_optimizers
from tests.pipeline import test_continuing, test_initial_corpus, test_new_labels
from tests.pipeline.test_continuing import NEW_OF_ENTITIES, continued
from tests.shards import test_shards
from tests.test_configs import ROOT, annotation, overrides_of
from tests.util import entities, ner_examples

from .util import for_rows, with_table

LIKELIHOOD, MARGIN = "spacy_crf.LogLikelihood.v1", "spacy_crf.MaxMargin.v1"
OTHERS = {
    "spacy_crf_lab.ConjugateGradient.v1": ("LogLikelihood", {"l2": 0.01}),
    "spacy_crf_lab.Newton.v1": ("LogLikelihood", {"l2": 0.01}),
    "spacy_crf_lab.ExponentiatedGradient.v1": ("MaxMargin", {"l2": 0.05}),
    "spacy_crf_lab.FrankWolfe.v1": ("MaxMargin", {"l2": 0.01}),
    "spacy_crf_lab.CuttingPlane.v1": ("MaxMargin", {"l2": 0.01}),
}
test_new_labels.OPTIMIZERS |= OTHERS
test_new_labels.SLOW.add("spacy_crf_lab.ExponentiatedGradient.v1")
DUAL = {
    f"{component}, {make.__name__}": (component, make, {"l2": 0.1}, MaxMargin)
    for make in (ExponentiatedGradient, FrankWolfe)
    for component in test_online.COMPONENTS
}
BAD = [
    (FrankWolfe, {"l2": 0.0}),
    (ExponentiatedGradient, {"l2": 1e-50}),
    (ExponentiatedGradient, {"rate": 1e20}),
    (ExponentiatedGradient, {"rate": math.nan}),
]
UNFIT = [
    ("spacy_crf_lab.ConjugateGradient.v1", "spacy_crf.Perceptron.v1"),
    ("spacy_crf_lab.FrankWolfe.v1", "spacy_crf.Perceptron.v1"),
    ("spacy_crf_lab.CuttingPlane.v1", "spacy_crf.Perceptron.v1"),
    ("spacy_crf.SGD.v1", "spacy_crf_lab.PseudoLikelihood.v1"),
]
MIXED = {"preconditioner": "diagonal", "mixed": True}
MAKES = {
    "conjugate gradient": ConjugateGradient,
    "preconditioned": partial(ConjugateGradient, preconditioner="diagonal"),
    "mixed": partial(ConjugateGradient, **MIXED),
    "Newton": Newton,
}
# Optimizer, its settings, loss, and whether three steps are enough
VARIATIONS = [
    ("spacy_crf.LBFGS.v1", {}, "spacy_crf_lab.PseudoLikelihood.v1", True),
    ("spacy_crf.LBFGS.v1", {}, "spacy_crf_lab.BesagPseudoLikelihood.v1", False),
    ("spacy_crf_lab.ConjugateGradient.v1", {}, "spacy_crf_lab.Piecewise.v1", True),
    ("spacy_crf_lab.ConjugateGradient.v1", MIXED, LIKELIHOOD, True),
    ("spacy_crf_lab.Newton.v1", {}, "spacy_crf_lab.PseudoLikelihood.v1", True),
    ("spacy_crf_lab.LaplacePropagation.v1", {}, LIKELIHOOD, False),
    ("spacy_crf_lab.LaplacePropagation.v1", {"method": "diagonal_laplace"}, LIKELIHOOD, False),
    ("spacy_crf_lab.GIS.v1", {}, LIKELIHOOD, False),
    ("spacy_crf_lab.IIS.v1", {"masses": 3}, "spacy_crf.SoftmaxMargin.v1", False),
    ("spacy_crf_lab.ExponentiatedGradient.v1", {}, MARGIN, False),
    ("spacy_crf_lab.FrankWolfe.v1", {}, MARGIN, False),
    ("spacy_crf_lab.SMO.v1", {}, MARGIN, False),
    ("spacy_crf_lab.CuttingPlane.v1", {}, MARGIN, False),
    ("Adam.v1", {}, "spacy_crf_lab.PseudoLikelihood.v1", False),
]
STATES = [
    *itertools.product([ConjugateGradient, Newton, IIS, LaplacePropagation, FeatureInduction], [LogLikelihood]),
    *itertools.product([CuttingPlane, FrankWolfe, ExponentiatedGradient, SMO], [MaxMargin]),
]
VECTORS = [
    ("spacy_crf_lab.ConjugateGradient.v1", "LogLikelihood", {"l2": 0.1}),
    ("spacy_crf_lab.ExponentiatedGradient.v1", "MaxMargin", {"l2": 0.1}),
    ("spacy_crf_lab.FrankWolfe.v1", "MaxMargin", {"l2": 0.1}),
]

globals().update(
    for_rows("make", MAKES, *with_table(test_optimizers, "make"))
    | for_rows("make", [ConjugateGradient, Newton], test_optimizers.test_the_training_config_accepts_it)
    | for_rows(
        "make,name,value",
        itertools.product([ConjugateGradient, Newton, GIS, FrankWolfe, SMO, CuttingPlane], ["l1"], [0.1]),
        test_optimizers.test_impossible_settings_are_refused,
    )
    | for_rows(
        "settings",
        {"CG": {"@optimizers": "spacy_crf_lab.ConjugateGradient.v1", "l2": 0.1, "iterations_per_step": 4}},
        test_initial_corpus.test_the_same_model_as_from_batches_of_the_whole_corpus,
        test_shards.test_the_same_function_as_of_the_whole,
    )
    | for_rows("component,make,settings,loss", DUAL, *with_table(test_online, "component,make,settings,loss"))
    | for_rows("make,settings", BAD, test_online.test_settings_that_make_no_sense_are_refused)
    | for_rows("optimizer,loss", UNFIT, test_online.test_a_loss_that_does_not_fit_is_refused_when_the_config_is_read)
    | for_rows(
        "optimizer",
        [*OTHERS],
        test_new_labels.test_labels_are_added_between_updates_and_by_them,
        test_continuing.test_what_was_met_without_end_stays,
        test_continuing.test_one_text_does_not_make_it_forget_the_others,
    )
    | for_rows(
        "optimizer, settings, loss, enough", VARIATIONS, test_configs.test_every_optimizer_and_loss_trains_three_steps
    )
    | for_rows(
        "make, loss",
        STATES,
        test_loaded_arrays.test_a_crafted_state_of_an_optimizer_is_refused_or_can_be_used,
    )
    | for_rows(
        "name, loss, settings",
        VECTORS,
        test_vectors.test_every_optimizer_learns_as_from_the_same_numbers_of_a_function,
    )
    | for_rows(
        "name, optimizer",
        [row for row in test_tune.registered_optimizers() if "lab" in row[1].__module__],
        test_tune.test_what_optimizers_try_are_settings_that_they_take,
    )
)


def test_states_are_refused_by_other_optimizers():
    with pytest.raises(ValueError, match="CRF204"):
        Newton(l2=0.5).from_bytes(LBFGS(l2=0.5).to_bytes())


def test_the_duality_gap_closes_around_what_was_known():
    # With the features of the preset it zigzags, and comes as near only much later
    templates = ["lower[-2..2]", "shape[-2..2]", "suffix3[0]", "lower[-1]|lower[0]", "lower[0]|lower[1]"]
    model = {"emissions": {"features": {"@misc": "spacy_crf.features.v1", "templates": templates, "padding": False}}}
    nlp = continued("crf_ner", "spacy_crf_lab.FrankWolfe.v1", model=model)
    optimizer = nlp.resume_training(sgd=FrankWolfe(l2=0.05, gap_tolerance=1e-3, epochs_per_step=50))
    new = ner_examples(nlp, NEW_OF_ENTITIES)
    for _ in range(20):
        value = nlp.update(new, sgd=optimizer)["crf_ner"]
    assert 0 <= optimizer.duality_gap("crf_ner") <= 1e-3 * value + 1e-9
    run = optimizer._runs["crf_ner"]
    slots = run.slot_of_weight
    distance = run.slots[slots] - run.arrays["centre"][slots]
    assert_allclose(run.numbers["primal"], run.numbers["loss"] + run.arrays["strength"][slots] @ distance**2)


@pytest.mark.parametrize("optimizer", ["FrankWolfe", "ExponentiatedGradient"])
def test_segments_train_in_the_dual(optimizer, corpus, tmp_path):
    two_steps = {**overrides_of(corpus), "training.max_steps": 2}
    config = load_config(ROOT / "configs" / "semicrf_ner.cfg", overrides=two_steps)
    config["training"]["optimizer"] = {"@optimizers": f"spacy_crf_lab.{optimizer}.v1", "l2": 0.1, "epochs_per_step": 10}
    config["components"]["semicrf_ner"]["loss"] = {"@losses": "spacy_crf.MaxMargin.v1"}
    nlp, saved = train(init_nlp(config), tmp_path, stdout=io.StringIO(), stderr=io.StringIO())
    docs = list(DocBin().from_disk(corpus).get_docs(nlp.vocab))
    found = annotation(nlp, docs)
    assert [ents for ents, _ in found] == [entities(doc) for doc in docs]
    assert annotation(spacy.load(saved), docs) == found
