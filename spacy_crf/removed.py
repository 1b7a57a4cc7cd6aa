"""Registered names that versions up to 0.13 had. Their entry points stay, so that a config with such a name is refused with the
name of its successor, and not with a list of all names."""

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from .errors import Errors

_PRESET = "extra without window padding transitions functions"
NAMES = {  # successor, and the settings of the removed function
    "ner_features.v1": ("ner_features.v3", "extra functions"),
    "ner_features.v2": ("ner_features.v3", _PRESET),
    "tagger_features.v1": ("tagger_features.v3", "extra functions"),
    "tagger_features.v2": ("tagger_features.v3", _PRESET),
    "segment_features.v1": ("segment_features.v2", "templates extra patterns functions"),
    "LinearChain.v1": ("LinearChain.v2", "emissions possible_transitions tie_boundaries"),
    "SemiMarkov.v1": ("SemiMarkov.v2", "emissions segments longest_segment possible_transitions"),
}


@cache
def __getattr__(attribute: str) -> Callable[..., Any]:
    """The function of an entry point such as ``spacy_crf.removed:LinearChain_v1``, which raises CRF035."""
    name = attribute.replace("_v", ".v")
    if name not in NAMES:
        raise AttributeError(attribute)
    successor, settings = NAMES[name]

    def refuse(**settings: Any) -> Any:
        raise ValueError(Errors.CRF035.format(name=f"spacy_crf.{name}", successor=f"spacy_crf.{successor}"))

    # confection checks first that a function takes the settings of a block
    parameters = [Parameter(setting, Parameter.KEYWORD_ONLY, default=None) for setting in settings.split()]
    refuse.__signature__ = Signature(parameters)
    return refuse
