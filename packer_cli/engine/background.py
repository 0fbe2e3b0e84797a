"""Background work whose only result is what it leaves on disk, such as compiled kernels."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from packer_cli.engine.processes import start_worker


@contextmanager
def in_background(functions: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Call each function in its own process while the block runs.

    The block waits for the processes at its end, and kills them if it fails. Their errors are ignored, so everything
    must work without them. On Linux they are forked from this process, and so import nothing again.
    """
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    processes = [context.Process(target=_run, args=(function,), daemon=True) for function in functions]
    started = []
    try:
        with suppress(OSError):
            for process in processes:
                process.start()
                started.append(process)
        yield
        for process in started:
            process.join()
    finally:
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()


def _run(function: Callable[[], None]) -> None:
    start_worker()
    gc.disable()  # A compiler creates many objects, and this process ends soon.
    with suppress(Exception):
        function()
