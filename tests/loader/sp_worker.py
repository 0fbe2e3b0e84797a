"""What each process of `test_parallel_processes.py` runs: one of four GPUs' worth of training on CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from packer_cli.format.layout import Layout
from packer_cli.loader import PackedDataset
from packer_cli.loader.losses import sample_mean, stable_loss, token_losses
from packer_cli.loader.parallel import (
    SPGroups,
    data_rank,
    gather_slices,
    gathered_attention,
    init_sp_groups,
    packed_attention,
    take_slice,
    ulysses_attention,
)
from tests.loader.llama import closeness, gradients, tiny_llama

WORLD_SIZE = 4
EXACT = 1e-10  # float64

PATHS: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": ulysses_attention,
    "zigzag": lambda q, k, v, cu, group: gathered_attention(q, k, v, cu, group, "zigzag"),
    "document": lambda q, k, v, cu, group: gathered_attention(q, k, v, cu, group, "document"),
}


class Attention:
    """transformers' side of the reference attention: [1, heads, t, dim] in, [1, t, heads, dim] out."""

    cu_seqlens: torch.Tensor
    group: Any = None
    sharding: Any = None
    function: Callable[..., torch.Tensor]

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        assert mask is None
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return self.function(q, k, v, self.cu_seqlens, self.group)[None], None


def main(rank: int, folder: str, expected_file: str) -> None:
    """One process; any assertion that fails here fails the test."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{expected_file}.store", rank=rank, world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    try:
        groups = init_sp_groups({Layout(sp=4): (0,), Layout(): (0, 1, 2, 3), Layout(sp=2): (0, 1, 2)})
        check_groups(rank, groups)
        check_meshes(rank)
        check_attention(groups, 4, 2)
        check_attention(groups, 12, 3)
        check_training(rank, groups, Path(folder), torch.load(expected_file))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def place_of(layout: Layout, gpu: int) -> dict[str, int]:
    """What a batch says of where it runs."""
    return {**layout.sizes, **layout.place(gpu)._asdict()}


def check_groups(rank: int, groups: SPGroups) -> None:
    # Ranks 1 and 2 share a replica across the border of two others.
    of_two = [first for first in (0, 1, 2) if first <= rank < first + 2]
    assert (groups.rank, groups.world_size) == (rank, WORLD_SIZE)
    assert sorted(groups.groups) == [*((Layout(sp=2), first) for first in of_two), (Layout(sp=4), 0)]
    assert groups.for_batch(place_of(Layout(), 0)) is None
    for layout, first in groups.groups:
        ranks = list(range(first, first + layout.sp))
        found = groups.for_batch(place_of(layout, rank - first))
        assert dist.get_process_group_ranks(found) == ranks
    check_layouts(rank)
    with pytest.raises(ValueError) as error:
        groups.for_batch(place_of(Layout(sp=8), 3))
    known = ", ".join(f"{first}-{first + layout.num_gpus - 1}" for layout, first in groups.groups)
    assert str(error.value) == (
        f"the batch is for place 3 of 8 ranks, which for this process, rank {rank}, are ranks {rank - 3}-{rank + 4}, "
        f"and it has process groups of {known}: give PackedDataset the same rank, and init_sp_groups the replicas of "
        "the same set"
    )
    with pytest.raises(ValueError) as error:
        init_sp_groups({Layout(sp=3): (2,)})
    assert str(error.value) == (
        "a replica of 3 ranks from rank 2 on does not fit the 4 ranks that read the set: use the replicas of the same "
        "set"
    )
    with pytest.raises(ValueError, match=rf"rank {rank} is not among the ranks that read the set: \[7, 8\]"):
        data_rank([7, 8])


def check_layouts(rank: int) -> None:
    """With tensor parallelism inside, the ranks that share a row are not side by side; each stage has its own."""
    for layout, sharing in ((Layout(cp=2, tp=2), [[0, 2], [1, 3]]), (Layout(cp=2, pp=2), [[0, 1], [2, 3]])):
        found = init_sp_groups({layout: (0,)}).for_batch(place_of(layout, rank))
        assert dist.get_process_group_ranks(found) in sharing
        assert rank in dist.get_process_group_ranks(found)
    layout = Layout(tp=2, pp=2)
    assert init_sp_groups({layout: (0,)}).for_batch(place_of(layout, rank)) is None


def check_meshes(rank: int) -> None:
    """Of a mesh, only the dimensions whose ranks take different batches count; tp here takes the same ones."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tp"))
    assert data_rank(mesh["data"]) == (rank // 2, 2)
    assert data_rank(mesh) == (rank, 4)
    groups = init_sp_groups({Layout(sp=2): (0,)}, mesh["data"])
    assert (groups.rank, groups.world_size) == (rank // 2, 2)
    found = groups.for_batch(place_of(Layout(sp=2), rank // 2))
    assert dist.get_process_group_ranks(found) == [rank % 2, rank % 2 + 2]
    # Plain rank numbers, in another order than the global one.
    assert data_rank([3, 2, 1, 0]) == (3 - rank, 4)


def check_attention(groups: SPGroups, num_heads: int, kv_heads: int) -> None:
    """Against one process, with copied key-value heads (2 or 3 for a degree of 4) and rows that do not divide."""
    borders = torch.tensor([0, 5, 6, 30, 40], dtype=torch.int32)
    torch.manual_seed(1)
    whole = [
        torch.randn(40, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (num_heads, kv_heads, kv_heads)
    ]
    target = torch.randn(40, num_heads, 8, dtype=torch.float64)
    wanted = packed_attention(*whole, borders)
    wanted_grads = torch.autograd.grad((wanted * target).sum(), whole)
    for degree in (1, 2, 4):
        place = groups.rank % degree
        group = groups.for_batch(place_of(Layout(sp=degree), place))
        for sharding, function in PATHS.items():

            def part(x: torch.Tensor, sharding: Any = sharding, degree: int = degree, place: int = place) -> Any:
                return take_slice(x, borders, degree, place, sharding, dim=0)

            mine = [part(x.detach()).requires_grad_() for x in whole]
            found = function(*mine, borders, group)
            torch.testing.assert_close(found, part(wanted), rtol=EXACT, atol=EXACT)
            gathered = gather_slices(found, borders, group, sharding, dim=0)
            torch.testing.assert_close(gathered, wanted.detach(), rtol=EXACT, atol=EXACT)
            grads = torch.autograd.grad((found * part(target)).sum(), mine)
            for one, other in zip(grads, wanted_grads, strict=True):
                torch.testing.assert_close(one, part(other), rtol=EXACT, atol=EXACT)
    if groups.rank == 0:
        with pytest.raises(ValueError) as error:
            ulysses_attention(*torch.zeros(3, 10, 3, 8), borders, groups.groups[Layout(sp=4), 0])
        assert str(error.value) == (
            "3 attention heads cannot be split over 4 ranks: Ulysses needs an SP degree that divides the heads"
        )


def check_training(rank: int, groups: SPGroups, folder: Path, expected: dict[str, Any]) -> None:
    """A whole epoch, iterations of degrees 1, 2 and 4 mixed: each step's losses and gradients are one process's."""
    attention = Attention()
    ALL_ATTENTION_FUNCTIONS.register("reference_sp", attention)
    model = tiny_llama("reference_sp")
    for sharding in ("contiguous", "zigzag", "document", "planned"):
        ds = PackedDataset(folder, rank, WORLD_SIZE, sp_sharding=sharding)
        degrees, fillers, planned = set(), 0, set()
        steps: dict[int, list[Any]] = {}
        for batch in ds:
            steps.setdefault(batch["step"], []).append(batch)
        for step, batches in steps.items():
            totals = torch.zeros(2, dtype=torch.float64)
            for batch in batches:
                degrees.add(batch["sp_size"])
                fillers += batch["pack_id"] < 0
                planned.add(batch["sp_sharding"])
                attention.cu_seqlens, attention.group = batch["cu_seq_lens_q"], groups.for_batch(batch)
                attention.function = PATHS[batch["sp_sharding"]]
                logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
                labels = batch["shift_labels"] if batch["sp_size"] > 1 else shift(batch["labels"])
                losses = token_losses(logits, labels)
                loss = stable_loss(losses.sum(), batch, world_size=WORLD_SIZE)
                loss.backward()
                totals += torch.stack([loss.detach(), sample_mean(losses.detach(), batch, world_size=WORLD_SIZE)])
                if batch["pack_id"] >= 0:
                    row = gather_slices(losses, batch["cu_seq_lens_q"], attention.group, batch["sp_sharding"])
                    wanted = expected["losses"][batch["pack_id"]]
                    torch.testing.assert_close(row[: len(wanted)], wanted, rtol=EXACT, atol=EXACT)
                    assert not row[len(wanted) :].any()
            # As DDP and FSDP do it: the mean over all ranks.
            dist.all_reduce(totals)
            torch.testing.assert_close(totals / WORLD_SIZE, expected["totals"][step], rtol=EXACT, atol=EXACT)
            assert closeness(expected["gradients"][step], mean_of_ranks(gradients(model))) < EXACT
        assert degrees == {1, 2, 4}
        assert rank != WORLD_SIZE - 1 or fillers > 0, "no filler was trained"
        assert planned == ({"zigzag", "document"} if sharding == "planned" else {sharding})
    check_planted_errors(groups, attention, model, folder, expected)


def mean_of_ranks(grads: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients, averaged over all ranks in one exchange."""
    flat = torch.cat([grad.flatten() for grad in grads.values()])
    dist.all_reduce(flat)
    parts = (flat / dist.get_world_size()).split([grad.numel() for grad in grads.values()])
    return {name: part.view_as(grads[name]) for name, part in zip(grads, parts, strict=True)}


def check_planted_errors(groups: SPGroups, attention: Attention, model: Any, folder: Path, expected: Any) -> None:
    """The comparison above would notice a lost border, and slices that do not match the attention."""
    for sharding, function in (("contiguous", "contiguous"), ("zigzag", "zigzag"), ("document", "zigzag")):
        ds = PackedDataset(folder, groups.rank, WORLD_SIZE, sp_sharding=sharding, pad_to_multiple_of=8)
        batch = next(
            b for b in ds if b["sp_size"] == 4 and b["num_samples"] > 1 and b["sample_num_loss_tokens"][1] > 3
        )
        borders = batch["cu_seq_lens_q"]
        attention.group, attention.function = groups.for_batch(batch), PATHS[function]
        attention.cu_seqlens = borders if sharding != function else torch.cat([borders[:1], borders[2:]])
        logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
        losses = gather_slices(token_losses(logits, batch["shift_labels"]), borders, attention.group, sharding)
        wanted = expected["losses"][batch["pack_id"]]
        assert float((losses[: len(wanted)] - wanted).abs().max()) > 1e-3, sharding


def shift(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
