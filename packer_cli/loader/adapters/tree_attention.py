"""Models of transformers that run rows of trees in a loop of your own. ::

    set_tree_attention(model)
    for batch in PackedDataset("OUT", rank, world_size, format="tree"):
        hidden = model.get_decoder()(**tree_inputs(batch, device)).last_hidden_state

For preferences, `BranchLogps` and `BranchRewards` do all this, and DDP can wrap them. `run_packed_rows` makes the loss
of tokens, too, and runs flat rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from packer_cli.loader.adapters.causal_lm import require_no_state, set_row_attention
from packer_cli.loader.adapters.packed_row import RowKeys, finished_logits
from packer_cli.loader.losses import branch_logps, branch_rewards
from packer_cli.loader.parallel import sum_slices
from packer_cli.loader.separation import check_branches

__all__ = ["BranchLogps", "BranchRewards", "check_tree", "set_tree_attention", "tree_inputs"]


def set_tree_attention(model: Any) -> None:
    """Give a model attention that runs rows of trees, as `tree_inputs` brings them; other batches run as before.

    Format "tree" runs on FlashAttention's varlen kernel, or without it, on torch's own attention; "tree-flex" on
    FlexAttention. Which one is the model's `attn_implementation`. Sliding windows count depth.

    Args:
        model: of transformers, before DDP or FSDP wraps it; PEFT may have.

    Raises:
        ConfigError: it has another attention, which would take later branches for samples of their own, or layers
            with a state, which runs from one branch into the next.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    require_no_state(inner)
    set_row_attention(inner)


def tree_inputs(
    batch: Mapping[str, Any], device: torch.device, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """Return the keyword arguments of a model, or its decoder, of a batch of format "tree" or "tree-flex".

    Args:
        group: the ranks that share the row; None where this one has it alone.
    """
    tensors = {name: batch[name].to(device) for name in ("input_ids", "position_ids")}
    return {**tensors, "packed_row": RowKeys(batch, group, device), "use_cache": False}


def check_tree(model: Any) -> None:
    """Raise ConfigError unless a row of two branches gives what each gives alone.

    Price: three forward passes of 18 tokens at most, without gradients. Does not change random states.

    Args:
        model: a causal language model that `set_tree_attention` has changed, on its device, wrapped or not; with FSDP,
            call it on every rank.
    """
    device = next(model.parameters()).device

    def run(batch: Mapping[str, Any]) -> Tensor:
        return branch_logps(model(**tree_inputs(batch, device)).logits, lambda logits: logits, batch)

    _check(model, device, run)


def _check(model: Any, device: torch.device, run: Callable[[Mapping[str, Any]], Tensor]) -> None:
    # FlashAttention takes no float32.
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        check_branches(model, device, run)


class _OfBranches(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        set_tree_attention(model)
        self.model = model
        _check(model, model.device, self)

    def _hidden(self, batch: Mapping[str, Any], group: dist.ProcessGroup | None) -> Tensor:
        hidden: Tensor = self.model.get_decoder()(**tree_inputs(batch, self.model.device, group)).last_hidden_state
        return hidden


class BranchLogps(_OfBranches):
    """The log-probability of each branch of a row, see `losses.branch_logps`.

    Args:
        model: a causal language model of transformers, on its device, before DDP wraps it.

    Raises:
        ConfigError: it does not run trees, as `set_tree_attention` and `check_tree` find.
    """

    def forward(self, batch: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> Tensor:
        """Compute [n], of the whole row, also where ranks share it. Arguments as for `tree_inputs`."""
        return sum_slices(branch_logps(self._hidden(batch, group), self._logits, batch), group)

    def _logits(self, tokens: Tensor) -> Tensor:
        return finished_logits(self.model.get_output_embeddings()(tokens), self.model.config.get_text_config())


class BranchRewards(_OfBranches):
    """The reward of each branch of a row, see `losses.branch_rewards`.

    Args:
        model: a sequence classification model of transformers with one output, on its device, before DDP wraps it.

    Raises:
        ConfigError: as for `BranchLogps`.
    """

    def forward(self, batch: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> Tensor:
        """Compute [n], of the whole row, also where ranks share it. Arguments as for `tree_inputs`."""
        pad = self.model.config.get_text_config().pad_token_id
        return sum_slices(branch_rewards(self._hidden(batch, group), self.model.score, batch, pad), group)
