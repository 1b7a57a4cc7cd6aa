"""Temperature scaling (Guo et al. 2017, "On calibration of modern neural networks"): a trained model is too sure of texts that it
has not seen. Divided by a temperature above 1, its scores keep their order, but the probabilities come closer to each other.

Scores are sums of weights, so the weights are divided: then every answer and every export has the new probabilities.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from spacy.training import Example

from .arrays import named
from .features.doc_batch import DocBatch
from .inference.chain_set import evaluate
from .losses.clamped import LogLikelihood
from .models.node import AnnotatedDocs
from .pipeline.pipe import LearningPipe
from .types import PathScores

LEAST = 0.5
MOST = 4.0
# Each search narrows the range of temperatures to two steps of its grid
N_STEPS = 8
N_SEARCHES = 4


class ScoredTexts(NamedTuple):
    """Annotated texts with the scores of a model."""

    pipe: LearningPipe
    annotated: AnnotatedDocs
    scores: PathScores

    def loss(self, temperature: float) -> float:
        """The negative log probability of the annotation if the scores are divided by a temperature."""
        divided = {name: array / temperature for name, array in named(self.scores).items()}
        structure = self.annotated.structure or self.pipe.model.attrs["node"].in_training
        losses, _, _ = evaluate(
            LogLikelihood(),
            structure,
            self.scores._replace(**divided),
            self.annotated.allowed,
            weights=self.annotated.weights,
        )
        return float(losses.sum())


def best_temperature(pipes: Iterable[LearningPipe], texts_of_pipes: Iterable[list[Example]]) -> float:
    """The temperature for which the annotation of texts is most probable by models that have not learned it.

    pipes (Iterable[LearningPipe]): The models, such as one for each fold.
    texts_of_pipes (Iterable[list[Example]]): For each model, the texts that it has not learned, annotated by earlier components.
    """
    parts = []
    for pipe, examples in zip(pipes, texts_of_pipes):
        docs = DocBatch([example.predicted for example in examples])
        parts.append(ScoredTexts(pipe, pipe.training.data(examples), pipe.model.predict(docs)))
    low = math.log(LEAST)
    high = math.log(MOST)
    for _ in range(N_SEARCHES):
        grid = np.linspace(low, high, N_STEPS + 1)
        losses = [sum(part.loss(temperature) for part in parts) for temperature in np.exp(grid)]
        lowest = int(np.argmin(losses))
        low = grid[max(lowest - 1, 0)]
        high = grid[min(lowest + 1, N_STEPS)]
    return float(np.exp((low + high) / 2))


def divide_scores(pipe: LearningPipe, temperature: float) -> None:
    """Divide all scores of a component by a temperature: its weights are divided."""
    weights = pipe.training.frame()
    weights.assign(weights.weights() / temperature)
    pipe.clear_scores()
