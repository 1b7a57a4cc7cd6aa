"""The interface between CRF components and their optimizers.

thinc's optimizers get one gradient per parameter and step. A line search evaluates the whole training objective again at other
weights, so a component passes an ``Objective`` to CRF optimizers instead.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Optional, Protocol, TypeVar

import srsly
from thinc.api import Model, Optimizer
from thinc.api import registry as thinc_registry
from thinc.types import FloatsXd

from .. import checks
from ..errors import Errors
from ..losses.clamped import ClampedLoss, LabelledLoss
from ..types import ChainCorpus, Floats, Ints
from ..whole_files import packed

OfOptimizer = TypeVar("OfOptimizer", bound="CRFOptimizer")


class Objective(Protocol):
    """A component's training loss, without regularizer, as a function of all its weights."""

    # Objectives may also have `renew` (adopt changes since the last step; return whether the function may have changed),
    # `n_impossible` (sequences that no labelling fits), and attributes: `frequencies` (float64[n], how often the data has the
    # feature, token or sequence of each weight), `copies` (float64[n], how many weights of the model each variable stands for),
    # `passes_per_evaluation` (evaluations that take as long as scoring the latest data with the model), `strength` (float64[n],
    # the cost of each weight's square that is part of the loss), `origin` (float64[n], the model's weights where those here are
    # 0). An objective over texts in this process has `ask`, which evaluates other losses: see `CorpusObjective`.

    @property
    def signature(self) -> Hashable:
        """A value that is equal for equal functions: of the same data, with the same layout of the weights. Checkpoints hold
        it, so it consists of str, bytes, int and tuples, without the id or the hash of an object."""
        ...

    def weights(self) -> Floats:
        """RETURNS (float64[n]): A copy of the model's current weights."""
        ...

    def assign(self, weights: Floats) -> None:
        """Write the weights (float64[n]) to the model, which may round them to float32. The optimizer calls this at the end of
        each step."""
        ...

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Evaluate the loss at given weights, without changing the model.

        weights (float64[n]): The array belongs to the optimizer: implementations neither change nor keep it.
        RETURNS (tuple[float, float64[n]]): The loss and its gradient, an array that the optimizer may overwrite and keep.
        """
        ...


class Frame(Protocol):
    """The layout of a model's weights as one vector of n numbers."""

    def weights(self) -> Floats:
        """RETURNS (float64[n]): A copy of the model's current weights."""
        ...

    def places(self, before: Any) -> Ints:
        """RETURNS (int64[n before]): The index of each weight of an earlier layout (`before`), all of which this layout
        contains.
        """
        ...

    def met(self, evidence: Any) -> Floats:
        """RETURNS (float64[n]): How often data has the feature of each weight, by the `evidence` (`models.node.Evidence`)."""
        ...


class SequenceObjective(Frame, Protocol):
    """The corpus, for optimizers that learn from one sequence after the other."""

    signature: Any  # as that of an `Objective`
    layout: Any  # a tuple of ints, equal if vectors have the same weights in the same order, whatever the data
    loss: ClampedLoss
    corpus: ChainCorpus
    anchor: Any  # an `Anchor` if the model continues from earlier training, or None
    n_sequences: int  # number of sequences of the whole corpus, of which this objective may have a part
    mixed: Any  # an object whose `epoch` walks through a corpus in parts, in place of that of the optimizer; or None

    def assign(self, weights: Floats) -> None:
        """Write the weights (float64[n]) to the model."""
        ...

    def parameters(self, weights: Floats) -> dict[tuple[int, str], FloatsXd]:
        """The weights (float64[n]) by thinc's keys: the id of a model and the name of a parameter."""
        ...

    def frame(self) -> Any:
        """The layout of the weights without the corpus."""
        ...

    def describe(self, sequence: int) -> str:
        """Name of a sequence, by its number in the corpus, for messages."""
        ...


class Run(Protocol):
    """State of the training of one component, which an optimizer keeps from step to step."""

    iteration: int
    stop_reason: Optional[str]  # why training has ended; None while it has not

    @property
    def weights(self) -> Any:
        """RETURNS (float[n]): The weights of the latest step."""
        ...

    def to_msg(self) -> object:
        """The state in a form that msgpack can write and `CRFOptimizer.run_from_msg` can read."""
        ...


class Component(Protocol):
    """The attributes of a component (`pipeline.pipe.LearningPipe`) that an optimizer checks before training."""

    @property
    def name(self) -> str:
        """Its name in the pipeline."""
        ...

    @property
    def model(self) -> Model:
        """The model, whose nodes have a `models.node.Node` each."""
        ...

    @property
    def loss(self) -> LabelledLoss:
        """The loss to minimize."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether all scores are sums of weights."""
        ...

    @property
    def has_encoder(self) -> bool:
        """Whether scores depend on a neural encoder."""
        ...

    @property
    def rules_train(self) -> bool:
        """Whether rules exclude labellings in training."""
        ...

    @property
    def chains(self) -> Sequence[object]:
        """The components whose models are single chains: this component itself, or the members of a set of chains."""
        ...

    @property
    def told(self) -> set[str]:
        """The warnings that the component gives only once, and has given already."""
        ...


def renew(objective: Objective) -> bool:
    """Adopt changes of the data. RETURNS (bool): Whether the objective may differ from the function of the step before."""
    adopt_changes = getattr(objective, "renew", None)
    return adopt_changes is not None and adopt_changes()


def setting(
    default: object, check: Callable, *, fixed: bool = False, tried: tuple[object, ...] = (), **bounds: object
) -> Any:
    """A field of a dataclass of settings, such as an optimizer, which `check_settings` checks.

    default (object): The default.
    check (Callable): One of `spacy_crf.checks`. The value None needs no check if it is the default.
    fixed (bool): Whether a training that continues from a checkpoint must have an equal value.
    tried (tuple): The values that `crf tune` tries.
    **bounds: Further arguments of the check.
    """
    return field(default=default, metadata={"check": partial(check, **bounds), "fixed": fixed, "tried": tried})


# The values of l2 that `crf tune` tries
L2_TRIED = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def no_l1(owner: str, name: str, value: object) -> float:
    """Check the setting `l1` of optimizers that cannot set weights to 0.

    owner (str): Name of the optimizer, for the message.
    name (str): Name of the setting, for the message.
    value (object): The value.
    RETURNS (float): 0.
    RAISES (ValueError): CRF020 for values other than 0.
    """
    checks.expect(value in (0, None), owner, name, value, "0; LBFGS, SGD and AdaGrad train with l1")
    return 0.0


def check_settings(settings: Any) -> None:
    """Check the settings of an object, a dataclass of `setting`s, and replace them by the values that the checks return.

    RAISES (ValueError): CRF020 for values that are not possible.
    """
    owner = type(settings).__name__
    for declared in fields(settings):
        value = getattr(settings, declared.name)
        if value is not None or declared.default is not None:
            check = declared.metadata["check"]
            setattr(settings, declared.name, check(owner, declared.name, value))


@dataclass(kw_only=True, eq=False, repr=False)
class CRFOptimizer(Optimizer):
    """Base of the optimizers that take an `Objective` or a `SequenceObjective` in place of gradients. It is a thinc optimizer,
    since ``[training.optimizer]`` accepts no other class.
    """

    # What a step takes: an `Objective` of the whole corpus ("objective"), or a `SequenceObjective` of the whole corpus ("corpus")
    # or of a batch ("batch")
    reads = "objective"
    losses: ClassVar[Optional[tuple[type, ...]]] = (
        None  # classes that it can minimize; None for all that have a gradient
    )
    assigns_averages = False  # whether a step writes the averages to the model, where no other code does

    def __post_init__(self) -> None:
        # thinc's constructor overwrites fields, such as `averages`
        settings = {declared.name: getattr(self, declared.name) for declared in fields(self)}
        super().__init__(1.0, use_averages=False)
        for name, value in settings.items():
            setattr(self, name, value)
        check_settings(self)
        # Whether many weights are 0, so that saving the model drops them
        self.leaves_zeros = getattr(self, "l1", 0.0) > 0.0
        self._runs: dict[str, Any] = {}  # a `Run` for each component, by its name

    @classmethod
    def fits(cls, loss: type) -> bool:
        """Whether this optimizer can minimize a loss.

        loss (type): The class of the loss, or the registered function that makes it.
        """
        if cls.losses is None:
            return getattr(loss, "smooth", True)
        return issubclass(loss, cls.losses)

    @classmethod
    def tried(cls) -> dict[str, tuple[object, ...]]:
        """The values that `crf tune` tries, by setting."""
        return {declared.name: declared.metadata["tried"] for declared in fields(cls) if declared.metadata["tried"]}

    @property
    def wants_sequences(self) -> bool:
        """Whether a step takes a `SequenceObjective`."""
        return self.reads != "objective"

    @property
    def wants_whole_corpus(self) -> bool:
        """Whether each step takes the whole corpus."""
        return self.reads != "batch"

    def _fixed(self) -> dict[str, object]:
        """The settings that must be equal to continue from a checkpoint."""
        return {declared.name: getattr(self, declared.name) for declared in fields(self) if declared.metadata["fixed"]}

    def check_fit(self, pipe: Component) -> None:
        """Check before training whether this optimizer can train a component (`pipe`).

        RAISES (ValueError): CRF210 for a loss that it can't minimize, with the names of losses and optimizers that fit; CRF347 or
            CRF365 for a component that it can't train for other reasons.
        """
        if self.fits(type(pipe.loss)):
            return
        registry: Any = thinc_registry  # thinc's annotation hides that these are catalogues
        losses = []
        for name, make in sorted(registry.losses.get_all().items()):
            if name.startswith("spacy_crf.") and self.fits(make):
                losses.append(name)
        optimizers = []
        for name, make in sorted(registry.optimizers.get_all().items()):
            is_ours = isinstance(make, type) and issubclass(make, CRFOptimizer)
            if not is_ours or make.fits(type(pipe.loss)):  # thinc's optimizers take any gradient
                optimizers.append(name)
        raise ValueError(
            Errors.CRF210.format(
                optimizer=type(self).__name__,
                loss=type(pipe.loss).__name__,
                key=pipe.name,
                losses=", ".join(losses),
                optimizers=", ".join(optimizers),
            )
        )

    def step(self, objective: Objective, *, key: str) -> float:
        """Improve the weights of one component.

        objective (Objective): The component's loss.
        key (str): The component's name. State is kept per key, so one optimizer serves several components.
        RETURNS (float): The objective with its regularizer after the step.
        """
        raise NotImplementedError

    def stop_reason(self, key: str) -> Optional[str]:
        """Why training has ended for a component (`key`); None while it has not."""
        return self._runs[key].stop_reason if key in self._runs else None

    def is_worth_evaluating(self, key: str) -> bool:
        """Whether the model of a component (`key`) should be evaluated after the latest step, or more steps should come first."""
        return True

    def forget(self, key: str) -> None:
        """Forget a component (`key`), so that its next step is its first one."""
        self._runs.pop(key, None)

    def __call__(self, key, weights, gradient, *, lr_scale=1.0):
        raise ValueError(Errors.CRF202.format(optimizer=type(self).__name__, key=key))

    # ------------------------------------------------------------------------------------------------------- resuming

    def checkpoint(self, key: str) -> Iterator[bytes]:
        """The data that `resume` needs to continue the training of one component (`key`), in parts."""
        return self._packed({key: self._runs[key]})

    def resume(self, objective: Any, data: bytes, *, key: str) -> int:
        """Continue training from a checkpoint, with its weights.

        objective (Objective or SequenceObjective): The objective, of the kind that `reads` names.
        data (bytes): The checkpoint.
        key (str): Name of the component.
        RETURNS (int): Number of iterations before the checkpoint.
        RAISES (ValueError): CRF204 if the checkpoint was made with other settings, CRF921 if it is damaged or has other weights.
        """
        run = self.saved_run(data, key)
        self.expect_alike("weights", len(run.weights), len(objective.weights()))
        objective.assign(run.weights)
        self._runs[key] = run
        return run.iteration

    def saved_run(self, data: bytes, key: str) -> Any:
        """The state of the training of a component (`key`) in a checkpoint (`data`). RAISES (ValueError): As `resume`."""
        runs = self.without_runs().from_bytes(data)._runs
        if key not in runs:
            raise self.unusable(f"it has no training of '{key}'")
        return runs[key]

    def without_runs(self: OfOptimizer) -> OfOptimizer:
        """A copy of the optimizer without any state."""
        other = copy.copy(self)
        other._runs = {}
        other.averages = None if self.averages is None else {}
        return other

    def iterations_made(self, key: str) -> int:
        """Number of iterations made for one component (`key`)."""
        return self._runs[key].iteration if key in self._runs else 0

    def to_bytes(self) -> bytes:
        """The state of the training of all components, from which this or another process continues exactly."""
        return b"".join(self._packed(self._runs))

    def _packed(self, runs: dict[str, Any]) -> Iterator[bytes]:
        messages = {key: run.to_msg() for key, run in runs.items()}
        return packed({"optimizer": type(self).__name__, "settings": self._fixed(), "runs": messages})

    def from_bytes(self, data: bytes) -> "CRFOptimizer":
        """Restore the state (`data`) of an optimizer of the same class and settings; stop rules and limits may differ.

        RAISES (ValueError): CRF204 for a state of another optimizer, CRF921 for a damaged one.
        """
        ours = self._fixed()
        try:
            msg: Any = srsly.msgpack_loads(data, use_list=False)
            optimizer = msg["optimizer"]
            settings = msg["settings"]
            saved_runs = dict(msg["runs"])
        except Exception as error:  # msgpack raises many kinds, and fields may be missing
            raise self.unusable(error) from error
        if optimizer != type(self).__name__ or settings != ours:
            raise ValueError(
                Errors.CRF204.format(saved=f"{optimizer} with {settings}", ours=f"{type(self).__name__} with {ours}")
            )
        try:
            runs = {key: self.run_from_msg(run) for key, run in saved_runs.items()}
        except Exception as error:  # a damaged run may have anything in the place of anything
            raise self.unusable(error) from error
        self._runs = runs
        return self

    def unusable(self, reason: object) -> ValueError:
        """The error (CRF921) for a saved state that is damaged or does not fit. `reason` is a text, or the error that was
        raised.
        """
        if isinstance(reason, Exception) and not isinstance(reason, ValueError):
            reason = f"{type(reason).__name__}: {reason}"
        return ValueError(Errors.CRF921.format(optimizer=type(self).__name__, reason=str(reason).rstrip(".")))

    def expect_alike(self, what: str, saved: object, ours: object) -> None:
        """Compare a size or shape in a saved state with the one in this training.

        what (str): What has the size, for the message.
        saved (object): The saved size.
        ours (object): The size in this training.
        RAISES (ValueError): CRF921 if they differ.
        """
        if saved != ours:
            raise self.unusable(f"it is of {saved} {what}, and there are {ours}")

    def run_from_msg(self, msg: Any) -> Run:
        """Load the state of one component's training from a message (`msg`) that its `to_msg` returned. An error of any class
        means that the message is damaged, or that its parts do not fit each other."""
        raise NotImplementedError


class Minibatch(Optimizer):
    """Adam (Kingma & Ba 2015) with a learning rate for sparse features, twenty times thinc's, and without averages: for pipelines
    whose own optimizer has settings for neural networks.

    It is the default of the components. An optimizer of this package that is given as ``sgd`` or in [training.optimizer] replaces
    it, and neural emissions always learn by the pipeline's optimizer.

    learn_rate (float): Learning rate; the default suits batches of 2 to 50 texts.
    """

    def __init__(self, *, learn_rate: float = 0.02) -> None:
        super().__init__(checks.positive("Minibatch", "learn_rate", learn_rate), L2=0.0, use_averages=False)
