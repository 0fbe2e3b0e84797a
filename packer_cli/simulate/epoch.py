"""Predicts the seconds of each slot's micro-batch, and adds them up to iterations, steps and an epoch.

The seconds of slots are by part, vectorized over the slots of a schedule; the GPU-seconds of an epoch are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.predict import GpuModel, MemoryModel
from packer_cli.format.constants import FILLER_TOKENS
from packer_cli.plan.core.cp_sharding import cp_slowdown
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import slot_sums
from packer_cli.plan.core.types import FILLER, Float64Array, Int64Array, Plan, Schedule
from packer_cli.plan.kernels.durations import free_seconds, pipeline_seconds

PadTo = Literal["multiple", "row", "capacity"]
"""The loader's `pad_to`: to a multiple of the SP degree, the iteration's row length, or the group's capacity."""


SLOT_PARTS = ("compute", "recompute", "communication", "padding", "constant")
"""The parts of a micro-batch's seconds: forward and backward of real tokens; their repeated forward pass in
checkpointed layers; their communication, of SP, CP, TP and between stages; all of these for padding, that which aligns
samples included; what does not depend on the contents."""


@dataclass(frozen=True, kw_only=True)
class SlotSeconds:
    """Seconds of each of k slots on each of its GPUs, and so on one stage of a pipeline."""

    parts: Float64Array
    """float64[5, k]: by `SLOT_PARTS`."""
    forward: Float64Array
    """float64[k]: share of the forward pass in them."""
    group: Int64Array
    """int64[k]: the slot's group."""
    tokens: Int64Array
    """int64[k]: real tokens of the slot."""

    @property
    def total(self) -> Float64Array:
        """Seconds (float64[k]) of each slot."""
        return np.asarray(self.parts.sum(axis=0))


def slot_seconds(
    plan: Plan, schedule: Schedule, model: GpuModel, checkpoint_layers: Sequence[int], pad_to: PadTo = "multiple"
) -> SlotSeconds:
    """Predict the seconds of every slot. Price: O(pieces + slots).

    Padding of a row is a sample of its own at its end, as in the loader: it takes linear work, attention over its own
    length, and communication. Padding that aligns a sample lengthens it; with a causal mask over whole rows,
    a row is one sample with its padding. Attention takes as long as on the slowest CP rank, in tiles of 128 queries.

    Args:
        checkpoint_layers: checkpointed layers of each group.

    Raises:
        ConfigError: the plan has a degree that the model does not know.
    """
    for each in np.unique(schedule.slot_group).tolist():
        model.cost.require_known(plan.groups[each].layout)
    group = schedule.slot_group.astype(np.int64)
    aligned, aligned_work, tokens, work = slot_sums(plan, schedule)
    # Of a row that is one sample, no sample is aligned by itself.
    row_tokens = _padded(plan, schedule, tokens if plan.mask == "causal" else aligned, pad_to)
    padding = row_tokens - aligned
    row_work = (row_tokens * row_tokens).astype(np.float64) if plan.mask == "causal" else aligned_work + padding**2
    # A micro-batch takes as long as its slowest CP rank.
    waiting = work * (np.append(cp_slowdown(plan), 1.0)[schedule.slot_pack] - 1)
    work, row_work = work + waiting, row_work + waiting
    cost = model.cost
    constant = np.array([cost.constant_of(each.layout) for each in plan.groups])[group]
    parts, forward = np.zeros((len(SLOT_PARTS), len(tokens))), np.zeros(len(tokens))
    for g in np.unique(group).tolist():
        those = group == g
        layout, num_layers = plan.groups[g].layout, checkpoint_layers[g]
        of_stages = []
        for stage in cost.stages(layout):
            of = (work[those], tokens[those], layout)
            once, again = cost.computing(*of, 0, stage), cost.computing(*of, num_layers, stage)
            sent = cost.communication(tokens[those], layout, num_layers, stage)
            whole = cost.seconds(row_work[those], row_tokens[those], layout, num_layers, stage)
            more = np.maximum(whole - again - sent, 0.0)  # Rounding may leave less than nothing.
            fixed = constant[those]
            of_stages.append((whole, np.stack((once - fixed, again - once, sent, more, fixed))))
        wholes, split = zip(*of_stages, strict=True)
        parts[:, those] = np.choose(np.argmax(wholes, axis=0), split)  # Those of the slowest stage.
        forward[those] = 1 / (3 + 3 * cost.recompute * num_layers / cost.num_layers)
    return SlotSeconds(parts=parts, forward=forward, group=group, tokens=tokens)


def _padded(plan: Plan, schedule: Schedule, tokens: Int64Array, pad_to: PadTo) -> NDArray[Any]:
    """Return the tokens of each slot's padded row (int64[k]), a multiple of what its layout asks."""
    sizes = np.array([(group.layout.row_multiple, group.layout.stage_gpus) for group in plan.groups])
    multiple, stage_gpus = sizes[schedule.slot_group].T
    length = np.where(schedule.slot_pack == FILLER, FILLER_TOKENS * stage_gpus, tokens)
    if pad_to == "row":
        length = np.maximum(length, schedule.slot_row_length)
    elif pad_to == "capacity":
        length = np.maximum(length, np.array([each.capacity for each in plan.groups])[schedule.slot_group])
    return np.asarray(-(-length // multiple) * multiple)


@dataclass(frozen=True, kw_only=True)
class GroupLayers:
    """The checkpointed layers of a group's rows."""

    layers: int
    """Checkpointed layers that the prediction assumes."""
    needed: int | None
    """The fewest with which a full row fits, by the memory model; None if it never fits."""
    bytes: float
    """Bytes of a GPU's memory that a full row takes with these layers."""

    @property
    def fits(self) -> bool:
        """Whether a full row fits, by the memory model."""
        return self.needed is not None and self.needed <= self.layers


def choose_layers(group: Group, memory: MemoryModel) -> GroupLayers:
    """Return the group's own number if it names one, else the fewest that fit (HBP, algorithm 4), else all."""
    needed = memory.least_checkpoint_layers(group.capacity, group.layout)
    layers = memory.num_layers if needed is None else needed
    if group.checkpoint_layers:
        layers = min(group.checkpoint_layers, memory.num_layers)
    taken = memory.bytes(group.capacity, group.layout, layers)
    return GroupLayers(layers=layers, needed=needed, bytes=taken)


class Replicas(NamedTuple):
    """The r replicas of all iterations."""

    first: Int64Array
    """int64[r]: first slot of each in its iteration."""
    seconds: Float64Array
    """float64[r]: its slots, one after another."""
    bubbles: Float64Array
    """float64[r]: what its own pipeline adds."""
    waiting: Float64Array
    """float64[r]: from then on until the slowest replica of the iteration is done."""


PARTS = ("compute", "recompute", "communication", "padding", "waiting", "constant", "bubbles", "sync", "steps")
"""Parts of a GPU's time: the columns of `Simulation.gpu_seconds`."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """One epoch, predicted, and what its GPUs do. k slots, i iterations, s steps, g groups."""

    plan: Plan
    schedule: Schedule
    slots: SlotSeconds
    replicas: Replicas
    iteration_seconds: Float64Array
    """float64[i]: on one pipeline stage, until the slowest replica is done."""
    bubbles: Float64Array
    """float64[s]: of the pipeline that all GPUs share where they run in lockstep, once a step."""
    sync: Float64Array
    """float64[s]: gradients reduced and weights gathered, where micro-batches gather none."""
    step_extra: float
    """Fixed seconds of each step."""
    overlap: Float64Array
    """float64[s]: what the iterations of a step overlap where replicas meet at its end alone."""
    step_seconds: Float64Array
    """float64[s]: iterations, `bubbles`, `sync` and `step_extra`, less `overlap`."""
    layers: tuple[GroupLayers, ...]
    """The checkpointed layers assumed for each group."""

    @property
    def seconds(self) -> float:
        """Seconds of the epoch."""
        return float(self.step_seconds.sum())

    @cached_property
    def gpu_seconds(self) -> Float64Array:
        """Time of all GPUs together, float64[g, parts], by group and by `PARTS`; the sum is `seconds * num_gpus`.

        The fixed seconds of a step, and the bubbles where all GPUs share a pipeline's, go to the longest group of the
        step's longest iteration.
        """
        plan, schedule, slots = self.plan, self.schedule, self.slots
        replicas = self.replicas
        by_seconds = np.lexsort((self.iteration_seconds, schedule.iteration_step))
        longest = by_seconds[np.flatnonzero(np.diff(schedule.iteration_step, append=schedule.num_steps))]
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
            waiting *= max(0.0, 1 - float(self.overlap.sum()) * plan.num_gpus / total)
        of_slots = (index_sums(slots.group, seconds * gpus, len(plan.groups)) for seconds in slots.parts)
        parts = dict(zip(SLOT_PARTS, of_slots, strict=True)) | {
            "waiting": waiting,
            "bubbles": of_steps(self.bubbles) + of_replicas(replicas.bubbles),
            "sync": of_steps(self.sync),
            "steps": of_steps(np.full(len(longest), self.step_extra)),
        }
        return np.stack([parts[name] for name in PARTS], axis=1)

    @property
    def group_tokens(self) -> Int64Array:
        """Real tokens of each group, int64[g], without padding."""
        return index_sums(self.slots.group, self.slots.tokens, len(self.plan.groups))


def simulate(
    plan: Plan, model: GpuModel, *, pad_to: PadTo = "multiple", step_seconds: float = 0.0, epoch: int = 0
) -> Simulation:
    """Predict an epoch of the plan, the first by default.

    An iteration takes as long as its slowest replica: its GPUs run their slots, which compute and communicate, and
    then wait for the others. A pipeline runs its micro-batches in their order by 1F1B, see `plan.kernels.durations`.
    Where all GPUs run in lockstep these are the iterations of a step; else the slots of a replica in an iteration,
    which begins when its own GPUs are done with the one before, whatever others do (`plan.kernels.durations`).
    Where no micro-batch gathers weights (TP, PP, `lockstep` 1), a step ends with gradients and weights.

    Price: O(pieces + slots), times the stages.

    Args:
        pad_to: what the loader pads rows to.
        step_seconds: fixed seconds of each optimizer step (the optimizer, checkpoints), which `model` does not
            predict.

    Raises:
        ConfigError: the plan has a degree that the model does not know.
    """
    schedule, model = plan.epochs[epoch], model.of_lockstep(plan.lockstep)
    layers = tuple(choose_layers(group, model.memory) for group in plan.groups)
    slots = slot_seconds(plan, schedule, model, [each.layers for each in layers], pad_to)
    stages = np.array([(group.pp_size, group.vpp_size) for group in plan.groups]).T
    total = slots.total
    first = np.flatnonzero(schedule.begins_replica)
    seconds = np.add.reduceat(total, first) if len(first) else np.zeros(0)
    own = np.zeros(len(first))
    if plan.lockstep == 1:
        offsets = np.append(first, len(total))
        own = _bubbles(offsets, total, slots.forward, stages[:, schedule.slot_group[first]], seconds)
    iterations = np.zeros(schedule.num_iterations)
    np.maximum.at(iterations, schedule.slot_iteration[first], seconds + own)
    of_steps = index_sums(schedule.iteration_step, iterations, schedule.num_steps)
    overlap = np.zeros(schedule.num_steps)
    if plan.lockstep is not None:
        ran_by = schedule.slot_first_gpu[first].astype(np.int64), plan.slot_gpus(schedule)[first].astype(np.int64)
        step, taken = schedule.iteration_step[schedule.slot_iteration[first]], seconds + own
        if plan.lockstep > 1:  # GPUs that share the weights run like one replica.
            number = plan.num_gpus // plan.lockstep
            step, taken = np.repeat(schedule.iteration_step, number), np.zeros(schedule.num_iterations * number)
            np.maximum.at(taken, schedule.slot_iteration[first] * number + ran_by[0] // plan.lockstep, seconds)
            ran_by = np.arange(len(taken)) % number * plan.lockstep, np.full(len(taken), plan.lockstep)
        done = free_seconds(step, *ran_by, taken, schedule.num_steps, plan.num_gpus)
        overlap = np.maximum(of_steps - done, 0.0)
    bubbles = np.zeros(schedule.num_steps)
    if plan.lockstep != 1:  # All have equally many stages.
        slowest = first[np.lexsort((seconds, schedule.slot_iteration[first]))]
        slowest = slowest[np.flatnonzero(np.diff(schedule.slot_iteration[slowest], append=schedule.num_iterations))]
        offsets = np.searchsorted(schedule.iteration_step, np.arange(schedule.num_steps + 1))
        of_all = np.repeat(stages[:, :1], schedule.num_steps, axis=1)
        bubbles = _bubbles(offsets, iterations, slots.forward[slowest], of_all, of_steps)
    waiting = iterations[schedule.slot_iteration[first]] - seconds - own
    of_layouts = np.array([model.sync_seconds(group.layout) for group in plan.groups])
    sync = np.zeros(schedule.num_steps)
    np.maximum.at(sync, schedule.iteration_step[schedule.slot_iteration], of_layouts[schedule.slot_group])
    return Simulation(
        plan=plan,
        schedule=schedule,
        slots=slots,
        replicas=Replicas(first, seconds, own, waiting),
        iteration_seconds=iterations,
        bubbles=bubbles,
        sync=sync,
        step_extra=step_seconds,
        overlap=overlap,
        step_seconds=of_steps - overlap + bubbles + sync + step_seconds,
        layers=layers,
    )


def _bubbles(
    offsets: Int64Array, seconds: Float64Array, forward: Float64Array, stages: Int64Array, alone: Float64Array
) -> Float64Array:
    """Return seconds that pipelines add (float64[r]) to their micro-batches one after another, `alone`.

    Args:
        stages: int64[2, r], stages of each pipeline and parts of each stage.
    """
    if (stages[0] == 1).all():
        return np.zeros(len(alone))
    return np.maximum(pipeline_seconds(offsets, seconds, forward, *stages) - alone, 0.0)


def index_sums(index: Int64Array, values: NDArray[Any], length: int) -> NDArray[Any]:
    """Sum ([length]) the values with the same index."""
    return np.bincount(index, values, length).astype(values.dtype)
