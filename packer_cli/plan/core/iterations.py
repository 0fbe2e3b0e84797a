"""Iterations without an order: which packs run side by side, on which GPUs, in rows of which length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import begins_run, offsets_of
from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import FILLER, Int16Array, Int32Array, Int64Array, Schedule, as_ids

_ROW_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The i balanced iterations of an epoch, not yet ordered, with k slots."""

    offsets: Int64Array
    """int64[i+1]: iteration j has the slots `offsets[j]:offsets[j+1]`."""
    slot_pack: Int32Array
    """int32[k]: pack, or FILLER."""
    slot_group: Int16Array
    """int16[k]"""
    slot_first_gpu: Int32Array
    """int32[k], rising within an iteration."""
    slot_row_length: Int32Array
    """int32[k]"""
    step: Int64Array | None = None
    """int64[i], 0 .. s-1, none left out, where the strategy decides the steps; else `StepRules` do."""
    is_dealt: bool = False
    """Whether packs stay on their replicas, each of which may have several slots."""

    @classmethod
    def of(
        cls,
        slots: Slots,
        groups: Sequence[Group],
        num_gpus: int,
        *,
        has_equal_rows: bool = False,
        step: Int64Array | None = None,
        is_dealt: bool = False,
    ) -> Iterations:
        """Make iterations from slots in any order; idle GPUs get fillers of the first group. O(k log k).

        Fillers of replicas that have packs are left out.

        Args:
            has_equal_rows: whether the rows of a group in an iteration are as long as its longest, else as their own.
        """
        slots = slots.with_fillers(groups, num_gpus)
        slots = slots.take(order_slots(slots.iteration, slots.first_gpu, slots.pack, -slots.load))
        num, tokens = int(slots.iteration.max(initial=-1)) + 1, slots.tokens
        if has_equal_rows:
            longest = np.zeros((num, len(groups)), dtype=np.int64)
            np.maximum.at(longest, (slots.iteration, slots.group), tokens)
            tokens = longest[slots.iteration, slots.group]
        return cls(
            offsets=np.searchsorted(slots.iteration, np.arange(num + 1)),
            slot_pack=as_ids(slots.pack),
            slot_group=slots.group.astype(np.int16),
            slot_first_gpu=slots.first_gpu.astype(np.int32),
            slot_row_length=round_up_rows(tokens, groups, slots.group).astype(np.int32),
            step=step,
            is_dealt=is_dealt,
        )

    def run(self, order: NDArray[np.integer], steps: Int64Array) -> Schedule:
        """Schedule the iterations in this order (int[i]), in these steps (int64[i]). O(slots)."""
        offsets, slots = select_packs(self.offsets, as_ids(np.arange(len(self.slot_pack))), order)
        return Schedule(
            slot_iteration=np.repeat(np.arange(len(order)), np.diff(offsets)),
            slot_pack=self.slot_pack[slots],
            slot_group=self.slot_group[slots],
            slot_first_gpu=self.slot_first_gpu[slots],
            slot_row_length=self.slot_row_length[slots],
            iteration_step=steps,
        )


class Slots(NamedTuple):
    """k slots in any order."""

    iteration: Int64Array
    """int64[k], from 0 on, none left out."""
    first_gpu: Int64Array
    """int64[k]"""
    group: Int64Array
    """int64[k]"""
    pack: Int64Array
    """int[k]: pack, or FILLER."""
    tokens: Int64Array
    """int64[k]: aligned, of the pack; 0 of fillers."""
    load: NDArray[Any]
    """[k]: a replica runs its packs by falling load."""

    def take(self, chosen: Int64Array) -> Slots:
        """Take the slots of these numbers, in their order."""
        return Slots._make(values[chosen] for values in self)

    def with_fillers(self, groups: Sequence[Group], num_gpus: int) -> Slots:
        """Add fillers of the first group on GPUs that have no pack in an iteration. O(k log k)."""
        order = np.lexsort((self.first_gpu, self.iteration))
        iteration, begin = self.iteration[order], self.first_gpu[order]
        end = begin + np.array([group.num_gpus for group in groups])[self.group[order]]
        is_first = begins_run(iteration)
        is_last = np.append(is_first[1:], True)[: len(order)]
        before = np.where(is_first, 0, np.append(0, end)[: len(order)])
        of = np.concatenate([iteration, iteration[is_last]])
        free_from = np.concatenate([before, end[is_last]])
        free_to = np.concatenate([begin, np.full(int(is_last.sum()), num_gpus)])
        number = np.maximum(free_to - free_from, 0) // groups[0].num_gpus
        place = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        none = np.zeros(len(place), dtype=np.int64)
        fillers = (
            np.repeat(of, number),
            np.repeat(free_from, number) + place * groups[0].num_gpus,
            none,
            none + FILLER,
            none,
            none,
        )
        return Slots._make(np.concatenate(pair) for pair in zip(self, fillers, strict=True))


def order_slots(
    iteration: Int64Array, first_gpu: NDArray[np.integer], pack: NDArray[np.integer], key: NDArray[Any]
) -> Int64Array:
    """Order slots by iteration and first GPU, a replica's packs by rising key ([k]); no fillers where it has packs."""
    is_pack = pack != FILLER
    order: Int64Array = np.lexsort((key, ~is_pack, first_gpu, iteration))
    found: Int64Array = order[begins_run(iteration[order], first_gpu[order]) | is_pack[order]]
    return found


def one_group_each(
    groups: Sequence[Group],
    slots: Sequence[Int32Array],
    pack_tokens: Int64Array,
    num_spread: Sequence[int] | None = None,
) -> Iterations:
    """Make iterations whose slots all belong to one group, those of the first group first. O(slots).

    Args:
        slots: int32[iterations, dp_ranks] of each group: pack numbers; FILLER for a rank without a pack.
        pack_tokens: int64[p], tokens of each pack.
        num_spread: iterations at the end of each group that hold spread packs, which are shorter than the capacity.
    """
    parts = []
    for group, own, spread in zip(groups, slots, num_spread or [0] * len(groups), strict=True):
        num, num_ranks = own.shape
        rows = np.full(num, group.full_row, dtype=np.int32)
        longest = np.append(pack_tokens, 0)[own[num - spread :]].max(axis=1, initial=0)  # FILLER is -1, the zero.
        rows[num - spread :] = round_up_rows(longest, [group], 0)
        first_gpu = np.arange(num_ranks, dtype=np.int32) * np.int32(group.num_gpus)
        parts.append((np.full(num, num_ranks), own.ravel(), np.tile(first_gpu, num), rows.repeat(num_ranks)))
    sizes, packs, first_gpus, row_lengths = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Iterations(
        offsets=offsets_of(sizes),
        slot_pack=packs,
        slot_group=np.repeat(np.arange(len(groups), dtype=np.int16), [own.size for own in slots]),
        slot_first_gpu=first_gpus,
        slot_row_length=row_lengths,
    )


def round_up_rows(longest: Int64Array, groups: Sequence[Group], group_of: NDArray[np.integer] | int) -> Int64Array:
    """Round row lengths (int64[k]) up for the longest packs: to multiples of 128 tokens a GPU, at most full rows.

    Args:
        group_of: int[k], the group of each; or that of all.
    """
    multiple = np.array([_ROW_MULTIPLE * group.layout.stage_gpus for group in groups], dtype=np.int64)[group_of]
    full = np.array([group.full_row for group in groups], dtype=np.int64)[group_of]
    return np.asarray(np.minimum(np.maximum(1, -(-longest // multiple)) * multiple, full))


def deal(order: Int32Array, num_ranks: int) -> Int32Array:
    """Deal consecutive packs to iterations: int32[ceil(p / ranks), ranks], the last one completed with FILLER."""
    num_iterations = -(-len(order) // num_ranks)
    slots = np.full(num_iterations * num_ranks, FILLER, dtype=np.int32)
    slots[: len(order)] = order
    return slots.reshape(num_iterations, num_ranks)
