"""A model at a glance: what it knows, and which weights say most."""

from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from ..models.texts import OfTexts
from .reading import members_of
from .weights import Block, blocks, largest

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe


def overview(pipe: "CRFPipe", label: Optional[str] = None, top: int = 20) -> dict[str, Any]:
    """What there is to know of a trained component, as plain values.

    pipe (CRFPipe): The component.
    label (str): The weights of this label or tag only; of each label if None.
    top (int): How many weights for and against each.
    RETURNS (Dict[str, Any])
    RAISES (ValueError): CRF846 for an unknown label; if the component was not trained.
    """
    pipe.require_ready([])
    stores = pipe.feature_stores
    found = {
        "component": pipe.name,
        "class": type(pipe).__name__,
        "model": pipe.model.name,
        "labels": list(pipe.labels),
        "tags": pipe.decoding.state_names(),
        "weights": sum(len(block.weights) for block in blocks(pipe)),
        "templates": _templates(pipe),
        "top": {name: _sides(pipe, name, top) for name in ([label] if label else pipe.decoding.names_with_features())},
        "transitions": _transitions(pipe),
        "gazetteers": {name: len(one.entries) for store in stores for name, one in store.gazetteers.items()},
        "clusters": {"words": len(one)} if (one := next((s.clusters for s in stores if s.clusters), None)) else {},
        "rules": _rules(pipe),
    }
    if pipe.decoding.longest is not None:
        found["longest"] = dict(zip(pipe.tags(), pipe.decoding.longest.tolist()))
    if pipe.has_encoder:
        found["encoder"] = pipe.model.get_ref("tok2vec").name
    return found


def _sides(pipe: "CRFPipe", label: str, top: int) -> dict[str, list[dict[str, Any]]]:
    """The weights of features that speak most for a label, and against it."""
    sides = {"for": 1.0, "against": -1.0}
    return {
        side: [row._asdict() for row in largest(pipe, label, top, partial(_of_features, sign))]
        for side, sign in sides.items()
    }


def _of_features(sign: float, block: Block) -> Any:
    return (sign * block.weights > 0) & (block.templates is not None) & (len(block.states) == 1)


def _templates(pipe: "CRFPipe") -> list[dict[str, Any]]:
    """What each template has: features, weights, and the sum of their absolute values. The heaviest first."""
    found = []
    for block in blocks(pipe):
        names, of_weight = block.templates or ([block.name], np.zeros(len(block.weights), dtype=np.int64))
        used = np.unique(np.stack([of_weight, block.rows]), axis=1)[0]
        features, counts = (np.bincount(which, minlength=len(names)) for which in (used, of_weight))
        masses = np.bincount(of_weight, np.abs(block.weights), minlength=len(names))
        columns = zip(names, features.tolist(), counts.tolist(), masses.tolist())
        found += [dict(zip(("template", "features", "weights", "mass"), row), of=block.name) for row in columns]
    return sorted((row for row in found if row["weights"]), key=lambda row: -row["mass"])


def _transitions(pipe: "CRFPipe") -> dict[str, Any]:
    """Weights of the steps from each tag to each tag, None for those that are never taken; of sequences that begin and end."""
    members = members_of(pipe.model)
    if isinstance(members[0][0].attrs["role"], OfTexts):
        return {}  # of hidden states there are some below each label: they are among the weights
    possible, found = members[0][0].attrs["role"].possible(members[0][0]), {}
    for name in ("transitions", "first", "last"):
        weights = sum(share * model.get_param(name).astype(np.float64) for model, share in members)
        found[name] = np.where(possible[name], weights.astype(object), None).tolist()
    return found


def _rules(pipe: "CRFPipe") -> list[dict[str, Any]]:
    compiled = pipe.rules()
    if compiled is None:
        return []
    said = compiled.all.enforcement()
    return [
        {**rule.table, "name": rule.name, "enforced by": how, "in probabilities": known} for rule, how, known in said
    ]
