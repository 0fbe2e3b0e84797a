"""Loss normalizers: from a rank's summed losses and the batch's metadata, without communication.

The plan has counted each step, so a normalizer is one multiplication. Each returns the rank's *contribution*: call
`backward` on it in every micro-batch; once the trainer has combined the gradients over ranks and micro-batches, those
of the step are the gradients of

==============  =================================================================  ==========================
`stable_loss`   sum of all losses / all loss tokens of the step                    every token weighs the same
`token_mean`    mean over packs of (sum / loss tokens) of each                     biased to short packs
`sample_mean`   mean over samples of (sum / loss tokens) of each                   biased to short samples
==============  =================================================================  ==========================

Two numbers tell how the trainer combines. `world_size`: over how many ranks it *averages* gradients, including SP
ranks (DDP, FSDP: all of them); 1 if it sums. `accumulation`: by how many micro-batches it divides the loss itself; 1
if it does not (a plain loop of `backward` calls).

In a set with trees (`format.trees`), samples are branches, and a shared token counts in each branch that trains it:
`batch_losses` has its loss times their number (or weights), which all normalizers take. `branch_logps` and
`branch_rewards` are for losses of preferences.

Pass sums of losses, never means: for a rank without loss tokens (a filler), the sum is 0 but the mean NaN. Source:
HBP, section 4.3 ("stable loss") and table 10, which compares such losses; LongAlign, section 3.3 (loss weighting).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from packer_cli.errors import ConfigError
from packer_cli.format.sharding import local_indices
from packer_cli.format.trees import Trees
from packer_cli.loader.formats import metadata_of
from packer_cli.loader.passes import IGNORE_INDEX

CHUNK = 2**25
"""Logits that are in memory at once."""


def in_chunks(function: Callable[..., Any], vocabulary: int, *tensors: torch.Tensor | None) -> list[Any]:
    """List what a function of logits returns for the rows of tensors, `CHUNK` logits at a time.

    The backward pass runs the function again. Of no rows, there is one result.
    """
    size = max(1, CHUNK // vocabulary)
    length = next(len(tensor) for tensor in tensors if tensor is not None)
    parts = (slice(begin, begin + size) for begin in range(0, max(1, length), size))
    return [
        checkpoint(function, *(None if x is None else x[part] for x in tensors), use_reentrant=False) for part in parts
    ]


def token_losses(
    logits: torch.Tensor, shift_labels: torch.Tensor, shift_loss_weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Cross entropy of each token, times its weight.

    Args:
        logits: [..., t, vocabulary].
        shift_labels: int64 [..., t]: the label that each token must predict, -100 for no loss (`shift_labels` of a
            batch). Do not pass aligned `labels`, which must first be shifted over the whole row.
        shift_loss_weights: float32 [..., t], shifted likewise; None: 1, as in a set without weights.

    Returns:
        float32 (float64 if logits are) [tokens], flat; 0 for tokens without loss.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    ignored = int(IGNORE_INDEX)
    losses = F.cross_entropy(logits.flatten(0, -2), shift_labels.flatten(), ignore_index=ignored, reduction="none")
    return losses if shift_loss_weights is None else losses * shift_loss_weights.flatten().to(losses)


def batch_losses(logits: torch.Tensor, batch: Any) -> torch.Tensor:
    """Return `token_losses` of a batch of format "transformers", "flash-attn", "tree" or "tree-flex", with weights.

    The labels of a whole row are shifted here; a slice of a shared row and trees bring shifted ones.

    Args:
        logits: [..., t, vocabulary], on any device.
        batch: with `labels`, and `shift_labels` where ranks share the row.

    Returns:
        As `token_losses`.
    """
    labels, weights = shifted_labels(batch)
    return token_losses(logits, labels.to(logits.device), weights)


def shifted_labels(batch: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the label that each token must predict, and its weight, [..., t]; None in a set without weights."""
    if "token_index" in batch:
        return batch["shift_labels"], batch["loss_weights"].view_as(batch["shift_labels"])
    if "shift_labels" in batch:
        return batch["shift_labels"], batch.get("shift_loss_weights")
    weights = batch.get("loss_weights")
    labels = F.pad(batch["labels"], (0, 1), value=int(IGNORE_INDEX))[..., 1:]
    return labels, None if weights is None else F.pad(weights, (0, 1))[..., 1:]


def branch_logps(hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> torch.Tensor:
    """Sum the log-probability of the loss tokens of each branch: what DPO and IPO compare.

    Only the M loss terms run through the output layer, a chunk of logits at a time, and again in the backward pass:
    memory grows with the tokens and the terms, never with branches times their length.

    Args:
        hidden: [1, t, hidden], the last hidden states of this rank's tokens.
        head: from [m, hidden] to logits [m, vocabulary], such as a model's output layer.
        batch: of format "tree" or "tree-flex".

    Returns:
        [n], float32 (float64 if the logits are): of this rank's terms. Sum it over the ranks that share the row
        (`parallel.sum_slices`). Divide it by `sample_num_loss_tokens` for a mean, as in IPO. A batch without terms
        keeps a graph, so that a rank without samples takes part in all collectives.
    """
    places, branches = (batch[name].to(hidden.device) for name in ("token_index", "segment_id"))
    labels = batch["shift_labels"].to(hidden.device).flatten()[places]

    def logps(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -token_losses(head(tokens), targets)

    tokens = hidden.flatten(0, -2).index_select(0, places)
    with torch.no_grad():
        vocabulary = head(tokens[:0]).shape[-1]
    found = torch.cat(in_chunks(logps, vocabulary, tokens, labels))
    return found.new_zeros(len(batch["last_index"])).index_add(0, branches, found)


def branch_rewards(
    hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], batch: Any, pad_token_id: int | None
) -> torch.Tensor:
    """Return the reward of each branch, where a sequence classification model of transformers reads it.

    That is its last token that is not padding, or its first one if all are: where EOS is the padding token, too, not
    the EOS at the end.

    Args:
        hidden: [1, t, hidden], the last hidden states of this rank's tokens.
        head: from [n, hidden] to [n, 1], such as a model's `score`.
        batch: of format "tree" or "tree-flex".
        pad_token_id: that of the model's config; None: it has none.

    Returns:
        [n], float32 (float64 if the rewards are); 0 where another rank has the token. Sum it over the ranks that share
        the row (`parallel.sum_slices`). A batch without branches keeps a graph.

    Raises:
        ConfigError: a branch ends with padding, and ranks share the row, so that the token before may be elsewhere.
    """
    places, ids = batch["last_index"], batch["input_ids"].flatten()
    if pad_token_id is not None and ids[places[places >= 0]].eq(pad_token_id).any():
        places = _before_padding(batch, ids.cpu().numpy(), pad_token_id)
    places = places.to(hidden.device)
    rewards = head(hidden.flatten(0, -2).index_select(0, places.clamp(min=0)))[:, 0]
    found: torch.Tensor = rewards if rewards.dtype == torch.float64 else rewards.float()
    return found.where(places >= 0, 0.0)


def _before_padding(batch: Any, ids: np.ndarray, pad_token_id: int) -> torch.Tensor:
    """Find the last token of each branch that is not padding, else its first one, int64 [n]."""
    trees = Trees(*(batch[name].cpu().numpy() for name in Trees._fields))
    if len(ids) < trees.segment_starts[-1]:
        raise ConfigError(
            f"a sample ends with token {pad_token_id}, the model's pad_token_id, and its reward is that of the token "
            "before, which another GPU may have: choose another pad_token_id in the model's config, or plan groups of "
            "SP degree 1"
        )
    offsets, values = trees.paths(trees.branch_segments)
    first = offsets[:-1]
    found = np.where(ids[values] == pad_token_id, first.repeat(np.diff(offsets)), np.arange(len(values)))
    return torch.from_numpy(values[np.maximum.reduceat(found, first)])


def loss_weight_of_step(batch: Any) -> float:
    """Return the number that divides a step's losses: its loss tokens, or in a set with weights the sum of these."""
    known = metadata_of(batch)
    weight: float = known.get("global_loss_weight", known["global_num_loss_tokens"])
    return weight


def stable_loss(loss_sum: torch.Tensor, batch: Any, *, world_size: int, accumulation: int = 1) -> torch.Tensor:
    """Scale to HBP's stable loss: the token mean over the whole step, whatever its ranks, iterations and SP degrees.

    HBP divides by B_l * T_ave, with B_l samples on the rank and T_ave loss tokens per sample, the mean of the step. If
    B_l differs between ranks, that is not the global mean; here B_l is the mean number of samples, so that
    B_l * T_ave = all loss tokens / (ranks * iterations), exactly.

    Args:
        loss_sum: the sum of the losses of this rank's tokens (of its slice, in a shared row); in a set with weights,
            of the weighted losses, whose sum is divided by that of the weights.
        batch: a batch, or its metadata.
        world_size, accumulation: see the module.

    Returns:
        A scalar; 0 (with a graph) if the whole step has no loss token.
    """
    return _scaled(loss_sum, world_size * accumulation, loss_weight_of_step(batch))


def token_mean(loss_sum: torch.Tensor, batch: Any, *, world_size: int, accumulation: int = 1) -> torch.Tensor:
    """Scale to the usual loss: each pack's mean over its loss tokens, averaged over the packs of the step.

    For comparison: a token of a pack with few loss tokens weighs more; a pack without any counts as a loss of 0.

    Args:
        loss_sum, batch, world_size, accumulation: as in `stable_loss`.

    Returns:
        A scalar; 0 (with a graph) if the pack has no loss token.
    """
    known = metadata_of(batch)
    total = known.get("loss_weight", known["num_loss_tokens"])
    return _scaled(loss_sum, world_size * accumulation, total * known["global_num_packs"])


def sample_mean(losses: torch.Tensor, batch: Any, *, world_size: int, accumulation: int = 1) -> torch.Tensor:
    """Average over the step's samples each one's mean over its loss tokens; this is LongAlign's loss weighting.

    A sample without loss tokens counts as a loss of 0; a piece of a cut sample counts as a sample.

    Args:
        losses: [t], the loss of each of this rank's tokens, in place (`token_losses`; of trees, `batch_losses`).
        batch, world_size, accumulation: as in `stable_loss`.

    Returns:
        A scalar.
    """
    weighted = (losses.flatten() * sample_weights(batch, losses.numel()).to(losses)).sum()
    return _scaled(weighted, world_size * accumulation, metadata_of(batch)["global_num_samples"])


def sample_weights(batch: Any, num_tokens: int | None = None) -> torch.Tensor:
    """Return, for each token, one over the loss tokens of its sample; for losses at the predicting tokens.

    Of a token of a tree that several branches train, the mean of theirs, as `batch_losses` counts its loss for each.

    Args:
        batch: a batch, or its metadata.
        num_tokens: tokens that this rank holds: its slice of a shared row, or the whole row; None: its slice.

    Returns:
        float64 [t]; 0 for padding and for samples without loss tokens.

    Raises:
        ValueError: `num_tokens` is neither the row nor a slice of it, or the set has weights, of which a sample's mean
            would count some twice.
    """
    known = metadata_of(batch)
    if "global_loss_weight" in known:
        raise ValueError(
            "the set has loss weights, and a mean over samples would not keep them: use stable_loss, or pass "
            "loss_weights=False to PackedDataset"
        )
    borders = known["cu_seqlens"].cpu()
    length, ranks = int(borders[-1]), known["cp_size"] * known["sp_size"]
    num_tokens = length // ranks if num_tokens is None else num_tokens
    if num_tokens not in (length, length // ranks):
        raise ValueError(
            f"{num_tokens} losses for a row of {length} tokens shared by {ranks} ranks: "
            f"give one per token, {length // ranks} for a slice or {length} for the row"
        )
    counts = known["sample_num_loss_tokens"].cpu()
    if "token_index" in known:
        return _weights_of_terms(known, counts, num_tokens)
    samples = known.get("sample_borders", borders).cpu()
    weights = torch.zeros(len(samples) - 1, dtype=torch.float64)
    weights[: len(counts)] = torch.where(counts > 0, 1.0 / counts.clamp(min=1).double(), 0.0)
    weights = weights.repeat_interleave(samples.diff())
    if num_tokens == length:
        return weights
    rank = known["cp_rank"] * known["sp_size"] + known["sp_rank"]
    places = local_indices(borders.numpy(), ranks, rank, known["sp_sharding"])
    return weights[torch.from_numpy(places)]


def _weights_of_terms(known: dict[str, Any], counts: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Return float64 [t], of a row of trees: the mean of one over the loss tokens of branches that train a token."""
    places: torch.Tensor = known["token_index"].cpu()
    branches: torch.Tensor = known["segment_id"].cpu()
    if len(branches) != int(counts.sum()) and num_tokens == int(known["cu_seqlens"][-1]):
        raise ValueError("a rank's part of a row of trees has the loss terms of its tokens alone: give its losses")
    weights = places.bincount(1 / counts[branches].double(), minlength=num_tokens)
    return weights / places.bincount(minlength=num_tokens).clamp(min=1)


def _scaled(loss: torch.Tensor, factor: float, count: float) -> torch.Tensor:
    # Avoid 0 / 0, but keep the graph: without a backward pass, this rank would skip its collectives.
    return loss * (factor / count if count else 0.0)
