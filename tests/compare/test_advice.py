"""The sentence below a comparison of strategies."""

from __future__ import annotations

from packer_cli.compare.savings import advice, preferred
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import OverallFigures


def epoch(hours, **parts):
    """On one GPU; what is not named it computes."""
    split = dict.fromkeys(PARTS, 0.0) | parts
    split["compute"] = hours - sum(split.values())
    return OverallFigures(
        seconds=hours * 3600, gpu_hours=hours, gpu_days=hours / 24, num_gpus=1, num_iterations=1, num_steps=1,
        iteration_seconds=hours * 3600, step_seconds=hours * 3600, tokens_per_gpu_second=1.0,
        useful=split["compute"] / hours, split=split,
    )  # fmt: skip


def test_it_names_the_fastest_and_why_the_slowest_is_slower():
    assert advice({"naive": epoch(2.0, waiting=0.9), "balanced": epoch(1.0, waiting=0.01), "hbp": epoch(1.5)}) == (
        "Take balanced: an epoch of 1.00 h, 2.00 times as fast as naive, whose GPUs wait for slower ones for 45% of "
        "their time (balanced: 1.0%)."
    )


def test_what_asks_for_more_must_gain_more():
    close = {"naive": epoch(2.0), "balanced": epoch(1.005), "flexsp:all": epoch(1.0)}
    assert advice(close) == (
        "Take balanced: an epoch of 1.00 h, 1.99 times as fast as naive. Within 1% of it: flexsp:all."
    )
    assert advice({**close, "flexsp:all": epoch(0.9)}) == (
        "Take flexsp:all: an epoch of 54.0 min, 2.22 times as fast as naive. Your trainer must run replicas of unlike "
        "SP degrees side by side in one iteration; without that, take balanced (1.00 h)."
    )


def test_one_alone():
    assert advice({"balanced": epoch(12.0)}) == "Take balanced: an epoch of 12.0 h."
    assert advice({"balanced": epoch(1234.5)}) == "Take balanced: an epoch of 51.4 days."


def test_of_equal_epochs_the_one_for_every_trainer_is_taken():
    strategies = {"flexsp:all": "flexsp:all", "balanced": "balanced", "isf": "balanced"}
    assert preferred({"flexsp:all": 1.0, "balanced": 1.009, "isf": 1.005}, strategies) == "isf"
    assert preferred({"flexsp:all": 1.0, "balanced": 1.02}, strategies) == "flexsp:all"
