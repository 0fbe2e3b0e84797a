"""Loss normalizers: from a rank's summed losses and the batch's metadata, without communication.

The counts of a whole step are known since the plan, so each normalizer is one multiplication. All of them return what
the rank *contributes*: call `backward` on it in every iteration, and the gradients of the step, once the trainer has
combined them over ranks and iterations, are those of

==============  =================================================================  ==========================
`stable_loss`   sum of all losses / all loss tokens of the step                    every token weighs the same
`token_mean`    mean over iterations and DP ranks of (sum / loss tokens) there     biased to short packs
`sample_mean`   mean over samples of (sum / loss tokens) of each                   biased to short samples
==============  =================================================================  ==========================

How a trainer combines is told by two numbers. `world_size`: over how many ranks it *averages* gradients, SP ranks
included (DDP, FSDP: all of them); 1 where it sums. `accumulation`: by how many iterations it divides the loss itself;
1 where it does not (a plain loop of `backward` calls).

Sum losses, never take their mean, before they come here: a rank without loss tokens (a filler) has the sum 0 and the
mean NaN. Source: HBP, section 3.3 ("stable loss"); LongAlign, section 3.3 (loss weighting).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from packer_cli.loader.formats import metadata_of
from packer_cli.loader.parallel.sharding import local_indices
from packer_cli.loader.passes import IGNORE_INDEX


def token_losses(logits: torch.Tensor, shift_labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token.

    Args:
        logits: [..., t, vocabulary].
        shift_labels: int64, as many as logits: what each token has to predict, -100 for no loss. Aligned `labels`
            will not do: shift them first, over the whole row (`shift_labels` of a batch).

    Returns:
        float32 (float64 where logits are) [tokens], flat; 0 where there is no loss.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    ignored = int(IGNORE_INDEX)
    return F.cross_entropy(logits.flatten(0, -2), shift_labels.flatten(), ignore_index=ignored, reduction="none")


def stable_loss(loss_sum: torch.Tensor, batch: Any, *, world_size: int, accumulation: int = 1) -> torch.Tensor:
    """HBP's stable loss: the token mean over the whole step, whatever its ranks, iterations and SP degrees.

    HBP divides by B_l * T_ave, B_l the samples of the rank and T_ave the step's mean loss tokens a sample. With its
    own B_l on each rank that is the global mean only if all have equally many; B_l is taken as the mean number of
    samples here, so that B_l * T_ave = all loss tokens / (ranks * iterations), exactly.

    Args:
        loss_sum: the sum of the losses of this rank's tokens (of its slice, in a shared row).
        batch: a batch, or its metadata.
        world_size, accumulation: see the module.

    Returns:
        A scalar; 0 (with a graph) where the whole step has no loss token.
    """
    return _scaled(loss_sum, world_size * accumulation, metadata_of(batch)["global_num_loss_tokens"])


def token_mean(
    loss_sum: torch.Tensor, batch: Any, *, world_size: int, num_iterations: int = 1, accumulation: int = 1
) -> torch.Tensor:
    """The usual loss: each pack's mean over its loss tokens, averaged over the DP ranks and then the iterations.

    A token of a pack with few loss tokens weighs more; a pack without any counts as a loss of 0. For comparison.

    Args:
        loss_sum, batch, world_size, accumulation: as in `stable_loss`.
        num_iterations: iterations of the step.

    Returns:
        A scalar; 0 (with a graph) where the pack has no loss token.
    """
    known = metadata_of(batch)
    return _scaled(loss_sum, world_size * accumulation, known["num_loss_tokens"] * known["dp_size"] * num_iterations)


def sample_mean(losses: torch.Tensor, batch: Any, *, world_size: int, accumulation: int = 1) -> torch.Tensor:
    """The mean over the step's samples of each one's mean over its loss tokens; LongAlign's loss weighting is this.

    A sample without loss tokens counts as a loss of 0, and a piece of a sample that was cut as a sample.

    Args:
        losses: [t], the loss of each of this rank's tokens, in place (`token_losses`).
        batch, world_size, accumulation: as in `stable_loss`.

    Returns:
        A scalar.
    """
    weighted = (losses.flatten() * sample_weights(batch, losses.numel()).to(losses)).sum()
    return _scaled(weighted, world_size * accumulation, metadata_of(batch)["global_num_samples"])


def longalign_weights(batch: Any, *, num_packs: int, num_tokens: int | None = None) -> torch.Tensor:
    """LongAlign's weights: the factor K / (N_i * M) of each token's loss, for trainers that average over packs.

    K packs, M samples in the step, N_i the loss tokens of the token's sample. Summed over a pack and averaged over
    the K packs, the weighted losses are `sample_mean`.

    Args:
        batch: a batch, or its metadata.
        num_packs: K, packs in the whole step (fillers are none).
        num_tokens: as in `sample_weights`.

    Returns:
        float64 [t].
    """
    return sample_weights(batch, num_tokens) * (num_packs / metadata_of(batch)["global_num_samples"])


def sample_weights(batch: Any, num_tokens: int | None = None) -> torch.Tensor:
    """One over the loss tokens of each token's sample; for losses that stand at the predicting token.

    Args:
        batch: a batch, or its metadata.
        num_tokens: tokens that this rank holds: of a shared row its slice, or all of it; None for what `sp_size`
            says, the slice.

    Returns:
        float64 [t]; 0 in padding and in samples without loss tokens.

    Raises:
        ValueError: `num_tokens` is neither the row nor a slice of it.
    """
    known = metadata_of(batch)
    borders = known["cu_seqlens"].cpu()
    length, sp_size = int(borders[-1]), known["sp_size"]
    if num_tokens not in (None, length, length // sp_size):
        raise ValueError(
            f"{num_tokens} losses for a row of {length} tokens shared by {sp_size} ranks: "
            f"give one for each token, {length // sp_size} of a slice or {length} of the row"
        )
    counts = known["sample_num_loss_tokens"].cpu()
    weights = torch.zeros(len(borders) - 1, dtype=torch.float64)
    weights[: len(counts)] = torch.where(counts > 0, 1.0 / counts.clamp(min=1).double(), 0.0)
    weights = weights.repeat_interleave(borders.diff())
    if num_tokens == length:
        return weights
    places = local_indices(borders.numpy(), sp_size, known["sp_rank"], known["sp_sharding"])
    return weights[torch.from_numpy(places)]


def _scaled(loss: torch.Tensor, factor: float, count: int) -> torch.Tensor:
    # Not 0 / 0: nothing to learn, but the graph must stay, or this rank leaves out its collectives.
    return loss * (factor / count if count else 0.0)
