"""What each process of `test_tree_processes.py` runs: a step of the plain loops for preferences, on CPU."""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from packer_cli.format.layout import Layout
from packer_cli.loader.adapters.tree_attention import BranchLogps, BranchRewards, set_tree_attention, tree_inputs
from packer_cli.loader.losses import batch_losses, stable_loss
from packer_cli.loader.parallel import init_sp_groups
from tests.loader.llama import closeness, tiny_llama, with_rewards
from tests.loader.trees import batch_of
from tests.naive.trees import pack_of

BETA = 0.3


def example(name: str) -> Any:
    """A script of `examples`, as a module."""
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_of(kind: str) -> Any:
    """A tiny Llama, or one that gives rewards."""
    model = tiny_llama()
    return with_rewards(model) if kind == "reward" else model


def reference_of(model: Any) -> Any:
    """The model before training: another one, so that the ratios are not all 1."""
    before = deepcopy(model)
    with torch.no_grad():
        for parameter in before.parameters():
            parameter.mul_(0.9)
    return before.requires_grad_(False)


def main(rank: int, world_size: int, kind: str, iterations: list[list[tuple[Any, int]]], expected_file: str) -> None:
    """One process; an iteration is (items or None, SP degree) of each replica, and all of them are one step."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{expected_file}.store", rank=rank, world_size=world_size,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    try:
        loss, gradients = run_step(rank, world_size, kind, iterations)
        expected = torch.load(expected_file)
        torch.testing.assert_close(loss, expected["loss"], rtol=1e-6, atol=0)  # Rewards are float32.
        assert closeness(gradients, expected["gradients"]) < 1e-6
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_step(rank: int, world_size: int, kind: str, iterations: list[list[tuple[Any, int]]]) -> tuple[Any, Any]:
    """The mean loss of the step's pairs, and its gradients, as the loop of the example has them."""
    batches, replicas, num_pairs = [], {}, 0
    for replicas_of_iteration in iterations:
        first = 0
        for items, degree in replicas_of_iteration:
            num_pairs += len(items or ())
            replicas.setdefault(Layout(sp=degree), set()).add(first)
            if first <= rank < first + degree:
                pack = None if items is None else pack_of(items)
                batches.append(batch_of(pack, sp_size=degree, place=rank - first))
            first += degree
        assert first == world_size
    groups = init_sp_groups({layout: sorted(firsts) for layout, firsts in replicas.items()})
    model = model_of(kind)
    num_loss_tokens = sum(batch_tokens(items) for replicas in iterations for items, _ in replicas)
    for batch in batches:
        batch.metadata["global_num_loss_tokens"] = num_loss_tokens
    wrapped, losses_of = LOOPS[kind](model)
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        with nullcontext() if batch is batches[-1] else wrapped.no_sync():
            group = groups.for_batch(batch)
            if kind == "sft":
                loss = stable_loss(losses_of(batch, group).sum(), batch, world_size=world_size)
            else:
                loss = losses_of(batch, group).sum() * world_size / num_pairs
            loss.backward()
        total += loss.detach() / (1 if kind == "sft" else batch["sp_size"]) / world_size
    dist.all_reduce(total)
    return total, {name: parameter.grad for name, parameter in model.named_parameters()}


def batch_tokens(items: Any) -> float:
    """Loss tokens of all branches."""
    return sum(sum(branch.weights) for item in items or () for branch in item)


def of_dpo(model: Any) -> Any:
    loop = example("dpo_loop")
    wrapped, reference = DistributedDataParallel(BranchLogps(model)), BranchLogps(reference_of(model))
    return wrapped, lambda batch, group: loop.pair_losses(wrapped, reference, batch, group, BETA)


def of_ipo(model: Any) -> Any:
    wrapped = DistributedDataParallel(BranchLogps(model))

    def losses_of(batch: Any, group: Any) -> torch.Tensor:
        means = (wrapped(batch, group) / batch["sample_num_loss_tokens"]).view(-1, 2)
        return (means[:, 0] - means[:, 1] - 1 / (2 * BETA)) ** 2

    return wrapped, losses_of


def of_rewards(model: Any) -> Any:
    loop = example("reward_loop")
    wrapped = DistributedDataParallel(BranchRewards(model))
    return wrapped, lambda batch, group: loop.pair_losses(wrapped, batch, group)


def of_sft(model: Any) -> Any:
    set_tree_attention(model)
    wrapped = DistributedDataParallel(model)
    cpu = torch.device("cpu")
    return wrapped, lambda batch, group: batch_losses(wrapped(**tree_inputs(batch, cpu, group)).logits, batch)


LOOPS = {"dpo": of_dpo, "ipo": of_ipo, "reward": of_rewards, "sft": of_sft}
