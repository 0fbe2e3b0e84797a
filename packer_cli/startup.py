"""Means to start commands sooner, and what each saves of `hbpack pack` of the bundled sample, which takes 1.4 s.

::

    own_process        nothing by itself: it says that the others may change what all of the process sees
    few_collections    0.1 s of CPU: Python looks for garbage seldom, since imports and records leave hardly any
    postpone_package   0.26 s: workers import parts of transformers without the package, which reads all its models
    skip_extensions    0.17 s: numba does not import what is installed beside it
    exit_at_once       0.23 s: the interpreter's shutdown
    note_compiled      4 s of the first 10: `commands.pack` compiles kernels beside tokenizing, and later loads them
                       so, 0.23 s

Besides, the command line starts the server that forks workers before it reads its options (0.11 s), which imports
`tokens.preload` (1 s) and the tokenizer (0.16 s, and one copy for all workers).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_is_owned = False


def own_process() -> None:
    """Say that this process runs hbpack alone, as the command line's does, and not a user's code as well."""
    global _is_owned
    _is_owned = True


def owns_process() -> bool:
    """Whether hbpack may change what all of this process sees, and fork it: there are no threads but its own."""
    return _is_owned


def skip_extensions() -> None:
    """Load in the command line's own process what kernels need of numba, and not all that is installed beside it.

    At its first kernel numba imports the packages that extend it, as awkward does, and scipy's linear algebra, to see
    that it is there; none of our kernels uses these. Code that multiplies matrices still finds scipy when it is
    compiled. Price: importing numba, which the caller is about to do; it saves 0.3 s of CPU.
    """
    if not owns_process():
        return
    with contextlib.suppress(ImportError, AttributeError):  # Names of numba's own: another release may lack them.
        from numba.core import entrypoints
        from numba.np import linalg

        entrypoints._already_initialized = True
        check, linalg.ensure_blas = linalg.ensure_blas, lambda: None
        try:
            import numba.np.arraymath  # noqa: F401 - it checks when it is imported
        finally:
            linalg.ensure_blas = check


def few_collections() -> None:
    """Call at the start of a process that is hbpack's own."""
    gc.set_threshold(50_000)


def exit_at_once(end: Callable[[], int]) -> None:
    """Exit without the interpreter's shutdown once all exit handlers have run: nothing needs it.

    Args:
        end: called last; gives the exit code.
    """
    atexit.register(lambda: os._exit(end()))  # Handlers run in reverse order, so this one runs last.


def known_as_compiled(kernels: str) -> bool:
    """Whether `note_compiled` was called for these kernels (a name for a file) in the folder in use, now or before."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return folder is not None and os.path.exists(os.path.join(folder, kernels))


def note_compiled(kernels: str) -> None:
    """Remember that these kernels need not be compiled again."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if folder is not None:
        with contextlib.suppress(OSError), open(os.path.join(folder, kernels), "wb"):
            pass


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
