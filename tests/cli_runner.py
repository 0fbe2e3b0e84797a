"""Run the command line in this process: exit code, stdout, stderr."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run(main: Callable[[], None], *arguments: object) -> Done:
    """What a shell would see of `hbpack ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with patch.object(sys, "argv", ["hbpack", *map(str, arguments)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
