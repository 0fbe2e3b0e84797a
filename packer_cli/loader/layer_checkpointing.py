"""Gradient checkpointing on a number of layers that can change with every batch.

A group's `checkpoint_layers` is the least number of layers that must recompute their activations for its rows to fit
in memory (HBP, algorithm 4). Short rows need none, so one number for all rows wastes time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


class LayerCheckpointing:
    """Checkpoints the first layers of a transformers model, as many as each batch needs. ::

        checkpointing = LayerCheckpointing(model)
        for batch in loader:
            checkpointing.set(batch["checkpoint_layers"])
            ...

    Args:
        model: a transformers model, before or after wrapping it with FSDP2 (`fully_shard`) or PEFT. Do not call its
            `gradient_checkpointing_enable`, and do not let a trainer call it.
        layers: its decoder layers (transformers' `GradientCheckpointingLayer`); None finds them: the longest
            `nn.ModuleList` of such layers.
        use_reentrant: as in `torch.utils.checkpoint.checkpoint`; transformers and torch advise against it.

    Raises:
        ValueError: there are no such layers, as in a model that does not support gradient checkpointing.

    Price: `set` writes one flag per layer. Like all gradient checkpointing, it only has an effect in training mode.
    A compiled model is recompiled for each number of layers.
    """

    def __init__(
        self, model: nn.Module, layers: Iterable[nn.Module] | None = None, *, use_reentrant: bool = False
    ) -> None:
        self.layers: list[Any] = _find_layers(model) if layers is None else list(layers)
        if not self.layers or not all(_can_checkpoint(layer) for layer in self.layers):
            raise ValueError(
                f"{type(model).__name__} has no layers that support gradient checkpointing: "
                "give a transformers model that does, or its decoder layers as `layers`"
            )
        # As `gradient_checkpointing_enable` does, but only for the layers, each of which then follows its flag.
        for layer in self.layers:
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=use_reentrant)
        self.set(0)

    def set(self, checkpoint_layers: int) -> None:
        """Checkpoint from now on the first `checkpoint_layers` layers, and no others.

        Raises:
            ValueError: the number is negative or exceeds the model's layers, as if the plan is for another model.
        """
        if not 0 <= checkpoint_layers <= len(self.layers):
            raise ValueError(
                f"checkpoint_layers is {checkpoint_layers}, but the model has {len(self.layers)} layers: "
                "plan with the profile of this model"
            )
        for i, layer in enumerate(self.layers):
            layer.gradient_checkpointing = i < checkpoint_layers


def _can_checkpoint(layer: nn.Module) -> bool:
    return hasattr(layer, "gradient_checkpointing")


def _find_layers(model: nn.Module) -> list[nn.Module]:
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max((layers for layers in lists if layers and all(map(_can_checkpoint, layers))), key=len, default=[])
