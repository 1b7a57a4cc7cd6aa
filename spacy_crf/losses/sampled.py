"""The log-likelihood with samples in place of sums, for graphs whose sums are out of reach."""

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays, checks
from ..arrays import Scores
from ..inference.structure import States, Structure, Work
from ..types import Floats
from .clamped import LabelledLoss
from .local import BesagPseudoLikelihood


class Walks:
    """The source of samples: random numbers, and the labellings from which walks continue."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.kept: dict[bytes, States] = {}


@dataclass(frozen=True)
class SampledLikelihood(LabelledLoss):
    """Stochastic maximum likelihood (Younes 1989; Tieleman 2008): the derivative of `LogLikelihood`, with the mean of samples in
    place of sums over all labellings.

        how often the samples use each score - how often the annotation does

    Chains draw exact samples, so the derivative is unbiased. Where tokens are tied, samples are walks of `spacy_crf.Gibbs.v1`. A
    walk continues from its last labelling (persistent) or begins anew; walks that begin at the annotation are contrastive
    divergence (Hinton 2002). The reported value is that of `BesagPseudoLikelihood`, since the likelihood is unknown. The
    derivative is noisy: use an optimizer of thinc.

    samples (int): Labellings for each text.
    steps (int): How often walks draw each sentence for a sample. With few steps, labels that strong ties hold together rarely
        change.
    persistent (bool): Whether walks continue.
    start (str): Where walks begin: "chain" for a labelling drawn without ties, or "gold" for the annotation.
    seed (int): Seed of all random numbers.
    """

    label_weights: None = field(default=None, init=False, repr=False)
    samples: int = 10
    steps: int = 5
    persistent: bool = True
    start: str = "chain"
    seed: int = 0
    walks: Walks = field(init=False, repr=False, compare=False)

    smooth = False  # no line search compares values that are drawn
    excludes = frozenset()
    names_states = True

    def __post_init__(self):
        owner = type(self).__name__
        checks.count(owner, "samples", self.samples)
        checks.count(owner, "steps", self.steps)
        checks.flag(owner, "persistent", self.persistent)
        checks.one_of(owner, "start", self.start, ("chain", "gold"))
        checks.count(owner, "seed", self.seed, least=0, most=checks.ANY)
        object.__setattr__(self, "walks", Walks(self.seed))

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, NDArray[np.bool_]]:
        """As `ClampedLoss.__call__`."""
        losses, _, impossible = BesagPseudoLikelihood().bind(self.states)(structure, scores, clamp, weights=weights)
        work = structure.around(structure.prepare(scores), clamp)
        gold = structure.only_path(clamp)
        if gold is None:
            allowed = self._draw(structure, work.clamped(clamp), None, clamp)
        else:
            allowed = gold[np.newaxis]
        lost = structure.path_score(work, allowed[0]) == -np.inf
        impossible = impossible | lost
        weights = np.where(impossible, 0.0, work.check_weights(weights))
        drawn = self._draw(structure, work, None if gold is None else allowed, clamp)
        derivative = arrays.zeros(work.given)
        for labellings, factor in ((drawn, 1.0), (allowed, -1.0)):
            for states in labellings:
                share = factor * weights / len(labellings)
                structure.path_expectations(work, states, weights=share, out=derivative)
        return np.where(impossible, 0.0, losses), derivative, impossible

    def _draw(self, structure: Structure[Scores], work: Work[Scores], gold: Optional[States], clamp: Any) -> States:
        """Draw labellings (int32[N, T]).

        gold (int32[1, T]): The annotated labelling if it is known. clamp: What the annotation allows.
        """
        seed = int(self.walks.random.integers(1 << 31))
        walk = {"walks": self.walks, "steps": self.steps, "persistent": self.persistent, "annotation": clamp}
        begin = gold if self.start == "gold" else None
        return structure.walk_samples(work, self.samples, seed=seed, begin=begin, **walk)
