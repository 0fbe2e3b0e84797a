"""Schedules slots and steps: when and on which GPUs each pack runs.

All micro-batches of an iteration come from one group. The first `curriculum_steps` steps take only the groups below
the longest (HBP section 4.3: 500 steps; 100 already help); then all groups alternate, see `plan.interleave`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.groups import Group
from packer_cli.plan.interleave import StepMix, interleave
from packer_cli.plan.streams import Stream, rng_state, shuffle
from packer_cli.plan.types import FILLER, Int64Array, Schedule

_ROW_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True)
class GroupIterations:
    """The balanced iterations of one group, not yet ordered."""

    slots: Int64Array
    """int64[iterations, dp_ranks]: pack numbers; FILLER for a rank without a pack."""
    num_spread: int = 0
    """Number of iterations at the end that hold spread packs, which are shorter than the capacity."""


@dataclass(frozen=True, kw_only=True)
class StepRules:
    """How iterations become optimizer steps."""

    global_tokens: int | None = None
    """Tokens per step over all ranks: a step takes iterations until it reaches them; None: one iteration per step."""
    curriculum_steps: int = 0
    """Steps at the start of the first epoch that take only the groups below the longest."""
    mix: StepMix = "alternate"
    """Which iterations share a step."""


def schedule_epoch(
    groups: Sequence[Group],
    iterations: Sequence[GroupIterations],
    pack_tokens: Int64Array,
    pack_work: Int64Array,
    num_gpus: int,
    rules: StepRules,
    seed: int,
    epoch: int = 0,
) -> Schedule:
    """Order the iterations of all groups, and deal each iteration's packs to the ranks.

    Price: O(slots + i log i) for i iterations. The seed decides the ranks in each iteration, so that no rank always
    has the heaviest pack.

    Args:
        pack_tokens: int64[p], tokens of each pack.
        pack_work: int64[p], work of each pack, see `plan.cost`.
        epoch: each epoch has its own order; only epoch 0 has a curriculum.
    """
    group_of = np.concatenate([np.full(len(it.slots), g) for g, it in enumerate(iterations)]).astype(np.int64)
    number = np.concatenate([np.arange(len(it.slots)) for it in iterations]).astype(np.int64)
    tokens = np.concatenate([_iteration_sums(it.slots, pack_tokens) for it in iterations])
    work = np.concatenate([_iteration_sums(it.slots, pack_work) for it in iterations])
    row_length = np.concatenate([_row_lengths(g, it, pack_tokens) for g, it in zip(groups, iterations, strict=True)])
    curriculum = rules.curriculum_steps if epoch == 0 else 0
    state = rng_state(seed, Stream.ORDER, epoch)
    order, steps = _order_and_steps(group_of, tokens, work, len(groups) - 1, rules, curriculum, state)

    num_ranks = np.array([group.num_dp_ranks(num_gpus) for group in groups], dtype=np.int64)
    first_slot = np.concatenate([[0], np.cumsum(num_ranks[group_of[order]])])
    slot_pack = np.empty(first_slot[-1], dtype=np.int64)
    state = rng_state(seed, Stream.RANKS, epoch)
    for g, group_iterations in enumerate(iterations):
        places = np.flatnonzero(group_of[order] == g)
        slots = group_iterations.slots[number[order[places]]]
        for row in slots:
            shuffle(row, state)
        slot_pack[first_slot[places][:, None] + np.arange(num_ranks[g])] = slots
    slot_iteration = np.repeat(np.arange(len(order)), num_ranks[group_of[order]])
    sp_sizes = np.array([group.sp_size for group in groups], dtype=np.int64)
    slot_sp = sp_sizes[group_of[order]][slot_iteration]
    place = np.arange(len(slot_pack)) - first_slot[slot_iteration]
    return Schedule(
        slot_iteration=slot_iteration,
        slot_pack=slot_pack,
        slot_first_rank=(place * slot_sp).astype(np.int32),
        slot_sp_size=slot_sp.astype(np.int16),
        iteration_step=steps,
        iteration_row_length=row_length[order].astype(np.int32),
    )


def _iteration_sums(slots: Int64Array, of_pack: Int64Array) -> Int64Array:
    padded = np.append(of_pack, 0)  # FILLER is -1, the appended zero
    return padded[slots].sum(axis=1)


def _row_lengths(group: Group, iterations: GroupIterations, pack_tokens: Int64Array) -> Int64Array:
    lengths = np.full(len(iterations.slots), group.capacity, dtype=np.int64)
    if iterations.num_spread:
        longest = np.append(pack_tokens, 0)[iterations.slots[-iterations.num_spread :]].max(axis=1)
        multiple = _ROW_MULTIPLE * group.sp_size
        lengths[-iterations.num_spread :] = np.minimum(-(-longest // multiple) * multiple, group.capacity)
    return lengths


def _order_and_steps(
    group_of: Int64Array,
    tokens: Int64Array,
    work: Int64Array,
    longest_group: int,
    rules: StepRules,
    curriculum_steps: int,
    state: NDArray[np.uint64],
) -> tuple[Int64Array, Int64Array]:
    """Final order of the iterations (int64[i]), and the step of each (int64[i])."""
    target = 0 if rules.global_tokens is None else rules.global_tokens
    order = interleave(rules.mix, group_of, work, state)
    short = order[group_of[order] != longest_group]
    if not curriculum_steps or not len(short):
        return order, _steps(tokens[order], target)
    steps = _steps(tokens[short], target)
    steps = steps[steps < curriculum_steps]
    first = short[: len(steps)]
    # Mix the rest again: otherwise the longest group's iterations would follow the curriculum in one block.
    later = np.flatnonzero(~np.isin(np.arange(len(order)), first))
    later = later[interleave(rules.mix, group_of[later], work[later], state)]
    return np.concatenate([first, later]), np.concatenate([steps, _steps(tokens[later], target) + (steps[-1] + 1)])


def _steps(tokens: NDArray[np.int64], target: int) -> NDArray[np.int64]:
    """Step of each iteration: a step ends when another iteration would take it further from the target."""
    steps = np.zeros(len(tokens), dtype=np.int64)
    step = total = 0
    for i, more in enumerate(tokens.tolist()):
        if i > 0 and total + more - target > target - total:
            step += 1
            total = 0
        steps[i] = step
        total += more
    return steps


def deal(order: Int64Array, num_ranks: int) -> Int64Array:
    """Iterations of consecutive packs: int64[ceil(p / ranks), ranks], the last one completed with FILLER."""
    num_iterations = -(-len(order) // num_ranks)
    slots = np.full(num_iterations * num_ranks, FILLER, dtype=np.int64)
    slots[: len(order)] = order
    return slots.reshape(num_iterations, num_ranks)
