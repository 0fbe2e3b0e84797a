"""What every test may use."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Numba compiles inside the first example, so a deadline would measure the compiler.
settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("default")

for name in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
    os.environ.pop(name, None)  # The tests may run in an array job, whose commands would each do a share.
# The tensors of the tests are tiny: more threads of torch would only wait for each other, at full speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from all that is imported: now, later, and in the processes forked later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
