"""Compare annotation with what a component found: right mentions, and mistakes by kind."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..pipeline.annotation.annotation import Mention
from ..pipeline.prediction import CRFPipe, tell_probabilities

# Kinds of cases, and their names in reports
KINDS = {
    "right": "right",
    "label": "wrong label",
    "boundary": "wrong boundary",
    "both": "wrong label and boundary",
    "missed": "missed",
    "spurious": "spurious",
}
LEAST = 1e-3  # lowest probability that is shown for missed mentions


class Case(NamedTuple):
    """A mention in the annotation, a mention that a component found, or a pair of them."""

    doc: int  # number of the text
    kind: str  # one of KINDS
    gold: Optional[Mention]
    found: Optional[Mention]

    @property
    def mention(self) -> Mention:
        """The mention that was found, else the annotated one."""
        return self.found or self.gold

    @property
    def places(self) -> tuple[int, int]:
        """First and last character of both mentions."""
        both = [mention for mention in (self.gold, self.found) if mention is not None]
        return min(mention.start for mention in both), max(mention.end for mention in both)


class Judged(NamedTuple):
    """The predictions of a component for some texts, compared with the annotation."""

    pipe: CRFPipe
    examples: list[Example]  # predicted by the pipeline
    cases: list[Case]  # in the order of the texts
    texts: list[str]  # kept, since spaCy joins the tokens in each call

    @property
    def errors(self) -> list[Case]:
        return [case for case in self.cases if case.kind != "right"]


def judge(nlp: Language, pipes: Sequence[CRFPipe], examples: Iterable[Example]) -> list[Judged]:
    """Run a pipeline, and compare what its components find with the annotation. Tokens without annotation are not compared.

    nlp (Language): The pipeline. From now on, its components set the probabilities of entities.
    pipes (Sequence[CRFPipe]): Components of the pipeline.
    examples (Iterable[Example]): Annotated texts.
    RETURNS (list[Judged]): One for each component.
    """
    tell_probabilities(pipes)
    examples = list(examples)
    docs = nlp.pipe(example.predicted.copy() for example in examples)
    compared = [Example(doc, example.reference) for doc, example in zip(docs, examples)]
    texts = [example.reference.text for example in examples]
    return [Judged(pipe, compared, _cases(pipe, compared), texts) for pipe in pipes]


def certainty(case: Case) -> float:
    """The model's certainty of a mistake: the probability of what it found, or of not having what it missed."""
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
    """Pair found mentions with annotated ones: by place and label, else by place, else by label, else by the number of shared
    characters. Each mention is used once.

    RETURNS (list): Kind, annotated mention and found mention of each case, in the order of the text.
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
    """Probabilities of all spans above LEAST, computed without the entities that the pipeline set."""
    spans = pipe.span_probabilities(doc, LEAST)
    return {(span.start_char, span.end_char, span.label_): probability for span, probability in spans}


def _weighed(gold: Optional[Mention], known: dict[tuple[int, int, str], float]) -> Optional[Mention]:
    return gold and gold._replace(probability=known.get(gold.place, 0.0))
