"""docs/extending.md, followed as it is printed."""

from __future__ import annotations

import json
import os
import re
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
CHANGED = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

class Changed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        package, _, module = name.rpartition(".")
        file = Path(__file__).with_name(f"{module}.py")
        return spec_from_file_location(name, file) if package == "packer_cli.plan.packing" and file.exists() else None

sys.meta_path.insert(0, Changed)
"""
"""Python imports it before all else. A changed copy of the whole package would compile all its kernels again."""


def test_the_packing_algorithm_works(repo: Path, tmp_path: Path) -> None:
    page = (repo / "docs" / "extending.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "two_ends.py").write_text(source.replace("njit(cache=True)", "njit"), encoding="utf-8")
    text = (repo / "packer_cli/plan/packing/registry.py").read_text(encoding="utf-8")
    assert text.count("    wrap,\n") == 2, "the imports and the list"
    (tmp_path / "registry.py").write_text(text.replace("    wrap,\n", "    wrap,\n    two_ends,\n"), encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(CHANGED, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(repo)])}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    python("-c", RUN)
    np.save(tmp_path / "lengths.npy", np.array([60, 50, 50, 40, 30, 70] * 10))
    options = ("lengths.npy", "--groups", "100", "--gpus", "1", "--json")
    rows = json.loads(python("-m", "packer_cli", "compare", *options, "--algorithms", "bfd,two-ends"))["rows"]
    assert [(row["name"], row["overall"]["num_packs"]) for row in rows] == [("bfd", 30), ("two-ends", 30)]
    stats = json.loads(python("-m", "packer_cli", "stats", *options, "--packing", "two-ends"))
    assert stats["overall"] == rows[1]["overall"]
