"""docs/tutorial.md, followed from a clone: its commands in one shell, one after another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.installed import share_kernels
from tests.docs.shell import check_output, commands

PAGE = "docs/tutorial.md"
END = "--- end of output ---"


@pytest.fixture
def clone(repo: Path, tmp_path: Path) -> Path:
    """A copy of what git would clone, with this environment in place of the one that make would install."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=repo, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (repo / name).is_file() and not name.startswith("tests/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repo / name, tmp_path / name)
    share_kernels(tmp_path, tmp_path / "build" / "kernels")
    environment = tmp_path / ".venv"
    environment.mkdir()
    (environment / "bin").symlink_to(Path(sys.executable).parent)
    for name in (".made", ".demo"):
        (environment / name).touch()
        os.utime(environment / name, (time.time() + 60,) * 2)
    return tmp_path


@pytest.mark.slow
def test_the_tutorial(clone):
    pytest.importorskip("torch")
    blocks = [block for block in read_blocks(PAGE) if not block.reason]
    steps = []
    for block in blocks:
        if block.file:
            block.save(clone)
        else:
            steps += commands(block)
    script = "\n".join(["set -euo pipefail", *(f"{command}\necho '{END}'" for command, _ in steps)])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone), "NUMBA_CACHE_DIR": str(clone / "build" / "kernels")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    outputs = done.stdout.split(END + "\n")
    for (command, printed), output in zip(steps, outputs, strict=False):
        check_output(PAGE, command, output, printed)
    assert done.returncode == 0
    assert len(outputs) == len(steps) + 1
