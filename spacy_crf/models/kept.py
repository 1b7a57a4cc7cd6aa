"""What a node of a model keeps in a file, and whether what a file says can be its own. Kernels trust what is loaded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from thinc.api import Model

from ..errors import Errors


class Kept(NamedTuple):
    """Beside the weights; ``model.attrs["kept"]`` of every node of ours."""

    attrs: tuple[str, ...]  # what was learned
    settings: tuple[str, ...]  # of the config, what the weights mean; its other settings say how to train
    check: Callable[[Model, int], None]  # of a loaded node and the number of states


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
