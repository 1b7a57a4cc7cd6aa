"""Components that go on from what they have learned: what that was, and which texts came since."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from spacy.training import Example

from ..models.role import Evidence
from .new_features import TextsMet
from .parts import Component

if TYPE_CHECKING:
    from ..optimizers.anchor import Anchor


class Continuation:
    """What training met before, of which nothing is left but the weights that it led to.

    evidence (Evidence): How often it met what weights belong to.
    """

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        self.since: Optional[Evidence] = None  # the texts that came since, each once
        self._texts = TextsMet()
        self._start: Any = None  # which weights there were, and what they were

    def begin(self, pipe: Component) -> None:
        """Called before anything changes."""
        if self._start is None:
            frame = pipe.training.frame()
            self._start = frame, frame.weights()

    def meet(self, pipe: Component, examples: Iterable[Example]) -> None:
        """Counts texts that come for the first time."""
        new = [example.predicted for example in self._texts.new_of(pipe, examples)]
        if new:
            found = pipe.training.frame().evidence_of(new)
            self.since = found if self.since is None else self.since.plus(found)

    def anchor(self, pipe: Component, batch: Optional[Evidence] = None) -> "Anchor":
        """batch (Evidence): What the next step is about, None for all that came since."""
        from ..optimizers.anchor import Anchor  # prediction does without

        self.begin(pipe)
        return Anchor.of(pipe.training.frame(), self._start, self.evidence, self.since or batch, batch)
