"""The work that the search for a labelling may take, and estimates of what its parts take."""

from typing import Optional

from ..types import PathScores, SegmentScores

# Seconds on a usual machine; `tests.benchmarks.constraints --only limits` compares them with this machine
CALL = 2e-4  # of one call, whatever its size
READ = 2e-8  # of one token that an automaton reads
_ARC = 2e-9  # of one arc in a graph of states, for each token
_SUM = 1e-9  # of one sum in a recursion
_BUILDING = 400  # tokens whose search takes as long as building the graph


class Budget:
    """Work that the search for a labelling may take, in seconds on a usual machine. The search counts its work and reads no
    clock, so its result does not depend on the load of the machine.

    seconds (float): Largest amount of work.
    whole (Budget): The budget that contains this one, or None.
    """

    def __init__(self, seconds: float, whole: "Optional[Budget]" = None):
        self._whole = whole or self
        self._seconds = max(seconds, 1e-9)  # shares of the budget divide by it
        self._spent = 0.0  # counted in whole budgets only
        self._until = self._whole._spent + self._seconds

    @property
    def left(self) -> float:
        """Remaining seconds; 0 or less if the budget is spent."""
        return self._until - self._whole._spent

    @property
    def share_left(self) -> float:
        """Remaining share of the seconds."""
        return self.left / self._seconds

    def spend(self, seconds: float) -> None:
        """Subtract work from this budget and from the whole budget. seconds (float): The work."""
        self._whole._spent += seconds

    def part(self, share: float) -> "Budget":
        """Set aside a part of the budget.

        share (float): Share of the remaining seconds.
        RETURNS (Budget): A budget whose work counts in this one, too.
        """
        return Budget(share * self.left, self._whole)


def seconds_of_recursion(tokens: int, states: int, longest: int) -> float:
    """Estimate the seconds of one recursion.

    tokens (int), states (int): Numbers of tokens and states.
    longest (int): Tokens of the longest segment.
    RETURNS (float): Seconds on a usual machine.
    """
    return _SUM * tokens * states * (states + 4 * longest)


def seconds_of_decoding(scores: PathScores, states: int) -> float:
    """Estimate the seconds of one recursion over the scores of chains or segments.

    scores (PathScores): The scores.
    states (int): Number of states.
    RETURNS (float): Seconds on a usual machine.
    """
    longest = len(scores.lengths) if isinstance(scores, SegmentScores) else 1
    return seconds_of_recursion(len(scores[0]), states, longest)


def seconds_of_graph(n_arcs: float, n_tokens: int) -> float:
    """Estimate the seconds to build a graph of states and to find its best path.

    n_arcs (float): Number of arcs.
    n_tokens (int): Number of tokens.
    RETURNS (float): Seconds on a usual machine.
    """
    return _ARC * n_arcs * (n_tokens + _BUILDING)
