"""What was found out once, for all that ask again."""

from collections.abc import Callable, Hashable
from typing import Any


class Cache(dict):
    """It starts anew when it is full. Threads that share it may find out the same twice, nothing worse.

    most (int): Answers that are kept.
    """

    def __init__(self, most: int):
        super().__init__()
        self._most = most

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The answer to a question, which is made if it is not known."""
        try:
            return self[key]
        except KeyError:
            made = make()
        if len(self) >= self._most:
            self.clear()
        self[key] = made
        return made
