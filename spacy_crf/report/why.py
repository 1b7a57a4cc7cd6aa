"""Why a component makes its mistakes."""

from ..explain.question import NothingToCompare
from .cases import Case, Judged, certainty

MOST = 200  # mistakes that are explained, the surest
TOP = 6  # features of each

Reason = tuple[str, str, float]  # feature, its words, what it adds


def reasons(judged: Judged, most: int = MOST) -> dict[int, list[Reason]]:
    """What speaks for what was found against what is annotated, or else against anything; and of what was missed, what speaks for
    and against it.

    RETURNS (dict[int, list[Reason]]): By the number of the mistake, for the surest ones.
    """
    numbered = sorted(enumerate(judged.errors), key=lambda item: -certainty(item[1]))[:most]
    return {number: found for number, case in numbered if (found := _reasons(judged, case))}


def _reasons(judged: Judged, case: Case) -> list[Reason]:
    doc = judged.examples[case.doc].predicted
    spans = [
        doc.char_span(mention.start, mention.end, label=mention.label)
        for mention in (case.found, case.gold)
        if mention is not None and mention.label in judged.pipe.labels
    ]
    if not spans or None in spans:
        return []  # it is of another tokenization
    try:
        explanation = judged.pipe.explain(doc, *spans)
    except NothingToCompare:  # such as an entity that crosses sentences
        return []
    rows = explanation.table(TOP)[:TOP]
    return [(feature, words, float(contribution)) for contribution, feature, words, _ in rows]
