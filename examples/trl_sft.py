"""TRL's SFTTrainer, with hbpack's packs and steps in place of its own packing and gradient accumulation. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 trl_sft.py OUT --model MODEL --max-steps 1000 --output runs/sft

SFTTrainer keeps its loss, its fused head (no full logits in memory) and its metrics (entropy, token accuracy). Add
`--resume` to continue from the newest checkpoint. Without `--model` it trains a tiny Llama, on CPU as well.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, TrainerCallback
from transformers.utils import is_flash_attn_2_available
from trl import SFTConfig, SFTTrainer

from packer_cli.loader import PackedDataset
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.separation import check_separation

# Models tell the samples of a row apart by these keys; seq_idx is for linear-attention and Mamba layers.
# With labels: SFTTrainer shifts them, and each sample's first one is -100, so no loss crosses samples.
MODEL_KEYS = (
    *("input_ids", "position_ids", "labels", "seq_idx"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
)

STATE_FILE = "hbpack_state.json"


def make_model(path: str | None, vocab_size: int) -> Any:
    """The model at `path`, or a tiny one. Weights stay float32; only the computation uses bfloat16."""
    attention = "flash_attention_2" if torch.cuda.is_available() and is_flash_attn_2_available() else "sdpa"
    if path is not None:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def load_tokenizer(name: str | None) -> Any:
    """The one of the set: SFTTrainer takes its padding token, and saves it beside the model."""
    if name is None or (Path(name).is_absolute() and not Path(name).exists()):
        raise SystemExit(f"the set's tokenizer ({name or 'not named'}) is not on this machine: give --tokenizer PATH")
    return AutoTokenizer.from_pretrained(name)


class Steps(torch.utils.data.IterableDataset):
    """One item is one optimizer step: the batches of its iterations, and the state of the data after it.

    The Trainer accumulates a fixed number of batches, but steps have different numbers. So its batches are whole
    steps, with an accumulation of 1, and everything that it counts in steps (max_steps, logging, saving) is right.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset
        self.state = dataset.state_dict()  # the next pass begins here, after the last trained step

    def __iter__(self) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        self.dataset.load_state_dict(self.state)
        while True:
            batches = []
            for batch in self.dataset:
                batches.append(batch)
                if self.dataset.step_of(batch["iteration"] + 1) != batch["step"]:
                    yield batches, self.dataset.state_dict(batch["iteration"] + 1)
                    batches = []
            self.dataset.set_epoch(self.dataset.epoch + 1)


class PackedSFTTrainer(SFTTrainer):
    """An SFTTrainer that trains on `steps`."""

    def __init__(self, *args: Any, steps: Steps, **kwargs: Any) -> None:
        # SFTTrainer requires a `datasets` data set and inspects its first row; this one is never trained on.
        dummy = Dataset.from_dict({"input_ids": [[0]], "labels": [[-100]]})
        super().__init__(*args, train_dataset=dummy, **kwargs)
        self.steps = steps
        self.checkpointing = LayerCheckpointing(self.model)
        self.num_tokens, self.start = 0, time.perf_counter()

    def get_train_dataloader(self) -> DataLoader:
        """The plain loader: the Trainer's own would shuffle, collate, drop keys and shard the data again."""
        return DataLoader(self.steps, batch_size=None)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of each iteration of the step; the Trainer clips and steps afterwards."""
        batches, state = inputs
        total = torch.zeros((), device=self.args.device)
        for batch in batches:
            self.checkpointing.set(batch["checkpoint_layers"])
            # SFTTrainer divides the sum of the losses by this count and undoes the average over ranks: with the
            # count of the whole step, which is in every batch, that is stable_loss.
            count = torch.tensor(batch["global_num_loss_tokens"], device=self.args.device)
            with nullcontext() if batch is batches[-1] else self.accelerator.no_sync(model):
                total += super().training_step(model, {key: batch[key] for key in MODEL_KEYS}, count)
            self.num_tokens += batch["input_ids"].numel() * self.args.world_size
        self.steps.state = state
        return total

    def floating_point_ops(self, inputs: Any) -> int:
        """The Trainer's count, which expects one batch."""
        return sum(super(PackedSFTTrainer, self).floating_point_ops(batch) for batch in inputs[0])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds tokens per second, about (this rank's times the number of ranks)."""
        if "loss" in logs:
            logs["tokens_per_second"] = self.num_tokens / (time.perf_counter() - self.start)
            self.num_tokens, self.start = 0, time.perf_counter()
            if self.is_world_process_zero():
                print(
                    f"step {self.state.global_step} loss {logs['loss']:.6f} grad_norm {logs['grad_norm']:.6f} "
                    f"tokens/s {logs['tokens_per_second']:.0f}",
                    flush=True,
                )
        super().log(logs, start_time)


class SaveData(TrainerCallback):
    """Adds the state of the data to each checkpoint."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after the rest of the checkpoint was written."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / STATE_FILE).write_text(json.dumps(self.steps.state))


def newest_checkpoint(folder: Path) -> Path:
    """The last complete one: the state of the data is written after everything else."""
    found = [file.parent for file in folder.glob(f"checkpoint-*/{STATE_FILE}")]
    if not found:
        raise SystemExit(f"no checkpoint in {folder}: start without --resume")
    return max(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", help="a transformers model; default: a tiny Llama")
    parser.add_argument("--tokenizer", help="default: the one that the set was made with, by its name in OUT")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()

    training = SFTConfig(
        output_dir=str(args.output),
        max_steps=args.max_steps,
        gradient_accumulation_steps=1,  # of whole steps
        ignore_data_skip=True,  # the data set resumes by itself; skipping would skip twice
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        average_tokens_across_devices=True,  # undoes the average over ranks
        max_length=None,  # rows already fit
        packing=False,  # the rows are packs
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,  # SFTTrainer's default is all layers; here, each batch has its number
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        logging_steps=1,
        logging_nan_inf_filter=False,  # would hide errors
        save_steps=args.save_every,
        report_to="none",
        disable_tqdm=True,
    )
    if training.n_gpu > 1:
        raise SystemExit("several GPUs in one process: start with torchrun, or the Trainer splits each row")

    dataset = PackedDataset(args.packed, training.process_index, training.world_size)
    if any(group.get("loss_weight") for group in dataset.manifest["groups"]):
        raise SystemExit("the model's own loss ignores the set's loss weights: pass loss_weights=False to do without")
    if any(group["sp_size"] > 1 for group in dataset.manifest["groups"]):
        raise SystemExit("this trainer attends within one GPU; for groups that share rows see sequence_parallel.py")
    steps = Steps(dataset)
    checkpoint = None
    if args.resume:
        checkpoint = newest_checkpoint(args.output)
        steps.state = json.loads((checkpoint / STATE_FILE).read_text())

    torch.manual_seed(0)
    model = make_model(args.model, dataset.manifest["tokenizer"]["vocab_size"])
    tokenizer = load_tokenizer(args.tokenizer or dataset.manifest["tokenizer"].get("name"))
    trainer = PackedSFTTrainer(model, training, steps=steps, processing_class=tokenizer, callbacks=[SaveData(steps)])
    check_separation(trainer.model, MODEL_KEYS)
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    trainer.save_model(str(args.output / "final"))


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
