"""Parts of a batch are parts of its whole row; reference attention."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.format.ranks import RankRow
from packer_cli.format.sharding import length_multiple
from packer_cli.format.shards import Pack
from packer_cli.loader import PackedDataset
from packer_cli.loader.build_batch import BatchBuilder
from packer_cli.loader.parallel import (
    SHARDINGS,
    gathered_attention,
    local_indices,
    merge_slices,
    packed_attention,
    take_slice,
    ulysses_attention,
)
from tests.loader.packed_set import group_of
from tests.naive import loss_spans


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=8),
    sp_size=st.sampled_from([1, 2, 3, 4]),
    sharding=st.sampled_from(SHARDINGS),
)
def test_slices_merge_to_the_whole(lengths: list[int], sp_size: int, sharding: Any) -> None:
    tail = -sum(lengths) % length_multiple(sharding, sp_size)
    cu = torch.tensor([0, *lengths, tail]).cumsum(0)
    whole = torch.arange(2 * int(cu[-1])).reshape(2, -1)
    slices = [take_slice(whole, cu, sp_size, rank, sharding) for rank in range(sp_size)]
    for rank, part in enumerate(slices):
        assert part[0].tolist() == local_indices(cu.numpy(), sp_size, rank, sharding).tolist()
    assert torch.equal(merge_slices(slices, cu, sharding), whole)


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    sp_size=st.sampled_from([1, 2, 3, 4, 8]),
    multiple=st.integers(1, 9),
    sharding=st.sampled_from([*SHARDINGS, "planned"]),
    align=st.booleans(),
    planned=st.integers(0, 1),
)
def test_parts_of_a_batch_are_parts_of_its_whole_row(
    lengths: list[int], seed: int, sp_size: int, multiple: int, sharding: Any, align: bool, planned: int
) -> None:
    """Tokens, positions and both labels: made for the whole row, and only then taken apart."""
    rng = np.random.default_rng(seed)
    num_tokens = sum(lengths)
    ids = rng.integers(0, 100, num_tokens).astype(rng.choice(["uint16", "int32"]))
    # Ones at first tokens too, which the format forbids: they must not come through.
    mask = rng.integers(0, 2, num_tokens).tolist()
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of_samples(mask, lengths))
    pack = Pack(0, 0, ids, starts, stops, np.cumsum([0, *lengths]).astype(np.int32), np.arange(len(lengths)), planned)

    def build(sp_slice: bool, sp_rank: int) -> Any:
        builder = BatchBuilder(
            pad_to="multiple",
            pad_to_multiple_of=multiple,
            pad_token_id=7,
            sp_slice=sp_slice,
            groups=(group_of(64, sp_size),),
            sp_sharding=sharding,
            align_samples=align,
        )
        return builder.build(pack, RankRow(0, 0, 0, 0, 0, sp_rank, 0, 1, 64, 1, 1, 1, 1), 0)

    whole = build(False, 0)
    name = ("zigzag", "document")[planned] if sharding == "planned" else sharding
    borders = whole.cu_seqlens
    assert whole.sharding == name
    assert borders.dtype == np.int32
    assert borders[-1] == len(whole.input_ids)
    assert borders[-1] % np.lcm(multiple, length_multiple(name, sp_size)) == 0
    unit = 2 * sp_size if align and sp_size > 1 else 1
    assert np.diff(borders)[: len(lengths)].tolist() == [-(-n // unit) * unit for n in lengths]
    assert np.diff(whole.pack.cu_seqlens).tolist() == lengths
    assert whole.max_seqlen == np.diff(borders).max()
    # The row, segment by segment.
    start = 0
    for segment, (begin, end) in enumerate(pairwise(borders)):
        n = lengths[segment] if segment < len(lengths) else 0
        tokens = ids[start : start + n].tolist()
        labels = [t if m else -100 for t, m in zip(tokens, mask[start : start + n], strict=True)]
        labels = ([-100, *labels[1:]] if n else []) + [-100] * (end - begin - n)
        assert whole.input_ids[begin:end].tolist() == tokens + [7] * (end - begin - n)
        assert whole.labels[begin:end].tolist() == labels
        assert whole.shift_labels[begin:end].tolist() == [*labels[1:], -100]
        assert whole.position_ids[begin:end].tolist() == list(range(end - begin))
        start += n
    for rank in range(sp_size):
        part = build(True, rank)
        places = local_indices(borders, sp_size, rank, name)
        assert np.array_equal(part.cu_seqlens, borders)
        for key in ("input_ids", "position_ids", "labels", "shift_labels"):
            found = getattr(part, key)
            assert found.dtype == np.int64
            assert np.array_equal(found, getattr(whole, key)[places]), key


def test_shifting_a_slice_loses_labels(packed: Any) -> None:
    """Why `shift_labels` come first: shifted slices miss a token at each seam; zigzag ones pair wrong tokens."""
    for sharding, wrong in (("contiguous", 0), ("zigzag", 1), ("document", 1)):
        ranks = [PackedDataset(packed.path, rank, 4, sp_sharding=sharding) for rank in range(4)]
        lost = paired_wrongly = 0
        for batches in zip(*ranks, strict=True):
            for batch in batches:
                if batch["sp_size"] == 1:
                    continue
                naive_shift = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
                both = (naive_shift != -100) & (batch["shift_labels"] != -100)
                paired_wrongly += int((naive_shift != batch["shift_labels"])[both].sum())
                lost += int(((naive_shift == -100) & (batch["shift_labels"] != -100)).sum())
            total = sum(int((b["shift_labels"] != -100).sum()) for b in batches if b["sp_size"] == 4)
            if batches[0]["sp_size"] == 4:
                assert total == batches[0]["num_loss_tokens"]
        assert lost > 0
        assert (paired_wrongly > 0) == bool(wrong)


@pytest.mark.parametrize("sharding", [*SHARDINGS, "planned"])
def test_fillers_are_shared_too(packed: Any, sharding: Any) -> None:
    ranks = [PackedDataset(packed.path, rank, 4, epoch=1, sp_sharding=sharding) for rank in range(4)]
    found = 0
    for batches in zip(*ranks, strict=True):
        for batch in batches:
            if batch["pack_id"] < 0:
                found += 1
                assert batch["input_ids"].shape == (1, 8)
                assert (batch["labels"] == -100).all()
                places = local_indices(
                    [0, 8 * batch["sp_size"]], batch["sp_size"], batch["sp_rank"], batch["sp_sharding"]
                )
                assert batch["position_ids"][0].tolist() == places.tolist()
    assert found


def test_reference_attention_of_one_rank_is_packed_attention() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 20, 4, 8, dtype=torch.float64)
    borders = torch.tensor([0, 7, 8, 20])
    wanted = packed_attention(q, k, v, borders)
    alone = torch.cat([packed_attention(q[a:b], k[a:b], v[a:b], [0, b - a]) for a, b in ((0, 7), (7, 8), (8, 20))])
    for found in (alone, ulysses_attention(q, k, v, borders, None), gathered_attention(q, k, v, borders, None)):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    merged = packed_attention(q, k, v, [0, 8, 20])
    assert float((merged - wanted).abs().max()) > 1e-2


def test_each_segment_gets_its_gradient_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps, the backward pass of cuDNN's attention (torch 2.11, H100, bfloat16) returns NaN."""
    gradients = []
    attention = F.scaled_dot_product_attention

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            gradients.append(gradient)
            return gradient

    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kw: Watch.apply(attention(*args, **kw)))
    q, k, v = torch.randn(3, 20, 4, 8, requires_grad=True)
    (packed_attention(q, k, v, [0, 7, 8, 20]) * torch.randn(20, 4, 8)).sum().backward()
    assert [gradient.shape[2] for gradient in gradients] == [12, 1, 7]
    assert all(gradient.is_contiguous() for gradient in gradients)


@pytest.mark.parametrize("sharding", ["zigzag", "document"])
@pytest.mark.parametrize("sp_size", [2, 4, 8])
def test_attention_of_the_parts_is_attention_of_the_whole(sharding: Any, sp_size: int) -> None:
    """As context parallelism with gathered keys computes it: each run of queries, over its sample up to its end."""
    torch.manual_seed(sp_size)
    lengths = [1, 3, 150, 2 * sp_size - 1, 31, 260]
    lengths.append(-sum(lengths) % (2 * sp_size) or 2 * sp_size)
    borders = np.cumsum([0, *lengths])
    q, k, v = torch.randn(3, int(borders[-1]), 2, 4, dtype=torch.float64).requires_grad_()
    parts = []
    for rank in range(sp_size):
        places = local_indices(borders, sp_size, rank, sharding)
        sample = borders.searchsorted(places, side="right") - 1
        begins = np.flatnonzero((np.diff(places, prepend=-2) != 1) | (np.diff(sample, prepend=-1) != 0))
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(places, begins[1:])]
        outputs = []
        for start, stop in runs:
            first = int(borders[borders.searchsorted(start, side="right") - 1])
            seen = torch.ones(stop - start, stop - first, dtype=torch.bool).tril(start - first)
            piece = (x.transpose(0, 1) for x in (q[start:stop], k[first:stop], v[first:stop]))
            outputs.append(F.scaled_dot_product_attention(*piece, attn_mask=seen).transpose(0, 1))
        parts.append(torch.cat(outputs))
    found = merge_slices(parts, torch.from_numpy(borders), sharding, dim=0)
    wanted = packed_attention(q, k, v, borders)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(wanted)
    gradients = [torch.autograd.grad((x * weights).sum(), (q, k, v), retain_graph=True) for x in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
