"""What ties have to do with a decision: what each tells a token, as though that were a feature of the token."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..inference.belief_propagation import BeliefPropagation
from ..inference.graph import TiedChains
from ..inference.ties import Ties
from ..types import Floats


class Told(NamedTuple):
    """What the ends of ties are told."""

    names: list[str]  # N: the features of each tie, and the word at its other end
    tokens: NDArray[np.int64]  # [N]
    scores: Floats  # [N, S]


def told_by_ties(model: Model, scores: Any, docs: DocBatch) -> Told:
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
    return Told(names, tokens, told)


def _spelled(model: Model, ties: Ties) -> list[str]:
    """The features of each kind of ties."""
    known = model.get_ref("cliques").attrs["known"]
    of_rows = [f"{name}: {text}" for name, _, _, text, _ in known]
    return [", ".join(of_rows[row] for row in rows if row >= 0) for rows in ties.rows.tolist()]
