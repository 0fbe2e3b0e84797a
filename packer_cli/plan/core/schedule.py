"""Schedules slots and steps: when and on which GPUs each pack runs.

Strategies give iterations without an order. The first `curriculum_steps` steps take only the iterations below the
longest group or, where all have packs of it, the lighter half (HBP section 4.3: 500 steps; 100 already help; table 7
for one group). Then all alternate. A step takes consecutive iterations. `alternate` shuffles all of them, so a step's
share of each group and of long samples varies by chance. `stratify` is proportionate stratified sampling: every
stretch of the order has the groups, and within a group the light and heavy iterations, in the proportions of the whole
epoch. Price of both: O(i log i) for i iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.iterations import Iterations
from packer_cli.plan.core.streams import Stream, next_uint64, rng_state, shuffle, shuffled
from packer_cli.plan.core.types import Int16Array, Int32Array, Int64Array, Schedule, UInt64Array, as_ids


@dataclass(frozen=True, kw_only=True)
class StepRules:
    """Rules by which iterations become optimizer steps."""

    global_tokens: int | None = None
    """Tokens per step over all ranks: a step takes iterations until it reaches them; None: one iteration per step."""
    curriculum_steps: int = 0
    """Steps at the start of the first epoch that take only the groups below the longest; of one group, the iterations
    with the least work."""
    curriculum_share: float = 1.0
    """Most of the iterations that the curriculum takes first of those it could, so that some are left to mix."""
    mix: StepMix = "alternate"
    """The choice of iterations that share a step."""
    longest_first: bool = False
    """A step runs its micro-batches by falling work, so that a pipeline has fewer bubbles."""
    evens_steps: bool = False
    """A strategy that packs by group takes packs of like work into a step, and evens them out together: a pipeline
    waits for the longest of its micro-batches."""

    def iterations_a_step(self, group: Group, num_gpus: int) -> int:
        """Count the iterations of full packs that are nearest to the tokens of a step."""
        if self.global_tokens is None:
            return 1
        return max(1, round(self.global_tokens / (group.capacity * group.num_dp_ranks(num_gpus))))


def schedule_epoch(
    iterations: Iterations,
    pack_tokens: Int64Array,
    pack_work: Int64Array,
    num_groups: int,
    rules: StepRules,
    seed: int,
    epoch: int = 0,
) -> Schedule:
    """Order the iterations, and deal each iteration's packs to the ranks.

    Price: O(slots + i log i) for i iterations. The seed decides the ranks in each iteration, so that no rank always
    has the heaviest pack.

    Args:
        pack_tokens: int64[p], tokens of each pack.
        pack_work: int64[p], work of each pack, see `plan.core.cost`.
        epoch: each epoch has its own order; only epoch 0 has a curriculum.
    """
    offsets = iterations.offsets
    group_of = _of_iterations(np.maximum, iterations.slot_group.astype(np.int64), offsets)
    tokens, work = (
        _of_iterations(np.add, np.append(of_pack, 0)[iterations.slot_pack], offsets)  # FILLER is -1, the appended zero
        for of_pack in (pack_tokens, pack_work)
    )
    curriculum = rules.curriculum_steps if epoch == 0 else 0
    state = rng_state(seed, Stream.ORDER, epoch)
    if iterations.step is None:
        order, steps = _order_and_steps(group_of, tokens, work, num_groups - 1, rules, curriculum, state)
    else:
        order, steps = _order_of_steps(iterations.step, epoch, state)
    if rules.longest_first:
        order = order[np.lexsort((-work[order], steps))]
    schedule = iterations.run(order, steps)
    if not iterations.is_dealt:
        begins = np.searchsorted(schedule.slot_iteration, np.arange(len(order) + 1))
        state = rng_state(seed, Stream.RANKS, epoch)
        _deal_to_ranks(schedule.slot_pack, schedule.slot_group, begins, num_groups, state)
    return schedule


def _of_iterations(combine: np.ufunc, of_slot: Int64Array, offsets: Int64Array) -> Int64Array:
    return combine.reduceat(of_slot, offsets[:-1]) if len(of_slot) else of_slot


@njit(cache=True)
def _deal_to_ranks(
    slot_pack: Int32Array, slot_group: Int16Array, offsets: Int64Array, num_groups: int, state: UInt64Array
) -> None:
    """Shuffle the packs of each iteration among the replicas of their group, which stand side by side."""
    for group in range(num_groups):
        for i in range(len(offsets) - 1):
            begin = offsets[i]
            while begin < offsets[i + 1] and slot_group[begin] != group:
                begin += 1
            end = begin
            while end < offsets[i + 1] and slot_group[end] == group:
                end += 1
            shuffle(slot_pack[begin:end], state)


def _order_and_steps(
    group_of: Int64Array,
    tokens: Int64Array,
    work: Int64Array,
    longest_group: int,
    rules: StepRules,
    curriculum_steps: int,
    state: UInt64Array,
) -> tuple[Int32Array, Int64Array]:
    """Order the iterations; return their final order (int32[i]), and the step of each (int64[i])."""
    target = 0 if rules.global_tokens is None else rules.global_tokens
    order = interleave(rules.mix, group_of, work, state)
    if not curriculum_steps or not len(order):
        return order, _steps(tokens[order], target)
    is_short = group_of != longest_group
    if not is_short.any():
        is_short[np.argsort(work, kind="stable")[: -(-len(work) // 2)]] = True
    short = order[is_short[order]]
    steps = _steps(tokens[short], target)
    most = steps[int(rules.curriculum_share * len(short)) - 1] + 1 if rules.curriculum_share * len(short) >= 1 else 1
    steps = steps[steps < min(curriculum_steps, most)]
    first = short[: len(steps)]
    # Mix the rest again: otherwise the longest group's iterations would follow the curriculum in one block.
    later = np.flatnonzero(~np.isin(np.arange(len(order)), first))
    later = later[interleave(rules.mix, group_of[later], work[later], state)]
    return as_ids(np.concatenate([first, later])), np.concatenate(
        [steps, _steps(tokens[later], target) + (steps[-1] + 1)]
    )


def _order_of_steps(step: Int64Array, epoch: int, state: UInt64Array) -> tuple[Int32Array, Int64Array]:
    """Order iterations whose steps are decided: as they are in the first epoch, shuffled in later ones."""
    if epoch:
        step = shuffled(int(step.max(initial=-1)) + 1, state)[step].astype(np.int64)
    order = np.argsort(step, kind="stable")
    return as_ids(order), step[order]


def _steps(tokens: Int64Array, target: int) -> Int64Array:
    """Find the step of each iteration: a step ends when another iteration would take it further from the target."""
    steps = np.zeros(len(tokens), dtype=np.int64)
    step = total = 0
    for i, more in enumerate(tokens.tolist()):
        if i > 0 and total + more - target > target - total:
            step += 1
            total = 0
        steps[i] = step
        total += more
    return steps


StepMix = Literal["alternate", "stratified"]

NUM_STRATA = 10
"""Classes of work in a group; within a class the order is random. More classes gain nothing, and leave fewer
iterations to draw from, so that the same ones would be neighbours in every epoch."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: among the multiples of all irrationals, those of this one are spread most evenly."""


def interleave(mix: StepMix, group: Int64Array, work: Int64Array, state: UInt64Array) -> Int32Array:
    """Order the iterations (int32[i]).

    Args:
        group: int64[i], group of each.
        work: int64[i], work of each, see `plan.core.cost`.
        state: uint64[1], advanced.
    """
    return stratify(group, work, state) if mix == "stratified" else alternate(len(group), state)


def alternate(num: int, state: UInt64Array) -> Int32Array:
    """Shuffle all iterations by the seed."""
    order = np.arange(num, dtype=np.int32)
    shuffle(order, state)
    return order


def stratify(group: Int64Array, work: Int64Array, state: UInt64Array) -> Int32Array:
    """Space each group's iterations evenly over the epoch, from a random start, with light and heavy ones mixed.

    A stretch that is a share x of the epoch holds a share x of each group's iterations, to within one iteration.
    """
    place = np.empty(len(group), dtype=np.float64)
    for g in range(int(group.max(initial=-1)) + 1):
        members = np.flatnonzero(group == g)
        order = members[spread_by_rank(work[members], state)]
        start = (int(next_uint64(state)) >> 11) * 2.0**-53
        place[order] = (np.arange(len(members)) + start) / max(1, len(members))
    return as_ids(np.argsort(place, kind="stable"))


def spread_by_rank(values: Int64Array, state: UInt64Array) -> Int64Array:
    """Return an order (int64[n]) in which every stretch has values of all sizes.

    The k-th is taken near the quantile `frac(k * golden ratio + start)` (a Kronecker sequence, whose stretches are all
    of low discrepancy; Niederreiter, "Random Number Generation and Quasi-Monte Carlo Methods", 1992, section 3.1), at
    random among those of one of `NUM_STRATA` classes of equal size.
    """
    n = len(values)
    by_rank = shuffled(n, state)  # equal values in random order
    by_rank = by_rank[np.argsort(values[by_rank], kind="stable")]
    stratum = np.arange(n) * NUM_STRATA // max(1, n)
    by_rank = by_rank[np.lexsort((shuffled(n, state), stratum))]
    quantile = np.arange(n, dtype=np.uint64) * _GOLDEN + np.uint64(next_uint64(state))
    order = np.empty(n, dtype=np.int64)
    order[np.argsort(quantile, kind="stable")] = by_rank
    return order
