"""Texts of later updates: their new labels and features, and how often a model that continues training has met known features."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from spacy.attrs import IDS
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..models.node import Evidence
from ..schemes import OUTSIDE
from . import supervision
from .annotation.entities import Keys
from .pipe import LearningPipe
from .saving import parameters

if TYPE_CHECKING:
    from thinc.types import FloatsXd

    from ..optimizers.anchor import Anchor
    from .prediction import CRFPipe

SURE = 0.9  # probability from which a span that a component finds counts as annotated
_POSSIBLE = 0.05  # probability from which tokens of a span count as not annotated
_MOST_TEXTS = 1000  # in which contradictions are looked for


# ------------------------------------------------------------------------------- texts annotated for some labels alone


def complete(nlp: Language, pipe: Any, examples: Iterable[Example], labels: Collection[str]) -> None:
    """Add to the annotation of new texts, in which annotators looked for some labels alone, what a trained component knows of its
    other labels: otherwise the texts would teach that there are none. Spans of which it is sure count as annotated, and tokens
    of other likely spans as not annotated. The reference Docs are changed.

    nlp (Language): The pipeline of the component, whose earlier components annotate the texts.
    pipe (CRFPipe): A component that finds entities, or spans in ``doc.spans``.
    examples (Iterable[Example]): The new texts.
    labels (Collection[str]): The labels that annotators looked for.
    """
    for example in examples:
        doc = example.reference
        annotated = [*pipe.annotation.gold_spans(doc)]
        likely = [
            (span, probability)
            for span, probability in _likely_spans(nlp, pipe, doc, _POSSIBLE)
            if span.label_ not in labels and _is_outside(pipe, span, annotated)
        ]
        sure = [span for span, probability in likely if probability >= SURE]
        if sure and "spans_key" in pipe.cfg:
            doc.spans[pipe.cfg["spans_key"]] = [*annotated, *sure]
        elif likely and "spans_key" not in pipe.cfg:
            # Tokens of likely spans that are not sure are not annotated: neither a span nor outside
            known = {token.i for token in chain.from_iterable(sure)}
            spans, _ = zip(*likely)
            tokens = {token.i for token in chain.from_iterable(spans)}
            doc.set_ents(sure, missing=[doc[i : i + 1] for i in sorted(tokens - known)], default="unmodified")


def contradicted(nlp: Language, pipe: Any, examples: Iterable[Example]) -> dict[str, list[Span]]:
    """Find labels that new texts seem to leave out: those of which a trained component is sure of more spans at tokens without
    annotation than the texts have annotated.

    nlp (Language), pipe (CRFPipe): See `complete`.
    examples (Iterable[Example]): The new texts.
    """
    found: dict[str, list[Span]] = {}
    counts: Counter[str] = Counter()
    for example in islice(examples, _MOST_TEXTS):
        annotated = [*pipe.annotation.gold_spans(example.reference)]
        counts.update(span.label_ for span in annotated)
        for span, _ in _likely_spans(nlp, pipe, example.reference, SURE):
            if _is_outside(pipe, span, annotated):
                found.setdefault(span.label_, []).append(span)
    return {label: spans for label, spans in found.items() if len(spans) > counts[label]}


def _likely_spans(nlp: Language, pipe: "CRFPipe", reference: Doc, least: float) -> list[tuple[Span, float]]:
    """The spans that a component finds in the words of a reference Doc with at least this probability."""
    if not len(reference):
        return []
    # Without the annotation of the reference, which a component would keep
    doc = Doc(nlp.vocab, words=[t.text for t in reference], spaces=[bool(t.whitespace_) for t in reference])
    for name, earlier in nlp.pipeline:
        if name == pipe.name:
            break
        doc = earlier(doc)
    found = pipe.span_probabilities(doc, least)
    return [(Span(reference, span.start, span.end, label=span.label_), p) for span, p in found]


def _is_outside(pipe: "CRFPipe", span: Span, annotated: Iterable[Span]) -> bool:
    """Whether the annotation has nothing where this span is."""
    if any(span.start < other.end and other.start < span.end for other in annotated):
        return False
    if "spans_key" in pipe.cfg:
        return pipe.cfg["spans_key"] in span.doc.spans
    return all(token.ent_iob == OUTSIDE for token in span)


class Continuation:
    """What a model knows about earlier training whose data is gone.

    evidence (Evidence): How often earlier training met the feature, token or sequence of each weight.
    """

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        self.since: Optional[Evidence] = None  # evidence of the texts since then, each counted once
        self.met: set[int] = set()  # fingerprints of these texts
        # Tuple[Weights, Floats]: the layout and the values of the weights when training continued
        self._start: Any = None

    def begin(self, pipe: LearningPipe) -> None:
        """Store the weights of a component (`pipe`), before anything changes."""
        if self._start is None:
            frame = pipe.training.frame()
            self._start = frame, frame.weights()

    def count(self, pipe: LearningPipe, new: list[Example]) -> None:
        """Count new texts that a component (`pipe`) learns from."""
        if new:
            evidence = pipe.training.frame().evidence_of([example.predicted for example in new])
            self.since = evidence if self.since is None else self.since.plus(evidence)

    def anchor(self, pipe: LearningPipe, batch: Optional[Evidence] = None) -> "Anchor":
        """The anchor for the next step of a component.

        pipe (LearningPipe): The component.
        batch (Optional[Evidence]): Evidence of the texts in the step; None for all texts since training continued.
        """
        from ..optimizers.anchor import Anchor  # prediction does not need it

        self.begin(pipe)
        return Anchor.of(pipe.training.frame(), self._start, self.evidence, self.since or batch, batch)


def proximal_step_of(
    pipe: LearningPipe, optimizer: Any, before: "dict[tuple[int, str], FloatsXd]"
) -> Callable[[int], None]:
    """Make the function that, after a step of an optimizer, moves the weights of a component (`pipe`), and the averages of the
    optimizer, towards the weights of earlier training.

    optimizer (Optimizer): An optimizer of thinc, or a function that is called like one.
    before (Dict[Tuple[int, str], FloatsXd]): The weights before the step, by node and parameter.
    RETURNS (Callable[[int], None]): Takes the number of sequences in the step.
    """
    params = parameters(pipe.model)
    start = pipe.training.frame().weights()
    gradients: list = [node.get_grad(name) for node, name in params if node.has_grad(name)]
    length = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    averages = {}
    if optimizer.averages is not None:
        # Averages start from zero, as in thinc
        averages = {key: optimizer.averages.get(key, 0.0 * weights) + 0.0 for key, weights in before.items()}

    def step(n_sequences: int) -> None:
        anchor = pipe.training.continuation.anchor(pipe)
        # The length of the step over that of the gradient stands for the rate of the optimizer, which may have a rate for each
        # weight and does not expose them
        rate = float(np.linalg.norm(anchor.now - start)) / length if length else 0.0
        moves = pipe.training.frame().parameters(anchor.draw_back(anchor.now, rate, n_sequences) - anchor.now)
        for node, name in params:
            key = (node.id, name)
            if key in moves:
                weights = node.get_param(name) + moves[key]
                node.set_param(name, weights)
                if key in averages:
                    node.ops.update_averages(averages[key], weights, optimizer.nr_update[key])
                    optimizer.averages[key] = averages[key]

    return step


def new_examples(pipe: LearningPipe, examples: Iterable[Example], met: set[int]) -> list[Example]:
    """The examples whose text, with its annotation, is new to a component.

    pipe (LearningPipe): The component.
    examples (Iterable[Example]): The texts.
    met (Set[int]): Fingerprints of earlier texts, to which those of the new texts are added.
    """
    read = [IDS[name.upper()] for name in pipe.token_attributes]
    keys = Keys.of(pipe)
    new = []
    for example in examples:
        check = hash((example.reference.text, supervision.fingerprint(pipe.annotation, [example], keys, read)))
        if check not in met:
            met.add(check)
            new.append(example)
    return new
