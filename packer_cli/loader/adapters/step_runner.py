"""The micro-batches of a step on a causal language model of transformers, for loops that step by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.loader.adapters.causal_lm import check_packed_rows
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.layer_checkpointing import LayerCheckpointing
from packer_cli.loader.losses import loss_weight_of_step
from packer_cli.loader.parallel import SPGroups, init_sp_groups
from packer_cli.loader.separation import check_trees
from packer_cli.loader.steps import Step

__all__ = ["StepRunner", "require_sp_alone", "require_vocabulary"]


class StepRunner:
    """Runs the micro-batches of steps: each with its checkpointed layers, and its row with the ranks that share it. ::

        run_packed_rows(model)
        model = DistributedDataParallel(model)  # or fully_shard
        runner = StepRunner(model, dataset, device=device)
        for step in packed_steps(dataset):
            for loss in runner.losses(step):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Make it on every rank, after the process group. It makes the process groups of the rows of all sets, and tries the
    model on a row of two samples before the first step.

    Args:
        model: which `run_packed_rows` has patched, and DDP or FSDP2 has wrapped if several processes train. Attribute
            `model` may be set to its wrapper later, before the first step.
        datasets: in format "transformers", "tree" or "tree-flex", of this rank: all whose steps it runs.
        device: of the model.
        checkpoint_all: whether every row recomputes all layers; else as many as its plan says.

    Raises:
        ConfigError: a set's rows are shared otherwise than by sequence parallelism.
        ValueError: the model's layers do not support gradient checkpointing.
    """

    def __init__(
        self, model: nn.Module, *datasets: PackedDataset, device: torch.device, checkpoint_all: bool = False
    ) -> None:
        for dataset in datasets:
            require_sp_alone(dataset)
            require_vocabulary(dataset, model)
        self.model, self.device = model, device
        self.loss = torch.zeros((), device=device)
        """Loss of this rank's part of the newest step, without a graph; wrappers may round what `losses` yields."""
        self._world_size = datasets[0].world_size
        self._groups = _groups_of(*datasets) if self._world_size > 1 else None
        self._checkpointing = LayerCheckpointing(model)
        self._checkpointed = len(self._checkpointing.layers) if checkpoint_all else None
        self._formats = {dataset.format for dataset in datasets}
        self._is_checked = False

    def losses(self, step: Step) -> Iterator[torch.Tensor]:
        """Run forward of one micro-batch after the other. Run backward of each loss before you ask for the next.

        DDP exchanges gradients in the last one's backward pass alone. FSDP reduces them in each, or it would keep
        whole ones on every GPU.

        Yields:
            Scalars with their graphs. Their sum, averaged over ranks as DDP and FSDP average gradients, is the mean
            over the loss tokens of the step, or what the set's weights say.

        Raises:
            ConfigError: before the first step, if the model mixes samples.
        """
        if not self._is_checked:
            self.check()
            self._is_checked = True
        self.loss = torch.zeros((), device=self.device)
        for batch in step.batches:
            planned = batch["checkpoint_layers"]
            self._checkpointing.set(planned if self._checkpointed is None else self._checkpointed)
            group = None if self._groups is None else self._groups.for_batch(batch)
            weight = self.weight_of_step(batch)
            row = self.row(batch, group, factor=self._world_size / weight if weight else 0.0)
            with self.gradients(is_last=batch is step.batches[-1]):
                loss = self.forward(row)
                self.loss = self.loss + row.loss
                yield loss

    def check(self) -> None:
        """Raise ConfigError if the model mixes samples."""
        check_packed_rows(self.model, self.device)
        if self._formats != {"transformers"}:
            check_trees(self.model, self.device, partial(PackedRow, group=None))

    def weight_of_step(self, batch: Any) -> float:
        """Return the number by which the sum of the losses of a step is divided."""
        return loss_weight_of_step(batch)

    def row(self, batch: Any, group: Any, *, factor: float) -> PackedRow:
        """Make the row that the model runs."""
        return PackedRow(batch, group, factor=factor, device=self.device)

    def gradients(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return a context for forward and backward of a micro-batch, the last of its step or not."""
        waits = not is_last and isinstance(self.model, DistributedDataParallel)
        return cast("DistributedDataParallel", self.model).no_sync() if waits else nullcontext()

    def forward(self, row: PackedRow) -> torch.Tensor:
        """Run the model, and return the loss of a row."""
        return row.run(self.model)


def require_sp_alone(dataset: PackedDataset) -> None:
    """Raise ConfigError if ranks share rows of a set otherwise than by sequence parallelism."""
    for group in dataset.manifest["groups"]:
        layout = Layout(*(group[f"{name}_size"] for name in ("sp", "cp", "tp", "pp")))
        if layout != Layout(sp=layout.sp):
            raise ConfigError(
                f"{dataset.path} has groups of {layout}, and here ranks share rows by sequence parallelism (SP) "
                "alone; pack without --parallel, and with SP degrees in --groups"
            )


def require_vocabulary(dataset: PackedDataset, model: Any) -> None:
    """Raise ConfigError if a set has token ids that the model does not know."""
    size = dataset.manifest["tokenizer"]["vocab_size"]
    known = getattr(model, "module", model).get_input_embeddings().num_embeddings
    if size > known:
        raise ConfigError(
            f"{dataset.path} has token ids up to {size - 1}, and the model has embeddings for {known}; pack with the "
            "tokenizer of this model, or call its resize_token_embeddings"
        )


def _groups_of(*datasets: PackedDataset) -> SPGroups:
    """Make the process groups of the rows of all sets, which every process makes in the same order."""
    replicas: dict[Layout, set[int]] = {}
    for dataset in datasets:
        for layout, firsts in dataset.replicas.items():
            replicas.setdefault(layout, set()).update(firsts)
    return init_sp_groups({layout: sorted(firsts) for layout, firsts in replicas.items()})
