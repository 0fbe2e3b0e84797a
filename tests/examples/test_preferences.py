"""The plain loops for preferences run as scripts; tests/loader/test_tree_processes.py compares their gradients."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import pytest

pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.examples.launcher import Launcher
from tests.loader.trees import PAIRS, write_pairs

MODELS = {"dpo_loop": AutoModelForCausalLM, "reward_loop": AutoModelForSequenceClassification}


@pytest.mark.parametrize("name", MODELS)
def test_the_chosen_samples_win(repo: Path, launcher: Launcher, model_folder: Path, tmp_path: Path, name: str) -> None:
    packed = write_pairs(tmp_path / "set", [PAIRS[: 1 + i % 3] for i in range(5)], num_gpus=2)
    codes, text = launcher.run(
        repo / "examples" / f"{name}.py", packed.path, "--model", model_folder, "--max-steps", 12, "--lr", 1e-3,
        "--output", tmp_path / "final", num_ranks=2, logs=tmp_path / "logs",
    )  # fmt: skip
    assert not any(codes), text
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", text, re.MULTILINE)]
    assert len(losses) == 12
    if name == "dpo_loop":  # It begins as the reference model.
        assert losses[0] == pytest.approx(log(2), rel=1e-5)
    assert losses[-1] < 0.9 * losses[0]
    MODELS[name].from_pretrained(tmp_path / "final")
