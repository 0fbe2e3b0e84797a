"""Tasks on worker processes: every outcome once, and a crash is one of them."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from packer_cli.engine.local import LocalEngine
from packer_cli.engine.processes import Died
from packer_cli.errors import InputError, RunError


class OddError(Exception):
    """It cannot be made of what it was pickled to."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{number} or\n{text}")


def task(number: int) -> int:
    if number < 0:
        os.kill(os.getpid(), -number)
    if number == 13:
        raise InputError("thirteen")
    if number == 14:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")
    if number == 15:
        raise OddError(7, "eleven")
    return os.getpid() if number == 0 else number * number


SEGV = -int(signal.SIGSEGV)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_crash_is_the_outcome_of_its_task_alone(workers: int) -> None:
    tasks = [1, 2, SEGV, 3, 4, SEGV, 5]
    with LocalEngine(workers) as engine:
        for _ in range(2):  # The workers that are left serve the next run.
            found = dict(engine.run(task, tasks, is_risky=True))
            assert found == {0: 1, 1: 4, 2: Died(SEGV), 3: 9, 4: 16, 5: Died(SEGV), 6: 25}
    assert Died(SEGV).signal_name == "SIGSEGV"
    assert str(Died(SEGV)) == "its process was ended by SIGSEGV"


def test_one_worker_is_this_process_but_for_risky_tasks() -> None:
    with LocalEngine(1) as engine:
        assert list(engine.run(task, [0])) == [(0, os.getpid())]
        ((_, other),) = engine.run(task, [0], is_risky=True)
        assert other != os.getpid()
    assert not psutil.pid_exists(other)


@pytest.mark.parametrize(("number", "error"), [(13, InputError), (14, UnicodeDecodeError)])
def test_errors_come_over(number: int, error: type[Exception]) -> None:
    with pytest.raises(error) as caught, LocalEngine(2) as engine:
        list(engine.run(task, [1, number, 2]))
    assert "in task" in caught.value.__notes__[0]


def test_an_error_that_cannot_come_over_gives_its_text() -> None:
    with pytest.raises(RunError) as caught, LocalEngine(2) as engine:
        list(engine.run(task, [1, 15, 2]))
    assert str(caught.value) == "OddError: 7 or eleven"
    assert "in task" in caught.value.__notes__[0]


def test_a_killed_worker_ends_the_run() -> None:
    with pytest.raises(RunError) as caught, LocalEngine(2) as engine:
        list(engine.run(task, [0, -int(signal.SIGKILL), 2]))
    assert str(caught.value) == (
        "a worker process was killed, perhaps for want of memory; run the same command again to go on, with fewer "
        "--workers"
    )


def test_what_comes_from_outside_is_no_crash_of_the_task() -> None:
    with pytest.raises(RunError) as caught, LocalEngine(2) as engine:
        list(engine.run(task, [-int(signal.SIGUSR1)]))
    reason = "its process was ended by SIGUSR1; run the same command again to go on"
    assert str(caught.value) == f"a worker process failed: {reason}"


def test_a_run_that_is_left_takes_its_workers_along() -> None:
    with LocalEngine(2) as engine:
        outcomes = engine.run(task, [0, 0, 0, 0])
        pids = {next(outcomes)[1]}
    assert all(not psutil.pid_exists(pid) for pid in pids)
    assert not engine._busy
