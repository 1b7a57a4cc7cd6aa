"""The training data of a component with its features looked up, kept from step to step."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional

import numpy as np
from spacy.training import Example
from thinc.api import Optimizer

from ..errors import Errors
from ..features.token_columns import ANNOTATION
from ..models.node import AnnotatedDocs, Evidence
from ..models.objective import CorpusObjective, TiedObjective
from ..models.sequences import SequencesObjective
from . import supervision
from .labels import LabelPipe
from .supervision import Keys

if TYPE_CHECKING:
    from ..optimizers.objective import CRFOptimizer


# How optimizers ask for a corpus: to evaluate all of it, or to learn from one sequence after the other
VIEWS = {"objective": CorpusObjective, "sequences": SequencesObjective}


def takes_objective(optimizer: Optional[Optimizer]) -> bool:
    if not hasattr(optimizer, "fits"):
        return False  # one of thinc's: no need to import ours, without which prediction starts sooner
    from ..optimizers.objective import CRFOptimizer  # prediction does without

    return isinstance(optimizer, CRFOptimizer)


def view_for(optimizer: Optimizer) -> str:
    """Which of the model's views of a corpus an optimizer asks for."""
    return "sequences" if optimizer.wants_sequences else "objective"


class PreparedCorpus:
    """The objective of a corpus, kept from step to step. If `initialize` has read it, every batch stands for all of it.

    examples (Iterable[Example]): Read once, block by block, and not kept.
    kind (str): Which of the model's views of a corpus: "objective" or "sequences".
    """

    is_initial = True  # whether `initialize` has read it

    def __init__(self, pipe: LabelPipe, examples: Iterable[Example], kind: str):
        self._pipe = pipe
        self.kind = kind
        self.evidence: Optional[Evidence] = None  # of the corpus, where a model goes on from what it has learned
        self.n_tokens = 0
        self._knows = self._of_pipe()
        corpus = (self._counted(pipe.training.data(block, kind)) for block in pipe.training.blocks(examples))
        view = VIEWS[kind]
        if view is CorpusObjective and pipe.training.continuation is None:
            view = TiedObjective  # where a model goes on, each weight does from where it is
        self.objective = view(pipe.model, pipe.loss, corpus)
        if pipe.training.continuation is not None:
            from ..optimizers.anchor import Anchored  # prediction does without

            anchor = pipe.training.continuation.anchor(pipe, self.evidence)
            if kind == "objective":
                self.objective = Anchored(self.objective, anchor)
            else:
                self.objective.anchor = anchor

    def _counted(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        self.n_tokens += sum(map(len, batch.docs))
        if self._pipe.training.continuation is not None:
            found = self._pipe.training.frame().evidence_of(batch.docs)
            self.evidence = found if self.evidence is None else self.evidence.plus(found)
        return batch

    def _of_pipe(self) -> tuple:
        """What it has of the component."""
        return self._pipe.sparse_features, self._pipe.rules() if self._pipe.rules_train else None

    @property
    def fits_pipe(self) -> bool:
        """Whether the component still has the features, the tags and the rules that it had then."""
        return all(before is now for before, now in zip(self._knows, self._of_pipe()))

    def holds(self, examples: list[Example]) -> bool:
        """Whether a step with these examples is about this corpus.

        RAISES (ValueError): CRF411 if the component has got other labels, features or rules since.
        """
        if not self.fits_pipe:
            raise ValueError(Errors.CRF411.format(name=self._pipe.name))
        return True

    def before_step(self, optimizer: "CRFOptimizer") -> None:
        """Called before each step."""

    def after_step(self, optimizer: "CRFOptimizer") -> None:
        """Called after each step."""


class PreparedBatch(PreparedCorpus):
    """A batch, as long as it is made of the same examples with the same annotation.

    `spacy train` shuffles the examples and copies the predicted Docs, but the reference Docs stay the same objects.
    """

    is_initial = False

    def __init__(self, pipe: LabelPipe, examples: list[Example], kind: str):
        super().__init__(pipe, examples, kind)
        self._place = {id(example.reference): n for n, example in enumerate(examples)}
        self._references = [example.reference for example in examples]  # alive, so that the ids stay theirs
        self._check = self._fingerprint(examples)
        if kind == "sequences":
            self._doc_starts = pipe.decoding.bounds([example.predicted for example in examples])
            self.objective.describe_token = self._describe

    def holds(self, examples: list[Example]) -> bool:
        """Whether the examples are those of this batch, in any order."""
        places = {self._place.get(id(example.reference), -1) for example in examples}
        if len(examples) != len(self._references) or places != set(range(len(self._references))):
            return False
        if self._pipe.asks_functions or not self.fits_pipe:
            return False
        return self._check == self._fingerprint(sorted(examples, key=lambda eg: self._place[id(eg.reference)]))

    def _describe(self, token: int) -> str:
        doc = self._references[int(np.searchsorted(self._doc_starts, token, side="right")) - 1]
        return f"a sequence of the document '{doc.text[:40]}...'"

    def _fingerprint(self, examples: list[Example]) -> int:
        return supervision.fingerprint(self._pipe.annotation, examples, Keys.of(self._pipe), ANNOTATION)
