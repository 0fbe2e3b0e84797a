"""Methods of `Trainer` and `SFTTrainer` that differ on packed sets; `adapters.transformers` puts them first."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import get_last_checkpoint, speed_metrics

from packer_cli.errors import ConfigError
from packer_cli.format.epochs import attributes_of_trainer
from packer_cli.loader.adapters import trainer_arguments
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.adapters.step_runner import StepRunner
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.steps import Step, packed_steps

_LOGGER = logging.getLogger(__name__)


class PackedDataState(TrainerCallback, ExportableState):
    """The place in the data, which the Trainer saves with its own state."""

    def __init__(self) -> None:
        self.data: dict[str, Any] | None = None
        self.first_epoch = 0
        self.epoch = 0.0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"args": {}, "attributes": {"data": self.data, "first_epoch": self.first_epoch}}

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the plan's epoch, which counts also after a resume within one."""
        state.epoch = self.epoch


class TrainerRunner(StepRunner):
    """Steps as accelerate runs them."""

    def __init__(self, trainer: PackedTrainer, *datasets: PackedDataset, checkpoint_all: bool = False) -> None:
        super().__init__(trainer.model, *datasets, device=trainer.args.device, checkpoint_all=checkpoint_all)
        self._trainer = trainer
        self.metrics: dict[str, float] = {}
        """Means of the newest step besides its loss, the same on all ranks."""

    def gradients(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for a micro-batch; FSDP and DeepSpeed by default reduce gradients in every one.

        Else each GPU would keep whole gradients.
        """
        trainer = self._trainer
        # DeepSpeed's wrapper steps where gradients are synchronized.
        trainer.accelerator.gradient_state._set_sync_gradients(is_last)
        asked = (trainer.args.accelerator_config.gradient_accumulation_kwargs or {}).get("sync_each_batch")
        reduces = trainer.is_fsdp_enabled if asked is None else asked
        waits = not (is_last or reduces or trainer.is_deepspeed_enabled)
        return trainer.accelerator.no_sync(self.model) if waits else nullcontext()

    def forward(self, row: PackedRow) -> torch.Tensor:
        """Run the row under the Trainer's autocast."""
        with self._trainer.compute_loss_context_manager():
            return super().forward(row)


class _StepLoader:
    """The rest of the current epoch, or the next one, step by step."""

    def __init__(self, trainer: PackedTrainer) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[Step]:
        self._trainer.packed_set.load_state_dict(self._trainer.place)
        yield from self._trainer.steps_of(self._trainer.packed_set)


_AnyTrainer: Any = object
"""Stand-in for the class of the user."""


class PackedTrainer(_AnyTrainer):
    """Methods of a trainer class that differ on packed sets; the class stands before that class."""

    runner_class: ClassVar[type[TrainerRunner]] = TrainerRunner
    needs_pairs: ClassVar[bool] = False
    gives_rewards: ClassVar[bool] = False
    """Whether the model has a reward for an output."""
    never_called: ClassVar[tuple[str, ...]] = ("compute_loss", "prediction_step", "evaluation_loop")
    """Methods of trainers that nothing here calls."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **others: Any,
    ) -> None:
        trainer_arguments.require_fitting(args, others)
        _require_called(type(self))
        asked, args = args, trainer_arguments.adapted(args)
        self._options: Any = {"trees": trainer_arguments.tree_format(model, args), "needs_pairs": self.needs_pairs}
        self.packed_set = trainer_arguments.open_for_trainer("train_dataset", train_dataset, args, **self._options)
        self._eval_sets = trainer_arguments.open_named(eval_dataset, args, self.packed_set, **self._options)
        if args.should_log:
            trainer_arguments.warn_of_tokenizer(others.get("processing_class"), self.packed_set.manifest["tokenizer"])
        callbacks = [*(others.pop("callbacks", None) or []), PackedDataState()]
        eval_of_class = None if eval_dataset is None else _nothing()
        others |= {"train_dataset": _nothing(), "eval_dataset": eval_of_class, "callbacks": callbacks}
        super().__init__(model=model, args=args, **others)
        fsdp = getattr(self.accelerator.state, "fsdp_plugin", None)
        if fsdp is not None and fsdp.fsdp_version != 2:
            raise ConfigError(f"FSDP {fsdp.fsdp_version} is not supported on packed rows; set fsdp_version to 2")
        run_packed_rows(self.model, gives_rewards=self.gives_rewards)
        self._asked = asked
        self._make_runner()
        self._start = self.place = self.packed_set.state_dict()
        self._num_trained, self._started = 0, time.perf_counter()
        self._unlogged: list[tuple[int, float | None]] = []  # Tokens and predicted seconds of steps.

    def _make_runner(self) -> None:
        checkpoints = _checkpoints_all(self._asked, self.packed_set)
        self._runner = self.runner_class(self, self.packed_set, *self._eval_sets.values(), checkpoint_all=checkpoints)

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **others: Any) -> Any:
        """Train as the Trainer does; on a set rebalanced where the checkpoint stopped, train the steps left."""
        self.place, self._num_trained = self._start, 0
        self.data_state.first_epoch = self._start["epoch"]
        if resume_from_checkpoint:
            resume_from_checkpoint = self._go_to(resume_from_checkpoint)
        before = self.packed_set.folder
        self.packed_set.load_state_dict(self.place)
        if self.packed_set.folder != before:  # Of another version, in which all may differ.
            trainer_arguments.open_for_trainer("train_dataset", self.packed_set, self.args, **self._options)
            trainer_arguments.open_named(self._eval_sets, self.args, self.packed_set, **self._options)
            self._make_runner()
        self.data_state.data = self.place
        self._unlogged, self._started = [], time.perf_counter()
        return super().train(resume_from_checkpoint, *arguments, **others)

    def _go_to(self, checkpoint: Any) -> str:
        """Take the place in the data from a checkpoint, True for the newest one; returns its folder."""
        folder = checkpoint
        if checkpoint is True:
            # the main process alone makes the folder, perhaps later than this one looks
            folder = get_last_checkpoint(self.args.output_dir) if Path(self.args.output_dir).is_dir() else None
        if folder is None or not Path(folder, TRAINER_STATE_NAME).is_file():
            raise ConfigError(
                f"there is no checkpoint in {str(self.args.output_dir if folder is None else folder)!r}; give the "
                "folder of one, such as checkpoint-100, or start without resume_from_checkpoint"
            )
        state = TrainerState.load_from_json(str(Path(folder, TRAINER_STATE_NAME)))
        saved = attributes_of_trainer({"stateful_callbacks": state.stateful_callbacks})
        if not saved or not saved.get("data"):
            raise ConfigError(
                "the checkpoint does not hold a place in a packed set: it is from a run with other data; start from "
                "its weights instead, without resume_from_checkpoint"
            )
        self._num_trained, self.data_state.first_epoch = state.global_step, saved.get("first_epoch", 0)
        if not self.packed_set.begins_at(saved["data"]):
            self.place = saved["data"]
        elif self.is_deepspeed_enabled:
            raise ConfigError(
                "the set was rebalanced, and DeepSpeed reads a checkpoint only on the number of GPUs that wrote it; "
                "start from its weights instead, without resume_from_checkpoint"
            )
        return str(folder)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Return the Trainer's numbers, as the plan has them: epochs can have unlike numbers of steps."""
        trained, steps = self._num_trained, self._steps_left(args)
        max_steps = args.max_steps if args.max_steps > 0 else trained + sum(steps)
        if self.place is self._start and trained and args.should_log:
            _LOGGER.warning("rebalanced set: %d steps are trained, and %d are left", trained, max_steps - trained)
        # The Trainer begins with epoch trained // longest, and leaves an epoch that has no step any more.
        longest = max([1, *steps])
        num_samples = _num_samples(self.packed_set)
        return (
            trained // longest + len(steps),
            longest,
            num_samples,
            math.ceil(max_steps * num_samples / self.packed_set.num_steps),
            args.world_size,
            longest,
            max_steps,
        )

    def _steps_left(self, args: Any) -> list[int]:
        """List the steps of each epoch to come, the current one's rest first; with `max_steps`, at least as many."""
        dataset, steps = self.packed_set, list[int]()
        dataset.load_state_dict(self.place)
        begun, epoch = dataset.step_of(dataset.position), dataset.epoch
        end, left = args.num_train_epochs + self.data_state.first_epoch, args.max_steps - self._num_trained
        while left > 0 if args.max_steps > 0 else epoch < end:
            whole = dataset.steps_of(epoch)
            wanted = whole if args.max_steps > 0 else math.ceil(min(1, end - epoch) * whole)
            steps.append(max(0, wanted - begun))
            begun, epoch, left = 0, epoch + 1, left - steps[-1]
        return steps

    @property
    def data_state(self) -> PackedDataState:
        """The callback, in whose place a resume may put another."""
        return next(each for each in self.callback_handler.callbacks if isinstance(each, PackedDataState))

    def steps_of(self, dataset: PackedDataset, begin: int | None = None) -> Iterator[Step]:
        """Return the steps of a set, see `packed_steps`."""
        return packed_steps(dataset, begin)

    def get_train_dataloader(self) -> Any:
        """Return a loader of whole steps."""
        return _StepLoader(self)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Step], None]:
        """Return the next step, if there is one; the step knows its loss tokens."""
        step = next(epoch_iterator, None)
        return [] if step is None else [step], None

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run forward and backward of each micro-batch of a step; the Trainer clips and steps afterwards."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):  # Of schedule-free optimizers.
            self.optimizer.train()
        self._runner.model = model
        for loss in self._runner.losses(inputs):
            self.accelerator.backward(loss)
        self._unlogged.append((inputs.num_tokens, inputs.predicted_seconds))
        self.place = self.data_state.data = inputs.state
        first_epoch, num_steps = self.data_state.first_epoch, self.packed_set.num_steps
        self.data_state.epoch = inputs.epoch - first_epoch + (inputs.number + 1) / num_steps
        return self._runner.loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the mean loss over the loss tokens of a packed set, or of each in a dictionary."""
        sets, runner = self._eval_sets, self._runner
        if eval_dataset is not None:
            sets = trainer_arguments.open_named(eval_dataset, self.args, self.packed_set, **self._options)
            runner = self.runner_class(self, *sets.values())
        if not sets:
            raise ConfigError("give eval_dataset, the folder or URL of a packed set")
        runner.model = self.model_wrapped
        metrics: dict[str, float] = {}
        for name, dataset in sets.items():
            prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
            start = time.time()
            metrics |= {f"{prefix}_{key}": value for key, value in self._means(runner, dataset).items()}
            metrics |= speed_metrics(prefix, start, num_samples=_num_samples(dataset), num_steps=dataset.num_steps)
            self._started += metrics[f"{prefix}_runtime"]  # Of training.
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _means(self, runner: TrainerRunner, dataset: PackedDataset) -> dict[str, float]:
        """Average the loss and the metrics; each step counts by its loss tokens, or what its loss is a mean over."""
        runner.model.eval()
        sums: dict[str, Any] = {"loss": torch.zeros((), dtype=torch.float64, device=self.args.device)}
        total = 0.0
        with torch.no_grad():
            for step in self.steps_of(dataset, 0):
                for _ in runner.losses(step):
                    pass
                weight = runner.weight_of_step(step.batches[0])
                total += weight
                means: dict[str, Any] = {"loss": runner.loss.double(), **runner.metrics}
                for name, value in means.items():
                    sums[name] = sums.get(name, 0) + weight * value
        sums["loss"] = self.accelerator.reduce(sums["loss"], "mean")
        return {name: float(value / total) for name, value in sums.items()}

    def _save_checkpoint(self, *arguments: Any, **others: Any) -> None:
        """Save as the Trainer does; the time it takes is none of the steps'."""
        start = time.perf_counter()
        super()._save_checkpoint(*arguments, **others)
        self._started += time.perf_counter() - start

    def predict(self, *arguments: Any, **others: Any) -> Any:
        """Refuse to predict: packed rows have no predictions."""
        raise ConfigError("predict is not supported on packed sets; use evaluate, or the class without packed()")

    def floating_point_ops(self, inputs: Any) -> int:
        """Count as the Trainer does, which expects one batch."""
        batches = inputs.batches if isinstance(inputs, Step) else [inputs]
        return sum(int(super(PackedTrainer, self).floating_point_ops(batch)) for batch in batches)

    def _track_num_input_tokens(self, inputs: Step) -> None:
        """Count the input tokens as the Trainer does, which expects one batch."""
        for batch in inputs.batches if self.args.include_num_input_tokens_seen != "no" else ():
            super()._track_num_input_tokens(batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add tokens per second, about: this rank's times the ranks; and what a step takes, on average."""
        if "loss" in logs:
            now = time.perf_counter()
            steps, seconds = self._unlogged, now - self._started
            num_tokens = sum(tokens for tokens, _ in steps) * self.args.world_size
            logs["tokens_per_second"] = num_tokens / seconds
            if steps:
                logs["step_seconds"] = seconds / len(steps)
            predicted = [each for _, each in steps if each is not None]
            if predicted:
                logs["predicted_step_seconds"] = sum(predicted) / len(predicted)
            self._unlogged, self._started = [], now
        super().log(logs, start_time)


_PASSED_ON = {"__init__", "_save_checkpoint", "_track_num_input_tokens", "floating_point_ops", "log", "train"}
"""Methods of packed rows that call the trainer's own."""
_KNOWN = ("axolotl.core.", "builtins", "packer_cli.loader.adapters.", "transformers.", "trl.")
"""Modules whose methods may be among them: what they add to the loss or the batches is refused by their arguments."""


def _require_called(trainer_class: type[PackedTrainer]) -> None:
    """Raise ConfigError for a user's methods that stand behind those of packed rows, or that nothing calls."""
    ours = trainer_class.__mro__.index(PackedTrainer)
    for place, each in enumerate(trainer_class.__mro__):
        if each.__module__.startswith(_KNOWN):
            continue
        hidden = vars(PackedTrainer).keys() - _PASSED_ON if place > ours else set()
        uncalled = {*trainer_class.never_called, *hidden}
        ignored = sorted(name for name in vars(each) if name in uncalled and callable(vars(each)[name]))
        if ignored:
            raise ConfigError(
                f"{', '.join(ignored)} of {each.__name__} would not be called on packed rows; derive a class from the "
                "packed one instead, such as class Mine(packed(Trainer)), and override training_step or evaluate"
            )


def _checkpoints_all(asked: Any, dataset: PackedDataset) -> bool:
    """Whether all rows recompute all layers: where checkpointing is asked for, and the plan knows nothing of it."""
    if not (asked.gradient_checkpointing or getattr(asked, "activation_checkpointing", False)):  # A later name.
        return False
    is_planned = any(group["checkpoint_layers"] for group in dataset.manifest["groups"])
    if not is_planned and dataset.manifest["config"]["plan"].get("gpu_model") is None:
        return True
    if asked.should_log:
        _LOGGER.warning("gradient_checkpointing: each row recomputes as many layers as the plan says, and no more")
    return False


def _num_samples(dataset: PackedDataset) -> int:
    """Count the samples of an epoch, pieces of cut ones apart."""
    return sum(group["num_samples"] for group in dataset.manifest["groups"])


def _nothing() -> Any:
    """Return a data set of one row, which is never read: trainers look at their data sets when they are made."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [[0]], "labels": [[-100]]})
