"""Models of transformers that run rows of trees in a loop of your own. ::

    set_tree_attention(model)
    for batch in PackedDataset("OUT", rank, world_size, format="tree"):
        hidden = model.get_decoder()(**tree_inputs(batch, device)).last_hidden_state

For preferences, `BranchLogps` and `BranchRewards` do all this, and DDP can wrap them. `run_packed_rows` makes the loss
of tokens, too, and runs flat rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from packer_cli.loader.adapters.causal_lm import require_keywords, require_no_state
from packer_cli.loader.adapters.packed_row import finished_logits
from packer_cli.loader.adapters.row_attention import TREE_KEYS, brings_tree, packed_rows_run, set_row_attention
from packer_cli.loader.losses import branch_logps, branch_rewards
from packer_cli.loader.parallel import sum_slices
from packer_cli.loader.separation import check_tree

__all__ = ["BranchLogps", "BranchRewards", "set_tree_attention", "tree_inputs"]


def set_tree_attention(model: Any) -> None:
    """Give a model attention that reads the keys of formats "tree" and "tree-flex"; other batches run as before.

    Format "tree" runs on FlashAttention's varlen kernel, or without it, on torch's own attention; "tree-flex" on
    FlexAttention. Which one is the model's `attn_implementation`. Sliding windows count depth.

    Args:
        model: of transformers, before DDP or FSDP wraps it; PEFT may have.

    Raises:
        ConfigError: it has another attention, which would take later branches for samples of their own, or layers
            with a state, which runs from one branch into the next.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = inner.get_decoder()
    require_keywords(inner)
    require_no_state(inner)
    set_row_attention(inner)
    if not any(getattr(hook, "func", None) is _begin for hook in decoder._forward_pre_hooks.values()):
        running: list[ExitStack] = []
        decoder.register_forward_pre_hook(partial(_begin, running), with_kwargs=True)
        decoder.register_forward_hook(partial(_end, running), always_call=True)


def _begin(running: list[ExitStack], decoder: Any, arguments: Any, given: Mapping[str, Any]) -> None:
    """Before a forward pass: one of a tree makes no mask, and all its layers must get the keys."""
    running.append(ExitStack())
    if brings_tree(given):
        running[-1].enter_context(packed_rows_run())


def _end(running: list[ExitStack], *_: Any) -> None:
    running.pop().close()


def tree_inputs(
    batch: Mapping[str, Any], device: torch.device, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """The keyword arguments of a model, or its decoder, of a batch of format "tree" or "tree-flex".

    Args:
        group: the ranks that share the row; None where this one has it alone.
    """
    names = ("input_ids", "position_ids", *TREE_KEYS, "attention_mask")
    given = {name: batch[name] for name in names if name in batch}
    moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in given.items()}
    return {**moved, "use_cache": False, **({} if group is None else {"tree_group": group})}


class _OfBranches(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        takes_mask = model.config._attn_implementation.endswith("flex_attention")
        set_tree_attention(model)
        check_tree(
            model.get_decoder(), ("position_ids", *(("attention_mask",) if takes_mask else TREE_KEYS)), use_cache=False
        )
        self.model = model

    def _hidden(self, batch: Mapping[str, Any], group: dist.ProcessGroup | None) -> Tensor:
        hidden: Tensor = self.model.get_decoder()(**tree_inputs(batch, self.model.device, group)).last_hidden_state
        return hidden


class BranchLogps(_OfBranches):
    """The log-probability of each branch of a row, see `losses.branch_logps`.

    Args:
        model: a causal language model of transformers, on its device, before DDP wraps it.

    Raises:
        ConfigError: it does not run trees, as `set_tree_attention` and `separation.check_tree` find.
    """

    def forward(self, batch: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> Tensor:
        """[n], of the whole row, also where ranks share it. Arguments as for `tree_inputs`."""
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
        """[n], of the whole row, also where ranks share it. Arguments as for `tree_inputs`."""
        pad = self.model.config.get_text_config().pad_token_id
        return sum_slices(branch_rewards(self._hidden(batch, group), self.model.score, batch, pad), group)
