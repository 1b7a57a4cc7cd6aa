"""The components that label tokens, each with its annotation: named entities by chains or segments, and one label per token."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from spacy.tokens.underscore import Underscore
from spacy.training import Example

from .. import checks
from ..errors import Errors, announcements
from ..schemes import MANY_SPANS, SEGMENTS, choose_scheme, get_scheme
from .annotation.annotation import Annotation
from .annotation.entities import Entities
from .annotation.tags import BUILT_IN, TokenTags
from .prediction import CRFPipe
from .scorers import score_tags


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
        self.cfg["space_edges"] = saved.get("space_edges", False)  # earlier versions saved none
        super()._take_settings(saved)


class CRFTagger(CRFPipe):
    """Gives every token one label (factory ``crf_tagger``).

    attribute (str), overwrite (bool), neg_prefix (str): See `TokenTags`. For other settings see `make_crf_tagger`.
    """

    meaning = ("attribute",)

    def __init__(
        self,
        vocab,
        model,
        name="crf_tagger",
        *,
        attribute: str = "tag",
        overwrite: bool = False,
        neg_prefix: str = "!",
        **settings,
    ):
        self.name = name
        checks.flag(self.owner, "overwrite", overwrite)
        checks.expect(isinstance(neg_prefix, str), self.owner, "neg_prefix", neg_prefix, 'text, "" for none')
        annotation = self.annotation_of(attribute, overwrite=overwrite, neg_prefix=neg_prefix)
        super().__init__(
            vocab, model, name, annotation=annotation, attribute=attribute, overwrite=overwrite, **settings
        )

    def annotation_of(self, attribute: Any, **how: Any) -> Annotation:
        """The annotation of an attribute. RAISES (ValueError): CRF020, or CRF406 for an attribute that tokens do not have."""
        checks.text(self.owner, "attribute", attribute)
        if attribute not in BUILT_IN and attribute not in Underscore.token_extensions:
            known = ", ".join(sorted(Underscore.token_extensions)) or "none"
            raise ValueError(Errors.CRF406.format(name=self.name, attribute=attribute, known=known))
        return TokenTags(attribute, **how)

    def score(self, examples: Iterable[Example], **kwargs) -> dict:
        if self.scorer is score_tags:
            kwargs["attribute"] = self.cfg["attribute"]
        return super().score(examples, **kwargs)


class SemiCRFEntityRecognizer(CRFPipe):
    """Finds entities, each scored as a whole (factory ``semicrf_ner``). Entities that a Doc has already are kept, and the rest is
    decoded around them. Entities end where a sentence is known to end. For the settings see `make_semicrf_ner`.
    """

    labelled = "segments"

    def __init__(self, vocab, model, name="semicrf_ner", **settings):
        super().__init__(vocab, model, name, annotation=Entities(SEGMENTS), **settings)
