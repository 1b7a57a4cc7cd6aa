"""Recursions in log space for chains and segments: sums for sequences that do not fit the linear domain, n-best lists and
samples. The `Work` of a structure turns its scores into scores of segments (`log_potentials`), and its derivatives into arrays of
segments (`segment_arrays`).
"""

import numpy as np

from ..arrays import Scores, part_of
from ..kernels import log_space as kernels
from ..types import Floats
from .structure import Chunk, States, Work


class LogWork(Work[Scores]):
    """Scores that can be read as scores of segments, as the recursions in log space do."""

    log_potentials: kernels.LogPotentials

    def segment_arrays(self, scores: Scores) -> kernels.SegmentArrays:
        """Scores or derivatives as those of segments, in the same memory: kernels write derivatives to it.

        scores (Scores): Potentials of these tokens, or derivatives with respect to them.
        """
        raise NotImplementedError


# A forward pass: sequences, their scores, and the log-sums of prefixes before and behind segments (float64[T, S] each)
LogPass = tuple[Chunk, LogWork, Floats, Floats]


def forward(work: LogWork, chunk: Chunk, log_z: Floats) -> LogPass:
    """Forward pass in log space over a chunk.

    work (LogWork): Potentials of all sequences.
    chunk (Chunk): The sequences of the chunk.
    log_z (float64[B]): Receives the log partitions of these sequences.
    RETURNS (LogPass): The pass, from which `backward` continues.
    """
    part = work.cut(chunk)
    return chunk, part, *prefixes(part, log_z[chunk.sequences])


def prefixes(work: LogWork, log_z: Floats) -> tuple[Floats, Floats]:
    """Forward pass over all sequences of a work.

    work (LogWork): Potentials of B sequences.
    log_z (float64[B]): Receives the log partitions.
    RETURNS (float64[T, S], float64[T, S]): Log-sums of the prefixes before and behind segments, ``entered`` and ``left`` of
        `kernels.log_space`.
    """
    shape = work.n_tokens, work.n_states
    # entered[t, j] = opening[t, j] + logsum_i(left[t-1, i] + transitions[i, j])
    # left[t, j]    = closing[t, j] + logsum_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
    entered = np.empty(shape)
    left = np.empty(shape)
    kernels.log_forward(work.log_potentials, entered, left, log_z)
    return entered, left


def suffixes(work: LogWork) -> tuple[Floats, Floats]:
    """Backward pass over all sequences of a work.

    work (LogWork): Potentials of B sequences.
    RETURNS (float64[T, S], float64[T, S]): Log-sums of the suffixes, ``leaving`` and ``out`` of `kernels.log_space`.
    """
    # leaving[t, i] = closing[t, i] + logsum_j(transitions[i, j] + out[t+1, j])
    # out[t, j]     = opening[t, j] + logsum_k(leaving[t+k, j] + lengths[k, j] + spans[.., j])
    leaving = np.empty((work.n_tokens, work.n_states))
    out = np.empty((work.n_tokens, work.n_states))
    kernels.log_backward(work.log_potentials, leaving, out)
    return leaving, out


def backward(forward_pass: LogPass, log_z: Floats, weights: Floats, out: Scores) -> None:
    """Add the derivatives of the sequences of a forward pass, except derivatives of firsts, lasts and tokens of segments.

    forward_pass (LogPass): The forward pass.
    log_z (float64[B]): Log partitions of all sequences.
    weights (float64[B]): Factors of all sequences.
    out (Scores): Receives the derivatives of sum_b weights[b] · log_z[b].
    """
    chunk, work, entered, left = forward_pass
    # `part_of` has views of the arrays of tokens; the arrays that all sequences share receive sums too
    shared_names = ("lengths",) if work.per_position else ("lengths", "transitions")
    shared = {name: getattr(out, name) for name in shared_names if hasattr(out, name)}
    derivatives = work.segment_arrays(part_of(out, chunk.tokens)._replace(**shared))
    leaving, suffix = suffixes(work)
    chunk_weights = weights[chunk.sequences]
    chunk_log_z = log_z[chunk.sequences]
    kernels.log_expectations(
        work.log_potentials,
        chunk_weights,
        entered,
        left,
        leaving,
        suffix,
        chunk_log_z,
        derivatives,
    )


def rank(work: LogWork, states: States, scores: Floats) -> int:
    """Find the best paths of a single sequence.

    work (LogWork): Potentials of the sequence.
    states (int32[n, T]): Receives the paths, best first.
    scores (float64[n]): Receives their scores.
    RETURNS (int): Number of paths, at most n.
    """
    return kernels.n_best(work.log_potentials, work.predecessors, len(scores), states, scores)


def draw(work: LogWork, uniforms: Floats) -> States:
    """Draw paths of a chunk.

    work (LogWork): Potentials of the chunk.
    uniforms (float64[N, T, 2]): Random numbers in [0, 1).
    RETURNS (int32[N, T]): The paths.
    """
    drawn = np.empty(uniforms.shape[:2], dtype=np.int32)
    entered, left = prefixes(work, np.empty(work.n_sequences))
    kernels.sample(work.log_potentials, work.predecessors, entered, left, uniforms, drawn)
    return drawn
