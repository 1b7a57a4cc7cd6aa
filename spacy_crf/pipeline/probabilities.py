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


def predict(question: Question, thresholds: Optional[Floats]) -> tuple[States, dict[str, Floats]]:
    """Tags of a batch of Docs under rules, by another setting of `decode` than "viterbi", or by a `Decoder`.

    question (Question): The part of the Docs that is to be labelled.
    thresholds (float64[L]): The least probability of a span of each label; None if all are 0.
    RETURNS (int32[T], Dict[str, float64[N]]): The tags; and the certainties of the spans by the names of their extensions, empty
        if no setting needs them.
    """
    parts = question.parts
    settings = parts.settings
    batch = ask(question)
    tags = batch.most_probable()
    if settings["decode"] == "spans":
        if thresholds is None:
            thresholds = np.zeros(len(parts.annotation.labels))
        tags, probabilities = batch.best_spans(tags, thresholds)
        if parts.decoding.decoder is None:
            return tags, {"crf_prob": probabilities}
        return tags, batch.certainties(parts.decoding.segments(tags, question.scores.starts))
    if settings["decode"] == "posterior":
        tags = batch.best_expected_tags(tags)
    elif tags is None:  # without rules
        tags = parts.decoding.best_tags(question.scores, question.clamp)
    if not settings["confidence"] and thresholds is None:
        return tags, {}
    return tags, batch.certainties(parts.decoding.segments(tags, question.scores.starts))


def distribution(question: Question) -> Distribution:
    """The distribution over the labellings of the single Doc of a question, under its clamp and under the rules that the Doc
    keeps, as far as automata can represent them."""
    batch = ask(question)
    batch.most_probable()  # finds out which rules the Doc keeps
    return batch.distribution(0)


def proven(question: Question) -> bool:
    """Whether the labelling that the component finds for the single Doc of a question is sure to be the most probable one that
    keeps the rules."""
    if question.parts.rules is None:
        return finds_best(question.parts.decoding, question.scores, question.clamp)
    return ask(question).proven()


def finds_best(decoding: Decoding, scores: PathScores, clamp: Optional[ChainClamp]) -> bool:
    """Whether the search of a decoder finds the best labelling of each sequence, by comparison with the search of the structure.

    decoding (Decoding): The decoding, with the decoder.
    scores (PathScores): The scores of the sequences.
    clamp (Optional[ChainClamp]): The clamp of the possible labellings.
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
        decoded = self._decode(self.scores, None)
        self._relaxed = decoded.relaxed
        # Docs that cannot keep some hard rules
        for d, rules in decoded.relaxed.items():
            message = Warnings.CRFW601
            if d in decoded.unsearchable:
                message = Warnings.CRFW920
            elif d in decoded.unfinished:
                message = Warnings.CRFW605
            self._warn(message, d, rules=", ".join(rule.name for rule in rules))
        # Docs for which the time limit was reached, or whose search is too large to begin
        soft = ", ".join(rule.name for rule in self._rules.rules if not rule.hard)
        for d in decoded.unfinished:
            if d in decoded.unsearchable and d not in decoded.relaxed:
                self._warn(Warnings.CRFW920, d, rules=soft)
            elif d not in decoded.relaxed:
                self._warn(Warnings.CRFW602, d, used="the best that was found")
        return decoded.tags

    def best_expected_tags(self, most_probable: Optional[States]) -> States:
        """Tags (int32[T]) of the valid labelling with the largest expected number of right tags.

        most_probable (Optional[States]): The result of `most_probable`, which replaces the labelling of Docs for which the time
            limit is reached.
        """
        # Docs without tokens have no distribution
        docs_with_tokens = np.flatnonzero(np.diff(self._bounds)).tolist()
        if not self._is_tied or not docs_with_tokens:
            worth = self.distribution().worth()
        else:
            doc_worths = [self.distribution(d).worth() for d in docs_with_tokens]
            worth = {}
            for name in doc_worths[0]:
                worth[name] = np.concatenate([doc_worth[name] for doc_worth in doc_worths])
        expected = self._decoding.expected(self.scores, worth)
        if self._rules is None:
            return self._decoding.best_tags(expected, self._clamp)
        decoded = self._decode(expected, self._hard_rules())
        return self._replace_unfinished(decoded.tags, decoded.unfinished, most_probable)

    def best_spans(self, most_probable: Optional[States], thresholds: Floats) -> tuple[States, Floats]:
        """The set of spans without overlaps that keeps the rules and has the largest sum of gains. A span gains its probability
        minus a price, by which spans below the threshold of their label are not worth it.

        most_probable (Optional[States]): The result of `most_probable`, which `choose` needs.
        thresholds (float64[L]): The least probability of a span of each label.
        RETURNS (int32[T], float64[N]): The tags of the labelling, and the probability of each of its spans.
        """
        from ..inference.span_choice import LEAST, places_of, prices_of

        prices = prices_of(thresholds)
        # Rules may ask for spans that are less probable than they cost
        min_prob = LEAST if self.rules_ask_for_spans else float(prices.min(initial=1.0))
        candidates, probabilities = self.likely_spans(min_prob)
        gains = probabilities - prices[candidates.label]
        if not self.rules_ask_for_spans:
            is_worth_it = gains >= 0.0
            candidates = candidates.only(is_worth_it)
            probabilities = probabilities[is_worth_it]
            gains = gains[is_worth_it]
        chosen = self.choose(candidates, gains, most_probable)
        index = places_of(chosen, candidates)  # -1 for spans that are no candidates
        if (index >= 0).all():
            chosen_probabilities = probabilities[index]
        else:
            chosen_probabilities = self.span_probabilities(chosen)
        return self._decoding.annotation.path(chosen, np.asarray(self.scores.starts)), chosen_probabilities

    @cached_property
    def rules_ask_for_spans(self) -> bool:
        """Whether a rule requires spans, which are then found even if they are improbable."""
        return self._rules is not None and self._rules.asks

    def choose(self, candidates: Segments, gains: Floats, most_probable: Optional[States]) -> Segments:
        """The set of candidates without overlaps that keeps the hard rules and has the highest sum of gains.

        candidates (Segments): Spans, sorted by first token.
        gains (float64[N]): The gain of each candidate.
        most_probable (Optional[States]): The result of `most_probable`. Its spans replace the set in Docs for which the time
            limit is reached, or for which no set of candidates keeps the rules.
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
        # Where only spans that are no candidates keep the rules, their probability is negligible
        first_tokens = chosen.start[places_of(chosen, candidates) < 0]
        unsuitable = np.unique(np.searchsorted(self._bounds, first_tokens, side="right") - 1).tolist()
        if not unfinished and not unsuitable:
            return chosen
        tags = decoding.annotation.path(chosen, starts)
        tags = self._replace_unfinished(tags, unfinished, most_probable)
        self._copy_tags(tags, unsuitable, most_probable)
        return decoding.segments(tags, starts)

    def _decode_spans(self, scores: PathScores) -> tuple[States, list[int]]:
        """Find the best path of segments under the hard rules, by the scores of segments.

        RETURNS (int32[T], List[int]): The path, and the numbers of the Docs for which the time limit was reached.
        """
        from ..constraints.decoding import Documents, decode

        rules = self._rules.of_segments_too
        documents = Documents(
            scores=scores,
            clamp=None,
            facts=self._facts if rules is self._rules else self._facts.of_labels(self._decoding.label_of_states),
            words=self._docs.words if rules.global_ else None,
        )
        decoded = decode(rules, documents, self._bounds, self._hard_rules())
        return decoded.tags, decoded.unfinished

    def _hard_rules(self) -> "KeptRules":
        """The hard rules that each Doc keeps."""
        from ..constraints.decoding import KeptRules

        all_hard = self._kept_rules(None, only_hard=True)
        return KeptRules(all_hard, instead={d: self._kept_rules(d, only_hard=True) for d in self._relaxed})

    def _replace_unfinished(self, tags: States, unfinished: list[int], most_probable: Optional[States]) -> States:
        """Replace the tags of Docs for which the time limit was reached by the most probable ones, in place, with a warning."""
        self._copy_tags(tags, unfinished, most_probable)
        for d in unfinished:
            self._warn(Warnings.CRFW602, d, used="its most probable one")
        return tags

    def _copy_tags(self, tags: States, docs: list[int], most_probable: Optional[States]) -> None:
        """Replace the tags of some Docs by the most probable ones, in place."""
        if most_probable is None:
            return
        for d in docs:
            tokens = slice(self._bounds[d], self._bounds[d + 1])
            tags[tokens] = most_probable[tokens]

    def proven(self) -> bool:
        """Whether the labelling found for a single Doc is sure to be the most probable one under the rules: the search by masks,
        with which the search under rules begins, finds the best labelling, and the search under rules has ended in time."""
        decoded = self._decode(self.scores, None)
        scores = self._rules.decodable(self.scores, self._facts)
        return finds_best(self._decoding, scores, self._clamp) and not decoded.unfinished

    def certainties(self, segments: Segments) -> dict[str, Floats]:
        """The values of N spans of all Docs, such as their probabilities, by the names of their extensions: float64[N] each.

        segments (Segments): The spans, sorted by first token.
        """
        if not self._is_tied:
            return self.distribution().certainties(segments)
        names = certainties_of(self._decoding.decoder)
        values = {name: np.zeros(len(segments.start)) for name in names}
        first = np.searchsorted(segments.start, self._bounds)  # [D + 1] first span of each Doc
        for d in range(len(self._docs)):
            spans = slice(first[d], first[d + 1])
            if spans.start < spans.stop:
                shift = self._bounds[d]
                doc_segments = Segments(
                    segments.start[spans] - shift, segments.end[spans] - shift, segments.label[spans]
                )
                for name, doc_values in self.distribution(d).certainties(doc_segments).items():
                    values[name][spans] = doc_values
        return values

    def span_probabilities(self, segments: Segments) -> Floats:
        """Probability of each of N `segments`, which are sorted by first token: float64[N]."""
        return self.certainties(segments)["crf_prob"]

    def likely_spans(self, min_prob: float) -> LikelySpans:
        """All spans with a probability of at least `min_prob`, sorted by first token."""
        if not self._is_tied:
            return LikelySpans(*self.distribution().likely_spans(min_prob))
        spans = [LikelySpans(NO_SEGMENTS, np.zeros(0))]
        for d in np.flatnonzero(np.diff(self._bounds)).tolist():
            spans_of_doc = LikelySpans(*self.distribution(d).likely_spans(min_prob))
            spans.append(spans_of_doc.moved(int(self._bounds[d])))
        return LikelySpans.join(spans)

    def distribution(self, d: Optional[int] = None) -> Distribution:
        """The distribution over the labellings of Doc `d`, or of all Docs (None) if no rule ties their sequences together."""
        decoder = self._decoding.decoder
        return self.by(self.scores, d) if decoder is None else decoder.distribution(self, d)

    def by(self, scores: PathScores, d: Optional[int]) -> Distribution:
        """The exact distribution over labellings by these scores, under the rules that each Doc keeps by the scores of the model.

        scores (PathScores): Scores of all Docs.
        d (int): The number of the Doc; None for all Docs, if no rule ties their sequences together.
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
            kept = self._kept_rules(d)
            self._warn_of_ignored(rules)
            scores = rules.apply(scores, self._facts.at(tokens), kept)
            # `apply` has put rules without an automaton into the scores, or `_warn_of_ignored` has named them
            automata = rules.fitting.intersection(rules.automata_of(kept))
            graph = rules.graph(automata) if automata else None
        return of_doc(self._decoding, scores, clamp, graph)  # pyright: ignore[reportArgumentType]  of a chain

    @property
    def _is_tied(self) -> bool:
        """Whether probabilities are computed Doc by Doc, since rules tie sequences together or differ between Docs."""
        return self._rules is not None and (self._joins_sequences or bool(self._relaxed))

    @cached_property
    def _joins_sequences(self) -> bool:
        """Whether the rules of some Doc have automata. For a long Doc an automaton may exceed `max_states`, and is left out."""
        lengths = np.unique(np.diff(self._bounds)).tolist()
        return any(self._rules.upto(tokens).fitting for tokens in lengths)

    def _decode(self, scores: PathScores, kept: "Optional[KeptRules]") -> "Decoded":
        """Find the best labelling of each Doc by these `scores` that keeps the rules; `kept`: only some rules, None for all."""
        from ..constraints.decoding import Documents

        words = self._docs.words if self._rules.global_ else None  # for rules about equal words
        documents = Documents(scores=scores, clamp=self._clamp, facts=self._facts, words=words)
        return self._decoding.decode(self._rules, documents, self._bounds, kept)

    def _kept_rules(self, d: Optional[int], *, only_hard: bool = False) -> frozenset[int]:
        """Numbers of the rules that Doc `d` keeps; None: of all rules. `only_hard` leaves out soft rules."""
        relaxed = [] if d is None else self._relaxed.get(d, [])
        rules = (rule for rule in self._rules.rules if rule not in relaxed and (rule.hard or not only_hard))
        return frozenset(rule.place for rule in rules)

    def _warn(self, message: str, d: int, **values: object) -> None:
        self.parts.warn(message, doc=self._docs[d][:40].text[:40], seconds=self._rules.constraints.time_limit, **values)

    def _warn_of_ignored(self, rule_set: "RuleSet") -> None:
        """Warn once about rules that probabilities ignore although they may matter to the Docs."""
        too_large = []
        if rule_set.left_out:
            longest = 2 * int(np.diff(self._bounds).max(initial=0))  # including breaks
            binding = rule_set.binding(rule_set.places, longest) - rule_set.fitting
            places = {rule_set.automata[n].rule.place for n in binding}
            too_large = [rule.name for rule in rule_set.left_out if rule.place in places]
        limit = f"{rule_set.most_states} states (max_states, or fewer for many tags)"
        about_texts = [rule.name for rule in rule_set.global_]
        for names, reason in (
            (too_large, f"with so many labels, exact ones would need more than {limit}"),
            (about_texts, "no automaton holds them"),
        ):
            rules = ", ".join(names)
            if rules and rules not in rule_set.warned:
                rule_set.warned.add(rules)
                level = logging.INFO if Warnings.CRFW603 in self.parts.warned else logging.WARNING
                logger.log(level, Warnings.CRFW603.format(name=self.parts.name, rules=rules, reason=reason))


# ----------------------------------------------------------------------------------- the probabilities of found spans


def turn_on_confidence(pipes: Iterable["LearningPipe"]) -> None:
    """From now on, let components set the probability (``crf_prob``) of each span, token or text that they label."""
    for pipe in pipes:
        pipe.cfg["confidence"] = True


def write_probabilities(docs: Iterable[Doc], prediction: Prediction, decoding: Decoding, present: Segments) -> None:
    """Set ``span._.crf_prob``, or ``token._.crf_prob`` if each token is labelled by itself, and the other certainties of a
    prediction. Spans that a Doc had before keep the values that they have for their label; without values they are certain.

    docs (Iterable[Doc]): The Docs of the prediction.
    prediction (Prediction): A prediction with certainties; without any, nothing is set.
    decoding (Decoding): The decoding of the component.
    present (Segments): The spans that Docs had before, from `Annotation.write`.
    """
    certainties = prediction.certainties
    if certainties is None:
        return
    docs = list(docs)
    segments = decoding.segments(prediction.tags, prediction.starts)
    if len(present.start):
        # `are_present`: for spans of the Doc that have no value yet
        certain = {name: np.full(len(present.start), CERTAINTIES[name]) for name in certainties}
        _write(docs, prediction.doc_starts, decoding.annotation, present, certain, are_present=True)
        is_present = _covered(present.start, present.end, len(prediction.tags))  # [T]
        is_new = ~is_present[segments.start]
        segments = segments.only(is_new)
        certainties = {name: values[is_new] for name, values in certainties.items()}
    _write(docs, prediction.doc_starts, decoding.annotation, segments, certainties, are_present=False)


def _write(
    docs: list[Doc],
    bounds: Ints,
    annotation: Annotation,
    segments: Segments,
    certainties: dict[str, Floats],
    *,
    are_present: bool,
) -> None:
    """Set the values of segments as span._.set or token._.set does. spaCy keeps extensions in the user data of Docs, by
    characters: writing there needs no Spans, whose making took longer than inference.

    bounds (int64[D + 1]): Where the tokens of the Docs begin.
    segments (Segments): Spans of the Docs, or single tokens for taggers.
    certainties (Dict[str, float64[N]]): Values of the segments, by extension.
    are_present (bool): Whether the Docs had the segments before: then the labels are those in the Docs, and values that belong to
        these labels stay.
    """
    number = np.searchsorted(bounds, segments.start, side="right") - 1
    first = segments.start - bounds[number]
    last = segments.end - bounds[number] - 1
    labels = annotation.written_labels
    written = repeat(None) if are_present or not labels else [labels[n] for n in segments.label.tolist()]
    rows = zip(*(values.tolist() for values in certainties.values()))
    for n, i, j, label, row in zip(number.tolist(), first.tolist(), last.tolist(), written, rows):
        doc = docs[n]
        user_data = doc.user_data
        first_token = doc[i]
        begin = first_token.idx
        end = None  # as for extensions of tokens
        if not annotation.spans_are_tokens:
            last_token = first_token if i == j else doc[j]
            end = last_token.idx + len(last_token)
        if label is None:
            label = annotation.label_at(first_token)
        has_same_label = user_data.get(("._.", OF_LABEL, begin, end), label) == label
        user_data["._.", OF_LABEL, begin, end] = label
        for name, value in zip(certainties, row):
            key = ("._.", name, begin, end)
            if not (are_present and has_same_label and key in user_data):
                user_data[key] = value


def drop_unlikely(
    tags: States, probabilities: Floats, thresholds: Floats, starts: Ints, decoding: Decoding, settled: Optional[Bools]
) -> tuple[States, Bools]:
    """Remove the spans that are less probable than the threshold of their label. Their tokens get the tag outside, or no tag.

    tags (int32[T]): The labelling of sequences that start at `starts` (int64[B + 1]).
    probabilities (float64[N]): The probability of each span of the labelling.
    thresholds (float64[L]): The least probability of a span of each label.
    decoding (Decoding): The decoding of the component.
    settled (Optional[bool[T]]): Tokens whose spans stay, whatever their probability.
    RETURNS (int32[T], bool[N]): The new tags, and which spans have stayed.
    """
    begin, end, label = decoding.segments(tags, starts)
    is_unlikely = probabilities < thresholds[label]
    if settled is not None:
        is_unlikely = is_unlikely & ~settled[begin]
    covered = _covered(begin[is_unlikely], end[is_unlikely], len(tags))
    return np.where(covered, decoding.outside, tags).astype(np.int32), ~is_unlikely


def _covered(begin: Ints, end: Ints, n_tokens: int) -> Bools:
    """Which tokens the spans cover: bool[T]."""
    # Spans may overlap: count the spans that begin at each token, minus those that end there
    changes = np.zeros(n_tokens + 1, dtype=np.int64)
    np.add.at(changes, begin, 1)
    np.add.at(changes, end, -1)
    return np.cumsum(changes[:-1]) > 0


def labelling(name: str, doc: Doc, spans: Iterable[Span], *, overlap: bool = False) -> list[tuple[int, int, str]]:
    """Check the spans of one labelling of a Doc.

    name (str): The component, for messages.
    doc (Doc): The text.
    spans (Iterable[Span]): Spans of this Doc, or of another Doc with the same words.
    overlap (bool): Whether the spans may overlap.
    RETURNS (List[Tuple[int, int, str]]): First token, token behind the last, and label of each span, in order.
    RAISES (ValueError): CRF461 for anything but spans, CRF462 for spans of other words, CRF409 for overlaps.
    """
    rows = []
    if not isinstance(spans, Iterable) or isinstance(spans, (Doc, Span)):
        raise ValueError(Errors.CRF461.format(name=name, value=shown(spans)))
    for span in spans:
        if not isinstance(span, Span) or not len(span):
            raise ValueError(Errors.CRF461.format(name=name, value=shown(span)))
        if span.doc is not doc and [token.text for token in span.doc] != [token.text for token in doc]:
            raise ValueError(
                Errors.CRF462.format(name=name, span=span.text, other=span.doc.text[:40], doc=doc.text[:40])
            )
        rows.append((span.start, span.end, span.label_))
    rows.sort()
    for pair in pairwise(rows):
        (_, end_of_first, _), (begin_of_second, _, _) = pair
        if begin_of_second < end_of_first and not overlap:
            one, other = [f"'{doc[begin:end].text}' ({label}, tokens {begin} to {end})" for begin, end, label in pair]
            raise ValueError(Errors.CRF409.format(name=name, one=one, other=other))
    return rows
