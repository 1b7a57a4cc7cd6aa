"""Base of the nodes of models: what components, optimizers and saving need of a thinc model beside its output."""

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

TrainingStructure = Union[Structure, "RuledStructure", "BridgedStructure"]  # what losses sum with
Weights32 = NDArray[np.float32]  # a parameter, as thinc keeps it


class AnnotatedDocs(NamedTuple):
    """A batch of training data, as models are initialized with it."""

    docs: list[Doc]
    allowed: Any  # the labellings that the annotation allows: a clamp of the class that the structure takes
    starts: Ints  # [B + 1] where the sequences start
    unset: Bools  # [T] tokens without annotation
    weights: Optional[Floats] = None  # [B] factor of each sequence
    structure: Any = (
        None  # the `TrainingStructure` of this batch if rules apply in training; None for that of the model
    )
    alternatives: Segments = NO_SEGMENTS  # segments that the annotation allows in addition
    # Segments that the structure excludes and no clamp can, for optimizers that ask no structure
    excluded: Segments = NO_SEGMENTS
    soft: "Optional[SoftLabelling]" = None


Batches = Callable[[], Iterable[AnnotatedDocs]]  # each call reads the corpus once


class Evidence(NamedTuple):
    """How often training met the feature, token or sequence of each weight."""

    counts: dict[str, Ints]  # by the name of a table: [F] how often training met each feature
    tokens: int
    sequences: int

    @classmethod
    def of_model(cls, counts: dict[str, Ints], met: list[int]) -> "Evidence":
        """The evidence of a model.

        counts (dict[str, int64[F]]): How often training met each feature, by the name of the table.
        met (list[int]): Numbers of tokens and sequences; zeros if the model does not know them.
        """
        tokens, sequences = met
        if "states" in counts:  # at least as many tokens as the most frequent feature
            tokens = max(tokens, int(counts["states"].max(initial=0)))
        return cls(counts, tokens, sequences or tokens // 15)  # a sentence has about 15 tokens

    def plus(self, other: "Evidence") -> "Evidence":
        """The sum of this evidence and later evidence.

        other (Evidence): The later evidence, whose tables may have further features behind those of this one.
        """
        counts = {}
        for name, later in other.counts.items():
            earlier = self.counts[name]
            counts[name] = later + np.pad(earlier, (0, len(later) - len(earlier)))
        return Evidence(counts, self.tokens + other.tokens, self.sequences + other.sequences)


class Sizes(NamedTuple):
    """Facts about the corpus and the states that nodes need when they are initialized."""

    vocab: Vocab
    n_states: int
    longest: int = 1  # tokens of the longest segment
    tag_of: Optional[Ints] = None  # [S] the tag of each state, rising; None where each state is a tag
    inner: Optional[Bools] = None  # [S] which states belong to inner levels of nested spans; None if spans do not nest


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
    # From which tokens `initialize` counts features: "annotated" or "all"; None if it counts no features
    counts: Optional[str] = None
    no_shares_of_texts: Optional[str] = None  # why decisions cannot be split up among the training texts
    unexplained: Optional[str] = None  # why weights do not explain a labelling; None if they do
    unit: str = TEXT  # unit of texts that has scores, one of `features.doc_batch.UNITS`
    token_attributes: tuple[str, ...] = ()  # that the model needs beside those that templates read
    # Returns the collection of a Doc, whose Docs the model reads together (None for no collection); None if it reads each alone
    group_of: Optional[Callable[[Doc], object]] = None


class Node:
    """Base of the objects in ``attrs["node"]`` of models, which know what their model's parameters mean."""

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
        """The states that weights belong to, as numbers in the component's list of names of states.

        model (Model): The model of the node.
        parameter (Optional[str]): The parameter with the weights; None for weights of layers.
        places (tuple[int64[N], ...]): For each axis of the parameter, the indices of the weights; for layers, their columns.
        RETURNS (tuple[int64[N], ...]): For each axis, the numbers of the states.
        """
        return places

    def tag_of(self, model: Model, labels: Sequence[str]) -> Ints:
        """Tag of each state, which components keep as the attribute "tag_of": int64[S], rising.

        model (Model): The model of the node.
        labels (Sequence[str]): The label of each tag, "O" for none.
        """
        return np.arange(len(labels))

    def longest_of_states(self, model: Model) -> NDArray[np.int32]:
        """How many tokens a segment of each state may have: int32[S].

        model (Model): A model of segments.
        """
        return model.attrs["longest"]

    def training_batch(self, model: Model, batch: AnnotatedDocs, name: str) -> AnnotatedDocs:
        """The batch as losses read it: with the structure of the batch if rules apply in training or annotation excludes spans.

        model (Model): The model of the node.
        batch (AnnotatedDocs): The batch.
        name (str): The name of the component, for messages.
        """
        return batch

    def begin(self, model: Model, initialization: Any, is_new: bool) -> None:
        """Set the weights that training begins with, once features are counted.

        model (Model): The model of the node.
        initialization (Initialization): The steps of `pipeline.initialization`, with the corpus.
        is_new (bool): Whether all weights are new.
        """

    def check_fit(self, model: Model, pipe: "Component", optimizer: Optional[Optimizer]) -> None:
        """Check whether the settings of a component fit its model, and whether an optimizer can train the model.

        model (Model): The model of the node.
        pipe (Component): The component, with its loss, and with its labels once they are known.
        optimizer (Optional[Optimizer]): The optimizer; None before it is known.
        RAISES (ValueError): If they do not fit, such as CRF347 for a loss that needs the state of each token where annotation
            only names tags.
        """
        if not self.traits.names_states:
            check_knows_states(pipe.name, pipe.loss)

    def n_states(self, model: Model) -> Optional[int]:
        """Number of states of a model of a structure; None before it has parameters.

        model (Model): The model of the node.
        """
        return None

    def columns(self, n_states: int) -> int:
        """How many columns of scores the layers have.

        n_states (int): Number of states of the model.
        """
        return n_states

    def starts(self, docs: DocBatch) -> Ints:
        """Where the rows of scores of each sequence start: int64[B + 1].

        docs (DocBatch): The batch.
        """
        return docs.sequence_starts()

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Prepare for loading a saved model.

        model (Model): The model of the node.
        n_states (int): Number of states of the saved model.
        saved (dict[str, bytes]): Attributes of the saved model, on which `columns` may depend.
        """

    def forget(self, model: Model) -> None:
        """Return the node to its state before training.

        model (Model): The model of the node.
        """
        remove_params(model)
        for name in self.traits.learned:
            model.attrs[name] = None

    def check(self, model: Model, n_states: int) -> None:
        """Check loaded parameters and attributes, which kernels trust.

        model (Model): The model of the node.
        n_states (int): Number of states that the model must have.
        RAISES (ValueError): CRF509 if a parameter or an attribute does not fit.
        """
        raise NotImplementedError


def check_knows_states(name: str, loss: LabelledLoss) -> None:
    """Refuse a loss that needs the state of each token, which annotation does not name.

    name (str): The name of the component.
    loss (LabelledLoss): The loss of the component.
    RAISES (ValueError): CRF347.
    """
    if loss.names_states:
        losses: Any = registry.losses  # thinc's annotation hides that this is a catalogue
        fitting = []  # names of our losses that need no states
        for registered, factory in sorted(losses.get_all().items()):
            if registered.startswith("spacy_crf.") and not factory.names_states:
                fitting.append(registered)
        reason = "it asks for the state of each token, and annotation only names tags"
        raise cant_train(loss, f"several states of one tag in '{name}'", reason, ", ".join(fitting))


def gives(model: object) -> Optional[type]:
    """The type of a model's output; None for models of other packages.

    model (object): A model, or what a config has in its place.
    """
    node = model.attrs.get("node") if isinstance(model, Model) else None
    return None if node is None else node.gives


def no_backprop(d_output: object) -> list[Doc]:
    """Do nothing: the backpropagation that layers return when they predict.

    d_output (object): Ignored.
    """
    return []


def forget(model: Model) -> None:
    """Return a model to its state before training. Settings such as gazetteers stay.

    model (Model): The model with all of its layers.
    """
    for layer in model.walk():
        if "node" in layer.attrs:
            layer.attrs["node"].forget(layer)


# ------------------------------------------------------------------------------------------ layout of parameters


def read_params(model: Model, names: Iterable[str]) -> dict[str, Weights32]:
    """The parameters of a model, by name.

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
    """Add a gradient to that of a parameter.

    model (Model): A model on the host.
    name (str): The name of the parameter.
    gradient (float[...]): The gradient, in the shape of the parameter.
    """
    d_weights: Any = gradient.astype(np.float32)
    model.inc_grad(name, d_weights)


def remove_params(model: Model) -> None:
    """Remove the parameters of a model without those of its layers; a gradient that waits for an update becomes empty.

    model (Model): The model.
    """
    for name in model.param_names:
        model.set_param(name, None)
        if model.has_grad(name):
            model.set_grad(name, model.ops.alloc((0,) * model.get_grad(name).ndim))


def rearrange_param(model: Model, name: str, move: Callable[[NDArray], NDArray]) -> None:
    """Change the layout of a parameter, and of its gradient if that waits for an update.

    model (Model): The model with the parameter.
    name (str): The name of the parameter.
    move (Callable): Takes an array in the old layout, and returns it in the new one.
    """
    arrays: Any = model
    if model.has_grad(name):
        arrays.set_grad(name, move(arrays.get_grad(name)))
    arrays.set_param(name, move(arrays.get_param(name)))


def enlarged(values: NDArray, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Copy values to an array of another shape: values beyond the shape are lost, entries beyond the values are 0.

    values (float[...]): The values.
    shape (tuple[int, ...]): The new shape.
    RETURNS (float32[shape]): The array.
    """
    result = np.zeros(shape, dtype=np.float32)
    common = tuple(slice(min(sizes)) for sizes in zip(values.shape, shape))  # the entries that both shapes have
    result[common] = values[common]
    return result


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

    what (str): What the array holds, for the message.
    array (object): The array, or what was loaded in its place.
    shape (tuple[int, ...]): The expected shape.
    dtype (type): The expected type of the entries.
    RAISES (ValueError): CRF509 if the array has another type or shape.
    """
    found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    check_equal(what, found, f"{np.dtype(dtype)} {shape}")


def check_equal(what: str, found: object, expected: object) -> None:
    """Check a loaded value.

    what (str): What the value is, for the message.
    found (object): The loaded value.
    expected (object): The value that it must equal, of the same type.
    RAISES (ValueError): CRF509 if type or value differ.
    """
    if type(found) is not type(expected) or found != expected:
        raise ValueError(Errors.CRF509.format(what=what, found=found, expected=expected))
