"""Tries a model on a row of trees before it trains: each branch must give what it gives alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from packer_cli.errors import ConfigError
from packer_cli.format.trees import CHOSEN, PAIR, REJECTED
from packer_cli.loader.adapters.causal_lm import evaluating
from packer_cli.loader.formats.tree import kernel_keys, row_mask, two_branches

__all__ = ["check_branches", "check_trees"]

_SHARED, _CHOSEN, _REJECTED = 6, 5, 7
"""Tokens of a pair's prefix, and of what follows it."""
_NOISE = 0.01
"""Noise of hidden states in rows of one shape, relative to the greatest; leaks are far greater."""
_ROUNDED = 0.03
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Relative, as some layers compute in float32; for other types, `_ROUNDED`."""


def check_trees(model: nn.Module, device: torch.device, make_row: Callable[..., Any]) -> None:
    """Check as `check_branches`, for a model that `run_packed_rows` has patched, wrapped or not.

    Args:
        make_row: of a batch of format "tree", with `factor` and `device`.
    """

    def run(batch: Mapping[str, Any]) -> Tensor:
        row = make_row(batch, factor=1.0, device=device)
        if row.brings_inputs:
            output = model(**row.given(), use_cache=False)
            found: Tensor = output.logits if hasattr(output, "logits") else output.log_probs.sum(1)
        else:
            found = -model(**row.inputs, packed_row=row, use_cache=False).loss[None]
        return found

    check_branches(model, device, run)


def check_branches(model: nn.Module, device: torch.device, run: Callable[[Mapping[str, Any]], Tensor]) -> None:
    """Raise ConfigError unless a row of a pair that shares its prompt gives what its two samples give one by one.

    Other tokens in a branch must not change the hidden states of the other branch, and other tokens in the prompt must
    change those of both: attention that looks for samples in positions loses the prompt, and layers with a state run
    from one branch into the next. That is told by rows of one shape, which round alike; positions, by the samples.

    With FSDP, call it on every rank. Price: five forward passes of 18 tokens at most. Does not change random states.

    Args:
        model: of transformers, wrapped or not.
        run: of a batch of format "tree", or "tree-flex" if the model runs FlexAttention: [2], the log-probability of
            each branch or its reward, or [1], the sum of both.
    """
    inner: Any = getattr(model, "module", model)
    sizes = [_SHARED, _CHOSEN, _REJECTED]
    plain, others = (_made_up(inner.config, first) for first in (0, sum(sizes)))
    with evaluating(model):
        with _hidden_states(inner) as hidden:
            found = run(_pair(inner.config, plain)).flatten().double()
            for changed in (slice(0, _SHARED), slice(_SHARED, _SHARED + _CHOSEN)):
                run(_pair(inner.config, torch.cat([plain[: changed.start], others[changed], plain[changed.stop :]])))
        rows = [states[0].double().split(sizes) for states in hidden]
        prompt, *branches = plain.split(sizes)
        alone, scales = torch.stack([_alone(model, torch.cat([prompt, each]), device) for each in branches]).T
    why = ""
    if not all(_change(rows[0][branch], rows[1][branch]) > _NOISE for branch in (1, 2)):
        why = "other tokens in the prompt of two samples do not change both"
    elif not (leak := _change(rows[0][2], rows[2][2])) < _NOISE:
        why = f"other tokens in one of two samples that share a prompt change the other by {leak:.1%}"
    else:
        if len(found) == 1:  # The sum of both.
            alone = alone.sum(0, keepdim=True)
        off = float(((found - alone).abs() / scales.max()).max())
        is_rounded = torch.is_autocast_enabled(device.type)
        if not off <= (_ROUNDED if is_rounded else _TOLERANCE.get(next(model.parameters()).dtype, _ROUNDED)):
            why = f"two samples that share a prompt give something else than one by one ({off:.1%} off)"
    if why:
        raise ConfigError(
            f"{type(inner).__name__} cannot run trees: {why}, so its layers mix branches or lose their positions; "
            "pack with --no-share-prefixes"
        )


@contextmanager
def _hidden_states(model: Any) -> Iterator[list[Tensor]]:
    """Collect what the decoder of a model gives in each forward pass meanwhile, [1, t, hidden]."""
    decoder = (model.get_base_model() if hasattr(model, "get_base_model") else model).get_decoder()
    found: list[Tensor] = []
    hook = decoder.register_forward_hook(lambda module, given, output: found.append(output.last_hidden_state))
    try:
        yield found
    finally:
        hook.remove()


def _change(before: Tensor, after: Tensor) -> float:
    """Return the change relative to the greatest number."""
    return float((before - after).abs().max() / before.abs().max())


def _alone(model: nn.Module, ids: Tensor, device: torch.device) -> Tensor:
    """Return float64 [2]: the log-probability of all but the prompt, or the reward; and such a number's order."""
    logits: Tensor = model(input_ids=ids[None].to(device), use_cache=False).logits[0].double()
    if logits.dim() == 1:  # A reward is of the order of 1, and may be 0.
        return torch.stack([logits[0], 1 + logits[0].abs()])
    log_probs = logits[:-1].log_softmax(-1).gather(-1, ids[1:, None].to(device))
    found = log_probs[_SHARED:].sum()
    return torch.stack([found, found.abs()])


def _made_up(config: Any, first: int) -> Tensor:
    vocabulary: int = config.get_text_config().vocab_size
    return torch.arange(first, first + _SHARED + _CHOSEN + _REJECTED) * 7919 % vocabulary


def _pair(config: Any, ids: Tensor) -> dict[str, Any]:
    """Make a batch of a pair whose samples share a prompt; the loss begins with each one's second token of its own."""
    total = len(ids)
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
