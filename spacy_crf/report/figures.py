"""Figures of a report: scores with intervals, confusions of labels, and recall by groups of mentions."""

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

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
    # Numbers of annotated, found and right mentions
    counts = np.zeros((len(judged.examples), 3, len(labels) + 1))
    for case in judged.cases:
        for what, mention in enumerate((case.gold, case.found, case.gold if case.kind == "right" else None)):
            if mention is not None:
                counts[case.doc, what, [0, 1 + labels.index(mention.label)]] += 1
    texts = len(counts)
    total = counts.sum(axis=0)
    # A draw of n texts of n with replacement weighs the counts of each text: int[DRAWS, n]
    drawn = np.random.default_rng(0).multinomial(texts, np.full(texts, 1 / texts), size=DRAWS) if texts else [[]]
    resampled = (drawn @ counts.reshape(texts, -1)).reshape(-1, *total.shape)
    values = _precision_recall_f(total[np.newaxis])[0]
    spread = _precision_recall_f(resampled)
    low, high = np.quantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    rows = []
    for n, label in enumerate([ALL, *labels]):
        shares = [Share(float(values[k, n]), float(low[k, n]), float(high[k, n])) for k in range(3)]
        n_gold, n_found, n_right = (int(number) for number in total[:, n])
        rows.append(Score(label, n_gold, n_found, n_right, *shares))
    return rows


def _precision_recall_f(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N, 3 (gold, found, right), L] → [N, 3 (precision, recall, F1), L]; 0 of 0 is 0, as in spaCy."""
    gold, found, right = np.moveaxis(counts, 1, 0)
    # precision = right / found, recall = right / gold, F1 = 2 right / (gold + found)
    shares = [(right, found), (right, gold), (2 * right, found + gold)]
    return np.stack([np.divide(a, b, out=np.zeros_like(a), where=b > 0) for a, b in shares], axis=1)


def labels_of(cases: Iterable[Case]) -> list[str]:
    """The labels in cases, the most frequent in the annotation first."""
    gold = Counter(case.gold.label for case in cases if case.gold)
    found = Counter(case.found.label for case in cases if case.found)
    return sorted({*gold, *found}, key=lambda label: (-gold[label], label))


def confusion(cases: Iterable[Case], labels: Sequence[str]) -> NDArray[np.int64]:
    """Count annotated labels (rows) by found labels (columns). The last row counts spurious mentions, the last column missed
    mentions; other labels count as these. A label counts as right even if the boundary is wrong.

    RETURNS (int64[L + 1, L + 1])
    """
    number = {label: n for n, label in enumerate(labels)}
    other = len(labels)
    table = np.zeros((other + 1, other + 1), dtype=np.int64)
    for case in cases:
        row = number.get(case.gold.label, other) if case.gold else other
        column = number.get(case.found.label, other) if case.found else other
        table[row, column] += 1
    return table


def by_length(judged: Judged) -> list[Group]:
    """Groups of annotated mentions by number of tokens."""
    lengths = TEXT_LENGTHS if judged.of_texts else LENGTHS
    names = _names(lengths, "token", "tokens")
    return _grouped(judged.cases, names, lambda n, gold: bisect.bisect_left(lengths, len(_span(judged, n, gold))))


def by_frequency(judged: Judged) -> list[Group]:
    """Groups of annotated mentions by the number of training mentions with the same words and label."""
    known = Counter()
    for example in judged.training:
        text = example.reference.text.lower()
        known.update((text[m.start : m.end], m.label) for m in judged.pipe.annotation.mentions_in(example.reference))

    def group(n: int, gold: Mention) -> int:
        words = judged.texts[n][gold.start : gold.end].lower()
        return bisect.bisect_left(FREQUENCIES, known[words, gold.label])

    return _grouped(judged.cases, _names(FREQUENCIES, "time in training", "times in training"), group)


def by_words(judged: Judged) -> list[Group]:
    """Two groups of annotated mentions: with and without words that are missing from the training texts."""
    known = set()
    for example in judged.training:
        known.update(token.lower for token in example.reference)
    names = ["all words known", "with unknown words"]

    def group(n: int, gold: Mention) -> int:
        return any(token.lower not in known for token in _span(judged, n, gold))

    return _grouped(judged.cases, names, group)


def _span(judged: Judged, n: int, gold: Mention) -> Union[Doc, Span]:
    """The tokens of an annotated mention of text n; the whole text if texts have labels."""
    reference = judged.examples[n].reference
    if judged.of_texts:
        return reference
    span = reference.char_span(gold.start, gold.end, alignment_mode="expand")
    return reference[0:0] if span is None else span


def _names(bounds: Sequence[int], one: str, many: str) -> list[str]:
    """Names of groups of numbers: up to each bound, and above the last one."""
    names = []
    least = 0 if bounds[0] == 0 else 1
    for most in bounds:
        numbers = f"{most}" if least == most else f"{least} to {most}"
        names.append(f"{numbers} {one if most == 1 else many}")
        least = most + 1
    return [*names, f"{least} {many} or more"]


def _grouped(cases: Iterable[Case], names: list[str], group: Callable[[int, Mention], int]) -> list[Group]:
    """The groups that have mentions. group (Callable): Returns the number of the group of an annotated mention, from the number
    of its text and the mention."""
    found: list[list[bool]] = [[] for _ in names]
    for case in cases:
        if case.gold:
            found[group(case.doc, case.gold)].append(case.kind == "right")
    return [Group(name, len(right), wilson(sum(right), len(right))) for name, right in zip(names, found) if right]


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
