"""Lightning as users write it, in the ways that the example leaves out: `packed_lightning.py SET MODEL OUTPUT WAY`."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

from packer_cli.loader.adapters.lightning import PackedDataModule, PackedModule
from tests.examples.reference import LEARNING_RATE


class Module(PackedModule):
    """FSDP2, where that is the strategy; and the gradient norm, which the trainer does not log."""

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            for part in (*self.model.model.layers, self.model):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)
        self.log("grad_norm", norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


class Print(lightning.Callback):
    """As the examples print."""

    def print(self, trainer: Any, text: str) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            print(text, flush=True)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, step: Any, index: int) -> None:
        logs = trainer.callback_metrics
        loss = trainer.strategy.reduce(outputs["loss"].clone(), reduce_op="mean")
        torch.testing.assert_close(loss, logs["train_loss"])
        self.print(
            trainer,
            f"step {trainer.global_step} loss {logs['train_loss']:.6f} grad_norm {logs['grad_norm']:.6f} "
            f"tokens/s {logs['tokens_per_second']:.0f}",
        )
        self.print(trainer, f"epoch {trainer.current_epoch} step {index} of {trainer.num_training_batches}")

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.print(trainer, f"validated {trainer.callback_metrics['val_loss']:.6f} after step {trainer.global_step}")


def main(path: str, model_folder: str, output: str, way: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="sdpa")
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    strategy: Any = ModelParallelStrategy(2, 1) if way == "fsdp" else "ddp" if world_size > 1 else "auto"
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=world_size, strategy=strategy, gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(output, "{step}", every_n_train_steps=2, save_top_k=-1), Print()],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module(model, partial(torch.optim.AdamW, lr=LEARNING_RATE, weight_decay=0.0))
    data = PackedDataModule(path, None if way == "alone" else path)
    trainer.fit(module, data, ckpt_path=next(Path(output).glob("step=2*"), None))


if __name__ == "__main__":
    main(*sys.argv[1:])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
