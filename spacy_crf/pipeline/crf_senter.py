"""The component that finds where sentences begin."""

from .. import checks
from ..features.doc_batch import WholeDocs
from .annotation.sentences import SentenceStarts
from .prediction import CRFPipe


class CRFSenter(CRFPipe):
    """Finds the tokens that begin a sentence (factory ``crf_senter``). A sequence is a whole Doc, whatever sentences it has.

    overwrite (bool): See `SentenceStarts`. For other settings see `make_crf_senter`.
    """

    batch_class = WholeDocs

    def __init__(self, vocab, model, name="crf_senter", *, overwrite: bool = False, **settings):
        self.name = name  # which `owner` reads
        checks.flag(self.owner, "overwrite", overwrite)
        annotation = SentenceStarts(overwrite=overwrite)
        super().__init__(vocab, model, name, annotation=annotation, overwrite=overwrite, **settings)
