"""What a node of a model answers beside its output, and how its parameters are laid out anew and checked."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model

from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..schemes import NO_SEGMENTS, Segments
from ..types import Floats


class AnnotatedDocs(NamedTuple):
    """A batch of training data, as models are initialized with it."""

    docs: list[Doc]
    allowed: Any  # the labellings that the annotation allows: a clamp
    starts: NDArray[np.int64]  # [B + 1] of the sequences
    unset: NDArray[np.bool_]  # [T] tokens of which the annotation says nothing
    weights: Optional[Floats] = None  # [B] how much each sequence counts
    structure: Any = None  # answers the loss in place of the model's own, where rules hold in training
    alternatives: Segments = NO_SEGMENTS  # segments that the annotation allows beside others
    excluded: Segments = NO_SEGMENTS  # segments that no clamp leaves out, for optimizers that don't ask the structure
    soft: Any = None  # what a teacher says, see `losses.soft`


Corpus = Callable[[], Iterable[AnnotatedDocs]]  # the batches, read as often as needed


class Evidence(NamedTuple):
    """How often training met what weights belong to."""

    counts: dict[str, NDArray[np.int64]]  # [F] of the features, by table
    tokens: int
    sequences: int

    @classmethod
    def known(cls, counts: dict[str, NDArray[np.int64]], met: list[int]) -> "Evidence":
        """met (list[int]): Tokens and sequences; zeros where a model was saved by a version that did not count."""
        tokens = max([met[0], *(int(of_table.max(initial=0)) for name, of_table in counts.items() if name == "states")])
        return cls(counts, tokens, met[1] or tokens // 15)

    def plus(self, other: "Evidence") -> "Evidence":
        """With what came later."""
        counts = {
            name: later + np.pad(self.counts[name], (0, len(later) - len(self.counts[name])))
            for name, later in other.counts.items()
        }
        return Evidence(counts, self.tokens + other.tokens, self.sequences + other.sequences)


class Sizes(NamedTuple):
    """What nodes are initialized for."""

    vocab: Vocab
    n_states: int
    longest: int = 1  # tokens of the longest segment
    tag_of: Optional[NDArray[np.int64]] = None  # [S] the tag of each state, in order; None where each state is a tag


class Role:
    """``attrs["role"]`` of every node of ours."""

    gives: type  # of its output
    learned: tuple[str, ...] = ()  # other attributes that training sets: they are saved
    is_linear = True  # whether its output is a linear function of its weights, which may be part of an objective
    has_weights = True
    walks = True  # whether optimizers can learn from one sequence after the other
    meaning: tuple[str, ...] = ()  # those of the config that say what the weights mean; the others say how to train
    labelled: Optional[str] = None  # what has labels by its scores: "tokens", "segments" or "texts"; None for a layer's
    decoding: Optional[type] = None  # the `Decoding` of components, where that of what is labelled does not fit
    no_shares_of_texts: Optional[str] = (
        None  # why a decision can't be split up among the texts of training, if it can't
    )

    def __repr__(self) -> str:  # for `spacy debug model`
        return f"{type(self).__name__}()"

    def resize(self, model: Model, n_states: int) -> None:
        """Makes room for new states behind those that are there. Their weights are zero."""
        raise NotImplementedError

    def add_noise(self, model: Model, states: NDArray[np.bool_], draw: Callable[[tuple[int, ...]], Floats]) -> None:
        """Adds random numbers, of the shape that is asked for, to what the node's own weights say of some states (bool[S])."""
        raise NotImplementedError

    def named_states(
        self, model: Model, parameter: Optional[str], places: tuple[NDArray[np.int64], ...]
    ) -> tuple[NDArray[np.int64], ...]:
        """Which of the states that have names weights are about, one array for each of some states.

        parameter (str): Whose weights they are, None for those of the layers.
        places: Of the weights in the parameter, by its axes, or their states among those of the layers.
        """
        return places

    def tag_of(self, model: Model, labels: Sequence[str]) -> NDArray[np.int64]:
        """The tag of each state, in order: int64[S]. A component keeps it as the attribute "tag_of".

        labels (Sequence[str]): The label of each tag, "O" for none.
        """
        return np.arange(len(labels))

    def has_hidden(self, model: Model) -> bool:
        """Whether the annotation leaves it open which states a labelling has."""
        return False

    def check_labels(self, model: Model, labels: Sequence[str], name: str) -> None:
        """Whether the model's settings fit the labels (see `tag_of`) of the component of this name. RAISES (ValueError)."""

    def columns(self, n_states: int) -> int:
        """How many states its layers have."""
        return n_states

    def starts(self, docs: DocBatch) -> NDArray[np.int64]:
        """Where the rows of the scores of each sequence begin and end: int64[B + 1]."""
        return docs.sequence_starts()

    def fixed(self, layer: Model) -> Any:
        """What keeps of a fixed corpus what the layer looks at, see `corpus.Corpus`; None for what every layer has."""
        return None

    def expect(self, model: Model, n_states: int) -> None:
        """Called before what a saved model has learned, with so many states, takes the place of what there is."""

    def forget(self, model: Model) -> None:
        """Makes the node what it was before it learned."""
        unset(model)
        for name in self.learned:
            model.attrs[name] = None

    def check(self, model: Model, n_states: int) -> None:
        """Whether what a file says can be its own: kernels trust what is loaded. RAISES (ValueError): CRF509."""
        raise NotImplementedError


def gives(model: Any) -> Optional[type]:
    """What the output of a model is, None for models that are none of ours."""
    node = model.attrs.get("role") if isinstance(model, Model) else None
    return None if node is None else node.gives


def forget(model: Model) -> None:
    """Makes a model what it was before it learned. What is given to it, such as gazetteers, stays."""
    for node in model.walk():
        if "role" in node.attrs:
            node.attrs["role"].forget(node)


# -------------------------------------------------------------------------------------- parameters, laid out anew


def unset(node: Model) -> None:
    """Takes the parameters from a node; a gradient that waits for its step is empty."""
    for name in node.param_names:
        node.set_param(name, None)
        if node.has_grad(name):
            node.set_grad(name, node.ops.alloc((0,) * node.get_grad(name).ndim))


def set_moved(model: Model, name: str, move: Callable[[NDArray], NDArray]) -> None:
    """Lays out a parameter anew, and a gradient that waits for its step.

    move (Callable[[NDArray], NDArray]): From an array as it was to one as it shall be.
    """
    if model.has_grad(name):
        model.set_grad(name, move(model.get_grad(name)))
    model.set_param(name, move(model.get_param(name)))


def enlarged(values: NDArray, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values in the first corner of an array of zeros; what has no room there is left out."""
    moved = np.zeros(shape, dtype=np.float32)
    kept = tuple(slice(min(sizes)) for sizes in zip(values.shape, shape))
    moved[kept] = values[kept]
    return moved


# ---------------------------------------------------------------------------------------------------- loaded models


def check_weights(model: Model, shapes: dict[str, tuple[int, ...]]) -> None:
    """RAISES (ValueError): CRF509 for weights that are missing, have another shape or are no finite numbers."""
    for name, shape in shapes.items():
        weights = model.ops.to_numpy(model.get_param(name)) if model.has_param(name) else None
        check_array(f"{model.name}.{name}", weights, shape, np.float32)
        if not np.isfinite(weights).all():
            raise ValueError(Errors.CRF509.format(what=f"{model.name}.{name}", found="not finite", expected="numbers"))


def check_array(what: str, array: Any, shape: tuple[int, ...], dtype: type) -> None:
    """RAISES (ValueError): CRF509."""
    found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    check_equal(what, found, f"{np.dtype(dtype)} {shape}")


def check_equal(what: str, found: Any, expected: Any) -> None:
    """RAISES (ValueError): CRF509."""
    if type(found) is not type(expected) or found != expected:
        raise ValueError(Errors.CRF509.format(what=what, found=found, expected=expected))
