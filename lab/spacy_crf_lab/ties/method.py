"""Base of the inference methods for tied sentences."""

from typing import ClassVar, NamedTuple

import numpy as np

from spacy_crf.errors import announcements
from spacy_crf.inference.structure import States
from spacy_crf.optimizers.objective import check_settings
from spacy_crf.schemes import TransitionMask
from spacy_crf.types import ChainScores, Floats, Seed

from ..errors import Warnings
from .scores import Problem

LOG_PARTITION = "log_partition"
MAXIMUM = "viterbi"
SAMPLE = "sample"
N_BEST = "n_best"
WALK = "walk"  # samples that go on from labellings, for training


class Expected(NamedTuple):
    """Log partitions and derivatives, as a method finds them."""

    log_z: Floats  # [C]
    chains: ChainScores  # the derivative with respect to them
    tables: Floats  # [K, L, L] and to those


class Inference:
    """Base of the registered inference methods for tied sequences."""

    exact: bool = False
    answers: frozenset[str]  # the questions above that it supports; log partitions if exact enough for training
    takes_groups: ClassVar[bool] = False  # whether it takes groups of tokens beside ties of two
    decodes_chains: ClassVar[bool] = False  # whether its best labelling is that of `as_chains`
    keeps_rules: ClassVar[bool] = (
        False  # whether it finds best labellings of joined documents under the automata of rules
    )
    n_asked = n_unconverged = 0  # number of components so far, and of components that did not converge
    warned = False  # whether it has warned about components that did not converge
    remedy: ClassVar[str] = "More iterations help."  # advice for components that do not converge

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def name(self) -> str:
        """The registered name."""
        return f"spacy_crf_lab.{type(self).__name__}.v1"

    def check_labels(self, name: str, allowed: TransitionMask) -> None:
        """Check the labels of a component. allowed (TransitionMask): The neighbouring tags that its scheme allows."""

    def warn_unconverged(self, name: str) -> None:
        """Warn once if it has not converged. name (str): The component."""
        if self.n_unconverged and not self.warned:
            self.warned = True
            counts = {"n": self.n_unconverged, "asked": self.n_asked}
            message = Warnings.CRFW041.format(name=name, **counts, inference=self, remedy=self.remedy)
            announcements.warning(message)

    def log_partition(self, problem: Problem) -> Floats:
        """Log partition of each component: float64[C]."""
        return self.expectations(problem, np.zeros(len(problem.firsts))).log_z

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        """Log partitions, and the derivative of their weighted sum, given weights of the components (float64[C])."""
        raise NotImplementedError

    def marginals(self, problem: Problem) -> Floats:
        """Probability of each state at each token: float64[T, S]."""
        return self.expectations(problem, np.ones(len(problem.firsts))).chains.emissions

    def best(self, problem: Problem) -> States:
        """A labelling of all components (int32[1, T]), -1 where there is none; or several labellings to improve."""
        raise NotImplementedError

    def as_chains(self, problem: Problem) -> ChainScores:
        """Independent chains, each with the distribution that the method computes for its sequence."""
        raise NotImplementedError

    def draw(self, problem: Problem, n: int, seed: Seed) -> States:
        """n labellings (int32[n, T])."""
        raise NotImplementedError

    def walk_on(self, problem: Problem, states: States, times: int, random: np.random.Generator) -> States:
        """Labellings (int32[n, T]) that walks reach `times` steps after `states` (int32[n, T], -1 where there is none)."""
        raise NotImplementedError

    def fits(self, part: Problem) -> bool:
        """Whether its tables have room for a problem."""
        return True

    def rank(self, problem: Problem, n: int) -> list[tuple[float, States]]:
        """The n best labellings of a single component, with their scores."""
        raise NotImplementedError
