"""The log-likelihood by samples in place of sums: what trains graphs that no one sums up."""

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
    """Where samples come from: random numbers, and labellings that walks go on from."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.kept: dict[bytes, States] = {}


@dataclass(frozen=True)
class SampledLikelihood(LabelledLoss):
    """Stochastic maximum likelihood (Younes 1989; Tieleman 2008): the derivative of `LogLikelihood`, with the mean of samples in
    place of sums over all labellings.

        how often the samples use each score - how often the annotation does

    Chains draw samples exactly, so that it is right on average. Where tokens are tied samples are walks of `spacy_crf.Gibbs.v1`,
    that go on from where they were when they were last asked for (persistent), or begin anew: at the annotation that is
    contrastive divergence (Hinton 2002). The value that is told is `BesagPseudoLikelihood`'s, as that of the likelihood is not
    known. It is noisy: for optimizers of thinc.

    samples (int): Labellings for each text.
    steps (int): How often walks draw each sentence for a sample. With few, what strong ties hold together stays as it is.
    persistent (bool): Whether walks go on.
    start (str): Where they begin, "chain" for a labelling drawn without ties, or "gold" for the annotation.
    seed (int): Of all random numbers.
    """

    label_weights: None = field(default=None, init=False, repr=False)
    samples: int = 10
    steps: int = 5
    persistent: bool = True
    start: str = "chain"
    seed: int = 0
    walks: Walks = field(init=False, repr=False, compare=False)

    smooth = False  # no line search compares values that are drawn
    excludes_segments = False
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
        """As `ClampedLoss`."""
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
        """Labellings (int32[N, T]) of scores, gold (int32[1, T]) being one if it is known.

        clamp: What the annotation allows.
        """
        seed = int(self.walks.random.integers(1 << 31))
        walk = {"walks": self.walks, "steps": self.steps, "persistent": self.persistent, "annotation": clamp}
        begin = gold if self.start == "gold" else None
        return structure.walk_samples(work, self.samples, seed=seed, begin=begin, **walk)
