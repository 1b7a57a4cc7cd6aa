"""Decoding under rules, and the distribution over the labellings of a Doc."""

import logging
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from spacy.tokens import Doc, Span

from ..arrays import cut_document
from ..errors import Errors, Warnings, shown
from ..inference.structure import LikelySpans
from ..schemes import NO_SEGMENTS, SEGMENTS, Segments
from ..types import Bools, ChainClamp, Floats, Ints, PathScores
from . import CERTAINTIES, OF_LABEL, certainties_of
from .annotation.entities import Annotation, Prediction
from .decoding import Decoding, Question, States, logger
from .distribution import Distribution, of_doc, of_docs

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded, KeptRules
    from ..constraints.rule import Rule
    from ..constraints.rule_set import RuleSet
    from .pipe import LearningPipe


def ask(question: Question) -> "Batch":
    """The labellings of the Docs of a question, as the decoding finds them, and their probabilities."""
    return (question.parts.decoding.batches or Batch)(question)


def predict(question: Question, least: Optional[Floats]) -> tuple[States, dict[str, Floats]]:
    """Tags of a batch of Docs under rules, by another decoding than `viterbi` or by a `Decoder`; and the certainties of the spans
    by their extensions, if the component's settings require them.

    question (Question): What there is to label.
    least (float64[L]): The least probability of each label.
    RETURNS (int32[T], Dict[str, float64[N]])
    """
    parts = question.parts
    scores = question.scores
    batch = ask(question)
    tags = batch.most_probable()
    settings = parts.settings
    if settings["decode"] == "spans":
        tags, probabilities = batch.best_spans(tags, np.zeros(len(parts.annotation.labels)) if least is None else least)
        if parts.decoding.decoder is None:
            return tags, {"crf_prob": probabilities}
        return tags, batch.certainties(parts.decoding.segments(tags, scores.starts))
    if settings["decode"] == "posterior":
        tags = batch.most_right(tags)
    elif tags is None:
        tags = parts.decoding.best_tags(scores, question.clamp)
    if not settings["confidence"] and least is None:
        return tags, {}
    return tags, batch.certainties(parts.decoding.segments(tags, scores.starts))


def distribution(question: Question) -> Distribution:
    """The distribution over the labellings of the single Doc of a question. It takes into account the scheme, the clamp, and
    those rules that the Doc keeps and an automaton can represent."""
    batch = ask(question)
    batch.most_probable()
    return batch.distribution(0)


def proven(question: Question) -> bool:
    """Whether the labelling found for the single Doc of a question, under its rules, is proved to be the most probable one."""
    if question.parts.rules is None:
        return finds_best(question.parts.decoding, question.scores, question.clamp)
    return ask(question).proven()


def finds_best(decoding: Decoding, scores: PathScores, clamp: Optional[ChainClamp]) -> bool:
    """Whether the search finds the best labelling of each sequence, by comparison with the search of the structure.

    decoding (Decoding): Of the component.
    scores (PathScores): The scores of the sequences.
    clamp (Optional[ChainClamp]): The labellings that are possible.
    """
    structure = decoding.structure
    if decoding.searched is structure:
        return "exact" in structure.answers
    work = structure.prepare(scores, clamp)
    return bool((decoding.searched.viterbi(work).scores >= structure.viterbi(work).scores).all())


class Batch:
    """Labellings of several Docs. The most probable labelling of a Doc determines which rules the Doc keeps; all other results
    use these rules."""

    def __init__(self, question: Question):
        parts = question.parts
        docs = question.docs
        rules = parts.rules
        self.question = question
        self.parts = parts
        self.scores = question.scores
        self._docs = docs
        self._clamp = question.clamp
        self._bounds = docs.bounds
        self._decoding: Decoding = parts.decoding
        longest_doc = int(np.diff(docs.bounds).max(initial=0))
        # A `RuleSet` and `PatternMatches`, None without rules
        self._rules: Any = None if rules is None else rules.all.upto(longest_doc)
        self._facts: Any = None if rules is None else rules.matcher(docs)
        self._relaxed: dict[int, list[Rule]] = {}

    def most_probable(self) -> Optional[States]:
        """Tags (int32[T]) of the most probable labelling that keeps the rules; None without rules, when nobody asks for them."""
        if self._rules is None:
            return None
        found = self._decode(self.scores, None)
        self._relaxed = found.relaxed
        for d, rules in found.relaxed.items():
            message = Warnings.CRFW601
            if d in found.unsearchable:
                message = Warnings.CRFW920
            elif d in found.unfinished:
                message = Warnings.CRFW605
            self._warn(message, d, rules=", ".join(rule.name for rule in rules))
        soft = ", ".join(rule.name for rule in self._rules.rules if not rule.hard)
        for d in found.unfinished:
            if d in found.unsearchable and d not in found.relaxed:
                self._warn(Warnings.CRFW920, d, rules=soft)
            elif d not in found.relaxed:
                self._warn(Warnings.CRFW602, d, used="the best that was found")
        return found.tags

    def most_right(self, most_probable: Optional[States]) -> States:
        """Tags (int32[T]) of the valid labelling with the most right tags in expectation.

        most_probable (Optional[States]): From `most_probable`: the result for Docs for which the time limit is reached.
        """
        # Docs without tokens have no distribution
        filled = np.flatnonzero(np.diff(self._bounds)).tolist()
        if not self._is_tied or not filled:
            worth = self.distribution().worth()
        else:
            of_docs = [self.distribution(d).worth() for d in filled]
            worth = {}
            for name in of_docs[0]:
                worth[name] = np.concatenate([of_doc[name] for of_doc in of_docs])
        expected = self._decoding.expected(self.scores, worth)
        if self._rules is None:
            return self._decoding.best_tags(expected, self._clamp)
        found = self._decode(expected, self._hard_ones())
        return self._or_instead(found.tags, found.unfinished, most_probable)

    def best_spans(self, most_probable: Optional[States], least: Floats) -> tuple[States, Floats]:
        """The most valuable set of spans that keeps the rules, see `inference.span_choice`.

        most_probable (Optional[States]): From `most_probable`, see `choose`.
        least (float64[L]): The least probability of each label.
        RETURNS (int32[T], float64[N]): The tags of the labelling, and the probability of each of its spans.
        """
        from ..inference.span_choice import LEAST, places_of, prices_of

        prices = prices_of(least)
        # Rules may ask for spans that are less probable than they cost
        candidates, probabilities = self.likely_spans(LEAST if self.rules_ask else float(prices.min(initial=1.0)))
        gains = probabilities - prices[candidates.label]
        if not self.rules_ask:
            enough = gains >= 0.0
            candidates = candidates.only(enough)
            probabilities = probabilities[enough]
            gains = gains[enough]
        chosen = self.choose(candidates, gains, most_probable)
        place = places_of(chosen, candidates)
        of_chosen = probabilities[place] if (place >= 0).all() else self.span_probabilities(chosen)
        return self._decoding.annotation.path(chosen, np.asarray(self.scores.starts)), of_chosen

    @cached_property
    def rules_ask(self) -> bool:
        """Whether a rule asks for spans, which are then found though they are improbable."""
        return self._rules is not None and self._rules.asks

    def choose(self, candidates: Segments, gains: Floats, most_probable: Optional[States]) -> Segments:
        """The set of candidates with the highest sum of gains, no two of which overlap, that keeps the hard rules.

        candidates (Segments): Sorted by first token.
        gains (float64[N]): What each candidate adds to the value of a set.
        most_probable (Optional[States]): From `most_probable`. These spans are the result for Docs for which the time limit is
            reached, or for which no set of candidates keeps the rules.
        """
        from ..inference.semi_markov import SemiMarkov
        from ..inference.span_choice import places_of, worth

        decoding = self._decoding
        starts = np.asarray(self.scores.starts)
        n_labels = len(decoding.annotation.labels)
        scores = worth(candidates, gains, n_labels, starts, may_touch=decoding.spans_may_touch)
        if self._rules is None:
            path = SemiMarkov().viterbi(scores).states
            return SEGMENTS.decode(SEGMENTS.states_to_tags(path), starts)
        path, unfinished = self._decode_spans(scores)
        chosen = SEGMENTS.decode(SEGMENTS.states_to_tags(path), starts)
        # Spans that rules ask for and that are no candidates have no probability to speak of
        others = chosen.start[places_of(chosen, candidates) < 0]
        without = np.unique(np.searchsorted(self._bounds, others, side="right") - 1).tolist()
        if not unfinished and not without:
            return chosen
        tags = decoding.annotation.path(chosen, starts)
        tags = self._or_instead(tags, unfinished, most_probable)
        self._take_over(tags, without, most_probable)
        return decoding.segments(tags, starts)

    def _decode_spans(self, scores: PathScores) -> tuple[States, list[int]]:
        """The path of segments that keeps the rules, and the Docs for which the time limit was reached."""
        from ..constraints.decoding import Documents, decode

        rules = self._rules.of_segments_too
        documents = Documents(
            scores=scores,
            clamp=None,
            facts=self._facts if rules is self._rules else self._facts.of_labels(self._decoding.label_of_states),
            words=self._docs.words if rules.global_ else None,
        )
        found = decode(rules, documents, self._bounds, self._hard_ones())
        return found.tags, found.unfinished

    def _hard_ones(self) -> "KeptRules":
        """The hard rules that each Doc keeps."""
        from ..constraints.decoding import KeptRules

        return KeptRules(
            places=self._kept(None, only_hard=True), instead={d: self._kept(d, only_hard=True) for d in self._relaxed}
        )

    def _or_instead(self, tags: States, unfinished: list[int], most_probable: Optional[States]) -> States:
        """The tags, with the most probable ones for Docs for which the time limit was reached."""
        self._take_over(tags, unfinished, most_probable)
        for d in unfinished:
            self._warn(Warnings.CRFW602, d, used="its most probable one")
        return tags

    def _take_over(self, tags: States, docs: list[int], most_probable: Optional[States]) -> None:
        """Replace the tags of some Docs by the most probable ones, in place."""
        known = tags if most_probable is None else most_probable
        for d in docs:
            tokens = slice(self._bounds[d], self._bounds[d + 1])
            tags[tokens] = known[tokens]

    def proven(self) -> bool:
        """For a single Doc: the most probable labelling under the masks is the most probable under all rules if it keeps them;
        otherwise the search continues from there."""
        found = self._decode(self.scores, None)
        scores = self._rules.decodable(self.scores, self._facts)
        return finds_best(self._decoding, scores, self._clamp) and not found.unfinished

    def certainties(self, segments: Segments) -> dict[str, Floats]:
        """The values of the spans of all Docs (`segments`), see `Distribution.certainties`."""
        if not self._is_tied:
            return self.distribution().certainties(segments)
        names = certainties_of(self._decoding.decoder)
        values = {name: np.zeros(len(segments.start)) for name in names}
        of_doc = np.searchsorted(segments.start, self._bounds)
        for d in range(len(self._docs)):
            n = slice(of_doc[d], of_doc[d + 1])
            if n.start < n.stop:
                shift = self._bounds[d]
                of_segments = Segments(segments.start[n] - shift, segments.end[n] - shift, segments.label[n])
                for name, found in self.distribution(d).certainties(of_segments).items():
                    values[name][n] = found
        return values

    def span_probabilities(self, segments: Segments) -> Floats:
        """Probability of each of N `segments`, which are sorted by first token: float64[N]."""
        return self.certainties(segments)["crf_prob"]

    def likely_spans(self, min_prob: float) -> LikelySpans:
        """All spans with a probability of at least `min_prob`, sorted by first token."""
        if not self._is_tied:
            return LikelySpans(*self.distribution().likely_spans(min_prob))
        parts = [LikelySpans(NO_SEGMENTS, np.zeros(0))]
        for d in np.flatnonzero(np.diff(self._bounds)).tolist():
            found = LikelySpans(*self.distribution(d).likely_spans(min_prob))
            parts.append(found.moved(int(self._bounds[d])))
        return LikelySpans.join(parts)

    def distribution(self, d: Optional[int] = None) -> Distribution:
        """The distribution over the labellings of Doc `d`, or of all Docs (None) if no rule ties their sequences together."""
        decoder = self._decoding.decoder
        return self.by(self.scores, d) if decoder is None else decoder.distribution(self, d)

    def by(self, scores: PathScores, d: Optional[int]) -> Distribution:
        """The exact distribution by some scores of the Docs, under the rules that each Doc keeps by the scores of the model.

        scores (PathScores): Of all Docs.
        d (int): The Doc; None for all Docs, if no rule ties their sequences together.
        """
        if d is None:
            if self._rules is not None:
                self._warn_of_ignored(self._rules)
                scores = self._rules.apply(scores, self._facts)
            return of_docs(self._decoding, scores, self._clamp)
        tokens = slice(int(self._bounds[d]), int(self._bounds[d + 1]))
        scores, clamp = cut_document(scores, self._clamp, tokens)
        graph = None
        if self._rules is not None:
            rules = self._rules.upto(tokens.stop - tokens.start)
            kept = self._kept(d)
            self._warn_of_ignored(rules)
            scores = rules.apply(scores, self._facts.at(tokens), kept)
            # Rules without an automaton are in the scores or are ignored, see below
            automata = rules.fitting.intersection(rules.automata_of(kept))
            graph = rules.graph(automata) if automata else None
        return of_doc(self._decoding, scores, clamp, graph)  # pyright: ignore[reportArgumentType]  of a chain

    @property
    def _is_tied(self) -> bool:
        """Whether rules tie sequences together, or differ between Docs."""
        return self._rules is not None and (self._joins_sequences or bool(self._relaxed))

    @cached_property
    def _joins_sequences(self) -> bool:
        """Whether the rules of some Doc have automata. Those of a long Doc may exceed `max_states` where a short one's do not."""
        lengths = np.unique(np.diff(self._bounds)).tolist()
        return any(self._rules.upto(tokens).fitting for tokens in lengths)

    def _decode(self, scores: PathScores, kept: "Optional[KeptRules]") -> "Decoded":
        """The best labellings by some scores that keep the rules; `kept` names the rules if not all."""
        from ..constraints.decoding import Documents

        documents = Documents(
            scores=scores, clamp=self._clamp, facts=self._facts, words=self._docs.words if self._rules.global_ else None
        )
        return self._decoding.decode(self._rules, documents, self._bounds, kept)

    def _kept(self, d: Optional[int], *, only_hard: bool = False) -> frozenset[int]:
        """Places of the rules that a Doc keeps, or of all rules if all Docs keep them."""
        relaxed = [] if d is None else self._relaxed.get(d, [])
        rules = (rule for rule in self._rules.rules if rule not in relaxed and (rule.hard or not only_hard))
        return frozenset(rule.place for rule in rules)

    def _warn(self, message: str, d: int, **values: object) -> None:
        self.parts.warn(message, doc=self._docs[d][:40].text[:40], seconds=self._rules.constraints.time_limit, **values)

    def _warn_of_ignored(self, asked: "RuleSet") -> None:
        """Warn once about rules that probabilities ignore although they may matter to the Docs."""
        names = []
        if asked.left_out:
            longest = 2 * int(np.diff(self._bounds).max(initial=0))  # including breaks
            binding = asked.binding(asked.places, longest) - asked.fitting
            places = {asked.automata[n].rule.place for n in binding}
            names = [rule.name for rule in asked.left_out if rule.place in places]
        limit = f"{asked.most_states} states (max_states, or fewer for many tags)"
        too_large = f"with so many labels, exact ones would need more than {limit}"
        of_texts = [rule.name for rule in asked.global_]
        for ignored, reason in ((names, too_large), (of_texts, "no automaton holds them")):
            rules = ", ".join(ignored)
            if rules and rules not in asked.warned:
                asked.warned.add(rules)
                level = logging.INFO if Warnings.CRFW603 in self.parts.warned else logging.WARNING
                logger.log(level, Warnings.CRFW603.format(name=self.parts.name, rules=rules, reason=reason))


# ----------------------------------------------------------------------------------- the probabilities of what is found


def tell_probabilities(pipes: Iterable["LearningPipe"]) -> None:
    """From now on, set ``crf_prob`` of what the given components find."""
    for pipe in pipes:
        pipe.cfg["confidence"] = True


def write_probabilities(docs: Iterable[Doc], prediction: Prediction, decoding: Decoding, present: Segments) -> None:
    """Set ``span._.crf_prob``, and other certainties, of the spans that were found; where spans are tokens, those of tokens.
    Present spans keep the values of their label; without one they are certain.

    docs (Iterable[Doc]): The Docs of the prediction.
    prediction (Prediction): With certainties; without any, nothing is set.
    decoding (Decoding): Of the component.
    present (Segments): The spans that Docs had before, see `Annotation.write`.
    """
    certainties = prediction.certainties
    if certainties is None:
        return
    docs = list(docs)
    bounds = prediction.doc_starts
    annotation = decoding.annotation
    segments = decoding.segments(prediction.tags, prediction.starts)
    if len(present.start):
        certain = {name: np.full(len(present.start), CERTAINTIES[name]) for name in certainties}
        _write(docs, bounds, annotation, present, certain, are_present=True)
        is_present = _covered(present.start, present.end, len(prediction.tags))  # [T]
        found = ~is_present[segments.start]
        segments = segments.only(found)
        certainties = {name: values[found] for name, values in certainties.items()}
    _write(docs, bounds, annotation, segments, certainties, are_present=False)


def _write(
    docs: list[Doc],
    bounds: Ints,
    annotation: Annotation,
    segments: Segments,
    certainties: dict[str, Floats],
    *,
    are_present: bool,
) -> None:
    """Set values as span._.set does, or token._.set, but without Spans, which took longer than inference. Present segments, whose
    labels are those in the Doc, keep the values that they have.

    bounds (int64[D + 1]): Where the tokens of the Docs begin.
    certainties (Dict[str, float64[N]]): Values of the segments, by extension.
    """
    number = np.searchsorted(bounds, segments.start, side="right") - 1
    first = segments.start - bounds[number]
    last = segments.end - bounds[number] - 1
    of_tokens = annotation.spans_are_tokens
    labels = annotation.written_labels
    written = repeat(None) if are_present or not labels else [labels[n] for n in segments.label.tolist()]
    columns = zip(*(values.tolist() for values in certainties.values()))
    for n, i, j, label, row in zip(number.tolist(), first.tolist(), last.tolist(), written, columns):
        doc = docs[n]
        known = doc.user_data
        opening = doc[i]
        begin = opening.idx
        end = None
        if not of_tokens:
            closing = opening if i == j else doc[j]
            end = closing.idx + len(closing)
        if label is None:
            label = annotation.label_at(opening)
        # The label under which the values were written is the present one
        keeps = are_present and known.get(("._.", OF_LABEL, begin, end), label) == label
        known["._.", OF_LABEL, begin, end] = label
        for name, value in zip(certainties, row):
            if not (keeps and ("._.", name, begin, end) in known):
                known["._.", name, begin, end] = value


def likely(
    tags: States, probabilities: Floats, least: Floats, starts: Ints, decoding: Decoding, known: Optional[Bools]
) -> tuple[States, Bools]:
    """Keep the spans that are at least as probable as their label requires. Tokens of other spans get the tag outside, or no tag.

    tags (int32[T]): The labelling of sequences that start at `starts` (int64[B + 1]).
    probabilities (float64[N]): Of its spans.
    least (float64[L]): The least probability of each label.
    decoding (Decoding): Of the component.
    known (Optional[bool[T]]): Tokens whose spans stay, whatever their probability.
    RETURNS (int32[T], bool[N]): The tags, and which spans were kept.
    """
    begin, end, label = decoding.segments(tags, starts)
    unlikely = probabilities < least[label]
    if known is not None:
        unlikely = unlikely & ~known[begin]
    covered = _covered(begin[unlikely], end[unlikely], len(tags))
    return np.where(covered, decoding.outside, tags).astype(np.int32), ~unlikely


def _covered(begin: Ints, end: Ints, n_tokens: int) -> Bools:
    """Which tokens the spans cover: bool[T]."""
    # Spans may overlap, so that a token may open or close several
    edges = np.zeros(n_tokens + 1, dtype=np.int64)
    np.add.at(edges, begin, 1)
    np.add.at(edges, end, -1)
    return np.cumsum(edges[:-1]) > 0


def labelling(name: str, doc: Doc, spans: Iterable[Span], *, overlap: bool = False) -> list[tuple[int, int, str]]:
    """First token, token behind the last, and label of each span of one labelling of a Doc, in order.

    name (str): The component, for messages.
    doc (Doc): The text.
    spans (Iterable[Span]): Spans of this Doc, or of another Doc with the same words.
    overlap (bool): Whether the spans may overlap.
    RAISES (ValueError): If spans overlap or do not belong to the Doc.
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
    for pair in pairwise(found):
        (_, end_of_first, _), (begin_of_second, _, _) = pair
        if begin_of_second < end_of_first and not overlap:
            one, other = [f"'{doc[b:e].text}' ({label}, tokens {b} to {e})" for b, e, label in pair]
            raise ValueError(Errors.CRF409.format(name=name, one=one, other=other))
    return found
