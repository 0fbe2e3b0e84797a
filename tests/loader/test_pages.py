"""Memory of batches is used again, and never while somebody holds a part of it."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packer_cli.loader import PackedDataset, pages
from packer_cli.loader.pages import PagePool


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    pool = PagePool()
    first = address(pool.take(100))
    assert address(pool.take(100)) == first
    assert address(pool.take(50)) == first


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[5:],
        lambda array: array[None],
        lambda array: torch.from_numpy(array),
        lambda array: torch.from_numpy(array[1:][None])[0, 3:],
        lambda array: torch.from_numpy(array).numpy()[:2],
        lambda array: memoryview(array),
        lambda array: {"labels": [torch.from_numpy(array).view(2, 50).T]},
        lambda array: torch.from_numpy(array).untyped_storage(),
        lambda array: torch.from_numpy(array).requires_grad_(False).detach(),
        lambda array: torch.utils.dlpack.from_dlpack(torch.from_numpy(array)),
    ],
)
def test_memory_that_is_held_is_not_used_again(hold: Any) -> None:
    pool = PagePool()
    array = pool.take(100)
    array[:] = 7
    first, held = address(array), hold(array)
    del array
    for _ in range(20):
        other = pool.take(100)
        assert address(other) != first
        other[:] = 0
    del held
    gc.collect()
    arrays = [pool.take(100) for _ in range(pool.num_blocks)]
    assert first in [address(array) for array in arrays]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9)), max_size=60))
def test_no_two_holders_share_memory(steps: list[tuple[int, int]]) -> None:
    pool, held = PagePool(num_blocks=3), []
    for number, (length, drop) in enumerate(steps):
        row = pool.take_row(length)
        assert [len(array) for array in row] == [length, length + 1, length]
        for array in row:
            array[:] = number
        held.append((number, row[number % 3]))  # one of the three is enough to hold the block
        del row, array
        if drop < len(held):
            del held[drop]
        assert all((array == owner).all() for owner, array in held)
        assert len(pool._blocks) <= 3


def test_without_counts_to_trust_memory_is_always_fresh(monkeypatch: Any) -> None:
    """As in a Python without the GIL, or one that counts otherwise."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    pool = PagePool()
    assert pool.take(10).base is None
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    monkeypatch.setattr(pages, "_count", lambda blocks, i: 7)
    assert PagePool().take(10).base is None
    monkeypatch.undo()
    assert PagePool().take(10).base is not None, "this Python's counts are used"


def test_threads_do_not_get_the_same_memory() -> None:
    pool, errors = PagePool(), []

    def work(number: int) -> None:
        for _ in range(2000):
            array = pool.take(64)
            array[:] = number
            if not (array == number).all():
                errors.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_pool_whose_lock_was_held_at_a_fork_gives_fresh_memory() -> None:
    pool = PagePool()
    with pool._lock:
        assert len(pool.take(10)) == 10
    assert not pool._blocks


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_kept_stay_as_they_were(packed: Any, workers: int) -> None:
    dataset = PackedDataset(packed.path, 1, packed.num_gpus)
    expected = [pickle.dumps(dict(dataset[i])["labels"].clone()) for i in range(len(dataset))]
    kept: deque[tuple[int, Any]] = deque(maxlen=7)
    for i, batch in enumerate(DataLoader(dataset, batch_size=None, num_workers=workers)):
        kept.append((i, batch["labels"][0, 1:]))  # a view of one tensor; the rest of the batch goes
        del batch
        for number, labels in kept:
            assert torch.equal(labels, pickle.loads(expected[number])[0, 1:])
