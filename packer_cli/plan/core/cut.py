"""The samples of a corpus as a plan sees them, those that an epoch has of them, and the one cut of these.

Long ones are cut, left out or refused by `--overflow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.format.metrics import SampleCounts, TreeFigures
from packer_cli.format.trees import SAMPLE, ItemTrees
from packer_cli.plan.core.check import check_pieces
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.groups import Overflow, SizeRule
from packer_cli.plan.core.items import check_items, cut_items, item_fates, select_items, tree_figures, whole_items
from packer_cli.plan.core.mixture import ONCE, count_inputs, num_weighted, weighted_samples
from packer_cli.plan.core.segments import cut_in_rows
from packer_cli.plan.core.types import MOST_PIECES, Int32Array, Lost, Pieces, as_ids
from packer_cli.sizes import Share


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The facts about samples, or items, that a plan needs."""

    lengths: Int32Array
    """int32[n]: tokens, of trees unique ones."""
    sources: NDArray[np.integer] | None = None
    """int[n], the source of each sample; None if unknown."""
    weights: tuple[Share, ...] = ()
    """One per source: how often an epoch contains its samples, or how many tokens, or which share, it has of it."""
    among: Int32Array | None = None
    """int32[k], increasing: the ids of the samples to plan, of these n; None for all."""
    trees: ItemTrees | None = None
    """The trees of items; None: samples are flat."""

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], weights: tuple[Share, ...] = ()) -> Self:
        """Make the samples of what `columns` gave."""
        trees = ItemTrees(**{name: columns[name] for name in ItemTrees._fields}) if "kinds" in columns else None
        return cls(lengths=columns["lengths"], sources=columns.get("sources"), weights=weights, trees=trees)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that make the samples, by name, without `among`."""
        found = {"lengths": self.lengths} | ({} if self.sources is None else {"sources": self.sources})
        return found if self.trees is None else found | self.trees._asdict()

    @property
    def unit(self) -> str:
        """The noun for what `lengths` has one of."""
        return "sample" if self.trees is None else "item"

    @property
    def num_samples(self) -> int:
        """The number of samples to plan, each counted once."""
        return len(self.lengths if self.among is None else self.among)

    def alone(self) -> Self:
        """Select the samples to plan, numbered anew."""
        if self.among is None:
            return self
        return self.select(self.among)

    @property
    def num_branches(self) -> NDArray[np.integer]:
        """int[n]: samples in each, of no memory where that is one."""
        one = np.broadcast_to(np.int32(1), len(self.lengths))
        return one if self.trees is None else np.diff(self.trees.branch_offsets)

    def select(self, samples: Int32Array) -> Self:
        """Select these samples (int32[k]) alone, in this order, to plan them all."""
        sources = None if self.sources is None else self.sources[samples]
        trees = None if self.trees is None else select_items(self.trees, samples)
        return replace(self, lengths=self.lengths[samples], sources=sources, trees=trees, among=None)

    @property
    def can_be_drawn(self) -> bool:
        """Whether a plan of some of the samples says what one of all would: an epoch has each once."""
        return self.trees is None and (self.sources is None or {*self.weights} <= ONCE)

    def drawn(self, number: int, seed: int) -> Self:
        """Draw this many of the samples to plan, evenly over the lengths. O(n log n)."""
        own = self.alone()
        if own.num_samples <= number:
            return own
        order = np.argsort(own.lengths, kind="stable")
        begins = np.linspace(0, own.num_samples, number + 1).astype(np.int64)
        places = begins[:-1] + (np.random.default_rng(seed).random(number) * np.diff(begins)).astype(np.int64)
        return replace(own, among=np.sort(order[places]).astype(np.int32)).alone()

    def chosen(self, seed: int) -> Int32Array | None:
        """Choose the sample ids (int32[m], increasing) of an epoch, repeated by weight; None for each once."""
        if self.sources is None or {*self.weights} <= ONCE:
            return self.among
        return weighted_samples(self.sources, self.weights, seed, self.lengths, self.among)

    @property
    def num_wanted(self) -> float:
        """About how many samples an epoch has. O(n)."""
        if self.sources is None or {*self.weights} <= ONCE:
            return self.num_samples
        among = slice(None) if self.among is None else self.among
        return num_weighted(self.sources[among], self.weights, self.lengths[among])

    def whole(self) -> Pieces:
        """Make a piece of each sample, all of it. Of items, O(segments)."""
        if self.trees is not None:
            return whole_items(self.trees)
        # Zeros take no memory until they are written to.
        return Pieces(samples=None, start=np.zeros(len(self.lengths), dtype=np.int32), length=self.lengths)

    def sizes(self, limits: Sequence[int] = ()) -> Int32Array:
        """Compute the tokens that each sample takes of a capacity, the lengths of flat samples: int32[n]."""
        return self.whole().sizes(limits)

    def saved(self) -> TreeFigures | None:
        """Count the savings of shared prefixes; None for flat samples."""
        return None if self.trees is None else tree_figures(self.trees, self.whole())

    def cut(self, rule: SizeRule, seed: int) -> Cut:
        """Cut the samples of an epoch, which are repeated by weight."""
        return Cut(samples=self, rule=rule, chosen=self.chosen(seed))

    def epoch_sizes(self, seed: int, limits: Sequence[int] = ()) -> Int32Array:
        """Compute the tokens that each of `chosen` takes of a capacity, the lengths of flat samples: int32[m]."""
        chosen, sizes = self.chosen(seed), self.sizes(limits)
        return sizes if chosen is None else sizes[chosen]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The samples of an epoch, each whole, cut, divided, or left out by a rule."""

    samples: Samples
    rule: SizeRule
    chosen: Int32Array | None
    """See `Samples.chosen`."""

    @cached_property
    def whole(self) -> Pieces:
        """A piece of each sample, all of it."""
        return self.samples.whole()

    @property
    def pieces(self) -> Pieces:
        """The pieces to pack, maybe none."""
        return self._pieces_and_lost[0]

    @cached_property
    def _pieces_and_lost(self) -> tuple[Pieces, Lost | None]:
        """The pieces, and what items lose; O(n + pieces), of items O(segments + pieces)."""
        samples, rule = self.samples, self.rule
        if samples.trees is not None:
            return cut_items(samples.trees, self.whole, self.chosen, self.over, rule)
        return make_pieces(samples.lengths, self.chosen, rule.capacity, rule.overflow), None

    @cached_property
    def over(self) -> Int32Array:
        """The samples (int32[k], rising) over the capacity, each once. O(n)."""
        is_over = self.whole.sizes(self.rule.limits) > self.rule.capacity
        if self.chosen is not None:
            is_chosen = np.zeros(len(is_over), dtype=np.bool_)
            is_chosen[self.chosen] = True
            is_over &= is_chosen
        return ids_of(is_over)

    def facts_of(self, sample: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the kind of a sample, its number of branches, and its needs (`Pieces.needs`)."""
        trees, needs = self.samples.trees, tuple(int(need[sample]) for need in self.whole.needs)
        if trees is None:
            return SAMPLE, 1, needs
        first, stop = trees.branch_offsets[sample : sample + 2].tolist()
        return int(trees.kinds[sample]), stop - first, needs

    def lost(self) -> Lost:
        """List the tokens that the rule takes away."""
        of_items = self._pieces_and_lost[1]
        if of_items is not None:
            return of_items
        kept = {"truncate": self.rule.capacity, "drop": 0}.get(self.rule.overflow)
        over = self.over[: 0 if kept is None else None]
        return Lost(over, np.zeros_like(over), np.ones_like(over), np.full_like(over, kept or 0))

    def _fates(self, pieces: Pieces) -> dict[str, Any]:
        """Count what became of the samples, whose `pieces` a packing may have cut: fields of `SampleCounts`.
        O(pieces)."""
        if self.samples.trees is not None:
            return item_fates(self.samples.trees, self.whole, pieces, self.over, self.lost(), self.rule)
        cut, overflow = np.flatnonzero(pieces.start > 0), self.rule.overflow
        return {
            "split": len(np.unique(pieces.samples[cut])) if pieces.samples is not None else 0,
            "truncated": len(self.over) if overflow == "truncate" else 0,
            "dropped": len(self.over) if overflow == "drop" else 0,
        }

    def check(self, pieces: Pieces) -> None:
        """Prove that a plan's pieces are those of the chosen samples, each whole or cut by the rule.

        Raises:
            PlanError: they are not.
        """
        if self.samples.trees is not None:
            check_items(self.samples.trees, self.whole, pieces, self.chosen, self.lost(), self.rule)
            return
        chosen, lengths = self.chosen, self.samples.lengths
        if self.rule.overflow == "drop":
            chosen = kept_samples(lengths, chosen, self.rule.capacity)
        check_pieces(pieces, lengths, chosen, is_whole=self.rule.overflow != "truncate")

    def counts(self, pieces: Pieces, loss_tokens: Int32Array | None = None) -> SampleCounts:
        """Count the samples, and what became of them in the `pieces` of a plan. O(n + pieces).

        Args:
            loss_tokens: int32[m], of each piece; None: not known.
        """
        samples, chosen = self.samples, self.chosen
        num_samples = samples.num_samples
        num_different = num_samples if chosen is None else int(np.count_nonzero(np.diff(chosen, prepend=-1)))
        inputs = None
        if samples.sources is not None and samples.weights:
            inputs = count_inputs(samples.sources, pieces, len(samples.weights), loss_tokens)
        return SampleCounts(
            inputs=inputs,
            samples=num_samples,
            left_out_by_weight=num_samples - num_different,
            repeated_by_weight=(num_samples if chosen is None else len(chosen)) - num_different,
            pieces=len(pieces),
            tokens=int(pieces.length.sum(dtype=np.int64)),
            **self._fates(pieces),
        )


def kept_samples(lengths: Int32Array, chosen: Int32Array | None, capacity: int) -> Int32Array:
    """Select the chosen samples (int32[m]; None: each once) that are not over the capacity."""
    return ids_of(lengths <= capacity) if chosen is None else chosen[lengths[chosen] <= capacity]


def pieces_to_plan(samples: Samples, rule: SizeRule, seed: int) -> Pieces:
    """Make the pieces to pack, of samples of which only the lengths are known.

    Raises:
        RunError: there is nothing to plan, or a sample is too long under `error`.
    """
    return require_pieces(samples.cut(rule, seed))


def require_pieces(cut: Cut) -> Pieces:
    """Return the pieces to pack. Raises RunError if there are none, or a sample is too long under `error`."""
    samples, rule = cut.samples, cut.rule
    if rule.overflow == "error" and len(cut.over):
        longest = int(cut.whole.sizes(rule.limits)[cut.over].max())
        takes = {"sample": "has", "item": "takes"}[samples.unit]
        raise RunError(
            f"the longest {samples.unit} {takes} {longest} tokens, over the largest group's {rule.capacity}; "
            "choose --overflow split, truncate or drop"
        )
    if not len(cut.pieces):
        raise RunError("there is nothing to plan: no sample is left; add data, or choose longer --groups")
    return cut.pieces


def make_pieces(lengths: Int32Array, samples: Int32Array | None, capacity: int, overflow: Overflow) -> Pieces:
    """Make the pieces: whole samples, with `overflow` applied to those longer than `capacity`.

    `split` cuts after every `capacity` tokens; `truncate` keeps the first `capacity`; `drop` leaves the sample out.
    The caller raises the error of `error`. O(n), and no memory where every sample is packed once, as it is.

    Args:
        lengths: int32[n], length of every sample, each at least 1.
        samples: int32[k], the sample ids to pack, increasing, with repetitions; None for each once.

    Raises:
        RunError: there would be more than `MOST_PIECES`.
    """
    require_number(len(lengths) if samples is None else len(samples))
    samples = None if samples is None else as_ids(samples)
    length = lengths if samples is None else lengths[samples]
    if not len(length) or int(length.max()) <= capacity:
        # Zeros take no memory until they are written to.
        return Pieces(samples=samples, start=np.zeros(len(length), dtype=np.int32), length=length)
    if overflow == "split":
        require_number(int((1 + (length - 1) // capacity).sum(dtype=np.int64)))
        samples = np.arange(len(length), dtype=np.int32) if samples is None else samples
        # Where each begins a row, a row ends where the sample is cut.
        return cut_in_rows(samples, np.zeros_like(samples), length, capacity, align=capacity)
    if overflow == "drop":
        keep = length <= capacity
        samples, length = ids_of(keep) if samples is None else samples[keep], length[keep]
    else:
        samples = np.arange(len(length), dtype=np.int32) if samples is None else samples
        length = np.minimum(length, capacity)
    return Pieces(samples=samples, start=np.zeros(len(length), dtype=np.int32), length=length)


def require_number(num_pieces: int) -> None:
    """Raise RunError for more pieces than a plan can number."""
    if num_pieces > MOST_PIECES:
        raise RunError(
            f"the plan would have {num_pieces:,} pieces of samples; it may have {MOST_PIECES:,} at most: divide the "
            "inputs among several sets, or give longer --groups or smaller weights (PATH@WEIGHT)"
        )
