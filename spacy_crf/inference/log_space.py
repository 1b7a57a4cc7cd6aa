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
    """Forward pass in log space over some sequences.

    chunk (Chunk): The sequences. log_z (float64[B]): Receives their log partitions.
    RETURNS (tuple): Arguments for `backward`: the chunk, its work, and the prefixes before and behind the segments.
    """
    part = work.cut(chunk)
    return chunk, part, *prefixes(part, log_z[chunk.sequences])


def prefixes(work: Any, log_z: Floats) -> tuple[Floats, Floats]:
    """Forward pass over all of the work.

    log_z (float64[B]): Receives the log partitions.
    RETURNS (float64[T, S], float64[T, S]): Prefixes before and behind the segments, ``entered`` and ``left`` of
        `kernels.log_space`.
    """
    entered, left = np.empty((2, work.n_tokens, work.n_states))
    kernels.log_forward(work.log_potentials, entered, left, log_z)
    return entered, left


def suffixes(work: Any) -> tuple[Floats, Floats]:
    """Backward pass over all of the work.

    RETURNS (float64[T, S], float64[T, S]): ``leaving`` and ``out`` of `kernels.log_space`.
    """
    leaving, out = np.empty((2, work.n_tokens, work.n_states))
    kernels.log_backward(work.log_potentials, leaving, out)
    return leaving, out


def backward(done: tuple, log_z: Floats, weights: Floats, out: Scores) -> None:
    """Add the derivatives of some sequences to `out`, except those of firsts, lasts and tokens of segments.

    done (tuple): Result of `forward`. log_z (float64[B]), weights (float64[B]): Log partitions and factors of the sequences.
    out (Scores): Receives the derivatives.
    """
    chunk, work, entered, left = done
    of_all = ("lengths",) if work.per_position else ("lengths", "transitions")
    shared = {name: getattr(out, name) for name in of_all if hasattr(out, name)}
    rows = work.rows(part_of(out, chunk.tokens)._replace(**shared))
    kernels.log_expectations(
        work.log_potentials, weights[chunk.sequences], entered, left, *suffixes(work), log_z[chunk.sequences], rows
    )


def rank(work: Any, states: States, scores: Floats) -> int:
    """Write the best paths of a single sequence into arrays that hold n paths.

    states (int32[n, T]), scores (float64[n]): Receive the paths.
    RETURNS (int): Number of paths, at most n.
    """
    return kernels.n_best(work.log_potentials, work.predecessors, len(scores), states, scores)


def draw(work: Any, uniforms: Floats) -> States:
    """Draw paths by random numbers.

    uniforms (float64[N, T, 2]): Random numbers in [0, 1).
    RETURNS (int32[N, T])
    """
    drawn = np.empty(uniforms.shape[:2], dtype=np.int32)
    entered, left = prefixes(work, np.empty(work.n_sequences))
    kernels.sample(work.log_potentials, work.predecessors, entered, left, uniforms, drawn)
    return drawn
