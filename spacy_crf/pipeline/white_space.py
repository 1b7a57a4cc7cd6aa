"""Excludes white space at the edges of spans, in prediction."""

from typing import Any, Optional

from ..features.doc_batch import DocBatch
from ..types import Bools
from .parts import Parts


def without_edges(parts: Parts, docs: DocBatch, scores: Any, settled: Optional[Bools] = None) -> tuple[Parts, Any]:
    """Exclude the labellings of Docs that have white space at an edge of a span. The parts and the scores stay the same for Docs
    without white space, and for components whose spans may have it there.

    settled (bool[T]): Tokens whose label is known, and stays.
    RETURNS (Parts, Any): The parts that decode the scores, and the scores.
    """
    if parts.annotation.space_edges or not docs.is_space.any():
        return parts, scores
    blank = docs.is_space if settled is None else docs.is_space & ~settled
    decoding = parts.decoding.over_bridges()
    scores = parts.decoding.bridges.widened(scores, blank)
    if decoding is parts.decoding:
        return parts, scores
    rules = None if parts.rules is None else parts.rules.over(decoding)
    return parts._replace(decoding=decoding, rules=rules), scores


def by_steps(parts: Parts, docs: DocBatch, scores: Any, settled: Optional[Bools] = None) -> tuple[Parts, Any]:
    """`without_edges` for explanations, which keep the model's states: much larger scores of chains."""
    if parts.annotation.space_edges or not docs.is_space.any():
        return parts, scores
    blank = docs.is_space if settled is None else docs.is_space & ~settled
    return parts, parts.decoding.bridges.by_steps(scores, blank)
