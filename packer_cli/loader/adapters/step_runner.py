"""The micro-batches of a step on a causal language model of transformers, for loops that step by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.loader.adapters.causal_lm import check_packed_rows, run_row
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.parallel import SPGroups, init_sp_groups
from packer_cli.loader.steps import Step

__all__ = ["StepRunner"]


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
    model on a row of two samples.

    Args:
        model: which `run_packed_rows` has patched, and DDP or FSDP2 has wrapped if several processes train.
        datasets: in format "transformers", of this rank: all whose steps it runs.
        device: of the model.

    Raises:
        ConfigError: the model mixes samples, or a set's rows are shared otherwise than by sequence parallelism.
        ValueError: the model's layers do not support gradient checkpointing.
    """

    def __init__(self, model: nn.Module, *datasets: PackedDataset, device: torch.device) -> None:
        for dataset in datasets:
            _require_sp_alone(dataset)
        self._model, self._device = model, device
        self._world_size = datasets[0].world_size
        self._groups = _groups_of(*datasets) if self._world_size > 1 else None
        self._checkpointing = LayerCheckpointing(model)
        check_packed_rows(model, device)

    def losses(self, step: Step) -> Iterator[torch.Tensor]:
        """Run forward of one micro-batch after the other. Run backward of each loss before you ask for the next.

        DDP exchanges gradients in the last one's backward pass alone. FSDP reduces them in each, or it would keep
        whole ones on every GPU.

        Yields:
            Scalars with their graphs. Their sum, averaged over ranks as DDP and FSDP average gradients, is the mean
            over the loss tokens of the step, or what the set's weights say.
        """
        for batch in step.batches:
            self._checkpointing.set(batch["checkpoint_layers"])
            group = None if self._groups is None else self._groups.for_batch(batch)
            waits = batch is not step.batches[-1] and isinstance(self._model, DistributedDataParallel)
            with self._model.no_sync() if waits else nullcontext():
                yield run_row(self._model, batch, group, device=self._device, world_size=self._world_size)


def _require_sp_alone(dataset: PackedDataset) -> None:
    for group in dataset.manifest["groups"]:
        layout = Layout(*(group[f"{name}_size"] for name in ("sp", "cp", "tp", "pp")))
        if layout != Layout(sp=layout.sp):
            raise ConfigError(
                f"{dataset.path} has groups of {layout}, and here ranks share rows by sequence parallelism (SP) "
                "alone; pack without --parallel, and with SP degrees in --groups"
            )


def _groups_of(*datasets: PackedDataset) -> SPGroups:
    """The process groups of the rows of all sets, which every process makes in the same order."""
    replicas: dict[Layout, set[int]] = {}
    for dataset in datasets:
        for layout, firsts in dataset.replicas.items():
            replicas.setdefault(layout, set()).update(firsts)
    return init_sp_groups({layout: sorted(firsts) for layout, firsts in replicas.items()})
