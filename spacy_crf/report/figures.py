"""Figures of a report: scores with intervals, confusions of labels, and recall by groups of mentions."""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ..pipeline.annotation.entities import Entities
from ..pipeline.annotation.trimming import Mention
from .cases import Case, Judged

DRAWS = 1000
LEVEL = 0.95
_Z = 1.959964  # a normal distribution has `LEVEL` of its mass within so many standard deviations of the mean
ALL = "all"
LENGTHS = (1, 2, 3, 5)  # largest length in each group, in tokens
TEXT_LENGTHS = (5, 10, 20, 50, 100, 200)  # the same for texts
FREQUENCIES = (0, 1, 4, 19)


class Share(NamedTuple):
    """A share with its confidence interval at `LEVEL`."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """The share in percent, with its interval in brackets."""
        value, low, high = (100 * share for share in self)
        return f"{value:.1f} ({100 * LEVEL:g} %: {low:.1f} to {high:.1f})"


class Score(NamedTuple):
    """The scores of a label, or of all labels."""

    label: str
    n_gold: int
    n_found: int
    n_right: int
    precision: Share
    recall: Share
    f: Share


class Group(NamedTuple):
    """A group of annotated mentions."""

    name: str
    n: int
    found: Share  # share of the mentions that the component found


def scores(judged: Judged) -> list[Score]:
    """Compute precision, recall and F1 of all labels together and of each label, with bootstrap intervals over texts (Efron &
    Tibshirani 1993, chapter 13: percentiles).

    RETURNS (list[Score]): All labels together first.
    """
    labels = labels_of(judged.cases)
    n_texts = len(judged.examples)
    # [texts, 3 (gold, found, right), 1 + L]: numbers of mentions, of all labels together and of each label
    counts = np.zeros((n_texts, 3, 1 + len(labels)))
    for case in judged.cases:
        right = case.gold if case.kind == "right" else None
        for kind, mention in enumerate((case.gold, case.found, right)):
            if mention is not None:
                counts[case.doc, kind, [0, 1 + labels.index(mention.label)]] += 1
    total = counts.sum(axis=0)
    # How often each draw of n texts with replacement takes each of the n texts: int[DRAWS, n]
    drawn = [[]]
    if n_texts:
        drawn = np.random.default_rng(0).multinomial(n_texts, np.full(n_texts, 1 / n_texts), size=DRAWS)
    resampled = (drawn @ counts.reshape(n_texts, -1)).reshape(-1, *total.shape)
    values = _precision_recall_f(total[np.newaxis])[0]
    low, high = np.quantile(_precision_recall_f(resampled), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    shares = np.stack([values, low, high], axis=2)  # [3 (precision, recall, F1), 1 + L, 3 (value, low, high)]
    rows = []
    for n, label in enumerate([ALL, *labels]):
        precision, recall, f = (Share(*numbers) for numbers in shares[:, n].tolist())
        n_gold, n_found, n_right = (int(number) for number in total[:, n])
        rows.append(Score(label, n_gold, n_found, n_right, precision, recall, f))
    return rows


def _precision_recall_f(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """From numbers of mentions [N, 3 (gold, found, right), L] to scores [N, 3 (precision, recall, F1), L]."""
    gold, found, right = np.moveaxis(counts, 1, 0)
    # precision = right / found, recall = right / gold, F1 = 2 right / (gold + found)
    shares = np.zeros_like(counts)  # 0 / 0 is 0, as in spaCy
    np.divide(right, found, out=shares[:, 0], where=found > 0)
    np.divide(right, gold, out=shares[:, 1], where=gold > 0)
    np.divide(2 * right, found + gold, out=shares[:, 2], where=found + gold > 0)
    return shares


def whole_texts(judged: Judged) -> Optional[Share]:
    """The share of the annotated texts that are right as a whole, see `Entities.texts_right`; None for a component without
    spans."""
    annotation = judged.pipe.annotation
    if not isinstance(annotation, Entities):
        return None
    are_right = annotation.texts_right(judged.examples)
    return wilson(sum(are_right), len(are_right))


def labels_of(cases: Iterable[Case]) -> list[str]:
    """The labels in cases, the most frequent in the annotation first."""
    gold = Counter(case.gold.label for case in cases if case.gold)
    found = Counter(case.found.label for case in cases if case.found)
    return sorted({*gold, *found}, key=lambda label: (-gold[label], label))


def confusion(cases: Iterable[Case], labels: Sequence[str]) -> NDArray[np.int64]:
    """Count annotated labels (rows) by found labels (columns). The last row counts spurious mentions, the last column missed
    mentions. A mention whose label is not in `labels` counts like no mention; the boundaries of mentions do not matter.

    RETURNS (int64[L + 1, L + 1])
    """
    indices = {label: n for n, label in enumerate(labels)}
    none = len(labels)
    table = np.zeros((none + 1, none + 1), dtype=np.int64)
    for case in cases:
        row = indices.get(case.gold.label, none) if case.gold else none
        column = indices.get(case.found.label, none) if case.found else none
        table[row, column] += 1
    return table


def by_length(judged: Judged) -> list[Group]:
    """Group annotated mentions by number of tokens."""
    lengths = TEXT_LENGTHS if judged.labels_texts else LENGTHS

    def group(n: int, gold: Mention) -> int:
        return bisect.bisect_left(lengths, len(_span(judged, n, gold)))

    return _grouped(judged.cases, _names(lengths, "token", "tokens"), group)


def by_frequency(judged: Judged) -> list[Group]:
    """Group annotated mentions by the number of training mentions with the same words, in any case, and the same label."""
    frequencies = Counter()
    for example in judged.training:
        text = example.reference.text.lower()
        for mention in judged.pipe.annotation.mentions_in(example.reference):
            frequencies[text[mention.start : mention.end], mention.label] += 1

    def group(n: int, gold: Mention) -> int:
        words = judged.texts[n][gold.start : gold.end].lower()
        return bisect.bisect_left(FREQUENCIES, frequencies[words, gold.label])

    return _grouped(judged.cases, _names(FREQUENCIES, "time in training", "times in training"), group)


def by_words(judged: Judged) -> list[Group]:
    """Group annotated mentions by whether they have words that are missing from the training texts."""
    training_words = set()
    for example in judged.training:
        training_words.update(token.lower for token in example.reference)

    def group(n: int, gold: Mention) -> int:
        return any(token.lower not in training_words for token in _span(judged, n, gold))

    return _grouped(judged.cases, ["all words known", "with unknown words"], group)


def _span(judged: Judged, n: int, gold: Mention) -> Union[Doc, Span]:
    """The tokens of an annotated mention of text number n; the whole text if the component labels texts."""
    reference = judged.examples[n].reference
    if judged.labels_texts:
        return reference
    span = reference.char_span(gold.start, gold.end, alignment_mode="expand")
    return reference[0:0] if span is None else span


def _names(bounds: Sequence[int], singular: str, plural: str) -> list[str]:
    """Name groups of numbers: up to each bound, such as "2 to 3 tokens", and above the last one, "6 tokens or more"."""
    names = []
    least = 0 if bounds[0] == 0 else 1
    for most in bounds:
        numbers = f"{most}" if least == most else f"{least} to {most}"
        names.append(f"{numbers} {singular if most == 1 else plural}")
        least = most + 1
    return [*names, f"{least} {plural} or more"]


def _grouped(cases: Iterable[Case], names: list[str], group: Callable[[int, Mention], int]) -> list[Group]:
    """Compute the share of right mentions in each group that has mentions.

    names (list[str]): Names of all groups.
    group (Callable): Takes the number of a text and an annotated mention, and returns the number of the mention's group.
    """
    sizes = Counter()
    n_right = Counter()
    for case in cases:
        if case.gold:
            n = group(case.doc, case.gold)
            sizes[n] += 1
            n_right[n] += case.kind == "right"
    return [Group(names[n], sizes[n], wilson(n_right[n], sizes[n])) for n in sorted(sizes)]


def wilson(right: int, n: int) -> Share:
    """The share `right / n` with its score interval (Wilson 1927)."""
    if n == 0:
        return Share(0.0, 0.0, 1.0)
    share = right / n
    # (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n)
    square = _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    reach = _Z / (1 + square / n) * np.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Share(share, max(0.0, float(middle - reach)), min(1.0, float(middle + reach)))
