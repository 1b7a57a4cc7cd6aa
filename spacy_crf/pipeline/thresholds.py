"""Which `min_prob` does best where ``decode = "spans"``: by annotated texts, or by what the model itself expects."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from .. import checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..inference.span_choice import least_probable
from .prediction import Prediction, batches, predict_scored
from .readers import Corpus

if TYPE_CHECKING:
    from .crf_pipe import CRFPipe

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.07, *(n / 20 for n in range(2, 20)))
_BALANCED = 0.5  # makes the fewest mistakes where nothing is known of the texts
_CHANCE = 0.001  # a difference of F that says nothing


class Point(NamedTuple):
    """What one threshold does."""

    min_prob: float
    found: int  # spans
    judged: int  # of these, where the texts are annotated
    right: int
    gold: int  # annotated spans
    expected_right: float  # sum of the probabilities of those that are found
    expected_gold: float  # of all spans

    @property
    def precision(self) -> float:
        return _share(self.right, self.judged)

    @property
    def recall(self) -> float:
        return _share(self.right, self.gold)

    def f(self, beta: float = 1.0) -> float:
        """F, of which recall is worth beta times as much as precision."""
        return _share((1 + beta**2) * self.right, self.judged + beta**2 * self.gold)

    def expected_f(self, beta: float = 1.0) -> float:
        """What the model expects it to be."""
        return _share((1 + beta**2) * self.expected_right, self.found + beta**2 * self.expected_gold)


def measure(pipe: "CRFPipe", examples: Iterable[Example], *, judge: bool = True) -> list[Point]:
    """What the component finds in texts with each of some thresholds. The model looks at each text once.

    examples (Iterable[Example]): With what the components before have annotated. They stay as they are.
    judge (bool): Whether to compare with the annotation of the texts, as far as there is any.
    RETURNS (List[Point]): One for each of THRESHOLDS.
    """
    examples, sums, done = list(examples), np.zeros((len(THRESHOLDS), 6)), 0
    with _settings(pipe):
        for docs in batches((example.predicted for example in examples), max(1, len(examples))):
            references = [example.reference for example in examples[done : done + len(docs)]]
            done += len(docs)
            pipe.require_ready(docs)
            scores = pipe.model.predict(DocBatch.of(docs))
            likely = pipe.decoding.batch(scores, None).likely_spans(least_probable(0.0))[1].sum()
            for n, min_prob in enumerate(THRESHOLDS):
                pipe.cfg["min_prob"] = min_prob
                prediction = predict_scored(pipe, DocBatch.of(docs), scores)
                found = prediction.probabilities
                judged = _judged(pipe, docs, prediction, references) if judge else (0, 0, 0)
                sums[n] += [len(found), *judged, found.sum(), likely]
    return [Point(t, *map(int, row[:4]), *row[4:]) for t, row in zip(THRESHOLDS, sums.tolist())]


def best(points: list[Point], beta: float = 1.0, *, expected: bool = False) -> Point:
    """The threshold with the best F; among those that differ by chance the one nearest to one half.

    expected (bool): By what the model expects, not by annotation.
    """
    f = [point.expected_f(beta) if expected else point.f(beta) for point in points]
    good = [point for point, value in zip(points, f) if value >= max(f) - (0.0 if expected else _CHANCE)]
    return min(good, key=lambda point: abs(point.min_prob - _BALANCED))


def use(nlp: Language, pipe: "CRFPipe", min_prob: float) -> None:
    """Has a component of a pipeline decode so, in its config too."""
    settings = {"decode": "spans", "min_prob": min_prob}
    pipe.cfg.update(settings)
    nlp.get_pipe_config(pipe.name).update(settings)


def annotated_before(nlp: Language, name: str, examples: Iterable[Example]) -> list[Example]:
    """The examples as they come to a component: what the others before it write is in the predicted Docs."""
    examples = list(examples)
    names = nlp.pipe_names
    docs: Iterable[Doc] = [example.predicted.copy() for example in examples]
    docs = nlp.pipe(docs, disable=names[names.index(name) :])
    return [Example(doc, example.reference) for doc, example in zip(docs, examples)]


def fit_min_prob(path: Path, component: Optional[str] = None, beta: float = 1.0) -> Callable[[Language], Language]:
    """For ``[training.before_to_disk]``: whenever a pipeline is saved, its components get the threshold with the best F on
    annotated texts (``spacy_crf.fit_min_prob.v1``).

    path (Path): The texts, a .spacy file or a folder of them, such as ${paths.dev}.
    component (str): By default all of this package that decode by spans.
    beta (float): How many times as much recall is worth as precision.
    """
    owner = "spacy_crf.fit_min_prob.v1"
    beta, corpus = checks.positive(owner, "beta", beta), Corpus(path)

    def fit(nlp: Language) -> Language:
        pipes = [pipe for name, pipe in nlp.pipeline if _decodes_by_spans(pipe) and component in (None, name)]
        if not pipes:
            named = f" named '{component}'" if component else ""
            raise ValueError(Errors.CRF422.format(named=named, components=", ".join(nlp.pipe_names)))
        for pipe in pipes:
            points = measure(pipe, annotated_before(nlp, pipe.name, corpus(nlp)))
            use(nlp, pipe, best(points, beta).min_prob)
        return nlp

    return fit


def _decodes_by_spans(pipe: Callable) -> bool:
    return getattr(pipe, "cfg", {}).get("decode") == "spans"


@contextmanager
def _settings(pipe: "CRFPipe") -> Iterator[None]:
    before = dict(pipe.cfg)
    try:
        pipe.cfg.update(decode="spans", confidence=True)
        yield
    finally:
        pipe.cfg.update(before)


def _judged(pipe: "CRFPipe", docs: list[Doc], prediction: Prediction, references: list[Doc]) -> list[int]:
    """How many spans are found where the texts are annotated, how many of these are right, and how many annotated."""
    copies = [doc.copy() for doc in docs]
    pipe.set_annotations(copies, prediction._replace(probabilities=None))
    sums = np.zeros(3, dtype=np.int64)
    for doc, reference in zip(copies, references):
        gold, found = pipe.annotation.mentions(Example(doc, reference))
        places = {mention.place for mention in gold}
        sums += len(found), sum(mention.place in places for mention in found), len(places)
    return sums.tolist()


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
