"""Named entities as segments: the semi-Markov component."""

from collections.abc import Mapping

from ..schemes import SEGMENTS
from .annotation.entities import Entities
from .crf_pipe import CRFPipe


class SemiCRFEntityRecognizer(CRFPipe):
    """Finds entities, each scored as a whole (factory ``semicrf_ner``). Entities that a Doc has already are kept, and the rest is
    decoded around them. Entities end where a sentence is known to end. For the settings see `make_semicrf_ner`.
    """

    decodings: Mapping[str, str] = {"SegmentScores": "semi_markov:SegmentDecoding"}
    labelled = "segments"

    def __init__(self, vocab, model, name="semicrf_ner", **settings):
        super().__init__(vocab, model, name, annotation=Entities(SEGMENTS), **settings)
