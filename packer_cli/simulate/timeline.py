"""When each GPU does what: some iterations of a predicted epoch, laid end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.plan.core.csr import pack_tokens_and_work
from packer_cli.plan.core.types import FILLER, Float64Array, Int8Array, Int64Array, Plan
from packer_cli.simulate.epoch import PARTS, SLOT_PARTS, Simulation
from packer_cli.simulate.figures import group_name

_LEAST = 1e-9
"""Seconds of an event; what is shorter is left out, such as the waiting that rounding leaves of none."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """n iterations with m micro-batches, and e events: what the GPUs of a replica do from one moment to another.

    Seconds count from the start of the first iteration.
    """

    iterations: Int64Array
    """int64[n]: their numbers in the epoch, rising."""
    iteration_start: Float64Array
    """float64[n]"""
    iteration_seconds: Float64Array
    """float64[n]: until its slowest replica is done."""
    tail_seconds: Float64Array
    """float64[n]: what a step adds after its last iteration; 0 after others."""
    slots: Int64Array
    """int64[m]: their numbers in the schedule."""
    slot_start: Float64Array
    """float64[m]"""
    slot_seconds: Float64Array
    """float64[m]"""
    part: Int8Array
    """int8[e]: index of `PARTS`."""
    start: Float64Array
    """float64[e]"""
    seconds: Float64Array
    """float64[e]"""
    first_gpu: Int64Array
    """int64[e]"""
    num_gpus: Int64Array
    """int64[e]"""
    iteration: Int64Array
    """int64[e]: number in the epoch."""
    slot: Int64Array
    """int64[e]: number in the schedule; -1 for what is part of no micro-batch."""


def timeline(times: Simulation, iterations: Int64Array) -> Timeline:
    """Lay iterations end to end, each with its replicas side by side. Price: O(slots).

    Those of a step that overlap, see `Simulation.overlap`, are drawn one after another.

    The parts of a micro-batch alternate in every layer; here each is drawn once, in the order of `SLOT_PARTS`. The
    events of a GPU neither overlap nor leave gaps: they add up to the iterations, and to what steps add after
    their last iterations.

    Args:
        iterations: int64[n], rising.
    """
    plan, schedule = times.plan, times.schedule
    step = schedule.iteration_step[iterations]
    is_last = np.diff(schedule.iteration_step, append=schedule.num_steps)[iterations] > 0
    bubbles = np.where(is_last, times.bubbles[step], 0.0)
    sync = np.where(is_last, times.sync[step], 0.0)
    extra = np.where(is_last, times.step_extra, 0.0)
    seconds, tail = times.iteration_seconds[iterations], bubbles + sync + extra
    start = np.cumsum(seconds + tail) - seconds - tail

    place = np.full(schedule.num_iterations, -1)
    place[iterations] = np.arange(len(iterations))
    slots = np.flatnonzero(place[schedule.slot_iteration] >= 0)
    begin, total = start[place[schedule.slot_iteration[slots]]], times.slots.total[slots]
    first = np.flatnonzero(schedule.begins_replica[slots])
    before = np.cumsum(total) - total
    slot_start = begin + before - np.repeat(before[first], np.diff(first, append=len(slots)))

    events: list[tuple[NDArray[Any], ...]] = []

    def add(part: str, *columns: ArrayLike) -> None:
        events.append(np.broadcast_arrays(np.int8(PARTS.index(part)), *columns))

    ran_by = schedule.slot_first_gpu.astype(np.int64), plan.slot_gpus(schedule), schedule.slot_iteration
    of_slots = [column[slots] for column in ran_by]
    done = slot_start
    for name, taken in zip(SLOT_PARTS, times.slots.parts[:, slots], strict=True):
        add(name, done, taken, *of_slots, slots)
        done = done + taken
    of_replicas = [column[first] for column in of_slots]
    replicas = np.searchsorted(times.replicas.first, slots[first])
    end = begin[first] + times.replicas.seconds[replicas]
    own = times.replicas.bubbles[replicas]
    add("bubbles", end, own, *of_replicas, -1)
    add("waiting", end + own, times.replicas.waiting[replicas], *of_replicas, -1)
    end = start + seconds
    for name, taken in (("bubbles", bubbles), ("sync", sync), ("steps", extra)):
        add(name, end, taken, 0, plan.num_gpus, iterations, -1)
        end = end + taken

    columns = [np.concatenate(column) for column in zip(*events, strict=True)]
    _, since, lasts, first_gpu, *_ = columns
    order = np.lexsort((since, first_gpu))
    order = order[lasts[order] > _LEAST]
    names = ("part", "start", "seconds", "first_gpu", "num_gpus", "iteration", "slot")
    return Timeline(
        iterations=iterations,
        iteration_start=start,
        iteration_seconds=seconds,
        tail_seconds=tail,
        slots=slots,
        slot_start=slot_start,
        slot_seconds=total,
        **{name: column[order] for name, column in zip(names, columns, strict=True)},
    )


def iterations_of_steps(plan: Plan, num_steps: int) -> Int64Array:
    """Return the iterations (int64) of the first steps of the first epoch."""
    return np.flatnonzero(plan.epochs[0].iteration_step < num_steps)


Event = dict[str, Any]

SCHEDULE = 0
"""The process whose threads are the steps and the iterations; nodes count from 1."""


def trace_events(plan: Plan, timeline: Timeline, gpus_per_node: int) -> Iterator[Event]:
    """Yield a timeline's events in the trace-event format; times are in microseconds, to the nanosecond.

    Every micro-batch is a complete event that holds its parts; names of processes and threads are metadata. Price: one
    event for each GPU of each of the timeline's.

    Args:
        gpus_per_node: GPUs that share a process.
    """
    yield from _names(plan.num_gpus, gpus_per_node)
    yield from _steps_and_iterations(plan, timeline)
    schedule = plan.epochs[0]
    tokens, _ = pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length)
    samples = np.diff(plan.packs.offsets)

    def described(iteration: int, slot: int) -> Event:
        args: Event = {"step": int(schedule.iteration_step[iteration]), "iteration": iteration}
        if slot < 0:
            return args
        args["group"] = group_name(plan.groups[schedule.slot_group[slot]])
        pack = int(schedule.slot_pack[slot])
        if pack == FILLER:
            return args | {"filler": True}
        return args | {"pack": pack, "tokens": int(tokens[pack]), "samples": int(samples[pack])}

    gpus = plan.slot_gpus(schedule)
    for slot, start, seconds in _rows(timeline.slots, timeline.slot_start, timeline.slot_seconds):
        args = described(int(schedule.slot_iteration[slot]), slot)
        name = f"pack {args['pack']}" if "pack" in args else "filler"
        first = int(schedule.slot_first_gpu[slot])
        for gpu in range(first, first + int(gpus[slot])):
            yield _event(name, "micro-batch", start, seconds, 1 + gpu // gpus_per_node, gpu, args)
    columns = (timeline.part, timeline.start, timeline.seconds, timeline.first_gpu, timeline.num_gpus)
    for part, start, seconds, first, num, iteration, slot in _rows(*columns, timeline.iteration, timeline.slot):
        args = described(iteration, slot)
        for gpu in range(first, first + num):
            yield _event(PARTS[part], PARTS[part], start, seconds, 1 + gpu // gpus_per_node, gpu, args)


def _rows(*columns: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _names(num_gpus: int, gpus_per_node: int) -> Iterator[Event]:
    yield from _named("process", "schedule", SCHEDULE)
    yield from _named("thread", "steps", SCHEDULE, 0)
    yield from _named("thread", "iterations", SCHEDULE, 1)
    for node, first in enumerate(range(0, num_gpus, gpus_per_node)):
        last = min(first + gpus_per_node, num_gpus) - 1
        yield from _named("process", f"node {node} (GPUs {first} to {last})", 1 + node)
        for gpu in range(first, last + 1):
            yield from _named("thread", f"GPU {gpu}", 1 + node, gpu)


def _named(what: str, name: str, process: int, thread: int = 0) -> Iterator[Event]:
    """Yield the name of a process or thread, and its place among others."""
    place = process if what == "process" else thread
    for key, args in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        yield {"ph": "M", "name": key, "pid": process, "tid": thread, "args": args}


def _steps_and_iterations(plan: Plan, timeline: Timeline) -> Iterator[Event]:
    step_of: Int64Array = plan.epochs[0].iteration_step[timeline.iterations]
    end = timeline.iteration_start + timeline.iteration_seconds + timeline.tail_seconds
    first: Sequence[int] = np.flatnonzero(np.diff(step_of, prepend=-1)).tolist()
    for begin, stop in zip(first, [*first[1:], len(step_of)], strict=True):
        start, step = float(timeline.iteration_start[begin]), int(step_of[begin])
        args = {"step": step, "iterations": stop - begin}
        yield _event(f"step {step}", "step", start, float(end[stop - 1]) - start, SCHEDULE, 0, args)
    for number, start, seconds, step in _rows(
        timeline.iterations, timeline.iteration_start, timeline.iteration_seconds, step_of
    ):
        args = {"step": step, "iteration": number}
        yield _event(f"iteration {number}", "iteration", start, seconds, SCHEDULE, 1, args)


def _event(name: str, kind: str, start: float, seconds: float, process: int, thread: int, args: Event) -> Event:
    """Make a complete event. Its end is rounded as the next one's start is, so that they meet."""
    begin, end = round(start * 1e6, 3), round((start + seconds) * 1e6, 3)
    times = {"ts": begin, "dur": round(end - begin, 3)}
    return {"ph": "X", "name": name, "cat": kind, **times, "pid": process, "tid": thread, "args": args}
