"""What the annotation says and what a component found, side by side: what is right, and what kind of mistake the rest is."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..pipeline.annotation.annotation import Mention
from ..pipeline.crf_pipe import CRFPipe
from ..pipeline.prediction import tell_probabilities

# What a case is, and how it is said
KINDS = {
    "right": "right",
    "label": "wrong label",
    "boundary": "wrong boundary",
    "both": "wrong label and boundary",
    "missed": "missed",
    "spurious": "spurious",
}
LEAST = 1e-3  # probabilities of what was not found are told from here on


class Case(NamedTuple):
    """Something that the annotation names, or a component found, or both where they meet."""

    doc: int  # number of the text
    kind: str  # one of KINDS
    gold: Optional[Mention]
    found: Optional[Mention]

    @property
    def mention(self) -> Mention:
        """What it is about: what was found, else what should have been."""
        return self.found or self.gold

    @property
    def places(self) -> tuple[int, int]:
        """Characters of all that it is about."""
        both = [mention for mention in (self.gold, self.found) if mention is not None]
        return min(mention.start for mention in both), max(mention.end for mention in both)


class Judged(NamedTuple):
    """A component's work on some texts."""

    pipe: CRFPipe
    examples: list[Example]  # with what the pipeline found as their prediction
    cases: list[Case]  # in the order of the texts
    texts: list[str]  # spaCy would put them together each time

    @property
    def errors(self) -> list[Case]:
        return [case for case in self.cases if case.kind != "right"]


def judge(nlp: Language, pipes: Sequence[CRFPipe], examples: Iterable[Example]) -> list[Judged]:
    """Runs a pipeline, and compares what its components find with the annotation. Where that is missing, nothing is compared.

    nlp (Language): The pipeline; the components tell their confidence from now on.
    pipes (Sequence[CRFPipe]): Components of it.
    examples (Iterable[Example]): Annotated texts.
    RETURNS (list[Judged]): For each component.
    """
    tell_probabilities(pipes)
    examples = list(examples)
    docs = nlp.pipe(example.predicted.copy() for example in examples)
    compared = [Example(doc, example.reference) for doc, example in zip(docs, examples)]
    texts = [example.reference.text for example in examples]
    return [Judged(pipe, compared, _cases(pipe, compared), texts) for pipe in pipes]


def certainty(case: Case) -> float:
    """How sure the model is of a mistake: the probability of what it found, or that of leaving out what it missed."""
    if case.found is not None:
        return case.found.probability or 0.0
    return 1.0 - (case.gold.probability or 0.0)


def _cases(pipe: CRFPipe, examples: list[Example]) -> list[Case]:
    cases = []
    for number, example in enumerate(examples):
        of_text = [Case(number, *matched) for matched in match(*pipe.annotation.mentions(example))]
        if any(case.gold and case.kind != "right" for case in of_text):
            known = _probabilities(pipe, example.predicted)
            of_text = [case._replace(gold=_weighed(case.gold, known)) for case in of_text]
        cases.extend(of_text)
    return cases


def match(gold: Iterable[Mention], found: Iterable[Mention]) -> list[tuple[str, Optional[Mention], Optional[Mention]]]:
    """Which mention that was found stands for which of the annotation: one with the same place and label, else with the same
    place, else with the same label, else the one that it shares the most characters with. Each is used once.

    RETURNS (list): Kind, what the annotation says, and what was found; in the order of the text.
    """
    gold, found = {mention.place: mention for mention in gold}, {mention.place: mention for mention in found}
    matched = [("right", gold.pop(place), found.pop(place)) for place in gold.keys() & found.keys()]
    pairs = [(g, f) for g in gold.values() for f in found.values() if g.start < f.end and f.start < g.end]
    for g, f in sorted(pairs, key=lambda pair: _likeness(*pair), reverse=True):
        if g.place in gold and f.place in found:
            matched.append((_kind(g, f), gold.pop(g.place), found.pop(f.place)))
    matched += [("missed", g, None) for g in gold.values()]
    matched += [("spurious", None, f) for f in found.values()]
    return sorted(matched, key=lambda item: ((item[1] or item[2]).start, (item[2] or item[1]).start))


def _likeness(gold: Mention, found: Mention) -> tuple[bool, bool, int, int]:
    same_place = (gold.start, gold.end) == (found.start, found.end)
    shared = min(gold.end, found.end) - max(gold.start, found.start)
    return same_place, gold.label == found.label, shared, -gold.start


def _kind(gold: Mention, found: Mention) -> str:
    same_place, same_label = _likeness(gold, found)[:2]
    if same_place:
        return "label"
    return "boundary" if same_label else "both"


def _probabilities(pipe: CRFPipe, doc: Doc) -> dict[tuple[int, int, str], float]:
    """Of all spans that have some, as they are without what the pipeline wrote."""
    spans = pipe.span_probabilities(doc, LEAST)
    return {(span.start_char, span.end_char, span.label_): probability for span, probability in spans}


def _weighed(gold: Optional[Mention], known: dict[tuple[int, int, str], float]) -> Optional[Mention]:
    return gold and gold._replace(probability=known.get(gold.place, 0.0))
