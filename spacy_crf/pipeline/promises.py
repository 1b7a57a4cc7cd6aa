"""Finds the `min_prob` with which a component keeps a promise: "the recall on new texts is at least 98 %", or the precision.

The promise is about all spans whose probability is at least `min_prob`, which may overlap (factory ``crf_candidates``). It holds
with probability 1 - alpha over the draw of the annotated texts, for any model and any number of texts, if these texts and the new
ones are drawn alike and independently, and training has not seen them. Recall is the share of entities that are in the set,
where the entities of a text together weigh w = min(their number, MOST_OF_TEXT):

    recall = E[w · share of the text's entities that are in the set] / E[w]

Without a bound of w nothing can be promised: a rare text with very many missed entities, of which there is none among the
annotated texts, could decide about recall. Precision has the spans of the set in the place of entities, and the share of these
that is annotated.

Whether a threshold keeps the promise is a test of one mean: with the loss l of a text (the share that is wrong), the allowed risk
r and the weight v = w / MOST_OF_TEXT,

    H0: E[v (l - r)] > 0        bet against it:  K_n = prod_i (1 - b_i v_i (l_i - r))

Under H0 the wealth K is a supermartingale, so P(K ever reaches 1 / alpha) <= alpha (Ville). The bets b_i may depend on earlier
texts (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting", section 4).

Recall only falls with the threshold, so thresholds are tested from the lowest up to the first that fails, each at alpha (Bates et
al. 2021, "Distribution-free, risk-controlling prediction sets"). Precision may go up and down: thresholds are tested downwards
from several starts, which share alpha (Angelopoulos et al. 2021, "Learn then test"). The p-values of that paper, by Hoeffding and
Bentkus, are valid too, but know only means: of 600 entities, they let recall come out 5 points above a promise of 90 %, bets 2.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import numpy as np
from spacy.training import Example

from .. import checks
from ..errors import Errors
from ..types import Bools, Floats, Ints
from .annotation.entities import GoldReport
from .crf_textcat import CRFTextClassifier
from .prediction import CRFPipe, MinProb

MOST_OF_TEXT = 4  # a text with more entities counts as if it had so many
# Thresholds that are tried, twenty for each power of ten; less probable spans are never in the set
GRID = np.array([*(float(f"{p:.2g}") for p in np.geomspace(1e-6, 1.0, 121)[:-1]), 0.95, 0.98, 0.99])
_STARTS = (0.95, 0.89, 0.79, 0.63, 0.5)  # of the tests of precision
_LARGEST_BET = 0.9  # a single text never costs more than this share of the wealth


class JudgedText(NamedTuple):
    """The spans that a component finds in one annotated text, and the annotated entities, with their probabilities."""

    gold: Floats  # [N] probability of each annotated entity; 0 for one that is never in the set
    gold_label: Ints  # [N] -1 for labels that the component does not have
    found: Floats  # [M] probability of each span, at least GRID[0]
    found_label: Ints  # [M]
    right: Bools  # [M] whether the span is annotated

    def of_label(self, label: int) -> "JudgedText":
        """The spans and the entities of one label, by its number."""
        gold = self.gold_label == label
        found = self.found_label == label
        return JudgedText(
            self.gold[gold], self.gold_label[gold], self.found[found], self.found_label[found], self.right[found]
        )


class Promise(NamedTuple):
    """A threshold that keeps a promise, and what it means on the annotated texts."""

    label: Optional[str]  # None for all labels
    min_prob: float
    n_gold: int
    recall: float  # share of the entities that are in the set
    precision: float  # share of the set that is annotated
    found: float  # spans in the set for each text


def judge(pipe: CRFPipe, examples: Iterable[Example]) -> list[JudgedText]:
    """Compare the spans of a component, with any probability, with the annotation of texts. Entities that are present already are
    ignored, as by `span_probabilities`; spans where annotation is missing are left out.

    pipe (CRFPipe): The component, or a `CRFTextClassifier` with several labels for each text.
    examples (Iterable[Example]): Examples annotated by earlier components; they are not changed.
    """
    if pipe.labelled == "texts":
        return _judge_labels(pipe, list(examples))
    judged = []
    number = {label: n for n, label in enumerate(pipe.labels)}
    for example in examples:
        gold = [mention.place for mention in pipe.annotation.mentions(example)[0]]
        annotated = set(gold)
        unset = pipe.annotation.gold([example], pipe.decoding.starts([example.predicted]), GoldReport()).unset  # [T]
        likely: dict[tuple[int, int, str], float] = {}
        found: dict[tuple[int, int, str], float] = {}  # those of which the annotation says whether they are right
        for span, probability in pipe.span_probabilities(example.predicted, float(GRID[0])):
            place = (span.start_char, span.end_char, span.label_)
            likely[place] = probability
            if place in annotated or not unset[span.start : span.end].any():
                found[place] = probability
        judged.append(
            JudgedText(
                gold=np.array([likely.get(place, 0.0) for place in gold], dtype=np.float64),
                gold_label=np.array([number.get(label, -1) for *_, label in gold], dtype=np.int64),
                found=np.array([*found.values()], dtype=np.float64),
                found_label=np.array([number[label] for *_, label in found], dtype=np.int64),
                right=np.array([place in annotated for place in found], dtype=bool),
            )
        )
    return judged


def _judge_labels(pipe: CRFTextClassifier, examples: list[Example]) -> list[JudgedText]:
    """`judge` for texts with several labels, in the place of spans."""
    judged = []
    probabilities, [are_present, are_absent] = pipe.probabilities_and_annotation(examples)
    for row, present, absent in zip(probabilities, are_present, are_absent):  # [L] each
        is_in_grid = row >= GRID[0]
        gold_labels = np.flatnonzero(present)
        found_labels = np.flatnonzero(is_in_grid & (present | absent))
        judged.append(
            JudgedText(
                gold=np.where(is_in_grid, row, 0.0)[gold_labels],  # 0 for labels less probable than all thresholds
                gold_label=gold_labels,
                found=row[found_labels],
                found_label=found_labels,
                right=present[found_labels],
            )
        )
    return judged


def p_values(losses: Floats, weights: Floats, risk: float, alpha: float) -> Floats:
    """P-values of the hypotheses that the weighted mean of losses is above a risk, by betting against them.

    losses (float64[N, G]): Losses of N independent texts for G thresholds, from 0 to 1.
    weights (float64[N, G]): From 0 to 1; those of a text may depend on its losses.
    risk (float): Between 0 and 1.
    alpha (float): The level for which the bets are sized. The p-values are valid at any level.
    RETURNS (float64[G])
    """
    # [N, G] v_i (l_i - r), in random order, since texts in files are often sorted
    excess = np.random.default_rng(0).permutation(weights * (losses - risk))
    # log K_n = sum_i log(1 - b_i v_i (l_i - r)), and the most it ever reached
    gain = np.zeros(excess.shape[1])
    goal = np.log(1.0 / alpha)
    most = np.zeros_like(gain)
    squares = np.full_like(gain, risk * (1.0 - risk))
    for n, of_text in enumerate(excess):
        # Of the bets that are too small to lose all, the best one for a normal distribution with the variance so far
        bets = np.sqrt(2.0 * goal / len(excess) * (n + 1) / squares)
        gain += np.log1p(-np.minimum(bets, _LARGEST_BET / (1.0 - risk)) * of_text)
        squares += of_text**2
        most = np.maximum(most, gain)
    return np.exp(-most)


def promise_recall(name: str, judged: Sequence[JudgedText], recall: float, alpha: float) -> float:
    """The largest threshold of `GRID` that promises this recall with probability 1 - alpha.

    name (str): What finds the entities, for messages.
    judged (Sequence[JudgedText]): The annotated texts.
    RAISES (ValueError): CRF424 if the texts are too few, CRF425 if too many entities are never in the set.
    """
    texts = [text for text in judged if len(text.gold)]
    n = np.array([len(text.gold) for text in texts])
    # [N, G] entities of each text that are less probable than each threshold
    missed = np.array([np.searchsorted(np.sort(text.gold), GRID) for text in texts]).reshape(-1, len(GRID))
    weights = _weights(n)[:, np.newaxis]
    _require_enough(name, "recall", recall, weights, n, "entities", alpha, alpha)
    kept = p_values(missed / n[:, np.newaxis], weights, 1.0 - recall, alpha) <= alpha
    if not kept[0]:
        raise ValueError(
            Errors.CRF425.format(
                entities=int(n.sum()),
                name=name,
                goal=recall,
                alpha=alpha,
                never=int(sum((text.gold == 0.0).sum() for text in texts)),
                least=GRID[0],
                reached=1.0 - missed[:, 0].sum() / n.sum(),
            )
        )
    # The last threshold before the first one that fails
    return float(GRID[-1] if kept.all() else GRID[np.argmin(kept) - 1])


def promise_precision(name: str, judged: Sequence[JudgedText], precision: float, alpha: float) -> float:
    """The smallest threshold of `GRID` that promises this precision with probability 1 - alpha.

    name (str): What finds the entities, for messages.
    judged (Sequence[JudgedText]): The annotated texts.
    RAISES (ValueError): CRF424 if the texts are too few, CRF426 if no threshold is precise enough.
    """
    # [N, G] spans of each text that are at least as probable as each threshold, and how many of them are right
    found = np.array([len(text.found) - np.searchsorted(np.sort(text.found), GRID) for text in judged])
    right = np.array([text.right.sum() - np.searchsorted(np.sort(text.found[text.right]), GRID) for text in judged])
    weights = _weights(found)
    losses = 1.0 - right / np.maximum(found, 1)
    starts = np.searchsorted(GRID, _STARTS)
    level = alpha / len(starts)
    fullest = starts[-1]
    _require_enough(
        name, "precision", precision, weights[:, fullest, np.newaxis], found[:, fullest], "spans", alpha, level
    )
    kept = p_values(losses, weights, 1.0 - precision, level) <= level
    # The last threshold on the way down from each start before one fails
    ends = []
    for start in starts[kept[starts]].tolist():
        failing = np.flatnonzero(~kept[:start])
        ends.append(failing[-1] + 1 if len(failing) else 0)
    if not ends:
        is_sure = right[:, starts[0]].sum() / max(1, found[:, starts[0]].sum())
        raise ValueError(
            Errors.CRF426.format(name=name, goal=precision, alpha=alpha, best=float(GRID[starts[0]]), reached=is_sure)
        )
    return float(GRID[min(ends)])


def promises(
    pipe: CRFPipe,
    judged: Sequence[JudgedText],
    goal: float,
    alpha: float,
    *,
    of: str = "recall",
    per_label: bool = False,
) -> list[Promise]:
    """The thresholds of a component that keep a promise.

    pipe (CRFPipe): The component.
    judged (Sequence[JudgedText]): The annotated texts, from `judge`.
    goal (float): What is promised.
    alpha (float): The probability that the promise is broken.
    of (str): "recall" or "precision".
    per_label (bool): Whether to promise it for each label that is annotated. The promise is about all of them at once: each is
        tested at alpha divided by their number.
    RAISES (ValueError): CRF020 for a goal or alpha outside of (0, 1), CRF424 to CRF426 if it cannot be promised.
    """
    for what, value in ((of, goal), ("alpha", alpha)):
        checks.expect(0.0 < value < 1.0, "threshold", f"--{what}", value, "above 0 and below 1")
    find = {"recall": promise_recall, "precision": promise_precision}[of]
    owner = f"Component '{pipe.name}'"
    labels = np.unique(np.concatenate([text.gold_label for text in judged]))
    labels = labels[labels >= 0].tolist() if per_label else []
    if not labels:
        return [_described(None, judged, find(owner, judged, goal, alpha))]
    found = []
    for n in labels:
        texts = [text.of_label(n) for text in judged]
        min_prob = find(f"{owner}, {pipe.labels[n]}", texts, goal, alpha / len(labels))
        found.append(_described(pipe.labels[n], texts, min_prob))
    return found


def min_prob_of(found: Sequence[Promise], of: str) -> MinProb:
    """The setting `min_prob` of ``crf_candidates``. Labels that are not annotated, and so have no promise, get the most
    careful of the thresholds: the lowest for recall, the highest for precision.

    found (Sequence[Promise]): From `promises`.
    of (str): "recall" or "precision".
    """
    if found[0].label is None:
        return found[0].min_prob
    table = {promise.label: promise.min_prob for promise in found if promise.label is not None}
    most_careful = min if of == "recall" else max
    return {**table, "*": most_careful(table.values())}


def _weights(n: Ints) -> Floats:
    """The weight v = min(n, MOST_OF_TEXT) / MOST_OF_TEXT of texts with n entities or spans each."""
    return np.minimum(n, MOST_OF_TEXT) / MOST_OF_TEXT


def _require_enough(
    name: str, what: str, goal: float, weights: Floats, n: Ints, units: str, alpha: float, level: float
) -> None:
    """RAISES (ValueError): CRF424 if the texts would not prove the promise even without any mistake."""
    p = float(p_values(np.zeros_like(weights), weights, 1.0 - goal, level)[0])
    if p > level:
        bet = _LARGEST_BET * (1.0 - goal) / goal
        gain = -np.log(p) / n.sum() if n.sum() else np.log1p(bet / MOST_OF_TEXT)  # of one entity in a text of its own
        raise ValueError(
            Errors.CRF424.format(
                name=name,
                texts=len(n),
                needed=int(np.ceil(-np.log(level) / gain)),
                what=what,
                goal=goal,
                alpha=alpha,
                n=int(n.sum()),
                units=units,
            )
        )


def _described(label: Optional[str], judged: Sequence[JudgedText], min_prob: float) -> Promise:
    """What a threshold means on the annotated texts."""
    gold = np.concatenate([text.gold for text in judged])
    found = np.concatenate([text.found for text in judged])
    right = np.concatenate([text.right for text in judged])
    is_in = found >= min_prob
    return Promise(
        label=label,
        min_prob=min_prob,
        n_gold=len(gold),
        recall=float((gold >= min_prob).mean()) if len(gold) else 0.0,
        precision=float(right[is_in].mean()) if is_in.any() else 0.0,
        found=float(is_in.sum()) / max(1, len(judged)),
    )
