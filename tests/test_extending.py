"""docs/extending.md, followed as it is printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

RUN = """
import numpy as np
from tests.plan.packing import assert_valid, run
lengths = np.random.default_rng(0).integers(1, 101, 500).astype(np.int32)
assert_valid(run("two-ends", lengths, 100), lengths, 100)
"""


def test_the_packing_algorithm_works(repo: Path, tmp_path: Path) -> None:
    page = (repo / "docs" / "extending.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for package in ("packer_cli", "tests"):
        shutil.copytree(repo / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "packer_cli" / "plan" / "packing"
    (folder / "two_ends.py").write_text(source, encoding="utf-8")
    registry = folder / "registry.py"
    text = registry.read_text(encoding="utf-8")
    assert text.count("    wrap,\n") == 2, "the imports and the list"
    registry.write_text(text.replace("    wrap,\n", "    wrap,\n    two_ends,\n"), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    python("-c", RUN)
    np.save(tmp_path / "lengths.npy", np.array([60, 50, 50, 40, 30, 70] * 10))
    options = ("--groups", "100", "--gpus", "1", "--packing", "two-ends", "--json")
    stats = json.loads(python("-m", "packer_cli", "stats", "lengths.npy", *options))
    assert stats["overall"]["num_packs"] == 30
    rows = json.loads(
        python("-m", "packer_cli", "compare", "lengths.npy", *options[:4], "--algorithms", "bfd,two-ends", "--json")
    )
    assert [row["name"] for row in rows["rows"]] == ["bfd", "two-ends"]
