"""The figures of a simulation, rounded to ten digits, for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from packer_cli.config import TrainConfig
from packer_cli.cost.predict import GpuModel
from packer_cli.cost.stages import stage_layers
from packer_cli.format.records import read_record
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Float64Array, Pieces, Plan
from packer_cli.simulate.epoch import PARTS, Simulation, simulate
from packer_cli.sizes import format_bytes, format_tokens, large

_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class TimeFigures:
    """Predicted time of some packs of an epoch, and what the GPUs do in it."""

    seconds: float
    """Seconds of the epoch."""
    gpu_hours: float
    gpu_days: float
    num_iterations: int
    """Number of the iterations with any of these packs."""
    iteration_seconds: float
    """Mean."""
    tokens_per_gpu_second: float
    useful: float
    """Share of the GPUs' time spent computing real tokens for the first time: the epoch's MFU divided by that of this
    computation."""
    split: dict[str, float]
    """`seconds` by part, see `PARTS`: what a GPU does of them, on average."""

    def scaled(self, by: float) -> Self:
        """Return the figures of an epoch of so many times as many samples."""
        return replace(
            self,
            seconds=_round(self.seconds * by),
            gpu_hours=_round(self.gpu_hours * by),
            gpu_days=_round(self.gpu_days * by),
            num_iterations=round(self.num_iterations * by),
            split={part: _round(seconds * by) for part, seconds in self.split.items()},
        )


@dataclass(frozen=True, kw_only=True)
class OverallFigures(TimeFigures):
    """A predicted epoch."""

    num_gpus: int
    num_steps: int
    step_seconds: float
    """Mean."""


@dataclass(frozen=True, kw_only=True)
class GroupFigures(TimeFigures):
    """A group's share of a predicted epoch."""

    name: str
    capacity: int
    sp_size: int
    checkpoint_layers: int
    """Number of checkpointed layers, as simulated."""
    fits: bool
    """Whether it fits in memory, by the model."""
    memory_bytes: float
    """Bytes of a GPU that a full row takes with these layers, by the model."""
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """A predicted epoch and its groups."""

    overall: OverallFigures
    """Figures of the whole epoch."""
    groups: tuple[GroupFigures, ...]
    """Figures of each group."""
    notes: tuple[str, ...]
    """For people."""
    warnings: tuple[str, ...]
    """Notes that say what does not fit in memory; `notes` has them, too."""

    def scaled(self, by: float) -> EpochFigures:
        """Return the figures of an epoch of so many times as many samples."""
        groups = tuple(group.scaled(by) for group in self.groups)
        return replace(self, overall=self.overall.scaled(by), groups=groups)

    @property
    def fits(self) -> bool:
        """Whether all groups fit in memory, by the model."""
        return all(group.fits for group in self.groups)

    @property
    def order(self) -> tuple[bool, float]:
        """A sort key: an epoch that fits comes first, then the shorter."""
        return not self.fits, self.overall.seconds


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """Simulates plans with one model and one set of rules."""

    model: GpuModel
    rules: TrainConfig
    """See `simulate`."""

    def attention_share(self, pieces: Pieces) -> float:
        """Share of the computing time of pieces that attention takes. O(m)."""
        cost = self.model.cost
        squares, tokens = cost.quadratic * attention_work(pieces), cost.linear * float(pieces.length.sum())
        return squares / (squares + tokens) if squares + tokens else 0.0

    def simulate(self, plan: Plan) -> Simulation:
        """Predict the plan's first epoch; errors and price as of `simulate`."""
        return simulate(plan, self.model, **vars(self.rules))

    def figures(self, plan: Plan) -> EpochFigures:
        """Return the figures of `simulate`."""
        return simulation_figures(self.simulate(plan), self.model)


def attention_work(pieces: Pieces) -> float:
    """Return the attention work of all pieces together."""
    if pieces.work is not None:
        return float(pieces.work.sum(dtype=np.float64))
    return float(np.square(pieces.length, dtype=np.float64).sum())


def simulation_figures(simulation: Simulation, model: GpuModel) -> EpochFigures:
    """Return the figures of a simulated epoch."""
    plan = simulation.plan
    notes = [_group_note(simulation, model, g) for g in range(len(plan.groups))]
    warnings = [note for note, layers in zip(notes, simulation.layers, strict=True) if note and not layers.fits]
    notes = [note for note in notes if note]
    notes += [_stages_note(model, pp) for pp in sorted({group.pp_size for group in plan.groups} - {1})]
    if plan.num_gpus != model.num_gpus:
        notes.append(
            f"the model of time and memory is of {model.num_gpus} GPUs that share the weights, and "
            f"{plan.num_gpus} train: memory, and what depends on it, is for the former"
        )
    tokens, num_steps = int(simulation.group_tokens.sum()), len(simulation.step_seconds)
    return EpochFigures(
        overall=OverallFigures(
            **_time_figures(simulation, simulation.gpu_seconds.sum(axis=0), tokens, simulation.iteration_seconds),
            num_gpus=plan.num_gpus,
            num_steps=num_steps,
            step_seconds=_round(simulation.seconds / max(1, num_steps)),
        ),
        groups=tuple(_group(simulation, g) for g in range(len(plan.groups))),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def describe_origin(origin: Mapping[str, Any]) -> str:
    """Describe in one line where predicted times come from."""
    gpu = origin.get("gpu")
    name = gpu.get("name") if isinstance(gpu, dict) else gpu
    if origin.get("source") != "analytic":
        return f"Predicted from what was measured on {name}."
    assumed = origin["assumptions"]
    return (
        f"Predicted from the shape of the model ({large(origin['num_parameters'])} parameters) and the data sheet "
        f"of {name}: {assumed['gemm_efficiency']:.0%} of its peak, in attention "
        f"{assumed['attention_efficiency']:.0%}. hbpack profile measures them."
    )


def _group(simulation: Simulation, g: int) -> GroupFigures:
    group, layers = simulation.plan.groups[g], simulation.layers[g]
    own = np.unique(simulation.schedule.slot_iteration[simulation.slots.group == g])
    tokens, seconds = int(simulation.group_tokens[g]), simulation.iteration_seconds[own]
    return GroupFigures(
        **_time_figures(simulation, simulation.gpu_seconds[g], tokens, seconds),
        name=group_name(group),
        capacity=group.capacity,
        sp_size=group.sp_size,
        checkpoint_layers=layers.layers,
        fits=layers.fits,
        memory_bytes=_round(layers.bytes),
        num_tokens=tokens,
    )


def _time_figures(
    simulation: Simulation, gpu_seconds: Float64Array, tokens: int, iteration_seconds: Float64Array
) -> dict[str, Any]:
    """Make `TimeFigures` of the GPU-seconds (float64[parts]) of some packs, and of the iterations that hold these."""
    total, num_gpus = float(gpu_seconds.sum()), simulation.plan.num_gpus
    return {
        "seconds": _round(total / num_gpus),
        "gpu_hours": _round(total / _HOUR),
        "gpu_days": _round(total / _HOUR / 24),
        "num_iterations": len(iteration_seconds),
        "iteration_seconds": _round(float(iteration_seconds.sum()) / max(1, len(iteration_seconds))),
        "tokens_per_gpu_second": _round(tokens / total if total else 0.0),
        "useful": _round(float(gpu_seconds[0]) / total if total else 0.0),
        "split": {name: _round(each / num_gpus) for name, each in zip(PARTS, gpu_seconds.tolist(), strict=True)},
    }


def _group_note(simulation: Simulation, model: GpuModel, g: int) -> str:
    """Write a note on a group, for people; empty if there is nothing to say."""
    group, layers, num_layers = simulation.plan.groups[g], simulation.layers[g], model.memory.num_layers
    note = ""
    if not layers.fits:
        note = (
            f"does not fit in memory, by the model: with {layers.layers} of {num_layers} layers checkpointed it takes "
            f"{format_bytes(layers.bytes)} of the {format_bytes(model.memory.limit)} that a GPU has for training"
        )
        note += "; raise its degrees" if layers.needed is None else f"; {layers.needed} layers would fit"
    elif layers.layers and not group.checkpoint_layers:
        note = f"names no checkpointed layers: {layers.layers} of {num_layers} assumed, the fewest that fit"
    return f"group {group_name(group)} {note}" if note else ""


def _stages_note(model: GpuModel, num_stages: int) -> str:
    cost = model.cost
    layers = stage_layers(cost.num_layers, cost.head_layers, num_stages)
    head = f", with the LM head, which takes as long as {cost.head_layers:.1f}," if cost.head_layers >= 0.05 else ""
    return (
        f"{num_stages} pipeline stages are predicted with {', '.join(map(str, layers[:-1]))} and {layers[-1]} layers; "
        f"the last{head} waits least so"
    )


def group_name(group: Group) -> str:
    """Name a group by capacity and SP degree as `--groups` takes them, and the other degrees above 1."""
    more = str(group.layout).partition("-")[2] + (f"-vpp{group.vpp_size}" if group.vpp_size > 1 else "")
    return f"{format_tokens(group.capacity)}:{group.sp_size}" + (f" {more}" if more else "")


def _round(value: float) -> float:
    """Round to ten digits: the last bits of a sum may differ between machines."""
    return float(f"{value:.10g}")


def with_step_seconds(plan: Plan, gpu_model: Mapping[str, Any]) -> Plan:
    """Add the seconds of its steps to a plan. Price: O(pieces + slots) for each epoch.

    Args:
        gpu_model: what `model_values` made, perhaps for another number of GPUs. FSDP then takes as long to gather
            weights as on those.

    Raises:
        ConfigError: the model does not know a degree of the plan.
        ValueError: the values are of another release.
    """
    model = read_record(GpuModel, {**gpu_model, "origin": {}})
    model = replace(model, num_gpus=plan.num_gpus, memory=replace(model.memory, num_gpus=plan.num_gpus))
    epochs = (
        replace(schedule, step_seconds=simulate(plan, model, epoch=epoch).step_seconds.astype(np.float32))
        for epoch, schedule in enumerate(plan.epochs)
    )
    return replace(plan, epochs=tuple(epochs))
