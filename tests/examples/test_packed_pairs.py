"""`packed(DPOTrainer)` and `packed(RewardTrainer)` train as TRL's own classes on padded batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tests.examples.launcher import Launcher
from tests.examples.packed_pairs import NUM_PAIRS, NUM_STEPS, WAYS

SCRIPT = Path(__file__).with_name("packed_pairs.py")
FEW = ("sigmoid", "ipo", "lora", "precomputed", "reward", "sft")
"""Which run on two processes, too."""
OF_PAIRS = ("rewards/", "logps/", "accuracy", "margin", "min_reward", "mean_reward", "max_reward")
"""Metrics that are exact."""

Run = Callable[..., dict[str, list[dict[str, float]]]]


@pytest.fixture(scope="module")
def run_ways(launcher: Launcher, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What a kind of trainer logs in each step, by way."""

    def run(kind: str, *ways: str, num_ranks: int = 1) -> dict[str, list[dict[str, float]]]:
        folder, tokenizer = tmp_path_factory.mktemp("pairs"), repo / "examples/sample/tokenizer"
        arguments = (folder, ",".join(ways), tokenizer, kind)
        codes, text = launcher.run(SCRIPT, *arguments, num_ranks=num_ranks, logs=folder / "logs")
        assert codes == [0] * num_ranks, text
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for line in text.splitlines():
            if line.startswith('{"way"'):
                logs = json.loads(line)
                if "grad_norm" in logs:
                    found[logs["way"]].append(logs)
        assert all(len(logs) == NUM_STEPS for logs in found.values())
        return found

    return run


@pytest.fixture(scope="module")
def stock(run_ways: Run) -> dict[str, list[dict[str, float]]]:
    return run_ways("stock", *WAYS)


def assert_same(found: Any, wanted: Any) -> None:
    """As all runs compute in float64."""
    for way, logs in found.items():
        for each, other in zip(logs, wanted[way], strict=True):
            for name, value in other.items():
                if name in ("loss", "grad_norm"):
                    is_exact = (
                        name == "grad_norm" and way != "sft"
                    )  # Losses are logged, and that one made, in float32.
                    assert each[name] == pytest.approx(value, rel=1e-9 if is_exact else 1e-6), (way, name)
                elif name.startswith(OF_PAIRS):
                    # Equal completions have rewards that are equal but for their last digit, which decides.
                    ties = 1 / NUM_PAIRS if name.endswith(("accuracy", "accuracies")) else 0.0
                    assert each[name] == pytest.approx(value, rel=1e-5, abs=ties + 1e-5), (way, name)


def test_one_process_trains_as_stock_trainers_on_padded_batches(run_ways: Run, stock: Any) -> None:
    found = run_ways("packed", *WAYS)
    assert_same(found, stock)
    losses = [logs["loss"] for logs in found["sigmoid"]]
    assert len({round(loss, 3) for loss in losses}) == NUM_STEPS
    # A prompt runs once.
    assert found["sigmoid"][-1]["num_tokens"] < 0.7 * stock["sigmoid"][-1]["num_tokens"]


def test_two_processes_with_unlike_numbers_of_pairs_train_as_one(run_ways: Run, stock: Any) -> None:
    """In some iterations a rank has no pair at all."""
    assert_same(run_ways("packed", *FEW, num_ranks=2), stock)


def test_two_processes_that_share_the_weights_train_as_one(run_ways: Run, stock: Any) -> None:
    """By FSDP2, the reference model, too."""
    assert_same(run_ways("sharded", *FEW, num_ranks=2), stock)
