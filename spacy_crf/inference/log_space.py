"""What structures of tokens and of segments do alike: sums in logarithms, where the linear domain refuses, and labellings that
are not the best ones. Their work says what its scores are of pieces (``log_potentials``), and where derivatives go (``rows``)."""

from typing import Any, NamedTuple

import numpy as np

from ..arrays import Scores, part_of
from ..kernels import log_space as kernels
from ..types import Floats
from .structure import Chunk, States


class LogPass(NamedTuple):
    """Some sequences of work that were done in log space."""

    chunk: Chunk
    work: Any
    entered: Floats  # [n, S]
    left: Floats  # [n, S]


def forward(work: Any, chunk: Chunk, log_z: Floats) -> LogPass:
    """log_z (float64[B]): Receives those of the chunk."""
    part = work.cut(chunk)
    return LogPass(chunk, part, *prefixes(part, log_z[chunk.sequences]))


def prefixes(work: Any, log_z: Floats) -> tuple[Floats, Floats]:
    entered, left = np.empty((2, work.n_tokens, work.n_states))
    kernels.log_forward(work.log_potentials, entered, left, log_z)
    return entered, left


def suffixes(work: Any) -> tuple[Floats, Floats]:
    leaving, out = np.empty((2, work.n_tokens, work.n_states))
    kernels.log_backward(work.log_potentials, leaving, out)
    return leaving, out


def backward(done: LogPass, log_z: Floats, weights: Floats, out: Scores) -> None:
    """Adds the derivative of some sequences to that of all, but for those of firsts, lasts and tokens of segments."""
    chunk, work, entered, left = done
    of_all = ("lengths",) if work.per_position else ("lengths", "transitions")
    shared = {name: getattr(out, name) for name in of_all if hasattr(out, name)}
    rows = work.rows(part_of(out, chunk.tokens)._replace(**shared))
    kernels.log_expectations(
        work.log_potentials, weights[chunk.sequences], entered, left, *suffixes(work), log_z[chunk.sequences], rows
    )


def rank(work: Any, states: States, scores: Floats) -> int:
    """The best paths of a single sequence, as many as there is room for."""
    return kernels.n_best(work.log_potentials, work.predecessors, len(scores), states, scores)


def draw(work: Any, uniforms: Floats) -> States:
    """Paths by random numbers (float64[N, T, 2])."""
    drawn = np.empty(uniforms.shape[:2], dtype=np.int32)
    entered, left = prefixes(work, np.empty(work.n_sequences))
    kernels.sample(work.log_potentials, work.predecessors, entered, left, uniforms, drawn)
    return drawn
