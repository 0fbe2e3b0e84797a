"""Replicas that do not wait for each other in every micro-batch (`--lockstep 1`; DDP, ZeRO-1).

Only the end of a step and a change of replicas bring all GPUs together, as in ByteScale (arXiv 2502.21231) and
Megatron's dynamic context parallelism. So the iterations of a step whose replicas are the same become one, in which
each replica runs its packs one after another. Their numbers are free: the packs of a group are dealt by time, longest
first, each to the replica with the least. A replica with nothing to do has one filler, and the others none.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.types import FILLER, Float64Array, Int64Array, Schedule


def run_freely(
    schedule: Schedule, num_groups: int, times: Float64Array | None, falling: Int64Array | None = None
) -> Schedule:
    """Merge the iterations of each step that have the same replicas. O(k log k) for k slots.

    Args:
        schedule: one slot a replica and iteration; its replicas stand by falling group.
        times: float64[p], of each pack, see `pack_times`; None leaves every pack where it is.
        falling: int64[p], of each pack, by which a replica orders its own; None for the schedule's order.
    """
    merged, iteration_step = _merge(schedule, num_groups)
    iteration, first_gpu = merged[schedule.slot_iteration], schedule.slot_first_gpu.astype(np.int64)
    if times is not None:
        first_gpu = _dealt(schedule, iteration, np.append(times, 0)[schedule.slot_pack])
    is_pack = schedule.slot_pack != FILLER
    # A filler follows its replica's packs, and stays where there is none.
    own = np.zeros(len(is_pack)) if falling is None else -np.append(falling, 0)[schedule.slot_pack]
    order = np.lexsort((own, ~is_pack, first_gpu, iteration))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (np.diff(iteration[order]) != 0) | (np.diff(first_gpu[order]) != 0)
    slots = order[begins | is_pack[order]]
    return Schedule(
        slot_iteration=iteration[slots],
        slot_pack=schedule.slot_pack[slots],
        slot_group=schedule.slot_group[slots],
        slot_first_gpu=first_gpu[slots].astype(np.int32),
        slot_row_length=schedule.slot_row_length[slots],
        iteration_step=iteration_step,
        step_window=schedule.step_window,
    )


def pack_times(
    group: NDArray[np.integer], tokens: Int64Array, work: Int64Array, linear: int, costs: GroupCosts | None
) -> Float64Array | None:
    """The load of each pack (float64[p]) that dealing evens out: seconds, or work where the seconds are not known.

    None without a linear term: by attention work alone, one long sample would weigh as much as many packs of short
    ones.

    Args:
        group: int[p]
        tokens: int64[p]
        work: int64[p], with the linear term.
        linear: tokens, see `plan.core.cost`.
        costs: of the groups, if known.
    """
    if costs is not None:
        return costs.seconds(group, work - linear * tokens, tokens)
    return work.astype(np.float64) if linear else None


def _merge(schedule: Schedule, num_groups: int) -> tuple[Int64Array, Int64Array]:
    """(the merged iteration of each, int64[i]; the step of each merged one, int64)."""
    counts = np.zeros((schedule.num_iterations, num_groups), dtype=np.int64)
    np.add.at(counts, (schedule.slot_iteration, schedule.slot_group), 1)
    _, layout = np.unique(counts, axis=0, return_inverse=True)
    step = schedule.iteration_step
    order = np.lexsort((layout.ravel(), step))
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (np.diff(step[order]) != 0) | (np.diff(layout.ravel()[order]) != 0)
    merged = np.empty(len(order), dtype=np.int64)
    merged[order] = np.cumsum(is_new) - 1
    return merged, step[order][is_new]


def _dealt(schedule: Schedule, iteration: Int64Array, times: Float64Array) -> Int64Array:
    """First GPU (int64[k]) of each slot's replica, after dealing the slots of each group again by time.

    Args:
        iteration: int64[k], the merged iterations.
        times: float64[k]; 0 for fillers, so they come last and go to the replica with the least time.
    """
    order = np.lexsort((-times, schedule.slot_group, iteration))
    key = iteration[order] * (int(schedule.slot_group.max(initial=0)) + 1) + schedule.slot_group[order]
    begins = np.append(np.flatnonzero(np.diff(key, prepend=-1)), len(key))
    dealt = np.empty(len(order), dtype=np.int64)
    dealt[order] = _deal(begins, schedule.slot_first_gpu[order].astype(np.int64), times[order])
    return dealt


@njit(cache=True)
def _deal(begins: Int64Array, first_gpu: Int64Array, times: Float64Array) -> Int64Array:
    """First GPUs (int64[k]) of slots that are dealt, run by run, to the replicas of the run.

    Args:
        begins: int64[r+1], where each run begins.
        first_gpu: int64[k], each replica of a run at least once.
        times: float64[k], falling in a run.
    """
    dealt = np.empty(len(first_gpu), dtype=np.int64)
    for run in range(len(begins) - 1):
        begin, end = begins[run], begins[run + 1]
        replicas = np.unique(first_gpu[begin:end])
        loads = np.zeros(len(replicas))
        counts = np.zeros(len(replicas), dtype=np.int64)
        for k in range(begin, end):
            least = 0
            for r in range(1, len(replicas)):
                if loads[r] < loads[least] or (loads[r] == loads[least] and counts[r] < counts[least]):
                    least = r
            loads[least] += times[k]
            counts[least] += 1
            dealt[k] = replicas[least]
    return dealt
