"""Folder where numba keeps compiled kernels, chosen before the first one is defined.

numba takes NUMBA_CACHE_DIR, else `__pycache__` beside the source, else the user's cache folder. It tells that a kernel
is outdated by the kernel's own file; but compiled code holds that of the kernels it calls too, from whatever file. So
kernels lie one folder deeper, named by a stamp of all files that hold any, or what they compile: where one of them
changes, all are compiled again. The folders used last are kept, for those who go back and forth between versions.

Where none of the places can be written to, as in a container that runs an installed package as a user without a home,
numba refuses to define a kernel. There a folder that is removed at exit takes their place: kernels are then compiled
in each run, and if NUMBA_CACHE_DIR named the place, a warning says so. So it is where a disk is full by the time that
kernels are kept, and a folder with damaged files is emptied (`packer_cli.jit`). Workers inherit the choice by the
environment. Price: 1.5 ms, without numba, whose import is slow.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

PLACES = ("plan", "corpus/readers/json_borders.py", "tokens/prefix_trees.py")
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
    if given and _is_ours(given):
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
        _warn("NUMBA_CACHE_DIR: %r cannot be written to, " + _EACH_RUN + "; name another folder", given)
    _use_scratch(name)


def empty(folder: str, error: Exception) -> None:
    """Remove a folder of kernels, of which one raised an error when it was read. They are compiled again."""
    import shutil

    aside = f"{folder[:-16]}{os.urandom(8).hex()}"  # Should this process be killed, it goes as old ones do.
    with contextlib.suppress(OSError):  # Another process has removed it, or it stays; then no kernel can be kept.
        os.rename(folder, aside)
        _warn(
            "%s: a compiled kernel is damaged (%s), so the folder was emptied, and kernels are compiled again, which "
            "takes some seconds; if it happens again, name a folder on another disk: export NUMBA_CACHE_DIR=FOLDER",
            *(folder, _why(error)),
        )
        shutil.rmtree(aside, ignore_errors=True)


def leave(folder: str, error: Exception) -> None:
    """Use a folder that is removed at exit, as a kernel cannot be kept in the one in use."""
    if os.environ.get("NUMBA_CACHE_DIR") == folder and not is_scratch(folder):
        why = f"%s: compiled kernels cannot be kept (%s), {_EACH_RUN}"
        _warn(f"{why}; make room, or name another folder: export NUMBA_CACHE_DIR=FOLDER", folder, _why(error))
        _use_scratch(os.path.basename(folder))


def folder_of(path: str) -> str | None:
    """Return the folder of kernels that a path is in; None: in none of hbpack's."""
    while not _is_ours(path):
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent
    return path


def damaged(folder: str) -> list[str]:
    """List the files of a folder of kernels that are empty, cut or unreadable. Price: 0.1 s, without numba."""
    import pickletools
    from collections import deque

    found = []
    for place, _, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in names if name.endswith((".nbi", ".nbc"))):
            try:
                with open(path, "rb") as file:
                    while True:  # An index is several pickles.
                        deque(pickletools.genops(file), maxlen=0)
                        if not file.peek(1):
                            break
            except (OSError, ValueError):
                found.append(path)
    return sorted(found)


_EACH_RUN = "so kernels are compiled in each run, which takes some seconds"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


def _warn(text: str, *values: object) -> None:
    import logging

    logging.getLogger("hbpack").warning(text, *values)


def is_scratch(folder: str) -> bool:
    """Whether a folder of kernels is one that is removed at exit."""
    return os.path.basename(os.path.dirname(folder)).startswith(_PREFIX)


def _is_ours(path: str) -> bool:
    return re.fullmatch(_PREFIX + "[0-9a-f]{16}", os.path.basename(path)) is not None


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
        folders = [entry for entry in entries if _is_ours(entry.name)]
        by_use = sorted(folders, key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in by_use[KEPT:]:
        shutil.rmtree(entry.path, ignore_errors=True)
