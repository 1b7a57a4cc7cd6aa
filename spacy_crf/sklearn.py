"""A linear-chain CRF as a scikit-learn estimator, for users of sklearn-crfsuite: it maps lists of feature dicts to lists of
labels, without spaCy's pipelines. It uses the feature table, objective and optimizers of the components."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model

from . import checks
from .errors import Errors, quietly, shown
from .features.doc_batch import DocBatch
from .features.extractor import FeatureSet
from .features.items import ItemList, ItemReader, Items, NotAnItem
from .losses.clamped import LogLikelihood
from .models.emissions import SparseEmissions
from .models.linear_chain import LinearChain
from .models.node import AnnotatedDocs, Sizes
from .models.objective import TiedObjective
from .models.sparse import prune
from .optimizers.lbfgs import LBFGS
from .pipeline.saving import load_model, reason_of
from .schemes import TransitionMask
from .types import ChainScores
from .whole_files import FileFormat, seal, unpacked, unpacking, unseal, write_whole

try:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
except ImportError as error:
    needed = {"package": "scikit-learn", "install": "'spacy-crf[sklearn]'"}
    raise ImportError(Errors.CRF781.format(what="spacy_crf.sklearn", reason=error, **needed)) from error

_FORMAT = FileFormat("a CRF of spacy_crf.sklearn", b"spacy_crf.sklearn\n", 1)
_BLOCK = 512  # sequences that are read together
_SOURCE, _ITEMS = "items", "crf_items"  # name of the features in templates, and their key in doc.user_data
_VOCAB = Vocab()
Rows = Sequence[Any]  # a sequence: for each token a dict, or a list of strings


@dataclass(eq=False, repr=False)
class CRF(BaseEstimator):
    """A linear-chain CRF with the features and the objective of CRFsuite: ``loss + c1·|w| + c2·w²``.

    A sequence is a list of dicts, one for each token, as in python-crfsuite: ``{"word": "kestrel", "upper": False}``; or a list
    of lists of strings. The labels of a sequence are a list of strings.

    algorithm (str): "lbfgs": L-BFGS, and OWL-QN where c1 is above 0.
    c1 (float): Weight of the sum of all |w|. Above 0 most weights become exactly 0.
    c2 (float): Weight of the sum of all w².
    max_iterations (int): None for no limit.
    all_possible_states (bool): Give each attribute a weight for every label, not only for labels seen with it.
    all_possible_transitions (bool): Give every pair of labels a weight, not only pairs in the training data.
    min_freq (float): Attributes that occur less often with a label, and pairs of labels that occur less often, get no weight.
    num_memories (int): Number of past steps from which L-BFGS infers the curvature.
    epsilon (float): Stop when |gradient| / max(1, |w|) is at most epsilon.
    period (int), delta (float): Stop when `period` iterations improve the objective by at most the fraction `delta` of its value.
    max_linesearch (int): Maximum number of evaluations in a line search.
    verbose (bool): Log the progress of training.
    """

    algorithm: str = "lbfgs"
    c1: float = 0.0
    c2: float = 1.0
    max_iterations: Optional[int] = None
    all_possible_states: bool = False
    all_possible_transitions: bool = False
    min_freq: float = 0.0
    num_memories: int = 20
    epsilon: float = 1e-5
    period: int = 10
    delta: float = 1e-5
    max_linesearch: int = 20
    verbose: bool = False

    # -------------------------------------------------------------------------------------------------- learning

    def fit(self, X: Iterable[Rows], y: Iterable[Sequence[str]]) -> "CRF":
        """Train on sequences and their labels.

        X (Iterable[List[dict]]): For each sequence, the features of its tokens.
        y (Iterable[List[str]]): For each sequence, the labels of its tokens.
        RAISES (ValueError): CRF020 for a parameter; CRF131, CRF111 or CRF853 for data that can't be used.
        """
        optimizer, key = self._optimizer(), type(self).__name__
        X, y = list(X), list(y)
        classes = _classes(X, y)
        source = _ItemsOfDocs()
        docs, state = source.docs(X), {label: n for n, label in enumerate(classes)}
        states = [np.array([state[label] for label in labels], dtype=np.int64) for labels in y]

        def blocks() -> Iterator[AnnotatedDocs]:
            for begin in range(0, len(docs), _BLOCK):
                some = DocBatch(docs[begin : begin + _BLOCK])
                gold = np.concatenate(states[begin : begin + _BLOCK])
                allowed = gold[:, np.newaxis] == np.arange(len(classes))
                yield AnnotatedDocs(some, allowed, some.sequence_starts(), np.zeros(len(gold), dtype=bool))

        model = self._new_model(source, len(classes))
        model.initialize(X=blocks, Y=Sizes(_VOCAB, len(classes)))
        model.attrs["observed"][-2:] = 0  # CRFsuite has no weights for first and last labels
        _drop_rare(model, blocks, checks.number(key, "min_freq", self.min_freq))
        objective = TiedObjective(model, LogLikelihood(), blocks())
        with nullcontext() if self.verbose else quietly():
            while optimizer.stop_reason(key) is None:
                self.objective_ = optimizer.step(objective, key=key)
        self.classes_, self.n_iter_ = classes, optimizer.iterations(key)
        self._model = prune(model)[0]
        return self

    def _optimizer(self) -> LBFGS:
        owner = type(self).__name__
        checks.one_of(owner, "algorithm", self.algorithm, ("lbfgs",))
        most = self.max_iterations
        return LBFGS(
            l1=checks.number(owner, "c1", self.c1),
            l2=checks.number(owner, "c2", self.c2),
            memory=checks.count(owner, "num_memories", self.num_memories, most=1000),
            tolerance=checks.number(owner, "epsilon", self.epsilon),
            period=checks.count(owner, "period", self.period, most=1_000_000),
            delta=checks.number(owner, "delta", self.delta),
            max_iterations=None if most is None else checks.count(owner, "max_iterations", most),
            max_line_search=checks.count(owner, "max_linesearch", self.max_linesearch),
        )

    def _new_model(self, source: "_ItemsOfDocs", n_states: int) -> Model:
        owner = type(self).__name__
        features = FeatureSet([f"fn:{_SOURCE}[0]"], functions={_SOURCE: source})
        possible_states = checks.flag(owner, "all_possible_states", self.all_possible_states)
        possible_transitions = checks.flag(owner, "all_possible_transitions", self.all_possible_transitions)
        emissions = SparseEmissions(features, possible_states=possible_states)
        model = LinearChain(emissions, possible_transitions=possible_transitions)
        every = np.ones((n_states, n_states), dtype=bool)
        model.attrs["allowed"] = TransitionMask(every, every[0], every[0])
        return model

    # ------------------------------------------------------------------------------------------------ predicting

    def predict(self, X: Iterable[Rows]) -> NDArray[np.object_]:
        """Predict the most probable labels of each sequence. RETURNS (array): A list of strings for each sequence."""
        return _as_array(self._labels(list(X)))

    def predict_single(self, xseq: Rows) -> list[str]:
        """Predict the most probable labels of one sequence."""
        return next(self._labels([xseq]))

    def predict_marginals(self, X: Iterable[Rows]) -> NDArray[np.object_]:
        """Compute the probability of each label at each token. RETURNS (array): A list of dicts for each sequence."""
        return _as_array(self._marginals(list(X)))

    def predict_marginals_single(self, xseq: Rows) -> list[dict[str, float]]:
        """Compute the probability of each label at each token of one sequence."""
        return next(self._marginals([xseq]))

    def score(self, X: Iterable[Rows], y: Iterable[Sequence[str]]) -> float:
        """Compute the accuracy of the predicted labels. RAISES (ValueError): CRF853 if the lengths of X and y differ."""
        X, y = list(X), list(y)
        _check_lengths(X, y)
        right = [
            given == found
            for gold, labels in zip(y, self.predict(X))
            for given, found in zip(gold, labels, strict=True)
        ]
        return float(np.mean(right)) if right else 0.0

    def _labels(self, X: list[Rows]) -> Iterator[list[str]]:
        for bounds, scores in self._scores(X):
            states = self._fitted.attrs["role"].structure.viterbi(scores).states
            labels = [self.classes_[state] for state in states.tolist()]
            yield from (labels[begin:end] for begin, end in pairwise(bounds))

    def _marginals(self, X: list[Rows]) -> Iterator[list[dict[str, float]]]:
        for bounds, scores in self._scores(X):
            probabilities = self._fitted.attrs["role"].structure.marginals(scores)
            rows = [dict(zip(self.classes_, row)) for row in probabilities.tolist()]
            yield from (rows[begin:end] for begin, end in pairwise(bounds))

    def _scores(self, X: list[Rows]) -> Iterator[tuple[list[int], ChainScores]]:
        """Bounds of the sequences (some may be empty) and scores of each block."""
        model = self._fitted
        for begin in range(0, len(X), _BLOCK):
            docs = DocBatch(_ItemsOfDocs().docs(X[begin : begin + _BLOCK], begin))
            yield docs.bounds.tolist(), model.predict(docs)

    # --------------------------------------------------------------------------------------- what it has learned

    @property
    def _fitted(self) -> Model:
        """The trained model. RAISES (NotFittedError): CRF851 before training."""
        if "_model" not in self.__dict__:
            raise NotFittedError(Errors.CRF851)
        return self._model

    @property
    def attributes_(self) -> list[str]:
        """Attributes that have a weight other than 0."""
        spelled = self._fitted.layers[0].attrs["features"].states.index.spelled
        return [spelled.strings[part] for part in spelled.parts]  # a single one each

    @property
    def state_features_(self) -> dict[tuple[str, str], float]:
        """The weights other than 0, by attribute and label."""
        [emissions] = self._fitted.layers
        table, weights = emissions.attrs["features"].states, emissions.get_param("states")
        attributes, classes = self.attributes_, self.classes_
        pairs = zip(table.rows_of_pairs().tolist(), table.pair_columns.tolist(), weights.tolist())
        return {(attributes[row], classes[column]): weight for row, column, weight in pairs if weight}

    @property
    def transition_features_(self) -> dict[tuple[str, str], float]:
        """The weights other than 0, by label and next label."""
        weights = self._fitted.get_param("transitions")
        return {(self.classes_[i], self.classes_[j]): float(weights[i, j]) for i, j in np.argwhere(weights)}

    # ---------------------------------------------------------------------------------------------------- saving

    def save(self, path: Union[str, Path]) -> None:
        """Write the parameters and weights to a file, which `load` reads without running code from the file."""
        write_whole(Path(path), self._packed())

    @classmethod
    def load(cls, path: Union[str, Path]) -> "CRF":
        """Load an estimator from a file that `save` wrote.

        RAISES (ValueError): CRF501, CRF502 or CRF508 if `save` did not write the file, or the file is damaged.
        """
        crf = cls()
        crf._unpack(Path(path).read_bytes(), str(path))
        return crf

    def _packed(self) -> bytes:
        learned = {"classes": self.classes_, "objective": self.objective_, "n_iter": self.n_iter_}
        content = {"params": self.get_params(), **learned, "model": self._fitted.to_bytes()}
        return seal(_FORMAT, srsly.msgpack_dumps(content))

    def _unpack(self, data: bytes, source: str) -> None:
        with unpacking(data):
            content = unseal(_FORMAT, data, source)
            try:
                saved = unpacked(content)
                self.set_params(**saved["params"])
                classes = [checks.text("classes", str(n), label) for n, label in enumerate(saved["classes"])]
                model = self._new_model(_ItemsOfDocs(), len(classes))
                load_model(model, unpacked(saved["model"]), len(classes))
                learned = {"classes_": classes, "objective_": saved["objective"], "n_iter_": saved["n_iter"]}
            except Exception as error:  # the file may contain anything
                raise ValueError(Errors.CRF508.format(source=source, reason=reason_of(error))) from error
        self.__dict__.update(learned, _model=model)

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles and copies, with bytes in place of the model."""
        state = dict(super().__getstate__())
        if "_model" in state:
            state["_model"] = self._packed()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.pop("_model", None)
        super().__setstate__(state)
        if packed is not None:
            self._unpack(packed, "the pickle")


# ----------------------------------------------------------------------------------------------- sequences as Docs


class _ItemsOfDocs(ItemReader):
    """Represents sequences as Docs: reads feature dicts once, and attaches them to Docs with the same number of tokens."""

    def __init__(self) -> None:
        self._list = ItemList("X")

    def docs(self, X: list[Rows], first: int = 0) -> list[Doc]:
        """Make a Doc for each sequence.

        first (int): Number of the first sequence, for messages.
        RAISES (ValueError): CRF131 or CRF111.
        """
        for number, rows in enumerate(X, start=first):
            for token, row in enumerate(rows):
                try:
                    self._list.add(row)
                except NotAnItem as error:
                    where = f"X[{number}][{token}]"
                    raise ValueError(Errors.CRF111.format(where=where, value=shown(error.args[0]))) from None
        items, docs = self._list.items, []
        for begin, end in pairwise(accumulate(map(len, X), initial=0)):
            some = slice(items.starts[begin], items.starts[end])
            own = Items(items.hashes[some], items.values[some], items.starts[begin : end + 1] - items.starts[begin])
            docs.append(Doc(_VOCAB, words=["x"] * (end - begin), user_data={_ITEMS: own}))
        return docs

    def read(self, docs: list[Doc], names: Optional[dict[int, str]]) -> Items:
        if names is not None:
            names.update(self._list.names)
        hashes, values, starts = zip(*(doc.user_data[_ITEMS] for doc in docs)) if docs else ([], [], [])
        counts = np.concatenate([np.zeros(0, dtype=np.int64), *map(np.diff, starts)])
        return Items(
            np.concatenate([np.zeros(0, dtype=np.uint64), *hashes]),
            np.concatenate([np.zeros(0, dtype=np.float32), *values]),
            np.append(0, np.cumsum(counts)),
        )


def _classes(X: list[Rows], y: list[Sequence[str]]) -> list[str]:
    """Collect the labels in the order of their occurrence. RAISES (ValueError): CRF853 if X and y do not match."""
    _check_lengths(X, y)
    for number, labels in enumerate(y):
        for label in labels:
            if not isinstance(label, str) or not label:
                raise ValueError(Errors.CRF853.format(problem=f"sequence {number} has the label {shown(label)}"))
    classes = [*dict.fromkeys(label for labels in y for label in labels)]
    if not classes:
        raise ValueError(Errors.CRF853.format(problem="there is no token in them"))
    return classes


def _check_lengths(X: list[Rows], y: list[Sequence[str]]) -> None:
    """Check the lengths of X and y and of their sequences. RAISES (ValueError): CRF853 if they differ."""
    if len(X) != len(y):
        raise ValueError(Errors.CRF853.format(problem=f"X has {len(X)} sequences, y has {len(y)}"))
    for number, (rows, labels) in enumerate(zip(X, y)):
        if len(rows) != len(labels):
            problem = f"sequence {number} has {len(rows)} tokens in X and {len(labels)} labels in y"
            raise ValueError(Errors.CRF853.format(problem=problem))


def _drop_rare(model: Model, blocks: Callable[[], Iterator[AnnotatedDocs]], min_freq: float) -> None:
    """Remove the weights of rare pairs of an attribute and a label (its count is the sum of values), and of rare label pairs."""
    if not min_freq:
        return
    [emissions] = model.layers
    features = emissions.attrs["features"]
    met, observed = np.zeros(features.states.n_weights), model.attrs["observed"]
    steps = np.zeros(observed[:-2].shape)
    for block in blocks():
        gold = block.allowed.astype(np.float64)
        features.states.scatter(features.look_up(block.docs).features["states"], gold, met)
        inside = np.ones(len(gold), dtype=bool)
        inside[block.starts[:-1][block.starts[:-1] < len(gold)]] = False
        [at] = np.nonzero(inside)
        steps += gold[at - 1].T @ gold[at]
    observed[:-2] &= (steps >= min_freq).astype(np.uint8)
    table = features.states.pruned(met >= min_freq)
    emissions.attrs["features"] = features.with_tables({**features.tables, "states": table})
    emissions.set_param("states", np.zeros(table.n_weights, dtype=np.float32))


def _as_array(sequences: Iterable[list]) -> NDArray[np.object_]:
    """Make a one-dimensional array with an object for each sequence, even if all sequences have the same length."""
    sequences = list(sequences)
    array = np.empty(len(sequences), dtype=object)
    array[:] = sequences
    return array
