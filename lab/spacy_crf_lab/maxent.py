"""Maximum entropy (Berger, Della Pietra & Della Pietra 1996): each token chooses its tag by its features alone.

    p(y | x) = prod_t exp(emissions[t, y_t]) / sum_j exp(emissions[t, j])

Training sees T independent choices, in time O(T · S). The tag scheme takes effect in prediction only: its best labelling, and all
probabilities, are those of a chain whose allowed transitions score 0.
"""

from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf.errors import cant_train
from spacy_crf.inference.linear_chain import LinearChain, softmax
from spacy_crf.inference.scaling import ChainWork
from spacy_crf.inference.structure import States, Structure
from spacy_crf.losses.clamped import CLAMPED_LOSSES, ClampedLoss
from spacy_crf.models.emissions import Emissions, check_emissions
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.node import Batches
from spacy_crf.models.structure import SharedScores, build
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import ChainScores, Floats, Ints, Path

from .kernels.memm import make_choices
from .memm import follow


class IndependentTokens(LinearChain):
    """Answers the questions of training for tokens that do not depend on each other: it ignores transitions, first and last."""

    def forward(self, work: ChainWork) -> Floats:
        """Log partitions: sums of log sum_j exp(emissions[t, j]) over the tokens."""
        return self._sums(work)[0]

    def expect(self, work: ChainWork, weights: Floats, out: ChainScores) -> Floats:
        """Log partitions; the derivative by emissions is the weighted softmax."""
        log_z, shares = self._sums(work)
        of_tokens = np.where(log_z > -np.inf, weights, 0.0)[_sequence_of(work)]
        np.multiply(shares, of_tokens[:, np.newaxis], out=out.emissions)
        return log_z

    def _sums(self, work: ChainWork) -> tuple[Any, Floats]:
        """Log partitions (float64[B]), and the probability of each state at each token (float64[T, S])."""
        of_tokens, shares = softmax(work.emissions)
        return np.bincount(_sequence_of(work), of_tokens, minlength=work.n_sequences), shares

    def differentiate_path(
        self, work: ChainWork, states: States, weights: Floats
    ) -> tuple[Floats, Floats, ChainScores]:
        """As `Structure.differentiate_path`, where the losses of tokens are computed in one pass."""
        # Choices whose transitions all score 0 depend on nothing before them
        nothing = {name: np.zeros(getattr(work.scores, name).shape) for name in ("transitions", "first", "last")}
        choices = make_choices(type(work)(work.scores._replace(**nothing)))
        return np.zeros(work.n_sequences), *follow(work, choices, states, weights)

    def best(self, work: ChainWork) -> Path:
        """The best state of each token by itself."""
        sequence = _sequence_of(work)
        scores: Any = np.bincount(sequence, work.emissions.max(axis=1), minlength=work.n_sequences)
        states = np.where(scores[sequence] > -np.inf, work.emissions.argmax(axis=1), -1)
        return Path(states.astype(np.int32), scores)


def _sequence_of(work: ChainWork) -> Ints:
    """Sequence of each token: int64[T]."""
    return np.repeat(np.arange(work.n_sequences), np.diff(work.starts))


_INDEPENDENT = IndependentTokens()


class MaxEntNode(ChainNode):
    """Node of a model whose transitions, firsts and lasts score 0 and have no weights."""

    traits = ChainNode.traits._replace(is_online=False)

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for a loss that asks how tokens depend on their neighbours."""
        super().check_fit(model, pipe, optimizer)
        if not isinstance(pipe.loss, ClampedLoss):
            raise cant_train(
                pipe.loss,
                what=f"the independent tokens of '{pipe.name}'",
                reason="it asks how they depend on their neighbours",
                fitting=CLAMPED_LOSSES,
            )

    @property
    def in_training(self) -> Structure:
        """Independent tokens; batches with rules have a chain."""
        return _INDEPENDENT

    def weighed(self, model: Model) -> SharedScores:
        """No transition has a weight."""
        return {name: np.zeros_like(mask) for name, mask in super().weighed(model).items()}

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Do nothing, since no transition has a weight."""


def MaxEnt(emissions: Model[list[Doc], Emissions]) -> Model[list[Doc], ChainScores]:
    """Maximum entropy, also known as multinomial logistic regression: the tags of tokens do not depend on each other, except that
    prediction keeps the tag scheme.

    emissions (Model): From SparseEmissions, HashedEmissions or Tok2VecEmissions.
    """
    check_emissions("MaxEnt", emissions)
    return build("maxent", MaxEntNode(), {"emissions": emissions})
