"""Finds the best `min_prob` for ``decode = "spans"``, by annotated texts or by the model's own expectations."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from .. import checks
from ..errors import no_component
from .annotation.entities import Prediction
from .corpora import Corpus
from .crf_textcat import CRFTextClassifier
from .pipe import batches
from .prediction import OTHERS, CRFPipe, MinProb, label_thresholds

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.07, *(n / 20 for n in range(2, 20)))
ENOUGH_ENTITIES = 100
_FLAT = 0.005  # Near its maximum F hardly changes with the threshold: up to this loss, other reasons choose
_CHANCE = 0.001  # a threshold of one label must gain more F than this

# The prediction for a Doc (None before), and its counts by label
CountedDoc = tuple[Optional[bytes], dict[str, Counter[str]]]


class Point(NamedTuple):
    """The spans found with one threshold, and how many of them are right."""

    min_prob: MinProb
    found: int  # number of spans
    expected_right: float  # sum of the spans' probabilities
    expected_gold: float  # sum of the probabilities of all spans
    by_label: dict[str, Counter[str]]  # for annotated texts: numbers of spans "judged", "right" and "gold"
    # For annotated texts: numbers of gold, judged and right spans in each text
    counts: tuple[tuple[int, int, int], ...] = ()

    @property
    def all(self) -> Counter[str]:
        """The numbers of spans of all labels."""
        return sum(self.by_label.values(), Counter())

    def f(self, beta: float = 1.0) -> float:
        """The F score in which recall counts `beta` times as much as precision."""
        return _f(self.all, beta)

    def expected_f(self, beta: float = 1.0) -> float:
        """The F score that the model expects, in which recall counts `beta` times as much as precision."""
        return _share((1 + beta**2) * self.expected_right, self.found + beta**2 * self.expected_gold)

    @property
    def precision(self) -> float:
        """Share of the spans that are right, among those that the annotation judges."""
        return _share(self.all["right"], self.all["judged"])

    @property
    def recall(self) -> float:
        """Share of the annotated spans that are found."""
        return _share(self.all["right"], self.all["gold"])


def measure(
    pipe: CRFPipe, examples: Iterable[Example], min_probs: Sequence[MinProb] = THRESHOLDS, *, judge: bool = True
) -> list[Point]:
    """Find spans in texts with each of several thresholds. The model scores each text once.

    pipe (CRFPipe): The component, or a `CRFTextClassifier` with several labels for each text.
    min_probs (Sequence[MinProb]): The thresholds.
    examples (Iterable[Example]): Examples annotated by earlier components; they are not changed.
    judge (bool): Whether to compare with the annotation of the texts, where they have any.
    RETURNS (List[Point]): One for each threshold.
    """
    if pipe.labelled == "texts":
        return _measure_labels(pipe, list(examples), min_probs, judge=judge)
    examples = list(examples)
    done = 0
    points = [Point(min_prob, found=0, expected_right=0.0, expected_gold=0.0, by_label={}) for min_prob in min_probs]
    # Measuring changes settings of the component, which get back their values
    settings = dict(pipe.cfg)
    try:
        pipe.cfg["confidence"] = True
        # As few batches as memory allows: `batches` cuts these at numbers of Docs and tokens of its own
        for docs in batches(pipe.name, (example.predicted for example in examples), max(1, len(examples))):
            references = [example.reference for example in examples[done : done + len(docs)]]
            done += len(docs)
            batch = pipe.require_ready(docs)
            scores = pipe.model.predict(batch)
            # Most Docs have the same prediction with the next threshold: `_judge` counts only the Docs whose prediction changed
            counted: list[CountedDoc] = [(None, {})] * len(docs)
            expected_gold = pipe.expected_spans(batch, scores)
            for n, point in enumerate(points):
                pipe.cfg.update(pipe.threshold_settings(point.min_prob))
                prediction = pipe.predict(batch, scores)
                probabilities = prediction.probabilities
                assert probabilities is not None  # see `confidence` above
                counts_of_texts = [*point.counts]
                if judge:
                    counted = _judge(pipe, docs, references, prediction, counted)
                    for _, counts_by_label in counted:
                        for label, counts in counts_by_label.items():
                            # Changes the dict in place, which `_replace` keeps
                            point.by_label.setdefault(label, Counter()).update(counts)
                        total = sum(counts_by_label.values(), Counter())
                        counts_of_texts.append((total["gold"], total["judged"], total["right"]))
                points[n] = point._replace(
                    found=point.found + len(probabilities),
                    expected_right=point.expected_right + float(probabilities.sum()),
                    expected_gold=point.expected_gold + expected_gold,
                    counts=tuple(counts_of_texts),
                )
    finally:
        pipe.cfg.update(settings)
    return points


def _measure_labels(
    pipe: CRFTextClassifier, examples: list[Example], min_probs: Sequence[MinProb], *, judge: bool
) -> list[Point]:
    """`measure` for texts with several labels. Labels whose annotation is missing are not judged."""
    probabilities, [present, absent] = pipe.probabilities_and_annotation(examples)  # [D, Y] each
    points = []
    for min_prob in min_probs:
        thresholds = label_thresholds(pipe.name, min_prob, pipe.labels, pipe.threshold_setting)
        chosen = probabilities >= (0.0 if thresholds is None else thresholds)
        counts = {"judged": chosen & (present | absent), "right": chosen & present, "gold": present}
        by_label: dict[str, Counter[str]] = {}
        for n, label in enumerate(pipe.labels):
            by_label[label] = Counter({name: int(count[:, n].sum()) for name, count in counts.items()} if judge else {})
        columns = [counts[name].sum(axis=1).tolist() for name in ("gold", "judged", "right")]
        points.append(
            Point(
                min_prob=min_prob,
                found=int(chosen.sum()),
                expected_right=float(probabilities[chosen].sum()),
                expected_gold=float(probabilities.sum()),
                by_label=by_label,
                counts=tuple(zip(*columns)),
            )
        )
    return points


def best(points: list[Point], beta: float = 1.0, *, expected: bool = False) -> Point:
    """The threshold with the best F. Of thresholds that are hardly worse, the one nearest to half of that F, which is best for
    exact probabilities (Lipton, Elkan & Narayanaswamy 2014, "Optimal thresholding of classifiers to maximize F1 measure").

    points (List[Point]): From `measure`, with thresholds that are numbers.
    beta (float): Weight of recall relative to precision.
    expected (bool): Whether to use the model's expectations instead of annotation.
    """
    f = [point.expected_f(beta) if expected else point.f(beta) for point in points]
    good = [point for point, value in zip(points, f) if value >= max(f) - (0.0 if expected else _FLAT)]
    best_for_exact = max(f) / (1 + beta**2)
    return min(good, key=lambda point: abs(_number(point) - best_for_exact))


def _number(point: Point) -> float:
    """The threshold of a point, for all labels."""
    assert not isinstance(point.min_prob, dict)
    return point.min_prob


def shrunk(points: list[Point], beta: float = 1.0) -> float:
    """The threshold with the best F, moved (on the log-odds scale) towards the threshold that the model expects to be best if
    fewer than `ENOUGH_ENTITIES` are annotated, since the best F of few entities is chance.

    points (List[Point]), beta (float): See `best`.
    """
    weight = min(1.0, points[0].all["gold"] / ENOUGH_ENTITIES)
    by_annotation = _log_odds(_number(best(points, beta)))
    by_model = _log_odds(_number(best(points, beta, expected=True)))
    mean = weight * by_annotation + (1 - weight) * by_model
    return round(1 / (1 + math.exp(-mean)), 3)


def _log_odds(p: float) -> float:
    return math.log(p / (1 - p))


def best_of_labels(points: list[Point], beta: float = 1.0) -> dict[str, float]:
    """A threshold for each label. All labels start with that of `best`, and change one after the other as long as F gains more
    than chance. Overlaps between spans of different labels are ignored.

    points (List[Point]), beta (float): See `best`.
    RETURNS (Dict[str, float]): Thresholds of the annotated labels, and one for the others.
    """
    start = best(points, beta)
    chosen = dict.fromkeys((label for label, counts in start.by_label.items() if counts["gold"]), start)
    is_better = True
    while is_better:
        is_better = False
        for label in chosen:
            # F at each threshold of this label, while the others keep their present thresholds
            present = {**dict.fromkeys(start.by_label, start), **chosen}
            other_counts = [point.by_label[other] for other, point in present.items() if other != label]
            f = [_f(sum(other_counts, point.by_label.get(label, Counter())), beta) for point in points]
            if max(f) > f[points.index(chosen[label])] + _CHANCE:
                chosen[label] = points[f.index(max(f))]
                is_better = True
    return {**{label: _number(point) for label, point in chosen.items()}, OTHERS: _number(start)}


def use(nlp: Language, pipe: CRFPipe, min_prob: MinProb) -> None:
    """Let a component (`pipe`) of a pipeline (`nlp`) decode spans with these thresholds, and write them to its config."""
    settings = pipe.threshold_settings(min_prob)
    pipe.cfg.update(settings)
    nlp.get_pipe_config(pipe.name).update({name: checks.in_config(value) for name, value in settings.items()})


def annotated_before(nlp: Language, name: str, examples: Iterable[Example]) -> list[Example]:
    """Examples as input of the component `name` of `nlp`: the components before it annotate the predicted Docs."""
    examples = list(examples)
    names = nlp.pipe_names
    docs: Iterable[Doc] = [example.predicted.copy() for example in examples]
    docs = nlp.pipe(docs, disable=names[names.index(name) :])
    return [Example(doc, example.reference) for doc, example in zip(docs, examples)]


def fit_min_prob(
    path: Path, component: Optional[str] = None, beta: float = 1.0, per_label: bool = False, limit: int = 1000
) -> Callable[[Language], Language]:
    """For ``[training.before_to_disk]``: whenever a pipeline is saved, its components get the threshold with the best F on
    annotated texts (``spacy_crf.fit_min_prob.v1``).

    path (Path): The texts, a .spacy file or a folder of them, such as ${paths.dev}.
    component (str): Name of the component; by default all components of this package with decode = "spans", or for texts with
        multilabel = true.
    beta (float): Weight of recall relative to precision.
    per_label (bool): Whether each label gets its own threshold.
    limit (int): Number of texts to use whenever the pipeline is saved, spread evenly over all texts; 0 for all.
    """
    owner = "spacy_crf.fit_min_prob.v1"
    beta = checks.positive(owner, "beta", beta)
    per_label = checks.flag(owner, "per_label", per_label)
    limit = checks.count(owner, "limit", limit, least=0)
    corpus = Corpus(path)

    def fit(nlp: Language) -> Language:
        candidates = [pipe for name, pipe in nlp.pipeline if component in (None, name)]
        pipes: list = [pipe for pipe in candidates if getattr(pipe, "by_probability", False)]
        if not pipes:
            wanted = 'of spacy_crf with decode = "spans" or multilabel = true, as spacy_crf.fit_min_prob.v1 needs it'
            raise no_component(wanted, nlp.pipe_names, component)
        for pipe in pipes:
            examples = list(corpus(nlp))
            step = max(1, math.ceil(len(examples) / limit)) if limit else 1
            examples = examples[::step]
            points = measure(pipe, annotated_before(nlp, pipe.name, examples))
            use(nlp, pipe, best_of_labels(points, beta) if per_label else shrunk(points, beta))
        return nlp

    return fit


def _judge(
    pipe: CRFPipe, docs: list[Doc], references: list[Doc], prediction: Prediction, known: list[CountedDoc]
) -> list[CountedDoc]:
    """Count the spans of a prediction that the annotation judges, that are right, and that are annotated.

    known (List[CountedDoc]): The counts with the threshold before. Most Docs have the same prediction, and keep their counts.
    RETURNS (List[CountedDoc]): The prediction and the counts of each Doc.
    """
    judged = list(known)
    predicted = prediction.of_docs()
    changed = [n for n, (before, _) in enumerate(known) if predicted[n] != before]
    copies = [docs[n].copy() for n in changed]
    if copies:  # encoders take no empty batch
        pipe.set_annotations(copies, prediction if len(copies) == len(docs) else pipe.predict(copies))
    for n, doc in zip(changed, copies):
        gold, found = pipe.annotation.mentions(Example(doc, references[n]))
        places = {mention.place for mention in gold}
        counts: dict[str, Counter[str]] = {}
        for mention in found:
            counts.setdefault(mention.label, Counter()).update(judged=1, right=int(mention.place in places))
        for _, _, label in places:
            counts.setdefault(label, Counter()).update(gold=1)
        judged[n] = predicted[n], counts
    return judged


def _f(counts: Counter[str], beta: float) -> float:
    # F = (1 + beta^2) · right / (judged + beta^2 · gold)
    return _share((1 + beta**2) * counts["right"], counts["judged"] + beta**2 * counts["gold"])


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
