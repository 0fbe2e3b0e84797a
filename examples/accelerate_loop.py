"""Hugging Face Accelerate: its usual loop, without its handling of data loaders. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    accelerate launch --num_processes 2 accelerate_loop.py OUT --model MODEL --max-steps 1000 --output runs/a

Add `--resume` to continue from the newest checkpoint. Without `--model` it trains a tiny Llama, on CPU as well.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.causal_lm import check_packed_rows, run_packed_rows, run_row
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.parallel import init_sp_groups
from packer_cli.loader.steps import packed_steps


def make_model(path: str | None, vocab_size: int) -> Any:
    """The model at `path`, or a tiny one. Weights stay float32; only the computation uses bfloat16."""
    attention = "flash_attention_2" if torch.cuda.is_available() and is_flash_attn_2_available() else "sdpa"
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
    else:
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.train()


class Progress:
    """Saved by `save_state` with the weights: the number of steps, and the place after the last trained step."""

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset
        self.num_steps = 0
        self.data = dataset.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Called by `save_state`."""
        return {"num_steps": self.num_steps, "data": self.data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by `load_state`; the data set refuses the state of another packed set."""
        self.num_steps, self.data = state["num_steps"], state["data"]
        self.dataset.load_state_dict(self.data)


def newest_checkpoint(folder: Path) -> Path:
    """The last complete one."""
    found = [file.parent for file in folder.glob("step-*/whole")]
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
    args = parser.parse_args()

    # No gradient_accumulation_steps here or in the launcher's config: `backward` would divide every loss by it.
    cuda = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
    if accelerator.gradient_accumulation_steps != 1:
        raise SystemExit("gradient_accumulation_steps must be 1: the packed set determines where steps end")
    device, world_size = accelerator.device, accelerator.num_processes

    dataset = PackedDataset(args.packed, accelerator.process_index, world_size)
    groups = init_sp_groups(dataset.replicas) if world_size > 1 else None

    torch.manual_seed(0)
    model = make_model(args.model, dataset.manifest["tokenizer"]["vocab_size"])
    run_packed_rows(model)  # before anything wraps it
    checkpointing = LayerCheckpointing(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    # Not the loader: `prepare` would shard its batches again, and each rank would train on a part of its own.
    model, optimizer = accelerator.prepare(model, optimizer)

    progress = Progress(dataset)
    accelerator.register_for_checkpointing(progress)
    if args.resume:
        accelerator.load_state(str(newest_checkpoint(args.output)))

    check_packed_rows(model, device)
    totals, start = torch.zeros(2, device=device), time.perf_counter()
    while progress.num_steps < args.max_steps:
        # Instead of `accelerator.accumulate`, which counts to a fixed number: steps have different numbers.
        for planned in packed_steps(dataset):
            for batch in planned.batches:
                checkpointing.set(batch["checkpoint_layers"])
                group = None if groups is None else groups.for_batch(batch)
                with nullcontext() if batch is planned.batches[-1] else accelerator.no_sync(model):
                    # The token mean over the whole step, times the ranks, over which gradients are averaged.
                    loss = run_row(model, batch, group, device=device, world_size=world_size)
                    accelerator.backward(loss)
                totals += torch.stack(
                    [loss.detach() / world_size, torch.tensor(batch["input_ids"].numel(), device=device)]
                )

            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress.num_steps += 1
            progress.data = planned.state

            step, sums = progress.num_steps, accelerator.reduce(totals)
            rate = sums[1] / (time.perf_counter() - start)
            accelerator.print(f"step {step} loss {sums[0]:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True)
            totals.zero_()
            start = time.perf_counter()
            if step % args.save_every == 0 or step == args.max_steps:
                folder = args.output / f"step-{step}"
                accelerator.save_state(str(folder))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    (folder / "whole").touch()
            if step == args.max_steps:
                break
        else:
            dataset.set_epoch(dataset.epoch + 1)

    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(args.output / "final", state_dict=weights)
    accelerator.end_training()


if __name__ == "__main__":
    main()
