"""The examples as a user starts them on a GPU: bfloat16, FSDP2 and DDP over NCCL, beside one process on a CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.examples.reference import LEARNING_RATE, train  # noqa: E402
from tests.examples.test_examples import OWN_GPU, TRAINERS, lines_of  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pytorch_fsdp", ["--parallel", "fsdp"]),
        ("pytorch_fsdp", ["--parallel", "ddp"]),
        ("transformers_trainer", []),
        ("trl_sft", []),
        ("accelerate_loop", []),
        ("lightning_module", []),
    ],
)
def test_it_trains_in_bfloat16(
    repo: Path, pack: Callable[..., Path], model_folder: Path, tmp_path: Path, name: str, options: list[str]
) -> None:
    if find_spec(TRAINERS[name]) is None:
        pytest.skip(f"{TRAINERS[name]} is not installed: see docs/trainers.md")
    packed = pack(OWN_GPU, 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [
            sys.executable, repo / "examples" / f"{name}.py", packed, "--model", model_folder, "--max-steps",
            str(STEPS), "--output", tmp_path / "run", "--lr", str(LEARNING_RATE), *options,
        ],
        env=os.environ | of_ranks | {"MASTER_ADDR": "127.0.0.1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(
            [str(repo), os.environ.get("PYTHONPATH", "")]
        )},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    right, lines = train(packed, model_folder, STEPS), lines_of(done.stdout)
    assert [step for step, _, _ in lines] == list(range(1, STEPS + 1))
    assert [loss for _, loss, _ in lines] == pytest.approx(right.losses, rel=5e-3)
    assert [norm for _, _, norm in lines] == pytest.approx(right.norms, rel=2e-2)
