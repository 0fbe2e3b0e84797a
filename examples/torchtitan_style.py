"""A loop like that of torchtitan's trainer, which shows what to change there. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 torchtitan_style.py OUT --model MODEL --max-steps 1000 --output runs/titan

For torchtitan itself, set `config.dataloader = PackedDataLoader.Config(path="OUT")`, from
`packer_cli.loader.adapters.torchtitan`. Its trainer needs no change if each iteration is a step; this loop shows
the one change that steps of several iterations need. Add `--resume` to continue from the newest checkpoint.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F  # noqa: N812
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM

from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.layer_checkpointing import LayerCheckpointing

IGNORE_INDEX = -100
Microbatch = tuple[dict[str, torch.Tensor], torch.Tensor]


def endless(dataset: PackedDataset) -> Iterator[Microbatch]:
    """Batches without end, epoch after epoch, as torchtitan expects."""
    while True:
        yield from dataset
        dataset.set_epoch(dataset.epoch + 1)


class Decoder(torch.nn.Module):
    """A transformers model that is called as torchtitan calls its own: `model(tokens, positions=positions)`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.inner = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T], [T] -> [1, T, vocabulary]; documents begin where `positions == 0`."""
        # use_cache=False: with a cache, SDPA ignores position_ids and merges the samples.
        return self.inner(input_ids=tokens[None], position_ids=positions[None], use_cache=False).logits


def loss_fn(pred: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum up the losses. Labels are shifted already."""
    return F.cross_entropy(pred.float().flatten(0, -2), labels, ignore_index=IGNORE_INDEX, reduction="sum")


class Trainer:
    """The parts of torchtitan's trainer that handle data, loss and checkpoints."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.device, self.step = device, 0
        self.dataset = PackedDataset(args.packed, dist.get_rank(), dist.get_world_size(), format="torchtitan")
        if any(group["sp_size"] > 1 for group in self.dataset.manifest["groups"]):
            raise SystemExit(
                "groups that share rows need torchtitan's context parallelism, which this loop does not have"
            )
        self.model = Decoder(args.model).train()
        self.checkpointing = LayerCheckpointing(self.model)
        cuda = device.type == "cuda"
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (*self.checkpointing.layers, self.model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        for part in self.model.modules():
            if isinstance(part, FSDPModule):
                # As in torchtitan: sum gradients over ranks, since the loss is already divided.
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)  # gloo supports no other
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.0)

    def train_step(self, data_iterator: Iterator[Microbatch]) -> None:
        """One optimizer step."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        microbatches = []
        local_valid_tokens = torch.zeros((), dtype=torch.int64)
        # torchtitan: for _ in range(self.gradient_accumulation_steps). Steps differ in their number of iterations.
        ends_step = False
        while not ends_step:
            batch = next(data_iterator)
            known = metadata_of(batch)  # before the dictionary is copied
            ends_step = self.dataset.step_of(known["iteration"] + 1) != known["step"]
            input_dict, labels = batch
            local_valid_tokens += (labels != IGNORE_INDEX).sum()
            microbatches.append((known["checkpoint_layers"], dict(input_dict), labels))

        # torchtitan's own normalization. It is stable_loss: the sum is global_num_loss_tokens of the batches.
        global_valid_tokens = local_valid_tokens.to(self.device)
        dist.all_reduce(global_valid_tokens)

        totals = torch.zeros(2, device=self.device)
        for checkpoint_layers, input_dict, labels in microbatches:
            self.checkpointing.set(checkpoint_layers)
            inputs = {key: value.to(self.device) for key, value in input_dict.items()}
            pred = self.model(inputs["input"], positions=inputs["positions"])
            loss = loss_fn(pred, labels.to(self.device)) / global_valid_tokens.clamp(min=1)
            loss.backward()
            totals += torch.stack([loss.detach(), torch.tensor(labels.numel(), device=self.device)])
        norm: Any = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        norm = norm.full_tensor()
        self.optimizer.step()

        dist.all_reduce(totals)
        rate = totals[1] / (time.perf_counter() - start)
        if dist.get_rank() == 0:
            print(f"step {self.step} loss {totals[0]:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True)

    def states(self) -> dict[str, Any]:
        """Return the states that torchtitan's CheckpointManager saves; the data set and the trainer have their own
        state_dict."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "dataloader": self.dataset, "train_state": self}

    def load(self, folder: Path) -> None:
        """Load everything from the newest complete checkpoint: .metadata is written last."""
        found = [file.parent for file in folder.glob("step-*/.metadata")]
        if not found:
            raise SystemExit(f"no checkpoint in {folder}: start without --resume")
        states = self.states()
        dcp.load(states, checkpoint_id=max(found, key=lambda path: int(path.name.removeprefix("step-"))))
        set_state_dict(
            self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's own counter."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load it."""
        self.step = state["step"]


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
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    trainer = Trainer(args, device)
    if args.resume:
        trainer.load(args.output)
    data_iterator = endless(trainer.dataset)
    while trainer.step < args.max_steps:
        trainer.step += 1
        trainer.train_step(data_iterator)
        if trainer.step % args.save_every == 0 or trainer.step == args.max_steps:
            dcp.save(trainer.states(), checkpoint_id=args.output / f"step-{trainer.step}")

    weights = get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        weights = {name.removeprefix("inner."): value for name, value in weights.items()}
        trainer.model.inner.save_pretrained(args.output / "final", state_dict=weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
