"""Adds up the seconds of slots to iterations, steps and an epoch, and the GPU-seconds of each part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.cost.models import GpuModel
from packer_cli.plan.core.types import Float64Array, Int64Array, Plan, Schedule
from packer_cli.simulate.slots import SLOT_PARTS, EpochTimes, PadTo, epoch_times, index_sums

PARTS = ("compute", "recompute", "communication", "padding", "waiting", "constant", "bubbles", "sync", "steps")
"""Parts of a GPU's time: the columns of `Simulation.gpu_seconds`."""


@dataclass(frozen=True, kw_only=True)
class Simulation(EpochTimes):
    """One epoch, predicted, and what its GPUs do. g groups."""

    gpu_seconds: Float64Array
    """float64[g, parts]: time of all GPUs together, by group and by `PARTS`; the sum is `seconds * num_gpus`."""
    group_tokens: Int64Array
    """int64[g]: real tokens, without padding."""
    group_iterations: Int64Array
    """int64[g]: iterations that hold slots of the group."""
    group_iteration_seconds: Float64Array
    """float64[g]: mean seconds of these iterations; 0 if there are none."""


def simulate(plan: Plan, model: GpuModel, *, pad_to: PadTo = "multiple", step_seconds: float = 0.0) -> Simulation:
    """Predict the first epoch of the plan.

    An iteration takes as long as its slowest replica: its GPUs run their slots, which compute and communicate, and
    then wait for the others. A pipeline runs its micro-batches in their order by 1F1B, see `plan.kernels.pipeline`.
    Where all GPUs run in lockstep these are the iterations of a step; else the slots of a replica in an iteration,
    which begins when its own GPUs are done with the one before, whatever others do (`plan.kernels.events`).
    Where no micro-batch gathers weights (TP, PP, `lockstep` 1), a step ends with gradients and weights.

    Price: O(pieces + slots), times the stages.

    Args:
        pad_to: what the loader pads rows to.
        step_seconds: fixed seconds of each optimizer step (the optimizer, checkpoints), which `model` does not
            predict.

    Raises:
        ConfigError: the plan has a degree that the model does not know.
    """
    schedule = plan.epochs[0]
    times = epoch_times(plan, model, pad_to=pad_to, step_seconds=step_seconds)
    slots = times.slots
    held, group = np.divmod(np.unique(schedule.slot_iteration * len(plan.groups) + slots.group), len(plan.groups))
    group_iterations = np.bincount(group, minlength=len(plan.groups))
    group_seconds = index_sums(group, times.iteration_seconds[held], len(plan.groups))
    return Simulation(
        **vars(times),
        gpu_seconds=_split(plan, schedule, times),
        group_tokens=index_sums(slots.group, slots.tokens, len(plan.groups)),
        group_iterations=group_iterations,
        group_iteration_seconds=group_seconds / np.maximum(1, group_iterations),
    )


def _split(plan: Plan, schedule: Schedule, times: EpochTimes) -> Float64Array:
    """Split GPU-seconds (float64[g, parts]) by group and part.

    The fixed seconds of a step, and the bubbles where all GPUs share a pipeline's, go to the longest group of the
    step's longest iteration.
    """
    slots, replicas, longest = times.slots, times.replicas, times.longest
    gpus = plan.slot_gpus(schedule).astype(np.float64)
    group_of = np.zeros(schedule.num_iterations, dtype=np.int64)  # The longest group in each iteration.
    np.maximum.at(group_of, schedule.slot_iteration, slots.group)

    def of_replicas(seconds: Float64Array) -> Float64Array:
        return index_sums(slots.group[replicas.first], seconds * gpus[replicas.first], len(plan.groups))

    def of_steps(seconds: Float64Array) -> Float64Array:
        return index_sums(group_of[longest], seconds * plan.num_gpus, len(plan.groups))

    waiting = of_replicas(replicas.waiting)
    total = waiting.sum()
    if total > 0:  # Where iterations overlap, GPUs wait less in all of them.
        waiting *= max(0.0, 1 - float(times.overlap.sum()) * plan.num_gpus / total)
    of_slots = (index_sums(slots.group, seconds * gpus, len(plan.groups)) for seconds in slots.parts)
    parts = dict(zip(SLOT_PARTS, of_slots, strict=True)) | {
        "waiting": waiting,
        "bubbles": of_steps(times.bubbles) + of_replicas(replicas.bubbles),
        "sync": of_steps(times.sync),
        "steps": of_steps(np.full(len(longest), times.step_extra)),
    }
    return np.stack([parts[name] for name in PARTS], axis=1)
