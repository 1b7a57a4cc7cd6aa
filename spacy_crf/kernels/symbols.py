"""Names of machine code which no other process gives to different code.

numba tells functions of the same name and arguments apart by a number, and counts from 1 in every process. Of two kernels that
different processes have compiled and kept, a third loads both; where the numbers of their inner functions are equal, the linker
takes them for the same: `np.sort` of one kernel is then `np.argsort` of the other, and sorts nothing (numba issue 10486).
"""

import secrets
from functools import partial

from numba.core.bytecode import FunctionIdentity


def number_at_random() -> None:
    """From now on, whatever this process and those forked from it compile, for this package or others, has numbers of its own:
    64 random bits of the operating system."""
    FunctionIdentity._unique_ids = iter(partial(secrets.randbits, 64), None)
