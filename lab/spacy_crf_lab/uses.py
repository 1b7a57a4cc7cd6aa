"""How often scores are used, how much that varies, and the highest scores, in the form of losses for
`CorpusObjective.evaluate_loss`."""

from typing import Optional

import numpy as np

from spacy_crf.arrays import Scores, is_shared, named, states_of, zeros
from spacy_crf.errors import cant_train
from spacy_crf.inference.structure import Structure
from spacy_crf.losses.clamped import LabelledLoss
from spacy_crf.optimizers.objective import CRFOptimizer
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Bools, Clamp, Floats

TINY = float(np.finfo(np.float64).tiny)


def expect_known_states(optimizer: CRFOptimizer, pipe: CRFPipe) -> None:
    """RAISES (ValueError): CRF347 if the states of a component's model are hidden, for optimizers that need them."""
    if not pipe.model.attrs["node"].traits.names_states:
        raise cant_train(
            optimizer,
            what=f"the hidden states of '{pipe.name}'",
            reason="it asks for the state of each token, and annotation only names tags",
            fitting="LBFGS, SGD, AdaGrad or Adam.v1",
        )


class Observed(LabelledLoss):
    """Zero; in place of its derivative how often the annotation uses each score. A sequence that no labelling fits uses nothing.

    incomplete (list): Gets an entry for each batch with a sequence whose annotation several labellings fit.
    """

    incomplete: list[bool]

    def __init__(self, incomplete: list[bool]):
        super().__init__()
        object.__setattr__(self, "incomplete", incomplete)

    def __call__(
        self,
        structure: Structure[Scores],
        scores: Scores,
        clamp: Clamp,
        *,
        weights: Optional[Floats] = None,
        **told: object,
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        if "path" not in structure.answers:
            states = None
            is_complete = (states_of(clamp).sum(axis=1) <= 1).all()
        else:
            states = structure.only_path(clamp)
            is_complete = states is not None
        if not is_complete:
            self.incomplete.append(True)
        work = structure.prepare(scores, annotated=clamp)
        if states is None:
            found, uses = structure.expectations(work, clamp=clamp, weights=weights)
        else:
            found = structure.path_score(work, states)
            uses = zeros(scores)
            weights = np.ones(len(found)) if weights is None else weights
            structure.path_expectations(work, states, weights=np.where(found == -np.inf, 0.0, weights), out=uses)
        return np.zeros(len(found)), uses, found == -np.inf


class Highest(LabelledLoss):
    """The score of the best labelling of each sequence, without a derivative."""

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Optional[Clamp], **told: object
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        found, _ = structure.viterbi_counts(structure.prepare(scores))
        return found, zeros(scores), found == -np.inf


class Variances(LabelledLoss):
    """Log partition; in place of its derivative how much the number of uses of each score varies. The sums by weights are close
    to the diagonal of the second derivatives of a log-likelihood (Sha & Pereira 2003, section 3.2)."""

    def __call__(
        self,
        structure: Structure[Scores],
        scores: Scores,
        clamp: Optional[Clamp],
        *,
        weights: Optional[Floats] = None,
        **told: object,
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        log_z, varied = variances(structure, scores, None, weights)
        return log_z, varied, np.zeros(len(log_z), dtype=bool)


def variances(
    structure: Structure[Scores], scores: Scores, clamp: Optional[Clamp], weights: Optional[Floats]
) -> tuple[Floats, Scores]:
    """Log partitions, and how much the number of uses of each score varies, times the factor of its sequence.

    A score of a token or span is used with probability p: its variance is p - p². Of the uses of scores that all tokens share as
    large a share is uncertain as of the uses of states.

    weights (float64[B]): Factors of the sequences, or None.
    """
    work = structure.prepare(scores)
    log_z, uses = structure.expectations(work, clamp=clamp)
    weighted = uses if weights is None else structure.expectations(work, clamp=clamp, weights=weights)[1]
    of_tokens = weighted[0]
    # Shared scores: as certain as the states are, on average
    certain = (np.minimum(uses[0], 1.0) * of_tokens).sum() / max(of_tokens.sum(), TINY)
    varied = {}
    for name, expected in named(weighted).items():
        # variance of a use with probability p: p - p²
        share = certain if is_shared(uses, name) else np.minimum(getattr(uses, name), 1.0)
        varied[name] = expected * (1.0 - share)
    return log_z, weighted._replace(**varied)
