"""What the scores of a text are about: its tokens, its sentences, or the text as a whole."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats, TokenFeatures

Starts = NDArray[np.int64]

TOKEN, SENT, TEXT = UNITS = ("token", "sent", "text")


class Rows(NamedTuple):
    """The rows of the scores of D texts, laid end to end."""

    tokens: Starts  # [U + 1] where the tokens of each row begin and end
    texts: Starts  # [D + 1] where the rows of each text begin and end

    @classmethod
    def of(cls, unit: str, sequences: Starts, texts: Starts) -> "Rows":
        """unit (str): One of `UNITS`.
        sequences (int64[B + 1]), texts (int64[D + 1]): Where the tokens of each sentence, and of each text, begin and end.
        """
        if unit == TEXT:
            return cls(texts, np.arange(len(texts)))
        if unit == TOKEN:
            return cls(np.arange(texts[-1] + 1), texts)
        tokens = np.unique(np.append(sequences, texts))
        return cls(tokens, np.searchsorted(tokens, texts))

    def gather(self, features: TokenFeatures) -> TokenFeatures:
        """The features of the tokens of each row."""
        return features._replace(starts=features.starts[self.tokens])

    def total(self, scores: Floats) -> Floats:
        """The sum of the scores of the tokens of each row: float64[U, C]."""
        if len(self.tokens) - 1 == len(scores) == self.tokens[-1]:
            return scores
        filled = self.tokens[:-1] < self.tokens[1:]
        total = np.zeros((len(filled), scores.shape[1]))
        if filled.any():
            total[filled] = np.add.reduceat(scores, self.tokens[:-1][filled], axis=0)
        return total
