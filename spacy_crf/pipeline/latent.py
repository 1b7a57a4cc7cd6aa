"""Where each tag has several states, see `models.latent_chain`: what is asked and answered in tags is looked up in states."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..arrays import Scores
from ..errors import Warnings
from ..inference import labellings
from ..inference.structure import SpanStates, Structure
from ..models.latent_chain import has_hidden, hidden_of, refuse_loss
from ..schemes import TransitionMask
from ..types import Floats
from .annotation.annotation import Annotation
from .decoding import Decoding, States

logger = logging.getLogger("spacy.spacy_crf")


def latent_decoding(model: Model, annotation: Annotation) -> Decoding:
    """What a model with hidden states adds to a component with these labels. Where each tag has one state, that of its tags."""
    labels = annotation.tag_labels()
    model.attrs["tag_of"] = np.repeat(np.arange(len(labels)), hidden_of(model, labels))
    return LatentDecoding(model, annotation) if has_hidden(model) else Decoding(model, annotation)


class LatentDecoding(Decoding):
    """A state stands for its tag: where a path is given, the first one of each tag does."""

    searches = Decoding.searches | {"labelling"}

    def __init__(self, model: Model, annotation: Annotation):
        self._tag_of: NDArray[np.int64] = model.attrs["tag_of"]
        self._first = np.searchsorted(self._tag_of, np.arange(len(annotation.tags())))
        self._told: set[str] = set()
        super().__init__(model, annotation)

    def _span_states(self) -> SpanStates:
        continues, label_starts = self.annotation.span_states()
        starts = np.searchsorted(self._tag_of, label_starts).astype(np.int64)
        return SpanStates(continues[np.ix_(self._tag_of, self._tag_of)], starts)

    def _tag_spans(self) -> SpanStates:
        return self.annotation.span_states()

    # ------------------------------------------------------------------------------------------------------ states

    def check_fit(self, pipe: Any) -> None:
        if pipe.loss.names_states:
            refuse_loss(pipe.loss, pipe.name)

    def state_names(self) -> list[str]:
        number = np.arange(len(self._tag_of)) - self._first[self._tag_of]
        several = np.bincount(self._tag_of)[self._tag_of] > 1
        tags = self.annotation.tags()
        return [f"{tags[tag]}/{n + 1}" if s else tags[tag] for tag, n, s in zip(self._tag_of, number, several)]

    def state_tags(self) -> list[str]:
        tags = self.annotation.tags()
        return [tags[tag] for tag in self._tag_of]

    def state_labels(self) -> list[str]:
        labels = self.annotation.tag_labels()
        return [labels[tag] for tag in self._tag_of]

    def mask(self) -> TransitionMask:
        transitions, first, last = self.annotation.mask()
        return TransitionMask(transitions[np.ix_(self._tag_of, self._tag_of)], first[self._tag_of], last[self._tag_of])

    def of_states(self, of_tags: NDArray) -> NDArray:
        return np.ascontiguousarray(of_tags[:, self._tag_of])

    def by_tag(self, probabilities: Floats) -> Floats:
        return np.minimum(np.add.reduceat(probabilities, self._first, axis=1), 1.0)

    def only(self, structure: Structure, work: Any, path: States) -> Any:
        tag_of = np.append(self._tag_of, len(self._first))  # the break is a state and a tag of its own
        tags = np.where(path >= 0, tag_of[path], -1)
        return tags[:, np.newaxis] == tag_of[: work.n_tags]

    def tags(self, path: States) -> States:
        return np.where(path >= 0, self._tag_of[path], path).astype(np.int32)

    def path(self, tags: States, starts: NDArray[np.int64]) -> States:
        return np.where(tags >= 0, self._first[tags], tags).astype(np.int32)

    # -------------------------------------------------------------------------------------------------- prediction

    def best_tags(self, scores: Any, clamp: Any) -> States:
        return self.tags(super().best_tags(scores, clamp))

    def best_with_probabilities(self, scores: Any, clamp: Any) -> tuple[States, Floats]:
        tags = self.best_tags(scores, clamp)
        found = self.segments(tags, scores.starts)
        return tags, self.structure.span_probabilities(scores, self.spans, found, clamp=clamp)

    def n_best(self, structure: Structure, scores: Any, n: int, clamp: Any) -> list[list[tuple[float, States]]]:
        tag_of = self._tag_of
        if scores[0].shape[1] > len(tag_of):  # with the break
            tag_of = np.append(tag_of, len(self._first))
        best = labellings.n_best(structure, scores, tag_of, n, clamp=clamp)
        unproven = sum(not of_sequence.proven for of_sequence in best)
        if unproven:
            self._tell(Warnings.CRFW345, n=unproven)
        return [of_sequence.found for of_sequence in best]

    def best_labelling(self, scores: Any, clamp: Any) -> States:
        """Tags of the most probable labelling, which is not that of the most probable path of states."""
        found = self.n_best(self.structure, scores, 1, clamp)
        none = np.zeros(0, dtype=np.int32)
        return self.tags(np.concatenate([none, *(of_sequence[0][1] for of_sequence in found)]))

    def _tell(self, message: str, **values: Any) -> None:
        """Once."""
        if message not in self._told:
            self._told.add(message)
            logger.warning(message.format(name=self.annotation.name, **values))

    def spell(self, clamp: Any, starts: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
        of_tags, steps = super().spell(clamp, starts)
        return self.of_states(of_tags), steps

    def worth(self, expected: Scores) -> dict[str, Floats]:
        return {name: self.of_states(self.by_tag(of_tokens)) for name, of_tokens in super().worth(expected).items()}
