"""Each trainer with plain SGD: `exact_trainers.py TRAINER SET MODEL OUTPUT DTYPE MAX_STEPS [lora] [resume]`.

Prints each step's loss and gradient norm as exactly as they are, saves a checkpoint every second step, and the trained
weights at the end.
"""

import os
import sys
from itertools import islice
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainingArguments
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.step_runner import StepRunner
from packer_cli.loader.steps import packed_steps

SAVED, LEARNING_RATE, MOST_NORM = 2, 0.02, 1.0
"""Steps between checkpoints."""
TOKENIZER = Path(__file__).parents[2] / "examples" / "sample" / "tokenizer"


def make_model(folder: str, dtype: str, *, has_lora: bool) -> Any:
    """The same weights on every rank, those of LoRA among them."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=getattr(torch, dtype))
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):  # Whose own would round to float32.
            module.forward = MethodType(_norm, module)
    if has_lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(7)
        names = ["q_proj", "v_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=4, target_modules=names, init_lora_weights=False))
        model = model.to(getattr(torch, dtype))
    return model.train()


def _norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon)


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)


def tell(step: int, loss: torch.Tensor, norm: Any) -> None:
    """The loss of all ranks: the mean of theirs."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item() / dist.get_world_size()!r} norm {float(norm)!r}", flush=True)


def save_weights(model: Any, output: Path) -> None:
    if dist.get_rank() == 0:
        trained = {name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad}
        save_file(trained, output / "trained.safetensors")


def with_trainer(kind: str, packed_set: str, model: Any, output: Path, max_steps: int, *, resumes: bool) -> None:
    from transformers import Trainer
    from trl import SFTConfig, SFTTrainer

    from packer_cli.loader.adapters.transformers import packed

    class Exact(packed(SFTTrainer if kind == "sft" else Trainer)):
        loss: torch.Tensor

        def training_step(self, *arguments: Any, **others: Any) -> torch.Tensor:
            self.loss = super().training_step(*arguments, **others)
            return self.loss

        def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
            self.optimizer = self.optimizer or sgd(self.model)
            return self.optimizer

    class Tell(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if "loss" in logs:
                tell(state.global_step, trainer.loss, logs["grad_norm"])

    arguments = (SFTConfig if kind == "sft" else TrainingArguments)(
        output_dir=str(output), max_steps=max_steps, lr_scheduler_type="constant", use_cpu=True, logging_steps=1,
        save_steps=SAVED, max_grad_norm=MOST_NORM, bf16=False, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    others = {"processing_class": AutoTokenizer.from_pretrained(TOKENIZER)} if kind == "sft" else {}
    trainer = Exact(model, arguments, train_dataset=packed_set, callbacks=[Tell()], **others)
    trainer.train(resume_from_checkpoint=resumes)
    save_weights(trainer.model, output)


def with_accelerate(packed_set: str, model: Any, output: Path, max_steps: int, *, resumes: bool) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dataset = PackedDataset(packed_set, accelerator.process_index, accelerator.num_processes)
    run_packed_rows(model)
    model, optimizer = accelerator.prepare(model, sgd(model))
    done = 0
    if resumes:
        newest = max(output.glob("checkpoint-*"))
        accelerator.load_state(str(newest))
        state = torch.load(newest / "data.pt")
        done = state["step"]
        dataset.load_state_dict(state["data"])
    runner = StepRunner(model, dataset, device=accelerator.device)
    for number, step in enumerate(islice(packed_steps(dataset, endless=True), max_steps - done), start=done + 1):
        for loss in runner.losses(step):
            accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), MOST_NORM)
        optimizer.step()
        optimizer.zero_grad()
        tell(number, runner.loss, norm)
        if number % SAVED == 0:
            accelerator.save_state(str(output / f"checkpoint-{number}"))
            torch.save({"step": number, "data": step.state}, output / f"checkpoint-{number}" / "data.pt")
    save_weights(accelerator.unwrap_model(model), output)


def with_fsdp(packed_set: str, model: Any, output: Path, max_steps: int, *, resumes: bool) -> None:
    dist.init_process_group("gloo")
    dataset = PackedDataset(packed_set, dist.get_rank(), dist.get_world_size())
    for part in (*run_packed_rows(model).model.layers, model):
        fully_shard(part)
    optimizer = sgd(model)
    state: dict[str, Any] = {"model": get_model_state_dict(model), "step": 0, "data": dataset.state_dict()}
    if resumes:
        dcp.load(state, checkpoint_id=max(output.glob("checkpoint-*")))
        set_model_state_dict(model, state["model"])
        dataset.load_state_dict(state["data"])
    done, runner = state["step"], StepRunner(model, dataset, device=torch.device("cpu"))
    for number, step in enumerate(islice(packed_steps(dataset, endless=True), max_steps - done), start=done + 1):
        for loss in runner.losses(step):
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        tell(number, runner.loss, norm)
        if number % SAVED == 0:
            saved = {"model": get_model_state_dict(model), "step": number, "data": step.state}
            dcp.save(saved, checkpoint_id=output / f"checkpoint-{number}")
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        save_file({name: weights[name].contiguous() for name in trained}, output / "trained.safetensors")


def with_lightning(packed_set: str, model: Any, output: Path, max_steps: int, *, resumes: bool) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from packer_cli.loader.adapters.lightning import PackedDataModule, PackedModule

    class Exact(PackedModule):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.model)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            tell(self.trainer.global_step + 1, self._runner.loss, torch.nn.utils.get_total_norm(gradients))

    trainer = lightning.Trainer(
        max_steps=max_steps, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp",
        gradient_clip_val=MOST_NORM, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(output, "checkpoint-{step}", every_n_train_steps=SAVED, save_top_k=-1)],
    )  # fmt: skip
    newest = max(output.glob("*.ckpt")) if resumes else None
    trainer.fit(Exact(model), PackedDataModule(packed_set), ckpt_path=newest)
    save_weights(model, output)


def main(
    trainer: str, packed_set: str, model_folder: str, output: str, dtype: str, max_steps: str, *ways: str
) -> None:
    model = make_model(model_folder, dtype, has_lora="lora" in ways)
    arguments = packed_set, model, Path(output), int(max_steps)
    if trainer in ("trainer", "sft"):
        with_trainer(trainer, *arguments, resumes="resume" in ways)
    else:
        ways_of = {"accelerate": with_accelerate, "fsdp": with_fsdp, "lightning": with_lightning}
        ways_of[trainer](*arguments, resumes="resume" in ways)


if __name__ == "__main__":
    main(*sys.argv[1:])
    dist.destroy_process_group()
