"""Absurd numbers end with what is possible: none of them runs for ever, or takes all memory."""

import inspect
from importlib import metadata

import pytest
import spacy
from spacy.tokens import Doc

from tests.pipeline.test_probabilities import trained

ABSURD = 10**10
# Of which less is done the larger they are, which are no more than there is to do, or where every number is as good
HARMLESS = {"seed", "min_count", "shortest", "limit", "max_length", "sequences", "calibration_samples"}
HARMLESS |= {"workers", "checkpoint_every"}
ENCODER = {"width": 8, "depth": 1, "embed_size": 20, "window_size": 1, "maxout_pieces": 2}
ENCODER |= {"subword_features": False, "pretrained_vectors": None}
# Registered, but their arguments are those of functions and components, not of configs
NOT_SETTINGS = {"spacy_crf.weights.v1"}
GROUPS = ("spacy_architectures", "spacy_misc", "thinc_losses", "thinc_optimizers")


def _given(name):
    """What else an entry needs."""
    if name.endswith("Emissions.v1"):
        return {"features": spacy.registry.get("misc", "spacy_crf.ner_features.v1")()}
    if name == "spacy_crf.HigherOrder.v1":
        return {
            "emissions": spacy.registry.get("architectures", "spacy_crf.SparseEmissions.v1")(**_given("Emissions.v1"))
        }
    if name in ("spacy_crf.LinearChain.v1", "spacy_crf.SemiMarkov.v1"):
        return {"tok2vec": spacy.registry.get("architectures", "spacy.HashEmbedCNN.v2")(**ENCODER)}
    if name == "spacy_crf.OnnxTok2Vec.v1":
        return {"path": "model.onnx"}
    return {}


def counts(distribution):
    """Every whole number among the arguments of what it registers."""
    for entry in metadata.distribution(distribution).entry_points:
        if entry.group in GROUPS and entry.name not in NOT_SETTINGS:
            for parameter in inspect.signature(entry.load()).parameters.values():
                if "int" in str(parameter.annotation) and parameter.name not in HARMLESS:
                    yield entry, parameter.name


def test_absurd_numbers_are_refused():
    """epochs_per_step = 1e10 never ended."""
    settings = list(counts("spacy-crf"))
    assert len(settings) > 20 and not taken(settings, _given)


def taken(settings, given):
    """Those that may be absurd. given (Callable): From the name of an entry to what else it needs."""
    found = []
    for entry, setting in settings:
        try:
            entry.load()(**given(entry.name), **{setting: ABSURD})
        except ValueError as error:
            message = str(error)
            assert message.startswith("CRF") and setting in message and str(ABSURD) in message
        else:
            found.append(f"{entry.name}: {setting}")
    return found


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger", "semicrf_ner", "crf_textcat"])
@pytest.mark.parametrize(
    "settings",
    [{"max_words": ABSURD}, {"second_stage": {"folds": ABSURD}}],
    ids=lambda each: next(iter(each)),
)
def test_absurd_settings_of_components_are_refused(factory, settings):
    if factory != "crf_textcat" or "max_words" in settings:
        with pytest.raises(ValueError, match=rf"CRF020: .* = {ABSURD} .* from \d"):
            spacy.blank("en").add_pipe(factory, config=settings)


def test_absurd_questions_are_refused():
    nlp = trained(iterations=1)
    ner, doc = nlp.get_pipe("crf_ner"), Doc(nlp.vocab, words=["Bob", "left"])
    for ask in (lambda: ner.n_best(doc, ABSURD), lambda: ner.sample(doc, ABSURD, seed=0)):
        with pytest.raises(ValueError, match=rf"CRF020: .*n = {ABSURD} .* from \d"):
            ask()
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [], "time_limit": 1e10}
    with pytest.raises(ValueError, match=r"CRF020: .*time_limit = 10000000000\.0 .* to 3600"):
        spacy.blank("en").add_pipe("crf_ner", config={"constraints": rules})
