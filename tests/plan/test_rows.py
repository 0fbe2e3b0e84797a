"""Rows divide among the GPUs that share them, and replicas begin where tensor parallelism stays inside a node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from packer_cli.config import PlanConfig, PlannedConfig
from packer_cli.config.resolve import resolve
from packer_cli.errors import PlanError
from packer_cli.format.layout import Layout
from packer_cli.format.sharding import SHARDINGS, length_multiple
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.iterations import round_up_rows
from packer_cli.plan.core.types import FILLER
from tests.plan.test_build import whole

COSTS = {"group_costs": ((4e-6, 1e-4, 1e-3), (2e-6, 6e-5, 1e-3)), "global_tokens": 500}


@pytest.mark.parametrize(
    "options",
    [
        {"groups": "51:1,101:2"},
        {"groups": "101:1", "parallel": "cp=2,tp=2"},
        {"groups": "101:1", "parallel": "cp=2,pp=2", "strategy": "wlb", "packing": "original"},
        {"groups": [Group(capacity=51), Group(capacity=101, cp_size=2, tp_size=2)], "strategy": "hydraulis", **COSTS},
        {"groups": [Group(capacity=51), Group(capacity=101, sp_size=2)], "strategy": "flexsp:all", **COSTS},
    ],
    ids=["sp", "cp", "wlb", "hydraulis", "flexsp"],
)
def test_rows_of_a_capacity_that_does_not_divide(options):
    if options.get("strategy") == "flexsp:all":
        options = {name: value for name, value in options.items() if name != "global_tokens"}
    kind = PlannedConfig if "group_costs" in options else PlanConfig
    plan = build_plan(whole([101, 101, 100, 90, 51, 7, 3]), resolve(kind(gpus=4, **options)).request)
    check_plan(plan)
    layouts = [group.layout for group in plan.groups]
    assert any(group.capacity % group.layout.row_multiple for group in plan.groups), "no row to divide"
    for group, length in zip(plan.epochs[0].slot_group, plan.epochs[0].slot_row_length, strict=True):
        assert length % layouts[group].row_multiple == 0
        assert length <= plan.groups[group].full_row < plan.groups[group].capacity + layouts[group].row_multiple


@pytest.mark.parametrize("layout", [Layout(sp=4), Layout(cp=4), Layout(cp=2, tp=4), Layout(tp=8), Layout(sp=2, tp=2)])
def test_a_full_row_divides_under_every_sharding(layout):
    group = Group(capacity=1001, **layout.sizes)
    for sharding in SHARDINGS if layout.cp > 1 else ["contiguous"]:
        assert group.full_row % (length_multiple(sharding, layout.row_ranks) * layout.tp) == 0


def test_rows_hold_128_tokens_a_gpu():
    groups = [Group(capacity=1001), Group(capacity=1001, cp_size=2, tp_size=2, pp_size=2)]
    lengths = np.array([0, 1, 128, 129, 900, 1001] * 2)
    assert round_up_rows(lengths, groups, np.repeat([0, 1], 6)).tolist() == [
        128, 128, 128, 256, 1001, 1001, 512, 512, 512, 512, 1008, 1008,
    ]  # fmt: skip


def broken(plan, **changes):
    return replace(plan, epochs=tuple(replace(schedule, **changes) for schedule in plan.epochs))


def test_the_checker_finds_what_does_not_divide():
    plan = build_plan(whole([60, 40, 30]), resolve(PlanConfig(groups="64:1", parallel="cp=2,tp=2", gpus=8)).request)
    check_plan(plan)
    rows = plan.epochs[0].slot_row_length
    with pytest.raises(PlanError) as raised:
        check_plan(broken(plan, slot_row_length=rows + 4))  # Four GPUs divide it, but not their two chunks.
    assert str(raised.value) == "epoch 0: a row does not divide among the GPUs that share it"


def test_the_checker_finds_tensor_parallelism_between_nodes():
    groups = (Group(capacity=64), Group(capacity=128, tp_size=2))
    plan = build_plan(whole([100]), resolve(PlanConfig(groups=groups[1:], gpus=4)).request)
    plan = replace(plan, groups=groups, packs=replace(plan.packs, group=np.ones(1, dtype=np.int16)))

    def on_gpus(layout):
        schedule = replace(
            plan.epochs[0],
            slot_iteration=np.zeros(3, dtype=np.int64),
            slot_group=np.array([group for group, _ in layout], dtype=np.int16),
            slot_first_gpu=np.array([first for _, first in layout], dtype=np.int32),
            slot_pack=np.array([0 if group else FILLER for group, _ in layout]),
            slot_row_length=np.array([groups[group].capacity for group, _ in layout], dtype=np.int32),
        )
        return replace(plan, epochs=(schedule,))

    check_plan(on_gpus([(1, 0), (0, 2), (0, 3)]))
    with pytest.raises(PlanError) as raised:
        check_plan(on_gpus([(0, 0), (1, 1), (0, 3)]))
    assert str(raised.value) == (
        "epoch 0: a replica begins inside a group of tensor parallelism, which could then reach into another node"
    )
