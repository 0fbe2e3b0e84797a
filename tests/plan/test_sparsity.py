"""What document masks leave out, beside masks that are drawn score by score."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.core.segments import measure_sparsity
from packer_cli.plan.core.types import Group, Packs, Pieces, Plan
from tests import naive


def plan_of(*groups):
    """Groups of packs of lengths; no schedule, which these figures do not need."""
    packs = [pack for group in groups for pack in group]
    length = np.array([s for pack in packs for s in pack], dtype=np.int32)
    zeros = np.zeros(len(length), dtype=np.int64)
    return Plan(
        groups=tuple(Group(capacity=2**20 + g) for g in range(len(groups))),
        num_gpus=1,
        pieces=Pieces(samples=None, start=zeros, length=length),
        packs=Packs(
            offsets=np.cumsum([0, *map(len, packs)]),
            pieces=np.arange(len(length), dtype=np.int32),
            group=np.repeat(np.arange(len(groups), dtype=np.int16), [len(group) for group in groups]),
            cp_sharding=np.zeros(len(packs), dtype=np.int8),
        ),
        epochs=(),
    )


packs = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=8), min_size=1, max_size=5)


@given(packs, packs, st.integers(1, 9))
@settings(max_examples=25)
def test_sparsity_equals_that_of_drawn_masks(short, long, block):
    plan = plan_of(short, long)
    for group, members in ((None, short + long), (0, short), (1, long)):
        found = measure_sparsity(plan, group, block)
        expected = naive.sparsity(members, block)
        assert (found.token_sparsity, found.block_sparsity, found.flex_share) == pytest.approx(expected, abs=1e-12)


def test_two_halves_of_32k():
    found = measure_sparsity(plan_of([[16384, 16384]]))
    assert found.token_sparsity == pytest.approx(0.74998, abs=1e-5)
    assert found.block_sparsity == 1 - 16512 / 65536
    assert found.flex_share == 1
    assert found.dense_work == pytest.approx(2 * 32768**2 / (2 * (16384**2 + 16384)))


def test_no_pack_leaves_nothing_out():
    found = measure_sparsity(plan_of([[1]], []), 1)
    assert (found.token_sparsity, found.block_sparsity, found.flex_share) == (0, 0, 0)
