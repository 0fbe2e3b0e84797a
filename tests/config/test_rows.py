"""Options on rows: `--align`, `--max-samples`, `--mask`; what they mean, and where they are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.compare.rows import strategy_rows
from packer_cli.config import PlanConfig, PlannedConfig, StorePlanConfig, validate
from packer_cli.config.resolve import build, resolve
from packer_cli.engine.progress import LOGGER
from packer_cli.errors import ConfigError
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from tests.cli_runner import run

GIVEN = {"groups": "16k:1,128k:8", "gpus": 8}


def llama(folder):
    """The shape of Llama 3.1 8B."""
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32}
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256, **shape}))
    return file


def aligns(**options):
    config = validate(PlanConfig, {**GIVEN, **options})
    return [(group.capacity, group.align) for group in config.groups]


def test_align_by_number_and_by_degree():
    assert aligns() == [(16384, 1), (131072, 1)]
    assert aligns(align=64) == aligns(align="64") == [(16384, 64), (131072, 64)]
    assert aligns(align="2*cp") == [(16384, 1), (131072, 16)]
    assert aligns(align="2*cp,32") == [(16384, 32), (131072, 32)]
    assert aligns(align="4*cp,64,6*cp", groups="16k:1,96k:8") == [(16384, 64), (98304, 192)]
    assert aligns(align="8*cp", strategy="naive", groups="128k:8") == [(131072, 64)]


def test_degrees_that_mix_share_the_longest_groups_align():
    found = aligns(align="2*cp", strategy="flexsp:all", groups="1008:1,5040:6", gpus=6)
    assert {align for _, align in found} == {12}
    assert found[-1] == (5040, 12)
    assert [capacity for capacity, _ in found[:-1]] == [1008, 2016, 3024]


def test_chosen_groups_are_rounded_up():
    config = PlanConfig(groups="auto", gpus=8, align=96).with_groups([Group(capacity=1000), Group(capacity=1008)])
    assert [str(group) for group in config.groups] == ["1056:1"]


def test_a_plan_is_the_same_whatever_form_its_align_had():
    def decisions(**options):
        return resolve(PlanConfig(**{**GIVEN, **options})).config.decisions()

    one, other = (decisions(groups="128k:8", align=align, seed=1) for align in (16, "2*cp"))
    assert one == other
    assert PlannedConfig(**one).decisions() == one
    assert decisions() != decisions(align=16)


FORMS = (
    "a number of tokens, at least 1, such as 16, or N*cp for N times the SP or CP degree of each group, such as 2*cp; "
    "or several, such as 2*cp,32"
)
CHOOSE = "choose 16368 or 16416, or another align"
ABLE = "leave that out, or choose one of balanced, hbp, naive, longalign-packing"
REFUSED = [
    (
        {"align": "cp"},
        "--align: 'cp' must be " + FORMS,
    ),
    ({"align": "0"}, "--align: '0' must be " + FORMS),
    ({"align": "2*cp,"}, "--align: '2*cp,' must be " + FORMS),
    (
        {"align": 48},
        "the capacity of group 16k:1 must be a multiple of its align, 48 tokens; " + CHOOSE,
    ),
    (
        {"groups": "16k:1,2147483647:8"},
        (
            "a full row of group 2147483647:8 has 2147483648 tokens, since the ranks that share it divide it, and "
            "must have below 2147483648; choose a capacity of at most 2147483640"
        ),
    ),
    ({"max_samples": -1}, "--max-samples must be at least 1, got -1"),
    (
        {"max_samples": 8, "strategy": "flexsp:all"},
        "--strategy: strategy flexsp:all does not support --max-samples 8; " + ABLE,
    ),
    (
        # Rounded up, a GPU's share of the longest row holds as many tokens as that of two GPUs.
        {"groups": "64:8", "align": "2*cp", "strategy": "flexsp:all", "gpus": 9},
        (
            "--gpus 9: the smallest replicas have 2 GPUs, which must divide it and the other replicas, to fill the "
            "rest; choose a multiple of 2, or plan with other degrees, longer --groups or a lower --align"
        ),
    ),
    (
        {"groups": "64k:4", "parallel": "tp=4", "strategy": "flexsp:all", "gpus": 18},
        (
            "--gpus 18: the smallest replicas have 4 GPUs, which must divide it and the other replicas, to fill the "
            "rest; choose a multiple of 4, or plan with other degrees, longer --groups or a lower --align"
        ),
    ),
    (
        {"mask": "causal", "strategy": "flexsp:all"},
        "--strategy: strategy flexsp:all does not support --mask causal; " + ABLE,
    ),
    (
        {"mask": "causal", "align": 16},
        "--align pads each sample, but with --mask causal a whole row is one segment; leave one of them out",
    ),
    (
        {"mask": "causal", "groups": "auto"},
        "--groups auto predicts the time of --mask document; name the groups for --mask causal",
    ),
    ({"mask": "prefix"}, "--mask must be one of 'document' or 'causal', got 'prefix'"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError) as error:
        validate(PlanConfig, {**GIVEN, **options})
    assert str(error.value) == message


@pytest.mark.parametrize("group", ["2147483647:1", "2147483640:8"])
def test_the_longest_rows_that_there_are(group):
    """Their tokens are just counted in 32 bits."""
    request = resolve(validate(PlanConfig, {"groups": group, "gpus": 8})).request
    lengths = np.array([5, 900, 2000, 70_000] * 20, np.int32)
    plan = build_plan(make_pieces(lengths, np.arange(len(lengths)), request.groups[0].capacity, "split"), request)
    check_plan(plan)
    assert all((epoch.slot_row_length > 0).all() for epoch in plan.epochs)


_WITHOUT_LIMIT = (
    "longalign-sorted", "flexsp:all", "wlb", "fixed-4d", "plain-4d", "trl-bfd", "axolotl", "padded",
)  # fmt: skip

_WITHOUT_STEPS = (
    "flexsp", "batchada", "fcp", "bytescale", "megatron", "dp-balanced", "hydraulis", "batch-rebalance",
)  # fmt: skip


def test_compare_leaves_out_what_cannot_be_compared(caplog, tmp_path):
    caplog.set_level("INFO", LOGGER.name)
    config = PlanConfig(**GIVEN, max_samples=8, model=str(llama(tmp_path)), gpu="h100")
    kept = ["balanced", "hbp", "naive", "longalign-packing"]
    assert [row.name for row in strategy_rows("all", resolve(config))] == kept
    assert caplog.messages == [
        f"left out {', '.join(_WITHOUT_LIMIT)}: does not support --max-samples 8",
        f"left out {', '.join(_WITHOUT_STEPS)}: needs --global-tokens",
    ]
    with pytest.raises(ConfigError) as error:
        strategy_rows("hbp,flexsp:all", resolve(config))
    assert str(error.value) == f"--strategies: strategy flexsp:all does not support --max-samples 8; {ABLE}"


def test_alignment_that_a_plan_records_with_its_groups_is_not_left_out_of_its_report():
    planned = validate(PlannedConfig, resolve(validate(StorePlanConfig, {**GIVEN, "align": 64})).config.decisions())
    base = build(planned, planned.with_others())
    assert base.given.align is None
    assert not {"padded", "longalign-sorted"} & {row.name for row in strategy_rows("all", base)}
    with pytest.raises(ConfigError) as error:
        strategy_rows("padded", base)
    assert "--strategies: strategy padded does not support --align 64; " in str(error.value)


def test_stats_tell_what_alignment_costs(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(["90", "40"] * 50))
    given = ("--groups", "256", "--gpus", 2)
    plain, aligned, causal = (
        run(main, "stats", lengths, *given, *options).stdout for options in ((), ("--align", 64), ("--mask", "causal"))
    )
    assert "to align samples" not in plain
    assert "of it to align samples" in aligned
    assert "Document masks" in plain
    assert "Causal masks over whole rows" in causal


_WITHOUT_STEPS = (
    "flexsp", "batchada", "fcp", "bytescale", "megatron", "dp-balanced", "hydraulis", "batch-rebalance",
)  # fmt: skip


def test_compare_leaves_out_a_strategy_that_has_no_plan(tmp_path, caplog):
    caplog.set_level("INFO", LOGGER.name)
    given = {"groups": "1k:1,8k:2", "gpus": 2, "global_tokens": "64k"}
    config = validate(PlanConfig, {**given, "model": str(llama(tmp_path)), "gpu": "h100"})
    assert "hydraulis" not in [row.name for row in strategy_rows("all", resolve(config))]
    why = (
        "no pipeline on 2 GPUs holds a sample of 8,192 tokens in memory; give shorter --groups, higher --parallel "
        "degrees, or more GPUs"
    )
    assert caplog.messages == [f"left out hydraulis: {why}"]
    with pytest.raises(ConfigError) as error:
        strategy_rows("all,hydraulis", resolve(config))
    assert str(error.value) == f"--strategy hydraulis: {why}"
