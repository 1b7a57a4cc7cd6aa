"""What a CRF component and its optimizer say to each other.

thinc's optimizers see one gradient per parameter and step. A line search wants to evaluate the whole training objective
again at other weights, so a component hands CRF optimizers an ``Objective`` instead.
"""

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Optional, Protocol

import numpy as np
import srsly
from numpy.typing import NDArray
from thinc.api import Optimizer, registry
from thinc.types import FloatsXd

from ..errors import Errors
from ..losses.clamped import ClampedLoss
from ..msgpack_stream import packed
from ..types import ChainCorpus, Floats


class Weighed(Protocol):
    """What has weights, as one vector."""

    # Equal as long as it is the same function: same data, same layout of the weights. It is saved with the optimizer,
    # so build it from str, bytes, int and tuples of these that mean the same in another process (no id, no hash).
    signature: Hashable

    def weights(self) -> Floats:
        """RETURNS (float64[n]): A copy of the model's current weights."""
        ...

    def assign(self, weights: Floats) -> None:
        """Write the weights to the model, which may round them to float32. Called at the end of each step."""
        ...


class Objective(Weighed, Protocol):
    """A component's training loss, without regularizer, as a function of all its weights."""

    # What may be missing: `renew`, which takes up what has changed since the last step, and says whether anything may have; how
    # often the data has what each weight belongs to (float64[n]), how many weights of the model each stands for (float64[n]), and
    # how many evaluations of the objective take as long as one of the model on what was last scored
    frequencies: Floats
    copies: Floats
    passes_per_evaluation: float

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Leave the model as it is and answer for other weights.

        weights (float64[n]): Belong to the optimizer: neither change nor keep them.
        RETURNS (tuple[float, float64[n]]): The loss and its gradient, an array the optimizer may overwrite and keep.
        """
        ...


class WeightFrame(Protocol):
    """Which weights a vector has."""

    def places(self, before: "WeightFrame") -> NDArray[np.int64]:
        """RETURNS (int64[n before]): Where the weights of an earlier frame are, all of which are in this one."""
        ...


class SequenceObjective(WeightFrame, Weighed, Protocol):
    """What optimizers ask for that learn from one sequence after the other: the corpus itself."""

    layout: tuple[int, ...]  # equal for vectors that mean the same weights, whatever the data
    loss: ClampedLoss
    corpus: ChainCorpus
    anchor: Any  # an `Anchor` where a model goes on from what it has learned, or None
    n_sequences: int  # of the whole corpus, where this is a part of it
    mixed: Any  # what walks through the corpus in place of the optimizer (`epoch`), part by part, or None

    def parameters(self, weights: Floats) -> dict[tuple[int, str], FloatsXd]:
        """The weights (float64[n]) as thinc knows them: by the id of their model and their name."""
        ...

    def frame(self) -> WeightFrame:
        """Which weights they are, without the corpus."""
        ...

    def describe(self, sequence: int) -> str:
        """Name a sequence for humans."""
        ...


with_settings = dataclass(kw_only=True, eq=False, repr=False)


def setting(default: Any, check: Callable, **bounds: Any) -> Any:
    """A setting of an optimizer, one of its keyword arguments.

    check (Callable): One of `spacy_crf.checks`. None is possible where it is the default.
    """
    return field(default=default, metadata={"check": partial(check, **bounds)})


@with_settings
class CRFOptimizer(Optimizer):
    """An optimizer that asks for the objective; thinc's, because ``[training.optimizer]`` takes no other."""

    wants_sequences: ClassVar[bool] = False  # a SequenceObjective instead of an Objective
    wants_whole_corpus: ClassVar[bool] = True  # in every step; False for those that learn from batch after batch
    names_states: ClassVar[bool] = False  # whether it has to know the state of each token, which may be hidden
    identity: ClassVar[tuple[str, ...]]  # settings that saved state depends on

    def __post_init__(self) -> None:
        given = {each: getattr(self, each.name) for each in fields(self)}
        super().__init__(1.0, use_averages=False)
        for each, value in given.items():
            if value is not None or each.default is not None:
                value = each.metadata["check"](type(self).__name__, each.name, value)
            setattr(self, each.name, value)
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
        """Why there is nothing left to improve for this key, None as long as there may be."""
        return None

    def is_worth_evaluating(self, key: str) -> bool:
        """Whether a model may be judged by the step that was made last; False where more steps shall come first."""
        return True

    def forget(self, key: str) -> None:
        """The next step of this component is the first one."""
        self._runs.pop(key, None)

    def __call__(self, key, weights, gradient, *, lr_scale=1.0):
        raise ValueError(Errors.CRF202.format(optimizer=type(self).__name__, key=key))

    # ------------------------------------------------------------------------------------------------------- resuming

    def checkpoint(self, key: str) -> Iterator[bytes]:
        """All that is needed to continue the training of one component, in parts: see `resume`."""
        return self._packed({key: self._runs[key]})

    def resume(self, objective: Weighed, data: bytes, *, key: str) -> int:
        """Goes on where another one left a checkpoint, with the weights of then. RETURNS (int): How many iterations it had made.

        RAISES (ValueError): CRF204 if it had other settings.
        """
        other = copy.copy(self).from_bytes(data)
        self._runs[key] = other._runs[key]
        objective.assign(self.run_weights(self._runs[key]))
        return self.iterations(key)

    def without_runs(self) -> "CRFOptimizer":
        """One of the same settings that has not begun."""
        other = copy.copy(self)
        other._runs, other.averages = {}, None if self.averages is None else {}
        return other

    def iterations(self, key: str) -> int:
        """How many were made of one component."""
        raise NotImplementedError

    def run_weights(self, run: Any) -> Floats:
        """Where a run stands."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """All that is needed to continue exactly where the runs stand, in this process or another."""
        return b"".join(self._packed(self._runs))

    def _packed(self, runs: dict[str, Any]) -> Iterator[bytes]:
        said = {key: self.run_to_msg(run, key) for key, run in runs.items()}
        settings = {name: getattr(self, name) for name in self.identity}
        return packed({"optimizer": type(self).__name__, "settings": settings, "runs": said})

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
        """What msgpack can write of a run, and `run_from_msg` makes one of."""
        raise NotImplementedError

    def run_from_msg(self, msg: Any) -> Any:
        raise NotImplementedError


def check_fit(optimizer: CRFOptimizer, loss: Any, key: str) -> None:
    """RAISES (ValueError): CRF210 with what fits instead."""
    if optimizer.fits(type(loss)):
        return
    losses, optimizers = [], []
    for name, make in sorted(registry.losses.get_all().items()):
        if name.startswith("spacy_crf.") and optimizer.fits(make):
            losses.append(name)
    for name, make in sorted(registry.optimizers.get_all().items()):
        if not (isinstance(make, type) and issubclass(make, CRFOptimizer)) or make.fits(type(loss)):
            optimizers.append(name)
    message = Errors.CRF210.format(
        optimizer=type(optimizer).__name__,
        loss=type(loss).__name__,
        key=key,
        losses=", ".join(losses),
        optimizers=", ".join(optimizers),
    )
    raise ValueError(message)
