"""Work that goes on beside the stages, for what it leaves on disk alone."""

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
    """Call each function in a process of its own; they have ended when the block has, and are killed if it fails.

    What goes wrong in them is lost: they must be such that everything works without them. They are forked from this
    process where that is safe, so that nothing is imported again.
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
    gc.disable()  # A compiler makes many objects, and this process ends soon.
    with suppress(Exception):
        function()
