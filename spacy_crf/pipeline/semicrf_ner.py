"""Named entities as segments: the semi-Markov component."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..errors import Errors
from ..features.columns import doc_bounds
from ..features.gazetteers import read_gazetteer
from ..inference.semi_markov import Segments, SemiMarkov, segments_of
from ..models.segments import SegmentFeatures, certain_segments
from ..models.semi_markov import longest_of
from ..schemes import SEGMENTS
from ..types import GOES_ON, SegmentClamp, SegmentScores
from .crf_ner import CRFEntityRecognizer
from .crf_pipe import CRFPipe, GoldReport


class SemiCRFEntityRecognizer(CRFEntityRecognizer):
    """Finds entities, each scored as a whole (factory ``semicrf_ner``).

    Entities that a Doc has already are kept, and the rest is decoded around them. Entities end where a sentence is known
    to end.

    confidence (bool): Whether every entity found gets its exact probability, as ``span._.crf_prob``.
    """

    def __init__(self, vocab, model, name="semicrf_ner", *, confidence: bool = False, **settings):
        self.scheme = SEGMENTS
        if confidence and not Span.has_extension("crf_prob"):
            Span.set_extension("crf_prob", default=None)
        CRFPipe.__init__(self, vocab, model, name, confidence=confidence, **settings)

    # -------------------------------------------------------------------------------------------------- annotation

    def gold_clamp(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> SegmentClamp:
        clamp = super().gold_clamp(examples, starts, report)
        long = self._split(clamp, starts)
        if len(long.begin):
            tokens = [token for example in examples for token in example.predicted]
            for begin, end, state in zip(*long):
                words = " ".join(token.text for token in tokens[begin : min(end, begin + 8)])
                place = f"'{words}...' ({self.labels[state - 1]}, {end - begin} tokens)"
                report.add("gold entities are longer than the longest segment of their label, and were cut up", place)
        return clamp

    def preset_clamp(self, preset: NDArray[np.uint64], starts: NDArray[np.int64]) -> SegmentClamp:
        clamp = super().preset_clamp(preset, starts)
        self._split(clamp, starts)
        return clamp

    def _split(self, clamp: SegmentClamp, starts: NDArray[np.int64]) -> Segments:
        """Cuts segments that are too long into the fewest that are allowed: every token keeps its label.

        RETURNS (Segments): Those that were too long.
        """
        found = certain_segments(clamp, starts)
        longest = self.model.attrs["longest"][found.state]
        too_long = found.end - found.begin > longest
        for begin, end, step in zip(found.begin[too_long], found.end[too_long], longest[too_long]):
            cuts = np.arange(begin + step, end, step)
            clamp.may_begin[cuts] = True
            clamp.must_begin[cuts] = True
        return Segments(found.begin[too_long], found.end[too_long], found.state[too_long])

    # ---------------------------------------------------------------------------------------------------- training

    def measure(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Sets the longest segment of each label."""
        lengths: dict[str, list[int]] = {label: [] for label in self.labels}
        for example in get_examples():
            for ent in example.reference.ents:
                if ent.label_ in lengths:
                    lengths[ent.label_].append(len(ent))
        longest = longest_of(self.model.attrs["longest_segment"], list(self.labels), lengths)
        before = self.model.attrs["longest"]
        if self.is_initialized:  # a trained model keeps the lengths that it knows
            longest[: len(before)] = np.maximum(longest[: len(before)], before)
        self.model.attrs["longest"] = longest

    @property
    def _segment_features(self) -> Optional[SegmentFeatures]:
        return self.model.get_ref("segments").attrs.get("segment_features")

    def _token_attributes(self) -> list[str]:
        own = self._segment_features.feature_set.token_attributes if self._segment_features is not None else []
        return list(dict.fromkeys([*super()._token_attributes(), *own]))

    def _read_gazetteers(self, files: dict[str, Union[str, Path]], nlp: Optional[Language]) -> None:
        sets = [features for features in (self._sparse_features, self._segment_features) if features is not None]
        wanted = [name for features in sets for name in features.feature_set.gazetteers]
        unused = [name for name in files if name not in wanted]
        if unused:
            raise ValueError(Errors.CRF404.format(name=self.name, gazetteers=", ".join(unused)))
        tokenizer = nlp.make_doc if nlp is not None else lambda text: Doc(self.vocab, words=text.split())
        read = {name: read_gazetteer(name, path, tokenizer) for name, path in files.items()}
        for features in sets:
            features.set_gazetteers({name: read[name] for name in features.feature_set.gazetteers if name in read})

    # -------------------------------------------------------------------------------------------------- prediction

    def predict(self, docs: Iterable[Doc]) -> "SegmentPrediction":
        """Best segmentation of a batch of Docs, around the annotation they have already.

        RETURNS (SegmentPrediction)
        RAISES (ValueError): If the component has no labels, or was not initialized.
        """
        docs = list(docs)
        scores = self._score(docs)
        preset = self.read_preset(docs)
        clamp = None if preset is None else self.preset_clamp(preset, scores.starts)
        states = self._structure.viterbi(scores, clamp=clamp).states
        probabilities = None
        if self.cfg["confidence"]:
            probabilities = np.ones(len(states))
            segments = segments_of(states)
            probabilities[segments.begin] = self._structure.segment_probabilities(scores, segments, clamp=clamp)
        tags = self.scheme.states_to_tags(states)
        return SegmentPrediction(tags, scores.starts, doc_bounds(docs), preset, probabilities)

    def write_probabilities(self, docs: Iterable[Doc], prediction: "SegmentPrediction") -> None:
        """Set ``span._.crf_prob`` of the entities found; those that were there before keep what they have."""
        for doc, first in zip(docs, prediction.doc_starts.tolist()):
            for ent in doc.ents:
                at = first + ent.start
                if prediction.tags[at] > 0 and (prediction.preset is None or not prediction.preset[at, 1]):
                    ent._.crf_prob = float(prediction.probabilities[at])

    @property
    def _structure(self) -> SemiMarkov:
        return self.model.attrs["structure"]

    def _score(self, docs: list[Doc]) -> SegmentScores:
        self._require_initialized()
        return self.model.predict(docs)

    # ----------------------------------------------------------------------------------------------- probabilities
    # These ask about the words: entities that the Doc has already, this component's own or others', change nothing.

    def marginals(self, doc: Doc) -> tuple[NDArray[np.float64], list[str]]:
        """Probability of each label at each token.

        RETURNS (float64[T, S], list[str]): The probabilities, and the states that they belong to: ``O`` and the labels.
        """
        return self._structure.marginals(self._score([doc])), self.tags()

    def span_probabilities(self, doc: Doc, min_prob: float = 0.01) -> list[tuple[Span, float]]:
        """Spans that may be entities, with the exact probability that precisely these tokens are one of this label.

        min_prob (float): Leave out those that are less probable.
        RETURNS (list[tuple[Span, float]]): Most probable first.
        """
        found = self._structure.segment_marginals(self._score([doc]), min_prob=min_prob)
        pairs = [
            (Span(doc, begin, end, label=self.labels[state - 1]), probability)
            for begin, end, state, probability in zip(*(array.tolist() for array in found))
            if state > 0
        ]
        return sorted(pairs, key=lambda pair: -pair[1])

    def n_best(self, doc: Doc, n: int) -> list[tuple[float, list[Span]]]:
        """The most probable labellings of a Doc.

        n (int): How many, at most.
        RETURNS (list[tuple[float, list[Span]]]): Their probabilities and entities, best first.
        """
        scores = self._score([doc])
        log_z = self._structure.log_partition(scores)
        best: list[tuple[float, tuple]] = [(0.0, ())]
        for paths, partition in zip(self._structure.n_best(scores, n), log_z.tolist()):
            # the best of a Doc's sequences so far, with the best of the next one
            joined = [(a + score - partition, (*before, states)) for a, before in best for score, states in paths]
            best = sorted(joined, key=lambda item: -item[0])[:n]
        empty = np.zeros(0, dtype=np.int32)
        return [
            (min(1.0, float(np.exp(score))), self._spans(doc, np.concatenate([empty, *parts]))) for score, parts in best
        ]

    def log_probability(self, doc: Doc, spans: Iterable[Span]) -> float:
        """Log probability of one complete labelling.

        spans (Iterable[Span]): Its entities; all other tokens are outside.
        RETURNS (float): -inf if it is not possible, such as entities longer than the longest segment of their label.
        RAISES (ValueError): If two spans overlap, or a label is unknown.
        """
        scores = self._score([doc])
        states = np.zeros(len(doc), dtype=np.int32)
        ordered = sorted(spans, key=lambda span: span.start)
        for before, span in pairwise(ordered):
            if span.start < before.end:
                raise ValueError(Errors.CRF420.format(one=_describe(before), other=_describe(span)))
        for span in ordered:
            if span.label_ not in self.labels:
                known = ", ".join(self.labels)
                raise ValueError(Errors.CRF421.format(name=self.name, span=_describe(span), known=known))
            states[span.start : span.end] = GOES_ON
            states[span.start] = 1 + self.labels.index(span.label_)
        if (states[scores.starts[:-1][scores.starts[:-1] < len(doc)]] == GOES_ON).any():
            return -np.inf  # an entity across the start of a sentence
        return float(self._structure.log_probability(scores, states).sum())

    def sample(self, doc: Doc, n: int, seed: int) -> list[list[Span]]:
        """Labellings drawn from the posterior.

        RETURNS (list[list[Span]]): The entities of each; one seed, one answer.
        """
        drawn = self._structure.sample(self._score([doc]), n, seed=seed)
        return [self._spans(doc, states) for states in drawn]

    def _spans(self, doc: Doc, states: NDArray[np.int32]) -> list[Span]:
        segments = segments_of(states)
        return [
            Span(doc, begin, end, label=self.labels[state - 1])
            for begin, end, state in zip(*(array.tolist() for array in segments))
            if state > 0
        ]


class SegmentPrediction(NamedTuple):
    """Segments of the Docs of a batch, laid end to end, as BIO tags."""

    tags: NDArray[np.int32]  # [T]
    starts: NDArray[np.int64]  # [B + 1] of the sequences
    doc_starts: NDArray[np.int64]  # [D + 1]
    preset: Optional[NDArray[np.uint64]]  # what `read_preset` gave
    probabilities: Optional[NDArray[np.float64]]  # [T] of the segment that begins there


def _describe(span: Span) -> str:
    return f"'{span.text}' ({span.label_}, tokens {span.start} to {span.end})"
