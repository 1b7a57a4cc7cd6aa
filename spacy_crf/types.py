"""What passes between the layers: plain named tuples of numpy arrays.

Letters in shapes: T tokens (of all sequences of a batch, end to end), B sequences, S states, K longest segment,
A arcs, F feature rows. Scores that cross a layer are natural logarithms; ``-inf`` means forbidden.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Clamp = NDArray[np.bool_]  # [T, S] states still allowed at each token ([T, K, S] for segments)


class TokenFeatures(NamedTuple):
    """Known features of T tokens as compressed sparse rows: token t has ``rows[starts[t]:starts[t + 1]]``."""

    rows: NDArray[np.int32]  # [nnz] feature rows
    values: Optional[NDArray[np.float32]]  # [nnz], None where every value is 1
    starts: NDArray[np.int64]  # [T + 1]


class ChainScores(NamedTuple):
    """Potentials of a batch of linear chains, laid end to end: sequence b is tokens ``starts[b]:starts[b + 1]``.

    ``transitions[i, j]`` is the score of state j directly after state i. With a third axis in front scores depend on
    the position: ``transitions[t]`` belongs to the step from t - 1 to t (unused where t opens a sequence).
    The same tuple holds the derivative of a loss with respect to each score.
    """

    emissions: Floats  # [T, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S] added to the first token of every sequence
    last: Floats  # [S] added to the last token of every sequence
    starts: Optional[NDArray[np.int64]] = None  # [B + 1], None for a single sequence


class Path(NamedTuple):
    """One labelling for each sequence of a batch."""

    states: NDArray[np.int32]  # [T]
    scores: Floats  # [B] total score of each sequence's labelling
