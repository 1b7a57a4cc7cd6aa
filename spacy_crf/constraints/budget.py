"""The work that a document may take. It is counted and not timed, so an answer is the same whatever the hour and the machine."""

from typing import Optional

_STEP = 1e-9  # seconds, of a sum in a recursion


def seconds_of_recursion(tokens: int, states: int, longest: int) -> float:
    """Estimated seconds of one recursion on a usual machine.

    tokens, states (int), longest (int): Tokens of the longest segment.
    RETURNS (float)
    """
    return _STEP * tokens * states * (states + 4 * longest)


class Budget:
    """Work, in seconds that it takes on a usual machine.

    seconds (float): All there is.
    whole (Budget): What this is a part of, None if it is all.
    """

    def __init__(self, seconds: float, whole: "Optional[Budget]" = None):
        self._whole, self._seconds = whole or self, max(seconds, 1e-9)
        self._spent = 0.0  # of the whole
        self._until = self._whole._spent + self._seconds

    @property
    def left(self) -> float:
        """Seconds; 0 or less when there are none."""
        return self._until - self._whole._spent

    @property
    def share_left(self) -> float:
        """Of all the seconds."""
        return self.left / self._seconds

    def spend(self, seconds: float) -> None:
        """Take work off the whole and all its parts."""
        self._whole._spent += seconds

    def part(self, share: float) -> "Budget":
        """A share of what is left."""
        return Budget(share * self.left, self._whole)
