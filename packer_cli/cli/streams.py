"""The streams of the process: only results are on stdout, and what becomes of stderr stops no work.

Call `own_streams` where the process is hbpack's own: it changes descriptors, which all threads share.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from packer_cli.errors import RunError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class StdoutError(RunError):
    """Stdout is closed, full or broken."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {'it is closed' if error.errno == errno.EBADF else error.strerror}")
        self.is_unread = error.errno == errno.EPIPE
        """Whether the reader, such as `head`, has closed the pipe."""


class _Results(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise StdoutError(error) from None


class _Messages(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:  # Who closed it does not want them.
            return memoryview(data).nbytes


def own_streams() -> None:
    """Set up stdout and stderr.

    - Results go to a copy of stdout, and the descriptor itself becomes stderr. Libraries in C print to it, and so may
      worker processes.
    - A closed stream gets /dev/null, so that no file that is opened later takes its number, here or in a worker.
      Writing to a closed stdout is still an error.
    - An error of stderr is ignored.
    """
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):  # Stdin and stdout cannot be used.
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)
    results = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.__stdout__ = _text(_Results(results, "w"), sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(_Messages(2, "w", closefd=False), sys.stderr)  # type: ignore[misc]


def _text(raw: io.FileIO, usual: TextIO | None) -> io.TextIOWrapper:
    encoding, errors = (usual.encoding, usual.errors) if usual else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty() or raw.fileno() == 2)
