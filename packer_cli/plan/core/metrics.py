"""DBR, PR, ABR, CBR, CR, Ave-T and imbalance: one definition for every user.

Sources: HBP (arXiv 2503.07680) section 3.1 for DBR, PR, ABR, CR and Ave-T; WLB-LLM (arXiv 2503.17924) for the
imbalance. All are vectorized over the slots of a schedule, O(slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import Metrics
from packer_cli.plan.core.bounds import bound_of_needs, least_max_works, packs_lower_bound
from packer_cli.plan.core.cp_sharding import CODES, cp_imbalance
from packer_cli.plan.core.csr import pack_tokens_and_work, plan_tokens_and_work, select_packs
from packer_cli.plan.core.segments import aligned_lengths, row_lengths
from packer_cli.plan.core.types import (
    FILLER,
    Float64Array,
    Int16Array,
    Int32Array,
    Int64Array,
    Plan,
    Schedule,
    blocks_of,
)

_BLOCK = 1 << 20
"""Pieces whose bounds are computed at a time."""


def balance_ratio(values: Float64Array, slot_iteration: Int64Array, gpus: Int64Array | None = None) -> Float64Array:
    """Compute `1 - sum_r x_r / (G max_r x_r / g_r)` of iterations (float64[i]): ABR of attention work, DBR of tokens.

    The replicas must be sorted by iteration. An iteration of zeros is balanced.

    Args:
        values: float64[k], x of each replica, which its g GPUs share.
        gpus: int64[k], g; None if all replicas of an iteration have the same number, as HBP's have.

    >>> K = 1024
    >>> work = np.array([4 * K**2, 2 * (2 * K) ** 2], dtype=float)  # {1K, 1K, 1K, 1K} and {2K, 2K}
    >>> balance_ratio(work, np.array([0, 0])).tolist()
    [0.25]
    """
    if not len(values):
        return np.zeros(0)
    first = np.flatnonzero(np.diff(slot_iteration, prepend=slot_iteration[0] - 1))
    total = np.add.reduceat(values, first)
    greatest = np.maximum.reduceat(values if gpus is None else values / gpus, first)
    count = np.diff(np.append(first, len(values))) if gpus is None else np.add.reduceat(gpus, first)
    return np.where(greatest > 0, 1 - total / np.where(greatest > 0, greatest * count, 1), 0.0)


def imbalance(values: Float64Array, of: Int64Array) -> float:
    """Return WLB-LLM's imbalance (section 3.3): `M max_j w_j / sum_j w_j` over M micro-batches that wait, on average.

    Args:
        values: float64[k], of micro-batches.
        of: int64[k], rising: which of them wait for each other.
    """
    ratio = balance_ratio(values, of)
    return float(np.mean(1 / (1 - ratio))) if len(ratio) else 1.0


def _imbalance(plan: Plan, values: Float64Array, iteration: Int64Array) -> float | None:
    """Measure the imbalance of micro-batches that wait for each other: of an iteration, or, as WLB-LLM, of a step.

    Pipelines make the micro-batches of a step wait. None where pipelines, or replicas that run freely, are unlike:
    their micro-batches have other sizes on purpose.
    """
    layouts = {group.layout for group in plan.groups}
    if any(layout.pp > 1 for layout in layouts):
        return imbalance(values, plan.epochs[0].iteration_step[iteration]) if len(layouts) == 1 else None
    return None if plan.lockstep == 1 and _mixes_layouts(plan) else imbalance(values, iteration)


def _mixes_layouts(plan: Plan) -> bool:
    """Whether an iteration has replicas of unlike layouts."""
    schedule = plan.epochs[0]
    layouts = sorted({group.layout for group in plan.groups})
    layout = np.array([layouts.index(group.layout) for group in plan.groups])[schedule.slot_group]
    is_same_iteration = schedule.slot_iteration[1:] == schedule.slot_iteration[:-1]
    return bool((is_same_iteration & (layout[1:] != layout[:-1])).any())


def least_works(plan: Plan, linear: int = 0) -> Float64Array:
    """Return a lower bound (float64[i]) on each iteration's greatest work per GPU, however its samples are dealt.

    Where replicas have unlike degrees, or several micro-batches, and for trees, it is the mean, or the longest sample
    on the most GPUs. With a causal mask over whole rows, it is that of the least tokens of the longest row. Price:
    O(m log m) for m pieces.

    Args:
        linear: tokens, see `plan.core.cost`; 0 is attention work.
    """
    schedule = plan.epochs[0]
    lengths = row_lengths(plan)
    first_slot = np.searchsorted(schedule.slot_iteration, np.arange(schedule.num_iterations + 1))
    num_pieces = np.append(np.diff(plan.packs.offsets), 0)[schedule.slot_pack]  # FILLER is -1, the appended zero
    before = np.concatenate([[0], np.cumsum(num_pieces)])[first_slot]
    bounds = np.zeros(schedule.num_iterations)
    for block in blocks_of(before, _BLOCK):
        own = first_slot[block.start : block.stop + 1]
        bounds[block] = _least_works_of(plan, schedule, lengths, own, linear)
    return bounds


def _least_works_of(
    plan: Plan, schedule: Schedule, lengths: Int32Array, first_slot: Int64Array, linear: int
) -> Float64Array:
    """Return `least_works` of consecutive iterations; j has the slots `first_slot[j] .. first_slot[j + 1] - 1`."""
    slots = slice(int(first_slot[0]), int(first_slot[-1]))
    first = first_slot[:-1] - first_slot[0]
    num_slots = np.diff(first_slot)
    group = schedule.slot_group[slots]
    is_pack = schedule.slot_pack[slots] != FILLER
    gpus = np.array([group.num_gpus for group in plan.groups], dtype=np.int64)[group]
    most_gpus = np.maximum.reduceat(gpus, first)
    packs = schedule.slot_pack[slots][is_pack]
    offsets, pieces = select_packs(plan.packs.offsets, plan.packs.pieces, packs)
    iteration = np.repeat(np.arange(len(first)), num_slots)[is_pack]
    of_piece = np.repeat(iteration, np.diff(offsets))
    if plan.pieces.work is not None:
        work = plan.pieces.work[pieces] + linear * plan.pieces.length[pieces].astype(np.int64)
        return _mean_or_heaviest(work, of_piece, most_gpus, plan.num_gpus)
    # One sort by iteration, then by falling length.
    keys = (of_piece << 32) - lengths[pieces]
    keys.sort()
    falling = -(keys.astype(np.int32).astype(np.int64))
    first_piece = offsets[np.searchsorted(iteration, np.arange(len(first) + 1))]
    if plan.mask == "causal":
        totals = np.diff(np.concatenate([[0], np.cumsum(falling)])[first_piece])
        longest = np.where(totals > 0, np.append(falling, 0)[first_piece[:-1]], 0)
        tokens = np.maximum(longest, -(-totals // num_slots))
        least: Float64Array = tokens * (tokens + linear) / most_gpus
    else:
        capacity = np.where(is_pack, np.array([group.capacity for group in plan.groups], dtype=np.int64)[group], 0)
        most_tokens = np.maximum.reduceat(capacity, first)
        least = least_max_works(falling, first_piece, num_slots, most_tokens, linear) / most_gpus
    is_plain = most_gpus == np.minimum.reduceat(gpus, first)
    is_plain &= num_slots * most_gpus == plan.num_gpus  # One slot a replica.
    if is_plain.all():
        return least
    return np.where(
        is_plain, least, _mean_or_heaviest(falling * (falling + linear), of_piece, most_gpus, plan.num_gpus)
    )


def _mean_or_heaviest(work: Int64Array, iteration: Int64Array, most_gpus: Int64Array, num_gpus: int) -> Float64Array:
    """Return each iteration's mean work of a GPU, or that of the heaviest piece on the most GPUs.

    Args:
        work: int64[k], of pieces.
        iteration: int64[k], of each.
        most_gpus: int64[i], of a replica in each.
    """
    total, heaviest = np.zeros((2, len(most_gpus)), dtype=np.int64)
    np.add.at(total, iteration, work)
    np.maximum.at(heaviest, iteration, work)
    return np.maximum(total / num_gpus, heaviest / most_gpus)


def measure(plan: Plan, group: int | None = None, linear: int = 0) -> Metrics:
    """Measure one group's iterations, or all.

    Args:
        linear: tokens, see `plan.core.cost`, for CBR and the imbalance.
    """
    return measure_each(plan, [group], linear)[0]


def measure_each(plan: Plan, groups: Sequence[int | None], linear: int = 0) -> list[Metrics]:
    """Return what `measure` does, of each of these groups, or of all for None."""
    least = least_works(plan)
    predicted = least_works(plan, linear) if linear else None
    bounds = _lower_bounds(plan)
    return [_measured(plan, group, linear, least, predicted, bounds) for group in groups]


def _measured(
    plan: Plan,
    group: int | None,
    linear: int,
    least: Float64Array,
    predicted: Float64Array | None,
    bounds: Sequence[int],
) -> Metrics:
    slots = slot_contents(plan, group)
    is_shared = np.array([each.layout.row_ranks > 1 for each in plan.groups])[slots.group]
    num_aligning = None
    if any(each.align > 1 for each in plan.groups):
        num_aligning = int((slots.tokens - slots.real_tokens).sum())
    num_tokens = int(slots.real_tokens.sum())
    token_slots = int(slots.row_length.sum(dtype=np.int64))
    packs = slots.pack[slots.pack != FILLER]
    abr, abr_bound = _ratio_and_bound(slots, slots.work, least, plan.num_gpus)
    work = slots.cost(linear)
    cbr, cbr_bound = (None, None) if predicted is None else _ratio_and_bound(slots, work, predicted, plan.num_gpus)
    return Metrics(
        dbr=_mean(slots.ratios(slots.shared_tokens)),
        pr=1 - num_tokens / token_slots if token_slots else 0.0,
        alignment_pr=None if num_aligning is None else num_aligning / max(1, token_slots),
        abr=abr,
        abr_bound=abr_bound,
        cbr=cbr,
        cbr_bound=cbr_bound,
        cr=float(slots.real_tokens[is_shared].sum()) / num_tokens if num_tokens else 0.0,
        **_of_cp_ranks(plan, packs),
        ave_t=num_tokens / len(slots.pack) if len(slots.pack) else 0.0,
        imbalance=_imbalance(plan, work / slots.gpus, slots.iteration),
        num_samples=int(np.diff(plan.packs.offsets)[packs].sum()),
        num_tokens=num_tokens,
        num_packs=len(packs),
        packs_lower_bound=sum(bounds) if group is None else bounds[group],
        num_iterations=len(np.unique(slots.iteration)),
        num_fillers=len(slots.pack) - len(packs),
    )


def _of_cp_ranks(plan: Plan, packs: Int64Array) -> dict[str, float]:
    """Measure those of the packs that CP ranks share; return an empty dict if there are none."""
    has_cp = np.array([group.cp_size > 1 for group in plan.groups])[plan.packs.group[packs]]
    if not has_cp.any():
        return {}
    values = cp_imbalance(plan)[packs[has_cp]]
    per_document = plan.packs.cp_sharding[packs[has_cp]] == CODES["document"]
    return {
        "cp_imbalance": float(values.mean()),
        "cp_imbalance_max": float(values.max()),
        "cp_document_share": float(per_document.mean()),
    }


def _ratio_and_bound(
    slots: SlotContents, of_slots: Float64Array, least: Float64Array, num_gpus: int
) -> tuple[float, float]:
    """Return the means over iterations of the balance ratio, and of its lower bound.

    Args:
        of_slots: float64[k], work of each slot.
        least: float64[all iterations], the result of `least_works`, which holds for whole iterations only.
    """
    work, (iteration, gpus) = slots.of_replicas(of_slots), slots.replicas
    own = np.unique(iteration)
    busy = np.bincount(iteration, weights=gpus, minlength=len(least))[own]
    means = np.bincount(iteration, weights=work, minlength=len(least))[own] / busy
    bounds = np.maximum(0.0, 1 - means / np.where(least[own] > 0, least[own], np.inf))
    bounds[(busy < num_gpus) | (least[own] == 0)] = 0.0
    return _mean(balance_ratio(work, iteration, gpus)), _mean(bounds)


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _lower_bounds(plan: Plan) -> list[int]:
    """Return a lower bound on the packs of each group. O(m); memory: 8 bytes a piece of a group."""
    lengths, bounds = aligned_lengths(plan.pieces, plan.packs, plan.groups), []
    for g, group in enumerate(plan.groups):
        pieces = pieces_of_group(plan, g)
        found = [packs_lower_bound(lengths[pieces], group.capacity), -(-len(pieces) // plan.max_samples)]
        bounds.append(max(*found, bound_of_needs(plan, g, pieces) if plan.limits else 0))
    return bounds


def pieces_of_group(plan: Plan, group: int) -> Int32Array:
    """Return the pieces (int32) in a group's packs."""
    return select_packs(plan.packs.offsets, plan.packs.pieces, np.flatnonzero(plan.packs.group == group))[1]


@dataclass(frozen=True, kw_only=True)
class SlotContents:
    """k slots, sorted by iteration and first GPU; r replicas, which have one slot or more in an iteration."""

    pack: Int32Array
    """int32[k]: pack, or FILLER."""
    group: Int16Array
    """int16[k]"""
    iteration: Int64Array
    """int64[k]"""
    gpus: Int64Array
    """int64[k]: GPUs of the replica."""
    row_length: Int32Array
    """int32[k]"""
    tokens: Int64Array
    """int64[k]: with the padding that aligns samples or, in a padded batch, that GPUs compute."""
    real_tokens: Int64Array
    """int64[k]: without it."""
    shared_tokens: Float64Array
    """float64[k]: `tokens`, padded to a multiple of what the replica's GPUs share."""
    work: Float64Array
    """float64[k]: attention work, see `plan.core.cost`."""
    first: Int64Array
    """int64[r]: the first slot of each replica."""

    def of_replicas(self, values: Float64Array) -> Float64Array:
        """Sum values of the slots (float64[k]) over each replica's (float64[r])."""
        return np.add.reduceat(values, self.first) if len(self.first) < len(values) else values

    @property
    def replicas(self) -> tuple[Int64Array, Int64Array]:
        """Iteration and GPUs of each replica (int64[r] both)."""
        return self.iteration[self.first], self.gpus[self.first]

    def ratios(self, values: Float64Array) -> Float64Array:
        """Compute the `balance_ratio` of each iteration from values of the slots (float64[k])."""
        return balance_ratio(self.of_replicas(values), *self.replicas)

    def cost(self, linear: int) -> Float64Array:
        """Predict the work (float64[k]) of each slot, see `plan.core.cost`; with `linear` 0, attention work."""
        return self.work + linear * self.tokens if linear else self.work


def slot_contents(plan: Plan, group: int | None = None) -> SlotContents:
    """Return the slots of one group, or all of them. Price: O(pieces + slots)."""
    schedule = plan.epochs[0]
    chosen = np.ones(len(schedule.slot_pack), dtype=np.bool_) if group is None else schedule.slot_group == group
    group_of = schedule.slot_group[chosen]
    tokens, work, real_tokens, _ = (values[chosen] for values in slot_sums(plan, schedule))
    multiple = np.array([each.layout.row_multiple for each in plan.groups], dtype=np.int64)[group_of]
    return SlotContents(
        pack=schedule.slot_pack[chosen],
        group=group_of,
        iteration=schedule.slot_iteration[chosen],
        gpus=plan.slot_gpus(schedule)[chosen],
        row_length=schedule.slot_row_length[chosen],
        tokens=tokens,
        real_tokens=real_tokens,
        shared_tokens=(-(-tokens // multiple) * multiple).astype(np.float64),
        work=work,
        first=np.flatnonzero(schedule.begins_replica[chosen]),
    )


def slot_sums(plan: Plan, schedule: Schedule) -> tuple[Int64Array, Float64Array, Int64Array, Float64Array]:
    """Sum the tokens (int64[k]) and attention work (float64[k]) of each slot; and both without padding. O(m + k)."""
    packs, pieces = plan.packs, plan.pieces
    tokens, work = real_tokens, real_work = plan_tokens_and_work(plan)
    if plan.is_padded or any(group.align > 1 for group in plan.groups):
        real_tokens, real_work = pack_tokens_and_work(
            packs.offsets, packs.pieces, pieces.length, attention=pieces.work
        )
        if plan.mask == "causal":
            real_work = real_tokens * real_tokens
    # FILLER is -1, the appended zero.
    of_slots = (np.append(each, 0)[schedule.slot_pack] for each in (tokens, work, real_tokens, real_work))
    tokens, work, real_tokens, real_work = of_slots
    return tokens, work.astype(np.float64), real_tokens, real_work.astype(np.float64)
