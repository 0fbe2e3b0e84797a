import os
import signal
import time

import pytest

from packer_cli.signals import stop_signals


def drop_and_wait():
    Dropping()
    time.sleep(20)


class Dropping:
    """Gets a signal where Python drops what a handler raises."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_a_finalizer_drops_comes_again():
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), stop_signals(pytest.fail) as stop:
        drop_and_wait()
    assert stop.number == signal.SIGINT
    assert time.monotonic() - begin < 5


def test_other_errors_of_finalizers_reach_the_usual_hook(monkeypatch):
    class Failing:
        def __del__(self):
            raise ValueError("of a finalizer")

    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    with stop_signals(pytest.fail):
        Failing()
    assert "of a finalizer" in str(seen[0].exc_value)
    assert len(seen) == 1
