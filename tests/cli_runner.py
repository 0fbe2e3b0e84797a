"""Run the command line: in this process, or as one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

HBPACK = [sys.executable, "-m", "packer_cli"]
"""The command line as a process of its own."""


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run(main: Callable[[], None], *arguments: object) -> Done:
    """What a shell would see of `hbpack ARGUMENTS`; one worker is the default, which needs no process of its own."""
    from packer_cli.commands import engines

    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        patch.object(sys, "argv", ["hbpack", *map(str, arguments)]),
        patch.object(engines, "default_workers", lambda: 1),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def pack_words(repo: Path, *names: str) -> list[str]:
    """`pack` of files of the bundled sample, for eight GPUs."""
    sample = repo / "examples" / "sample"
    inputs = [str(sample / name) for name in names]
    return ["pack", *inputs, "--tokenizer", str(sample / "tokenizer"), "--groups", "1k,8k:4", "--gpus", "8"]


def run_process(words: Sequence[str], output: Path, **environment: str) -> Path:
    """Run a command whose last word is `--output` as a process of its own, which must succeed."""
    subprocess.run([*HBPACK, *words, output], check=True, capture_output=True, env=os.environ | environment)
    return output
