"""Megatron-LM's own functions, or their exact rules, take the batches apart as they were put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from packer_cli.loader import PackedDataset
from packer_cli.loader.losses import token_losses
from packer_cli.loader.parallel import local_indices
from tests.loader.llama import sample_losses, tiny_llama

Receive = Callable[[Any, int, int], tuple[Any, ...]]
SCHEDULE = "megatron.core.datasets.data_schedule"


def partitioned_indices(cu_seqlens: torch.Tensor, total: int, size: int, rank: int) -> torch.Tensor:
    """TransformerEngine's `thd_get_partitioned_indices`: chunks `rank` and `2 * size - 1 - rank` of each sample."""
    assert total == cu_seqlens[-1]
    assert (cu_seqlens % (2 * size) == 0).all()
    found = []
    for start, stop in zip(cu_seqlens.tolist(), cu_seqlens[1:].tolist(), strict=False):
        chunks = torch.arange(start, stop).chunk(2 * size)
        found += [chunks[rank], chunks[-1 - rank]]
    return torch.cat(found)


def receive_by_rule(batch: dict[str, Any], cp_size: int, cp_rank: int) -> tuple[Any, ...]:
    """What `get_batch_on_this_rank_for_sequence_packing` does on a rank that is the first and the last stage.

    `megatron/core/datasets/data_schedule.py` of NVIDIA/Megatron-LM d98e8a6, lines 34 to 78 and 742 to 906.
    """
    batch = dict(batch)
    cu_seqlens, padded = batch["cu_seqlens"], batch["cu_seqlens_padded"]
    assert cu_seqlens.dtype == padded.dtype == batch["max_seqlen"].dtype == torch.int32
    assert cu_seqlens.dim() == padded.dim() == batch["max_seqlen"].numel() == 1
    assert cu_seqlens.numel() == padded.numel()
    total = int(padded[-1])
    positions = torch.arange(total, dtype=torch.int32)
    sequence = torch.searchsorted(padded[1:].contiguous(), positions, right=True)
    ends = padded[:-1] + (cu_seqlens[1:] - cu_seqlens[:-1]).clamp(min=0)
    mask = positions >= ends[sequence]
    dtypes = {"tokens": torch.int64, "labels": torch.int64, "loss_mask": torch.float32, "position_ids": torch.int64}
    index = partitioned_indices(padded, total, cp_size, cp_rank) if cp_size > 1 else torch.arange(total)
    for key, dtype in dtypes.items():
        assert batch[key].dim() == 1
        assert batch[key].numel() == total
        assert batch[key].dtype == dtype
        batch[key] = batch[key].masked_fill(mask, 0)[index][None]
    params = SimpleNamespace(
        cu_seqlens_q=padded, cu_seqlens_kv=padded, cu_seqlens_q_padded=padded, max_seqlen_q=batch["max_seqlen"].item()
    )
    return (*(batch[key] for key in ("tokens", "labels", "loss_mask")), None, batch["position_ids"], params,
            mask[index][None])  # fmt: skip


def patch_partitions(monkeypatch: pytest.MonkeyPatch, schedule: Any) -> None:
    """Replace TransformerEngine's function, which needs a GPU, where the branch's `schedule` finds it."""
    if hasattr(schedule, "tex"):
        monkeypatch.setattr(schedule, "tex", SimpleNamespace(thd_get_partitioned_indices=partitioned_indices))
    else:
        monkeypatch.setattr(f"{SCHEDULE}_utils.get_thd_partitioned_indices", partitioned_indices)


@pytest.fixture(params=["rule", "megatron-core"])
def receive(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Receive]:
    """The receiving function of Megatron-LM, where the installed megatron-core has it, and its rule."""
    if request.param == "rule":
        yield receive_by_rule
        return
    schedule = pytest.importorskip(SCHEDULE)
    if not hasattr(schedule, "get_batch_on_this_rank_for_sequence_packing"):
        pytest.skip("this release of megatron-core has no get_batch_on_this_rank_for_sequence_packing")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    patch_partitions(monkeypatch, schedule)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    def receive(batch: dict[str, Any], cp_size: int, cp_rank: int) -> tuple[Any, ...]:
        alone = dist.group.WORLD
        context = SimpleNamespace(size=lambda: cp_size, rank=lambda: cp_rank)
        groups = SimpleNamespace(tp=alone, pp=alone, cp=context)
        return schedule.get_batch_on_this_rank_for_sequence_packing(iter([dict(batch)]), pg_collection=groups)

    yield receive
    dist.destroy_process_group()


def open_set(packed: Any, name: str, rank: int = 0, **kwargs: Any) -> PackedDataset:
    return PackedDataset(packed.path, rank, packed.num_gpus, format=name, **kwargs)


@pytest.mark.parametrize("pad_to", ["multiple", "capacity"])
def test_thd_batches_are_received(packed: Any, receive: Receive, pad_to: Any) -> None:
    seen, padded_rows = set(), 0
    for batch in open_set(packed, "megatron-thd", pad_to=pad_to, pad_to_multiple_of=5):
        size = batch["sp_size"]
        real = torch.zeros(len(batch["tokens"]), dtype=torch.bool)
        for start, length in zip(
            batch["cu_seqlens_padded"].tolist(), batch["cu_seqlens"].diff().tolist(), strict=False
        ):
            real[start : start + length] = True
        assert int(real.sum()) == sum(len(packed.samples[i].tokens) for i in batch["sample_ids"].tolist())
        padded_rows += not real.all()
        for rank in range(size):
            tokens, labels, loss_mask, attention_mask, positions, params, padding_mask = receive(batch, size, rank)
            index = local_indices(batch["cu_seqlens_padded"].numpy(), size, rank, "document")
            assert attention_mask is None
            assert torch.equal(padding_mask[0], ~real[index])
            assert torch.equal(tokens[0], batch["tokens"][index].where(real[index], 0))
            assert torch.equal(positions[0], batch["position_ids"][index].where(real[index], 0))
            assert torch.equal(loss_mask[0], batch["loss_mask"][index])
            assert torch.equal(labels[0], batch["labels"][index].where(real[index], 0))
            assert torch.equal(params.cu_seqlens_q_padded, batch["cu_seqlens_padded"])
            assert params.max_seqlen_q == batch["cu_seqlens_padded"].diff().max()
        seen.add(size)
    assert seen == {1, 2, 4}
    assert padded_rows


def test_what_is_received_gives_the_losses_of_the_samples(packed: Any, receive: Receive) -> None:
    model = tiny_llama("sdpa")
    batches = [b for b in open_set(packed, "megatron-thd") if b["sp_size"] > 1 and b["num_samples"] > 2]
    assert len(batches) > 1
    for batch in batches[:2]:
        tokens, labels, loss_mask, _, _, params, _ = receive(batch, 1, 0)
        # Megatron's attention goes by the borders, transformers' by the positions.
        borders = params.cu_seqlens_q_padded
        positions = torch.arange(tokens.numel()) - borders[:-1].long().repeat_interleave(borders.diff())
        losses = token_losses(model(input_ids=tokens, position_ids=positions[None]).logits, labels) * loss_mask[0]
        wanted = torch.cat(sample_losses(model, [packed.samples[i] for i in batch["sample_ids"].tolist()]))
        torch.testing.assert_close(losses[losses > 0], wanted[wanted > 0], rtol=1e-10, atol=1e-10)
        one = torch.arange(tokens.numel())[None]
        merged = token_losses(model(input_ids=tokens, position_ids=one).logits, labels) * loss_mask[0]
        assert abs(merged.sum().item() - wanted.sum().item()) > 1e-2


def group_by_rule(rank: int, size: int, world_size: int) -> list[int]:
    """Ranks of `get_dynamic_data_context_parallel_groups`, which has groups of powers of two, and of all ranks.

    `megatron/core/parallel_state.py` of NVIDIA/Megatron-LM d48bd6b (branch dev), lines 421 to 441 and 1541 to 1549.
    """
    assert size == world_size or size.bit_count() == 1
    first = rank // size * size
    return list(range(first, first + size))


def receive_by_dynamic_rule(batch: dict[str, Any], rank: int, world_size: int) -> tuple[Any, ...]:
    """What `get_batch_on_this_rank_for_sequence_packing` does with `dynamic_cp=True`.

    `megatron/core/datasets/data_schedule.py` of NVIDIA/Megatron-LM d48bd6b (branch dev), lines 606 to 634 and 827
    to 849; what is in between is as in `receive_by_rule`.
    """
    assert batch["local_cp_size"].dtype == torch.int32
    assert batch["local_cp_size"].shape == torch.empty(1).shape, "the buffer of tensor-parallel receivers"
    size = int(batch["local_cp_size"].item())
    received = receive_by_rule(batch, size, group_by_rule(rank, size, world_size).index(rank))
    params = received[-2]
    params.cu_seqlens_q, params.local_cp_size = batch["cu_seqlens"], size
    return received


@pytest.fixture(params=["rule", "megatron-core"])
def receive_dynamic(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Receive]:
    """As `receive`, with dynamic CP: the arguments are a batch, a rank and the number of ranks."""
    if request.param == "rule":
        yield receive_by_dynamic_rule
        return
    schedule = pytest.importorskip(SCHEDULE)
    function = getattr(schedule, "get_batch_on_this_rank_for_sequence_packing", None)
    if function is None or "dynamic_cp" not in signature(function).parameters:
        pytest.skip("this release of megatron-core has no dynamic CP for packed rows")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    patch_partitions(monkeypatch, schedule)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    def receive(batch: dict[str, Any], rank: int, world_size: int) -> tuple[Any, ...]:
        def group_of(*, group_size: int) -> Any:
            place = group_by_rule(rank, group_size, world_size).index(rank)
            return SimpleNamespace(size=lambda: group_size, rank=lambda: place)

        monkeypatch.setattr(schedule.parallel_state, "get_dynamic_data_context_parallel_groups", group_of)
        groups = SimpleNamespace(tp=dist.group.WORLD, pp=dist.group.WORLD, cp=None)
        return function(iter([dict(batch)]), dynamic_cp=True, pg_collection=groups)

    yield receive
    dist.destroy_process_group()


def test_dynamic_cp_receives_each_row_in_its_group(packed: Any, receive_dynamic: Receive) -> None:
    seen = set()
    for rank in range(packed.num_gpus):
        for batch in open_set(packed, "megatron-thd", rank):
            size = batch["sp_size"]
            tokens, labels, loss_mask, _, _, params, _ = receive_dynamic(batch, rank, packed.num_gpus)
            assert group_by_rule(rank, size, packed.num_gpus)[0] == rank - batch["sp_rank"], "another group's row"
            index = local_indices(batch["cu_seqlens_padded"].numpy(), size, batch["sp_rank"], "document")
            assert torch.equal(loss_mask[0], batch["loss_mask"][index])
            assert torch.equal(labels[0] * loss_mask[0].bool(), batch["labels"][index].clamp(min=0))
            assert torch.equal(tokens[0][loss_mask[0] > 0], batch["tokens"][index][loss_mask[0] > 0])
            assert params.local_cp_size == size
            assert torch.equal(params.cu_seqlens_q, batch["cu_seqlens"])
            assert torch.equal(params.cu_seqlens_q_padded, batch["cu_seqlens_padded"])
            seen.add(size)
    assert seen == {1, 2, 4}


def test_a_step_with_dynamic_cp_has_the_loss_of_its_samples(packed: Any, receive_dynamic: Receive) -> None:
    """Dynamic CP requires `--calculate-per-token-loss`: sums over all ranks of losses, divided by those of tokens.

    `loss_func` of `pretrain_gpt.py` and `finalize_model_grads`, whatever number of micro-batches a rank has.
    """
    model = tiny_llama("sdpa")
    rows: dict[int, dict[bool, torch.Tensor]] = {}
    totals, num_tokens, degrees, samples = {True: 0.0, False: 0.0}, 0.0, set(), set()
    step = next(b["step"] for b in open_set(packed, "megatron-thd") if b["sp_size"] == 2 and b["num_samples"] > 2)
    for rank in range(packed.num_gpus):
        for batch in open_set(packed, "megatron-thd", rank):
            if batch["step"] != step or not batch["num_samples"]:
                continue
            if batch["pack_id"] not in rows:
                rows[batch["pack_id"]] = {apart: row_losses(model, batch, apart=apart) for apart in (True, False)}
            loss_mask = receive_dynamic(batch, rank, packed.num_gpus)[2][0]
            index = local_indices(batch["cu_seqlens_padded"].numpy(), batch["sp_size"], batch["sp_rank"], "document")
            for apart in totals:
                totals[apart] += float((rows[batch["pack_id"]][apart][index] * loss_mask).sum())
            num_tokens += float(loss_mask.sum())
            degrees.add(batch["sp_size"])
            samples |= set(batch["sample_ids"].tolist())
    wanted = torch.cat(sample_losses(model, [packed.samples[i] for i in sorted(samples)]))
    assert num_tokens == sum(sum(packed.samples[i].mask) for i in samples)
    assert totals[True] / num_tokens == pytest.approx(float(wanted.sum()) / num_tokens, rel=1e-10)
    assert abs(totals[False] - totals[True]) > 1e-2, "merged samples must show"
    assert len(degrees) > 1


def row_losses(model: Any, batch: dict[str, Any], *, apart: bool) -> torch.Tensor:
    """float64 [T]: the loss of each token of a whole row; not `apart`: as one sample."""
    borders = batch["cu_seqlens_padded"]
    positions = torch.arange(len(batch["tokens"]))
    if apart:
        positions = positions - borders[:-1].long().repeat_interleave(borders.diff())
    with torch.no_grad():
        logits = model(input_ids=batch["tokens"][None], position_ids=positions[None]).logits
    return token_losses(logits, batch["labels"][None])


def test_attention_is_given_the_group_of_each_row(packed: Any) -> None:
    """`TEDotProductAttention.forward` keeps the last group unless a row names its own, or degree 1.

    `megatron/core/extensions/transformer_engine.py` of NVIDIA/Megatron-LM d98e8a6, lines 2256 to 2274; the same in
    megatron-core 0.16 and 0.19.
    """
    held, turned_off = None, 0
    for batch in open_set(packed, "megatron", sp_slice=True):
        size, before = batch["packed_seq_params"]["local_cp_size"], held
        group = f"{size} ranks" if batch["sp_size"] > 1 else None
        if group is not None:
            held = group
        elif size is not None:
            assert size == 1
            held = None
        assert held == group
        turned_off += before is not None and group is None
    assert turned_off


@pytest.mark.parametrize(("unit", "is_enough"), [(32, False), (32 * 4, True)])
def test_parts_of_rows_are_whole_blocks_of_mxfp8(packed: Any, unit: int, is_enough: bool) -> None:
    """32 tokens, `get_fp8_align_size` of `megatron/core/fp8_utils.py`, NVIDIA/Megatron-LM d98e8a6.

    Of the part of a row that a GPU holds: so the row needs them times the degree, of which 4 is the largest here.
    """
    batches = open_set(packed, "megatron", sp_slice=True, pad_to_multiple_of=unit)
    assert all(batch["tokens"].shape[1] % 32 == 0 for batch in batches) == is_enough


def number_by_rule(cu_seqlens: torch.Tensor, total_tokens: int) -> torch.Tensor:
    """`seq_idx` of `PackedSeqParams.__post_init__`, `megatron/core/packed_seq_params.py`, same commit."""
    lengths = torch.cat([cu_seqlens, torch.tensor([total_tokens], dtype=cu_seqlens.dtype)]).diff().clamp(min=0)
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(torch.int32)[None]


def test_total_tokens_number_the_samples_for_mamba_layers(packed: Any) -> None:
    """It stands beside `packed_seq_params`, as releases up to 0.16 do not know it."""
    for batch in open_set(packed, "megatron"):
        assert "total_tokens" not in batch["packed_seq_params"]
        borders = batch["packed_seq_params"]["cu_seqlens_q"]
        wanted = torch.from_numpy(np.repeat(np.arange(len(borders) - 1), np.diff(borders.numpy())).astype(np.int32))
        assert torch.equal(number_by_rule(borders, batch["total_tokens"])[0], wanted)


def test_the_parameters_of_megatron_core_number_the_samples(packed: Any) -> None:
    params = pytest.importorskip("megatron.core.packed_seq_params").PackedSeqParams
    if "total_tokens" not in {field.name for field in fields(params)}:
        pytest.skip("this release of megatron-core has no total_tokens")
    for batch in open_set(packed, "megatron"):
        made = params(**batch["packed_seq_params"], total_tokens=batch["total_tokens"])
        assert torch.equal(
            made.seq_idx, number_by_rule(batch["packed_seq_params"]["cu_seqlens_q"], batch["total_tokens"])
        )
        assert made.seq_idx.shape == batch["tokens"].shape


def test_full_rows_for_tensor_parallel_receivers(packed: Any) -> None:
    """`get_batch_on_this_tp_rank` (megatron/core/utils.py) receives into [micro_batch_size, seq_length]."""
    kinds = set()
    last = packed.num_gpus - 1  # which gets the fillers
    for batch in PackedDataset(packed.path, last, packed.num_gpus, format="megatron", pad_to="capacity"):
        if batch["sp_size"] == 1:
            assert batch["tokens"].shape == (1, packed.groups[batch["group"]][0])
            assert batch["cu_seqlens"][0, -1] == batch["total_tokens"] == batch["tokens"].shape[1]
            kinds.add(batch["num_samples"] > 0)
    assert kinds == {True, False}, "no filler"
