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
        return spec_from_file_location(name, file) if package == PACKAGE and file.exists() else None

sys.meta_path.insert(0, Changed)
"""
"""Python imports it before all else. A changed copy of the whole package would compile all its kernels again."""


def made_from_page(
    repo: Path, folder: Path, number: int, package: str, name: str, *changes: tuple[str, str]
) -> dict[str, str]:
    """The page's code as a file of a package, in whose registry it is listed: the environment to run it in."""
    page = (repo / "docs" / "extending.md").read_text(encoding="utf-8")
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[number]
    (folder / f"{name}.py").write_text(source.replace("njit(cache=True)", "njit"), encoding="utf-8")
    text = (repo / package.replace(".", "/") / "registry.py").read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "registry.py").write_text(text, encoding="utf-8")
    (folder / "sitecustomize.py").write_text(f"PACKAGE = {package!r}\n{CHANGED}", encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(repo)])}


def python(folder: Path, env: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def test_the_packing_algorithm_works(repo: Path, tmp_path: Path) -> None:
    listed = ("    wrap,\n", "    wrap,\n    two_ends,\n")
    env = made_from_page(repo, tmp_path, 0, "packer_cli.plan.packing", "two_ends", listed)
    python(tmp_path, env, "-c", RUN)
    np.save(tmp_path / "lengths.npy", np.array([60, 50, 50, 40, 30, 70] * 10))
    options = ("lengths.npy", "--groups", "100", "--gpus", "1", "--json")
    compared = python(tmp_path, env, "-m", "packer_cli", "compare", *options, "--algorithms", "bfd,two-ends")
    rows = json.loads(compared)["rows"]
    assert [(row["name"], row["overall"]["num_packs"]) for row in rows] == [("bfd", 30), ("two-ends", 30)]
    stats = json.loads(python(tmp_path, env, "-m", "packer_cli", "stats", *options, "--packing", "two-ends"))
    assert stats["overall"] == rows[1]["overall"]


def test_the_strategy_works(repo: Path, tmp_path: Path) -> None:
    package = "packer_cli.plan.strategies"
    imported = (f"from {package}.longalign", f"from {package}.light_first import LightFirst\nfrom {package}.longalign")
    listed = ("LongAlign(),", "LongAlign(), LightFirst(),")
    env = made_from_page(repo, tmp_path, 1, package, "light_first", imported, listed)
    np.save(tmp_path / "lengths.npy", np.array([60, 50, 50, 40, 30, 7] * 10))
    given = ("lengths.npy", "--gpus", "2", "--json", "--groups")
    compared = python(tmp_path, env, "-m", "packer_cli", "compare", *given, "50,100", "--strategies", "all")
    rows = {row["name"]: row for row in json.loads(compared)["rows"]}
    assert list(rows)[3:5] == ["longalign", "light-first"]
    assert rows["light-first"]["options"]["groups"] == "100:1"
    stats = json.loads(python(tmp_path, env, "-m", "packer_cli", "stats", *given, "100", "--strategy", "light-first"))
    assert stats["overall"] == rows["light-first"]["overall"]
    assert "tight packs of one length" in " ".join(python(tmp_path, env, "-m", "packer_cli", "pack", "--help").split())
