"""A batch that went from one process to another is the batch that was sent."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from packer_cli.loader import PackedDataset
from packer_cli.loader.formats.base import Batch
from tests.loader.trees import FLAT_FORMATS, batch_of
from tests.naive.trees import Branch, pack_of


def sent(batch: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(batch))


def assert_same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    elif isinstance(wanted, dict):
        assert [*got] == [*wanted]
        for key in wanted:
            assert_same(got[key], wanted[key])
    elif isinstance(wanted, BlockMask):
        assert torch.equal(got.to_dense(), wanted.to_dense())
    else:
        assert got == wanted


@pytest.mark.parametrize("name", FLAT_FORMATS)
def test_every_format_comes_through(packed: Any, name: str) -> None:
    dataset = PackedDataset(packed.path, 1, packed.num_gpus, format=name)
    for i in range(0, len(dataset), 5):
        batch = dataset[i] if name != "torchtitan" else dataset[i][0]
        got = sent(batch)
        assert_same(got, batch)
        assert_same(got.metadata, batch.metadata)


@pytest.mark.parametrize("name", ["tree", "tree-flex", "pairs"])
def test_rows_of_items_come_through(name: str) -> None:
    batch = batch_of(pack_of([[Branch([5, 6, 7], [0, 0, 1]), Branch([5, 6, 8], [0, 0, 1])]]), name)
    assert_same(sent(batch), batch)
    assert_same(sent(batch).metadata, batch.metadata)


def test_one_tensor_under_two_names_stays_one(packed: Any) -> None:
    got = sent(PackedDataset(packed.path, 0, packed.num_gpus)[0])
    assert got["cu_seq_lens_q"] is got["cu_seq_lens_k"] is got.metadata["cu_seqlens"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([2**31, -(2**31) - 1, 5]),
        torch.tensor([2**31 - 1, -(2**31)]),
        torch.arange(12).view(3, 4).T,
        torch.arange(6)[::2],
        torch.tensor(5),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([0.5, float("inf")]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.tensor([1.5], requires_grad=True),
        torch.sparse_coo_tensor([[0]], [1.0], (2,)),
    ],
)
def test_what_a_user_put_in(tensor: torch.Tensor) -> None:
    got = sent(Batch({"own": tensor, "text": "x"}, {"own": tensor, "cu_seqlens": torch.tensor([0, 2])}))
    assert got["text"] == "x"
    assert got["own"].dtype == tensor.dtype
    assert got["own"].requires_grad == tensor.requires_grad
    assert torch.equal(got["own"].to_dense(), tensor.to_dense())
    assert torch.equal(got.metadata["cu_seqlens"], torch.tensor([0, 2]))


def test_what_came_may_be_written_to(packed: Any) -> None:
    got = sent(PackedDataset(packed.path, 0, packed.num_gpus)[0])
    for value in got.values():
        if isinstance(value, torch.Tensor):
            value.add_(1)


def test_a_batch_without_metadata() -> None:
    got = sent(Batch({"input_ids": torch.tensor([[1, 2]])}))
    assert got.metadata is None
    assert got["input_ids"].tolist() == [[1, 2]]
