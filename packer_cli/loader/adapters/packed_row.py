"""What a packed row brings into a model's forward pass.

It travels as one object in the keyword arguments, which transformers hands on to each layer. Wrappers copy, cast and
move tensors and dictionaries of tensors, but not an object. A layer that is recomputed in the backward pass gets the
row with which it ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from packer_cli.errors import ConfigError
from packer_cli.loader.losses import shifted_labels
from packer_cli.loader.passes import IGNORE_INDEX

__all__ = ["PackedRow"]


class PackedRow:
    """What a forward pass needs besides `input_ids` and `position_ids` of a batch of format "transformers".

    Args:
        batch: with its metadata.
        group: the ranks that share the row; None where this one has it alone.
        factor: by which the sum of the losses is multiplied, see `loader.losses`.
        device: of the model.
    """

    def __init__(
        self, batch: Mapping[str, Any], group: dist.ProcessGroup | None, *, factor: float, device: torch.device
    ) -> None:
        self.group = group
        self.longest: int = batch["max_length_q"]
        self.borders: list[int] = batch["cu_seq_lens_q"].tolist()
        self.masks: dict[int | None, Any] = {}
        """Of FlexAttention, by sliding window; each layer uses them again."""
        self.device_borders: torch.Tensor = batch["cu_seq_lens_q"].to(device)
        labels, weights = shifted_labels(batch)
        kept = labels[0].ne(int(IGNORE_INDEX)).nonzero()[:, 0]
        self.kept = kept.to(device)
        """int64 [k], places of the tokens with a loss."""
        self.targets = labels[0, kept].to(device)
        """int64 [k]"""
        self.weights = None if weights is None else weights[0, kept].to(device)
        """float32 [k]"""
        self.factor = factor
        self.inputs: dict[str, Any] = _inputs_of(batch, device)
        """What a model takes besides the row."""
        self.num_attended = 0
        """Calls of the attention for it."""
        self.loss: Any = None
        """Of this rank, times the factor, once it ran: a scalar without a graph. Wrappers may round what the forward
        pass returns."""

    def run(self, model: nn.Module) -> torch.Tensor:
        """The forward pass of a model, wrapped or not: its loss, with the graph.

        Raises:
            ConfigError: the model does not run packed rows, or no longer.
        """
        loss: torch.Tensor = model(**self.inputs, packed_row=self).loss
        if self.loss is None:
            raise ConfigError(
                "the model did not run a packed row: call run_packed_rows(model) before anything wraps it, and again "
                "if something replaces its forward pass, such as Liger's fused loss"
            )
        return loss


def _inputs_of(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """What a model takes of a batch besides its row.

    Layers without attention, such as recurrent ones and convolutions, tell samples apart by it (docs/loader.md).
    """
    names = [name for name in ("input_ids", "position_ids", "seq_idx", "cu_seq_lens_q") if name in batch]
    found: dict[str, Any] = {name: batch[name].to(device) for name in names}
    found["cu_seq_lens_k"] = found["cu_seq_lens_q"]
    return found | {"max_length_q": batch["max_length_q"], "max_length_k": batch["max_length_q"]}
