"""When each GPU does what: some iterations of a predicted epoch, laid end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.plan.core.csr import pack_tokens_and_work
from packer_cli.plan.core.types import FILLER, Int64Array, Plan
from packer_cli.simulate.epoch import PARTS, SLOT_PARTS, Simulation
from packer_cli.simulate.figures import group_name

_LEAST = 1e-9
"""Seconds of an event; what is shorter is left out, such as the waiting that rounding leaves of none."""


class Timeline(NamedTuple):
    """Tables of some iterations; seconds count from the start of the first."""

    iterations: Any
    """`number` in the epoch, rising, `start`, `seconds` until its slowest replica is done, and `tail`, the seconds
    that a step adds after its last iteration; 0 after others."""
    slots: Any
    """`number` in the schedule, `start` and `seconds` of each micro-batch."""
    events: Any
    """Doings of a replica's GPUs from one moment to another: `part`, the index of `PARTS`, `start`, `seconds`,
    `first_gpu`, `num_gpus`, `iteration`, its number in the epoch, and `slot`, the number in the schedule; -1 for what
    is part of no micro-batch."""


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
    drawn = _table(columns, "part,start,seconds,first_gpu,num_gpus,iteration,slot")
    drawn = drawn[np.lexsort((drawn.start, drawn.first_gpu))]
    return Timeline(
        _table((iterations, start, seconds, tail), "number,start,seconds,tail"),
        _table((slots, slot_start, total), "number,start,seconds"),
        drawn[drawn.seconds > _LEAST],
    )


def _table(columns: Sequence[NDArray[Any]], names: str) -> Any:
    return np.rec.fromarrays(columns, formats=[column.dtype for column in columns], names=names)


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
    for slot, start, seconds in timeline.slots.tolist():
        args = described(int(schedule.slot_iteration[slot]), slot)
        name = f"pack {args['pack']}" if "pack" in args else "filler"
        first = int(schedule.slot_first_gpu[slot])
        for gpu in range(first, first + int(gpus[slot])):
            yield _event(name, "micro-batch", start, seconds, 1 + gpu // gpus_per_node, gpu, args)
    for part, start, seconds, first, num, iteration, slot in timeline.events.tolist():
        args = described(iteration, slot)
        for gpu in range(first, first + num):
            yield _event(PARTS[part], PARTS[part], start, seconds, 1 + gpu // gpus_per_node, gpu, args)


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
    iterations = timeline.iterations
    step_of: Int64Array = plan.epochs[0].iteration_step[iterations.number]
    end = iterations.start + iterations.seconds + iterations.tail
    first: Sequence[int] = np.flatnonzero(np.diff(step_of, prepend=-1)).tolist()
    for begin, stop in zip(first, [*first[1:], len(step_of)], strict=True):
        start, step = float(iterations.start[begin]), int(step_of[begin])
        args = {"step": step, "iterations": stop - begin}
        yield _event(f"step {step}", "step", start, float(end[stop - 1]) - start, SCHEDULE, 0, args)
    for (number, start, seconds, _), step in zip(iterations.tolist(), step_of.tolist(), strict=True):
        args = {"step": step, "iteration": number}
        yield _event(f"iteration {number}", "iteration", start, seconds, SCHEDULE, 1, args)


def _event(name: str, kind: str, start: float, seconds: float, process: int, thread: int, args: Event) -> Event:
    """Make a complete event. Its end is rounded as the next one's start is, so that they meet."""
    begin, end = round(start * 1e6, 3), round((start + seconds) * 1e6, 3)
    times = {"ts": begin, "dur": round(end - begin, 3)}
    return {"ph": "X", "name": name, "cat": kind, **times, "pid": process, "tid": thread, "args": args}
