"""Pipeline and data parallelism, on plain PyTorch: 1F1B with micro-batches of unlike lengths. ::

    hbpack pack chats.jsonl books.parquet --tokenizer TOKENIZER --strategy wlb --groups 16k:1 --parallel pp=2 \\
        --gpus 4 --output OUT
    torchrun --nproc-per-node 4 pipeline_parallel.py OUT --max-steps 1000 --output runs/pp

Each replica is a pipeline of two GPUs, and each GPU holds the layers of its stage. WLB-LLM fills the micro-batches of
a step so that they take equally long. Any set planned for `--lockstep 1` will do. It trains a tiny decoder, on a CPU
as well.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from pipeline_stages import Decoder, run_pipeline

from packer_cli.loader import PackedDataset
from packer_cli.loader.parallel import end_process_group


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
    # Replicas meet at the end of a step only, so an item is the list of this replica's micro-batches.
    dataset = PackedDataset(args.packed, rank, world_size, lockstep=False)
    (group,) = dataset.manifest["groups"]
    stages = group["pp_size"]
    if group["sp_size"] * group["cp_size"] * group["tp_size"] > 1:
        raise SystemExit("this loop has pipeline and data parallelism alone; plan with --parallel pp=N")
    stage = rank % stages  # The plan numbers the GPUs of a replica side by side.

    torch.manual_seed(0)  # the same weights in every replica
    model = Decoder(dataset.manifest["tokenizer"]["vocab_size"], group["capacity"]).to(getattr(torch, args.dtype))
    model.keep_stage(stage, stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    # Every process takes part in the creation of every group.
    of_stage = [dist.new_group(list(range(each, world_size, stages))) for each in range(stages)][stage]
    of_replica = [dist.new_group(list(range(i, i + stages))) for i in range(0, world_size, stages)][rank // stages]

    num_steps, start = 0, time.perf_counter()
    while num_steps < args.max_steps:
        for batches in dataset:
            loss = run_pipeline(model, batches, rank - 1, rank + 1)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=of_stage)
            # The norm is that of all stages.
            square = torch.stack(
                [each.grad.square().sum() for each in model.parameters() if each.grad is not None]
            ).sum()
            dist.all_reduce(square, group=of_replica)
            norm = square.sqrt()
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
            optimizer.step()
            optimizer.zero_grad()
            num_steps += 1
            tokens = torch.tensor(sum(batch["input_ids"].numel() for batch in batches), dtype=loss.dtype) / stages
            totals = torch.stack([loss, tokens])
            dist.all_reduce(totals)
            if rank == 0:
                rate = totals[1] / (time.perf_counter() - start)
                print(f"step {num_steps} loss {totals[0]:.12f} grad_norm {norm:.12f} tokens/s {rate:.0f}", flush=True)
            start = time.perf_counter()
            if num_steps == args.max_steps:
                break
        else:
            dataset.set_epoch(dataset.epoch + 1)

    if rank < stages:
        args.output.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.output / f"stage-{stage}.pt")
    end_process_group()


if __name__ == "__main__":
    main()
