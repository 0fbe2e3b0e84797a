"""A Trainer as users write it, in the ways that the examples leave out: `packed_trainer.py SET MODEL OUTPUT WAY`."""

import sys
from typing import Any

import accelerate.state
import torch
from accelerate.utils import DistributedType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from packer_cli.loader.adapters.transformers import packed
from tests.examples.reference import LEARNING_RATE


class Traffic(TrainerCallback):
    """Bytes of gradients that a process hands to collectives, and the times that the optimizer steps."""

    def __init__(self) -> None:
        self.num_bytes = self.num_steps = 0

    def count_scatters(self) -> None:
        original = torch.distributed.reduce_scatter_single

        def counted(output: Any, input: torch.Tensor, *arguments: Any, **others: Any) -> Any:
            self.num_bytes += input.nbytes
            return original(output, input, *arguments, **others)

        torch.distributed.reduce_scatter_single = counted

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        self.num_steps += 1
        if state.is_world_process_zero:
            print(f"reduced {self.num_bytes} bytes before optimizer step {self.num_steps}")
        self.num_bytes = 0


class CountedTrainer(Trainer):
    """Counts what DDP reduces."""

    traffic = Traffic()

    def training_step(self, model: Any, *arguments: Any, **others: Any) -> torch.Tensor:
        if isinstance(model, DistributedDataParallel) and not hasattr(model, "counted"):
            model.counted = True
            model.register_comm_hook(None, self.reduce)
        return super().training_step(model, *arguments, **others)

    def reduce(self, state: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self.traffic.num_bytes += bucket.buffer().nbytes
        return allreduce_hook(None, bucket)


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
        self.fsdp_plugin = fsdp_plugin or self.__dict__.get("fsdp_plugin")
        if self.fsdp_plugin is not None:  # Each new object takes the type of the processes.
            self.distributed_type = DistributedType.FSDP

    accelerate.state.AcceleratorState.__init__ = init


def main(path: str, model_folder: str, output: str, way: str) -> None:
    options: dict[str, Any] = {}
    if way.startswith("fsdp"):
        allow_fsdp_on_cpus()
        CountedTrainer.traffic.count_scatters()
        options = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}
        if way == "fsdp-once":
            options["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": False}}
    elif way != "ddp":  # It stops in the first of two epochs, and goes on.
        options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2}
        options |= {"max_steps": 2} if way == "stops" else {}
    training = TrainingArguments(
        **{"num_train_epochs": 1.5, "save_strategy": "no", **options},
        output_dir=output, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", use_cpu=True, logging_steps=1,
        eval_strategy="epoch", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="sdpa")
    counted = type("Counted", (CountedTrainer, packed(Trainer)), {})
    callbacks = [Print(), CountedTrainer.traffic]
    trainer = counted(model, training, train_dataset=path, eval_dataset=path, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=way == "resumes")


if __name__ == "__main__":
    main(*sys.argv[1:])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
