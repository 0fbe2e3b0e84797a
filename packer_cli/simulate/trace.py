"""A timeline as trace events, which Perfetto and Chrome's tracing show: a process a node, a thread a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packer_cli.plan.core.csr import pack_tokens_and_work
from packer_cli.plan.core.types import FILLER, Int64Array, Plan
from packer_cli.simulate.epoch import PARTS
from packer_cli.simulate.figures import group_name
from packer_cli.simulate.timeline import Timeline

Event = dict[str, Any]

SCHEDULE = 0
"""The process whose threads are the steps and the iterations; nodes count from 1."""


def trace_events(plan: Plan, timeline: Timeline, gpus_per_node: int, epoch: int = 0) -> Iterator[Event]:
    """The events of a timeline in the trace-event format; times are in microseconds, to the nanosecond.

    Every micro-batch is a complete event that holds its parts; names of processes and threads are metadata. Price: one
    event for each GPU of each of the timeline's.

    Args:
        gpus_per_node: GPUs that share a process.
    """
    yield from _names(plan.num_gpus, gpus_per_node)
    yield from _steps_and_iterations(plan, timeline, epoch)
    schedule = plan.epochs[epoch]
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
    """The name of a process or thread, and its place among others."""
    place = process if what == "process" else thread
    for key, args in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        yield {"ph": "M", "name": key, "pid": process, "tid": thread, "args": args}


def _steps_and_iterations(plan: Plan, timeline: Timeline, epoch: int) -> Iterator[Event]:
    step_of: Int64Array = plan.epochs[epoch].iteration_step[timeline.iterations]
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
    """A complete event. Its end is rounded as the next one's start is, so that they meet."""
    begin, end = round(start * 1e6, 3), round((start + seconds) * 1e6, 3)
    times = {"ts": begin, "dur": round(end - begin, 3)}
    return {"ph": "X", "name": name, "cat": kind, **times, "pid": process, "tid": thread, "args": args}
