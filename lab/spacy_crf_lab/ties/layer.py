"""The layer of a factor graph that says which tokens are tied: from Docs to their ties."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps

from spacy_crf import checks
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.features.extractor import CompiledTemplates
from spacy_crf.kernels.hashing import ABSENT
from spacy_crf.models.corpus import corpus_by
from spacy_crf.models.node import Batches, Node, Sizes, Traits, check_equal, remove_params
from spacy_crf.models.resources import ListedFeatures
from spacy_crf.types import Floats

from ..kernels.ties import connect
from .features import TieFeatureSet, TieValues, tie_reader
from .scores import Ties
from .templates import TieTemplate, TokenPairs

Key = tuple[str, int, int]  # name of a template, number of its feature, and the value that this has


class TieFeatures(ListedFeatures):
    """The features of ties and their gazetteers, as the component manages those of its other features."""

    asks_functions = False

    def __init__(self, templates: dict[str, TieTemplate]):
        super().__init__(TieFeatureSet(templates))
        self._compiled: Optional[CompiledTemplates] = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_compiled": None}

    def clear_scores(self) -> None:
        """Does nothing, since ties have no scores of their own."""

    @property
    def reader(self) -> CompiledTemplates:
        """The compiled templates."""
        if self._compiled is None:
            self._compiled = tie_reader(self.feature_set, self.gazetteers, max_words=self.max_words)
        return self._compiled


class TiesNode(Node):
    """Gives `Ties`. Its features are those that training met: "known" (a list of [template, number, value, text, count])."""

    gives = Ties
    traits = Traits(learned=("known", "features"), meaning=("cliques",))

    def __init__(self) -> None:
        # Of a list of features, and for which it is; replaced as a whole: threads may be reading
        self._numbers: tuple[Optional[list], dict[Key, int]] = (None, {})

    def resize(self, model: Model, n_states: int) -> None:
        """Ties are the same for any labels."""

    def forget(self, model: Model) -> None:
        """Remove the features that training met."""
        remove_params(model)
        model.attrs["known"] = []

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for loaded features that no template has."""
        model.attrs["features"].check_lists()
        known = model.attrs["known"]
        templates = model.attrs["templates"]
        check_equal("the features of ties", isinstance(known, list), True)
        for entry in known:
            kinds = [*map(type, entry)] if isinstance(entry, list) else None
            check_equal("a feature of ties", kinds, [str, int, int, str, int])
            is_ours = entry[0] in templates and 0 <= entry[1] < len(templates[entry[0]].features)
            check_equal("the template of a feature of ties", is_ours, True)
        check_equal("equal features of ties", len({tuple(entry[:3]) for entry in known}), len(known))

    def numbers(self, model: Model) -> dict[Key, int]:
        """The row of each feature."""
        known = model.attrs["known"]
        (of, numbers) = self._numbers
        if of is not known:
            numbers = {(name, feature, value): row for row, (name, feature, value, *_) in enumerate(known)}
            self._numbers = known, numbers
        return numbers

    def symmetric(self, model: Model) -> NDArray[np.bool_]:
        """Which features count both ways: bool[F]."""
        templates = model.attrs["templates"]
        return np.array([templates[name].symmetric for name, *_ in model.attrs["known"]], dtype=bool)

    def associative(self, model: Model) -> NDArray[np.bool_]:
        """Which features only reward equal labels: bool[F]."""
        templates = model.attrs["templates"]
        return np.array([templates[name].associative for name, *_ in model.attrs["known"]], dtype=bool)


def TiesLayer(templates: dict[str, TieTemplate], further: list[list]) -> Model[list[Doc], Ties]:
    """templates (Dict[str, TieTemplate]): By their names in the config.
    further (list): Further settings on which the meaning of weights depends.
    """
    spelled = [[name, *template.as_text()] for name, template in templates.items()] + further
    return Model(
        "cliques",
        _forward,
        init=_init,
        attrs={
            "templates": templates,
            "features": TieFeatures(templates),
            "known": [],
            "cliques": spelled,
            "node": TiesNode(),
        },
        ops=NumpyOps(),
    )


def find_ties(model: Model, docs: list[Doc]) -> Ties:
    """The ties of Docs that have any known feature."""
    docs = DocBatch.of(docs)
    found = []
    if int(docs.bounds[-1]):
        features = model.attrs["features"]
        for name, groups, _, values in _look_up(model, TieValues(features.reader, docs), docs):
            rows = _rows(name, values, model.attrs["node"].numbers(model))
            some = (rows >= 0).any(axis=1)
            if some.any():
                found.append((groups.members[np.repeat(some, groups.sizes)], groups.sizes[some], rows[some]))
    if not found:
        return Ties.none()
    symmetric = model.attrs["node"].symmetric(model)
    width = max(rows.shape[1] for *_, rows in found)
    every = np.concatenate(
        [np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=-1) for *_, rows in found]
    )
    # Ties with the same features are of one kind, and share a table
    kinds, kind = np.unique(every, axis=0, return_inverse=True)
    kind = kind.reshape(-1).astype(np.int32)
    kinds = kinds.astype(np.int32)
    members = np.concatenate([of_template for of_template, _, _ in found]).astype(np.int32)
    sizes = np.concatenate([of_template for _, of_template, _ in found])
    is_pair = sizes == 2
    of_pairs = np.repeat(is_pair, sizes)
    starts = np.append(0, np.cumsum(sizes[~is_pair])).astype(np.int64)
    source, target = members[of_pairs].reshape(-1, 2).T.copy()
    return Ties(source, target, kind[is_pair], kinds, symmetric, members[~of_pairs], starts, kind[~is_pair])


class _Groups(NamedTuple):
    members: NDArray[np.int64]  # [M] tokens, group by group
    sizes: NDArray[np.int64]  # [G] number of members of each group

    @classmethod
    def of(cls, template: TieTemplate, pairs: TokenPairs) -> "_Groups":
        """Each pair of tokens, or with `edges = "group"` all tokens that pairs connect, in the order of the text."""
        if template.edges != "group":
            return cls(np.stack(pairs, axis=1).ravel(), np.full(len(pairs.source), 2))
        tokens, ends = np.unique(np.stack(pairs), return_inverse=True)
        group = np.empty(len(tokens), dtype=np.int64)
        connect(*ends.reshape(2, -1), group)
        return cls(tokens[np.argsort(group, kind="stable")], np.bincount(group))


def _look_up(
    model: Model, values: TieValues, docs: DocBatch
) -> Iterator[tuple[str, _Groups, TokenPairs, NDArray[np.uint64]]]:
    """For each template that ties any tokens: its name, the groups, their first and last tokens, and the features' values."""
    for name, template in model.attrs["templates"].items():
        pairs = template.find(docs)
        if len(pairs.source):
            groups = _Groups.of(template, pairs)
            after = np.cumsum(groups.sizes)
            ends = TokenPairs(groups.members[after - groups.sizes], groups.members[after - 1])
            yield name, groups, ends, values.of(template, ends)


def _rows(name: str, values: NDArray[np.uint64], numbers: dict[Key, int]) -> NDArray[np.int64]:
    """The rows of features (int64[E, M]), -1 for unknown ones."""
    rows = np.empty(values.shape, dtype=np.int64)
    for feature, column in enumerate(values.T):
        distinct, inverse = np.unique(column, return_inverse=True)
        known = np.array([numbers.get((name, feature, value), -1) for value in distinct.tolist()], dtype=np.int64)
        rows[:, feature] = known[inverse.reshape(-1)]
    return rows


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Ties, Callable]:
    return find_ties(model, docs), lambda d_ties: []


def _init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Adds the features that a corpus has to those that are known."""
    if X is None:
        return
    known = [list(entry) for entry in model.attrs["known"]]
    numbers = dict(model.attrs["node"].numbers(model))
    features = model.attrs["features"]
    reader = tie_reader(features.feature_set, features.gazetteers, with_names=True)
    for batch in X():
        docs = DocBatch.of(batch.docs)
        if not int(docs.bounds[-1]):
            continue
        of_batch = TieValues(reader, docs)
        for name, _, pairs, values in _look_up(model, of_batch, docs):
            template: TieTemplate = model.attrs["templates"][name]
            for feature, column in enumerate(values.T):
                distinct, first, counts = np.unique(column, return_index=True, return_counts=True)
                for value, example, count in zip(distinct.tolist(), first.tolist(), counts.tolist()):
                    key = (name, feature, value)
                    if value == ABSENT:
                        continue
                    if key not in numbers:
                        numbers[key] = len(known)
                        known.append([*key, of_batch.name(template, feature, pairs, example), 0])
                    # How often training has met the feature
                    known[numbers[key]][-1] += count
    model.attrs["known"] = known


class TieCorpus:
    """The ties of a corpus, batch by batch: what `corpus.SparseCorpus` is for features of tokens. They have no weights of their
    own.
    """

    names: tuple[str, ...] = ()

    def __init__(self, layer: Model):
        self._layer = layer
        self._ties: list[Ties] = []

    def add(self, docs: DocBatch) -> None:
        """Find the ties of a batch."""
        self._ties.append(find_ties(self._layer, docs))

    def finish(self) -> None:
        """There is nothing to do."""

    def fingerprint(self):
        """The arrays that identify the ties."""
        for ties in self._ties:
            yield from ties

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> "TieCorpus":
        """The corpus itself: ties do not depend on weights."""
        return self

    def score(self, number: int) -> Ties:
        """The ties of a batch."""
        return self._ties[number]

    def collect(self, numbers: Iterable[int], derivatives: Iterable[Ties]) -> None:
        """Nothing depends on weights here."""

    def gradient(self) -> dict[str, Floats]:
        """No gradients: the tables of ties are shared scores of the model."""
        return {}


@corpus_by.register
def _(node: TiesNode, layer: Model) -> TieCorpus:
    return TieCorpus(layer)


def check_templates(owner: str, templates: Any, ties: str = TieTemplate.ties) -> dict[str, TieTemplate]:
    """Templates by their names. ties (str): What they have to tie, "tokens" or "documents".

    RAISES (ValueError): CRF020 for other values.
    """
    given = dict(templates or {}) if isinstance(templates, dict) or templates is None else {"cliques": templates}
    for name, template in given.items():
        example = {"tokens": "RepeatedWords", "documents": "LinkedDocuments"}[ties]
        must = f'a template that ties {ties}, such as [...model.cliques.{name}] @misc = "spacy_crf_lab.{example}.v1"'
        is_one = isinstance(template, TieTemplate) and template.ties == ties
        checks.expect(is_one, owner, f"the block cliques.{name}", template, must)
    return given
