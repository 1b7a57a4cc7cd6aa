"""The time that a document may take."""

import time


class Clock:
    """Runs from when it is made.

    seconds (float): Until the time is up.
    """

    def __init__(self, seconds: float):
        self._seconds = max(seconds, 1e-9)
        self._until = time.perf_counter() + self._seconds

    @property
    def left(self) -> float:
        """Seconds; below 0 when the time is up."""
        return self._until - time.perf_counter()

    @property
    def share_left(self) -> float:
        """Of all the time."""
        return self.left / self._seconds

    def part(self, share: float) -> "Clock":
        """A clock for a share of what is left."""
        return Clock(share * self.left)
