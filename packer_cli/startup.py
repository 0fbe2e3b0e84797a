"""Means to start commands sooner, and what each saves of `hbpack pack` of the bundled sample, which took 1.4 s there.

::

    few_collections    0.1 s of CPU: Python looks for garbage seldom, since imports and records leave hardly any
    is_own             0.2 s, and of the 1 s of hbpack plan: numba does not import what is installed beside it (`jit`)
    postpone_package   0.26 s: workers import parts of transformers without the package, which reads all its models
    exit_at_once       0.23 s: the interpreter's shutdown

Besides, the server that forks workers imports `tokens.preload` (1 s) and the tokenizer (0.16 s, and one copy for all
workers) while the command looks at its inputs, and `commands.pack` loads kernels beside tokenizing (0.23 s).
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

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


class _Package(ModuleType):
    """A stand-in for the package, which runs the package's own code as soon as a name is missing."""

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            import importlib.metadata  # 8 ms, which most commands need not wait for.

            return importlib.metadata.version(self.__name__)
        namespace = vars(self)
        loader = namespace.pop("_postponed", None)
        if loader is not None:
            loader.exec_module(self)
        whole = sys.modules[self.__name__]  # The package replaces itself by another module.
        if whole is self:  # The package is still loading.
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(whole, name)


def postpone_package(name: str = "transformers") -> None:
    """Make `import transformers.x.y` import only that module; does nothing if the package is already loaded."""
    from importlib.util import find_spec

    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return
    package = _Package(name)
    package.__dict__.update(
        __file__=spec.origin,
        __loader__=spec.loader,
        __package__=name,
        __path__=spec.submodule_search_locations,
        __spec__=spec,
        _postponed=spec.loader,
    )
    sys.modules[name] = package
