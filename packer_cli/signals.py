"""Ctrl-C and SIGTERM: both end a command at once, and leave it to be run again.

Both raise KeyboardInterrupt, so that what cleans up after one cleans up after the other. A solver that runs for a
minute would delay that, and so may a slow disk: after `GRACE` seconds a thread ends the process. A thread of the run
can stop it in the same way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

INSIDE = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
"""The signal by which `stoppable` stops a run: nobody else sends it, and no shell has commands ignore it."""
STOPS = (signal.SIGINT, signal.SIGTERM)
GRACE = 5.0
AGAIN = 0.01
"""Seconds after which a signal is sent again, if Python dropped its KeyboardInterrupt."""


class StopSignals:
    """The first signal that came."""

    number: int | None = None
    """None: none came."""


_wakeup: int | None = None


@contextmanager
def stop_signals(give_up: Callable[[int], NoReturn]) -> Iterator[StopSignals]:
    """Raise KeyboardInterrupt at each of STOPS while the block runs; outside the main thread, do nothing.

    A signal that the process ignores, as SIGINT in the background of a shell, stays ignored.

    Yields what came from outside: a run that is stopped from inside raises an error of its own.

    Args:
        give_up: called on another thread, with the signal, if the block does not end in time; ends the process.
    """
    global _wakeup
    stop = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def interrupt(number: int, frame: object) -> None:
        if stop.number is None:
            stop.number = number
        raise KeyboardInterrupt

    def dropped(what: UnraisableHookArgs) -> None:
        """Send Ctrl-C again if it was raised in a finalizer or a weak reference's callback, which cannot raise."""
        if isinstance(what.exc_value, KeyboardInterrupt):
            threading.Timer(AGAIN, send_again).start()
        else:
            usual_hook(what)

    def send_again() -> None:
        if stop.number is not None and not is_over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, stop.number)

    def watch() -> None:
        while seen := os.read(reading, 1):
            if seen[0] in (*STOPS, INSIDE):
                if not is_over.wait(GRACE):
                    give_up(seen[0])
                return

    is_over = threading.Event()
    reading, _wakeup = os.pipe()
    os.set_blocking(_wakeup, False)
    usual = {number: signal.getsignal(number) for number in STOPS}
    replaced = [number for number in STOPS if usual[number] in (signal.SIG_DFL, signal.default_int_handler)]
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)
    usual_hook, sys.unraisablehook = sys.unraisablehook, dropped
    for number in replaced:
        signal.signal(number, interrupt)
    try:
        yield stop
    finally:
        is_over.set()
        sys.unraisablehook = usual_hook
        for number in replaced:
            signal.signal(number, usual[number])
        signal.set_wakeup_fd(before)
        os.close(_wakeup)
        _wakeup = None
        watcher.join()
        os.close(reading)


def _forget_in_fork() -> None:
    """Forget the signals in a forked process, which is not the command: a signal to it must not end its parent."""
    global _wakeup
    if _wakeup is not None:
        _wakeup = None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_fork)


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
