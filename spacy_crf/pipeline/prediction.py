"""From Docs to their tags, in batches.

Without rules and probabilities prediction is one `viterbi` and nothing else; the rest is imported when it is needed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span

from .. import checks
from ..errors import Errors, shown
from ..features.doc_batch import DocBatch, read_attributes
from ..schemes import Segments
from ..types import Floats
from .decoding import Decoding, States
from .parts import Parts

DECODERS = ("viterbi", "beam", "posterior", "spans", "labelling")
# A batch. Tokenizing and predicting take turns, and each finds the caches full of the other's: that speaks for large batches. But
# the scores of their tokens should stay in the cache, and each Doc is a dozen containers: those that outlive two searches of
# Python's garbage collector count as old, and with a quarter more of old objects it searches all that spaCy has loaded. With 512
# Docs, and those before them still there, that took a fifth of the time of short texts.
_MOST_TOKENS = 1 << 14
_MOST_DOCS = 256
_SPANS = attrgetter("spans.data")  # the dict inside: one Python call less for each Doc


class Prediction(NamedTuple):
    """Tags of the Docs of a batch, laid end to end."""

    tags: States  # [T]
    starts: NDArray[np.int64]  # [B + 1] of the sequences
    doc_starts: NDArray[np.int64]  # [D + 1]
    preset: Optional[NDArray[np.uint64]]  # what `Annotation.preset` gave
    probabilities: Optional[Floats] = None  # [N] of the spans, where they are asked for


def predict(parts: Parts, docs: DocBatch, scores: Any = None) -> Prediction:
    """Best valid tags of a batch of Docs that keep the rules, around the annotation they have already.

    scores: What the model says of the Docs; None to ask it.
    """
    scores = parts.model.predict(docs) if scores is None else scores
    decoding, settings, rules = parts.decoding, parts.settings, parts.rules
    starts, bounds, clamp, question = scores.starts, docs.bounds, None, None
    preset = parts.annotation.preset(docs)
    if preset is not None:
        parts.annotation.look_for_lost(parts, docs, scores, preset)
    if preset is not None or any(map(_SPANS, docs)):
        from .preset_annotation import restrict  # most prediction does without

        question = restrict(parts, docs, scores, preset)
        if question is not None:
            docs, scores, clamp = question[:3]
    probabilities = None
    least = least_of_labels(parts.name, settings["min_prob"], parts.labels) if settings["min_prob"] else None
    if rules is not None or settings["decode"] in decoding.searches:
        from .probabilities import predict as predict_ruled

        tags, probabilities = predict_ruled(parts, docs, scores, clamp, least)
    elif settings["confidence"] or least is not None:
        tags, probabilities = decoding.best_with_probabilities(scores, clamp)
    else:
        tags = decoding.best_tags(scores, clamp)
    if least is not None:
        known = None if question is None else question.settled
        tags, probabilities = _likely(tags, probabilities, least, scores.starts, decoding, known)
    if question is not None:
        tags = question.tags(tags)
    return Prediction(tags, starts, bounds, preset, probabilities if settings["confidence"] else None)


def _likely(tags: States, probabilities: Floats, least: Floats, starts, decoding: Decoding, known):
    """Tags and probabilities of the spans that are at least as probable as their label asks for: tokens of the others are
    outside, or stay without a tag. Spans of known tokens (bool[T], None for none) stay."""
    begin, end, label = decoding.segments(tags, starts)
    unlikely = probabilities < least[label]
    if known is not None:
        unlikely = unlikely & ~known[begin]
    covered = _covered(begin[unlikely], end[unlikely], len(tags))
    return np.where(covered, decoding.outside, tags).astype(np.int32), probabilities[~unlikely]


def _covered(begin: NDArray[np.int64], end: NDArray[np.int64], n_tokens: int) -> NDArray[np.bool_]:
    """Which tokens some spans cover."""
    edges = np.zeros(n_tokens + 1, dtype=np.int64)
    np.add.at(edges, begin, 1)
    np.add.at(edges, end, -1)
    return np.cumsum(edges[:-1]) > 0


def batches(name: str, docs: Iterable[Doc], batch_size: int) -> Iterator[list[Doc]]:
    """Batches of at most `batch_size` Docs, each ended by the Doc that makes it large enough.

    name (str): The component, for the message.
    RAISES (ValueError): CRF479 if something in `docs` is no Doc.
    """
    batch, size, most = [], 0, min(batch_size, _MOST_DOCS)
    for doc in only_docs(name, docs):
        batch.append(doc)
        size += len(doc)
        if len(batch) == most or size >= _MOST_TOKENS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def only_docs(name: str, docs: Iterable[Doc]) -> Iterator[Doc]:
    """The Docs, checked one by one. RAISES (ValueError): CRF479 for anything else."""
    if not isinstance(docs, Iterable):
        raise ValueError(Errors.CRF479.format(name=name, value=shown(docs)))
    for doc in docs:
        if not isinstance(doc, Doc):
            raise ValueError(Errors.CRF479.format(name=name, value=shown(doc)))
        yield doc


def check_doc(name: str, doc: Any) -> None:
    """RAISES (ValueError): CRF479 for anything but a Doc."""
    if not isinstance(doc, Doc):
        raise ValueError(Errors.CRF479.format(name=name, value=shown(doc)))


def labelling(name: str, doc: Doc, spans: Iterable[Span]) -> list[tuple[int, int, str]]:
    """First token, the one behind the last, and label of spans that are to be one labelling of a Doc, in their order.

    spans (Iterable[Span]): Of this Doc, or of another one with the same words.
    RAISES (ValueError): If they overlap, or are no spans of it.
    """
    found = []
    if not isinstance(spans, Iterable) or isinstance(spans, (Doc, Span)):
        raise ValueError(Errors.CRF461.format(name=name, value=shown(spans)))
    for span in spans:
        if not isinstance(span, Span) or not len(span):
            raise ValueError(Errors.CRF461.format(name=name, value=shown(span)))
        if span.doc is not doc and [token.text for token in span.doc] != [token.text for token in doc]:
            raise ValueError(
                Errors.CRF462.format(name=name, span=span.text, other=span.doc.text[:40], doc=doc.text[:40])
            )
        found.append((span.start, span.end, span.label_))
    found.sort()
    for one, other in pairwise(found):
        if other[0] < one[1]:
            one, other = (
                f"'{doc[start:end].text}' ({label}, tokens {start} to {end})" for start, end, label in (one, other)
            )
            raise ValueError(Errors.CRF409.format(name=name, one=one, other=other))
    return found


# ------------------------------------------------------------------------------------------------------- probabilities


def tell_probabilities(pipes: Iterable[Any]) -> None:
    """From now on each span that they find has its ``crf_prob``."""
    for pipe in pipes:
        pipe.cfg["confidence"] = True


def write_probabilities(docs: Iterable[Doc], prediction: Prediction, decoding: Decoding, present: Segments) -> None:
    """Sets ``span._.crf_prob`` of the spans found. Those that were present keep what they have, and are certain if that is
    nothing."""
    bounds = prediction.doc_starts
    begin, end, _ = decoding.segments(prediction.tags, prediction.starts)
    probabilities = prediction.probabilities
    if len(present.start):
        found = ~_covered(present.start, present.end, len(prediction.tags))[begin]
        begin, end, probabilities = begin[found], end[found], probabilities[found]
        _write(docs, bounds, present.start, present.end, np.ones(len(present.start)), dict.setdefault)
    _write(docs, bounds, begin, end, probabilities, dict.__setitem__)


def _write(docs: Iterable[Doc], bounds, begin, end, probabilities: Floats, put: Callable) -> None:
    """What span._.set does, without Spans and Tokens, which took longer than all inference.

    put (Callable): Sets an item of a dict.
    """
    counts = np.diff(np.searchsorted(begin, bounds))
    having = [doc for doc, n_spans in zip(docs, counts.tolist()) if n_spans]
    offset, length = read_attributes(having, [IDX, LENGTH]).T.astype(np.int64)
    left_out = np.cumsum(np.where(counts > 0, 0, np.diff(bounds)))
    shift = np.repeat(left_out, counts)
    first, last = begin - shift, end - shift - 1
    found = zip(offset[first].tolist(), (offset[last] + length[last]).tolist(), probabilities.tolist())
    for doc, n_spans in zip(having, counts[counts > 0].tolist()):
        user_data = doc.user_data
        for start, stop, probability in islice(found, n_spans):
            put(user_data, ("._.", "crf_prob", start, stop), probability)


OTHERS = "*"  # the labels that are not named
MinProb = Union[float, dict[str, float]]


def check_min_prob(owner: str, value: Any) -> MinProb:
    """RAISES (ValueError): CRF020 for what is no probability, nor a table of them."""
    if not isinstance(value, Mapping):
        return checks.number(owner, "min_prob", value, most=1.0)
    table = checks.table(owner, "min_prob", value, "probabilities")
    return {label: checks.number(owner, f"min_prob of {label}", least, most=1.0) for label, least in table.items()}


def least_of_labels(name: str, value: MinProb, labels: Sequence[str]) -> Optional[Floats]:
    """The least probability of each label (float64[L]), None where nothing is too improbable.

    RAISES (ValueError): CRF020 for what is no probability, CRF846 for labels that the component does not have.
    """
    value = check_min_prob(f"Component '{name}'", value)
    if not isinstance(value, dict):
        return np.full(len(labels), value) if value > 0.0 else None
    checks.labels(f"Component '{name}', min_prob ('*' stands for all other labels)", value, [*labels, OTHERS])
    least = np.array([value.get(label, value.get(OTHERS, 0.0)) for label in labels])
    return least if least.any() else None
