"""Plain PyTorch with FSDP2 or DDP: the whole training loop, with checkpoints. ::

    hbpack pack chats.jsonl books.parquet --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 pytorch_fsdp.py OUT --model MODEL --max-steps 1000 --output runs/fsdp

Rows of the first group run on one GPU each, and two GPUs share each row of the second (Ulysses).

Add `--resume` to continue from the newest checkpoint.
"""

import argparse
import os
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.step_runner import StepRunner
from packer_cli.loader.steps import packed_steps


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", required=True, help="a transformers model: its folder, or its name on the Hub")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--parallel", choices=["fsdp", "ddp"], default="fsdp")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    # The data set gets rank and world size, and shards itself: use no DistributedSampler.
    # FSDP's ranks meet in every micro-batch, DDP's only at the end of a step: then each item is a list of batches.
    dataset = PackedDataset(args.packed, rank, world_size, lockstep=args.parallel == "fsdp")
    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    # Weights stay float32; only the computation uses bfloat16.
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=attention)
    run_packed_rows(model.train())  # before anything wraps it
    model.forward = torch.autocast(device.type, torch.bfloat16, enabled=cuda)(model.forward)
    if args.parallel == "ddp":
        model = DistributedDataParallel(model.to(device))
    else:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
        for part in (*model.model.layers, model):  # which moves shards alone to the GPU
            fully_shard(part, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)

    done = 0
    if args.resume:
        found = sorted(args.output.glob("step-*/.metadata"), key=os.path.getmtime)  # it is written last
        if not found:
            parser.error(f"no checkpoint in {args.output}: start without --resume")
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments, "data": dataset}, checkpoint_id=found[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        done = int(found[-1].parent.name.removeprefix("step-"))

    runner, start = StepRunner(model, dataset, device=device), time.perf_counter()
    for number, step in enumerate(islice(packed_steps(dataset, endless=True), args.max_steps - done), start=done + 1):
        totals = torch.tensor([0.0, step.num_tokens], device=device)
        for loss in runner.losses(step):
            loss.backward()
            totals[0] += loss.detach() / world_size  # over which gradients are averaged
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor() if args.parallel == "fsdp" else norm
        optimizer.step()
        optimizer.zero_grad()

        dist.all_reduce(totals)
        if rank == 0:
            rate = totals[1] / (time.perf_counter() - start)
            print(f"step {number} loss {totals[0]:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True)
        start = time.perf_counter()
        if number % args.save_every == 0 or number == args.max_steps:
            weights, moments = get_state_dict(model, optimizer)
            run = {"model": weights, "optimizer": moments, "data": dataset}
            dcp.save(run, checkpoint_id=args.output / f"step-{number}")

    weights, _ = get_state_dict(model, [], options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        inner = model.module if args.parallel == "ddp" else model
        inner.save_pretrained(args.output / "final", state_dict=weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
