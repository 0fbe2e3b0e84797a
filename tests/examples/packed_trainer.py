"""A Trainer as users write it, in the ways that the examples leave out: `packed_trainer.py SET MODEL OUTPUT WAY`."""

import sys
from typing import Any

import accelerate.state
import torch
from accelerate.utils import DistributedType
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from packer_cli.loader.adapters.transformers import packed
from tests.examples.reference import LEARNING_RATE


class Print(TrainerCallback):
    """As the examples print."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            print(
                f"step {state.global_step} loss {logs['loss']:.6f} grad_norm {logs['grad_norm']:.6f} "
                f"tokens/s {logs['tokens_per_second']:.0f}"
            )
            print(f"epoch {state.epoch:.6f} after step {state.global_step}")
        elif "eval_loss" in logs:
            print(f"evaluated {logs['eval_loss']:.6f} after step {state.global_step}")


def allow_fsdp_on_cpus() -> None:
    """accelerate leaves FSDP out on CPUs, where torch has it."""
    original = accelerate.state.AcceleratorState.__init__

    def init(self: Any, *arguments: Any, fsdp_plugin: Any = None, **others: Any) -> None:
        original(self, *arguments, fsdp_plugin=fsdp_plugin, **others)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    accelerate.state.AcceleratorState.__init__ = init


def main(path: str, model_folder: str, output: str, way: str) -> None:
    options: dict[str, Any] = {}
    if way == "fsdp":
        allow_fsdp_on_cpus()
        options = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}
    elif way != "ddp":  # It stops in the first of two epochs, and goes on.
        options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2}
        options |= {"max_steps": 2} if way == "stops" else {}
    training = TrainingArguments(
        **{"num_train_epochs": 1.5, "save_strategy": "no", **options},
        output_dir=output, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", use_cpu=True, logging_steps=1,
        eval_strategy="epoch", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="sdpa")
    trainer = packed(Trainer)(model, training, train_dataset=path, eval_dataset=path, callbacks=[Print()])
    trainer.train(resume_from_checkpoint=way == "resumes")


if __name__ == "__main__":
    main(*sys.argv[1:])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
