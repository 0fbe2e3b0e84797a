"""What each process of `test_strategies.py` runs: one of six GPUs' worth of training on CPU, a set a strategy."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from packer_cli.loader import PackedDataset
from packer_cli.loader.losses import sample_mean, stable_loss, token_losses
from packer_cli.loader.parallel import gathered_attention, init_sp_groups
from tests.loader.llama import closeness, gradients, tiny_llama
from tests.loader.sp_worker import Attention, mean_of_ranks

WORLD_SIZE = 6
EXACT = 1e-10  # float64


def main(rank: int, expected_file: str) -> None:
    """One process; any assertion that fails here fails the test."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{expected_file}.store", rank=rank, world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    attention = Attention()
    attention.function = lambda q, k, v, cu, group: gathered_attention(q, k, v, cu, group, attention.sharding)
    ALL_ATTENTION_FUNCTIONS.register("reference_gathered", attention)
    model = tiny_llama("reference_gathered")
    try:
        for folder, steps in torch.load(expected_file).items():
            check_set(rank, folder, steps, model, attention)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def check_set(rank: int, folder: str, expected: list[dict[str, Any]], model: Any, attention: Attention) -> None:
    """Each step's losses and gradients, averaged over the ranks as DDP and FSDP do it, are one process's.

    Ranks that tensor or pipeline parallelism would give a part of the model run all of it here, so they share it.
    """
    ds = PackedDataset(folder, rank, WORLD_SIZE, lockstep=False)
    groups = init_sp_groups(ds.replicas)
    steps: list[list[Any]] = [[] for _ in range(ds.num_steps)]
    for batches in ds:
        steps[batches[0]["step"]] += batches
    assert len(steps) == len(expected)
    for batches, wanted in zip(steps, expected, strict=True):
        totals = torch.zeros(2, dtype=torch.float64)
        for batch in batches:
            attention.cu_seqlens, attention.group = batch["cu_seq_lens_q"], groups.for_batch(batch)
            attention.sharding = batch["sp_sharding"]
            logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
            labels = batch["shift_labels"] if "shift_labels" in batch else shift(batch["labels"])
            losses = token_losses(logits, labels)
            share = batch["tp_size"] * batch["pp_size"]
            loss = stable_loss(losses.sum(), batch, world_size=WORLD_SIZE) / share
            loss.backward()
            mean = sample_mean(losses.detach(), batch, world_size=WORLD_SIZE) / share
            totals += torch.stack([loss.detach(), mean])
        dist.all_reduce(totals)
        torch.testing.assert_close(totals / WORLD_SIZE, wanted["totals"], rtol=EXACT, atol=EXACT)
        assert closeness(wanted["gradients"], mean_of_ranks(gradients(model))) < EXACT


def shift(labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
