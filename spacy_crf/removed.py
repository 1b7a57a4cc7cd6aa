"""Registered names of versions up to 0.13 that are gone. Their entry points stay, so that a config that has one is refused with
what took its place, and not with a list of all names."""

from collections.abc import Callable
from functools import cache
from typing import Any

from .errors import Errors

SUCCESSORS = {
    "spacy_crf.ner_features.v1": "spacy_crf.ner_features.v3",
    "spacy_crf.ner_features.v2": "spacy_crf.ner_features.v3",
    "spacy_crf.tagger_features.v1": "spacy_crf.tagger_features.v3",
    "spacy_crf.tagger_features.v2": "spacy_crf.tagger_features.v3",
    "spacy_crf.segment_features.v1": "spacy_crf.segment_features.v2",
    "spacy_crf.LinearChain.v1": "spacy_crf.LinearChain.v2",
    "spacy_crf.SemiMarkov.v1": "spacy_crf.SemiMarkov.v2",
}


@cache
def __getattr__(attribute: str) -> Callable[..., Any]:
    """What an entry point such as ``spacy_crf.removed:LinearChain_v1`` names: a function that raises CRF035."""
    name = f"spacy_crf.{attribute.replace('_v', '.v')}"
    if name not in SUCCESSORS:
        raise AttributeError(attribute)

    def refuse(**settings: Any) -> Any:
        raise ValueError(Errors.CRF035.format(name=name, successor=SUCCESSORS[name]))

    return refuse
