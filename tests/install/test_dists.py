"""The distributions as users install them: built from the tree, each in an environment of its own.

`make dist` builds them first and names their folder in HBPACK_DISTS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli_runner import pack_words, run_process

pytestmark = pytest.mark.slow

READ = """
import json, sys
import xxhash
from packer_cli.loader import PackedDataset, metadata_of

found = []
for rank in range(8):
    for batch in PackedDataset(sys.argv[1], rank, 8):
        ids = xxhash.xxh3_64_hexdigest(batch["input_ids"].numpy().tobytes())
        found.append([rank, metadata_of(batch)["pack_id"], ids])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def dists(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both wheels and source distributions."""
    if "HBPACK_DISTS" in os.environ:
        return Path(os.environ["HBPACK_DISTS"]).absolute()
    folder = tmp_path_factory.mktemp("dists")
    subprocess.run([sys.executable, repo / "scripts" / "build_dists.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def install(dists: Path, repo: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes an environment with one distribution and what it depends on; gives its folder of programs."""

    def make(pattern: str) -> Path:
        (file,) = dists.glob(pattern)
        programs = tmp_path / "venv" / "bin"
        run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
        words = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", "--no-compile"]
        run(*words, "-c", repo / "constraints.txt", file, cwd=tmp_path)
        return programs

    return make


def run(*words: object, cwd: Path) -> str:
    """What a program prints where the tree is not on Python's path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages(programs: Path, cwd: Path) -> set[str]:
    """The names of what is installed."""
    code = "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    return set(run(programs / "python", "-c", code, cwd=cwd).lower().replace("_", "-").split())


def required(name: str) -> set[str]:
    """A distribution that is installed here, and all that it needs on this machine."""
    code = """
import importlib.metadata as m, sys
from packaging.requirements import Requirement
seen, todo = set(), [sys.argv[1]]
while todo:
    name = todo.pop().lower().replace("_", "-")
    if name not in seen:
        seen.add(name)
        needs = map(Requirement, m.requires(name) or ())
        todo += [each.name for each in needs if not each.marker or each.marker.evaluate({"extra": ""})]
print(*seen)
"""
    return set(subprocess.check_output([sys.executable, "-c", code, name], text=True).split())


def test_hbpack_packs(install, repo, tmp_path):
    """The wheel is built from the source distribution, so that one holds all files, too."""
    programs = install("hbpack-*.whl")
    sample = repo / "examples" / "sample"
    words = [sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--groups", "1k:1,8k:4", "--gpus", 8]
    run(programs / "hbpack", "pack", *words, "--output", "out", cwd=tmp_path)
    figures = json.loads(run(programs / "hbpack", "stats", "out", "--json", cwd=tmp_path))
    assert figures["counts"]["samples"] == 2000
    code = "import hbpack; print(hbpack.plan([5, 6, 7], groups='8', gpus=1).metrics.overall.num_packs)"
    assert run(programs / "python", "-c", code, cwd=tmp_path) == "3\n"
    assert not packages(programs, tmp_path) & {"torch", "pytest", "ruff"}


def test_hbpack_loader_reads_with_what_it_needs_alone(install, repo, tmp_path):
    programs = install("hbpack_loader-*.whl")
    names = required("torch") | {"hbpack-loader", "numpy", "pyarrow", "xxhash"}
    assert packages(programs, tmp_path) == names
    packed = run_process([*pack_words(repo, "chats.jsonl", "journals.jsonl"), "--output"], tmp_path / "out")
    read = run(programs / "python", "-c", READ, packed, cwd=tmp_path)
    assert json.loads(read) == json.loads(run(sys.executable, "-c", READ, packed, cwd=repo)) != []
    code = "import hbpack; hbpack.plan"
    done = subprocess.run([programs / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "hbpack-loader has no plan(), but hbpack has: pip install hbpack" in done.stderr
