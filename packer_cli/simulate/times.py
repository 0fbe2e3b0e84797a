"""The seconds of an epoch's slots, replicas, iterations and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.models import GpuModel
from packer_cli.plan.core.types import Int64Array, Plan, Schedule
from packer_cli.simulate.slots import GroupLayers, PadTo, SlotSeconds, choose_layers, slot_seconds


class Replicas(NamedTuple):
    """The r replicas of all iterations."""

    first: Int64Array
    """int64[r]: first slot of each in its iteration."""
    seconds: NDArray[np.float64]
    """float64[r]: its slots, one after another."""
    bubbles: NDArray[np.float64]
    """float64[r]: what its own pipeline adds."""
    waiting: NDArray[np.float64]
    """float64[r]: from then on until the slowest replica of the iteration is done."""


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """One epoch, predicted. k slots, i iterations, s steps."""

    slots: SlotSeconds
    replicas: Replicas
    iterations: NDArray[np.float64]
    """float64[i]: on one pipeline stage, until the slowest replica is done."""
    longest: Int64Array
    """int64[s]: the longest iteration of each step."""
    bubbles: NDArray[np.float64]
    """float64[s]: of the pipeline that all GPUs share where they run in lockstep, once a step."""
    step_extra: float
    """Fixed seconds of each step."""
    steps: NDArray[np.float64]
    """float64[s]: iterations, `bubbles` and `step_extra`."""
    layers: tuple[GroupLayers, ...]
    """The checkpointed layers assumed for each group."""


def epoch_times(plan: Plan, model: GpuModel, *, pad_to: PadTo, step_seconds: float, epoch: int = 0) -> EpochTimes:
    """Predict the times of an epoch; arguments, errors and price as of `simulate.epoch.simulate`."""
    schedule = plan.epochs[epoch]
    layers = tuple(choose_layers(group, model.memory) for group in plan.groups)
    slots = slot_seconds(plan, schedule, model, [each.layers for each in layers], pad_to)
    stages = np.array([group.pp_size for group in plan.groups], dtype=np.float64)[schedule.slot_group]
    first, seconds, own = _replicas(schedule, slots.total, stages - 1 if plan.lockstep == 1 else np.zeros_like(stages))
    iterations = np.zeros(schedule.num_iterations)
    np.maximum.at(iterations, schedule.slot_iteration[first], seconds + own)
    longest = _longest_iterations(schedule, iterations)
    num_bubbles = 0 if plan.lockstep == 1 else plan.groups[0].pp_size - 1  # In lockstep, all have equally many stages.
    bubbles = num_bubbles * iterations[longest]
    waiting = iterations[schedule.slot_iteration[first]] - seconds - own
    return EpochTimes(
        slots=slots,
        replicas=Replicas(first, seconds, own, waiting),
        iterations=iterations,
        longest=longest,
        bubbles=bubbles,
        step_extra=step_seconds,
        steps=index_sums(schedule.iteration_step, iterations, schedule.num_steps) + bubbles + step_seconds,
        layers=layers,
    )


def _replicas(
    schedule: Schedule, slots: NDArray[np.float64], num_bubbles: NDArray[np.float64]
) -> tuple[Int64Array, NDArray[np.float64], NDArray[np.float64]]:
    """First slot, seconds and own bubbles of replicas, from the seconds of slots (float64[k]).

    Args:
        num_bubbles: float64[k], how often a slot's replica waits for its longest slot.
    """
    first = np.flatnonzero(schedule.begins_replica)
    if len(first) == len(slots):
        return first, slots, num_bubbles * slots
    return first, np.add.reduceat(slots, first), num_bubbles[first] * np.maximum.reduceat(slots, first)


def _longest_iterations(schedule: Schedule, iterations: NDArray[np.float64]) -> Int64Array:
    """The longest iteration (int64[s]) of each step."""
    order = np.lexsort((iterations, schedule.iteration_step))
    last = np.flatnonzero(np.diff(schedule.iteration_step, append=schedule.num_steps))
    return order[last]


def index_sums(index: Int64Array, values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Sums (float64[length]) of the values with the same index."""
    sums = np.zeros(length)
    np.add.at(sums, index, values)
    return sums
