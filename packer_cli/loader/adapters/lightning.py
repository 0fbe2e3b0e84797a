"""Lightning on packed sets. ::

from packer_cli.loader.adapters.lightning import PackedDataModule, PackedModule

trainer = lightning.Trainer(max_steps=1000, devices=8, strategy="ddp", gradient_clip_val=1.0)
module = PackedModule(model, lambda parameters: torch.optim.AdamW(parameters, lr=2e-5))
trainer.fit(module, PackedDataModule("OUT", "VALIDATION"))

What Lightning takes as a batch is a whole optimizer step of the plan, so that all it counts is right: `max_steps`,
`every_n_train_steps`, schedules of the learning rate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch import strategies
from torchmetrics import MeanMetric

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.step_runner import StepRunner
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.losses import loss_weight_of_step
from packer_cli.loader.steps import Step, packed_steps

__all__ = ["PackedDataModule", "PackedModule"]


class PackedDataModule(lightning.LightningDataModule):
    """The steps of a packed set, and of another for validation. Items are of class `packer_cli.loader.steps.Step`.

    Lightning's epochs are the plan's. A checkpoint holds the place in the data, where `fit(ckpt_path=...)` goes on:
    also within an epoch, and on a set that was rebalanced there (docs/resume.md).

    Args:
        train, val: folders or URLs of packed sets, planned for as many GPUs as train. `val_loss` is taken over the
            whole of the first epoch of `val`, or of as many steps as the trainer's `limit_val_batches` says.
        options: more arguments of `PackedDataset`, for both.

    Raises:
        ConfigError: at the start of `fit` or `validate`, if the trainer's settings do not fit a packed set, and as
            `PackedDataset`; and before the first step, if the checkpoint has no place in a packed set.
        FormatError: as `PackedDataset`, also if the checkpoint's place is in another set.
    """

    def __init__(
        self, train: str | os.PathLike[str], val: str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._paths, self._options = (train, val), options
        if val is None:
            self.val_dataloader = None  # type: ignore[assignment,method-assign]  # So Lightning knows.
        # Data sets, once `setup` has opened them.
        self.train_set: Any = None
        self.val_set: Any = None

    def setup(self, stage: str) -> None:
        """Open the sets."""
        _require_fitting(self.trainer)
        train, val = self._paths
        self.train_set = self._open(train) if stage == "fit" else None
        self.val_set = None if val is None else self._open(val)
        if self.train_set is not None:
            if self.val_set is not None:
                self.val_set.require_held_out(self.train_set)
            # Lightning asks for the number of steps again in each epoch: epochs differ in it.
            self.trainer.reload_dataloaders_every_n_epochs = 1
            self._first_epoch, self._global_step = self.train_set.epoch, 0
            self._is_restored = self._resumes = False
            self._before = self._after = _Place(0, 0, self.train_set.state_dict(0))

    def _open(self, path: Any) -> PackedDataset:
        trainer = self.trainer
        # FSDP's ranks meet in every micro-batch.
        meets = isinstance(trainer.strategy, strategies.ModelParallelStrategy)
        return PackedDataset(path, trainer.global_rank, trainer.world_size, lockstep=meets, **self._options)

    def train_dataloader(self) -> Iterable[Step]:
        """Return the steps of Lightning's next epoch.

        The value is not a `DataLoader`, so Lightning does not shard it again.
        """
        if not self._resumes:
            self._before = self._after = self._place()._replace(num_steps=0)
        return _Steps(self._num_train_steps, self._train_steps)

    def val_dataloader(self) -> Iterable[Step]:
        """Return all steps."""
        dataset = self.val_set
        return _Steps(lambda: dataset.num_steps, lambda: packed_steps(dataset, 0))

    def transfer_batch_to_device(self, batch: Step, device: torch.device, dataloader_idx: int) -> Step:
        """Leave the step as it is: rows move when they run."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last step that was trained; nothing outside of `fit`."""
        return {} if self.train_set is None else self._place()._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the place of a checkpoint."""
        if self.train_set is None:
            return
        self._before = self._after = _Place(**state)
        self._is_restored = self._resumes = True
        if not self.train_set.begins_at(self._after.data):
            self.train_set.load_state_dict(self._after.data)
        if self.val_set is not None:
            self.val_set.require_held_out(self.train_set)

    def _place(self) -> _Place:
        # Lightning asks for a step when it has trained the one before, or stops within one.
        return self._after if self.trainer.global_step > self._global_step else self._before

    def _rest(self) -> tuple[int, int | None]:
        """Return the steps that are trained of Lightning's epoch, and the iteration to go on with; None: none left."""
        dataset, (epoch, num_steps, data) = self.train_set, self._place()
        if dataset.begins_at(data):
            begin = 0 if self._first_epoch == data["epoch"] else None
        else:
            dataset.set_epoch(data["epoch"])
            begin = data["iteration"] if data["iteration"] < len(dataset) else None
        # From a checkpoint at the end of an epoch, Lightning resumes in that epoch, and then counts the next.
        if begin is not None or (self._resumes and self.trainer.current_epoch == epoch):
            return num_steps, begin
        dataset.set_epoch(data["epoch"] + 1)
        # Then it does not start its count of steps anew, unless the count reaches the new epoch's steps.
        keeps_count = self._resumes and self.trainer.fit_loop.restarting and num_steps < dataset.num_steps
        return num_steps if keeps_count else 0, 0

    def _num_train_steps(self) -> int:
        num_trained, begin = self._rest()
        return num_trained + (0 if begin is None else self.train_set.num_steps - self.train_set.step_of(begin))

    def _train_steps(self) -> Iterator[Step]:
        if self.trainer.ckpt_path and not self._is_restored:
            raise ConfigError(
                f"the checkpoint {self.trainer.ckpt_path} does not hold a place in a packed set: it is from a run "
                "with other data, or of another class of PackedDataModule; load its weights instead, without ckpt_path"
            )
        num_trained, begin = self._rest()
        if begin is None:
            return
        for number, step in enumerate(packed_steps(self.train_set, begin), start=num_trained + 1):
            self._before, self._after = self._place(), _Place(self.trainer.current_epoch, number, step.state)
            self._resumes, self._global_step = False, self.trainer.global_step
            yield step


class PackedModule(lightning.LightningModule):
    """A causal language model of transformers that trains and validates on a `PackedDataModule`.

    Logs `train_loss`, the mean over the loss tokens of a step, or what the set's weights say; `tokens_per_second`;
    `step_seconds`, of the last step; `predicted_step_seconds`, if the set was planned with a model of the GPUs; and
    `val_loss`, the mean over the loss tokens of the validation set. The plan's `checkpoint_layers` take the place of
    gradient checkpointing. Optimization is automatic: the trainer's `gradient_clip_val` and `precision`, schedules and
    hooks work as for any module. If you override `setup`, `training_step` or `on_before_optimizer_step`, call this
    class's too.

    Strategies: one device, DDP, and FSDP2 (`ModelParallelStrategy`), for which you override `configure_model`::

        def configure_model(self):
            for layer in (*self.model.model.layers, self.model):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    Args:
        model: see `run_packed_rows`. Trained as `self.model`.
        optimizer: makes it from the parameters, like a class of `torch.optim`; None if you override
            `configure_optimizers`, which may return schedules as well.

    Raises:
        ConfigError: at the start of `fit` or `validate`, if the model cannot run packed rows; before the first step,
            if it mixes samples, or a set's rows are shared otherwise than by sequence parallelism.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: Callable[[Iterable[torch.nn.Parameter]], Any] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self._optimizer = optimizer
        self._val_loss = MeanMetric()
        self._runner: StepRunner | None = None
        self._began = 0.0
        self._step: Step | None = None

    def setup(self, stage: str) -> None:
        """Patch the model, before the strategy wraps it, and for `fit` put it in training mode.

        transformers loads models in evaluation mode, in which checkpointed layers would have no effect, and Lightning
        leaves the mode.
        """
        if not isinstance(self.trainer.datamodule, PackedDataModule):
            raise ConfigError("PackedModule trains on steps of packed sets; give fit or validate a PackedDataModule")
        run_packed_rows(self.model)
        if stage == "fit":
            self.model.train()
        self._runner, self._began = None, time.perf_counter()

    def configure_optimizers(self) -> Any:
        """Make the optimizer."""
        if self._optimizer is None:
            raise ConfigError(
                "PackedModule has no optimizer; give one, such as optimizer=torch.optim.AdamW, or override "
                "configure_optimizers"
            )
        return self._optimizer(self.parameters())

    def training_step(self, step: Step, batch_idx: int = 0) -> torch.Tensor:
        """Run forward of all micro-batches, and backward of all but the last, which Lightning runs itself.

        Only then does DDP exchange gradients.

        Returns:
            The loss of the step: the mean over ranks is `train_loss`.
        """
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad()
        runner = self._runner_of_model()
        for number, loss in enumerate(runner.losses(step), start=1):
            if number < len(step.batches):
                self.trainer.strategy.backward(loss, None)
        self._step = step
        self.log("train_loss", runner.loss, prog_bar=True, sync_dist=True)
        return loss + (runner.loss - loss.detach())

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Log, after the step's last backward pass, what the step took since the one before."""
        step, self._step = self._step, None
        if step is None:  # Of another optimizer.
            return
        seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
        rate = torch.tensor(step.num_tokens / seconds, dtype=torch.float32, device=self.device)
        self.log("tokens_per_second", rate, prog_bar=True, sync_dist=True, reduce_fx="sum")
        self.log("step_seconds", seconds)
        if step.predicted_seconds is not None:
            self.log("predicted_step_seconds", step.predicted_seconds)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Do nothing: Lightning calls it between `training_step` and the last backward, when gradients must stay."""

    def validation_step(self, step: Step, batch_idx: int = 0) -> None:
        """Run forward of all micro-batches."""
        weight = loss_weight_of_step(step.batches[0])
        runner = self._runner_of_model()
        for _ in runner.losses(step):
            pass
        self._val_loss.update(runner.loss, weight)
        self.log("val_loss", self._val_loss, prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        """Begin to measure anew: validation does not count in `tokens_per_second` and `step_seconds`."""
        self._began = time.perf_counter()

    def _runner_of_model(self) -> StepRunner:
        if self._runner is None:  # Now that the strategy has wrapped the model.
            data = self.trainer.datamodule
            datasets = [each for each in (data.train_set, data.val_set) if each is not None]
            self._runner = StepRunner(self.model, *datasets, device=self.device)
        return self._runner


class _Place(NamedTuple):
    """After a step."""

    epoch: int
    """Number of the epoch, as Lightning counts."""
    num_steps: int
    """Trained in it."""
    data: dict[str, Any]
    """State of the data set."""


class _Steps:
    """Data loader that Lightning takes. It asks for the place when read: some strategies restore it late."""

    def __init__(self, length: Callable[[], int], steps: Callable[[], Iterator[Step]]) -> None:
        self._length, self._steps = length, steps

    def __len__(self) -> int:
        return self._length()

    def __iter__(self) -> Iterator[Step]:
        yield from self._steps()

    # The data module has the place. Without these two, Lightning warns of a loader that cannot resume.

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _require_fitting(trainer: lightning.Trainer) -> None:
    """Raise ConfigError for what the plan decides, or what cannot run several micro-batches in a step."""
    if trainer.accumulate_grad_batches != 1:
        raise ConfigError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}, and the plan says how many micro-batches "
            "a step has; leave it out, and give hbpack pack --global-tokens"
        )
    if trainer.limit_train_batches != 1.0 and not trainer.fast_dev_run:
        raise ConfigError(
            f"limit_train_batches is {trainer.limit_train_batches}, and an epoch of a plan is whole; set max_steps "
            "instead"
        )
    strategy = trainer.strategy
    known = (strategies.SingleDeviceStrategy, strategies.DDPStrategy, strategies.ModelParallelStrategy)
    if not isinstance(strategy, known) or isinstance(strategy, strategies.DeepSpeedStrategy | strategies.XLAStrategy):
        raise ConfigError(
            f"packed sets do not train with {type(strategy).__name__}, which cannot run several micro-batches in a "
            "step; choose strategy='ddp', or ModelParallelStrategy for FSDP2"
        )
    if isinstance(strategy, strategies.ModelParallelStrategy) and strategy.device_mesh["tensor_parallel"].size() > 1:
        raise ConfigError(
            "ModelParallelStrategy has tensor parallelism, and every process reads rows of its own or shares them by "
            f"sequence parallelism; give data_parallel_size={trainer.world_size} and tensor_parallel_size=1"
        )
