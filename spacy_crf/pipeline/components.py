"""The components that find named entities, by chains or by segments."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from spacy.training import Example

from ..errors import announcements
from ..schemes import MANY_SPANS, SEGMENTS, choose_scheme, get_scheme
from .annotation.entities import Entities
from .prediction import CRFPipe


class CRFEntityRecognizer(CRFPipe):
    """Finds entities (factory ``crf_ner``). Entities that a Doc has already are kept, and the rest is decoded around them.
    Entities end where a sentence is known to end.

    scheme (str): The tag scheme, "auto" to choose one by the training data. For other settings see `make_crf_ner`.
    """

    annotation: Entities
    meaning = ("scheme",)

    def __init__(self, vocab, model, name="crf_ner", *, scheme: str = "BILUO", **settings):
        self._chooses_scheme = scheme == "auto"
        known = get_scheme("BILUO" if self._chooses_scheme else scheme)
        # Only imported models set space_edges: they keep the answers of their program
        settings = {"annotation": None, "scheme": known.name, "space_edges": False, **settings}
        super().__init__(vocab, model, name, **settings)

    def make_annotation(self) -> Entities:
        """The annotation by the present settings."""
        return Entities(get_scheme(self.cfg["scheme"]), space_edges=self.cfg["space_edges"])

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        if not self._chooses_scheme:
            return
        spans = (span for example in get_examples() for span in self.annotation.gold_spans(example.reference))
        found = (len(span) for span in spans if span.label_ in self.labels)
        lengths = list(islice(found, MANY_SPANS * len(self.labels)))  # a larger number would choose the same scheme
        self.cfg["scheme"] = choose_scheme(len(self.labels), lengths)
        self._labels_changed()
        announcements.info("%s: entities are spelt as %s", self.name, self.cfg["scheme"])

    def _labels_changed(self) -> None:
        self.annotation = self.make_annotation()
        super()._labels_changed()

    def _take_settings(self, saved: dict[str, Any]) -> None:
        if self._chooses_scheme:
            self.cfg["scheme"] = saved["scheme"]
        self.cfg["space_edges"] = saved["space_edges"]
        super()._take_settings(saved)


class SemiCRFEntityRecognizer(CRFPipe):
    """Finds entities, each scored as a whole (factory ``semicrf_ner``). Entities that a Doc has already are kept, and the rest is
    decoded around them. Entities end where a sentence is known to end. For the settings see `make_semicrf_ner`.
    """

    labelled = "segments"

    def __init__(self, vocab, model, name="semicrf_ner", **settings):
        super().__init__(vocab, model, name, annotation=Entities(SEGMENTS), **settings)
