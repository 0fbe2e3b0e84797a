"""From the seconds of slots to those of iterations, steps and an epoch, and the GPU-seconds of each part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.models import GpuModel
from packer_cli.plan.types import Int64Array, Plan, Schedule
from packer_cli.simulate.layers import GroupLayers, choose_layers
from packer_cli.simulate.slots import PadTo, SlotSeconds, iteration_groups, slot_seconds

PARTS = ("compute", "recompute", "communication", "padding", "waiting", "constant", "bubbles", "steps")
"""What a GPU does, in the order of the columns of `Simulation.gpu_seconds`."""
_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One epoch, predicted. i iterations, s steps, g groups."""

    iteration_seconds: NDArray[np.float64]
    """float64[i]: of each iteration on a stage, until its slowest rank is done."""
    step_seconds: NDArray[np.float64]
    """float64[s]: iterations, pipeline bubbles and what every step takes besides."""
    gpu_seconds: NDArray[np.float64]
    """float64[g, parts]: of all GPUs together, by group and by `PARTS`; the sum is `seconds * num_gpus`."""
    group_tokens: Int64Array
    """int64[g]: real tokens."""
    group_iterations: Int64Array
    """int64[g]: iterations that hold slots of the group."""
    group_iteration_seconds: NDArray[np.float64]
    """float64[g]: mean of their seconds; 0 where there are none."""
    layers: tuple[GroupLayers, ...]
    """Checkpointed layers that were assumed, of each group."""
    num_gpus: int
    """GPUs of all stages together."""

    @property
    def seconds(self) -> float:
        """Of the epoch."""
        return float(self.step_seconds.sum())

    @property
    def gpu_days(self) -> float:
        """Days of one GPU that all of them together take."""
        return self.seconds * self.num_gpus / _DAY

    @property
    def tokens_per_gpu_second(self) -> float:
        """Real tokens a second and GPU."""
        total = self.seconds * self.num_gpus
        return float(self.group_tokens.sum()) / total if total else 0.0

    @property
    def useful(self) -> float:
        """Share of the GPUs' time in which they compute real tokens for the first time: the MFU of the epoch, over
        the MFU of the model's arithmetic alone."""
        total = float(self.gpu_seconds.sum())
        return float(self.gpu_seconds[:, 0].sum()) / total if total else 0.0


def simulate(
    plan: Plan,
    model: GpuModel,
    *,
    pp: int = 1,
    pad_to: PadTo = "multiple",
    step_seconds: float = 0.0,
    epoch: int = 0,
) -> Simulation:
    """Predict an epoch of the plan.

    An iteration takes as long as its slowest slot: a slot's GPUs compute, communicate and then wait for the others. On
    a pipeline of P stages each stage has a P-th of a slot's work and communication and the whole constant, and a step
    of iterations of T_1..T_v seconds a stage takes `sum T_j + (P - 1) max T_j`: Hydraulis' `sum + (P - 1) max`
    (arXiv 2412.07894, stage 1), and where the iterations are equal its `(max cost + c) (P - 1 + v)` (stage 2).

    Price: O(pieces + slots).

    Args:
        pp: stages of the pipeline, P. The plan's GPUs are those of one stage, so P times as many train.
        pad_to: what the loader pads rows to.
        step_seconds: of each optimizer step, whatever is in it: gradient sync and optimizer; models do not tell it.

    Raises:
        ConfigError: the plan has an SP degree that the model does not know.
    """
    schedule = plan.epochs[epoch]
    layers = tuple(choose_layers(group, model.memory) for group in plan.groups)
    slots = slot_seconds(plan, schedule, model, [each.layers for each in layers], pad_to)
    own = slots.on_a_stage(pp)
    iterations = np.zeros(schedule.num_iterations)
    np.maximum.at(iterations, schedule.slot_iteration, own)
    longest = _longest_iterations(schedule, iterations)
    bubbles = (pp - 1) * iterations[longest]
    steps = _sums(schedule.iteration_step, iterations, schedule.num_steps)
    held, group = np.divmod(np.unique(schedule.slot_iteration * len(plan.groups) + slots.group), len(plan.groups))
    group_iterations = np.bincount(group, minlength=len(plan.groups))
    group_seconds = _sums(group, iterations[held], len(plan.groups))
    return Simulation(
        iteration_seconds=iterations,
        step_seconds=steps + bubbles + step_seconds,
        gpu_seconds=_split(plan, schedule, slots, own, iterations, longest, pp, step_seconds),
        group_tokens=slots.tokens_of_groups(len(plan.groups)),
        group_iterations=group_iterations,
        group_iteration_seconds=group_seconds / np.maximum(1, group_iterations),
        layers=layers,
        num_gpus=plan.num_gpus * pp,
    )


def _longest_iterations(schedule: Schedule, iterations: NDArray[np.float64]) -> Int64Array:
    """The longest iteration (int64[s]) of each step."""
    order = np.lexsort((iterations, schedule.iteration_step))
    last = np.flatnonzero(np.diff(schedule.iteration_step, append=schedule.num_steps))
    return order[last]


def _split(
    plan: Plan,
    schedule: Schedule,
    slots: SlotSeconds,
    own: NDArray[np.float64],
    iterations: NDArray[np.float64],
    longest: Int64Array,
    pp: int,
    step_seconds: float,
) -> NDArray[np.float64]:
    """GPU-seconds by group and part.

    GPUs without a slot wait; that, bubbles and what steps take besides go to the longest group of their iteration, for
    a step its longest.
    """
    num_groups, num_gpus = len(plan.groups), plan.num_gpus * pp
    gpus = schedule.slot_sp_size.astype(np.float64) * pp
    group_of = iteration_groups(schedule, slots.group)
    busy = np.bincount(schedule.slot_iteration, weights=gpus, minlength=schedule.num_iterations)

    def of_slots(seconds: NDArray[np.float64] | float) -> NDArray[np.float64]:
        return _sums(slots.group, seconds * gpus, num_groups)

    def of_steps(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return _sums(group_of[longest], seconds * num_gpus, num_groups)

    without_slot = _sums(group_of, iterations * (num_gpus - busy), num_groups)
    parts = {
        "compute": of_slots(slots.compute / pp),
        "recompute": of_slots(slots.recompute / pp),
        "communication": of_slots(slots.communication / pp),
        "padding": of_slots(slots.padding / pp),
        "waiting": of_slots(iterations[schedule.slot_iteration] - own) + without_slot,
        "constant": of_slots(slots.constant),
        "bubbles": of_steps((pp - 1) * iterations[longest]),
        "steps": of_steps(np.full(len(longest), step_seconds)),
    }
    return np.stack([parts[name] for name in PARTS], axis=1)


def _sums(place: Int64Array, values: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Sum (float64[length]) of the values at each place."""
    sums = np.zeros(length)
    np.add.at(sums, place, values)
    return sums
