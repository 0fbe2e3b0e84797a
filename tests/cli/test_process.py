"""The process itself: it ends at once, with its exit code, and nothing of what it printed is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_runner import HBPACK


def test_all_of_the_output_arrives():
    done = subprocess.run([*HBPACK, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage:")
    assert done.stdout.endswith("\n")
    assert not done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["no-such-command"], 2), (["stats", "no-such-folder"], 2)])
def test_the_exit_code_is_that_of_the_error(arguments, code):
    done = subprocess.run([*HBPACK, *arguments], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.startswith("error: ")


def test_the_end_of_a_file_inside_a_library_is_not_ctrl_c(hbpack, monkeypatch):
    """Click takes every EOFError for one of a prompt."""

    def read(output):
        raise EOFError("Ran out of input")

    monkeypatch.setattr("packer_cli.commands.doctor.doctor", read)
    with pytest.raises(EOFError, match="Ran out of input") as caught:
        hbpack("doctor")
    assert caught.value.__suppress_context__


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_a_failure():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*HBPACK, "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: No space left on device\n")


def test_what_a_command_leaves_to_the_exit_is_done():
    code = (
        "import atexit, packer_cli.cli.main;"
        "packer_cli.cli.main.main = lambda: atexit.register(print, 'handled');"
        "packer_cli.cli.main.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == "handled\n"
