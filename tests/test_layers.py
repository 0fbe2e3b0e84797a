"""Who may import whom: the rooms stand in one order, and the pure ones load nothing that reads or writes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "packer_cli"

ALLOWED: dict[str, set[str]] = {
    # The foundations.
    "__init__": set(),
    "arrays": set(),
    "checksums": set(),
    "marks": {"arrays"},
    "epochs": set(),
    "errors": set(),
    "sizes": set(),
    "kernels": set(),
    "files": {"checksums"},
    "folders": {"errors", "files"},
    "engine": {"errors"},
    "config": {"errors", "sizes"},
    # The rooms, in the order of the flow: each sees what is before it.
    "corpus": {"errors", "kernels", "sizes"},
    "tokens": {"arrays", "checksums", "corpus", "config", "engine", "errors", "files", "sizes"},
    "plan": {"errors", "kernels", "sizes"},  # Lengths only: it sees no tokens.
    "shards": {
        "arrays",
        "checksums",
        "config",
        "engine",
        "epochs",
        "errors",
        "files",
        "marks",
        "plan",
        "tokens",
        "__init__",
    },
    "loader": {
        "arrays",
        "checksums",
        "epochs",
        "errors",
        "marks",
        "__init__",
    },  # Trains without the preparation side; the formats on disk are the contract.
    "export": {
        "arrays",
        "checksums",
        "engine",
        "epochs",
        "errors",
        "files",
        "folders",
        "kernels",
        "plan",
        "shards",
        "sizes",
        "__init__",
    },
    "profile": {"errors", "loader", "plan", "sizes"},  # The loader only to measure what it does on GPUs.
    # What stands above the rooms.
    "group_choice": {"config", "errors", "files", "plan", "profile"},
    "metrics": {"plan"},
    "report": {
        "arrays",
        "checksums",
        "config",
        "corpus",
        "engine",
        "epochs",
        "errors",
        "group_choice",
        "loader",  # Only to measure it: `hbpack bench-loader`.
        "marks",
        "metrics",
        "plan",
        "planning",
        "profile",
        "shards",
        "sizes",
        "tokens",
        "warming",
    },
    "warming": {"config", "files", "plan", "planning", "report"},
    "planning": {"config", "errors", "files", "plan", "profile", "report", "shards", "sizes", "tokens"},
    "output": {"checksums", "errors", "files", "folders", "shards", "tokens"},
    "rebalance": {"config", "epochs", "errors", "files", "plan", "planning", "report", "shards", "sizes", "tokens"},
    "verify": {
        "arrays",
        "checksums",
        "config",
        "engine",
        "errors",
        "marks",
        "plan",
        "shards",
        "sizes",
        "tokens",
    },
    "pipeline": {
        "rebalance",
        "config",
        "engine",
        "errors",
        "files",
        "group_choice",
        "kernels",
        "output",
        "planning",
        "profile",
        "report",
        "shards",
        "sizes",
        "tokens",
        "verify",
        "warming",
    },
    "preload": {"corpus", "tokens"},
    "cli": {
        "config",
        "engine",
        "epochs",
        "errors",
        "export",
        "files",
        "pipeline",
        "profile",
        "report",
        "sizes",
        "verify",
        "__init__",
    },
    "__main__": {"cli"},
}
FLOW = ("corpus", "tokens", "plan", "shards", "loader")

PURE = {"numpy", "numba", "collections", "dataclasses", "typing", "functools", "itertools", "math", "enum"}
"""All that `plan` may import from outside: nothing that reads or writes."""


SOLVERS = {"time", "pulp", "highspy"}
"""What only `plan/packing/ilp` may import besides: solvers, and the clock of its time limit."""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def rooms_of(name: str) -> str | None:
    """The room of a module of the package, None for others."""
    first, *rest = name.split(".")
    if first != PACKAGE:
        return None
    return rest[0] if rest else "__init__"


def files(repo: Path) -> Iterator[tuple[str, Path]]:
    root = repo / PACKAGE
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).parts[0].removesuffix(".py"), path


def test_imports_follow_the_table(repo):
    used: dict[str, set[str]] = {}
    for room, path in files(repo):
        used.setdefault(room, set())
        for name in imports(path):
            other = rooms_of(name)
            if other is not None and other != room:
                used[room].add(other)
    assert used == ALLOWED


def test_nothing_imports_backwards_along_the_flow():
    for i, room in enumerate(FLOW):
        assert not ALLOWED[room] & set(FLOW[i + 1 :]), room
        assert not ALLOWED[room] & {"cli", "pipeline", "planning", "report"}, room


def test_only_what_measures_imports_the_loader(repo):
    """Its package needs torch, which the preparation side does without."""
    for room, path in files(repo):
        if room not in ("loader", "__init__") and "loader" in {rooms_of(name) for name in imports(path)}:
            assert path.parent.parts[-2:] in {("report", "speed"), ("profile", "measure")}, path


def test_the_plan_is_pure(repo):
    for room, path in files(repo):
        if room == "plan":
            outside = {name.split(".")[0] for name in imports(path)} - {PACKAGE, "__future__"}
            assert outside <= (PURE | SOLVERS if path.parent.name == "ilp" else PURE), path
            calls = [node.func.id for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                     if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]  # fmt: skip
            assert not {"open", "print", "input", "exec", "eval"} & set(calls), path


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import packer_cli", {"torch", "numba", "numpy", "pyarrow", "click", "pydantic"}),
        ("import packer_cli.cli", {"torch", "numba", "numpy", "pyarrow", "pydantic", "rich", "yaml"}),
        (
            "import packer_cli.plan.build, packer_cli.plan.check",
            {"click", "torch", "pyarrow", "pydantic", "rich", "pulp", "highspy"},
        ),
        (
            "import packer_cli.show.view, packer_cli.show.lines",
            {"torch", "transformers", "tokenizers", "datasets", "rich"},
        ),
        ("import packer_cli.corpus.discover", {"torch", "numba", "click", "pydantic", "datasets", "transformers"}),
        ("import packer_cli.stages.pack", {"torch", "datasets", "transformers", "tokenizers", "rich"}),
        ("import packer_cli.stages.groups", {"click", "torch", "pyarrow", "rich", "datasets", "transformers"}),
        (
            "import packer_cli.loader",
            {"click", "numba", "pulp", "datasets", "transformers", "pydantic", "rich", "tokenizers", "yaml"},
        ),
    ],
)  # fmt: skip
def test_what_an_import_loads(statement, forbidden):
    if "loader" in statement:
        pytest.importorskip("torch")
    code = f"import sys\n{statement}\nprint(sorted({forbidden!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
