"""`hbpack doctor`: what is checked, and what a broken machine looks like."""

from __future__ import annotations

import importlib.metadata
import json
import pickle
from pathlib import Path

import pytest

from packer_cli import kernels
from packer_cli.commands import doctor


@pytest.fixture(scope="module")
def checks():
    return {check.name: check for check in doctor.doctor().checks}


def test_this_machine(checks):
    assert {"hbpack", "Python", "numba", "pyarrow"} <= checks.keys()
    assert {"solver", "cores", "memory", "disk", "open files", "numba cache"} <= checks.keys()
    assert set(doctor.EXTRAS) <= checks.keys()
    assert checks["numba"].value == importlib.metadata.version("numba")
    assert checks["solver"].value == "HiGHS"
    assert [check.name for check in checks.values() if check.state == "broken"] == []
    assert all(bool(check.remedy) == (check.state != "ok") for check in checks.values())


def test_the_command(hbpack):
    done = hbpack("doctor")
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("versions:\n  hbpack ")
    assert done.stdout.endswith("\nNothing is broken. Next: hbpack init DATA... --tokenizer PATH\n")
    result = json.loads(hbpack("doctor", "--json").stdout)
    assert result["healthy"] is True


def test_what_is_broken_ends_with_1_and_a_remedy(hbpack, monkeypatch, tmp_path):
    def version(name):
        if name == "xxhash":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0" if name == "numpy" else real(name)

    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor, "_gpus", lambda: iter(()))
    done = hbpack("doctor", "--output", tmp_path / "a" / "b")
    assert done.code == 1
    assert done.stderr == "error: 2 things broken (numpy, xxhash); the list says what to do\n"
    assert "broken: 1.0, not >=2.0\n    run pip install 'numpy>=2.0'\n" in done.stdout
    assert "broken: not installed\n    run pip install 'xxhash>=3.4'\n" in done.stdout


def test_a_quota_of_cores_is_shown(monkeypatch):
    monkeypatch.setattr(doctor, "cpu_quota", lambda: 0.5)
    (check,) = [check for check in doctor._machine(Path()) if check.name == "cores"]
    assert check.state == "ok"
    assert check.value.endswith("; a control group allows 0.5")


def test_damaged_kernels_are_noted(monkeypatch, tmp_path):
    folder = tmp_path / "a cache" / f"hbpack-kernels-{kernels._stamp()}"
    (folder / "of").mkdir(parents=True)
    (folder / "of" / "whole.nbi").write_bytes(pickle.dumps("0.61") + pickle.dumps({"x": b"y" * 99}))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert doctor._kernels().state == "ok"
    for name in ("empty.nbi", "cut.1.nbc"):
        (folder / "of" / name).write_bytes(pickle.dumps(list(range(99)))[: 50 * name.startswith("cut")])
    check = doctor._kernels()
    assert (check.state, check.value) == ("note", f"2 damaged files, such as {folder}/of/cut.1.nbc")
    assert check.remedy.startswith(f"run rm -r '{folder}'; the next run compiles the kernels again")
