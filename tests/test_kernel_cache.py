"""Kernels run where numba can keep none of them, and the import says nothing of numba."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import packer_cli
from packer_cli import kernels

PACK = """
import os, subprocess, sys
import numpy as np
from packer_cli.plan.packing import REGISTRY, parse_packing
import packer_cli.corpus
algorithm, options = parse_packing("next-fit", REGISTRY)
algorithm.pack(np.array([3, 4, 5], np.int32), 8, 0, options)
worker = "import os, packer_cli.corpus; print(os.environ.get('NUMBA_CACHE_DIR'))"
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


def run(code: str, env: dict[str, str], cwd: Path, warning: str = "") -> list[str]:
    done = subprocess.run([sys.executable, "-Bc", code], capture_output=True, text=True, env=env, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, warning)
    return done.stdout.splitlines()


def test_without_a_place_kernels_are_kept_for_the_run(home: dict[str, str], tmp_path: Path) -> None:
    own, workers = run(PACK, home, tmp_path)
    assert own == workers
    assert Path(own).parent.parent == tmp_path / "tmp"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("is_full", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_place_of_the_user_that_cannot_be_written_to(home: dict[str, str], tmp_path: Path, is_full: bool) -> None:
    place = tmp_path / "no-folder" / "cache"
    code = PACK
    if is_full:
        place = tmp_path / "mine"
        full = "import tempfile\ntempfile.TemporaryFile = lambda *_, **__: open('/dev/full', 'wb', buffering=0)\n"
        code = full + PACK
    warning = (
        f"NUMBA_CACHE_DIR: {str(place)!r} cannot be written to, so kernels are compiled in each run, which takes some "
        "seconds; name another folder\n"
    )
    own, workers = run(code, home | {"NUMBA_CACHE_DIR": str(place)}, tmp_path, warning)
    assert own == workers
    assert Path(own).parent.parent == tmp_path / "tmp"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_numba_may_have_been_imported_before(home: dict[str, str], tmp_path: Path) -> None:
    assert len(run("import numba\n" + PACK, home, tmp_path)) == 2


@pytest.mark.slow
def test_a_place_of_the_user_is_taken(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    own, workers = run(PACK, home | {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}, tmp_path)
    assert own == workers
    assert Path(own).parent == tmp_path / "mine"
    assert list(Path(own).rglob("*.nbc"))
    own, workers = run(PACK, home | {"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path)
    assert own == workers
    assert Path(own).parent == tmp_path / "cache/numba"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_a_kernel_is_not_kept_longer_than_those_it_calls(home: dict[str, str], tmp_path: Path) -> None:
    caller = tmp_path / "code/packer_cli/plan/caller.py"
    caller.write_text(
        "from numba import njit\nfrom packer_cli.plan.core.streams import next_below\n"
        "@njit(cache=True)\ndef call(state):\n    return next_below(state, 1 << 20)\n"
    )
    env = home | {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}
    code = "import numpy as np\nfrom packer_cli.plan.caller import call\nprint(call(np.zeros(1, np.uint64)))"
    (first,) = run(code, env, tmp_path)
    assert run(code, env, tmp_path) == [first]
    inner = tmp_path / "code/packer_cli/plan/core/streams.py"
    text = inner.read_text(encoding="utf-8")
    changed = text.replace("return int(((next_uint64(state) >>", "return 1 + int(((next_uint64(state) >>")
    assert changed != text
    inner.write_text(changed, encoding="utf-8")
    assert run(code, env, tmp_path) == [str(int(first) + 1)]
    often = "import os, packer_cli.kernels as kernels\nfor number in range(8):\n"
    often += f"    os.utime({str(inner)!r}, (number, number))\n    kernels.choose_cache()"
    run(often, env, tmp_path)
    assert 1 < len(list((tmp_path / "mine").iterdir())) <= kernels.KEPT + 1


DAMAGED = """
import os, sys
from pathlib import Path
from packer_cli.jit import njit
from packer_cli.kernels import damaged

def double(x):
    return 2 * x

def compiled():
    kernel = njit(cache=True)(double)
    assert kernel(21) == 42
    return not kernel.stats.cache_hits

def files(kind):
    return [path for path in folder.rglob("*") if path.suffix == kind]

folder = Path(os.environ["NUMBA_CACHE_DIR"])
assert compiled() and not compiled()
damages = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}
for kind, name in ((".nbi", "empty"), (".nbi", "cut"), (".nbc", "cut"), (".nbc", "zeros")):
    (path,) = files(kind)
    assert damaged(str(folder)) == []
    damages[name](path)
    assert damaged(str(folder)) == [str(path)], name
    assert (compiled(), compiled()) == (True, False), (kind, name)
assert len(list(folder.parent.iterdir())) == 1
"""


def test_damaged_kernels_are_compiled_again(tmp_path: Path) -> None:
    code = tmp_path / "code.py"  # numba keeps no kernel of a program that is given as text.
    code.write_text(DAMAGED)
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}
    done = subprocess.run([sys.executable, "-B", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith(f"{tmp_path}/mine/hbpack-kernels-")
        assert ": a compiled kernel is damaged (" in line
        assert line.endswith("export NUMBA_CACHE_DIR=FOLDER")
    assert "a compiled kernel is damaged (EOFError: Ran out of input), so the folder was emptied" in lines[0]


FULL = """
import errno, os, sys
from pathlib import Path
from packer_cli.jit import njit

folder, replace = os.environ["NUMBA_CACHE_DIR"], os.replace

def full(source, target):
    if str(target).startswith(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    replace(source, target)

def double(x):
    return 2 * x

def triple(x):
    return 3 * x

kernels = njit(cache=True)(double), njit(cache=True)(triple)
os.replace = full
assert [kernel(2) for kernel in kernels] == [4, 6]
scratch = os.environ["NUMBA_CACHE_DIR"]
assert scratch != folder
assert len(list(Path(scratch).rglob("*.nbc"))) == 2
assert njit(cache=True)(double)(3) == 6
print(folder)
print(scratch)
"""


def test_a_disk_that_is_full_by_the_time_a_kernel_is_kept(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(FULL)
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "mine")}
    done = subprocess.run([sys.executable, "-B", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    folder, scratch = done.stdout.splitlines()
    assert done.stderr == (
        f"{folder}: compiled kernels cannot be kept (No space left on device), so kernels are compiled in each run, "
        "which takes some seconds; make room, or name another folder: export NUMBA_CACHE_DIR=FOLDER\n"
    )
    assert not os.path.exists(scratch)


def test_all_kernels_have_this_cache(repo: Path) -> None:
    files = (repo / "packer_cli").rglob("*.py")
    assert [path.name for path in files if "\nfrom numba import" in path.read_text(encoding="utf-8")] == ["jit.py"]


WARMED = """
import numpy as np
from numba.core.dispatcher import Dispatcher
from packer_cli.config import PlanConfig, validate
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.config.resolve import resolve
from packer_cli.plan.warming import warm_up
from packer_cli.plan.figures import plan_stats
config = validate(PlanConfig, {"groups": "1k:1,8k:4", "gpus": 8})
loaded = []  # Or compiled, where the cache has none.
add = Dispatcher.add_overload
def added(self, result):
    loaded.append(self.py_func.__qualname__)
    add(self, result)
Dispatcher.add_overload = added
warm_up(resolve(config).request)
print(len(loaded) > 0)
loaded.clear()
lengths = np.minimum(9000, np.random.default_rng(0).lognormal(5.5, 1.3, 4000) + 1).astype(np.int32)
pieces = make_pieces(lengths, np.arange(4000), 8192, "split")
plan = build_plan(pieces, resolve(config).request)
check_pieces(pieces, lengths, np.arange(4000), is_whole=True)
check_plan(plan)
plan_stats(plan, resolve(config).request)
print(loaded)
"""


def test_warming_loads_all_kernels_of_a_plan(tmp_path: Path) -> None:
    assert run(WARMED, dict(os.environ), tmp_path) == ["True", "[]"]


def test_the_stamp_is_of_all_that_kernels_compile(repo: Path) -> None:
    """From each kernel through what it calls to constants and to records, of which the order of fields matters."""
    package = repo / "packer_cli"
    todo = [
        (path, name)
        for path in package.rglob("*.py")
        if "njit" in path.read_text(encoding="utf-8")
        for name, node in names_of(path).items()
        if not isinstance(node, tuple) and "'njit'" in "".join(map(ast.dump, makers_of(node)))
    ]
    assert len(todo) > 100
    seen = set[tuple[Path, str]]()
    while todo:
        path, name = todo.pop()
        node = names_of(path).get(name)
        if (path, name) in seen or node is None:
            continue
        if isinstance(node, tuple):
            todo.append(node)
            continue
        seen.add((path, name))
        for each in () if isinstance(node, ast.ClassDef) else ast.walk(node):
            if isinstance(each, ast.Name):
                todo.append((path, each.id))
            elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                module = names_of(path).get(each.value.id)
                todo += [(module[0], each.attr)] if isinstance(module, tuple) else []
    stamped = sorted(name for name, _ in kernels.files())
    assert stamped == sorted({path.relative_to(package).as_posix() for path, _ in seen})


@cache
def names_of(path: Path) -> dict[str, ast.stmt | tuple[Path, str]]:
    """What a file defines; of what it imports from the package, the file and the name, of a module the file."""
    found: dict[str, ast.stmt | tuple[Path, str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("packer_cli"):
            folder = Path(packer_cli.__path__[0]).parent.joinpath(*str(node.module).split("."))
            file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            for each in node.names:
                module = folder / f"{each.name}.py"
                found[each.asname or each.name] = (module, "") if module.exists() else (file, each.name)
        else:
            stored = (
                each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            )
            found |= {each.id: node for each in stored if each.id not in found}
    return found


def makers_of(node: ast.stmt) -> list[ast.expr]:
    """The decorators of a function; the value of an assignment."""
    return node.decorator_list if isinstance(node, ast.FunctionDef) else [getattr(node, "value", None) or ast.Tuple()]
