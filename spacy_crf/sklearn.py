"""A linear-chain CRF as a scikit-learn estimator, for users of sklearn-crfsuite: it maps lists of feature dicts to lists of
labels, without spaCy's pipelines. The work is done in `sklearn_model`, which is imported when a CRF is first trained or used."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .errors import Errors, shown
from .types import Settings

if TYPE_CHECKING:
    from thinc.api import Model

try:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
except ImportError as error:
    needed = {"package": "scikit-learn", "install": "'spacy-crf[sklearn]'"}
    raise ImportError(Errors.CRF781.format(what="spacy_crf.sklearn", reason=error, **needed)) from error

# A sequence: for each token a dict, or a list of strings
Rows = Sequence[Union[dict, Sequence[str]]]


@cache
def _work() -> ModuleType:
    """The module that trains and predicts, which imports spaCy."""
    return import_module(".sklearn_model", __package__)


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
    classes_: list[str] = field(init=False)  # the labels, in the order of their first occurrence
    objective_: float = field(init=False)
    n_iter_: int = field(init=False)
    _model: "Model" = field(init=False)

    # -------------------------------------------------------------------------------------------------- learning

    def fit(self, X: Iterable[Rows], y: Iterable[Sequence[str]]) -> "CRF":
        """Train on sequences and their labels.

        X (Iterable[List[dict]]): For each sequence, the features of its tokens.
        y (Iterable[List[str]]): For each sequence, the labels of its tokens.
        RAISES (ValueError): CRF020 for a parameter; CRF131, CRF111 or CRF853 for data that can't be used.
        """
        X = sequences("X", X)
        y = sequences("y", y)
        check_lengths(X, y)
        _work().fit(self, X, y)
        return self

    # ------------------------------------------------------------------------------------------------ predicting

    def predict(self, X: Iterable[Rows]) -> NDArray[np.object_]:
        """Predict the most probable labels of each sequence. RETURNS (array): A list of strings for each sequence."""
        return _as_array(_work().labels_of(self, sequences("X", X)))

    def predict_single(self, xseq: Rows) -> list[str]:
        """Predict the most probable labels of one sequence."""
        return next(_work().labels_of(self, sequences("X", [xseq])))

    # Of a CRF trained on rows of columns, such as ["word", "NN"]
    tag_rows = predict_single

    def predict_marginals(self, X: Iterable[Rows]) -> NDArray[np.object_]:
        """Compute the probability of each label at each token. RETURNS (array): A list of dicts for each sequence."""
        return _as_array(_work().marginals_of(self, sequences("X", X)))

    def predict_marginals_single(self, xseq: Rows) -> list[dict[str, float]]:
        """Compute the probability of each label at each token of one sequence."""
        return next(_work().marginals_of(self, sequences("X", [xseq])))

    def score(self, X: Iterable[Rows], y: Iterable[Sequence[str]]) -> float:
        """Compute the accuracy of the predicted labels. RAISES (ValueError): CRF853 if the lengths of X and y differ."""
        X = sequences("X", X)
        y = sequences("y", y)
        check_lengths(X, y)
        is_right = []
        for gold, predicted in zip(y, self.predict(X)):
            is_right += [label == other for label, other in zip(gold, predicted, strict=True)]
        return float(np.mean(is_right)) if is_right else 0.0

    # --------------------------------------------------------------------------------------- what it has learned

    @property
    def _fitted(self) -> "Model":
        """The trained model. RAISES (NotFittedError): CRF851 before training."""
        if "_model" not in self.__dict__:
            raise NotFittedError(Errors.CRF851)
        return self._model

    @property
    def attributes_(self) -> list[str]:
        """Attributes that have a weight other than 0."""
        names = self._fitted.layers[0].attrs["features"].states.index.feature_names
        # Each feature has a single part: its attribute
        return [names.strings[part] for part in names.parts]

    @property
    def state_features_(self) -> dict[tuple[str, str], float]:
        """The weights other than 0, by attribute and label."""
        [emissions] = self._fitted.layers
        table = emissions.attrs["features"].states
        weights = emissions.get_param("states")
        attributes = self.attributes_
        classes = self.classes_
        pairs = zip(table.rows_of_pairs().tolist(), table.pair_columns.tolist(), weights.tolist())
        return {(attributes[row], classes[column]): weight for row, column, weight in pairs if weight}

    @property
    def transition_features_(self) -> dict[tuple[str, str], float]:
        """The weights other than 0, by label and next label."""
        weights = np.asarray(self._fitted.get_param("transitions"))
        classes = self.classes_
        return {(classes[i], classes[j]): float(weights[i, j]) for i, j in np.argwhere(weights)}

    # ---------------------------------------------------------------------------------------------------- saving

    def save(self, path: Union[str, Path]) -> None:
        """Write the parameters and weights to a file, which `load` reads without running code from the file."""
        from .whole_files import write_whole

        write_whole(Path(path), _work().pack(self))

    @classmethod
    def load(cls, path: Union[str, Path]) -> "CRF":
        """Load an estimator from a file that `save` wrote.

        RAISES (ValueError): CRF501, CRF502 or CRF508 if `save` did not write the file, or the file is damaged.
        """
        crf = cls()
        _work().unpack(crf, Path(path).read_bytes(), str(path))
        return crf

    def __getstate__(self) -> Settings:
        """The state for pickles and copies, with bytes in place of the model."""
        state = dict(super().__getstate__())
        if "_model" in state:
            state["_model"] = _work().pack(self)
        return state

    def __setstate__(self, state: Settings) -> None:
        packed = state.pop("_model", None)
        super().__setstate__(state)
        if packed is not None:
            _work().unpack(self, packed, "the pickle")


def sequences(name: str, given: object) -> list[Sequence]:
    """Make a list of the sequences of X or y. RAISES (ValueError): CRF853 for anything but a collection of sequences."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping, type)):
        raise ValueError(Errors.CRF853.format(problem=f"{name} is {shown(given)}"))
    found = list(given)
    for number, sequence in enumerate(found):
        is_sequence = isinstance(sequence, Collection) and getattr(sequence, "ndim", 1) > 0
        if not is_sequence or isinstance(sequence, (str, bytes, Mapping, Set)):
            raise ValueError(Errors.CRF853.format(problem=f"{name}[{number}] is {shown(sequence)}"))
    return found


def check_lengths(X: list[Rows], y: list[Sequence[str]]) -> None:
    """Check the lengths of X and y and of their sequences. RAISES (ValueError): CRF853 if they differ."""
    if len(X) != len(y):
        raise ValueError(Errors.CRF853.format(problem=f"X has {len(X)} sequences, y has {len(y)}"))
    for number, (rows, labels) in enumerate(zip(X, y)):
        if len(rows) != len(labels):
            raise ValueError(
                Errors.CRF853.format(
                    problem=f"sequence {number} has {len(rows)} tokens in X and {len(labels)} labels in y"
                )
            )


def _as_array(sequences: Iterable[list]) -> NDArray[np.object_]:
    """Make a one-dimensional array with an object for each sequence, even if all sequences have the same length."""
    sequences = list(sequences)
    array = np.empty(len(sequences), dtype=object)
    array[:] = sequences
    return array
