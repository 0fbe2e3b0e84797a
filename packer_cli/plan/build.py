"""The chain group -> pack -> fill -> balance -> schedule (HBP, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from packer_cli.plan.balance import sort_by_work, spread
from packer_cli.plan.cost import pack_tokens_and_work
from packer_cli.plan.fill import greedy_fill
from packer_cli.plan.groups import group_of
from packer_cli.plan.packing import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.csr import group_by_pack
from packer_cli.plan.random import rng_state
from packer_cli.plan.schedule import GroupIterations, StepRules, deal, schedule_epoch
from packer_cli.plan.sorting import argsort_descending
from packer_cli.plan.types import FILLER, Group, Int64Array, Packs, Pieces, Plan, Schedule

_STREAM_PACKING = 2
_STREAM_BALANCE = 3


@dataclass(frozen=True, kw_only=True)
class PlanRules:
    """All that shapes a plan besides the lengths."""

    groups: tuple[Group, ...]
    """By rising capacity; each degree divides `num_gpus`."""
    num_gpus: int
    algorithm: PackingAlgorithm
    packing_options: PackingOptions
    steps: StepRules = field(default_factory=StepRules)
    epochs: int = 1
    """Epochs to schedule; all use the same packs."""
    seed: int = 0
    balance: bool = True
    """False deals the packs in seeded order: the paper's baseline."""


@dataclass(frozen=True, kw_only=True)
class _GroupPacks:
    offsets: Int64Array
    pieces: Int64Array
    num_balanced: int
    """Packs before this one are whole iterations of the algorithm's packs; those from here on are the rest."""
    is_spread: bool


def build_plan(pieces: Pieces, rules: PlanRules) -> Plan:
    """Plan the pieces; every one ends in exactly one pack.

    From the longest group down: pack the group's own pieces, fill with shorter ones, balance. Price: that of the
    packing algorithm, plus O(m) for the rest. `check_plan` proves the result.
    """
    lengths = pieces.length
    home = group_of(lengths, rules.groups)
    is_left = np.ones(len(pieces), dtype=np.bool_)
    by_group: list[_GroupPacks] = []
    for g in range(len(rules.groups) - 1, -1, -1):
        own = np.flatnonzero(is_left & (home == g))
        is_left[own] = False
        offsets, order = _pack_and_fill(lengths, own, np.flatnonzero(is_left), g, rules)
        is_left[order] = False
        by_group.append(_balance(lengths, offsets, order, g, rules))
    by_group.reverse()
    packs = _concatenate(by_group)
    pack_tokens, _ = pack_tokens_and_work(packs.offsets, packs.pieces, lengths)
    iterations = _iterations(by_group, rules)
    schedules = [
        schedule_epoch(rules.groups, iterations, pack_tokens, rules.num_gpus, rules.steps, rules.seed, epoch)
        for epoch in range(rules.epochs)
    ]
    packs, renumber = _in_order_of_use(packs, schedules[0].slot_pack)
    schedules = [_renumbered(schedule, renumber) for schedule in schedules]
    return Plan(groups=rules.groups, num_gpus=rules.num_gpus, pieces=pieces, packs=packs, epochs=tuple(schedules))


def _pack_and_fill(
    lengths: np.ndarray, own: Int64Array, shorter: Int64Array, g: int, rules: PlanRules
) -> tuple[Int64Array, Int64Array]:
    """Packs of the group as (offsets, pieces)."""
    capacity = rules.groups[g].capacity
    seed = int(rng_state(rules.seed, _STREAM_PACKING, g)[0])
    offsets, order = rules.algorithm.pack(lengths[own], capacity, seed, rules.packing_options)
    order = own[order]
    if not len(shorter) or len(offsets) == 1:
        return offsets, order
    tokens, _ = pack_tokens_and_work(offsets, order, lengths)
    longest = rules.groups[g - 1].capacity
    added_offsets, added = greedy_fill(capacity - tokens, lengths[shorter], longest)
    return _merge(offsets, order, added_offsets, shorter[added])


def _merge(
    offsets: Int64Array, pieces: Int64Array, added_offsets: Int64Array, added: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Append to each pack the pieces added to it."""
    merged_offsets = offsets + added_offsets
    merged = np.empty(merged_offsets[-1], dtype=np.int64)
    for part_offsets, part, before in (
        (offsets, pieces, added_offsets[:-1]),
        (added_offsets, added, offsets[1:]),
    ):
        shift = np.repeat(before, np.diff(part_offsets))
        merged[np.arange(len(part)) + shift] = part
    return merged_offsets, merged


def _balance(lengths: np.ndarray, offsets: Int64Array, pieces: Int64Array, g: int, rules: PlanRules) -> _GroupPacks:
    group = rules.groups[g]
    num_ranks = group.num_dp_ranks(rules.num_gpus)
    num_packs = len(offsets) - 1
    _, work = pack_tokens_and_work(offsets, pieces, lengths)
    state = rng_state(rules.seed, _STREAM_BALANCE, g)
    order = sort_by_work(work if rules.balance else np.zeros_like(work), state)
    num_left = _num_to_spread(num_packs, num_ranks)
    full_offsets, full = _select(offsets, pieces, order[: num_packs - num_left])
    left_offsets, left = _select(offsets, pieces, order[num_packs - num_left :])
    spread_out = _spread(lengths, left, group.capacity, -(-num_left // num_ranks) * num_ranks)
    if spread_out:
        left_offsets, left = spread_out
    return _GroupPacks(
        offsets=np.concatenate([full_offsets, left_offsets[1:] + full_offsets[-1]]),
        pieces=np.concatenate([full, left]),
        num_balanced=num_packs - num_left,
        is_spread=spread_out is not None,
    )


def _num_to_spread(num_packs: int, num_ranks: int) -> int:
    """How many of the lightest packs are dealt out anew, so that no rank idles in the last iteration.

    A few packs over many ranks would be a handful of samples a rank, too few to be even: then the packs of the
    iteration before join them, and two iterations of rows over half full come out.
    """
    num_left = num_packs % num_ranks
    if 0 < num_left < num_ranks / 2 and num_packs > num_left:
        num_left += num_ranks
    return num_left


def _spread(
    lengths: np.ndarray, pieces: Int64Array, capacity: int, num_rows: int
) -> tuple[Int64Array, Int64Array] | None:
    """The pieces over rows of even attention work, the heaviest row first; None where they do not fit."""
    num_rows = min(num_rows, len(pieces))
    by_length = argsort_descending(lengths[pieces], capacity)
    row_of, fits = spread(lengths[pieces], by_length, capacity, num_rows)
    if not fits:
        return None
    offsets, members = group_by_pack(row_of, by_length, num_rows)
    _, work = pack_tokens_and_work(offsets, pieces[members], lengths)
    return _select(offsets, pieces[members], np.argsort(-work, kind="stable"))


def _select(offsets: Int64Array, pieces: Int64Array, packs: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The given packs, in the given order."""
    sizes = np.diff(offsets)[packs]
    new_offsets = np.concatenate([[0], np.cumsum(sizes)])
    shift = np.repeat(offsets[:-1][packs] - new_offsets[:-1], sizes)
    return new_offsets, pieces[np.arange(new_offsets[-1]) + shift]


def _concatenate(by_group: Sequence[_GroupPacks]) -> Packs:
    sizes = [len(part.offsets) - 1 for part in by_group]
    num_pieces = np.concatenate([np.diff(part.offsets) for part in by_group])
    return Packs(
        offsets=np.concatenate([[0], np.cumsum(num_pieces)]),
        pieces=np.concatenate([part.pieces for part in by_group]),
        group=np.repeat(np.arange(len(by_group)), sizes).astype(np.int16),
    )


def _iterations(by_group: Sequence[_GroupPacks], rules: PlanRules) -> list[GroupIterations]:
    iterations = []
    first = 0
    for part, group in zip(by_group, rules.groups, strict=True):
        num_packs = len(part.offsets) - 1
        num_ranks = group.num_dp_ranks(rules.num_gpus)
        slots = deal(first + np.arange(num_packs), num_ranks)
        num_rest = -(-(num_packs - part.num_balanced) // num_ranks)
        iterations.append(GroupIterations(slots=slots, num_spread=num_rest if part.is_spread else 0))
        first += num_packs
    return iterations


def _in_order_of_use(packs: Packs, slot_pack: Int64Array) -> tuple[Packs, Int64Array]:
    """Number the packs of each group as the first epoch reads them, so that reading a shard is sequential."""
    used = slot_pack[slot_pack != FILLER]
    order = used[np.argsort(packs.group[used], kind="stable")]
    offsets, pieces = _select(packs.offsets, packs.pieces, order)
    renumber = np.empty(len(packs) + 1, dtype=np.int64)
    renumber[order] = np.arange(len(packs))
    renumber[-1] = FILLER
    return Packs(offsets=offsets, pieces=pieces, group=packs.group[order]), renumber


def _renumbered(schedule: Schedule, renumber: Int64Array) -> Schedule:
    return replace(schedule, slot_pack=renumber[schedule.slot_pack])
