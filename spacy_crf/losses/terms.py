"""What the terms of local losses share: those of linear chains and those of chains of segments."""

from typing import NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from ..schemes import Segments
from ..types import Clamp, Floats, SegmentClamp


class Annotation(NamedTuple):
    """What is known of B sequences, and how much it counts."""

    clamp: Union[Clamp, SegmentClamp]  # what is allowed
    wrong: Segments  # but for these, of their labels
    factors: Floats  # [T] of each token's term
    weights: Floats  # [B] of each sequence


def choices(
    logits: Floats,
    gold: NDArray[np.int64],
    tokens: NDArray[np.int64],
    annotation: Annotation,
    starts: NDArray[np.int64],
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Terms of tokens that choose one of some options.

    logits (float64[M, C]): Scores of the options.
    gold (int64[M]): The annotated one.
    tokens (int64[M]): Whose terms they are.
    RETURNS (float64[B], float64[M, C], bool[B]): The losses of the sequences, the derivative, and which are impossible.
    """
    rows = np.arange(len(tokens))
    log_z, reached = log_sum(logits), logits[rows, gold]
    n_tokens = len(annotation.factors)
    no_option, terms = np.zeros(n_tokens, dtype=bool), np.zeros(n_tokens)
    no_option[tokens] = reached == -np.inf
    impossible = any_token(no_option, starts)
    factors = token_factors(annotation, impossible, starts)[tokens]
    counted = factors > 0
    log_z, reached = np.where(counted, log_z, 0.0), np.where(counted, reached, 0.0)
    terms[tokens] = factors * (log_z - reached)
    derivative = np.zeros(logits.shape)
    derivative[counted] = np.exp(logits[counted] - log_z[counted, np.newaxis])
    derivative[rows, gold] -= 1.0
    return per_sequence(terms, starts), factors[:, np.newaxis] * derivative, impossible


def token_factors(annotation: Annotation, impossible: NDArray[np.bool_], starts: NDArray[np.int64]) -> Floats:
    """Factors of the tokens' terms (float64[T]) with the weights of their sequences, 0 in impossible ones (bool[B])."""
    sequence = np.repeat(np.arange(len(impossible)), np.diff(starts))
    return np.where(impossible[sequence], 0.0, annotation.factors * annotation.weights[sequence])


def ends(starts: NDArray[np.int64], n_tokens: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which tokens open and which close a sequence: bool[T] each."""
    opens, closes = np.zeros((2, n_tokens), dtype=bool)
    filled = starts[:-1] < starts[1:]
    opens[starts[:-1][filled]] = True
    closes[starts[1:][filled] - 1] = True
    return opens, closes


def per_sequence(terms: Floats, starts: NDArray[np.int64]) -> Floats:
    return np.diff(np.append(0.0, np.cumsum(terms))[starts])


def any_token(flags: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.diff(np.append(0, np.cumsum(flags))[starts]) > 0


def log_sum(rows: Floats) -> Floats:
    largest = rows.max(axis=1, initial=-np.inf)
    shift = np.where(largest > -np.inf, largest, 0.0)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(rows - shift[:, np.newaxis]).sum(axis=1))
