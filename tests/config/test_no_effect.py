"""No option without effect: another plan, or an error that says so."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import packer_cli
from packer_cli.cli.main import main
from packer_cli.config import PlanConfig
from packer_cli.config.fields import GIVE, GpuConfig
from packer_cli.errors import ConfigError, HbpackError
from packer_cli.plan.strategies.registry import PACKED, STRATEGIES
from tests.cli_runner import run
from tests.golden.hashes import hash_of_plan, lengths_of_all_sizes

MODEL = {"model": str(Path(__file__).parents[2] / "examples/sample/model"), "gpu": "h100"}
GROUPS = {"balanced": "1k:1,8k:4", "hbp": "1k:1,8k:4", "flexsp": "8k:4"}
"""Of strategies that use more than the longest, or more than its degree."""
STEPS = {"global_tokens": "64k"}
OPTIONS = {
    "align": ({}, "16"),
    "balance": ({}, "window:2"),
    "cost": ({}, "1,24576"),
    "cp_sharding": ({"parallel": "cp=2", "groups": "8k:1"}, "document"),
    "curriculum_steps": ({}, 2),
    "epochs": ({}, 2),
    "fill": ({}, "longest"),
    "global_tokens": ({}, "128k"),
    "group_algorithm": ({}, "hbp"),
    "lockstep": (STEPS, "1"),
    "mask": ({}, "causal"),
    "max_groups": ({}, 1),
    "max_length": ({}, "2k"),
    "max_path_tokens": ({}, "4x"),
    "max_samples": ({}, 2),
    "overflow": ({}, "drop"),
    "packing": ({}, "bfd"),
    "parallel": ({}, "tp=2"),
    "seed": ({}, 1),
    "step_mix": (STEPS, "stratified"),
}
"""What must be given with an option, and a value other than its default."""
OWN_VALUES = {
    ("packing", "wlb"): "greedy",
    ("packing", "flexsp"): "search:trials=1",
    ("packing", "hydraulis"): "published",
    ("packing", "fixed-4d"): "greedy:batches=2",
    ("packing", "plain-4d"): "original",
    ("cost", "wlb"): "quadratic",
    ("cost", "fixed-4d"): "quadratic",
    ("cost", "plain-4d"): "quadratic",
    ("parallel", "hydraulis"): "tp=1,cp=1,pp=2",
    ("lockstep", "bytescale"): "all",
    ("lockstep", "megatron"): "all",
    ("lockstep", "dp-balanced"): "all",
}
SETTINGS = GpuConfig.model_fields.keys() | {"strategy", "groups", "gpus"}
"""What is not tried: what every plan is given."""


def planned(name: str, options: dict[str, object]) -> str:
    return planned_once(name, tuple(sorted(options.items())))


@cache
def planned_once(name: str, options: tuple[tuple[str, object], ...]) -> str:
    needs = STRATEGIES[name].needs
    given = {"groups": GROUPS.get(name, "8k:1"), "gpus": 8, "strategy": name}
    given |= MODEL if "a cost model" in needs else {}
    given |= {"global_tokens": "64k"} if "tokens of a step" in needs else {}
    return hash_of_plan(packer_cli.plan(lengths_of_all_sizes(), **(given | dict(options))).arrays)


def test_every_option_is_tried():
    assert OPTIONS.keys() == PlanConfig.model_fields.keys() - SETTINGS


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_changes_the_plan_or_is_refused(option, name):
    beside, value = OPTIONS[option]
    beside = {other: given for other, given in beside.items() if other not in STRATEGIES[name].ignores}
    value = OWN_VALUES.get((option, name), value)
    if option == "cost" and "a stream" in STRATEGIES[name].needs:
        beside = {"global_tokens": "256k"}  # Else a replica has one micro-batch a step, and there is none to order.
    if (option, name) == ("packing", "flexsp"):
        # Else the fewest micro-batches win.
        beside = {"groups": "8k:8", "gpu": "h100:nvlink=100MB", "assume": "exposed_gather=0"}
    before, refused = planned(name, beside), ""
    try:
        after = planned(name, {**beside, option: value})
    except ConfigError as error:
        refused, after = str(error), ""
    if refused:
        assert f"--{option.replace('_', '-')} " in refused
        assert "has no effect" in refused or "does not support" in refused
    assert after != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"groups": "8k:1", "fill": "greedy"},
            ("--fill has no effect with one length group: there are no shorter ones to fill its packs; leave it out"),
        ),
        (
            {"groups": "8k:1", "gpus": 1, "balance": "window:2+refine"},
            (
                "--balance window:2+refine: refine exchanges samples between replicas, and there is one; give "
                "--balance window:2"
            ),
        ),
        (
            {"groups": "8k:1", "max_groups": 2},
            "--max-groups has no effect with named --groups; give --groups auto, or leave it out",
        ),
        (
            {"groups": "8k:1", "cp_sharding": "sequence"},
            "--cp-sharding has no effect without context parallelism; give --parallel cp=N, or leave it out",
        ),
        (
            {"groups": "1k:1,8k:4", "strategy": "naive"},
            "--groups: --strategy naive plans with 8k:4, and the rest of 1k:1,8k:4 has no effect; give 8k:4",
        ),
        (
            {"groups": "8k:1,12k:2,32k:4", "gpus": 12, "strategy": "flexsp:all"},
            (
                "--groups: --strategy flexsp:all plans with 8k:1,16k:2,32k:4, and the rest of 8k:1,12k:2,32k:4 has no "
                "effect; give 8k:1,32k:4"
            ),
        ),
        (
            {"groups": "8k:1:16", "strategy": "hydraulis", "global_tokens": "64k"},
            "--groups: --strategy hydraulis plans with 8k:1, and the rest of 8k:1:16 has no effect; give 8k:1",
        ),
        (
            {"groups": "8k:2", "strategy": "flexsp:all", "balance": "sort", **MODEL},
            (
                "--balance sort has no effect on --strategy flexsp:all, which balances predicted time, over the whole "
                "data set or, with window:K, over K iterations at a time; give window:K, or leave it out"
            ),
        ),
        (
            {"groups": "8k:2", "strategy": "flexsp:all", "balance": "window:4+refine", **MODEL},
            "--balance window:4+refine: refine has no effect on --strategy flexsp:all; give --balance window:4",
        ),
        (
            {"groups": "auto", "cp_sharding": "document", **MODEL},
            "--cp-sharding has no effect without context parallelism; give --parallel cp=N, or leave it out",
        ),
        (
            {"groups": "8k:2", "strategy": "flexsp:all", "cost": "1,24576", **MODEL},
            "--cost has no effect on --strategy flexsp:all, which evens out predicted time; leave it out",
        ),
        (
            {"strategy": "wlb", "packing": "delay:delay=1,thresholds=2k"},
            "--packing delay:delay=1,thresholds=2k: delay has no effect beside thresholds; leave one of them out",
        ),
        (
            {"strategy": "wlb", "max_groups": 2},
            "--max-groups has no effect on --strategy wlb, whose one group is the context window; leave it out",
        ),
    ],
)
def test_what_is_said(options, message):
    with pytest.raises(HbpackError) as error:
        packer_cli.plan([100, 8000], **{"gpus": 8, **options})
    assert str(error.value) == message


def test_a_comparison_needs_a_row_that_uses_an_option():
    lengths = [100, 8000] * 20
    with pytest.raises(HbpackError) as error:
        packer_cli.compare(lengths, groups="1k:1,8k:1", gpus=8, fill="greedy", strategies="naive,wlb")
    assert str(error.value).startswith("--fill has no effect")
    rows = packer_cli.compare(lengths, groups="1k:1,8k:1", gpus=8, fill="greedy", strategies="balanced,wlb").rows
    assert [sorted(row.options) for row in rows] == [
        ["balance", "fill", "groups", "overflow", "packing", "strategy"],
        ["groups", "overflow", "packing", "strategy"],
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["report", "LENGTHS", "--step-seconds", "1"],
            f"--step-seconds has no effect without predicted times; give {GIVE}, or leave it out",
        ),
        (
            ["report", "LENGTHS", "--pad-to", "row"],
            f"--pad-to has no effect without predicted times; give {GIVE}, or leave it out",
        ),
        (
            ["simulate", "OUT", "--model", "config.json", "--gpu", "h100", "--trace-steps", "3"],
            "--trace-steps has no effect without --trace; give that, or leave it out",
        ),
    ],
)
def test_what_commands_say(tmp_path, words, message):
    np.save(tmp_path / "lengths.npy", np.array([5, 7]))
    words = [str(tmp_path / "lengths.npy") if word == "LENGTHS" else word for word in words]
    assert run(main, *words) == (2, "", f"error: {message}\n")


def test_a_config_file_serves_several_commands(tmp_path):
    """What another command reads is no error in it."""
    np.save(tmp_path / "lengths.npy", np.array([5, 7] * 9))
    (tmp_path / "all.yaml").write_text(
        "groups: 8:1\ngpus: 2\nmax-groups: 2\nstep-seconds: 1\ntrace-steps: 3\nworkers: 1\n"
    )
    page = tmp_path / "page.html"
    done = run(
        main, "report", tmp_path / "lengths.npy", "--config", tmp_path / "all.yaml", "-o", page, "--strategies", "none"
    )
    assert done.code == 0, done.stderr


def test_what_a_comparison_advises_has_effect(tmp_path):
    """Groups that the strategy does not use are left out of the next command."""
    np.save(tmp_path / "lengths.npy", lengths_of_all_sizes())
    given = (tmp_path / "lengths.npy", "--groups", "1k:1,8k:4", "--gpus", 8, "--strategies", "naive", "--workers", 1)
    last = run(main, "compare", *given).stdout.rstrip().splitlines()[-1]
    assert last.endswith("or hbpack pack with the same options and --strategy naive --groups 8k:4")
    again = ("--strategy", "naive", "--groups", "8k:4", "--gpus", 8)
    assert run(main, "stats", tmp_path / "lengths.npy", *again).code == 0


@pytest.mark.parametrize(("groups", "gpus"), [("8k:1:2,32k:8:4", 8), ("18k:3,32k:8", 24)])
def test_a_group_that_decides_what_fits_one_gpu_has_an_effect(groups, gpus):
    config = PlanConfig(groups=groups, gpus=gpus, strategy="flexsp:all")
    assert config.groups != PlanConfig(groups=groups.split(",")[1], gpus=gpus, strategy="flexsp:all").groups


def test_the_next_command_for_a_stream_names_its_window(tmp_path):
    np.save(tmp_path / "lengths.npy", lengths_of_all_sizes())
    model = ("--model", MODEL["model"], "--gpu", "h100", "--gpus", 8)
    given = ("--groups", "auto", "--max-groups", 2, *model, "--strategies", "wlb", "--workers", 1)
    last = run(main, "compare", tmp_path / "lengths.npy", *given).stdout.rstrip().splitlines()[-1]
    assert re.search(r"same options and --strategy wlb --groups \S+, without --max-groups$", last)


def test_a_strategy_with_groups_of_its_own_is_compared_with_aligned_samples():
    """Its groups are made of those that were given, and aligned once."""
    given = {"groups": "512:1,10000:8", "gpus": 8, "align": 16, **MODEL}
    rows = packer_cli.compare(lengths_of_all_sizes(), **given, strategies="flexsp:all,balanced").rows
    alone = packer_cli.plan(lengths_of_all_sizes(), **{**given, "groups": "10000:8"}, strategy="flexsp:all")
    assert rows[0].candidates[0].config.groups == alone.groups
    assert [group.capacity % 16 for group in alone.groups] == [0] * 4


def test_nothing_is_left_to_compare(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([5, 7]))
    given = (tmp_path / "lengths.npy", "--groups", "8:1", "--gpus", 1, "--max-samples", 4, "--strategies")
    able = ", ".join(each for each in STRATEGIES if "max_samples" in STRATEGIES[each].supports)
    why = f"strategy padded does not support --max-samples 4; leave that out, or choose one of {able}"
    message = f"error: --strategies: {why}\n"
    assert run(main, "compare", *given, "padded") == (2, "", message)
    assert run(main, "compare", *given, "padded,naive", "--workers", 1).stderr == message


def test_the_next_command_leaves_out_packings_of_others(tmp_path):
    np.save(tmp_path / "lengths.npy", lengths_of_all_sizes())
    given = ("--groups", "8k:1", "--gpus", 8, "--packing", "bfd", "--strategies", "wlb", "--workers", 1)
    last = run(main, "compare", tmp_path / "lengths.npy", *given).stdout.rstrip().splitlines()[-1]
    assert last.endswith("hbpack pack with the same options and --strategy wlb, without --packing")
