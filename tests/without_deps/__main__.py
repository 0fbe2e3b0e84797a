"""Runs the tests that need a trainer which cannot be installed beside hbpack as its metadata asks.

Each one's packages are put into a folder of their own, without their dependencies, and its tests see them there. A
test that is skipped all the same is a failure. ::

    python -m tests.without_deps [NAME ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {
    "automodel": "tests/export/test_automodel.py",
    "axolotl": "tests/loader/test_adapter_axolotl.py",
    "axolotl-oldest": "tests/loader/test_adapter_axolotl.py",
    "ms-swift": "tests/export/test_ms_swift.py",
    "unsloth": "tests/export/test_formats.py::test_unsloth_keeps_its_samples_apart",
    "verl": "tests/loader/test_adapter_verl.py",
}


def install(name: str) -> Path:
    """The folder with the packages of `name.txt`, made again when that changes."""
    wanted, folder = Path(__file__).with_name(f"{name}.txt"), ROOT / "build/without-deps" / name
    installed = folder / wanted.name
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted.read_text(encoding="utf-8"):
        options = [
            "--no-deps", "--no-compile", "--ignore-requires-python", "--upgrade", "--target", str(folder), "-r",
            str(wanted),
        ]  # fmt: skip
        subprocess.run([sys.executable, "-m", "pip", "install", "-qq", *options], check=True)
        installed.write_bytes(wanted.read_bytes())
    return folder


class NoSkips:
    """Fails a session in which a test is skipped."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.stats.get("skipped"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def main(names: list[str]) -> int:
    if names[:1] == ["--here"]:
        return pytest.main(["-m", "", TESTS[names[1]]], plugins=[NoSkips()])
    codes = []
    with ThreadPoolExecutor(2) as pool:  # One downloads and imports while the other computes.
        for done in pool.map(run, names or TESTS):
            print(done.stdout, flush=True)
            codes.append(done.returncode)
    return max(map(abs, codes))


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Run its tests in a process of their own."""
    environment = os.environ | {"PYTHONPATH": str(install(name))}
    command = [sys.executable, "-m", __package__, "--here", name]
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


sys.exit(main(sys.argv[1:]))
