"""When each GPU does what: some iterations of a predicted epoch, laid end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int8Array, Int64Array, Plan
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.times import EpochTimes

_OF_SLOTS = ("compute", "recompute", "communication", "padding", "constant")
"""The parts of a micro-batch. In truth they alternate in every layer; here each is drawn once, in this order."""

_LEAST = 1e-9
"""Seconds of an event; what is shorter is left out, such as the waiting that rounding leaves of none."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """n iterations with m micro-batches, and e events: what the GPUs of a replica do from one moment to another.

    Seconds count from the start of the first iteration.
    """

    iterations: Int64Array
    """int64[n]: their numbers in the epoch, rising."""
    iteration_start: NDArray[np.float64]
    """float64[n]"""
    iteration_seconds: NDArray[np.float64]
    """float64[n]: until its slowest replica is done."""
    tail_seconds: NDArray[np.float64]
    """float64[n]: what a step adds after its last iteration; 0 after others."""
    slots: Int64Array
    """int64[m]: their numbers in the schedule."""
    slot_start: NDArray[np.float64]
    """float64[m]"""
    slot_seconds: NDArray[np.float64]
    """float64[m]"""
    part: Int8Array
    """int8[e]: index of `PARTS`."""
    start: NDArray[np.float64]
    """float64[e]"""
    seconds: NDArray[np.float64]
    """float64[e]"""
    first_gpu: Int64Array
    """int64[e]"""
    num_gpus: Int64Array
    """int64[e]"""
    iteration: Int64Array
    """int64[e]: number in the epoch."""
    slot: Int64Array
    """int64[e]: number in the schedule; -1 for what is part of no micro-batch."""


def timeline(plan: Plan, times: EpochTimes, iterations: Int64Array, epoch: int = 0) -> Timeline:
    """Lay iterations end to end, each with its replicas side by side. Price: O(slots).

    The events of a GPU neither overlap nor leave gaps: they add up to the iterations, and to what steps add after
    their last iterations.

    Args:
        times: of the plan's epoch.
        iterations: int64[n], rising.
    """
    schedule = plan.epochs[epoch]
    step = schedule.iteration_step[iterations]
    is_last = np.diff(schedule.iteration_step, append=schedule.num_steps)[iterations] > 0
    bubbles = np.where(is_last, times.bubbles[step], 0.0)
    extra = np.where(is_last, times.step_extra, 0.0)
    seconds, tail = times.iterations[iterations], bubbles + extra
    start = np.cumsum(seconds + tail) - seconds - tail

    place = np.full(schedule.num_iterations, -1)
    place[iterations] = np.arange(len(iterations))
    slots = np.flatnonzero(place[schedule.slot_iteration] >= 0)
    begin, total = start[place[schedule.slot_iteration[slots]]], times.slots.total[slots]
    first = np.flatnonzero(schedule.begins_replica[slots])
    before = np.cumsum(total) - total
    slot_start = begin + before - np.repeat(before[first], np.diff(first, append=len(slots)))

    gpus = plan.slot_gpus(schedule)
    first_gpu = schedule.slot_first_gpu.astype(np.int64)
    events = []

    def add(part: str, start: NDArray[np.float64], seconds: NDArray[np.float64], of: Int64Array, slot: Any) -> None:
        number = np.full(len(of), PARTS.index(part))
        iteration = schedule.slot_iteration[of]
        events.append((number, start, seconds, first_gpu[of], gpus[of], iteration, np.broadcast_to(slot, len(of))))

    done = slot_start.copy()
    for name in _OF_SLOTS:
        taken = getattr(times.slots, name)[slots]
        add(name, done, taken, slots, slots)
        done = done + taken
    replicas = np.searchsorted(times.replicas.first, slots[first])
    end = begin[first] + times.replicas.seconds[replicas]
    own = times.replicas.bubbles[replicas]
    add("bubbles", end, own, slots[first], -1)
    add("waiting", end + own, times.replicas.waiting[replicas], slots[first], -1)
    whole = np.zeros(len(iterations), dtype=np.int64), np.full(len(iterations), plan.num_gpus), iterations
    for name, since, taken in (("bubbles", start + seconds, bubbles), ("steps", start + seconds + bubbles, extra)):
        number = np.full(len(iterations), PARTS.index(name))
        events.append((number, since, taken, *whole, np.full(len(iterations), -1)))

    part, since, taken, *rest = (np.concatenate(column) for column in zip(*events, strict=True))
    order = np.lexsort((since, rest[0]))
    order = order[taken[order] > _LEAST]
    return Timeline(
        iterations=iterations,
        iteration_start=start,
        iteration_seconds=seconds,
        tail_seconds=tail,
        slots=slots,
        slot_start=slot_start,
        slot_seconds=total,
        part=part[order].astype(np.int8),
        start=since[order],
        seconds=taken[order],
        first_gpu=rest[0][order],
        num_gpus=rest[1][order],
        iteration=rest[2][order],
        slot=rest[3][order],
    )


def iterations_of_steps(plan: Plan, num_steps: int, epoch: int = 0) -> Int64Array:
    """The iterations (int64) of the first steps of an epoch."""
    return np.flatnonzero(plan.epochs[epoch].iteration_step < num_steps)
