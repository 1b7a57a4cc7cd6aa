"""Registered names of versions up to 0.13 that are gone. Their entry points stay, so that a config that has one is refused with
what took its place, and not with a list of all names."""

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from .errors import Errors


class Removed(NamedTuple):
    successor: str
    settings: str  # that it had


_PRESET = "extra without window padding transitions functions"
NAMES = {
    "ner_features.v1": Removed("ner_features.v3", "extra functions"),
    "ner_features.v2": Removed("ner_features.v3", _PRESET),
    "tagger_features.v1": Removed("tagger_features.v3", "extra functions"),
    "tagger_features.v2": Removed("tagger_features.v3", _PRESET),
    "segment_features.v1": Removed("segment_features.v2", "templates extra patterns functions"),
    "LinearChain.v1": Removed("LinearChain.v2", "emissions possible_transitions tie_boundaries"),
    "SemiMarkov.v1": Removed("SemiMarkov.v2", "emissions segments longest_segment possible_transitions"),
}


@cache
def __getattr__(attribute: str) -> Callable[..., Any]:
    """What an entry point such as ``spacy_crf.removed:LinearChain_v1`` names: a function that raises CRF035."""
    name = attribute.replace("_v", ".v")
    if name not in NAMES:
        raise AttributeError(attribute)
    successor, settings = NAMES[name]

    def refuse(**settings: Any) -> Any:
        raise ValueError(Errors.CRF035.format(name=f"spacy_crf.{name}", successor=f"spacy_crf.{successor}"))

    # confection looks whether a function takes the settings of a block, and would name those first
    parameters = [Parameter(setting, Parameter.KEYWORD_ONLY, default=None) for setting in settings.split()]
    refuse.__signature__ = Signature(parameters)
    return refuse
