"""Plain PyTorch with FSDP2 or DDP: the whole training loop, with checkpoints. ::

    hbpack pack chats.jsonl books.parquet --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 pytorch_fsdp.py OUT --model MODEL --max-steps 1000 --output runs/fsdp

Rows of the first group run on one GPU each, and two GPUs share each row of the second (Ulysses).

Add `--resume` to continue from the newest checkpoint. Without `--model` it trains a tiny Llama, on CPU as well.
"""

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.causal_lm import check_packed_rows, run_packed_rows, run_row
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.parallel import init_sp_groups
from packer_cli.loader.steps import packed_steps


def make_model(path: str | None, vocab_size: int, device: torch.device) -> Any:
    """The model at `path`, or a tiny one. Weights stay float32; only the computation uses bfloat16."""
    attention = "flash_attention_2" if device.type == "cuda" and is_flash_attn_2_available() else "sdpa"
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
    else:
        torch.manual_seed(0)  # the same weights on every rank
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.train()


class Run:
    """The state of a run, in the form that torch.distributed.checkpoint saves, and loads in place."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, dataset: PackedDataset) -> None:
        self.model, self.optimizer, self.dataset = model, optimizer, dataset
        self.num_steps = 0
        self.data = dataset.state_dict()  # the place after the last trained step

    def state_dict(self) -> dict[str, Any]:
        """Sharded weights and optimizer, the number of steps, the place in the data."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "num_steps": self.num_steps, "data": self.data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load all of it; the data set refuses the state of another packed set."""
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.num_steps, self.data = state["num_steps"], state["data"]
        self.dataset.load_state_dict(self.data)


def newest_checkpoint(folder: Path) -> Path:
    """The last complete one: its .metadata is written after everything else."""
    found = [file.parent for file in folder.glob("step-*/.metadata")]
    if not found:
        raise SystemExit(f"no checkpoint in {folder}: start without --resume")
    return max(found, key=lambda path: int(path.name.removeprefix("step-")))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", help="a transformers model; default: a tiny Llama")
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
    # The process groups of all replicas are made at the start, so that a row only chooses one.
    groups = init_sp_groups(dataset.replicas)

    model = make_model(args.model, dataset.manifest["tokenizer"]["vocab_size"], device)
    run_packed_rows(model)  # before anything wraps it
    checkpointing = LayerCheckpointing(model)
    if args.parallel == "ddp":
        model = DistributedDataParallel(model.to(device))
    else:
        mesh = init_device_mesh(device.type, (world_size,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
        for layer in checkpointing.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)

    run = Run(model, optimizer, dataset)
    if args.resume:
        dcp.load({"run": run}, checkpoint_id=newest_checkpoint(args.output))

    check_packed_rows(model, device)
    is_ddp = isinstance(model, DistributedDataParallel)
    totals, start = torch.zeros(2, device=device), time.perf_counter()
    while run.num_steps < args.max_steps:
        for step in packed_steps(dataset):
            for batch in step.batches:
                checkpointing.set(batch["checkpoint_layers"])
                # DDP accumulates gradients until the step ends. FSDP could, too, but would keep them unsharded.
                waits = is_ddp and batch is not step.batches[-1]
                with model.no_sync() if waits else nullcontext():
                    with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                        # The token mean over the whole step, times the ranks, over which DDP and FSDP average.
                        loss = run_row(model, batch, groups.for_batch(batch), device=device, world_size=world_size)
                    loss.backward()
                totals += torch.stack(
                    [loss.detach() / world_size, torch.tensor(batch["input_ids"].numel(), device=device)]
                )

            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.num_steps += 1
            run.data = step.state

            dist.all_reduce(totals)
            norm = norm.full_tensor() if args.parallel == "fsdp" else norm
            if rank == 0:
                rate = totals[1] / (time.perf_counter() - start)
                print(
                    f"step {run.num_steps} loss {totals[0]:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True
                )
            totals.zero_()
            start = time.perf_counter()
            if run.num_steps % args.save_every == 0 or run.num_steps == args.max_steps:
                dcp.save({"run": run}, checkpoint_id=args.output / f"step-{run.num_steps}")
            if run.num_steps == args.max_steps:
                break
        else:
            dataset.set_epoch(dataset.epoch + 1)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        inner = model.module if args.parallel == "ddp" else model
        inner.save_pretrained(args.output / "final", state_dict=weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
