"""Runs the shell blocks of a page as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from tests.docs.blocks import ROOT, Block
from tests.examples.launcher import Launcher
from tests.ranks import torchrun_environment

SECONDS = re.compile(r"\b[\d.,]+ m?s\b")


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a block, and the output that a `console` block prints below it."""
    text = block.source.replace("\\\n", " ")
    if block.language == "console":
        found = [each.partition("\n") for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
        return [(command, output) for command, _, output in found]
    return [(line, "") for line in text.splitlines() if shlex.split(line, comments=True)]


def run_block(block: Block, programs: Path, launcher: Launcher | None = None) -> None:
    """Run a block in the current folder. A command must succeed, unless its printed output ends with an error.

    Args:
        block: of bash or console.
        programs: the folder of the reader's programs.
        launcher: starts the processes of `torchrun` in place of it.
    """
    for command, printed in commands(block):
        if launcher and command.startswith("torchrun "):
            code, output = run_ranks(command, launcher)
        else:
            code, output = run_command(command, programs)
        may_fail = printed.rpartition("\nerror: ")[1] or printed.startswith("error: ")
        assert may_fail or code == 0, f"{block}: $ {command}\nexit code {code}\n{output}"
        if block.language == "console":
            check_output(block.page, command, output, printed)


def run_command(command: str, programs: Path) -> tuple[int, str]:
    """Exit code, and what a terminal would show."""
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(
        shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment(programs),
    )  # fmt: skip
    return done.returncode, done.stdout


def run_ranks(command: str, launcher: Launcher) -> tuple[int, str]:
    """Exit code, and what all ranks print, of `torchrun --nproc-per-node N SCRIPT ...`."""
    _, option, num_ranks, script, *arguments = shlex.split(command, comments=True)
    assert option == "--nproc-per-node", command
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=Path.cwd()))
    codes, output = launcher.run(script, *arguments, num_ranks=int(num_ranks), logs=logs)
    return max(map(abs, codes)), output


def environment(programs: Path) -> dict[str, str]:
    """This process's, with the reader's programs first, and what a page installs in place of the tree."""
    installed = Path.cwd() / ".installed"
    installed.mkdir(exist_ok=True)  # Python would not look again where no folder was.
    own = torchrun_environment(str(installed)) | {"PIP_TARGET": str(installed)}
    own |= {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")}  # Its own server, or nothing.
    own |= {"NUMBA_CACHE_DIR": str(programs.parent / "kernels")}
    return own | {"PATH": os.pathsep.join([str(programs), os.environ["PATH"]])}


def check_output(page: str, command: str, output: str, printed: str) -> None:
    """The output must be what the page prints. With UPDATE_DOCS=1 in the environment, the page is changed instead."""
    if same(output, printed):
        return
    if os.environ.get("UPDATE_DOCS") and "...\n" not in printed:
        path = ROOT / page
        path.write_text(path.read_text(encoding="utf-8").replace(printed, output, 1), encoding="utf-8")
        return
    raise AssertionError(f"{page}: $ {command}\nprints\n{output}\nand not\n{printed}\nTo accept it: UPDATE_DOCS=1")


def same(output: str, printed: str) -> bool:
    """Whether both have the same lines but for times, and for what a line `...` leaves out."""
    lines, wanted = (
        [SECONDS.sub("0 s", line.rstrip()) for line in text.strip("\n").splitlines()] for text in (output, printed)
    )
    return follows(lines, wanted)


def follows(lines: list[str], wanted: list[str]) -> bool:
    """Whether the lines are those wanted, where `...` stands for any number of them."""
    if not wanted:
        return not lines
    if wanted[0] == "...":
        return any(follows(lines[begin:], wanted[1:]) for begin in range(len(lines) + 1))
    return bool(lines) and lines[0] == wanted[0] and follows(lines[1:], wanted[1:])
