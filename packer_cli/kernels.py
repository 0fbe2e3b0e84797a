"""Folder where numba keeps compiled kernels, chosen before the first one is defined.

numba takes NUMBA_CACHE_DIR, else `__pycache__` beside the source, else the user's cache folder. It tells that a kernel
is outdated by the kernel's own file; but compiled code holds that of the kernels it calls too, from whatever file. So
kernels lie one folder deeper, named by a stamp of all files that hold any, or what they compile: where one of them
changes, all are compiled again. The folders used last are kept, for those who go back and forth between versions.

Where none of the places can be written to, as in a container that runs an installed package as a user without a home,
numba refuses to define a kernel. There a folder that is removed at exit takes their place: kernels are then compiled
in each run, and if NUMBA_CACHE_DIR named the place, a warning says so. Workers inherit the choice by the environment.
Price: 1.5 ms, without numba, whose import is slow.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

PLACES = ("plan", "corpus/readers/json_borders.py", "tokens/content_hash.py", "tokens/prefix_trees.py")
"""Files with kernels, and folders that hold such, at any depth."""
COMPILED = (
    "format/ragged.py", "format/sharding.py", "format/trees.py",
    "plan/core/attention_rates.py", "plan/core/cost.py", "plan/core/types.py",
)  # fmt: skip
"""Files without kernels whose functions, constants and records kernels compile."""

_PREFIX = "hbpack-kernels-"
KEPT = 4
"""Folders that stay, the newest by use."""


def choose_cache() -> None:
    """Set NUMBA_CACHE_DIR to a folder for the kernels as they are now."""
    name = _PREFIX + _stamp()
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given and os.path.basename(given) == name:
        with contextlib.suppress(OSError):
            os.utime(given)  # It is in use.
        return
    if given and re.fullmatch(_PREFIX + "[0-9a-f]{16}", os.path.basename(given)):
        given = os.path.dirname(given)  # Chosen for other kernels, by a process that started this one.
    for place in [given] if given else _places():
        folder = os.path.join(place, name)
        with contextlib.suppress(OSError):
            if not os.path.isdir(folder):
                os.makedirs(folder, exist_ok=True)
                _remove_old(place)
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                file.write(b"x")  # It fails in a folder of another user, and on a disk that is full.
            os.utime(folder)
            _set(folder)
            return
    if given:
        import logging

        logging.getLogger("hbpack").warning(
            "NUMBA_CACHE_DIR: %r cannot be written to, so kernels are compiled in each run, which takes some seconds; "
            "name another folder",
            given,
        )
    _use_scratch(name)


def _stamp() -> str:
    """Hash the names, times and sizes of the files of kernels."""
    found = [(name, about.st_mtime_ns, about.st_size) for name, path in files() for about in (os.stat(path),)]
    return hashlib.sha1(repr(sorted(found)).encode()).hexdigest()[:16]


def files() -> Iterator[tuple[str, str]]:
    """Yield the files of the package that hold kernels, or what these compile: their names in it, and their paths."""
    package = os.path.dirname(os.path.abspath(__file__))
    names = [*PLACES]
    while names:
        name = names.pop()
        path = os.path.join(package, name)
        if os.path.isdir(path):
            names += [f"{name}/{each}" for each in os.listdir(path) if each != "__pycache__"]
        elif name.endswith(".py") and name not in COMPILED:
            with open(path, "rb") as file:
                if b"njit" in file.read():
                    yield name, path
    yield from ((name, os.path.join(package, name)) for name in COMPILED)


def _places() -> Iterator[str]:
    """Yield the places as numba has them, in its order."""
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__")
    home = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    user = home if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME", home)
    if not user.startswith("~"):  # a user of no known home; numba would make a folder of that name
        yield os.path.join(user, "numba")


def _use_scratch(name: str) -> None:
    import atexit
    import shutil

    try:
        scratch = tempfile.mkdtemp(prefix=_PREFIX)
    except OSError:
        return  # no place at all: numba says so
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:  # not in a fork
            shutil.rmtree(scratch, ignore_errors=True)

    atexit.register(remove)
    folder = os.path.join(scratch, name)
    os.makedirs(folder)
    _set(folder)


def _set(folder: str) -> None:
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()


def _remove_old(place: str) -> None:
    """Leave `KEPT` folders of kernels in a place."""
    import shutil

    with os.scandir(place) as entries:
        folders = [entry for entry in entries if re.fullmatch(_PREFIX + "[0-9a-f]{16}", entry.name)]
        by_use = sorted(folders, key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in by_use[KEPT:]:
        shutil.rmtree(entry.path, ignore_errors=True)
