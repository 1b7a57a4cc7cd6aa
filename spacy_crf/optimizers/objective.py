"""The interface between CRF components and their optimizers.

thinc's optimizers see one gradient per parameter and step. A line search wants to evaluate the whole training objective again at
other weights, so a component hands CRF optimizers an ``Objective`` instead.
"""

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Optional, Protocol

import srsly
from thinc.api import Optimizer, registry
from thinc.types import FloatsXd

from .. import checks
from ..errors import Errors
from ..losses.clamped import ClampedLoss
from ..types import ChainCorpus, Floats, Ints
from ..whole_files import packed


class Objective(Protocol):
    """A component's training loss, without regularizer, as a function of all its weights."""

    # Equal as long as the function is the same: same data, same layout of the weights. It is saved with the optimizer, so build
    # it from str, bytes, int and tuples of these that mean the same in another process (no id, no hash).
    signature: Hashable
    # Objectives may also have `renew` (take up what has changed since the last step, and return whether anything may have) and:
    frequencies: Floats  # [n] how often the data has what each weight belongs to
    copies: Floats  # [n] how many weights of the model each weight stands for
    passes_per_evaluation: float  # evaluations that take as long as one evaluation of the model on the data last scored

    def weights(self) -> Floats:
        """RETURNS (float64[n]): A copy of the model's current weights."""
        ...

    def assign(self, weights: Floats) -> None:
        """Write the weights to the model, which may round them to float32. Called at the end of each step."""
        ...

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Answer for other weights, and leave the model as it is.

        weights (float64[n]): Belong to the optimizer: neither change nor keep them.
        RETURNS (tuple[float, float64[n]]): The loss and its gradient, an array the optimizer may overwrite and keep.
        """
        ...


class SequenceObjective(Protocol):
    """The corpus itself, for optimizers that learn from one sequence after the other; `signature`, `weights` and `assign` are
    those of `Objective`."""

    signature: Hashable
    layout: tuple[int, ...]  # equal for vectors that mean the same weights, whatever the data
    loss: ClampedLoss
    corpus: ChainCorpus
    anchor: Any  # an `Anchor` where a model continues from earlier training, or None
    n_sequences: int  # of the whole corpus, if this is a part of it
    mixed: Any  # object that walks through the corpus in place of the optimizer (`epoch`), part by part, or None

    def weights(self) -> Floats: ...

    def assign(self, weights: Floats) -> None: ...

    def parameters(self, weights: Floats) -> dict[tuple[int, str], FloatsXd]:
        """The weights (float64[n]) as thinc knows them: by the id of their model and their name."""
        ...

    def frame(self) -> Any:
        """The layout of the weights, without the corpus: an object with `places`."""
        ...

    def places(self, before: Any) -> Ints:
        """RETURNS (int64[n before]): Where the weights of an earlier frame are, all of which are in this one."""
        ...

    def describe(self, sequence: int) -> str:
        """Name a sequence for humans."""
        ...


def renew(objective: Objective) -> bool:
    """Whether the objective may be another function than in the step before."""
    own = getattr(objective, "renew", None)
    return own is not None and own()


with_settings = dataclass(kw_only=True, eq=False, repr=False)


def setting(default: Any, check: Callable, **bounds: Any) -> Any:
    """A setting of a dataclass that users make, such as an optimizer, see `check_settings`.

    check (Callable): One of `spacy_crf.checks`. None is possible if it is the default.
    """
    return field(default=default, metadata={"check": partial(check, **bounds)})


def check_settings(given: Any) -> None:
    """Replace each setting of an object by what its check makes of it.

    RAISES (ValueError): CRF020 for a value that is not possible.
    """
    for each in fields(given):
        value = getattr(given, each.name)
        if value is not None or each.default is not None:
            setattr(given, each.name, each.metadata["check"](type(given).__name__, each.name, value))


@with_settings
class CRFOptimizer(Optimizer):
    """An optimizer that evaluates the objective; a subclass of thinc's, because ``[training.optimizer]`` takes no other."""

    wants_sequences: ClassVar[bool] = False  # a SequenceObjective instead of an Objective
    wants_whole_corpus: ClassVar[bool] = True  # in every step; False for optimizers that learn from batch after batch
    names_states: ClassVar[bool] = False  # whether it needs the state of each token, which may be hidden
    identity: ClassVar[tuple[str, ...]]  # settings that saved state depends on

    def __post_init__(self) -> None:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        super().__init__(1.0, use_averages=False)
        for name, value in given.items():
            setattr(self, name, value)
        check_settings(self)
        self._runs: dict[str, Any] = {}  # the training of each component, from one step to the next

    @classmethod
    def fits(cls, loss: type) -> bool:
        """Whether this optimizer can minimize a loss of some type."""
        return getattr(loss, "smooth", True)

    def step(self, objective: Objective, *, key: str) -> float:
        """Improve the weights of one component.

        objective (Objective): The component's loss.
        key (str): The component's name. State is kept per key, so one optimizer serves several components.
        RETURNS (float): The objective with its regularizer after the step.
        """
        raise NotImplementedError

    def stop_reason(self, key: str) -> Optional[str]:
        """Why training has ended for this key, None as long as it has not."""
        return None

    def is_worth_evaluating(self, key: str) -> bool:
        """Whether the model should be evaluated after the latest step; False if more steps should come first."""
        return True

    def forget(self, key: str) -> None:
        """Make the next step of this component its first one."""
        self._runs.pop(key, None)

    def __call__(self, key, weights, gradient, *, lr_scale=1.0):
        raise ValueError(Errors.CRF202.format(optimizer=type(self).__name__, key=key))

    # ------------------------------------------------------------------------------------------------------- resuming

    def checkpoint(self, key: str) -> Iterator[bytes]:
        """All that `resume` needs to continue the training of one component, in parts."""
        return self._packed({key: self._runs[key]})

    def resume(self, objective: Any, data: bytes, *, key: str) -> int:
        """Continue from a checkpoint, with its weights.

        objective (Objective or SequenceObjective): The component's loss.
        RETURNS (int): How many iterations the checkpoint had made.
        RAISES (ValueError): CRF204 if the checkpoint had other settings.
        """
        other = copy.copy(self).from_bytes(data)
        self._runs[key] = other._runs[key]
        objective.assign(self.run_weights(self._runs[key]))
        return self.iterations(key)

    def without_runs(self) -> "CRFOptimizer":
        """A copy that has not begun."""
        other = copy.copy(self)
        other._runs, other.averages = {}, None if self.averages is None else {}
        return other

    def iterations(self, key: str) -> int:
        """Number of iterations made for one component."""
        raise NotImplementedError

    def run_weights(self, run: Any) -> Floats:
        """Current weights of a run."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """All that is needed to continue exactly where the runs stand, in this process or another."""
        return b"".join(self._packed(self._runs))

    def _packed(self, runs: dict[str, Any]) -> Iterator[bytes]:
        messages = {key: self.run_to_msg(run, key) for key, run in runs.items()}
        settings = {name: getattr(self, name) for name in self.identity}
        return packed({"optimizer": type(self).__name__, "settings": settings, "runs": messages})

    def from_bytes(self, data: bytes) -> "CRFOptimizer":
        """Take over the state of an optimizer of the same kind and settings; stop rules and limits may differ."""
        msg = srsly.msgpack_loads(data)
        ours = {name: getattr(self, name) for name in self.identity}
        if (msg["optimizer"], msg["settings"]) != (type(self).__name__, ours):
            saved = f"{msg['optimizer']} with {msg['settings']}"
            raise ValueError(Errors.CRF204.format(saved=saved, ours=f"{type(self).__name__} with {ours}"))
        self._runs = {key: self.run_from_msg(run) for key, run in msg["runs"].items()}
        return self

    def run_to_msg(self, run: Any, key: str) -> Any:
        """A run in the form that msgpack can write and `run_from_msg` reads."""
        raise NotImplementedError

    def run_from_msg(self, msg: Any) -> Any:
        raise NotImplementedError


class Minibatch(Optimizer):
    """Adam (Kingma & Ba 2015) with the learning rate that sparse features want, twenty times thinc's, and without averages: for
    pipelines whose own optimizer is made for neural networks.

    It is the default of the components, and steps aside: an optimizer of this package that is given as ``sgd`` or in
    [training.optimizer] is taken in its place, and emissions that are neural learn by what the pipeline learns by.

    learn_rate (float): Good for batches of 2 to 50 texts.
    """

    steps_aside = True

    def __init__(self, *, learn_rate: float = 0.02) -> None:
        super().__init__(checks.positive("Minibatch", "learn_rate", learn_rate), L2=0.0, use_averages=False)


def check_fit(optimizer: CRFOptimizer, loss: Any, key: str) -> None:
    """Check that an optimizer can minimize a loss.

    RAISES (ValueError): CRF210, with the losses and optimizers that fit.
    """
    if optimizer.fits(type(loss)):
        return
    registered = sorted(registry.losses.get_all().items())
    losses = [name for name, make in registered if name.startswith("spacy_crf.") and optimizer.fits(make)]
    optimizers = [
        name
        for name, make in sorted(registry.optimizers.get_all().items())
        if not (isinstance(make, type) and issubclass(make, CRFOptimizer)) or make.fits(type(loss))
    ]
    names = {"optimizer": type(optimizer).__name__, "loss": type(loss).__name__, "key": key}
    fitting = {"losses": ", ".join(losses), "optimizers": ", ".join(optimizers)}
    raise ValueError(Errors.CRF210.format(**names, **fitting))
