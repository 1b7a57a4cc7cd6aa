"""How explanations show ties: what each tells a token, as though that were a feature of it, and what was learned of pairs."""

from typing import Any

import numpy as np
from thinc.api import Model

from ...explain.weights import Block, Feature
from ...features.doc_batch import DocBatch
from ...models.architecture import TokenTerms
from .belief_propagation import BeliefPropagation
from .scores import Ties
from .structure import TiedChains


def told_by_ties(model: Model, scores: Any, docs: DocBatch) -> TokenTerms:
    """The messages of belief propagation; of other methods they are what comes near.

    model (Model): A factor graph. scores (TiedScores): Of a single Doc, in double precision.
    """
    inference = model.attrs["role"].structure.inference
    speaker = inference if isinstance(inference, BeliefPropagation) else BeliefPropagation()
    tokens, partners, kinds, told = speaker.told(TiedChains(speaker).prepare(scores))
    spelled, doc = _spelled(model, scores.ties), docs[0]
    names = [
        f"{spelled[kind]}: '{doc[other].text}' ({other})" for kind, other in zip(kinds.tolist(), partners.tolist())
    ]
    return TokenTerms(names, tokens, told)


def _spelled(model: Model, ties: Ties) -> list[str]:
    """The features of each kind of ties."""
    known = model.get_ref("cliques").attrs["known"]
    of_rows = [f"{name}: {text}" for name, _, _, text, _ in known]
    return [", ".join(of_rows[row] for row in rows if row >= 0) for rows in ties.rows.tolist()]


def weights_of_ties(model: Model) -> Block:
    """The tables of the features of ties."""
    known, node = model.get_ref("cliques").attrs["known"], model.attrs["role"]
    mask = node.weighed(model)["tables"]
    row, *labels = np.nonzero(mask)
    features = [Feature(f"{name}: {text}", f"{name}: {text.partition('=')[0]}", None) for name, _, _, text, _ in known]
    templates = list(dict.fromkeys(feature.template for feature in features))
    of_rows = np.array([templates.index(feature.template) for feature in features], dtype=np.int64)
    counts, weights = np.array([count for *_, count in known], dtype=np.int64), model.get_param("tables")[mask]
    named = templates, of_rows[row]
    return Block(
        "ties",
        node.strength * weights,
        tuple(labels),
        row,
        features.__getitem__,
        counts,
        named,
        model.attrs["label_of"],
    )
