"""Epochs that were not written: epoch 0 with its steps in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.format.ranks import RankRow, repeat_rows
from packer_cli.loader import PackedDataset


def steps(ds: PackedDataset) -> list[list[tuple]]:
    """What each step reads, its iterations in order."""
    found: list[list[tuple]] = [[] for _ in range(ds.num_steps)]
    for i, b in enumerate(ds):
        assert (b["iteration"], b["step"]) == (i, ds.step_of(i))
        found[b["step"]].append((b["pack_id"], b["group"], b["sp_rank"], b["dp_rank"], b["num_loss_tokens"]))
    return found


@pytest.mark.parametrize("epoch", [2, 3, 50])
def test_whole_steps_are_permuted_alike_on_all_ranks(packed: Any, epoch: int) -> None:
    orders = []
    for rank in range(4):
        old = steps(PackedDataset(packed.path, rank, 4))
        new = steps(PackedDataset(packed.path, rank, 4, epoch))
        assert sorted(old) == sorted(new)
        assert new != old
        orders.append([len(step) for step in new])
    assert orders == [orders[0]] * 4
    # Equal lengths could hide different orders: iterations of all ranks must also have the same slots.
    for i in range(len(PackedDataset(packed.path, 0, 4))):
        batches = [PackedDataset(packed.path, rank, 4, epoch)[i] for rank in range(4)] if i < 5 else []
        assert len({(b["dp_size"], b["global_num_samples"]) for b in batches}) <= 1


def test_later_epochs_differ_and_repeat_exactly(packed: Any) -> None:
    ds = PackedDataset(packed.path, 0, 4)
    orders = []
    for epoch in (2, 3, 4, 2):
        ds.set_epoch(epoch)
        assert len(ds) == len(packed.epochs[0])
        orders.append([b["pack_id"] for b in ds])
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_written_epochs_are_read_as_written(packed: Any) -> None:
    ds = PackedDataset(packed.path, 0, 4)
    for epoch in (0, 1):
        ds.set_epoch(epoch)
        written = packed.epochs[epoch]
        assert len(ds) == len(written)
        assert ds.num_steps == written[-1][0] + 1
        assert [ds.step_of(i) for i in range(len(ds) + 1)] == [step for step, _ in written] + [ds.num_steps]
        assert [b["pack_id"] for b in ds] == [-1 if s[0][0] is None else s[0][0].id for _, s in written]
    assert len(packed.epochs[0]) != len(packed.epochs[1])


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), max_size=12),
    seed=st.integers(-1, 2**64),
    epoch=st.integers(1, 99),
)
def test_repeat_rows(counts: list[list[int]], seed: int, epoch: int) -> None:
    """Steps of iterations of one row or, without lockstep, several."""
    sizes = [size for step in counts for size in step]
    n = sum(sizes)
    columns = {name: np.arange(n) + 1000 * k for k, name in enumerate(RankRow._fields)}
    columns["step"] = np.repeat(np.arange(len(counts)), [sum(step) for step in counts])
    columns["iteration"] = np.repeat(np.arange(len(sizes)), sizes)
    rows = repeat_rows(columns, seed, epoch)
    assert sorted(set(rows["iteration"].tolist())) == list(range(len(sizes)))
    assert (np.diff(rows["iteration"]) >= 0).all()
    place = 1000 * RankRow._fields.index("row")
    iterations = [rows["row"][rows["iteration"] == i].tolist() for i in range(len(sizes))]
    old_iterations = [(columns["row"][columns["iteration"] == i]).tolist() for i in range(len(sizes))]
    assert sorted(iterations) == sorted(old_iterations)
    blocks = [rows["row"][rows["step"] == s].tolist() for s in range(len(counts))]
    old = [columns["row"][columns["step"] == s].tolist() for s in range(len(counts))]
    assert [r for block in blocks for r in block] == rows["row"].tolist()
    assert sorted(blocks) == sorted(old)
    for k, name in enumerate(RankRow._fields):
        if name not in ("step", "iteration"):
            assert (rows[name] - 1000 * k).tolist() == (rows["row"] - place).tolist()
