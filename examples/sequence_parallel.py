"""Sequence parallelism that changes with every iteration (Ulysses), on plain PyTorch with FSDP2. ::

    hbpack pack chats.jsonl books.parquet --tokenizer TOKENIZER --groups 16k:1,128k:8 --gpus 8 --output OUT
    torchrun --nproc-per-node 8 sequence_parallel.py OUT --model MODEL --max-steps 1000 --output runs/sp

Rows of the first group run on one GPU each; eight GPUs share each row of the second. Add `--resume` to continue from
the newest checkpoint. Without `--model` it trains a tiny Llama, on CPU as well.
"""

import argparse
import os
import time
from functools import partial
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
from torch.utils.data import DataLoader
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader import PackedDataset
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.losses import batch_losses, stable_loss
from packer_cli.loader.parallel import data_rank, init_sp_groups, packed_attention, ulysses_attention


class Ulysses:
    """Replaces transformers' attention in each layer. The loop sets the row before each forward.

    For models with plain causal attention: no sliding windows, no soft caps, no attention dropout.
    """

    batch: Any  # the batch of the current row; recomputing a layer in backward reads it again
    group: dist.ProcessGroup | None  # the ranks that share it

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
        """[1, heads, t, dim] -> [1, t, heads, dim]; t is the length of this rank's slice."""
        if mask is not None or kwargs.get("sliding_window") or kwargs.get("softcap"):
            raise ValueError("this model's attention is not plain causal attention")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        attend: Any = self.flash if q.is_cuda and is_flash_attn_2_available() else packed_attention
        attend = partial(attend, scale=kwargs.get("scaling"))
        # The borders are those of the whole row, which each rank sees after the exchange.
        return ulysses_attention(q, k, v, self.batch["cu_seq_lens_q"], self.group, attention=attend)[None], None

    def flash(self, q: Any, k: Any, v: Any, cu_seqlens: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        """flash-attn over the whole row, with this rank's part of the heads."""
        from flash_attn import flash_attn_varlen_func

        borders, longest = cu_seqlens.to(q.device), self.batch["max_length_q"]
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=borders, cu_seqlens_k=borders, max_seqlen_q=longest, max_seqlen_k=longest,
            softmax_scale=scale, causal=True,
        )  # fmt: skip


def make_model(path: str | None, vocab_size: int) -> Any:
    """The model at `path`, or a tiny one. Weights stay float32; only the computation uses bfloat16."""
    attention = "ulysses"
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
    else:
        torch.manual_seed(0)  # the same weights on every rank
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    layers = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"}:
        # The states of linear attention, Mamba and convolutions would restart in each GPU's slice.
        raise SystemExit(f"the model has {', '.join(sorted(layers))} layers: Ulysses only works with full attention")
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
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = data_rank()

    # A rank of an SP group gets its slice of the group's row; Ulysses needs "contiguous" slices.
    dataset = PackedDataset(args.packed, rank, world_size, sp_sharding="contiguous")
    # Create the groups of all replicas at the start, so that an iteration only chooses one.
    groups = init_sp_groups(dataset.replicas)
    ulysses = Ulysses()
    AttentionInterface.register("ulysses", ulysses)

    model = make_model(args.model, dataset.manifest["tokenizer"]["vocab_size"])
    checkpointing = LayerCheckpointing(model)
    # Shard over all ranks, whatever the SP degree: ranks that share a row are averaged like any others.
    mesh = init_device_mesh(device.type, (world_size,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
    for layer in checkpointing.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)

    run = Run(model, optimizer, dataset)
    if args.resume:
        dcp.load({"run": run}, checkpoint_id=newest_checkpoint(args.output))

    totals, start = torch.zeros(2, device=device), time.perf_counter()
    while run.num_steps < args.max_steps:
        # batch_size=None: a batch is already a pack. remaining() is the rest of this epoch after a resume.
        for batch in DataLoader(dataset, batch_size=None, sampler=dataset.remaining()):
            # Steps differ in their number of iterations, so the plan, not a fixed count, says where one ends.
            ends_step = dataset.step_of(batch["iteration"] + 1) != batch["step"]
            checkpointing.set(batch["checkpoint_layers"])
            ulysses.batch, ulysses.group = batch, groups.for_batch(batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                inputs = {key: batch[key].to(device) for key in ("input_ids", "position_ids")}
                logits = model(**inputs, use_cache=False).logits
            # Do not shift a slice's labels: its last token's label is in the next slice. batch_losses takes
            # shift_labels, which were shifted before slicing; a row of degree 1 has none, and it shifts the labels.
            losses = batch_losses(logits, batch)
            # FSDP averages over all ranks, including those that share a row, which stable_loss undoes: it divides by
            # the loss tokens of the whole step, on all ranks and in all iterations.
            loss = stable_loss(losses.sum(), batch, world_size=world_size)
            loss.backward()
            totals += torch.stack(
                [loss.detach() / world_size, torch.tensor(batch["input_ids"].numel(), device=device)]
            )
            if not ends_step:
                continue

            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.num_steps += 1
            run.data = dataset.state_dict(batch["iteration"] + 1)  # workers may have read ahead

            dist.all_reduce(totals)
            norm = norm.full_tensor()
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
        model.save_pretrained(args.output / "final", state_dict=weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
