"""numba's `njit`, with a cache that stops no run where files of it are damaged or the disk is full.

numba raises whatever reading a damaged file raises, such as the EOFError of one that a power cut left empty, and the
error of a disk that is full. Kernels of other packages are left to numba. Price: importing numba, 0.3 s.
"""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from typing import Any

from packer_cli import startup
from packer_cli.kernels import choose_cache, empty, folder_of, leave

choose_cache()

from numba import njit as njit  # noqa: E402 - it looks for its cache's folder when it is imported
from numba.core.caching import Cache  # noqa: E402

if startup.is_own:
    # numba imports the packages that extend it, as awkward does, and scipy, to see that they are there.
    with suppress(ImportError, AttributeError):  # Names of numba's own: another release may lack them.
        from numba.core import entrypoints
        from numba.np import linalg

        entrypoints._already_initialized = True
        check, linalg.ensure_blas = linalg.ensure_blas, lambda: None
        try:
            import numba.np.arraymath  # noqa: F401 - it checks when it is imported
        finally:
            linalg.ensure_blas = check

_load, _save = Cache.load_overload, Cache.save_overload


def _load_or_none(self: Any, *arguments: Any) -> Any:
    """Load a compiled kernel; return None, so that it is compiled, where it is missing or damaged."""
    try:
        return _load(self, *arguments)
    except Exception as error:  # Whatever unpickling and LLVM make of a damaged file.
        folder = folder_of(self.cache_path)
        if folder is None:
            raise
        empty(folder, error)


def _save_or_leave(self: Any, *arguments: Any) -> None:
    """Save a compiled kernel, if need be in a folder for this run."""
    try:
        _save(self, *arguments)
    except Exception as error:  # Of the disk, or of a file that cannot be replaced.
        folder = folder_of(self.cache_path)
        if folder is None:
            raise
        self.disable()
        if multiprocessing.parent_process() is None:  # A worker's folder would outlive it.
            leave(folder, error)
            with suppress(Exception):  # If that is full as well, the kernel stays in memory alone.
                self.__init__(self._py_func)
                _save(self, *arguments)


Cache.load_overload, Cache.save_overload = _load_or_none, _save_or_leave
