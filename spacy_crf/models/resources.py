"""Gazetteers, clusters and vectors of the nodes of a model: a list that several nodes share is saved once, and is one object
after loading.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union

from thinc.api import Model
from thinc.model import deserialize_attr, serialize_attr

from ..features.clusters import Clusters
from ..features.doc_batch import Labeller
from ..features.gazetteers import Gazetteer
from ..features.token_columns import MOST_WORDS
from ..features.word_vectors import WordVectors
from ..types import Settings
from ..whole_files import packed, unpacked
from .node import check_equal

if TYPE_CHECKING:
    from ..features.extractor import FeatureSet
    from ..features.segment_templates import SegmentFeatureSet

AnyFeatureSet = Union["FeatureSet", "SegmentFeatureSet"]
Listed = TypeVar("Listed", bound="ListedFeatures")
# Lists of the model that were saved or loaded so far; None outside of `shared_lists`
_met: ContextVar[Optional[list]] = ContextVar("met", default=None)


@contextmanager
def shared_lists() -> Iterator[None]:
    """Context for saving or loading one model; the order of nodes must be the same both times."""
    token = _met.set([])
    try:
        yield
    finally:
        _met.reset(token)


def write(resource: Any) -> Union[int, Settings]:
    """Turn a list into data for `read`.

    resource (object): The list: a Gazetteer, Clusters or WordVectors.
    RETURNS (dict or int): The data, or the number of the list if an earlier node has the same object.
    """
    saved = _met.get()
    if saved is None:
        return resource.to_dict()
    # By identity: equal lists of two nodes stay two lists
    for number, other in enumerate(saved):
        if other is resource:
            return number
    saved.append(resource)
    return resource.to_dict()


def read(saved: Any, kind: type) -> Any:
    """Make a list from the result of `write`.

    saved (dict or int): The data, or the number of an earlier list.
    kind (type): The class of the list.
    RAISES (ValueError): CRF509 if a number belongs to a list of another class.
    """
    loaded = _met.get()
    if isinstance(saved, int):
        shared = loaded[saved] if loaded is not None and 0 <= saved < len(loaded) else None
        check_equal("a list that nodes share", type(shared), kind)
        return shared
    resource = kind.from_dict(saved)
    if loaded is not None:
        loaded.append(resource)
    return resource


class ListedFeatures:
    """Base of the features of a node: templates, and the gazetteers, clusters and vectors that they read, which are saved with
    the features.

    feature_set (FeatureSet): The templates.
    """

    first_stage: Optional[Labeller] = None  # source of stage:NAME, or of outer, in templates
    max_words: int = MOST_WORDS  # words whose attributes are kept

    def __init__(
        self,
        feature_set: AnyFeatureSet,
        gazetteers: Optional[dict[str, Gazetteer]] = None,
        clusters: Optional[dict[str, Clusters]] = None,
        vectors: Optional[WordVectors] = None,
    ):
        self.feature_set: Any = feature_set  # of the class that the subclass takes
        self.gazetteers = gazetteers or {}
        self.clusters = clusters or {}
        self.vectors = vectors

    @property
    def vector_width(self) -> int:
        """Numbers of a word vector, 0 without vectors."""
        return 0 if self.vectors is None else self.vectors.width

    def recompile(self) -> None:
        """Forget the compiled templates."""
        self._compiled: Any = None  # of the class that `_compile` returns

    def set_lists(
        self,
        gazetteers: dict[str, Gazetteer],
        clusters: Optional[dict[str, Clusters]] = None,
        vectors: Optional[WordVectors] = None,
    ) -> None:
        """Take the lists that the templates read.

        gazetteers (dict[str, Gazetteer]): Gazetteers by name.
        clusters (dict[str, Clusters]): Tables of clusters by name.
        vectors (WordVectors): Vectors of words.
        RAISES (ValueError): CRF106 if the templates name another gazetteer, CRF940 if they read clusters and get none,
            CRF800 for vectors.
        """
        feature_set = self.feature_set
        feature_set.reader(gazetteers, clusters, vectors)  # checks the lists
        self.gazetteers = {name: gazetteers[name] for name in feature_set.gazetteers}
        self.clusters = {name: (clusters or {})[name] for name in feature_set.cluster_tables}
        self.vectors = vectors if feature_set.vector_offsets else None
        self.recompile()

    def set_stage(self, feature_set: AnyFeatureSet, first_stage: Optional[Labeller]) -> None:
        """Set templates, and the first stage whose labels some of them read.

        feature_set (FeatureSet): The templates.
        first_stage (Optional[Labeller]): The first stage.
        """
        self.feature_set = feature_set
        self.first_stage = first_stage
        self.recompile()

    def check_lists(self) -> None:
        """Check that no list is missing. RAISES (ValueError): As `set_lists`."""
        self.feature_set.reader(self.gazetteers, self.clusters, self.vectors)

    def to_dict(self) -> Settings:
        """Data to save, for msgpack."""
        data: Settings = {"gazetteers": {name: write(gazetteer) for name, gazetteer in self.gazetteers.items()}}
        if self.clusters:
            data["cluster_tables"] = {name: write(table) for name, table in self.clusters.items()}
        if self.vectors is not None:
            data["word_vectors"] = write(self.vectors)
        return data

    def from_dict(self: Listed, data: Settings) -> Listed:
        """A copy with saved data."""
        features = copy.copy(self)
        features.gazetteers = {name: read(saved, Gazetteer) for name, saved in data["gazetteers"].items()}
        tables = data.get("cluster_tables", {})
        features.clusters = {name: read(saved, Clusters) for name, saved in tables.items()}
        features.vectors = read(data["word_vectors"], WordVectors) if "word_vectors" in data else None
        features.recompile()
        return features


@serialize_attr.register(ListedFeatures)
def _serialize(_, value: ListedFeatures, name: str, model: Model) -> bytes:
    return b"".join(packed(value.to_dict()))


@deserialize_attr.register(ListedFeatures)
def _deserialize(default: ListedFeatures, value: bytes, name: str, model: Model) -> ListedFeatures:
    return default.from_dict(unpacked(value))
