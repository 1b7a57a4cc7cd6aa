"""Writes components that were trained on the patterns of Wapiti as models of Wapiti."""

from itertools import chain, pairwise
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language

from ..errors import Errors
from ..features.extractor import FeatureSet
from ..models.table import Table
from .foreign import as_octets
from .functions import from_config
from .pipeline import FORBIDDEN, exported, warn_of_decoding

_SOURCE = "spacy_crf.wapiti_features.v1"
# Numbers of labels, or of pairs of labels, and their weights
Weights = tuple[NDArray[np.int64], NDArray]
_NONE: Weights = (np.zeros(0, dtype=np.int64), np.zeros(0))
# patterns of positions outside the sequence
_FIRST = "u:spacy_crf first=%x[-1,0]"
_LAST = "u:spacy_crf last=%x[1,0]"


def export_wapiti(nlp: Language, component: Optional[str] = None) -> bytes:
    """The bytes of a model of Wapiti. Weights of first and last labels become features of the positions outside a sequence.

    RAISES (ValueError): CRF710 if no component can be exported, CRF791 for rules and for templates that are no patterns.
    """
    tagger: Any = exported(nlp, component)
    model = tagger.model
    [emissions] = tagger.model.layers
    features = emissions.attrs["features"]
    allowed = tagger.annotation.mask()
    if tagger.rules() is not None:
        raise ValueError(Errors.CRF791.format(name=tagger.name, what="rules", form="a model of Wapiti", how=_NO_RULES))
    patterns = _patterns(nlp, tagger.name, features.feature_set)
    warn_of_decoding(tagger, "Wapiti")
    size = len(tagger.tags())
    # Columns and weights of each feature, by its name in Wapiti: for labels, and for pairs of labels
    label_weights: dict[str, Weights] = {}
    # The first token is the one behind position -1, which has a text of its own; likewise the last one
    for name, (pattern, outside) in {"first": (_FIRST, "_x-1"), "last": (_LAST, "_x+1")}.items():
        scores = np.where(getattr(allowed, name), model.get_param(name), FORBIDDEN)
        if scores.any():
            patterns.append(pattern)
            label_weights[pattern.partition("%")[0] + outside] = np.arange(size), scores
    label_weights.update(_weights(features.states, emissions.get_param("states")))
    transitions = np.where(allowed.transitions, model.get_param("transitions"), FORBIDDEN)
    pair_weights = {
        "b": (np.arange(size * size), transitions.ravel()),
        **_weights(features.transitions, emissions.get_param("transitions")),
    }
    names = [*dict.fromkeys([*label_weights, *pair_weights])]
    # Wapiti numbers all weights feature by feature: those for labels, then those for pairs. Only weights other than 0 are written
    numbers = []
    values = []
    begin = 0  # the number of the first weight of the next feature
    for name in names:
        for kinds, table, width in (("u*", label_weights, size), ("b*", pair_weights, size * size)):
            if name[0] in kinds:
                columns, weights = table.get(name, _NONE)
                numbers += (begin + columns[weights != 0]).tolist()
                values += weights[weights != 0].tolist()
                begin += width
    last_column = max(len(block["columns"]) for block in _blocks(nlp, tagger.name).values()) - 1
    lines = [f"#mdl#2#{len(numbers)}\n".encode(), f"#rdr#{len(patterns) + 1}/{last_column}/0\n".encode()]
    lines += map(_netstring, [*patterns, "b"])
    for texts in (tagger.tags(), names):
        lines += [f"#qrk#{len(texts)}\n".encode(), *map(_netstring, texts)]
    return b"".join(chain(lines, (f"{n}={value.hex()}\n".encode() for n, value in zip(numbers, values))))


_NO_RULES = "Remove its block of constraints"
_HOW_TO_GET_PATTERNS = (
    "Train it on the features that `crf import PATTERNS --from wapiti` writes, or import its model with --replay"
)


def _blocks(nlp: Language, component: str) -> dict[str, dict[str, Any]]:
    """The functions of a component's features in the config, by name."""
    return nlp.config["components"][component]["model"]["emissions"]["features"].get("functions") or {}


def _patterns(nlp: Language, component: str, feature_set: FeatureSet) -> list[str]:
    """The patterns that make the features. RAISES (ValueError): CRF791 for a template that is not made of patterns."""
    blocks = _blocks(nlp, component)
    patterns = []
    for template in feature_set.templates + feature_set.transitions:
        block = blocks.get(str(template).removeprefix("fn:").removesuffix("[0]"), {})
        if block.get("@misc") != _SOURCE:
            raise ValueError(
                Errors.CRF791.format(
                    name=component,
                    what=f"the template {template}, which no pattern of Wapiti makes",
                    form="a model of Wapiti",
                    how=_HOW_TO_GET_PATTERNS,
                )
            )
        patterns += [line for line in map(from_config, block["patterns"]) if line not in patterns]
    return patterns


def _weights(table: Table, weights: NDArray[np.float32]) -> dict[str, Weights]:
    """Columns and weights by the name that a pattern makes."""
    found = {}
    for name, (begin, end) in zip(table.index.names(), pairwise(table.pair_starts.tolist())):
        _, _, made = name.partition("[0]=")
        found[made] = table.pair_columns[begin:end].astype(np.int64), weights[begin:end]
    return found


def _netstring(text: str) -> bytes:
    octets = as_octets(text)
    return f"{len(octets)}:".encode() + octets + b",\n"
