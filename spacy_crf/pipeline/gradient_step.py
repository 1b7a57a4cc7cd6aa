"""A step that thinc takes, by the gradient that is there."""

from typing import TYPE_CHECKING, Any, Optional

from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from ..errors import Errors

if TYPE_CHECKING:
    from .crf_pipe import CRFPipe


def parameters(model: Model) -> list[tuple[Model, str]]:
    """The nodes of a model with the names of their parameters."""
    return [(node, name) for node in model.walk() for name in node.param_names if node.has_param(name)]


def forget_gradients(model: Model) -> None:
    """Those that wait for a step are 0."""
    for node in model.walk():
        for name in node.grad_names:
            node.set_grad(name, node.ops.alloc(node.get_param(name).shape))


def step_by_gradient(pipe: "CRFPipe", optimizer: Optimizer, met: list[Doc], stepped: Optional[Doc]) -> None:
    """Takes the step.

    met (list[Doc]): What the gradient is of, where the model goes on from what it has learned.
    stepped (Doc): The last one it is of, for the message.
    RAISES (ValueError): CRF315 if weights would not be finite; they stay as they were.
    """
    params = parameters(pipe.model)
    before = {(node.id, name): node.get_param(name).copy() for node, name in params}
    if isinstance(optimizer, Optimizer):
        _forget_other_shapes(optimizer, params)
    averages = {}
    if met and optimizer.averages is not None:
        # Those of the first step begin at zero, as thinc's do
        averages = {key: optimizer.averages.get(key, 0.0 * weights) + 0.0 for key, weights in before.items()}
    pipe.model.finish_update(optimizer)
    if not all(node.ops.xp.isfinite(node.get_param(name)).all() for node, name in params):
        for node, name in params:
            node.set_param(name, before[node.id, name])
        text = "" if stepped is None else stepped.text[:40]
        raise ValueError(Errors.CRF315.format(name=pipe.name, text=text, optimizer=type(optimizer).__name__))
    if met:
        _hold_back(pipe, optimizer, met, before, averages)


def _hold_back(pipe: "CRFPipe", optimizer: Optimizer, met: list[Doc], before: dict[Any, Any], averages: dict) -> None:
    """Lets each weight go its share of the way of a step.

    before, averages (dict): The weights, and the optimizer's averages of them, as they were.
    """
    from ..optimizers.anchor import Anchor  # prediction does without

    frame = pipe.training.frame()
    shares = frame.parameters(Anchor.of(frame, pipe.training.evidence, frame.evidence_of(met)).shares)
    for node, name in parameters(pipe.model):
        key = (node.id, name)
        if key in shares:
            weights = before[key] + shares[key] * (node.get_param(name) - before[key])
            node.set_param(name, weights)
            if key in averages:
                node.ops.update_averages(averages[key], weights, optimizer.nr_update[key])
                optimizer.averages[key] = averages[key]


def _forget_other_shapes(optimizer: Optimizer, params: list[tuple[Model, str]]) -> None:
    """thinc's optimizers start anew with parameters that were laid out anew, as they do in spaCy's resizable layers."""
    for node, name in params:
        key, size = (node.id, name), node.get_param(name).size
        states = [state for state in (optimizer.mom1, optimizer.mom2, optimizer.averages) if state and key in state]
        if any(state[key].size != size for state in states):
            for state in (*states, optimizer.nr_update):
                state.pop(key, None)
