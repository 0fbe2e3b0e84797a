"""Means to start commands sooner, and what each saves of `hbpack pack` of the bundled sample, which takes 2 s.

::

    few_collections    0.1 s of CPU: Python looks for garbage seldom, since imports and records leave hardly any
    is_own             0.2 s, and of the 1 s of hbpack plan: numba does not import what is installed beside it (`jit`)
    exit_at_once       0.23 s: the interpreter's shutdown

Besides, the server that forks workers imports `tokens.preload` (1.3 s) and the tokenizer (0.16 s, and one copy for all
workers) while the command looks at its inputs, and `commands.pack` loads kernels beside tokenizing (0.23 s).
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable

is_own = False
"""Whether this process is hbpack's own, and not a user's that has other code as well."""


def few_collections() -> None:
    """Call at the start of a process that is hbpack's own."""
    global is_own
    is_own = True
    gc.set_threshold(50_000)


def exit_at_once(end: Callable[[], int]) -> None:
    """Exit without the interpreter's shutdown once all exit handlers have run: nothing needs it.

    Args:
        end: called last; gives the exit code.
    """
    atexit.register(lambda: os._exit(end()))  # Handlers run in reverse order, so this one runs last.
