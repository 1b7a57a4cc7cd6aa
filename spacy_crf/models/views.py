"""The views of a corpus that optimizers ask for."""

from collections.abc import Iterable
from typing import Union

from thinc.api import Model

from ..losses.clamped import LabelledLoss
from .objective import CorpusObjective
from .role import AnnotatedDocs
from .sequences import SequencesObjective


def view_corpus(
    kind: str, model: Model, loss: LabelledLoss, corpus: Iterable[AnnotatedDocs]
) -> Union[CorpusObjective, SequencesObjective]:
    """A corpus, in batches that are read once, as optimizers ask for it.

    kind (str): "objective" for those that evaluate all of it, "sequences" for those that learn from one after the other.
    """
    return {"objective": CorpusObjective, "sequences": SequencesObjective}[kind](model, loss, corpus)
