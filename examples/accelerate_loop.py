"""Hugging Face Accelerate: its usual loop, without its handling of data loaders. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    accelerate launch --num_processes 2 accelerate_loop.py OUT --model MODEL --max-steps 1000 --output runs/a

Add `--resume` to continue from the newest checkpoint.
"""

import argparse
import os
import time
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
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
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
    if accelerator.gradient_accumulation_steps != 1:
        parser.error("gradient_accumulation_steps must be 1: the packed set determines where steps end")
    dataset = PackedDataset(args.packed, accelerator.process_index, accelerator.num_processes)
    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    # Weights stay float32; only the computation uses bfloat16.
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=attention)
    run_packed_rows(model.train())  # before anything wraps it
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    # Not the loader: `prepare` would shard its batches again, and each rank would train on a part of its own.
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(dataset)  # its place is a part of what save_state saves
    done = 0
    if args.resume:
        found = sorted(args.output.glob("step-*/whole"), key=os.path.getmtime)
        if not found:
            parser.error(f"no checkpoint in {args.output}: start without --resume")
        accelerator.load_state(str(found[-1].parent))
        done = int(found[-1].parent.name.removeprefix("step-"))

    runner, start = StepRunner(model, dataset, device=accelerator.device), time.perf_counter()
    for number, step in enumerate(islice(packed_steps(dataset, endless=True), args.max_steps - done), start=done + 1):
        totals = torch.tensor([0.0, step.num_tokens], device=accelerator.device)
        for loss in runner.losses(step):
            accelerator.backward(loss)
            totals[0] += loss.detach() / accelerator.num_processes  # over which gradients are averaged
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        totals, now = accelerator.reduce(totals), time.perf_counter()
        rate, start = totals[1] / (now - start), now
        accelerator.print(f"step {number} loss {totals[0]:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True)
        if number % args.save_every == 0 or number == args.max_steps:
            folder = args.output / f"step-{number}"
            accelerator.save_state(str(folder))
            accelerator.wait_for_everyone()
            (folder / "whole").touch()

    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(args.output / "final", state_dict=weights)
    accelerator.end_training()


if __name__ == "__main__":
    main()
