"""Bradley-Terry on preference pairs as trees: a plain loop with DDP, in which GPUs may share rows (Ulysses). ::

    hbpack pack pairs.jsonl --tokenizer TOKENIZER --groups 16k:1,64k:2 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 reward_loop.py OUT --model MODEL --max-steps 1000 --output runs/reward

The prompt of a pair runs once. A sample's reward is read where the saved model reads it.
"""

import argparse
import os
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSequenceClassification

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.tree_attention import BranchRewards
from packer_cli.loader.parallel import end_process_group, init_sp_groups
from packer_cli.loader.steps import packed_steps


def pair_losses(model: Any, batch: Any, group: Any) -> torch.Tensor:
    """Bradley-Terry's loss of each pair of a row: [B]; a pair without a margin has 0."""
    chosen, rejected = model(batch, group).view(-1, 2).T
    return -F.logsigmoid(chosen - rejected - batch["margin"].nan_to_num(0.0).to(chosen))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", required=True, help="a transformers model: its folder, or its name on the Hub")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", required=True)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # DDP's ranks meet at the end of a step, so each item is a list of batches.
    dataset = PackedDataset(args.packed, rank, world_size, format="tree", lockstep=False)
    dataset.require_pairs()
    groups = init_sp_groups(dataset.replicas)
    torch.manual_seed(0)  # The layer of rewards is new, and all ranks need the same.
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=1).to(device)
    ranked = DistributedDataParallel(BranchRewards(model.train()))
    optimizer = torch.optim.AdamW(ranked.parameters(), lr=args.lr, weight_decay=0.0)
    for step in islice(packed_steps(dataset, endless=True), args.max_steps):
        total = torch.zeros((), device=device)
        for batch in step.batches:
            with nullcontext() if batch is step.batches[-1] else ranked.no_sync():
                losses = pair_losses(ranked, batch, groups.for_batch(batch))
                # DDP averages over ranks. Each of those that share a row has the gradients of its own tokens.
                loss = losses.sum() * world_size / batch["global_num_items"]
                loss.backward()
            total += loss.detach() / batch["sp_size"] / world_size
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step.number} loss {total:.6f}", flush=True)
    if rank == 0:
        model.save_pretrained(args.output)
    end_process_group()


if __name__ == "__main__":
    main()
