"""A step that thinc takes, by the gradient that is there."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from ..errors import Errors
from .labels import LabelPipe


def parameters(model: Model) -> list[tuple[Model, str]]:
    """The nodes of a model with the names of their parameters."""
    return [(node, name) for node in model.walk() for name in node.param_names if node.has_param(name)]


def forget_gradients(model: Model) -> None:
    """Those that wait for a step are 0."""
    for node in model.walk():
        for name in node.grad_names:
            node.set_grad(name, node.ops.alloc(node.get_param(name).shape))


def step_by_gradient(pipe: LabelPipe, optimizer: Optimizer, n_sequences: int, docs: list[Doc]) -> None:
    """Takes the step.

    n_sequences (int): What the gradient is of.
    docs (list[Doc]): The last ones it is of, for the message.
    RAISES (ValueError): CRF206 if weights would not be finite; they stay as they were.
    """
    params = parameters(pipe.model)
    before = {(node.id, name): node.get_param(name).copy() for node, name in params}
    if isinstance(optimizer, Optimizer):
        _forget_other_shapes(optimizer, params)
    going_on = pipe.training.continuation
    draw_back = _drawing_back(pipe, optimizer, before) if going_on is not None and going_on.since is not None else None
    _finish_update(pipe.model, optimizer)
    if not all(node.ops.xp.isfinite(node.get_param(name)).all() for node, name in params):
        for node, name in params:
            node.set_param(name, before[node.id, name])
        where = f"for the batch that begins with '{docs[0].text[:40] if docs else ''}...'"
        what = f"The step of {type(optimizer).__name__}"
        raise ValueError(Errors.CRF206.format(what=what, name=pipe.name, where=where))
    if draw_back is not None:
        draw_back(n_sequences)


def _finish_update(model: Model, optimizer: Optimizer) -> None:
    """What `thinc.Model.finish_update` does, with the learning rate of each node."""
    for node in model.walk():
        for shim in node.shims:
            shim.finish_update(optimizer)
    for node, name in parameters(model):
        if node.has_grad(name):
            key, scale = (node.id, name), node.attrs.get("lr_scale", 1.0)
            node.set_param(name, optimizer(key, node.get_param(name), node.get_grad(name), lr_scale=scale)[0])


def _drawing_back(pipe: LabelPipe, optimizer: Optimizer, before: dict[Any, Any]) -> Callable[[int], None]:
    """What draws the weights of a model that goes on back after a step.

    before (dict): The weights.
    """
    params, start = parameters(pipe.model), pipe.training.frame().weights()
    gradients = [node.get_grad(name) for node, name in params if node.has_grad(name)]
    length = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    averages = {}
    if optimizer.averages is not None:
        # Those of the first step begin at zero, as thinc's do
        averages = {key: optimizer.averages.get(key, 0.0 * weights) + 0.0 for key, weights in before.items()}

    def draw_back(n_sequences: int) -> None:
        anchor = pipe.training.continuation.anchor(pipe)
        # A single rate, as optimizers with many do not tell them
        rate = float(np.linalg.norm(anchor.now - start)) / length if length else 0.0
        moves = pipe.training.frame().parameters(anchor.drawn(anchor.now, rate, n_sequences) - anchor.now)
        for node, name in params:
            key = (node.id, name)
            if key in moves:
                weights = node.get_param(name) + moves[key]
                node.set_param(name, weights)
                if key in averages:
                    node.ops.update_averages(averages[key], weights, optimizer.nr_update[key])
                    optimizer.averages[key] = averages[key]

    return draw_back


def _forget_other_shapes(optimizer: Optimizer, params: list[tuple[Model, str]]) -> None:
    """thinc's optimizers start anew with parameters that were laid out anew, as they do in spaCy's resizable layers."""
    for node, name in params:
        key, size = (node.id, name), node.get_param(name).size
        states = [state for state in (optimizer.mom1, optimizer.mom2, optimizer.averages) if state and key in state]
        if any(state[key].size != size for state in states):
            for state in (*states, optimizer.nr_update):
                state.pop(key, None)
