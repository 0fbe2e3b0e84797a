"""Pipelines of unlike numbers of stages side by side, other ones in each step (Hydraulis), on plain PyTorch. ::

    hbpack pack chats.jsonl books.parquet --tokenizer TOKENIZER --strategy hydraulis --groups 16k:1 \\
        --parallel tp=1,cp=1,pp=2 --gpus 3 --model MODEL --gpu h100 --global-tokens 256k --output OUT
    torchrun --nproc-per-node 3 unlike_pipelines.py OUT --max-steps 1000 --output runs/unlike

A step may run long samples on a pipeline of two GPUs, and short ones on a third GPU. A layer's GPU changes with the
pipeline, so each GPU holds all weights, runs the layers of its stage, and has no gradients of the others. The sum over
all GPUs is then the gradient of the step, whatever the pipelines. GPUs may also share rows (Ulysses). It trains a tiny
decoder, on a CPU as well.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pipeline_stages import Decoder, run_pipeline

from packer_cli.loader import PackedDataset
from packer_cli.loader.parallel import end_process_group, init_sp_groups


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # Pipelines meet at the end of a step only, so an item is the list of this pipeline's micro-batches.
    dataset = PackedDataset(args.packed, rank, world_size, lockstep=False, sp_sharding="contiguous")
    plan_groups = dataset.manifest["groups"]
    if any(group["tp_size"] * group["cp_size"] > 1 for group in plan_groups):
        raise SystemExit("this loop has no tensor and context parallelism; plan with --parallel tp=1,cp=1,pp=N")
    groups = init_sp_groups(dataset.replicas)

    torch.manual_seed(0)  # the same weights everywhere
    longest = max(group["capacity"] for group in plan_groups)
    model = Decoder(dataset.manifest["tokenizer"]["vocab_size"], longest).to(getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)

    num_steps, start = 0, time.perf_counter()
    while num_steps < args.max_steps:
        for batches in dataset:
            first = batches[0]
            # The plan numbers the GPUs of a pipeline side by side, stage by stage.
            loss = run_pipeline(
                model, batches, rank - first["sp_size"], rank + first["sp_size"], groups.for_batch(first)
            )
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            num_steps += 1
            tokens = sum(batch["input_ids"].numel() for batch in batches) / first["pp_size"]
            totals = torch.stack([loss, torch.tensor(tokens, dtype=loss.dtype)])
            dist.all_reduce(totals)
            if rank == 0:
                rate = totals[1] / (time.perf_counter() - start)
                print(f"step {num_steps} loss {totals[0]:.12f} grad_norm {norm:.12f} tokens/s {rate:.0f}", flush=True)
            start = time.perf_counter()
            if num_steps == args.max_steps:
                break
        else:
            dataset.set_epoch(dataset.epoch + 1)

    if rank == 0:
        args.output.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.output / "model.pt")
    end_process_group()


if __name__ == "__main__":
    main()
