"""Where numba keeps compiled kernels, decided before the first one is defined.

numba takes NUMBA_CACHE_DIR, else `__pycache__` beside the source, else the user's cache folder; where it can write
to none of them, as in a container that runs an installed package as a user without a home, it refuses to define a
kernel. There a folder that is removed at exit takes their place: kernels are then compiled anew in each run.
Workers inherit it by the environment.

Without numba, whose import is slow, the choice is followed by looking at permissions. Price: 0.2 ms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

ROOMS = ("plan", "tokens")
"""Where kernels are, or in folders below."""


def choose_cache() -> None:
    """Set NUMBA_CACHE_DIR to a new folder for this run, if numba would find none."""
    if os.environ.get("NUMBA_CACHE_DIR") or all(any(map(_is_writable, _caches(folder))) for folder in _folders()):
        return
    import atexit
    import shutil
    import tempfile

    try:
        scratch = tempfile.mkdtemp(prefix="hbpack-kernels-")
    except OSError:
        return  # no place at all: numba says so
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:  # not in a fork
            shutil.rmtree(scratch, ignore_errors=True)

    atexit.register(remove)
    os.environ["NUMBA_CACHE_DIR"] = scratch
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()


def _folders() -> Iterator[str]:
    package = os.path.dirname(os.path.abspath(__file__))
    for room in ROOMS:
        for folder, inner, _ in os.walk(os.path.join(package, room)):
            inner[:] = [name for name in inner if name != "__pycache__"]
            yield folder


def _caches(folder: str) -> Iterator[str]:
    """The folders that numba tries for the modules of a folder, in its order."""
    yield os.path.join(folder, "__pycache__")
    import hashlib

    home = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    user = home if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME", home)
    if not user.startswith("~"):  # a user of no known home; numba would make a folder of that name
        name = f"{os.path.basename(folder)}_{hashlib.sha1(folder.encode()).hexdigest()}"
        yield os.path.join(user, "numba", name)


def _is_writable(folder: str) -> bool:
    """Whether files can be written to a folder, made with those above it if need be."""
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder) or "."
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
