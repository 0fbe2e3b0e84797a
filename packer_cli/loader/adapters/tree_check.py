"""Tries a model on a row of trees before it trains: each branch must give what it gives alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from packer_cli.errors import ConfigError
from packer_cli.format.trees import CHOSEN, PAIR, REJECTED
from packer_cli.loader.adapters.causal_lm import evaluating
from packer_cli.loader.formats.tree import kernel_keys, row_mask, two_branches

__all__ = ["check_trees"]

_SHARED, _CHOSEN, _REJECTED = 6, 5, 7
"""Tokens of a pair's prefix, and of what follows it."""
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Relative, as some layers compute in float32; for other types, 3 %."""


def check_trees(model: nn.Module, device: torch.device, make_row: Callable[..., Any]) -> None:
    """Raise ConfigError unless a row of a pair that shares its prompt gives what its two samples give one by one.

    With FSDP, call it on every rank. Price: three forward passes of 18 tokens at most. Does not change random states.

    Args:
        model: which `run_packed_rows` has patched, wrapped or not.
        make_row: of a batch of format "tree", with `factor` and `device`.
    """
    inner: Any = getattr(model, "module", model)
    with evaluating(model):
        batch = _pair(inner.config)
        row = make_row(batch, factor=1.0, device=device)
        output = model(**_given(row), use_cache=False)
        found = _of_row(output, row)
        alone = torch.stack([_alone(model, ids, device) for ids in _branches(batch["input_ids"][0])])
    if len(found) == 1:  # The loss of both.
        alone = alone.sum(0, keepdim=True)
    # Rewards are of the order of 1, and may be 0.
    scale = alone.abs().max() + float(hasattr(output, "logits"))
    off = float(((found - alone).abs() / scale).max())
    if row.num_attended and off <= _TOLERANCE.get(next(model.parameters()).dtype, 0.03):
        return
    raise ConfigError(
        f"{type(inner).__name__} cannot run trees: two samples that share a prompt give something else than one by "
        f"one ({off:.1%} off), so its layers mix branches; pack with --no-share-prefixes"
    )


def _given(row: Any) -> dict[str, Any]:
    return row.given() if row.brings_inputs else {**row.inputs, "packed_row": row}


def _of_row(output: Any, row: Any) -> Tensor:
    """Float64: of each branch its log-probability or reward, or the sum of these."""
    if not row.brings_inputs:
        found: Tensor = -output.loss[None]
    else:
        found = output.logits if hasattr(output, "logits") else output.log_probs.sum(1)
    return found.flatten().double()


def _alone(model: nn.Module, ids: Tensor, device: torch.device) -> Tensor:
    """Float64: the log-probability of all but the prompt, or the reward."""
    logits: Tensor = model(input_ids=ids[None].to(device), use_cache=False).logits[0].double()
    if logits.dim() == 1:
        return logits[0]
    log_probs = logits[:-1].log_softmax(-1).gather(-1, ids[1:, None].to(device))
    return log_probs[_SHARED:].sum()


def _branches(ids: Tensor) -> tuple[Tensor, Tensor]:
    prompt, chosen, rejected = ids.split([_SHARED, _CHOSEN, _REJECTED])
    return torch.cat([prompt, chosen]), torch.cat([prompt, rejected])


def _pair(config: Any) -> dict[str, Any]:
    """A batch of a pair whose samples share a prompt; the loss begins with the second token of each one's own."""
    total = _SHARED + _CHOSEN + _REJECTED
    ids = torch.arange(total) * 7919 % config.get_text_config().vocab_size
    place = torch.arange(total)
    first = _SHARED + _CHOSEN
    has_loss = (place >= _SHARED) & (place != first - 1) & (place != total - 1)
    trees = two_branches(_SHARED, _CHOSEN, _REJECTED)
    takes_mask = config._attn_implementation.endswith("flex_attention")
    return {
        **({"attention_mask": row_mask(trees)} if takes_mask else kernel_keys(trees, trees.paths(trees.leaves()))),
        **{name: torch.from_numpy(values) for name, values in trees._asdict().items()},
        "input_ids": ids[None],
        "position_ids": torch.from_numpy(trees.positions())[None],
        "shift_labels": torch.where(has_loss, ids.roll(-1), -100)[None],
        "loss_weights": has_loss.float(),
        "token_index": place[has_loss],
        "segment_id": (place[has_loss] >= first).long(),
        "last_index": torch.tensor([first - 1, total - 1]),
        "branch_roles": torch.tensor([CHOSEN, REJECTED]),
        "item_kinds": torch.tensor([PAIR]),
        "most_items": 1,
    }
