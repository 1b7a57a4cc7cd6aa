"""All spans that another component finds likely, written to ``doc.spans``: for redaction, review, and whatever chooses later."""

from collections.abc import Iterable, Iterator
from typing import Union

import numpy as np
from spacy.language import Language
from spacy.pipeline import Pipe
from spacy.tokens import Doc, Span, SpanGroup

from .. import checks
from ..errors import Errors, no_component
from .annotation.entities import Keys
from .pipe import batches
from .prediction import CRFPipe, label_thresholds, read_min_prob, whole_question
from .preset_annotation import BLOCKED, FORCED
from .probabilities import ask

Likely = list[tuple[Span, float]]


class LaterPipe(Pipe):
    """Base of components without a model of their own, which read another component of the pipeline.

    nlp (Language): The pipeline with the other component.
    name (str): The component.
    component (str): The other component.
    """

    def __init__(self, nlp: Language, name: str, component: str):
        self.name = name
        self._nlp = nlp
        self.component = checks.text(f"Component '{name}'", "component", component)

    def __call__(self, doc: Doc) -> Doc:
        self._write([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate a stream of Docs in batches of at most `batch_size` Docs."""
        handle_error = self.get_error_handler()
        for docs in batches(self.name, stream, batch_size):
            try:
                self._write(docs)
                yield from docs
            except Exception as error:
                handle_error(self.name, self, docs, error)

    def _write(self, docs: list[Doc]) -> None:
        """Annotate Docs."""
        raise NotImplementedError


class CRFCandidates(LaterPipe):
    """Writes every span whose probability is at least `min_prob` to ``doc.spans`` (factory ``crf_candidates``). The spans may
    overlap. The model is that of another component.

    nlp (Language): The pipeline with the other component. For the settings see `make_crf_candidates`.
    RAISES (ValueError): CRF020 for settings that are not possible.
    """

    def __init__(
        self, nlp: Language, name: str, *, component: str, spans_key: str, min_prob: Union[float, checks.ByLabel]
    ):
        super().__init__(nlp, name, component)
        owner = f"Component '{name}'"
        self.spans_key = checks.text(owner, "spans_key", spans_key)
        self.min_prob = read_min_prob(owner, min_prob)

    def _write(self, docs: list[Doc]) -> None:
        """Write the spans that reach the threshold of their label, with their probabilities as "scores", to ``doc.spans``."""
        pipe = self.source()
        min_probs = label_thresholds(self.name, self.min_prob, pipe.labels)
        thresholds = dict.fromkeys(pipe.labels, 0.0)
        if min_probs is not None:
            thresholds.update(zip(pipe.labels, min_probs.tolist()))
        # Chains for several levels of a label cannot be asked one by one: their spans have one probability on any level
        has_levels = sum(len(chain.labels) for chain in pipe.chains) > len(pipe.labels)
        sources = [pipe] if has_levels else pipe.chains
        likely: list[Likely] = [[] for _ in docs]
        for source in sources:
            for of_doc, found in zip(likely, _spans_of_docs(source, docs, thresholds)):
                of_doc += [(span, p) for span, p in found if p >= thresholds[span.label_]]
        for doc, spans in zip(docs, likely):
            # In the order of the text, whatever chain has found a span
            spans.sort(key=lambda item: (item[0].start, item[0].end))
            scores = np.array([p for _, p in spans], dtype=np.float32)
            doc.spans[self.spans_key] = SpanGroup(
                doc, name=self.spans_key, spans=[span for span, _ in spans], attrs={"scores": scores}
            )

    def source(self) -> CRFPipe:
        """The other component. RAISES (ValueError): CRF710 if it does not fit, CRF427 if it uses the key of the spans."""
        source = dict(self._nlp.components).get(self.component)
        if not isinstance(source, CRFPipe):
            raise no_component("that gives probabilities of spans", self._nlp.component_names, self.component)
        check_spans_key(self.name, self.spans_key, source)
        return source


def _spans_of_docs(pipe: CRFPipe, docs: list[Doc], thresholds: dict[str, float]) -> list[Likely]:
    """The spans of each Doc with their probabilities, as `span_probabilities` gives them, from the lowest threshold on."""
    lowest = min((thresholds[label] for label in pipe.labels), default=1.0)
    is_restricted = any(key in doc.spans for doc in docs if doc.spans for key in (BLOCKED, FORCED))
    is_single = pipe.chains[0] is pipe
    # Approximate probabilities of a text may depend on the other texts of a batch
    is_exact = "exact" in pipe.decoding.structure.answers
    if not is_single or is_restricted or pipe.rules() is not None or not is_exact:
        return [pipe.span_probabilities(doc, lowest) for doc in docs]
    batch = pipe.require_ready(docs)  # all texts at once, which is 30 times as fast for short texts
    # Present entities are ignored, as by `span_probabilities`
    question = whole_question(pipe.parts(), batch, pipe.model.predict(batch))
    segments, probabilities = ask(question).likely_spans(lowest)
    number = np.searchsorted(batch.bounds, segments.start, side="right") - 1  # of the Doc of each span
    spans: list[Likely] = [[] for _ in docs]
    shift = batch.bounds[number]
    labels = pipe.labels
    rows = np.stack([number, segments.start - shift, segments.end - shift, segments.label], axis=1)
    for (n, start, end, label), p in zip(rows.tolist(), probabilities.tolist()):
        spans[n].append((Span(docs[n], start, end, label=labels[label]), p))
    return spans


def check_spans_key(name: str, key: str, pipe: CRFPipe) -> None:
    """RAISES (ValueError): CRF427 in the name of a component for a key of doc.spans that another component (`pipe`) reads or
    writes."""
    if key in (BLOCKED, FORCED, *Keys.of(pipe), pipe.cfg.get("spans_key")):
        raise ValueError(Errors.CRF427.format(name=name, key=key, component=pipe.name))
