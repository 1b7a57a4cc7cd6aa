"""Recursions in log space for chains and segments: sums for sequences that do not fit the linear domain, n-best lists and
samples. A structure's work gives its scores as segments (``log_potentials``) and the arrays that receive derivatives (``rows``).
"""

from typing import Any

import numpy as np

from ..arrays import Scores, part_of
from ..kernels import log_space as kernels
from ..types import Floats
from .structure import Chunk, States


def forward(work: Any, chunk: Chunk, log_z: Floats) -> tuple:
    """Forward pass in log space over some sequences, whose log partitions `log_z` (float64[B]) receives.

    RETURNS (tuple): For `backward`: the chunk, its work, and the prefixes before and behind the segments.
    """
    part = work.cut(chunk)
    return chunk, part, *prefixes(part, log_z[chunk.sequences])


def prefixes(work: Any, log_z: Floats) -> tuple[Floats, Floats]:
    """Prefixes before and behind the segments of all of the work, ``entered`` and ``left`` of `kernels.log_space` (float64[T, S]
    each); `log_z` (float64[B]) receives the log partitions.
    """
    shape = work.n_tokens, work.n_states
    entered = np.empty(shape)
    left = np.empty(shape)
    kernels.log_forward(work.log_potentials, entered, left, log_z)
    return entered, left


def suffixes(work: Any) -> tuple[Floats, Floats]:
    """Backward pass over all of the work: ``leaving`` and ``out`` of `kernels.log_space`, float64[T, S] each."""
    leaving, out = np.empty((2, work.n_tokens, work.n_states))
    kernels.log_backward(work.log_potentials, leaving, out)
    return leaving, out


def backward(done: tuple, log_z: Floats, weights: Floats, out: Scores) -> None:
    """Add the derivatives of the sequences of a forward pass to `out`, except those of firsts, lasts and tokens of segments.

    log_z (float64[B]), weights (float64[B]): Log partitions and factors of all sequences.
    """
    chunk, work, entered, left = done
    of_all = ("lengths",) if work.per_position else ("lengths", "transitions")
    shared = {name: getattr(out, name) for name in of_all if hasattr(out, name)}
    rows = work.rows(part_of(out, chunk.tokens)._replace(**shared))
    kernels.log_expectations(
        work.log_potentials, weights[chunk.sequences], entered, left, *suffixes(work), log_z[chunk.sequences], rows
    )


def rank(work: Any, states: States, scores: Floats) -> int:
    """Write the best paths of a single sequence into `states` (int32[n, T]) and `scores` (float64[n]).

    RETURNS (int): Number of paths, at most n.
    """
    return kernels.n_best(work.log_potentials, work.predecessors, len(scores), states, scores)


def draw(work: Any, uniforms: Floats) -> States:
    """Draw paths (int32[N, T]) by random numbers in [0, 1) (float64[N, T, 2])."""
    drawn = np.empty(uniforms.shape[:2], dtype=np.int32)
    entered, left = prefixes(work, np.empty(work.n_sequences))
    kernels.sample(work.log_potentials, work.predecessors, entered, left, uniforms, drawn)
    return drawn
