"""Reads files of teachers' answers: JSONL with the entities of each text, by offset or by their words, as transformer pipelines
and language models write them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, Optional

from spacy.tokens import Doc

from .. import checks
from ..errors import shown
from .formats.annotation import Span, parse_span
from .formats.source import Fields, unreadable
from .texts import read_items

Soft = list[tuple[int, int, str, float]]  # first token, token behind the last, label ("" for unknown), probability
Labelled = tuple[int, int, str]  # the first three of these
UNSURE = ""


class Answer(NamedTuple):
    place: str
    text: str
    spans: list[tuple[Span, float]]  # with scores; the label UNSURE marks parts about which the teacher is unsure

    def of_tokens(self, doc: Doc) -> Soft:
        """Soft labels of the tokens of a Doc. Tokens of a span that does not align with them are UNSURE."""
        found = []
        for (start, end, label), score in self.spans:
            exact = doc.char_span(start, end)
            touched = doc.char_span(start, end, alignment_mode="expand")
            if exact is not None and label:
                found.append((exact.start, exact.end, label, score))
            elif touched is not None:
                found.append((touched.start, touched.end, UNSURE, 1.0))
        return found


def read_answers(path: Path, labels: Optional[list[str]]) -> Iterator[Answer]:
    """Read answers from JSONL: each has a "text", its "entities", and optionally a list of its "unsure" parts.

    labels (list[str]): The labels that entities may have; None for any.
    RAISES (ValueError): With file and line, CRF701 or CRF871 for an answer that can't be read, CRF846 for other labels.
    """
    for place, fields in read_items(path):
        text = fields["text"]
        met = Counter()
        entities = fields.get("entities")
        unsure = fields.get("unsure") or []
        if not isinstance(entities, list) or not isinstance(unsure, list):
            raise unreadable(place, 'an answer needs a list under "entities"; "unsure" is a list, too')
        spans = [_entity(entity, text, met, labels, place) for entity in entities]
        # A teacher that lists some words twice means the first two occurrences
        for words, n in met.items():  # further occurrences of words that the teacher listed n times
            spans += [(Span(begin, begin + len(words), UNSURE), 1.0) for begin in _places(words, text, place)[n:]]
        for part in unsure:
            if isinstance(part, str) or (isinstance(part, dict) and "start" not in part):
                words: Any = part if isinstance(part, str) else part.get("text")
                spans += [(Span(at, at + len(words), UNSURE), 1.0) for at in _places(words, text, place)]
            else:
                given = {**part, "label": "unsure"} if isinstance(part, dict) else part
                spans.append((parse_span(given, text, place)._replace(label=UNSURE), 1.0))
        yield Answer(place, text, spans)


def _entity(
    entity: object, text: str, met: Counter[str], labels: Optional[list[str]], place: str
) -> tuple[Span, float]:
    """Read the span and the score of an entity. met (Counter[str]): Number of earlier entities with the same words, by words."""
    fields: Fields = entity if isinstance(entity, dict) else {}
    label = fields.get("label", fields.get("entity_group"))
    score = fields.get("score", 1.0)
    if "start" in fields or "text" not in fields:
        span = parse_span({**fields, "label": label} if fields else entity, text, place)
    else:
        words = fields["text"]
        places = _places(words, text, place)
        begin = places[min(met[words], len(places) - 1)]
        span = parse_span({"start": begin, "end": begin + len(words), "label": label}, text, place)
        met[words] += 1
    if not isinstance(score, Real) or isinstance(score, bool) or not 0.0 <= score <= 1.0:  # pyright: ignore[reportOperatorIssue]
        raise unreadable(place, f"the score of {span.named_in(text)} is {shown(score)}, and needs to be from 0 to 1")
    if labels is not None:
        checks.labels(f"{place}, {span.named_in(text)}", [span.label], labels)
    return span, float(score)


def _places(words: object, text: str, place: str) -> list[int]:
    """Places of some words in a text, as whole words or else anywhere. RAISES (ValueError): CRF701 if they do not occur."""
    if isinstance(words, str) and words.strip():
        pattern = re.escape(words)
        # Language models write words without their places: whole words are likelier than parts
        for around in (rf"(?<!\w){pattern}(?!\w)", pattern):
            found = [match.start() for match in re.finditer(around, text)]
            if found:
                return found
    raise unreadable(place, f"{shown(words)} does not occur in the text {shown(text)}")


def certain(found: Soft, min_prob: float, min_score: float, labels: Optional[list[str]]) -> Soft:
    """Remove soft labels below `min_prob`, and labels other than `labels`. Tokens whose spans all score less than `min_score`
    become UNSURE."""
    wanted = [part for part in found if not part[2] or (part[3] >= min_prob and (labels is None or part[2] in labels))]
    sure = [part for part in wanted if not part[2] or part[3] >= min_score]
    doubted = _tokens(wanted) - _tokens(sure)
    return sorted([*sure, *((t, t + 1, UNSURE, 1.0) for t in doubted)])


def agreed(answers: list[Soft], n_tokens: int) -> tuple[Soft, float]:
    """Average the soft labels of several teachers. Tokens where their most probable labels differ become UNSURE; a teacher that
    is unsure about a token leaves it to the others.

    RETURNS (Tuple[Soft, float]): The soft labels, and the share of tokens where teachers differ.
    """
    unsure = []
    for found in answers:
        unsure.append(_tokens([part for part in found if not part[2]]))
    opinions: list[set[Optional[Labelled]]] = [
        set() for _ in range(n_tokens)
    ]  # by token, of the teachers that are sure
    for found, open_ in zip(answers, unsure):
        for t, decision in enumerate(_decisions(found, n_tokens)):
            if t not in open_:
                opinions[t].add(decision)
    differ = {t for t, of_token in enumerate(opinions) if len(of_token) > 1}
    unknown = differ | {t for t, of_token in enumerate(opinions) if not of_token}
    means = []
    for span in {part[:3] for part in chain.from_iterable(answers) if part[2]}:
        tokens = {*range(span[0], span[1])}
        asked = [found for found, open_ in zip(answers, unsure) if not tokens & open_]
        if asked and not tokens & unknown:
            scores = [_score_of(span, found) for found in asked]
            means.append((*span, sum(scores) / len(scores)))
    return sorted([*means, *((t, t + 1, UNSURE, 1.0) for t in unknown)]), len(differ) / max(1, n_tokens)


def _tokens(parts: Iterable[tuple[int, int, str, float]]) -> set[int]:
    return set(chain.from_iterable(range(begin, end) for begin, end, *_ in parts))


def _score_of(span: Labelled, found: Soft) -> float:
    """The score that a teacher gives a span; 0 if it has not found the span."""
    return max((part[3] for part in found if part[:3] == span), default=0.0)


def _decisions(found: Soft, n_tokens: int) -> list[Optional[Labelled]]:
    """For each token, the span with a probability of at least 0.5 that covers it, or None."""
    of_tokens: list[Optional[Labelled]] = [None] * n_tokens
    # The most probable span is written last
    for begin, end, label, score in sorted(found, key=lambda part: part[3]):
        if label and score >= 0.5:
            of_tokens[begin:end] = [(begin, end, label)] * (end - begin)
    return of_tokens
