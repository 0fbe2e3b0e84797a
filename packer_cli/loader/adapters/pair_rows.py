"""Rows of preference pairs in a model's forward pass: what TRL's losses take, of the tokens that count alone.

TRL's `DPOTrainer` and `RewardTrainer` expect what a padded batch of 2B samples gives: a log-probability of each token
[2B, L - 1], or a reward of each sample [2B, 1]. The row runs once, as trees; then the output layer runs over its loss
terms, or the tokens that have rewards, and these numbers go to their places. Neither hidden states nor logits ever
have the shape [2B, L, ...]. L - 1 is the length of the longest completion: prompts have no loss.

Every rank of an iteration needs as many pairs, since TRL gathers by plain all-gathers. Where a rank has fewer, it has
*dummies*: pairs without tokens, in which all numbers are 0.

Source: Preference Packing, arXiv 2602.24082. Price: memory grows with the N tokens of a row and its M loss terms, and
by some 100 bytes for each of the 2B * (L - 1) places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from packer_cli.format.trees import CHOSEN
from packer_cli.loader.adapters.packed_row import PackedRow, finished_logits
from packer_cli.loader.losses import branch_rewards, in_chunks


@dataclass
class PairOutput(ModelOutput):
    """Output that a model returns for a row of pairs: attributes by the names that TRL reads.

    FSDP casts tensors that forward passes return, and waits for their gradients before it gathers weights again. So it
    gets `anchor`, a scalar whose gradient is 0, and not the numbers themselves.
    """

    anchor: Tensor | None = None
    scores: SimpleNamespace | None = None
    """Tensors that wrappers do not see, and so neither round nor copy."""

    def __getattr__(self, name: str) -> Tensor:
        found: Tensor = getattr(self.scores, name)
        return found + 0 * self.anchor.to(found) if found.requires_grad and self.anchor is not None else found


class PairsOfRow(PackedRow):
    """A row of pairs as trees. It takes the place of a padded batch: first all that are chosen, then all rejected.

    Args:
        batch: of format "tree", of a set of pairs alone.
        factor: by which the sum of the losses of its pairs is multiplied.
        device: of the model.
    """

    brings_inputs = True

    def __init__(self, batch: Mapping[str, Any], *, factor: float, device: torch.device) -> None:
        self.num_pairs = len(batch["item_kinds"])
        self.num_filled: int = max(1, int(batch["most_items"]))
        """B: pairs with the dummies, which stand last."""
        places = torch.arange(self.num_pairs).repeat_interleave(2)
        self.places = (places + torch.where(batch["branch_roles"] == CHOSEN, 0, self.num_filled)).to(device)
        """int64 [n]: of each branch in the batch"""
        names = ("margin", "ref_chosen_logps", "ref_rejected_logps")
        self.values = {name: self._filled(batch[name]).to(device) for name in names if name in batch}
        """float32 [B] each, 0 for dummies"""
        super().__init__(batch, None, factor=factor, device=device)

    def _filled(self, values: Tensor) -> Tensor:
        filled = values.new_zeros(self.num_filled)
        filled[: self.num_pairs] = values
        return filled

    def given(self) -> dict[str, Any]:
        """Return what the trainer gives to the model, and to its own loss."""
        # Trainers count tokens by the mask: here those that run.
        return {"attention_mask": self.places.new_full((1, 1), self.num_tokens), "packed_row": self}

    def _output(self, length: int, places: Tensor, found: Mapping[str, Tensor]) -> PairOutput:
        """Put numbers at their places in [2B, length]; the first of them have a graph, also where there are none."""
        tensors = {}
        for name, values in found.items():
            empty = values.new_zeros(2 * self.num_filled * length)
            tensors[name] = empty.index_copy(0, places, values[: len(places)]).view(-1, length)
        return PairOutput(anchor=0 * next(iter(found.values())).sum(), scores=SimpleNamespace(**tensors))


class PairRow(PairsOfRow):
    """A row for `DPOTrainer`: log-probabilities of the loss terms, and what TRL logs of them."""

    def _set_targets(self, batch: Mapping[str, Any], device: torch.device) -> None:
        token_index, branch = batch["token_index"], batch["segment_id"]
        counts = branch.bincount(minlength=2 * self.num_pairs)
        in_branch = torch.arange(len(branch)) - (counts.cumsum(0) - counts)[branch]
        self.length = max(1, int(counts.max())) if len(counts) else 1
        """L - 1"""
        self.kept = token_index.to(device)
        """int64 [M]"""
        self.targets = batch["shift_labels"].flatten()[token_index].to(device)
        """int64 [M]"""
        self.terms = self.places[branch.to(device)] * self.length + in_branch.to(device)
        """int64 [M]: places in [2B, L - 1]"""

    def given(self) -> dict[str, Any]:
        """Return `input_ids` and `completion_mask` int64 [2B, L], of completions alone.

        The reference's log-probabilities are there, too.
        """
        ids, mask = (self.kept.new_zeros(2 * self.num_filled, 1 + self.length) for _ in range(2))
        rows, columns = self.terms // self.length, self.terms % self.length + 1
        ids[rows, columns] = self.targets
        mask[rows, columns] = 1
        known = {name: values for name, values in self.values.items() if name != "margin"}
        return {"input_ids": ids, "completion_mask": mask, **known, **super().given()}

    def take(self, head: Any, config: Any, hidden: Tensor) -> PairOutput:
        """Return `log_probs`, `entropy`, `mean_logits`, `is_top1`, `log_sum_sq_probs`: [2B, L - 1]."""
        kept = self.kept if len(self.kept) else self.kept.new_zeros(1)
        targets = self.targets if len(self.kept) else kept

        def scores(tokens: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            logits = finished_logits(head._logits(tokens), config)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            log_probs = logits.log_softmax(-1)
            found = log_probs.gather(-1, targets[:, None])[:, 0]
            with torch.no_grad():
                entropy = -(log_probs.exp() * log_probs).sum(-1)
                return found, entropy, logits.mean(-1), logits.argmax(-1) == targets, (2 * log_probs).logsumexp(-1)

        parts = in_chunks(scores, config.vocab_size, hidden[0].index_select(0, kept), targets)
        names = ("log_probs", "entropy", "mean_logits", "is_top1", "log_sum_sq_probs")
        found = {name: torch.cat(each) for name, each in zip(names, zip(*parts, strict=True), strict=True)}
        return self._output(self.length, self.terms, found)


class RewardRow(PairsOfRow):
    """A row for `RewardTrainer`: the reward of each branch."""

    def _set_targets(self, batch: Mapping[str, Any], device: torch.device) -> None:
        self._batch = batch
        self.rewards = torch.empty(0, device=device)
        """Float [n], once it ran."""

    def given(self) -> dict[str, Any]:
        """Return `margin` float32 [B], where the set has margins; a pair without one has 0."""
        margin = {"margin": self.values["margin"].nan_to_num(0.0)} if "margin" in self.values else {}
        return {**margin, **super().given()}

    def take(self, head: Any, config: Any, hidden: Tensor) -> PairOutput:
        """Return `logits`: [2B, 1]."""
        rewards = branch_rewards(hidden, head._logits, self._batch, config.pad_token_id)
        self.rewards = rewards.detach()
        return self._output(1, self.places, {"logits": rewards})
