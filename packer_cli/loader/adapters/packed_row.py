"""Inputs that a packed row brings into a model's forward pass, and the loss that it takes out.

It travels as one object in the keyword arguments, which transformers hands on to each layer. Wrappers copy, cast and
move tensors and dictionaries of tensors, but not an object. A layer that is recomputed in the backward pass gets the
row with which it ran.

The loss is made of the hidden states of the tokens with a loss; the logits are never whole.

A row can be flat, or of trees whose branches share prefixes (`format.trees`): then each run of queries attends to the
keys of a path, which are gathered in every layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils import ModelOutput

from packer_cli.errors import ConfigError
from packer_cli.loader.formats.flex import RowMask
from packer_cli.loader.losses import in_chunks, shifted_labels, token_losses
from packer_cli.loader.passes import IGNORE_INDEX

__all__ = ["PackedRow", "RowKeys"]


class RowKeys:
    """The keys that the queries of a row attend to: the part of a batch that the attention takes.

    Args:
        batch: of format "transformers", "tree" or "tree-flex".
        group: the ranks that share the row; None where this one has it alone.
        device: of the model.
    """

    def __init__(self, batch: Mapping[str, Any], group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group = group
        self.num_attended = 0
        """Calls of the attention for it."""
        mask = batch.get("attention_mask")
        self.mask = mask if isinstance(mask, RowMask) else None
        """Mask of format "tree-flex", for FlexAttention, which needs nothing else."""
        self.masks: dict[int | None, Any] = {}
        """Masks of FlexAttention, by sliding window; each layer uses them again."""
        self.is_tree = self.mask is not None or "tree_kv_index" in batch
        self.kv_index: Tensor | None = None
        """int64 [K]: which keys to gather; None: they are where the queries are."""
        self.varlen: dict[str, Any] = {}
        """Arguments that FlashAttention takes."""
        if self.mask is None:
            names = _OF_TREES if self.is_tree else _OF_SAMPLES
            self._borders = [batch[names[f"cu_seq_lens_{kind}"]] for kind in "qk"]
            self.varlen = {name: batch[given] for name, given in names.items()}
            self.varlen |= {name: each.to(device) for name, each in self.varlen.items() if name.startswith("cu_")}
            if self.is_tree:
                self.kv_index = batch["tree_kv_index"].to(device)

    @cached_property
    def borders(self) -> list[int]:
        """Borders of queries."""
        found: list[int] = self._borders[0].tolist()
        return found

    @cached_property
    def key_borders(self) -> list[int] | None:
        """Borders of the gathered keys; None: they are where the queries are."""
        return None if self.kv_index is None else self._borders[1].tolist()

    def keys(self, tensor: Tensor) -> Tensor:
        """Return keys or values as the queries attend to them: [T, ...] -> [K, ...] of a row of trees."""
        return tensor if self.kv_index is None else tensor.index_select(0, self.kv_index)


class PackedRow(RowKeys):
    """Tensors that a forward pass needs of a batch of format "transformers", "tree" or "tree-flex".

    Args:
        batch: with its metadata.
        group: the ranks that share the row; None where this one has it alone.
        factor: by which the sum of the losses is multiplied, see `loader.losses`.
        device: of the model.
    """

    brings_inputs: ClassVar[bool] = False
    """Whether the model runs the row's `inputs`, whatever else it is given."""

    def __init__(
        self, batch: Mapping[str, Any], group: dist.ProcessGroup | None, *, factor: float, device: torch.device
    ) -> None:
        super().__init__(batch, group, device)
        names = ["input_ids", "position_ids", *(["seq_idx"] if "seq_idx" in batch else [])]
        self.inputs: dict[str, Any] = {name: batch[name].to(device) for name in names}
        """Inputs that a model takes besides the row. Layers without attention, such as recurrent ones and
        convolutions, tell samples apart by them (docs/loader.md)."""
        if not self.is_tree:
            self.inputs |= self.varlen
        self.num_tokens: int = batch["input_ids"].numel()
        self._set_targets(batch, device)
        self.factor = factor
        self.loss: Any = None
        """Loss of this rank, times the factor, once the row ran: a scalar without a graph. Wrappers may round what the
        forward pass returns."""

    def _set_targets(self, batch: Mapping[str, Any], device: torch.device) -> None:
        labels, weights = shifted_labels(batch)
        kept = labels[0].ne(int(IGNORE_INDEX)).nonzero()[:, 0]
        self.kept = kept.to(device)
        """int64 [k], places of the tokens with a loss."""
        self.targets = labels[0, kept].to(device)
        """int64 [k]"""
        self.weights = None if weights is None else weights[0, kept].to(device)
        """float32 [k]"""

    def take(self, head: Any, config: Any, hidden: Tensor) -> ModelOutput:
        """Return what a model returns for the row; arguments as for `row_loss`."""
        return CausalLMOutput(loss=row_loss(head, config, hidden, self))

    def run(self, model: nn.Module) -> Tensor:
        """Run the forward pass of a model, wrapped or not, and return its loss, with the graph.

        Raises:
            ConfigError: the model does not run packed rows, or no longer.
        """
        loss: Tensor = model(**self.inputs, packed_row=self).loss
        if self.loss is None:
            raise ConfigError(
                "the model did not run a packed row: call run_packed_rows(model) before anything wraps it, and again "
                "if something replaces its forward pass, such as Liger's fused loss"
            )
        return loss


_OF_SAMPLES = {"cu_seq_lens_q": "cu_seq_lens_q", "cu_seq_lens_k": "cu_seq_lens_q"}
_OF_SAMPLES |= {"max_length_q": "max_length_q", "max_length_k": "max_length_q"}
_OF_TREES = {"cu_seq_lens_q": "tree_cu_seqlens_q", "cu_seq_lens_k": "tree_cu_seqlens_k"}
_OF_TREES |= {"max_length_q": "tree_max_seqlen_q", "max_length_k": "tree_max_seqlen_k"}
"""FlashAttention's names, and those of a batch."""


@torch.compiler.disable  # A graph would be compiled anew for each number of tokens with a loss.
def row_loss(head: Any, config: Any, hidden: Tensor, row: PackedRow) -> Tensor:
    """Sum the losses of this rank's tokens, times the row's factor: a scalar of float32, or of float64.

    The output layer runs over the tokens with a loss alone: in Liger's fused kernel where that is installed, else
    `CHUNK` logits at a time, and again in the backward pass.

    Args:
        head: the output layer, whose own forward pass is its attribute `_logits`.
        config: of the model.
        hidden: [1, t, hidden], what the decoder returns.
    """
    kept, targets, weights = row.kept, row.targets, row.weights
    if not len(kept):  # The output layer must have a gradient on every rank.
        kept, targets = kept.new_zeros(1), targets.new_zeros(1)
        weights = hidden.new_zeros(1, dtype=torch.float32)
    tokens = hidden[0].index_select(0, kept)
    # Never weights, with which some releases of Liger have other gradients.
    fused = _fused(head, tokens) if weights is None else None
    if fused is not None:
        total = fused(tokens, targets, config)
    else:

        def losses(tokens: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
            return token_losses(finished_logits(head._logits(tokens), config), targets, weights).sum()

        start = tokens.new_zeros((), dtype=torch.promote_types(tokens.dtype, torch.float32))
        total = sum(in_chunks(losses, config.vocab_size, tokens, targets, weights), start=start)
    total = total * row.factor
    row.loss = total.detach()
    return total


def _fused(head: Any, tokens: Tensor) -> Callable[..., Tensor] | None:
    """Return Liger's output layer and loss in one, of a plain linear layer on a GPU; None if they do not fit."""
    is_plain = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    if not is_plain or tokens.dtype == torch.float64 or not (tokens.is_cuda or os.environ.get("TRITON_INTERPRET")):
        return None
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    except ImportError:
        return None

    def run(tokens: Tensor, targets: Tensor, config: Any) -> Tensor:
        device, weight, bias = tokens.device.type, head.weight, head.bias
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        # The logits are linear in the tokens, so both are scaled alike.
        tokens = _scaled(tokens.to(dtype), config)
        bias = None if bias is None else _scaled(bias.to(dtype), config)
        found = LigerFusedLinearCrossEntropyFunction.apply(
            tokens, weight.to(dtype), targets, bias, None, int(IGNORE_INDEX), 0.0, 0.0, "sum",
            getattr(config, "final_logit_softcapping", None), False, torch.float32,
        )  # fmt: skip
        result: Tensor = found[0] if isinstance(found, tuple) else found
        return result

    return run


def finished_logits(logits: Tensor, config: Any) -> Tensor:
    """Finish the output layer's logits as a model does: scale them (Cohere, Granite), or cap them (Gemma 2)."""
    cap = getattr(config, "final_logit_softcapping", None)
    logits = _scaled(logits, config)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _scaled(logits: Tensor, config: Any) -> Tensor:
    scale = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    if scale is not None:
        logits = logits * scale
    return logits if divisor is None else logits / divisor
