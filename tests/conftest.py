"""What every test may use."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from packer_cli.engine.local import default_workers

# Numba compiles inside the first example, so a deadline would measure the compiler.
settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("default")

for name in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
    os.environ.pop(name, None)  # The tests may run in an array job, whose commands would each do a share.
os.fsync = os.fstat  # type: ignore[assignment]  # No test loses power, and waiting for the disk took 40 s of the suite.
# The tensors of the tests are tiny: more threads of torch would only wait for each other, at full speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from all that is imported: now, later, and in the processes forked later.

    Later it comes as seldom as in the command line's process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two more than there are CPUs, since many tests wait for a time, a disk or another process."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else default_workers() + 2


@pytest.fixture(scope="session", autouse=True)
def compiling_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of the workers that need a kernel, one compiles it, and then the others load it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    folder, compile_kernel = tmp_path_factory.getbasetemp().parent, Dispatcher.compile

    def compile_alone(kernel: Any, signature: Any) -> Any:
        path = folder / f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}.lock"
        with global_compiler_lock, path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(kernel, signature)

    Dispatcher.compile = compile_alone


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora and tokenizers, where there is one."""
    folder = Path(os.environ.get("HBPACK_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("no shared data: set HBPACK_SHARED to the folder that holds data/")
    return folder


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture
def interruptible() -> Generator[None]:
    """Ctrl-C reaches this process, and what it starts, even where a shell runs the tests in the background."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture
def rows_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison plans its rows here: in a process of its own each would load its kernels anew."""
    from packer_cli.compare import comparison
    from packer_cli.engine.local import attempt

    def run_here(function: Any, tasks: Sequence[Any], *_: object) -> Iterator[tuple[int, Any]]:
        return ((place, attempt(function, task)) for place, task in enumerate(tasks))

    monkeypatch.setattr(comparison, "run_isolated", run_here)
