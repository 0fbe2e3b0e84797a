"""Tests whether a model keeps the samples of a packed row apart, before it trains. ::

    check_separation(model, MODEL_KEYS, use_cache=False)  # once, before training, as the loop will call the model

Models may mix samples without an error: by attention that ignores the borders, a KV cache, or recurrent layers whose
kernels are missing. The loss is then wrong, and nothing else shows it.

What runs a model's rows itself (`adapters`) tries it by `find_fault`: each sample must give what it gives alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from packer_cli.errors import ConfigError
from packer_cli.format.trees import CHOSEN, PAIR, REJECTED
from packer_cli.loader.formats.tree import kernel_keys, row_mask, two_branches

__all__ = ["check_separation"]

_OF_TREE = (6, 5, 7)
"""Tokens of a pair's prompt, and of what follows it in each sample."""
_LENGTH = 12
"""Tokens of a sample of a flat row, which shares nothing; more than any convolution's width."""
_NOISE = 0.01
"""Noise of hidden states in rows of one shape, relative to the greatest; leaks are far greater."""
_ROUNDED = 0.03
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Relative, as some layers compute in float32; for other types, `_ROUNDED`. In flat rows of float64, a tenth."""
_EXACT = 1e-5
"""Relative error of a sum of losses where a model rounds little; there, most that a sample changes another's loss."""
_LEAK = 3e-3
"""Most that a sample changes another's loss where a model rounds more."""
_SEPARATE = 1e-3
"""Noise of logits, likewise."""


def check_separation(model: nn.Module, keys: Collection[str], **kwargs: Any) -> None:
    """Raise ConfigError if a sample changes the model's predictions in the next one.

    Runs two rows of two samples that differ only in the first sample: the second one's logits must be the same.

    Args:
        model: a causal language model of transformers, on its device, wrapped or not; with FSDP, on every rank.
        keys: the keys of a batch of format "transformers" that the loop passes to the model.
        kwargs: its other arguments, such as ``use_cache=False``.

    Price: two forwards of 24 tokens, without gradients. Does not change random states.
    """
    config: Any = getattr(model, "module", model).config
    device = next(model.parameters()).device
    second, *firsts = _made_up(config, 0, 3 * _LENGTH).split(_LENGTH)
    on_gpu = device.type == "cuda"
    predicted = []
    for first in firsts:
        row = _two_samples(config, torch.cat((first, second)), [0, _LENGTH, _LENGTH]).items()
        taken = {name: value for name, value in row if name in ("input_ids", *keys)}
        taken = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in taken.items()}
        with (  # The same dropout in both.
            torch.no_grad(),
            torch.random.fork_rng([device] if on_gpu else []),
            torch.autocast(device.type, torch.bfloat16, enabled=on_gpu),
        ):
            torch.manual_seed(0)
            predicted.append(model(**taken, **kwargs).logits[0, _LENGTH:].double())
    change = _change(*predicted)
    if not change < _SEPARATE:
        name = type(getattr(model, "module", model)).__name__
        missing = sorted({"position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k"} - {*keys})
        remedy = f"pass it {', '.join(missing)} of the batch" if missing else "use flash attention and use_cache=False"
        raise ConfigError(
            f"{name} mixes the samples of a packed row: other tokens in one sample changed the next one's logits by "
            f"{change:.1%}; {remedy}, or do not train it on packed rows (docs/loader.md, Hybrid models)"
        )


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
            found = -row.run(model)[None]
        return found

    check_branches(model, device, run)


def check_branches(model: nn.Module, device: torch.device, run: Callable[[Mapping[str, Any]], Tensor]) -> None:
    """Raise ConfigError unless a row of a pair that shares its prompt gives what its two samples give one by one.

    With FSDP, call it on every rank. Price: five forward passes of 18 tokens at most. Does not change random states.

    Args:
        model: of transformers, wrapped or not.
        run: of a batch of format "tree", or "tree-flex" if the model runs FlexAttention: as for `find_fault`.
    """
    why = find_fault(model, device, run, is_tree=True)
    if why:
        raise ConfigError(
            f"{type(getattr(model, 'module', model)).__name__} cannot run trees: {why}, so its layers mix branches or "
            "lose their positions; pack with --no-share-prefixes"
        )


def find_fault(
    model: nn.Module, device: torch.device, run: Callable[[Mapping[str, Any]], Tensor], *, is_tree: bool
) -> str:
    """Say what a row of two samples gives otherwise than these one by one; empty for a model without a fault.

    Other tokens in a sample must not change the hidden states of the other one, or its loss in a flat row, and other
    tokens in their prompt must change those of both: attention that looks for samples in positions loses the prompt,
    and layers with a state run from one sample into the next. That is told by rows of one shape, which round alike;
    positions, by the samples.

    Args:
        model: of transformers, wrapped or not.
        run: of a batch: [2], the log-probability of each sample or its reward, or [1], the sum of both.
        is_tree: whether the samples share a prompt, in format "tree" or "tree-flex"; else "transformers".
    """
    inner: Any = getattr(model, "module", model)
    sizes = [*_OF_TREE] if is_tree else [0, _LENGTH, _LENGTH]
    plain, others = (_made_up(inner.config, first, sum(sizes)) for first in (0, sum(sizes)))
    prompt, *samples = plain.split(sizes)
    changed = [slice(sizes[0], sizes[0] + sizes[1]), *([slice(0, sizes[0])] if is_tree else [])]
    with evaluating(model):
        with _hidden_states(inner) as hidden:
            found = run(_two_samples(inner.config, plain, sizes)).flatten().double()
            for part in changed:
                ids = torch.cat([plain[: part.start], others[part], plain[part.stop :]])
                after_change = run(_two_samples(inner.config, ids, sizes, only_second=not is_tree))
        before, *after = [states[0].double().split(sizes) for states in hidden]
        second = found if is_tree else run(_two_samples(inner.config, plain, sizes, only_second=True)).double()
        own = [_alone(model, torch.cat([prompt, each]), len(prompt), device) for each in samples]
    alone, scales = torch.stack(own).T
    which = f"two samples {'that share a prompt' if is_tree else 'in a row'}"
    if is_tree and not all(_change(before[sample], after[1][sample]) > _NOISE for sample in (1, 2)):
        return "other tokens in the prompt of two samples do not change both"
    is_exact = abs(found.sum() - second.sum() - alone[0]) < _EXACT * scales[0]
    leak, most = _change(before[2], after[0][2]), _NOISE
    if not is_tree:
        leak, most = _change(second, after_change.double()), _EXACT if is_exact else _LEAK
    if not leak <= most:
        return f"other tokens in one of {which} change the other by {100 * leak:.2g}%"
    if len(found) == 1:  # The sum of both.
        alone, scales = alone.sum(0, keepdim=True), scales.sum(0, keepdim=True)
    off = float(((found - alone).abs() / scales.max()).max())
    dtype = next(model.parameters()).dtype
    most = _ROUNDED if is_tree and torch.is_autocast_enabled(device.type) else _TOLERANCE.get(dtype, _ROUNDED)
    if not off <= (most / 10 if dtype == torch.float64 and not is_tree else most):
        return f"{which} give something else than one by one ({off:.1%} off)"
    return ""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Try a model while the block runs: without gradients, and with modules as for evaluation."""
    trains = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in trains.items():
            module.training = was_training


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


def _alone(model: nn.Module, ids: Tensor, begin: int, device: torch.device) -> Tensor:
    """Return float64 [2]: the log-probability of all after token `begin`, or the reward; and such a number's order."""
    logits: Tensor = model(input_ids=ids[None].to(device), use_cache=False).logits[0].double()
    if logits.dim() == 1:  # A reward is of the order of 1, and may be 0.
        return torch.stack([logits[0], 1 + logits[0].abs()])
    log_probs = logits[:-1].log_softmax(-1).gather(-1, ids[1:, None].to(device))
    found = log_probs[begin:].sum()
    return torch.stack([found, found.abs()])


def _made_up(config: Any, first: int, length: int) -> Tensor:
    vocabulary: int = config.get_text_config().vocab_size
    return torch.arange(first, first + length) * 7919 % vocabulary


def _two_samples(config: Any, ids: Tensor, sizes: list[int], *, only_second: bool = False) -> dict[str, Any]:
    """Make a batch of two samples; the loss of each, or of the second alone, begins with its second token."""
    total, second = len(ids), sizes[0] + sizes[1]
    place = torch.arange(total)
    has_loss = (place >= (second if only_second else sizes[0])) & (place != second - 1) & (place != total - 1)
    trees = two_branches(*sizes)
    batch: dict[str, Any] = {
        "input_ids": ids[None],
        "position_ids": torch.from_numpy(trees.positions())[None],
        "shift_labels": torch.where(has_loss, ids.roll(-1), -100)[None],
    }
    if not sizes[0]:
        borders = torch.tensor([0, second, total], dtype=torch.int32)
        batch |= {"seq_idx": (place >= second).int()[None], "cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
        return batch | {"max_length_q": second, "max_length_k": second}
    takes_mask = config._attn_implementation.endswith("flex_attention")
    return {
        **batch,
        **({"attention_mask": row_mask(trees)} if takes_mask else kernel_keys(trees, trees.paths(trees.leaves()))),
        **{name: torch.from_numpy(values) for name, values in trees._asdict().items()},
        "loss_weights": has_loss.float(),
        "token_index": place[has_loss],
        "segment_id": (place[has_loss] >= second).long(),
        "last_index": torch.tensor([second - 1, total - 1]),
        "branch_roles": torch.tensor([CHOSEN, REJECTED]),
        "item_kinds": torch.tensor([PAIR]),
        "most_items": 1,
    }
