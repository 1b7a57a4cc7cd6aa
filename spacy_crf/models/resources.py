"""Gazetteers, clusters and vectors that nodes of a model have: saved with the first of those that read the same, and one object
again when loaded."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

from thinc.api import Model
from thinc.model import deserialize_attr, serialize_attr

from ..features.clusters import Clusters
from ..features.document import Labeller
from ..features.gazetteers import Gazetteer
from ..features.token_columns import MOST_WORDS
from ..features.word_vectors import WordVectors
from ..msgpack_stream import packed, unpacked
from .node import check_equal

# Those met so far in the model that is being saved or loaded; None where nodes are by themselves
_met: ContextVar[Optional[list[Any]]] = ContextVar("met", default=None)


@contextmanager
def shared_lists() -> Iterator[None]:
    """What is saved or loaded inside is one model, whose nodes come in the same order both times."""
    token = _met.set([])
    try:
        yield
    finally:
        _met.reset(token)


def write(each: Any) -> Any:
    """What `read` makes it of: all it says, or its number where an earlier node has said it."""
    met = _met.get()
    if met is None:
        return each.to_dict()
    number = next((n for n, other in enumerate(met) if other is each), None)
    if number is not None:
        return number
    met.append(each)
    return each.to_dict()


def read(saved: Any, kind: type) -> Any:
    """RAISES (ValueError): CRF509 for a number that stands for nothing of this kind."""
    met = _met.get()
    if isinstance(saved, int):
        found = met[saved] if met is not None and 0 <= saved < len(met) else None
        check_equal("a list that nodes share", type(found), kind)
        return found
    made = kind.from_dict(saved)
    if met is not None:
        met.append(made)
    return made


class ListedFeatures:
    """Features of a node, and the lists that they read, which are saved with them.

    feature_set: What they are, and so which lists they read.
    """

    first_stage: Optional[Labeller] = None  # what templates read as stage:NAME
    max_words: int = MOST_WORDS  # of which is kept what templates read

    def __init__(
        self,
        feature_set: Any,
        gazetteers: Optional[dict[str, Gazetteer]] = None,
        clusters: Optional[Clusters] = None,
        vectors: Optional[WordVectors] = None,
    ):
        self.feature_set = feature_set
        self.gazetteers, self.clusters, self.vectors = gazetteers or {}, clusters, vectors

    def recompile(self) -> None:
        """What reads Docs is to be made anew."""
        raise NotImplementedError

    def set_lists(
        self,
        gazetteers: dict[str, Gazetteer],
        clusters: Optional[Clusters] = None,
        vectors: Optional[WordVectors] = None,
    ) -> None:
        """Those that there are: it takes what it reads.

        RAISES (ValueError): CRF106 if the templates name another gazetteer, CRF940 if they read clusters and get none, CRF800
        for vectors.
        """
        reads = self.feature_set
        reads.reader(gazetteers, clusters, vectors)
        self.gazetteers = {name: gazetteers[name] for name in reads.gazetteers}
        self.clusters = clusters if reads.reads_clusters else None
        self.vectors = vectors if reads.vector_offsets else None
        self.recompile()

    def set_stage(self, feature_set: Any, first_stage: Optional[Labeller]) -> None:
        """Templates, and what those of them ask that read what a first stage says."""
        self.feature_set, self.first_stage = feature_set, first_stage
        self.recompile()

    def check_lists(self) -> None:
        """RAISES (ValueError): As `set_lists`, for a list that is missing."""
        self.feature_set.reader(self.gazetteers, self.clusters, self.vectors)

    def to_dict(self) -> dict[str, Any]:
        """What is saved, as msgpack takes it."""
        return {
            "gazetteers": {name: write(gazetteer) for name, gazetteer in self.gazetteers.items()},
            **({"clusters": write(self.clusters)} if self.clusters is not None else {}),
            **({"word_vectors": write(self.vectors)} if self.vectors is not None else {}),
        }

    def from_dict(self, data: dict[str, Any]) -> "ListedFeatures":
        """The same templates with what was saved."""
        features = copy.copy(self)
        features.gazetteers = {name: read(saved, Gazetteer) for name, saved in data["gazetteers"].items()}
        features.clusters = read(data["clusters"], Clusters) if "clusters" in data else None
        features.vectors = read(data["word_vectors"], WordVectors) if "word_vectors" in data else None
        features.recompile()
        return features


def _serialize(_, value: ListedFeatures, name: str, model: Model) -> bytes:
    return b"".join(packed(value.to_dict()))


def _deserialize(default: ListedFeatures, value: bytes, name: str, model: Model) -> ListedFeatures:
    return default.from_dict(unpacked(value))


serialize_attr.register(ListedFeatures, _serialize)
deserialize_attr.register(ListedFeatures, _deserialize)
