"""Base of the nodes of models: methods of thinc models that components, optimizers and saving need beside the output."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, registry

from ..errors import Errors, cant_train
from ..features.doc_batch import TEXT, DocBatch
from ..inference.structure import Structure
from ..losses.clamped import LabelledLoss
from ..schemes import NO_SEGMENTS, Segments
from ..types import Bools, Floats, Ints

if TYPE_CHECKING:
    from ..constraints.training import RuledStructure
    from ..inference.bridges import BridgedStructure
    from ..losses.soft import SoftLabelling
    from ..optimizers.objective import Component

TrainingStructure = Union[Structure, "RuledStructure", "BridgedStructure"]  # what losses ask
Weights32 = NDArray[np.float32]  # of a parameter, as thinc keeps it


class AnnotatedDocs(NamedTuple):
    """A batch of training data, as models are initialized with it."""

    docs: list[Doc]
    allowed: Any  # the labellings that the annotation allows: a clamp of the class that the structure takes
    starts: Ints  # [B + 1] of the sequences
    unset: Bools  # [T] tokens without annotation
    weights: Optional[Floats] = None  # [B] factor of each sequence
    structure: Any = None  # a `TrainingStructure` that replaces the model's own structure if rules apply in training
    alternatives: Segments = NO_SEGMENTS  # segments that the annotation allows in addition
    # Segments that the structure excludes but no clamp can, for optimizers without a structure
    excluded: Segments = NO_SEGMENTS
    soft: "Optional[SoftLabelling]" = None  # soft labels


Batches = Callable[[], Iterable[AnnotatedDocs]]  # the batches, read as often as needed


class Evidence(NamedTuple):
    """How often training met the feature, token or sequence of each weight."""

    counts: dict[str, Ints]  # [F] counts of the features, by table
    tokens: int
    sequences: int

    @classmethod
    def known(cls, counts: dict[str, Ints], met: list[int]) -> "Evidence":
        """Evidence of a model.

        counts (dict[str, int64[F]]): How often training met each feature, by table.
        met (list[int]): Numbers of tokens and sequences; zeros if an earlier version, which did not count, saved the
            model.
        """
        tokens = max([met[0], *(int(of_table.max(initial=0)) for name, of_table in counts.items() if name == "states")])
        return cls(counts, tokens, met[1] or tokens // 15)

    def plus(self, other: "Evidence") -> "Evidence":
        """The sum of this evidence and later evidence.

        other (Evidence): The later evidence, whose tables may have more features.
        """
        return Evidence(
            counts={
                name: later + np.pad(self.counts[name], (0, len(later) - len(self.counts[name])))
                for name, later in other.counts.items()
            },
            tokens=self.tokens + other.tokens,
            sequences=self.sequences + other.sequences,
        )


class Sizes(NamedTuple):
    """Sizes for which nodes are initialized."""

    vocab: Vocab
    n_states: int
    longest: int = 1  # tokens of the longest segment
    tag_of: Optional[Ints] = None  # [S] the tag of each state, in order; None where each state is a tag
    inner: Optional[Bools] = None  # [S] states of inner levels of spans that nest; None without any


class Traits(NamedTuple):
    """Properties of a class of nodes, which all its models share."""

    labelled: Optional[str] = None  # what the scores label: "tokens", "segments" or "texts"; None for nothing
    learned: tuple[str, ...] = ()  # attributes of the model that training sets, which are saved
    meaning: tuple[str, ...] = ()  # attributes that determine the meaning of the weights; others concern training
    params: tuple[str, ...] = ()  # parameters that are scores, of a model of a structure: the keys of `shapes`
    of_sequences: tuple[str, ...] = ("first", "last")  # parameters from which each sequence uses one score
    is_linear: bool = True  # whether the output is a linear function of the weights, which may be part of an objective
    is_online: bool = True  # whether optimizers can learn from one sequence after the other
    names_states: bool = True  # whether annotation names the state of each token, so that an objective has one minimum
    counts: Optional[str] = (
        None  # tokens from which `initialize` counts all weights: "annotated" or "all"; None for none
    )
    no_shares_of_texts: Optional[str] = None  # why decisions cannot be split up among the training texts
    unexplained: Optional[str] = None  # why weights do not explain a labelling; None if they do
    unit: str = TEXT  # unit of texts that has scores, one of `features.doc_batch.UNITS`
    token_attributes: tuple[str, ...] = ()  # that the model needs beside those that templates read
    # Returns the collection of a Doc, whose Docs the model reads together (None for no collection); None if it reads each alone
    group_of: Optional[Callable[[Doc], object]] = None


class Node:
    """Base of the objects in ``attrs["node"]`` of the models of this package."""

    traits: Traits = Traits()

    gives: type  # type of the output
    decoding: Optional[type] = None  # a `Decoding` that replaces the usual one for this kind
    part_names: Sequence[str] = ()  # names of the columns that belong to no state, see `columns`

    def __repr__(self) -> str:  # for `spacy debug model`
        return f"{type(self).__name__}()"

    def resize(self, model: Model, n_states: int) -> None:
        """Add new states with weights of zero behind the present ones.

        model (Model): The model of the node.
        n_states (int): The new number of states.
        """
        raise NotImplementedError

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """Numbers of the states that weights belong to, in the order of the component's names of states.

        model (Model): The model of the node.
        parameter (Optional[str]): The parameter with the weights; None for weights of layers.
        places (tuple[int64[N], ...]): Places of the weights in the parameter, by axis; without one, their states in the
            layers.
        RETURNS (tuple[int64[N], ...]): The numbers.
        """
        return places

    def tag_of(self, model: Model, labels: Sequence[str]) -> Ints:
        """Tag of each state, which components keep as the attribute "tag_of": int64[S], rising.

        model (Model): The model of the node.
        labels (Sequence[str]): The label of each tag, "O" for none.
        """
        return np.arange(len(labels))

    def longest_of_states(self, model: Model) -> NDArray[np.int32]:
        """Tokens of the longest segment of each state: int32[S].

        model (Model): A model of segments.
        """
        return model.attrs["longest"]

    def training_batch(self, model: Model, batch: AnnotatedDocs, name: str) -> AnnotatedDocs:
        """The batch as losses read it. Its structure, if it has one, has the rules of the batch, or excludes spans.

        model (Model): The model of the node.
        batch (AnnotatedDocs): The batch.
        name (str): The name of the component, for messages.
        """
        return batch

    def begin(self, model: Model, initialization: Any, is_new: bool) -> None:
        """Choose the weights that training begins with, once features are counted.

        model (Model): The model of the node.
        initialization (Initialization): See `pipeline.initialization`.
        is_new (bool): Whether all weights are new.
        """

    def check_fit(self, model: Model, pipe: "Component", optimizer: Optional[Optimizer]) -> None:
        """Check whether the settings of a component fit its model, and whether an optimizer can train the model.

        model (Model): The model of the node.
        pipe (Component): The component, with its loss, and with its labels once they are known.
        optimizer (Optional[Optimizer]): None before the optimizer is known.
        RAISES (ValueError): If they do not fit; CRF347 for a loss that needs the state of each token if annotation names
            none.
        """
        if not self.traits.names_states:
            check_knows_states(pipe.name, pipe.loss)

    def n_states(self, model: Model) -> Optional[int]:
        """Number of states of a model of a structure; None before it has parameters.

        model (Model): The model of the node.
        """
        return None

    def columns(self, n_states: int) -> int:
        """Number of states for which the layers have scores.

        n_states (int): Number of states of the model.
        """
        return n_states

    def starts(self, docs: DocBatch) -> Ints:
        """Bounds of the rows of scores of each sequence: int64[B + 1].

        docs (DocBatch): The batch.
        """
        return docs.sequence_starts()

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Prepare for loading a model; `columns` may depend on its attributes.

        model (Model): The model of the node.
        n_states (int): Number of states of the saved model.
        saved (dict[str, bytes]): Its attributes.
        """

    def forget(self, model: Model) -> None:
        """Return the node to its state before training.

        model (Model): The model of the node.
        """
        unset(model)
        for name in self.traits.learned:
            model.attrs[name] = None

    def check(self, model: Model, n_states: int) -> None:
        """Check loaded parameters and attributes, which kernels trust.

        model (Model): The model of the node.
        n_states (int): Number of states that it must have.
        RAISES (ValueError): CRF509 for others.
        """
        raise NotImplementedError


def check_knows_states(name: str, loss: LabelledLoss) -> None:
    """Refuse a loss that needs the state of each token, which annotation does not name.

    name (str): The name of the component.
    loss (LabelledLoss): Its loss.
    RAISES (ValueError): CRF347.
    """
    if loss.names_states:
        losses: Any = registry.losses  # a catalogue, which its annotation does not say
        known = losses.get_all()
        fitting = [key for key, each in sorted(known.items()) if key.startswith("spacy_crf.") and not each.names_states]
        reason = "it asks for the state of each token, and annotation only names tags"
        raise cant_train(loss, f"several states of one tag in '{name}'", reason, ", ".join(fitting))


def gives(model: object) -> Optional[type]:
    """Type of a model's output.

    model (object): A model, or what a config has in its place.
    RETURNS (Optional[type]): None for models of other packages.
    """
    node = model.attrs.get("node") if isinstance(model, Model) else None
    return None if node is None else node.gives


def no_backprop(d_output: object) -> list[Doc]:
    """Backpropagation for predictions, which have none.

    d_output (object): Ignored.
    """
    return []


def forget(model: Model) -> None:
    """Return a model to its state before training. Settings such as gazetteers stay.

    model (Model): The model with all of its layers.
    """
    for part in model.walk():
        if "node" in part.attrs:
            part.attrs["node"].forget(part)


# ------------------------------------------------------------------------------------------ layout of parameters


def read_params(model: Model, names: Iterable[str]) -> dict[str, Weights32]:
    """Parameters of a model by name.

    model (Model): A model on the host.
    names (Iterable[str]): The names.
    """
    arrays: dict[str, Any] = {name: model.get_param(name) for name in names}
    return arrays


def write_param(model: Model, name: str, values: NDArray) -> None:
    """Set a parameter of a model.

    model (Model): A model on the host.
    name (str): The name of the parameter.
    values (float[...]): Its values, which may have another shape than before.
    """
    weights: Any = values.astype(np.float32, copy=False)
    model.set_param(name, weights)


def add_gradient(model: Model, name: str, gradient: NDArray) -> None:
    """Add to the gradient of a parameter.

    model (Model): A model on the host.
    name (str): The name of the parameter.
    gradient (float[...]): What to add, in the shape of the parameter.
    """
    d_weights: Any = gradient.astype(np.float32)
    model.inc_grad(name, d_weights)


def unset(model: Model) -> None:
    """Remove the parameters of a node; a gradient that waits for its step becomes empty.

    model (Model): The model with the node.
    """
    for name in model.param_names:
        model.set_param(name, None)
        if model.has_grad(name):
            model.set_grad(name, model.ops.alloc((0,) * model.get_grad(name).ndim))


def set_moved(model: Model, name: str, move: Callable[[NDArray], NDArray]) -> None:
    """Move a parameter, and a gradient that waits for its step, to another layout.

    model (Model): The model with the parameter.
    name (str): The name of the parameter.
    move (Callable): Returns the values of an array in the new layout.
    """
    arrays: Any = model
    if model.has_grad(name):
        arrays.set_grad(name, move(arrays.get_grad(name)))
    arrays.set_param(name, move(arrays.get_param(name)))


def enlarged(values: NDArray, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values in the first corner of an array of zeros, cut off where the new shape is smaller.

    values (float[...]): The values.
    shape (tuple[int, ...]): The new shape.
    RETURNS (float32[shape]): The array.
    """
    # The part that both shapes have
    moved = np.zeros(shape, dtype=np.float32)
    kept = tuple(slice(min(sizes)) for sizes in zip(values.shape, shape))
    moved[kept] = values[kept]
    return moved


# ---------------------------------------------------------------------------------------------------- loaded models


def check_weights(model: Model, shapes: dict[str, tuple[int, ...]]) -> None:
    """Check the parameters of a loaded model.

    model (Model): The model.
    shapes (dict[str, tuple[int, ...]]): The shape of each parameter.
    RAISES (ValueError): CRF509 for another shape, and for weights that are not finite.
    """
    for name, shape in shapes.items():
        weights = model.ops.to_numpy(model.get_param(name)) if model.has_param(name) else None
        check_array(f"{model.name}.{name}", weights, shape, np.float32)
        if weights is not None and not np.isfinite(weights).all():
            raise ValueError(Errors.CRF509.format(what=f"{model.name}.{name}", found="not finite", expected="numbers"))


def check_array(what: str, array: object, shape: tuple[int, ...], dtype: type) -> None:
    """Check a loaded array.

    what (str): What it holds, for the message.
    array (object): The array, or what was loaded in its place.
    shape (tuple[int, ...]): The shape that it must have.
    dtype (type): The type that its entries must have.
    RAISES (ValueError): CRF509 for another array.
    """
    found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    check_equal(what, found, f"{np.dtype(dtype)} {shape}")


def check_equal(what: str, found: object, expected: object) -> None:
    """Check a loaded value.

    what (str): What it is, for the message.
    found (object): The value.
    expected (object): The value that it must equal, of the same type.
    RAISES (ValueError): CRF509 for another value.
    """
    if type(found) is not type(expected) or found != expected:
        raise ValueError(Errors.CRF509.format(what=what, found=found, expected=expected))
