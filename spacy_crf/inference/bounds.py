"""What log partitions lie between, where they are not known exactly."""

from ..types import Floats
from .belief_propagation import BeliefPropagation
from .mean_field import MeanField
from .ties import Problem

_LOWER = MeanField(iterations=200, tolerance=1e-6)
_UPPER = BeliefPropagation(iterations=500, damping=0.3, tolerance=1e-6, tree_reweighted=True)


def bounds(problem: Problem) -> tuple[Floats, Floats]:
    """Lower and upper bound of the log partition of each component: float64[C] each."""
    return _LOWER.log_partition(problem), _UPPER.log_partition(problem)
