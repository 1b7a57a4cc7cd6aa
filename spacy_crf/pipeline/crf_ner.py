"""Named entities by a linear chain over the tags of a scheme."""

from ..schemes import get_scheme
from .annotation.entities import Entities
from .crf_pipe import CRFPipe


class CRFEntityRecognizer(CRFPipe):
    """Finds entities (factory ``crf_ner``). Entities that a Doc has already are kept, and the rest is decoded around them.
    Entities end where a sentence is known to end.

    scheme (str): How they are spelt as tags; the others see `make_crf_ner`.
    """

    meaning = ("scheme",)

    def __init__(self, vocab, model, name="crf_ner", *, scheme: str = "BILUO", **settings):
        super().__init__(vocab, model, name, annotation=Entities(get_scheme(scheme)), scheme=scheme, **settings)
