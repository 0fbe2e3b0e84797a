"""Commands as processes: only results are on stdout, and streams may be closed, full or broken."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from packer_cli.cli.main import cli, main
from tests.cli_runner import HBPACK, run
from tests.measure.tiny import FAST, TINY

PLANNED = "--groups 384:1,1k:4 --gpus 8 --packing ilp:time_limit=1"  # On these groups, the solver runs.
COMMANDS = {
    "init": "chats.jsonl --tokenizer tokenizer --output new.yaml",
    "doctor": "",
    "pack": f"chats.jsonl --tokenizer tokenizer {PLANNED} --workers 1 --output new",
    "tokenize": "chats.jsonl --tokenizer tokenizer --workers 1 --output new",
    "plan": f"OUT {PLANNED} --output new",
    "write": "OUT --workers 1",
    "append": "OUT new.jsonl --workers 1",
    "status": "OUT",
    "rebalance": "OUT --gpus 4",
    "verify": "OUT --workers 1",
    "export": "OUT --to megatron --workers 1 --output new",
    "profile": f"--model tiny.json --output new.json {' '.join(map(str, FAST))}",
    "groups": "OUT --gpus 8 --model model --gpu h100",
    "compare": "OUT --groups 384:1,1k:4 --gpus 8 --algorithms ilp:time_limit=1 --workers 1",
    "simulate": "OUT --model model --gpu h100",
    "stats": "OUT --bound lp",
    "report": "OUT --output new.html",
    "show": "OUT",
    "find": "OUT chats.jsonl:1",
    "versions": "OUT",
    "restore": "OUT@1",
    "prune": "OUT --keep 1",
}
"""What each command is given, in a folder of its own with a packed set."""


@pytest.fixture(scope="module")
def packed(sample, chats, tokenizer, tmp_path_factory) -> Path:
    """A folder with all that the commands read."""
    folder = tmp_path_factory.mktemp("packed")
    lines = chats.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "chats.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
    (folder / "new.jsonl").write_text("".join(lines[30:]), encoding="utf-8")
    (folder / "tiny.json").write_text(json.dumps(TINY))
    words = f"pack {folder}/chats.jsonl --tokenizer {tokenizer} --groups 1k:1,8k:4 --gpus 8 --workers 1 --output"
    assert run(main, *words.split(), folder / "OUT").code == 0
    return folder


@pytest.fixture
def folder(packed, sample, tokenizer, tmp_path) -> Path:
    shutil.copytree(packed, tmp_path, symlinks=True, dirs_exist_ok=True)
    (tmp_path / "tokenizer").symlink_to(tokenizer)
    (tmp_path / "model").symlink_to(sample / "model")
    return tmp_path


PROCESSES = ("doctor", "plan", "profile", "compare", "stats")
"""Commands in which solvers and other libraries in C print past `sys.stdout`."""


@pytest.mark.parametrize(
    "name",
    [name if name in ("plan", "compare") else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS],
)
def test_only_results_are_on_stdout_of_a_process(name, folder):
    done = subprocess.run(
        [*HBPACK, name, *COMMANDS[name].split(), "--json"], cwd=folder, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(set(cli.list_commands(click.Context(cli))).difference(PROCESSES)))
def test_only_results_are_on_stdout(name, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    done = run(main, name, *COMMANDS[name].split(), "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)
    assert capfd.readouterr().out == "", "printed past sys.stdout"


def test_python_functions_print_nothing(folder):
    code = (
        "import packer_cli as hbpack\n"
        "hbpack.plan('OUT', groups='384:1,1k:4', gpus=8, packing='ilp:time_limit=1')\n"
        "hbpack.stats('OUT', bound='lp')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_libraries_print_goes_to_stderr():
    code = (
        "import os, packer_cli.cli.main\n"
        "packer_cli.cli.main.main = lambda: print(f'{os.write(1, b\"noise\")} bytes')\n"
        "packer_cli.cli.main.run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 bytes\n", "noise")


def test_no_file_takes_the_number_of_a_closed_stream():
    """Nor does it in a process that the command starts."""
    child = "import os; os._exit(os.open(os.devnull, 0))"
    code = (
        "import subprocess, sys, packer_cli.cli.main\n"
        f"packer_cli.cli.main.main = lambda: sys.exit(subprocess.run([sys.executable, '-c', '{child}']).returncode)\n"
        "packer_cli.cli.main.run()"
    )
    done = subprocess.run(f"{shlex.join([sys.executable, '-c', code])} <&- >&- 2>&-", shell=True)
    assert done.returncode == 3


def in_shell(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`hbpack WORDS` in a POSIX shell, where words may be redirections."""
    return subprocess.run(f"{shlex.join(HBPACK)} {words}", shell=True, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("words", ["stats OUT", "stats OUT --json"])
def test_a_closed_stdout_is_an_error(folder, words):
    done = in_shell(f"{words} >&-", folder)
    assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: it is closed\n")


def test_the_work_is_done_whatever_is_closed(folder, hbpack):
    pack = "pack chats.jsonl --tokenizer tokenizer --groups 1k:1,8k:4 --gpus 8 --workers 2 --output new"
    done = in_shell(f"{pack} <&- >&- 2>&-", folder)
    assert done.returncode == 1  # The summary could not be printed.
    assert hbpack("verify", folder / "new").code == 0
    done = in_shell(f"{pack} --json 2>&-", folder)
    assert done.returncode == 0
    assert json.loads(done.stdout)


def test_a_reader_of_stderr_that_goes_away_stops_nothing(folder):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as broken:
        done = subprocess.run(
            [*HBPACK, "append", "OUT", "new.jsonl", "--json"],
            cwd=folder, stdout=subprocess.PIPE, stderr=broken, text=True,
        )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout)
