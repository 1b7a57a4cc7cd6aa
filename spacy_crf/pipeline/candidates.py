"""All spans that another component finds likely, written to ``doc.spans``: for redaction, review, and whatever chooses later."""

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, SpanGroup

from .. import checks
from ..errors import Errors, no_component
from .prediction import CRFPipe, MinProb, check_min_prob, least_of_labels
from .preset_annotation import BLOCKED, FORCED
from .supervision import Keys


class CRFCandidates:
    """Writes every span whose probability is at least `min_prob` to ``doc.spans`` (factory ``crf_candidates``). The spans may
    overlap. The model is that of another component.

    nlp (Language): The pipeline with the other component. For the settings see `make_crf_candidates`.
    RAISES (ValueError): CRF020 for settings that are not possible.
    """

    def __init__(self, nlp: Language, name: str, *, component: str, spans_key: str, min_prob: MinProb):
        owner = f"Component '{name}'"
        self.name = name
        self.component = checks.text(owner, "component", component)
        self.spans_key = checks.text(owner, "spans_key", spans_key)
        self.min_prob = check_min_prob(owner, min_prob)
        self._nlp = nlp

    def __call__(self, doc: Doc) -> Doc:
        pipe = self.source()
        least = least_of_labels(self.name, self.min_prob, pipe.labels)
        least = np.zeros(len(pipe.labels)) if least is None else least
        of_label = dict(zip(pipe.labels, least.tolist()))
        likely = pipe.span_probabilities(doc, min(of_label.values(), default=1.0))
        found = [(span, p) for span, p in likely if p >= of_label[span.label_]]
        found.sort(key=lambda item: (item[0].start, item[0].end))
        spans, scores = [span for span, _ in found], {"scores": np.array([p for _, p in found], dtype=np.float32)}
        doc.spans[self.spans_key] = SpanGroup(doc, name=self.spans_key, spans=spans, attrs=scores)
        return doc

    def source(self) -> CRFPipe:
        """The other component. RAISES (ValueError): CRF710 if it does not fit, CRF427 if it uses the key of the spans."""
        found = dict(self._nlp.components).get(self.component)
        if not isinstance(found, CRFPipe):
            raise no_component("that gives probabilities of spans", self._nlp.component_names, self.component)
        check_spans_key(self.name, self.spans_key, found)
        return found


def check_spans_key(name: str, key: str, pipe: CRFPipe) -> None:
    """RAISES (ValueError): CRF427 for a key of doc.spans that a component reads or writes."""
    if key in (BLOCKED, FORCED, *Keys.of(pipe), pipe.cfg.get("spans_key")):
        raise ValueError(Errors.CRF427.format(name=name, key=key, component=pipe.name))
