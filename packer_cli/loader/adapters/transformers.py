"""transformers' `Trainer` and TRL's `SFTTrainer` on packed sets. ::

from packer_cli.loader.adapters.transformers import packed

trainer = packed(SFTTrainer)(model, args, train_dataset="OUT")
trainer.train()
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from packer_cli.errors import ConfigError
from packer_cli.format.epochs import state_of_trainer
from packer_cli.format.layout import Layout
from packer_cli.loader.adapters.causal_lm import PackedRow, check_packed_rows, inputs_of, run_packed_rows
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.formats import metadata_of
from packer_cli.loader.parallel import SPGroups, init_sp_groups
from packer_cli.loader.steps import Step, packed_steps

__all__ = ["packed"]

_LOGGER = logging.getLogger(__name__)


def packed(trainer_class: type) -> type:
    """A class that trains packed sets, made from `Trainer`, `SFTTrainer`, or a subclass that keeps `training_step`.

    Its `train_dataset` and `eval_dataset` are paths or URLs of packed sets. Each optimizer step is a step of the plan,
    and the loss is the mean over the loss tokens of a whole step, or what their weights say. GPUs share rows as the
    plan says (groups with an SP degree). `max_steps`, epochs and the learning rate's schedule count steps of the plan.
    A checkpoint has the place in the data, so `resume_from_checkpoint` goes on there.

    Raises:
        ConfigError: when the trainer is made, for a set that it cannot train, or arguments that do not fit one.
    """
    return type(f"Packed{trainer_class.__name__}", (_PackedTrainer, trainer_class), {})


class PackedDataState(TrainerCallback, ExportableState):
    """The place in the data, which the Trainer saves with its own state."""

    def __init__(self) -> None:
        self.data: dict[str, Any] | None = None
        self.epoch = 0.0

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"args": {}, "attributes": {"data": self.data}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take it from a checkpoint; the Trainer itself would restore all callbacks, or none."""
        if not state.global_step:
            return
        self.data = state_of_trainer({"stateful_callbacks": state.stateful_callbacks})
        if self.data is None:
            raise ConfigError(
                "the checkpoint has no place in a packed set: it is of a run with other data; start from its weights "
                "instead, without resume_from_checkpoint"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The plan's epochs count, also after a resume within one."""
        state.epoch = self.epoch


class _StepLoader:
    """The rest of the current epoch, step by step."""

    def __init__(self, trainer: _PackedTrainer) -> None:
        self._trainer = trainer

    def __len__(self) -> int:
        return self._trainer.packed_set.num_steps

    def __iter__(self) -> Iterator[Step]:
        dataset, state = self._trainer.packed_set, self._trainer.data_state.data
        if state is not None and not dataset.begins_at(state):
            dataset.load_state_dict(state)
        yield from packed_steps(dataset)


_AnyTrainer: Any = object
"""What the class of the user stands for."""


class _PackedTrainer(_AnyTrainer):
    """What a trainer class does otherwise; it stands before that class."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **others: Any,
    ) -> None:
        if args is None:
            raise ConfigError("give args: they say how many processes train")
        _require_fitting(args, others)
        args = _adapted(args)
        if train_dataset is None:
            raise ConfigError('give train_dataset, the folder or URL of a packed set, such as train_dataset="OUT"')
        self.packed_set = _open(train_dataset, args)
        self.packed_eval_set = None if eval_dataset is None else _open(eval_dataset, args)
        callbacks = [*(others.pop("callbacks", None) or []), PackedDataState()]
        eval_of_class = None if eval_dataset is None else _nothing()
        super().__init__(
            model, args, train_dataset=_nothing(), eval_dataset=eval_of_class, callbacks=callbacks, **others
        )
        run_packed_rows(self.model)
        self._checkpointing = LayerCheckpointing(self.model)
        self._sp_groups = _groups_of(self.packed_set, self.packed_eval_set)
        self._is_checked = False
        self._num_tokens, self._started = 0, time.perf_counter()

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **others: Any) -> Any:
        """As the Trainer's; on a set that was rebalanced where the checkpoint stopped, for the steps that are left."""
        if resume_from_checkpoint:
            is_newest = resume_from_checkpoint is True
            folder = get_last_checkpoint(self.args.output_dir) if is_newest else resume_from_checkpoint
            if folder is not None:
                self._count_steps_left(TrainerState.load_from_json(str(Path(folder, TRAINER_STATE_NAME))))
        return super().train(resume_from_checkpoint, *arguments, **others)

    def _count_steps_left(self, state: Any) -> None:
        """Set `max_steps`, from which the Trainer makes the learning rate's schedule."""
        data = state_of_trainer({"stateful_callbacks": state.stateful_callbacks})
        if data is None or not self.packed_set.begins_at(data):
            return
        if self.args.max_steps <= 0:
            dataset, epochs = self.packed_set, math.ceil(self.args.num_train_epochs)
            first, left = dataset.epoch, dataset.num_steps - dataset.step_of(0)
            dataset.set_epoch(first + 1)
            left += max(0, epochs - first - 1) * dataset.num_steps
            dataset.set_epoch(first)
            self.args.max_steps = state.global_step + left
        left = self.args.max_steps - state.global_step
        _LOGGER.warning("rebalanced set: %d steps are trained, and %d are left", state.global_step, left)

    @property
    def data_state(self) -> PackedDataState:
        """The callback, in whose place a resume may put another."""
        return next(each for each in self.callback_handler.callbacks if isinstance(each, PackedDataState))

    def get_train_dataloader(self) -> Any:
        """Whole steps."""
        return _StepLoader(self)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Step], None]:
        """The next step, if there is one; it knows its loss tokens."""
        step = next(epoch_iterator, None)
        return [] if step is None else [step], None

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of each micro-batch of a step; the Trainer clips and steps afterwards."""
        if not self._is_checked:
            check_packed_rows(model, self.args.device)
            self._is_checked = True
        model.train()
        if callable(getattr(self.optimizer, "train", None)):  # Of schedule-free optimizers.
            self.optimizer.train()
        total = torch.zeros((), device=self.args.device)
        for batch in inputs.batches:
            is_last = batch is inputs.batches[-1]
            # DeepSpeed's wrapper steps where gradients are synchronized.
            self.accelerator.gradient_state._set_sync_gradients(is_last)
            # FSDP reduces gradients in every micro-batch, else it would keep whole ones on each GPU.
            waits = not is_last and not self.is_fsdp_enabled and not self.is_deepspeed_enabled
            with self.accelerator.no_sync(model) if waits else nullcontext():
                loss, row = self._run(model, batch, self._factor(batch))
                self.accelerator.backward(loss)
            total += row.loss
            self._num_tokens += batch["input_ids"].numel() * self.args.world_size
        self.data_state.data = inputs.state
        self.data_state.epoch = inputs.epoch + (inputs.number + 1) / self.packed_set.num_steps
        return total

    def _factor(self, batch: Any) -> float:
        """By which the sum of a rank's losses is multiplied, since the ranks' gradients are averaged."""
        known = metadata_of(batch)
        weight = known.get("global_loss_weight", known["global_num_loss_tokens"])
        return self.args.world_size / weight if weight else 0.0

    def _run(self, model: Any, batch: Any, factor: float) -> tuple[torch.Tensor, PackedRow]:
        """A forward pass: the loss with its graph, which wrappers may have rounded, and the row with its own."""
        device = self.args.device
        self._checkpointing.set(batch["checkpoint_layers"])
        group = None if self._sp_groups is None else self._sp_groups.for_batch(batch)
        row = PackedRow(batch, group, factor=factor, device=device)
        with self.compute_loss_context_manager():
            return model(**inputs_of(batch, device), packed_row=row).loss, row

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The mean loss over the loss tokens of a packed set."""
        dataset = self.packed_eval_set if eval_dataset is None else _open(eval_dataset, self.args)
        if dataset is None:
            raise ConfigError("give eval_dataset, the folder or URL of a packed set")
        model = self.model_wrapped
        model.eval()
        start = time.perf_counter()
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        with torch.no_grad():
            for batch in dataset.iter_from(0):
                _, row = self._run(model, batch, 1.0)
                sums[0] += row.loss.double()
                sums[1] += len(row.kept) if row.weights is None else row.weights.double().sum()
        if self.args.world_size > 1:
            dist.all_reduce(sums)
        metrics = {
            f"{metric_key_prefix}_loss": float(sums[0] / sums[1]),
            f"{metric_key_prefix}_runtime": time.perf_counter() - start,
        }
        self._started += metrics[f"{metric_key_prefix}_runtime"]  # Of training.
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def floating_point_ops(self, inputs: Any) -> int:
        """The Trainer's count, which expects one batch."""
        batches = inputs.batches if isinstance(inputs, Step) else [inputs]
        return sum(int(super(_PackedTrainer, self).floating_point_ops(batch)) for batch in batches)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """The Trainer's count, likewise."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds tokens per second, about: this rank's times the number of ranks."""
        if "loss" in logs:
            now = time.perf_counter()
            logs["tokens_per_second"] = self._num_tokens / (now - self._started)
            self._num_tokens, self._started = 0, now
        super().log(logs, start_time)


def _require_fitting(args: Any, others: Any) -> None:
    """Raise ConfigError for what a packed set decides, or what would change its loss."""
    if args.n_gpu > 1:
        raise ConfigError("several GPUs in one process: start with torchrun, or the Trainer would split each row")
    if args.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"gradient_accumulation_steps is {args.gradient_accumulation_steps}, and the plan says how many micro-"
            "batches a step has; leave it out, and give hbpack pack --global-tokens"
        )
    if args.label_smoothing_factor:
        raise ConfigError("label_smoothing_factor is not supported on packed rows; set it to 0")
    if others.get("compute_loss_func") is not None:
        raise ConfigError("compute_loss_func would not be called on packed rows; leave it out")
    if getattr(args, "packing", False):
        raise ConfigError("packing=True would pack the packs again; leave it out")
    if getattr(args, "loss_type", None) == "dft":
        raise ConfigError("loss_type='dft' is not supported on packed rows; leave it out")
    parallel = getattr(args, "parallelism_config", None)
    if parallel is not None and any(
        getattr(parallel, f"{kind}_size", 1) not in (None, 1) for kind in ("tp", "cp", "sp")
    ):
        raise ConfigError(
            "parallelism_config divides rows or layers among GPUs, and the plan says which GPUs share a row; leave "
            "tp, cp and sp out"
        )


def _adapted(args: Any) -> Any:
    """The arguments for packed rows."""
    args = copy.copy(args)
    if args.gradient_checkpointing:
        _LOGGER.warning(
            "gradient_checkpointing is off: the plan's checkpoint_layers say how many layers each row needs"
        )
    args.gradient_checkpointing = False
    args.ignore_data_skip = True  # The data set resumes by itself; skipping would skip twice.
    args.remove_unused_columns = False
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False
    if hasattr(args, "max_length"):  # TRL's
        args.max_length = None
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    return args


def _open(path: Any, args: Any) -> PackedDataset:
    """The set, which the trainer can run."""
    dataset = path if isinstance(path, PackedDataset) else PackedDataset(path, args.process_index, args.world_size)
    layouts = {
        Layout(*(group[f"{name}_size"] for name in ("sp", "cp", "tp", "pp"))) for group in dataset.manifest["groups"]
    }
    for layout in layouts:
        if layout != Layout(sp=layout.sp):
            raise ConfigError(
                f"{dataset.path} has groups of {layout}, and this trainer shares rows by sequence parallelism (SP) "
                "alone; pack without --parallel, and with SP degrees in --groups"
            )
    return dataset


def _groups_of(*sets: PackedDataset | None) -> SPGroups | None:
    """The process groups of the rows of all sets, which every process makes in the same order."""
    if not dist.is_initialized():
        return None
    replicas: dict[Layout, set[int]] = {}
    for dataset in sets:
        for layout, firsts in {} if dataset is None else dataset.replicas.items():
            replicas.setdefault(layout, set()).update(firsts)
    return init_sp_groups({layout: sorted(firsts) for layout, firsts in replicas.items()})


def _nothing() -> Any:
    """A data set of one row, which is never read: trainers look at their data sets when they are made."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [[0]], "labels": [[-100]]})
