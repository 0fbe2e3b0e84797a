"""Every rule of the checker, by a plan or by pieces that break it: the whole message."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from packer_cli.errors import PlanError
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Packs, Pieces, Plan, Schedule
from tests.plan.test_build import whole

SHORT, LONG = Group(capacity=64), Group(capacity=128, sp_size=2)
PLAN = Plan(
    groups=(SHORT, LONG),
    num_gpus=2,
    pieces=whole([40, 24, 30, 100]),
    packs=Packs(
        offsets=np.array([0, 2, 3, 4]),
        pieces=np.arange(4, dtype=np.int32),
        group=np.array([0, 0, 1], dtype=np.int16),
        cp_sharding=np.zeros(3, dtype=np.int8),
    ),
    epochs=(
        Schedule(
            slot_iteration=np.array([0, 0, 1]),
            slot_pack=np.arange(3, dtype=np.int32),
            slot_group=np.array([0, 0, 1], dtype=np.int16),
            slot_first_gpu=np.array([0, 1, 0], dtype=np.int32),
            slot_row_length=np.array([64, 64, 100], dtype=np.int32),
            iteration_step=np.array([0, 1]),
        ),
    ),
)
"""Two packs side by side on a GPU each, then one on both."""


def with_values(record, changes):
    """The record with those of the changes that it has a field for, arrays as of the same type."""
    names = {field.name for field in fields(record)} & changes.keys()
    return replace(record, **{name: np.array(changes[name], dtype=getattr(record, name).dtype) for name in names})


def broken(changes):
    """`PLAN` with other groups, lengths, packs or slots."""
    changes = dict(changes)
    own = {name: changes.pop(name) for name in ("groups", "lockstep", "max_samples") if name in changes}
    pieces = whole(changes.pop("lengths", PLAN.pieces.length))
    packs, schedule = with_values(PLAN.packs, changes), with_values(PLAN.epochs[0], changes)
    return replace(PLAN, pieces=pieces, packs=packs, epochs=(schedule,), **own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": [0, 2, 3, 5]}, "the pack offsets do not enclose the pieces"),
        ({"offsets": [0, 0, 3, 4]}, "pack 0 is empty"),
        ({"max_samples": 1}, "pack 0 holds 2 samples, more than 1"),
        ({"lengths": [40, 24, 30, 100, 5]}, "4 pieces are packed, not 5"),
        ({"pieces": [0, 1, 2, 4]}, "the packs hold pieces that do not exist"),
        ({"pieces": [0, 0, 2, 3]}, "piece 0 is in 2 packs; it must be in exactly one"),
        ({"group": [0, 0, 2]}, "a pack belongs to no group"),
        ({"cp_sharding": [0, 1, 0]}, "pack 1 has CP sharding 1, unknown to its group"),
        ({"lengths": [41, 24, 30, 100]}, "pack 0 holds 65 tokens, over its capacity of 64"),
        (
            {"groups": (replace(SHORT, align=16), LONG)},
            "pack 0 holds 80 tokens with samples aligned to 16, over its capacity of 64",
        ),
        ({"slot_pack": [0, 3, 2]}, "epoch 0: a slot has no such pack"),
        ({"slot_pack": [0, 0, 2]}, "epoch 0: pack 0 runs 2 times; it must run exactly once"),
        ({"slot_group": [0, 2, 1]}, "epoch 0: a slot belongs to no group"),
        ({"slot_group": [0, 1, 1]}, "epoch 0: a slot does not belong to the group of its pack"),
        (
            {"slot_iteration": [0, 0, 0], "slot_first_gpu": [0, 1, 1]},
            "epoch 0: a replica changes its group within an iteration",
        ),
        (
            {"groups": (SHORT, Group(capacity=128, pp_size=2))},
            "epoch 0: replicas have different numbers of pipeline stages, where all GPUs run in lockstep",
        ),
        (
            {"slot_first_gpu": [0, 0, 0]},
            "epoch 0: a replica has more than one micro-batch in an iteration, where all GPUs run in lockstep",
        ),
        (
            {"groups": (SHORT, Group(capacity=128, tp_size=2)), "slot_first_gpu": [0, 1, 1]},
            "epoch 0: a replica begins inside a group of tensor parallelism, which could then reach into another node",
        ),
        (
            {"slot_first_gpu": [0, 1, 1]},
            "epoch 0: not every one of the 2 GPUs is busy exactly once in every iteration",
        ),
        (
            {"slot_first_gpu": [0, 0, 0], "lockstep": 1},
            "epoch 0: not every one of the 2 GPUs is busy exactly once in every iteration",
        ),
        ({"iteration_step": [0, 2]}, "epoch 0: the steps are not in order"),
        ({"slot_row_length": [64, 29, 100]}, "epoch 0: a pack is longer than its row"),
        ({"slot_row_length": [64, 64, 101]}, "epoch 0: a row does not divide among the GPUs that share it"),
    ],
)
def test_a_plan_that_breaks_a_rule(changes, message):
    check_plan(PLAN)
    with pytest.raises(PlanError) as error:
        check_plan(broken(changes))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(0, 0, 20), (1, 0, 10), (1, 10, 0)], "a piece is empty"),
        ([(0, 0, 20)], "the pieces do not begin each sample as often as asked"),
        ([(0, 0, 20), (1, 0, 11)], "a piece reaches past the end of its sample"),
        ([(0, 0, 10), (0, 12, 8), (1, 0, 10)], "sample 0 is not covered by its pieces"),
        ([(0, 0, 10), (0, 8, 10), (1, 0, 10)], "the pieces of a sample leave a gap or overlap"),
    ],
)
def test_pieces_that_are_not_the_samples(pieces, message):
    sample, start, length = np.array(pieces, dtype=np.int32).T
    with pytest.raises(PlanError) as error:
        check_pieces(
            Pieces(samples=sample, start=start, length=length),
            np.array([20, 10], dtype=np.int32),
            None,
            is_whole=True,
        )
    assert str(error.value) == message
