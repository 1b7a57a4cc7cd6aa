"""Absurd numbers in settings of the lab end with what is possible, as in those of the plugin."""

import spacy

from tests.kernels.test_bounds import counts, taken

FEATURES = spacy.registry.get("misc", "spacy_crf.ner_features.v1")
EMISSIONS = spacy.registry.get("architectures", "spacy_crf.SparseEmissions.v1")


def _given(name):
    """The settings that a registered name needs besides the one under test."""
    kind = name.split(".")[1]
    if kind in ("KernelEmissions", "BoostedEmissions"):
        return {"features": FEATURES()}
    if kind in ("HiddenChain", "LatentChain", "MEMM", "OutputCodes"):
        return {"emissions": EMISSIONS(features=FEATURES())}
    return {"function": lambda doc: []} if kind == "Pairs" else {}


def test_absurd_numbers_are_refused():
    settings = list(counts("spacy-crf-lab"))
    assert len(settings) > 40 and not taken(settings, _given)
