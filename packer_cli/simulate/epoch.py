"""Adds up the seconds of slots to iterations, steps and an epoch, and the GPU-seconds of each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.models import GpuModel
from packer_cli.plan.types import Int64Array, Plan, Schedule
from packer_cli.simulate.layers import GroupLayers, choose_layers
from packer_cli.simulate.slots import PadTo, SlotSeconds, slot_seconds

PARTS = ("compute", "recompute", "communication", "padding", "waiting", "constant", "bubbles", "steps")
"""How a GPU spends its time: the columns of `Simulation.gpu_seconds`."""
_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One epoch, predicted. i iterations, s steps, g groups."""

    iteration_seconds: NDArray[np.float64]
    """float64[i]: time of each iteration on one pipeline stage, until its slowest replica is done."""
    step_seconds: NDArray[np.float64]
    """float64[s]: time of each step: iterations, pipeline bubbles and the fixed seconds of a step."""
    gpu_seconds: NDArray[np.float64]
    """float64[g, parts]: time of all GPUs together, by group and by `PARTS`; the sum is `seconds * num_gpus`."""
    group_tokens: Int64Array
    """int64[g]: real tokens, without padding."""
    group_iterations: Int64Array
    """int64[g]: iterations that hold slots of the group."""
    group_iteration_seconds: NDArray[np.float64]
    """float64[g]: mean seconds of these iterations; 0 if there are none."""
    layers: tuple[GroupLayers, ...]
    """The checkpointed layers assumed for each group."""
    num_gpus: int
    """GPUs that train."""

    @property
    def seconds(self) -> float:
        """Seconds of the epoch."""
        return float(self.step_seconds.sum())

    @property
    def gpu_days(self) -> float:
        """GPU-days of the epoch: days times GPUs."""
        return self.seconds * self.num_gpus / _DAY

    @property
    def tokens_per_gpu_second(self) -> float:
        """Real tokens per second and GPU."""
        total = self.seconds * self.num_gpus
        return float(self.group_tokens.sum()) / total if total else 0.0

    @property
    def useful(self) -> float:
        """Share of the GPUs' time spent computing real tokens for the first time.

        It is the epoch's MFU divided by the MFU of that computation.
        """
        total = float(self.gpu_seconds.sum())
        return float(self.gpu_seconds[:, 0].sum()) / total if total else 0.0


def simulate(
    plan: Plan,
    model: GpuModel,
    *,
    pad_to: PadTo = "multiple",
    step_seconds: float = 0.0,
    epoch: int = 0,
) -> Simulation:
    """Predict an epoch of the plan.

    An iteration takes as long as its slowest replica: its GPUs run their slots, which compute and communicate, and
    then wait for the others. On a pipeline of P stages, micro-batches of T_1..T_v seconds a stage take
    `sum T_j + (P - 1) max T_j`: Hydraulis' `sum + (P - 1) max` (arXiv 2412.07894, stage 1), and for equal ones its
    `(max cost + c) (P - 1 + v)` (stage 2). Where all GPUs run in lockstep these are the iterations of a step; else
    the slots of a replica in an iteration.

    Price: O(pieces + slots).

    Args:
        pad_to: what the loader pads rows to.
        step_seconds: fixed seconds of each optimizer step (gradient sync, optimizer), which `model` does not predict.

    Raises:
        ConfigError: the plan has a degree that the model does not know.
    """
    schedule = plan.epochs[epoch]
    layers = tuple(choose_layers(group, model.memory) for group in plan.groups)
    slots = slot_seconds(plan, schedule, model, [each.layers for each in layers], pad_to)
    stages = np.array([group.pp_size for group in plan.groups], dtype=np.float64)[schedule.slot_group]
    replicas = _replicas(schedule, slots.total, stages - 1 if plan.lockstep == 1 else np.zeros_like(stages))
    iterations = np.zeros(schedule.num_iterations)
    np.maximum.at(iterations, schedule.slot_iteration[replicas.first], replicas.seconds + replicas.bubbles)
    longest = _longest_iterations(schedule, iterations)
    num_bubbles = 0 if plan.lockstep == 1 else plan.groups[0].pp_size - 1  # In lockstep, all have equally many stages.
    bubbles = num_bubbles * iterations[longest]
    steps = _sums(schedule.iteration_step, iterations, schedule.num_steps)
    held, group = np.divmod(np.unique(schedule.slot_iteration * len(plan.groups) + slots.group), len(plan.groups))
    group_iterations = np.bincount(group, minlength=len(plan.groups))
    group_seconds = _sums(group, iterations[held], len(plan.groups))
    return Simulation(
        iteration_seconds=iterations,
        step_seconds=steps + bubbles + step_seconds,
        gpu_seconds=_split(plan, schedule, slots, replicas, iterations, bubbles, longest, step_seconds),
        group_tokens=slots.tokens_of_groups(len(plan.groups)),
        group_iterations=group_iterations,
        group_iteration_seconds=group_seconds / np.maximum(1, group_iterations),
        layers=layers,
        num_gpus=plan.num_gpus,
    )


class _Replicas(NamedTuple):
    """The r replicas of all iterations."""

    first: Int64Array
    """int64[r]: first slot of each in its iteration."""
    seconds: NDArray[np.float64]
    """float64[r]: its slots, one after another."""
    bubbles: NDArray[np.float64]
    """float64[r]: what its own pipeline adds."""


def _replicas(schedule: Schedule, slots: NDArray[np.float64], num_bubbles: NDArray[np.float64]) -> _Replicas:
    """Seconds of replicas from those of slots (float64[k]).

    Args:
        num_bubbles: float64[k], how often a slot's replica waits for its longest slot.
    """
    first = np.flatnonzero(schedule.begins_replica)
    if len(first) == len(slots):
        return _Replicas(first, slots, num_bubbles * slots)
    return _Replicas(first, np.add.reduceat(slots, first), num_bubbles[first] * np.maximum.reduceat(slots, first))


def _longest_iterations(schedule: Schedule, iterations: NDArray[np.float64]) -> Int64Array:
    """The longest iteration (int64[s]) of each step."""
    order = np.lexsort((iterations, schedule.iteration_step))
    last = np.flatnonzero(np.diff(schedule.iteration_step, append=schedule.num_steps))
    return order[last]


def _split(
    plan: Plan,
    schedule: Schedule,
    slots: SlotSeconds,
    replicas: _Replicas,
    iterations: NDArray[np.float64],
    bubbles: NDArray[np.float64],
    longest: Int64Array,
    step_seconds: float,
) -> NDArray[np.float64]:
    """GPU-seconds (float64[g, parts]) by group and part.

    The fixed seconds of a step, and the bubbles where all GPUs share a pipeline's, go to the longest group of the
    step's longest iteration.

    Args:
        bubbles: float64[s], of each step.
    """
    num_groups, num_gpus = len(plan.groups), plan.num_gpus
    gpus = plan.slot_gpus(schedule).astype(np.float64)
    group_of = np.zeros(schedule.num_iterations, dtype=np.int64)  # The longest group in each iteration.
    np.maximum.at(group_of, schedule.slot_iteration, slots.group)

    def of_slots(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return _sums(slots.group, seconds * gpus, num_groups)

    def of_replicas(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return _sums(slots.group[replicas.first], seconds * gpus[replicas.first], num_groups)

    def of_steps(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return _sums(group_of[longest], seconds * num_gpus, num_groups)

    parts = {
        "compute": of_slots(slots.compute),
        "recompute": of_slots(slots.recompute),
        "communication": of_slots(slots.communication),
        "padding": of_slots(slots.padding),
        "waiting": of_replicas(
            iterations[schedule.slot_iteration[replicas.first]] - replicas.seconds - replicas.bubbles
        ),
        "constant": of_slots(slots.constant),
        "bubbles": of_steps(bubbles) + of_replicas(replicas.bubbles),
        "steps": of_steps(np.full(len(longest), step_seconds)),
    }
    return np.stack([parts[name] for name in PARTS], axis=1)


def _sums(index: Int64Array, values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Sums (float64[length]) of the values with the same index."""
    sums = np.zeros(length)
    np.add.at(sums, index, values)
    return sums
