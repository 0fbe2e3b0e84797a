"""A way to stop a run from one of its threads, as from outside Ctrl-C does (`packer_cli.engine.signals`)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INSIDE = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
"""The signal that stops a run. Nobody else sends it; a shell has SIGINT ignored by commands in the background."""


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt in the main thread while the block runs there.

    Any thread may call the function. Unlike SIGINT, it also works where SIGINT is ignored. In a block of another
    thread, it does nothing.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield lambda: None
        return
    is_over = False

    def interrupt(number: int, frame: object) -> None:
        if not is_over:
            raise KeyboardInterrupt

    usual = signal.signal(INSIDE, interrupt)
    try:
        yield lambda: signal.pthread_kill(main.ident or 0, INSIDE)
    finally:
        is_over = True
        signal.signal(INSIDE, usual)
