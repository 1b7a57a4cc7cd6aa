"""Patches that this package applies to numba, once, before the first kernel is declared."""

import gc
import operator
import secrets
from functools import partial
from typing import Any, Optional

from numba.core import event
from numba.core.bytecode import FunctionIdentity
from numba.core.targetconfig import TargetConfig
from numba.core.types import Array, Boolean, Function, Number
from numba.core.typing import Context, Signature

_OPERATORS = {bool, *filter(callable, vars(operator).values())}


def number_at_random() -> None:
    """Give compiled functions names that no other process gives to different code.

    numba distinguishes functions of the same name and arguments by a number that counts from 1 in every process. A process that
    loads kernels from two other processes may find two inner functions with the same number. The linker takes one for the other:
    `np.sort` of one kernel is then `np.argsort` of the other, and sorts nothing (numba issue 10486). From now on this process,
    and those forked from it, use 64 random bits of the operating system as numbers, for other packages too.
    """
    identity: Any = FunctionIdentity  # numba declares a counter
    identity._unique_ids = iter(partial(secrets.randbits, 64), None)


def compare_flags_quickly() -> None:
    """Compare the flags of two compilations by those that are set, before all flags are compared.

    numba looks its caches up by the flags, each time that it infers the type of an operation: hashing and comparing some twenty
    flags took a tenth of the time of compiling. (The hash never depended on them: it is made of their names.)
    """
    compare_all = TargetConfig.__eq__

    def is_equal(flags: Any, other: Any) -> bool:
        is_same = type(other) is type(flags) and other._values == flags._values
        return is_same or compare_all(flags, other)

    config: Any = TargetConfig
    config.__eq__ = is_equal
    config.__hash__ = lambda flags: hash(type(flags))


def remember_operators() -> None:
    """Remember the types of the results of Python's operators for numbers and arrays.

    numba infers the type of each operation two or three times, and each time tries all implementations of the operator until one
    fits: a tenth of the time of compiling. (Other functions may be compiled by the flags of their caller, so that their results
    cannot be remembered by the types of the arguments alone.)
    """
    infer = Function.get_call_type
    remembered: dict[tuple, tuple] = {}

    def get_call_type(function: Function, context: Context, args: tuple, kws: dict) -> Optional[Signature]:
        is_operator = function.typing_key in _OPERATORS and not kws
        if not (is_operator and args and isinstance(args[0], (Number, Boolean, Array))):
            return infer(function, context, args, kws)
        key = (id(function), id(context), tuple(args))
        if key not in remembered:
            # The function and the context are kept too, so that no other object gets their ids
            remembered[key] = (infer(function, context, args, kws), function, context)
        return remembered[key][0]

    patched: Any = Function
    patched.get_call_type = get_call_type


class PausedCollector(event.Listener):
    """Turns Python's garbage collector off while numba compiles a kernel, if the collector was on.

    The objects that numba makes for a kernel live until the kernel is compiled. The collector traversed them, and everything that
    spaCy has loaded, again and again: a seventh of the time.
    """

    def __init__(self) -> None:
        self._depth = 0  # numba compiles a kernel with its helpers, in one thread at a time
        self._was_on = False

    def on_start(self, event: event.Event) -> None:
        """Turn the collector off when the outermost function begins to be compiled."""
        if self._depth == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Turn the collector on again after the outermost function, if it was on."""
        self._depth -= 1
        if self._depth == 0 and self._was_on:
            gc.enable()


def pause_collector() -> None:
    """Pause the garbage collector whenever numba compiles a function."""
    event.register("numba:compile", PausedCollector())
