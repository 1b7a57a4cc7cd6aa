"""Compares annotation with a component's predictions: right mentions, mistakes by kind, features and rules behind mistakes; for
components that label texts, right and wrong labels, and the words for them."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple, Optional, cast

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..explain.comparison import NothingToCompare, effects
from ..explain.explanation import shorter
from ..pipeline.annotation.cats import Cats
from ..pipeline.annotation.trimming import Mention, warn_of_trimmed
from ..pipeline.crf_textcat import CRFTextClassifier
from ..pipeline.prediction import CRFPipe
from ..pipeline.probabilities import turn_on_confidence
from .suspects import Suspect, labels_texts

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
    def extent(self) -> tuple[int, int]:
        """The first character of the annotated and the found mention together, and the character behind their last."""
        mentions = [mention for mention in (self.gold, self.found) if mention is not None]
        return min(mention.start for mention in mentions), max(mention.end for mention in mentions)


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
    def labels_texts(self) -> bool:
        """Whether the component labels whole texts."""
        return labels_texts(self.pipe)

    @property
    def errors(self) -> list[Case]:
        return [case for case in self.cases if case.kind != "right"]


def judge(
    nlp: Language, pipes: Sequence[CRFPipe], examples: Iterable[Example], *, held_out: bool = False
) -> list[Judged]:
    """Run a pipeline, and compare the predictions of its components with the annotation. Skips tokens without annotation.

    nlp (Language): The pipeline. This call switches on the probabilities of entities in its components.
    held_out (bool): Use the predictions in the examples, which come from models that have not seen the texts.
    RETURNS (list[Judged]): The comparison for each component.
    """
    examples = list(examples)
    for pipe in pipes:
        warn_of_trimmed(pipe, (example.reference for example in examples))
    if not held_out:
        turn_on_confidence(pipes)
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
    """Compare the predictions of a component with the annotation, text by text.

    held_out (bool): Whether other models predicted the texts: then the component has no probabilities for these predictions.
    """
    cases = []
    for number, example in enumerate(examples):
        if labels_texts(pipe):
            cases += match_labels(pipe, example, number)
            continue
        gold, found = pipe.annotation.mentions(example)
        of_text = match(gold, found, number)
        # The probabilities of all spans take longer than a prediction: compute them only where a case needs one
        if not held_out and any(_lacks_probability(case) for case in of_text):
            of_text = _with_probabilities(of_text, pipe, example.predicted)
        cases += of_text
    return cases


def _lacks_probability(case: Case) -> bool:
    """Whether a mention was missed, or was found without a probability of its own, as the second label of a token is."""
    if case.gold is not None and case.kind != "right":
        return True
    return case.found is not None and case.found.probability is None


def _with_probabilities(cases: list[Case], pipe: CRFPipe, doc: Doc) -> list[Case]:
    """Set the probabilities of the annotated mentions of a text, and of found mentions that have none."""
    # These ignore the preset annotation, and so the entities that the pipeline has set in the Doc
    likely = pipe.span_probabilities(doc, LEAST)
    probabilities = {(span.start_char, span.end_char, span.label_): probability for span, probability in likely}
    complete = []
    for case in cases:
        gold = case.gold
        found = case.found
        if gold is not None:
            gold = gold._replace(probability=probabilities.get(gold.place, 0.0))
        if found is not None and found.probability is None:
            found = found._replace(probability=probabilities.get(found.place))
        complete.append(case._replace(gold=gold, found=found))
    return complete


def match(gold: Iterable[Mention], found: Iterable[Mention], doc: int = 0) -> list[Case]:
    """Pair found mentions with annotated ones: by place and label, else by place, else by label, else by the number of shared
    characters. Each mention is used once.

    doc (int): Number of the text.
    RETURNS (list[Case]): In the order of the text.
    """
    missed = {mention.place: mention for mention in gold}
    spurious = {mention.place: mention for mention in found}
    cases = []
    for place in missed.keys() & spurious.keys():
        cases.append(Case(doc, "right", missed.pop(place), spurious.pop(place)))
    # Of the mentions that overlap, the most alike become pairs first
    pairs = [(g, f) for g, f in product(missed.values(), spurious.values()) if g.start < f.end and f.start < g.end]
    for annotated, predicted in sorted(pairs, key=lambda pair: _likeness(*pair), reverse=True):
        if annotated.place not in missed or predicted.place not in spurious:
            continue  # one of them has a partner already
        same_place, same_label, _, _ = _likeness(annotated, predicted)
        kind = "label" if same_place else "boundary" if same_label else "both"
        cases.append(Case(doc, kind, missed.pop(annotated.place), spurious.pop(predicted.place)))
    cases += [Case(doc, "missed", mention, None) for mention in missed.values()]
    cases += [Case(doc, "spurious", None, mention) for mention in spurious.values()]
    cases.sort(key=_starts)
    return cases


def _likeness(gold: Mention, found: Mention) -> tuple[bool, bool, int, int]:
    """Sort key of pairs: the same place, the same label, the number of shared characters, and the earlier annotated mention."""
    same_place = (gold.start, gold.end) == (found.start, found.end)
    shared = min(gold.end, found.end) - max(gold.start, found.start)
    return same_place, gold.label == found.label, shared, -gold.start


def _starts(case: Case) -> tuple[int, int]:
    """Sort key of cases: the starts of the annotated and the found mention. The only mention of a case counts as both."""
    mentions = [mention for mention in (case.gold, case.found) if mention is not None]
    return mentions[0].start, mentions[-1].start


# ------------------------------------------------------------------------------------------------------------- reasons

MOST_EXPLAINED = 200  # number of explained mistakes, the most certain ones
MOST_ENCODED = 50  # the same for models with an encoder, which reads a text again without each word
TOP = 6  # number of words in each explanation
NEAR = 10  # number of words on each side of a mistake that an explanation looks at

Reason = tuple[str, float]  # a word, and how much the log-odds fall without it


def reasons(judged: Judged, most: int = MOST_EXPLAINED) -> dict[int, list[Reason]]:
    """Explain the most certain mistakes by words. A found mention is compared with the annotated one, or with everything else if
    there is none. A missed mention is compared with everything else.

    RETURNS (dict[int, list[Reason]]): Reasons by the number of the mistake; none for held-out texts, labelled by other models.
    """
    if judged.held_out:
        return {}
    if not judged.pipe.is_linear:
        most = min(most, MOST_ENCODED)
    # An explanation takes longer than a prediction, and sure mistakes say most about the annotation and the features
    numbered = sorted(enumerate(judged.errors), key=lambda item: -certainty(item[1]))
    explained = {}
    for number, case in numbered[:most]:
        words = _reasons(judged, case)
        if words:
            explained[number] = words
    return explained


def _reasons(judged: Judged, case: Case) -> list[Reason]:
    """The words behind a mistake; none if the component can't explain it, as for a label that it does not have."""
    pipe = judged.pipe
    doc = judged.examples[case.doc].predicted
    mentions = [mention for mention in (case.found, case.gold) if mention is not None]
    if labels_texts(pipe):
        label = mentions[0].label
        return words_for(pipe, doc, label, TOP) if len(doc) and label in pipe.labels else []
    spans = []
    for mention in mentions:
        if mention.label in pipe.labels:
            spans.append(doc.char_span(mention.start, mention.end, label=mention.label))
    if not spans or None in spans:
        return []  # the annotation has another tokenization
    try:
        # Explain the first span, against the second one if there are two
        explanation = pipe.explain(doc, *spans, kind="words", candidates=0, near=NEAR)
    except NothingToCompare:  # such as an entity that crosses sentences
        return []
    rows = explanation.table(TOP)[:TOP]  # without the row that sums up other words
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
    rows = {}
    for rule in rules.all.rules:
        weight = "hard" if rule.hard else f"{rule.weight:g}"
        rows[rule.name] = {"rule": rule.name, "weight": weight, "changed": 0, "mended": 0, "broken": 0}
    for example in examples:
        if not len(example.predicted):
            continue
        annotated, _ = pipe.annotation.mentions(example)
        gold = {mention.place for mention in annotated}
        without_rules, changes = effects(pipe, example.predicted)
        right_before = _right(without_rules, gold)
        for rule, spans, _ in changes:
            right = _right(spans, gold)
            rows[rule.name]["changed"] += 1
            rows[rule.name]["mended"] += len(right - right_before)
            rows[rule.name]["broken"] += len(right_before - right)
            right_before = right
    return list(rows.values())


def _right(spans: Sequence[Span], gold: set[tuple[int, int, str]]) -> set[tuple[int, int, str]]:
    """The spans, by their characters and labels, that are annotated (`gold`)."""
    return {(span.start_char, span.end_char, span.label_) for span in spans} & gold


def match_labels(pipe: CRFTextClassifier, example: Example, doc: int) -> list[Case]:
    """Compare the labels of a text with its annotation. Labels that the annotation does not mention are not judged.

    doc (int): Number of the text.
    """
    reference = example.reference
    found = _found_labels(pipe, example.predicted)
    gold = {}
    for label, value in reference.cats.items():
        if value == 1.0:
            gold[label] = Mention(0, len(reference.text), label, example.predicted.cats.get(label, 0.0))
    if pipe.cfg["multilabel"]:
        cases = []
        for label in reference.cats:
            if label in gold and label in found:
                cases.append(Case(doc, "right", gold[label], found[label]))
            elif label in gold:
                cases.append(Case(doc, "missed", gold[label], None))
            elif label in found:
                cases.append(Case(doc, "spurious", None, found[label]))
        return cases
    if cast(Cats, pipe.annotation).label_of(reference) is None or not found:
        return []
    [annotated] = gold.values()
    [predicted] = found.values()
    kind = "right" if annotated.label == predicted.label else "label"
    return [Case(doc, kind, annotated, predicted)]


def _found_labels(pipe: CRFTextClassifier, doc: Doc) -> dict[str, Mention]:
    """The labels that the component decides for, by the probabilities in ``doc.cats``; each as a mention of the whole text."""
    probabilities = {label: doc.cats[label] for label in pipe.labels if label in doc.cats}
    size = len(doc.text)
    return {label: Mention(0, size, label, probabilities[label]) for label in pipe.decided(probabilities)}


def words_for(pipe: CRFTextClassifier, doc: Doc, label: str, most: int) -> list[Reason]:
    """The words (or sentences) of a text that speak most for a label, or against it, see `CRFTextClassifier.evidence`."""
    evidence = [(" ".join(span.text.split()), value) for span, value in pipe.evidence(doc, label)]
    evidence.sort(key=lambda item: -abs(item[1]))
    return [(shorter(words), value) for words, value in evidence[:most]]
