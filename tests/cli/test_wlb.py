"""`--strategy wlb` in every command that plans, reads or changes a packed set."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.commands.rebalance import plan_in_force
from packer_cli.plan.core.types import FILLER
from packer_cli.shards.plan_file import read_plan
from tests.reference import home

REPLICAS = ("--parallel", "tp=2,pp=2", "--gpus", 8)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    values = np.random.default_rng(0).lognormal(5, 1.5, 8000)
    np.save(path, np.clip(values, 1, 8192).astype(np.int32))
    return path


@pytest.fixture
def packed(hbpack, sample, tokenizer, tmp_path):
    output = tmp_path / "out"
    done = hbpack(
        "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", tokenizer, "--strategy", "wlb",
        "--groups", "8k", "--packing", "delay:micro_batches=3", *REPLICAS, "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output, done.stdout


def samples_of_steps(plan, schedule):
    found = [[] for _ in range(schedule.num_steps)]
    for iteration, pack in zip(schedule.slot_iteration.tolist(), schedule.slot_pack.tolist(), strict=True):
        if pack != FILLER:
            own = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
            found[schedule.iteration_step[iteration]] += own.tolist()
    return [sorted(step) for step in found]


def test_stats_show_the_imbalance_and_its_price(hbpack, lengths):
    given = ("stats", lengths, "--strategy", "wlb", "--parallel", "tp=8,cp=2,pp=4", "--gpus", 64)
    done = hbpack(*given, "--json")
    assert (done.code, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    overall, baseline = figures["overall"], figures["baseline"]
    assert figures["groups"][0]["name"] == "g0-16384-sp1-cp2-tp8-pp4"
    assert 1 < overall["imbalance"] < baseline["imbalance"]
    assert 0 < overall["mean_delay"] <= 0.6
    assert overall["max_delay"] == max(queue["max_delay"] for queue in overall["queues"])
    lines = hbpack(*given).stdout.splitlines()
    (delay,) = [line for line in lines if line.startswith("  delay: a token runs ")]
    assert f"{overall['mean_delay']:.2f} steps from its arrival on average, {overall['max_delay']} at most" in delay
    assert sum(line.startswith("  samples of ") for line in lines) == len(overall["queues"])
    assert any(line.startswith("  baseline: original packing: ") for line in lines)
    done = hbpack("stats", lengths, "--strategy", "wlb")
    assert done.code == 2
    assert (
        done.stderr
        == "error: --strategy is for planning lengths, which also needs --gpus; give it, or leave --strategy out\n"
    )
    done = hbpack("stats", lengths, "--strategy", "wlb", "--gpus", 8, "--max-length", "1k", "--overflow", "error")
    assert done.code == 1
    assert "over the largest group's 1024;" in done.stderr


def test_a_set_is_sound_and_keeps_its_steps_on_other_gpus(hbpack, packed):
    folder, printed = packed
    assert "delay: a token runs " in printed
    assert "delay: a token runs " in hbpack("stats", folder).stdout
    assert hbpack("verify", folder).code == 0
    assert "runs 3 micro-batches in iteration 0" in hbpack("show", folder).stdout
    before, _ = read_plan(folder / "plan.arrow")
    done = hbpack("rebalance", folder, "--gpus", 12, "--from-step", 2)
    assert done.code == 0
    assert "--global-tokens" not in done.stderr
    assert hbpack("verify", folder).code == 0
    steps = samples_of_steps(before, before.epochs[0])
    after = plan_in_force(home(folder))
    assert after.num_gpus == 12
    (schedule,) = after.epochs
    assert sorted(samples_of_steps(after, schedule)) == sorted(steps)
    # How late samples are in a set that was dealt again is not known.
    assert "delay: " not in hbpack("stats", folder).stdout
    done = hbpack("rebalance", folder, "--gpus", 8, "--global-tokens", "64k")
    assert done.code == 2
    assert done.stderr == (
        "error: --global-tokens has no effect on a set of --strategy wlb, whose steps stay as they were planned; "
        "leave it out\n"
    )
