"""An environment in which hbpack is installed from a wheel, as a reader has it, beside what is installed here."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from packer_cli import kernels
from tests.docs.blocks import ROOT

SOURCES = ("hbpack", "packer_cli", "pyproject.toml", "README.md", "LICENSE")
LAUNCHERS = {"torchrun": "torch.distributed.run"}
"""Programs of other packages that start scripts, and the modules that they run."""

PIP = """"{}" -m pip --python "{}" "$1" --no-index --no-deps --no-build-isolation "${{@:2}}\""""
"""`pip install`, of a folder whose dependencies are there; only the page that runs it has it, in its PIP_TARGET."""


def install_once(folder: Path) -> Path:
    """The folder of the environment's programs; of several processes that call this, one makes it."""
    programs = folder / "installed" / "bin"
    with (folder / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (programs / "hbpack").exists():
            _install(folder / "installed", _build(folder))
    return programs


def _build(folder: Path) -> Path:
    """A wheel of the tree, built from a copy, since setuptools leaves files of its own beside the sources."""
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, sources)
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, sources)
    (wheel,) = folder.glob("hbpack-*.whl")
    return wheel


def _install(environment: Path, wheel: Path) -> None:
    """Make the environment. Packages of this one are found after its own, but not the tree."""
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    launchers = {name: f'"{python}" -m {module} "$@"' for name, module in LAUNCHERS.items()}
    launchers["pip"] = PIP.format(sys.executable, python)
    for name, command in launchers.items():
        (environment / "bin" / name).write_text(f"#!/bin/bash\nexec {command}\n", encoding="utf-8")
        (environment / "bin" / name).chmod(0o755)
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    share_kernels(site, environment / "kernels")


def share_kernels(copy: Path, folder: Path) -> None:
    """Let an unchanged copy of the package use what was compiled for the tree; compiling it again takes minutes.

    Args:
        copy: the folder that holds the copied package.
        folder: made; the NUMBA_CACHE_DIR of the copy. It has links to the folders of the tree's kernels.
    """
    for _, path in kernels.files():  # Numba compares times.
        about = os.stat(path)
        os.utime(copy / Path(path).relative_to(ROOT), ns=(about.st_atime_ns, about.st_mtime_ns))
    kernels.choose_cache()
    compiled = Path(os.environ["NUMBA_CACHE_DIR"])
    links = folder / compiled.name
    links.mkdir(parents=True)
    for source in {Path(path).parent for _, path in kernels.files()}:
        of_tree = compiled / _numba_name(source)
        of_tree.mkdir(exist_ok=True)
        (links / _numba_name(copy / source.relative_to(ROOT))).symlink_to(of_tree)


def _numba_name(folder: Path) -> str:
    """Numba's name, in NUMBA_CACHE_DIR, for the kernels of a folder's files."""
    return f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"


def _run(*words: object) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
