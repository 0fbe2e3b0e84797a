"""Every message about an argument, whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from packer_cli.errors import ConfigError
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.loader import PackedDataset
from tests.loader.errors.messages import message


def test_arguments(own_set: Any, make_set: Any) -> None:
    path = own_set.path
    assert message(ConfigError, path, 0, 8) == (
        f"{str(path)!r} was planned for 2 GPUs, but world_size is 8: "
        "run hbpack rebalance --gpus 8, or plan again with --gpus 8"
    )
    shared = make_set(path.parent / "shared", [(32, 2, 20)], num_gpus=2, num_epochs=1).path
    assert message(ConfigError, shared, 0, 3) == (
        f"{str(shared)!r} was planned for 2 GPUs, but world_size is 3: its rows need a multiple of 2 GPUs; train on "
        "so many, or plan again with other --groups"
    )
    for number in (0, -1):
        assert message(ValueError, path, 0, number) == f"world_size is {number}: it must be at least 1"
    assert message(ValueError, path, 2, 2) == "rank is 2: it must be from 0 to 1"
    assert message(ValueError, path, -1, 2) == "rank is -1: it must be from 0 to 1"
    assert message(ValueError, path, 0, 2, -1) == "epoch is -1: it must be from 0 to 2147483647"
    assert message(ValueError, path, format="nemo") == (
        "unknown batch format 'nemo'; known: "
        "transformers, flash-attn, torchtitan, megatron, megatron-thd, deepspeed, torchtune, tree, tree-flex, pairs"
    )
    assert message(ValueError, path, sp_sharding="ring") == (
        "sp_sharding is 'ring': choose one of contiguous, zigzag, document, planned"
    )
    assert message(ValueError, path, pad_to="max") == "pad_to is 'max': choose one of multiple, row, capacity"
    assert message(ValueError, path, pad_to_multiple_of=0) == "pad_to_multiple_of is 0: it must be at least 1"
    assert message(ValueError, path, max_segments=0) == "max_segments is 0: it must be at least 1"
    assert message(ConfigError, path, pad_token_id=-1) == (
        "pad_token_id is -1: it must be in the tokenizer's vocabulary, 0 to 999; give another pad_token_id"
    )
    assert message(ValueError, path, cache_bytes=-1) == "cache_bytes is -1: it must not be negative"


def test_a_trainer_in_lockstep_refuses_ranks_that_are_not(own_set: Any) -> None:
    """With lockstep=False an item is a list, whatever the set."""
    plain, lists = PackedDataset(own_set.path, 0, 2), PackedDataset(own_set.path, 0, 2, lockstep=False)
    assert len(lists) == len(plain)
    for batch, micro_batches in zip(plain, lists, strict=True):
        assert [each["pack_id"] for each in micro_batches] == [batch["pack_id"]]
    own_set.edit_manifest(lockstep=1)
    assert message(ConfigError, own_set.path) == (
        f"{str(own_set.path)!r} was planned with --lockstep 1: its ranks run different numbers of micro-batches, with "
        "which FSDP and ZeRO-2 or 3 would hang. For DDP or ZeRO-1, pass lockstep=False and run every micro-batch of "
        "each list; for other trainers, plan with --lockstep all"
    )
    assert len(PackedDataset(own_set.path, 0, 2, lockstep=False)) == len(plain)


def test_text_and_fractions_are_no_numbers(own_set: Any) -> None:
    path = own_set.path
    assert message(TypeError, path, "0", 2) == "rank is '0': it must be an integer; write int(os.environ['RANK'])"
    assert message(TypeError, path, 0, "2") == (
        "world_size is '2': it must be an integer; write int(os.environ['WORLD_SIZE'])"
    )
    assert message(TypeError, path, None, 2) == "rank is None: it must be an integer"
    assert message(TypeError, path, 0, 2, "1") == "epoch is '1': it must be an integer; write int('1')"
    assert message(TypeError, path, pad_to_multiple_of="8") == (
        "pad_to_multiple_of is '8': it must be an integer; write int('8')"
    )
    assert message(TypeError, path, pad_token_id=1.0) == "pad_token_id is 1.0: it must be an integer"
    assert message(TypeError, path, cache_bytes="64GiB") == (
        "cache_bytes is '64GiB': it must be an integer; write 64 * 2**30"
    )
    ds = PackedDataset(path, 0, 2)
    for call in (ds.set_epoch, ds.state_dict, ds.iter_from, ds.step_of):
        name = "epoch" if call == ds.set_epoch else "iteration"
        with pytest.raises(TypeError, match=rf"^{name} is 1\.5: it must be an integer$"):
            call(1.5)
        with pytest.raises(TypeError, match=rf"^{name} is 'x': it must be an integer; write int\('x'\)$"):
            call("x")


@pytest.mark.parametrize("kind", [np.int32, np.uint8, torch.tensor])
def test_integers_of_numpy_and_torch_are_numbers(own_set: Any, kind: Any) -> None:
    ds = PackedDataset(own_set.path, kind(1), kind(2), kind(1), pad_to_multiple_of=kind(8), pad_token_id=kind(5))
    assert (ds.rank, ds.world_size, ds.epoch) == (1, 2, 1)
    assert ds[kind(3)]["iteration"] == 3
    ds.set_epoch(kind(2))
    state = ds.state_dict(kind(4))
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["iteration"]) == (2, 4)
    assert next(ds.iter_from(kind(4)))["step"] == ds.step_of(kind(4)) == state["step"]


def test_the_greatest_epoch(own_set: Any) -> None:
    ds = PackedDataset(own_set.path, 0, 2, MAX_EPOCH)
    assert [batch["epoch"] for batch in ds] == [MAX_EPOCH] * len(ds)
    for epoch in (2**31, 2**63, 10**20):
        expected = f"epoch is {epoch}: it must be from 0 to 2147483647"
        assert message(ValueError, own_set.path, 0, 2, epoch) == expected
        with pytest.raises(ValueError, match=f"^{expected}$"):
            ds.set_epoch(epoch)
    assert ds.epoch == MAX_EPOCH


def test_out_of_range(own_set: Any) -> None:
    ds = PackedDataset(own_set.path, 0, 2)
    n = len(ds)
    with pytest.raises(IndexError, match=f"^iteration {n} of {n}$"):
        ds[n]
    with pytest.raises(ValueError, match=f"^iteration is {n + 1}: it must be from 0 to {n}$"):
        ds.iter_from(n + 1)
    with pytest.raises(ValueError, match=f"^iteration is -1: it must be from 0 to {n}$"):
        ds.step_of(-1)
