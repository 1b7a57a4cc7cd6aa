"""Compares annotation with a component's predictions: right mentions, mistakes by kind, features and rules behind mistakes; for
components that label texts, right and wrong labels, and the words for them."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple, Optional, TypeGuard, cast

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..explain.comparison import NothingToCompare, effects
from ..explain.explanation import shorter
from ..pipeline.annotation.cats import Cats
from ..pipeline.annotation.trimming import Mention, tell_trimmed
from ..pipeline.crf_textcat import CRFTextClassifier
from ..pipeline.prediction import CRFPipe
from ..pipeline.probabilities import tell_probabilities
from .suspects import Suspect, is_of_texts

# Kinds of cases, and their names in reports
KINDS = {
    "right": "right",
    "label": "wrong label",
    "boundary": "wrong boundary",
    "both": "wrong label and boundary",
    "missed": "missed",
    "spurious": "spurious",
}
LEAST = 1e-3  # lowest probability of missed mentions that is shown


class Case(NamedTuple):
    """An annotated mention, a mention that a component found, or a pair of both."""

    doc: int  # number of the text
    kind: str  # one of KINDS
    gold: Optional[Mention]
    found: Optional[Mention]

    @property
    def places(self) -> tuple[int, int]:
        """First character of both mentions together, and the character behind their last."""
        both = [mention for mention in (self.gold, self.found) if mention is not None]
        return min(mention.start for mention in both), max(mention.end for mention in both)


class Judged(NamedTuple):
    """The predictions of a component for some texts, compared with the annotation."""

    pipe: CRFPipe
    examples: list[Example]  # predicted by the pipeline
    cases: list[Case]  # in the order of the texts
    texts: list[str]  # stored, since spaCy joins the tokens in each call of `doc.text`
    held_out: bool = False  # whether each text was predicted by a model that was trained without it
    training: Sequence[Example] = ()  # the texts that the component was trained on
    suspects: Optional[Sequence[Suspect]] = None  # suspects in the training texts; None if they were not searched

    @property
    def of_texts(self) -> bool:
        """Whether the component labels texts."""
        return is_of_texts(self.pipe)

    @property
    def errors(self) -> list[Case]:
        return [case for case in self.cases if case.kind != "right"]


def judge(
    nlp: Language, pipes: Sequence[CRFPipe], examples: Iterable[Example], *, held_out: bool = False
) -> list[Judged]:
    """Run a pipeline, and compare the predictions of its components with the annotation. Skips tokens without annotation.

    nlp (Language): The pipeline. This call switches on the probabilities of entities in its components.
    held_out (bool): Use the predictions in the examples, which come from models that have not seen the texts.
    RETURNS (list[Judged]): One for each component.
    """
    examples = list(examples)
    for pipe in pipes:
        tell_trimmed(pipe, (example.reference for example in examples))
    if not held_out:
        tell_probabilities(pipes)
        docs = nlp.pipe(example.predicted.copy() for example in examples)
        examples = [Example(doc, example.reference) for doc, example in zip(docs, examples)]
    texts = [example.reference.text for example in examples]
    return [Judged(pipe, examples, _cases(pipe, examples, held_out), texts, held_out) for pipe in pipes]


def certainty(case: Case) -> float:
    """The model's certainty of a mistake: the probability of the found mention, or of the absence of the missed mention."""
    if case.found is not None:
        return case.found.probability or 0.0
    missed: Any = case.gold
    return 1.0 - (missed.probability or 0.0)


def _cases(pipe: CRFPipe, examples: list[Example], held_out: bool) -> list[Case]:
    cases = []
    for number, example in enumerate(examples):
        if is_of_texts(pipe):
            cases += [Case(number, *matched) for matched in matches(pipe, example)]
            continue
        of_text = [Case(number, *matched) for matched in match(*pipe.annotation.mentions(example))]
        if not held_out and any(
            (case.gold and case.kind != "right") or _lacks_probability(case.found) for case in of_text
        ):
            # Ignore the entities that the pipeline set
            likely = pipe.span_probabilities(example.predicted, LEAST)
            known = {(span.start_char, span.end_char, span.label_): probability for span, probability in likely}
            of_text = [
                case._replace(
                    gold=case.gold and case.gold._replace(probability=known.get(case.gold.place, 0.0)),
                    found=case.found._replace(probability=known.get(case.found.place))
                    if _lacks_probability(case.found)
                    else case.found,
                )
                for case in of_text
            ]
        cases.extend(of_text)
    return cases


def _lacks_probability(found: Optional[Mention]) -> TypeGuard[Mention]:
    """Whether a mention was found whose own probability the Doc does not have: that of one of several labels of a token."""
    return found is not None and found.probability is None


def match(gold: Iterable[Mention], found: Iterable[Mention]) -> list[tuple[str, Optional[Mention], Optional[Mention]]]:
    """Pair found mentions with annotated ones: by place and label, else by place, else by label, else by the number of shared
    characters. Each mention is used once.

    RETURNS (list): Kind, annotated mention and found mention of each case, in the order of the text.
    """
    missed = {mention.place: mention for mention in gold}
    spurious = {mention.place: mention for mention in found}
    matched: list[tuple[str, Any, Any]] = [
        ("right", missed.pop(place), spurious.pop(place)) for place in missed.keys() & spurious.keys()
    ]
    # Of the mentions that overlap, the most alike become pairs first
    pairs = [(g, f) for g, f in product(missed.values(), spurious.values()) if g.start < f.end and f.start < g.end]
    for g, f in sorted(pairs, key=lambda pair: _likeness(*pair), reverse=True):
        if g.place in missed and f.place in spurious:
            same_place, same_label, *_ = _likeness(g, f)
            kind = "label" if same_place else "boundary" if same_label else "both"
            matched.append((kind, missed.pop(g.place), spurious.pop(f.place)))
    matched += [("missed", g, None) for g in missed.values()]
    matched += [("spurious", None, f) for f in spurious.values()]
    matched.sort(key=lambda item: ((item[1] or item[2]).start, (item[2] or item[1]).start))
    return matched


def _likeness(gold: Mention, found: Mention) -> tuple[bool, bool, int, int]:
    same_place = (gold.start, gold.end) == (found.start, found.end)
    shared = min(gold.end, found.end) - max(gold.start, found.start)
    return same_place, gold.label == found.label, shared, -gold.start


# ------------------------------------------------------------------------------------------------------------- reasons

MOST_EXPLAINED = 200  # number of explained mistakes, the most certain ones
MOST_ENCODED = 50  # the same for models with an encoder, which reads a text again without each word
TOP = 6  # number of words in each explanation
NEAR = 10  # number of words on each side of a mistake that an explanation looks at

Reason = tuple[str, float]  # a word, and how much the log-odds fall without it


def reasons(judged: Judged, most: int = MOST_EXPLAINED) -> dict[int, list[Reason]]:
    """Explain the most certain mistakes: by words for the found mention against the annotated one, or against all alternatives
    if there is no annotated one; for a missed mention, by words for and against it.

    RETURNS (dict[int, list[Reason]]): Reasons by the number of the mistake; none for held-out texts, labelled by other models.
    """
    if judged.held_out:
        return {}
    most = most if judged.pipe.is_linear else min(most, MOST_ENCODED)
    # An explanation takes longer than a prediction, and sure mistakes say most about the annotation and the features
    numbered = sorted(enumerate(judged.errors), key=lambda item: -certainty(item[1]))[:most]
    every = {number: _reasons(judged, case) for number, case in numbered}
    return {number: found for number, found in every.items() if found}


def _reasons(judged: Judged, case: Case) -> list[Reason]:
    doc = judged.examples[case.doc].predicted
    if is_of_texts(judged.pipe):
        labels = [mention.label for mention in (case.found, case.gold) if mention is not None]
        return words_for(judged.pipe, doc, labels[0], TOP) if len(doc) and labels[0] in judged.pipe.labels else []
    spans = [
        doc.char_span(mention.start, mention.end, label=mention.label)
        for mention in (case.found, case.gold)
        if mention is not None and mention.label in judged.pipe.labels
    ]
    if not spans or None in spans:
        return []  # the annotation has another tokenization
    try:
        explanation = judged.pipe.explain(doc, *spans, kind="words", candidates=0, near=NEAR)
    except NothingToCompare:  # such as an entity that crosses sentences
        return []
    rows = explanation.table(TOP)[:TOP]
    return [(word, float(contribution)) for contribution, word in rows]


MOST_TEXTS = 1000  # number of texts on which the effects of rules are computed


def rule_effects(judged: Judged) -> list[dict[str, object]]:
    """Compute the effects of each rule on the first `MOST_TEXTS` texts: the number of texts in which it changes the labelling
    under the rules before it, and the numbers of annotated mentions that it mends (adds) and breaks (removes)."""
    effects = []
    for pipe in judged.pipe.chains:
        if pipe.rules() is not None:
            effects += _effects_in(pipe, judged.examples[:MOST_TEXTS])
    return effects


def _effects_in(pipe: CRFPipe, examples: list[Example]) -> list[dict[str, object]]:
    """The effects of the rules of a component with a single chain, which has rules."""
    rules: Any = pipe.rules()
    found = {
        rule.name: {
            "rule": rule.name,
            "weight": "hard" if rule.hard else f"{rule.weight:g}",
            **dict.fromkeys(("changed", "mended", "broken"), 0),
        }
        for rule in rules.all.rules
    }
    for example in examples:
        if not len(example.predicted):
            continue
        gold = {mention.place for mention in pipe.annotation.mentions(example)[0]}
        before, changes = effects(pipe, example.predicted)
        right = _right(before, gold)
        for rule, spans, _ in changes:
            now = _right(spans, gold)
            found[rule.name]["changed"] += 1
            found[rule.name]["mended"] += len(now - right)
            found[rule.name]["broken"] += len(right - now)
            right = now
    return list(found.values())


def _right(spans: Sequence[Span], gold: set[tuple[int, int, str]]) -> set[tuple[int, int, str]]:
    return {(span.start_char, span.end_char, span.label_) for span in spans} & gold


# Kind, annotated label and found label
Matched = tuple[str, Optional[Mention], Optional[Mention]]


def matches(pipe: CRFTextClassifier, example: Example) -> list[Matched]:
    """Compare the labels of a text with its annotation. Labels that the annotation does not mention are not judged."""
    reference = example.reference
    found = _found(pipe, example.predicted)
    known = example.predicted.cats
    annotated = [label for label, value in reference.cats.items() if value == 1.0]
    gold = {label: Mention(0, len(reference.text), label, known.get(label, 0.0)) for label in annotated}
    if pipe.cfg["multilabel"]:
        of_text: list[Matched] = []
        for label in reference.cats:
            if label in gold and label in found:
                of_text.append(("right", gold[label], found[label]))
            elif label in gold:
                of_text.append(("missed", gold[label], None))
            elif label in found:
                of_text.append(("spurious", None, found[label]))
        return of_text
    if cast(Cats, pipe.annotation).label_of(reference) is None or not found:
        return []
    [(right, said)] = gold.items()
    [(label, best)] = found.items()
    return [("right" if label == right else "label", said, best)]


def _found(pipe: CRFTextClassifier, doc: Doc) -> dict[str, Mention]:
    """The labels that a text has got, by the probabilities in ``doc.cats``."""
    own = {label: doc.cats[label] for label in pipe.labels if label in doc.cats}
    return {label: Mention(0, len(doc.text), label, own[label]) for label in pipe.decided(own)}


def words_for(pipe: CRFTextClassifier, doc: Doc, label: str, most: int) -> list[tuple[str, float]]:
    """The words (or sentences) of a text that speak most for a label, or against it, see `CRFTextClassifier.evidence`."""
    evidence = [(" ".join(span.text.split()), value) for span, value in pipe.evidence(doc, label)]
    evidence.sort(key=lambda item: -abs(item[1]))
    return [(shorter(words), value) for words, value in evidence[:most]]
