"""Kernels run where numba can keep none of them, and the import says nothing of numba."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from packer_cli import kernels

PACK = """
import os, subprocess, sys
import numpy as np
from packer_cli.plan.packing import REGISTRY, parse_packing
import packer_cli.tokens.store
algorithm, options = parse_packing("next-fit", REGISTRY)
algorithm.pack(np.array([3, 4, 5], np.int32), 8, 0, options)
worker = "import os, packer_cli.tokens.store; print(os.environ.get('NUMBA_CACHE_DIR'))"
print(os.environ.get("NUMBA_CACHE_DIR"))
print(subprocess.run([sys.executable, "-Bc", worker], capture_output=True, text=True, check=True).stdout, end="")
"""


@pytest.fixture
def home(repo: Path, tmp_path: Path) -> dict[str, str]:
    """An environment with a copy of the package in which no cache can be written, and no home."""
    copy = tmp_path / "code"
    shutil.copytree(repo / "packer_cli", copy / "packer_cli", ignore=shutil.ignore_patterns("__pycache__"))
    for path in list(copy.rglob("*.py")):
        (path.parent / "__pycache__").touch()  # a file in its place stops root as well
    (tmp_path / "no-folder").touch()
    env = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    (tmp_path / "tmp").mkdir()
    return env | {
        "PYTHONPATH": str(copy),
        "HOME": str(tmp_path / "no-folder"),
        "XDG_CACHE_HOME": str(tmp_path / "no-folder/cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }


def run(code: str, env: dict[str, str], cwd: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-Bc", code], capture_output=True, text=True, env=env, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_without_a_place_kernels_are_kept_for_the_run(home: dict[str, str], tmp_path: Path) -> None:
    own, workers = run(PACK, home, tmp_path)
    assert own == workers
    assert Path(own).parent == tmp_path / "tmp"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_numba_may_have_been_imported_before(home: dict[str, str], tmp_path: Path) -> None:
    assert len(run("import numba\n" + PACK, home, tmp_path)) == 2


def test_a_place_of_the_user_is_taken(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert run(PACK, home | {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}, tmp_path) == [str(tmp_path / "mine")] * 2
    assert list((tmp_path / "mine").iterdir())
    assert run(PACK, home | {"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path) == ["None", "None"]
    assert (tmp_path / "cache/numba").is_dir()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_rooms_are_those_that_hold_kernels(repo: Path) -> None:
    found = set()
    for path in (repo / "packer_cli").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        if "numba" in imported:
            found.add(path.relative_to(repo / "packer_cli").parts[0])
    assert found == set(kernels.ROOMS)
