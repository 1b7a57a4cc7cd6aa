"""Line searches over phi(step), the objective along a ray. They know nothing about weights.

``phi`` returns a ``RayPoint`` for a step, with ``value = inf`` where the objective is not finite: the search then backs off. Both
searches return the accepted point (None if no lower point was found) and the number of evaluations.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

SUFFICIENT_DECREASE = 1e-4  # c1 in both conditions below


class RayPoint(NamedTuple):
    """phi at one step. ``where`` belongs to the caller, who gets it back with the accepted point."""

    step: float
    value: float
    slope: float
    where: Any = None


def strong_wolfe(
    phi: Callable[[float], RayPoint], start: RayPoint, step: float, *, curvature: float, max_evaluations: int
) -> tuple[Optional[RayPoint], int]:
    """Find a step that satisfies the strong Wolfe conditions (Nocedal & Wright 2006, eq. 3.7):

        phi(a) <= phi(0) + c1 a phi'(0)   and   |phi'(a)| <= c2 |phi'(0)|

    When the evaluations run out, the search returns the lowest point that satisfies the first condition.

    phi (Callable): The function along the ray.
    start (RayPoint): phi at step 0, its slope negative.
    step (float): The first step to try.
    curvature (float): c2. Near 1 any decrease of the slope suffices; near 0 the search is nearly exact.
    max_evaluations (int): Most evaluations of phi.
    RETURNS (tuple[Optional[RayPoint], int]): The accepted point, None if there is no lower one, and the number of evaluations.
    """
    # Algorithms 3.5 and 3.6 as one loop. `low` is the lowest point so far that satisfies the first condition; once a minimum is
    # bracketed, `high` is the other end of the bracket, on either side of `low`.
    low = start
    high = None
    width = math.inf
    for evaluations in range(1, max_evaluations + 1):
        point = phi(step)
        too_high = not point.value <= start.value + SUFFICIENT_DECREASE * step * start.slope
        if too_high or (low.step > 0 and point.value >= low.value):
            high = point._replace(where=None)
        elif abs(point.slope) <= -curvature * start.slope:
            return point, evaluations
        else:
            # If phi rises from the new point towards `high`, a minimum lies between the new point and the old `low`
            towards_high = 1.0 if high is None else high.step - low.step
            before = low._replace(where=None)
            low = point
            if point.slope * towards_high >= 0:
                high = before
            elif high is None:  # no minimum is bracketed yet
                step = _extrapolate(before, low)
                continue
        last_width = width
        width = abs(high.step - low.step)
        if width <= 1e-15 * max(low.step, high.step):
            break
        step = _interpolate(low, high)
        if width > 0.7 * last_width and math.isfinite(high.value):  # cubic steps that barely narrow the bracket
            step = 0.5 * (low.step + high.step)
    return (low if low.step > 0 else None), evaluations


def backtracking(
    phi: Callable[[float], RayPoint], start: RayPoint, step: float, *, max_evaluations: int
) -> tuple[Optional[RayPoint], int]:
    """Try ever shorter steps, and return the first that decreases phi enough: phi(a) <= phi(0) + c1 a s(a). The second step is
    half of the first, which is often only slightly too long; each later one goes to the minimum of the parabola through phi(0),
    phi(a) and the slope, between a tenth and a half of the last step. (On wnut17, whose first steps are up to 4,000 times too
    long, 50 iterations took 70 evaluations, and 109 with halving alone.)

    The slope s(a) of a point is the slope along the straight line from the start to that point, since a projected ray is bent.
    """
    for evaluations in range(1, max_evaluations + 1):
        point = phi(step)
        if point.value <= start.value + SUFFICIENT_DECREASE * step * point.slope:
            return point, evaluations
        bend = point.value - start.value - step * point.slope
        if not math.isfinite(bend):
            step *= 0.1
        elif evaluations == 1 or bend <= 0.0:
            step *= 0.5
        else:
            step *= min(max(-step * point.slope / (2.0 * bend), 0.1), 0.5)
    return None, max_evaluations


def _extrapolate(before: RayPoint, low: RayPoint) -> float:
    """A step beyond `low`, where phi still falls: to the minimum of the cubic, at 1.1 to 4 times the last stride."""
    stride = low.step - before.step
    step = _cubic_minimum(before, low)
    if step is None or step <= low.step:
        return low.step + 4.0 * stride
    return min(max(step, low.step + 1.1 * stride), low.step + 4.0 * stride)


def _interpolate(low: RayPoint, high: RayPoint) -> float:
    """A step inside the bracket, at a distance from its ends."""
    stride = high.step - low.step
    if not math.isfinite(high.value):
        return low.step + 0.1 * stride
    step = _cubic_minimum(low, high)
    part = 0.5 if step is None else (step - low.step) / stride
    return low.step + min(max(part, 0.1), 0.9) * stride


def _cubic_minimum(a: RayPoint, b: RayPoint) -> Optional[float]:
    """Minimum of the cubic through two values and slopes (Nocedal & Wright, eq. 3.59), None if the cubic has no minimum."""
    d1 = a.slope + b.slope - 3.0 * (a.value - b.value) / (a.step - b.step)
    radicand = d1 * d1 - a.slope * b.slope
    if not radicand >= 0:
        return None
    d2 = math.copysign(math.sqrt(radicand), b.step - a.step)
    denominator = b.slope - a.slope + 2.0 * d2
    if denominator == 0:
        return None
    step = b.step - (b.step - a.step) * (b.slope + d2 - d1) / denominator
    return step if math.isfinite(step) else None
