"""The document mask: the one torch makes, without the dense mask, and fit to travel."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packer_cli.loader.formats.flex import document_mask, tree_mask
from tests.loader.trees import items
from tests.naive.trees import Branch, plant, sees


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=9), st.sampled_from([2, 8, 16, 128]))
def test_the_document_mask_is_the_one_torch_makes_of_a_dense_mask(lengths: list[int], block: int) -> None:
    borders = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
    length = int(borders[-1])
    document = torch.repeat_interleave(torch.tensor(lengths))
    mask = document_mask(borders, block_size=block)

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (document[q] == document[kv])

    wanted = create_block_mask(mask_mod, 1, 1, length, length, device="cpu", BLOCK_SIZE=block)
    assert mask.shape == wanted.shape
    assert mask.seq_lengths == wanted.seq_lengths
    assert mask.BLOCK_SIZE == wanted.BLOCK_SIZE
    for key in ("kv", "full_kv", "q", "full_q"):
        for part in ("num_blocks", "indices"):
            assert torch.equal(getattr(mask, f"{key}_{part}"), getattr(wanted, f"{key}_{part}")), (key, part)
    places = torch.arange(length)
    dense = mask.mask_mod(0, 0, places[:, None], places[None, :])
    assert torch.equal(dense, mask_mod(0, 0, places[:, None], places[None, :]))


@settings(max_examples=30, deadline=None)
@given(items(), st.sampled_from([2, 8, 16, 128]), st.integers(1, 9))
def test_the_mask_of_trees_is_the_one_torch_makes_of_a_dense_mask(
    trees: list[list[Branch]], block: int, window: int
) -> None:
    row = plant(trees)
    wanted, length = torch.from_numpy(sees(row)), len(row.input_ids)
    stops = torch.tensor([int(wanted[:, k].nonzero().max()) + 1 for k in range(length)])
    depths = torch.zeros(length, dtype=torch.int64)
    for places in row.places:
        depths[places] = torch.arange(len(places))
    mask = tree_mask(stops, depths, block_size=block)
    made = create_block_mask(lambda b, h, q, k: wanted[q, k], 1, 1, length, length, device="cpu", BLOCK_SIZE=block)
    for key in ("kv", "full_kv", "q", "full_q"):
        for part in ("num_blocks", "indices"):
            assert torch.equal(getattr(mask, f"{key}_{part}"), getattr(made, f"{key}_{part}")), (key, part)
    # A window counts depth, whatever stands between in the row.
    wanted = wanted & (depths[:, None] - depths < window)
    mask = pickle.loads(pickle.dumps(tree_mask(stops, depths, block_size=block, window=window)))
    place = torch.arange(length)
    assert torch.equal(mask.mask_mod(0, 0, place[:, None], place[None]), wanted)
    made = create_block_mask(lambda b, h, q, k: wanted[q, k], 1, 1, length, length, device="cpu", BLOCK_SIZE=block)
    assert (mask.to_dense() >= made.to_dense()).all()
    full = BlockMask.from_kv_blocks(mask.full_kv_num_blocks, mask.full_kv_indices, BLOCK_SIZE=block).to_dense()
    should = BlockMask.from_kv_blocks(made.full_kv_num_blocks, made.full_kv_indices, BLOCK_SIZE=block).to_dense()
    assert torch.equal(full, should)


def test_the_document_mask_of_a_long_row_is_small() -> None:
    mask = document_mask(torch.tensor([0, 100_000, 131_072]))
    assert sum(getattr(mask, name).nbytes for name in BlockMask._TENSOR_ATTRS if getattr(mask, name) is not None) < 2e7
    assert mask.sparsity() == pytest.approx(100 * (1 - (100_000**2 + 31_072**2) / 2 / 131_072**2), abs=0.5)


def test_the_document_mask_moves_with_what_it_looks_up() -> None:
    """A plain BlockMask leaves the tensors of its mask_mod behind."""
    mask = document_mask(torch.tensor([0, 3, 8]), block_size=4)
    for other in (mask.to("meta"), pickle.loads(pickle.dumps(mask))):
        assert isinstance(other, BlockMask)
        assert other.BLOCK_SIZE == (4, 4)
        (looked_up,) = [cell.cell_contents for cell in other.mask_mod.__closure__]
        assert looked_up.device == other.kv_indices.device
        if other.kv_indices.device.type == "cpu":
            assert looked_up.tolist() == [3, 3, 3, 8, 8, 8, 8, 8]
