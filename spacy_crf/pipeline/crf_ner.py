"""Named entities by a linear chain over the tags of a scheme."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from spacy.training import Example

from ..errors import announcements
from ..schemes import MANY_SPANS, choose_scheme, get_scheme
from .annotation.entities import Entities
from .crf_pipe import CRFPipe


class CRFEntityRecognizer(CRFPipe):
    """Finds entities (factory ``crf_ner``). Entities that a Doc has already are kept, and the rest is decoded around them.
    Entities end where a sentence is known to end.

    scheme (str): How they are spelt as tags, "auto" to choose by the training data; the others see `make_crf_ner`.
    """

    meaning = ("scheme",)

    def __init__(self, vocab, model, name="crf_ner", *, scheme: str = "BILUO", **settings):
        self._chooses_scheme = scheme == "auto"
        known = get_scheme("BILUO" if self._chooses_scheme else scheme)
        super().__init__(vocab, model, name, annotation=Entities(known), scheme=known.name, **settings)

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        if not self._chooses_scheme:
            return
        found = (len(ent) for example in get_examples() for ent in example.reference.ents if ent.label_ in self.labels)
        lengths = list(islice(found, MANY_SPANS * len(self.labels)))  # more would say the same
        self.cfg["scheme"] = choose_scheme(len(self.labels), lengths)
        self._labels_changed()
        announcements.info("%s: entities are spelt as %s", self.name, self.cfg["scheme"])

    def _labels_changed(self) -> None:
        self.annotation = Entities(get_scheme(self.cfg["scheme"]))
        super()._labels_changed()

    def _take_settings(self, saved: dict[str, Any]) -> None:
        if self._chooses_scheme:
            self.cfg["scheme"] = saved["scheme"]
        super()._take_settings(saved)
