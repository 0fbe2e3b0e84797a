"""The cut of the flat samples of an epoch: the pieces to pack, and the tokens lost of samples over the capacity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from packer_cli.format.metrics import SampleCounts
from packer_cli.format.trees import SAMPLE
from packer_cli.plan.core.check import check_pieces
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.groups import limits_of
from packer_cli.plan.core.mixture import count_inputs
from packer_cli.plan.core.pieces import Overflow
from packer_cli.plan.core.samples import Samples
from packer_cli.plan.core.types import Fates, Int32Array, ItemRule, Lost, Pieces


class SizeRule(NamedTuple):
    """The limits on samples and items, and the fate of those over them."""

    capacity: int
    """Tokens of the longest group."""
    overflow: Overflow
    limits: tuple[int, ...] = ()
    """See `Plan.limits`."""

    @property
    def of_items(self) -> ItemRule:
        """The same for items; under `error`, none is cut."""
        divides, drops = self.overflow == "split", self.overflow in ("drop", "error")
        capacity, most_loss, most_paths = limits_of(self.capacity, self.limits)
        return ItemRule(capacity, most_loss, most_paths, divides, drops)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The samples of an epoch, each whole, cut, or left out by a rule."""

    samples: Samples
    rule: SizeRule
    chosen: Int32Array | None
    """See `Samples.chosen`."""
    pieces: Pieces
    """The pieces to pack, maybe none."""

    @cached_property
    def over(self) -> Int32Array:
        """The samples (int32[k], rising) over the capacity, each once. O(n)."""
        is_over = self.samples.lengths > self.rule.capacity
        if self.chosen is not None:
            is_chosen = np.zeros(len(is_over), dtype=np.bool_)
            is_chosen[self.chosen] = True
            is_over &= is_chosen
        return ids_of(is_over)

    def facts_of(self, sample: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the kind of a sample, its number of branches, and its needs (`Pieces.needs`)."""
        return SAMPLE, 1, (int(self.samples.lengths[sample]),)

    def lost(self) -> Lost:
        """List the tokens that the rule takes away."""
        kept = {"truncate": self.rule.capacity, "drop": 0}.get(self.rule.overflow)
        over = self.over[: 0 if kept is None else None]
        return Lost(over, np.zeros_like(over), np.ones_like(over), np.full_like(over, kept or 0))

    def fates(self, pieces: Pieces) -> Fates:
        """Count what became of the samples, whose `pieces` a packing may have cut. O(pieces)."""
        cut, overflow = np.flatnonzero(pieces.start > 0), self.rule.overflow
        return Fates(
            split=len(np.unique(pieces.samples[cut])) if pieces.samples is not None else 0,
            truncated=len(self.over) if overflow == "truncate" else 0,
            dropped=len(self.over) if overflow == "drop" else 0,
        )

    def check(self, pieces: Pieces) -> None:
        """Prove that a plan's pieces are those of the chosen samples, each whole or cut by the rule.

        Raises:
            PlanError: they are not.
        """
        chosen, lengths = self.chosen, self.samples.lengths
        if self.rule.overflow == "drop":
            chosen = kept_samples(lengths, chosen, self.rule.capacity)
        check_pieces(pieces, lengths, chosen, is_whole=self.rule.overflow != "truncate")

    def counts(self, pieces: Pieces) -> SampleCounts:
        """Count the samples, and what became of them in the `pieces` of a plan. O(n + pieces)."""
        samples, chosen = self.samples, self.chosen
        num_samples = samples.num_samples
        num_different = num_samples if chosen is None else int(np.count_nonzero(np.diff(chosen, prepend=-1)))
        inputs = None
        if samples.sources is not None and len(samples.weights) > 1:
            inputs = count_inputs(samples.sources, pieces, len(samples.weights))
        return SampleCounts(
            inputs=inputs,
            samples=num_samples,
            left_out_by_weight=num_samples - num_different,
            repeated_by_weight=(num_samples if chosen is None else len(chosen)) - num_different,
            pieces=len(pieces),
            tokens=int(pieces.length.sum(dtype=np.int64)),
            **self.fates(pieces)._asdict(),
        )


def kept_samples(lengths: Int32Array, chosen: Int32Array | None, capacity: int) -> Int32Array:
    """Select the chosen samples (int32[m]; None: each once) that are not over the capacity."""
    return ids_of(lengths <= capacity) if chosen is None else chosen[lengths[chosen] <= capacity]
