"""The schemes that `--strategy hydraulis` may give a pipeline: degrees of sp, cp, tp and pp that fit in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.predict import stage_rates
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.cost.models import GpuModel, MemoryModel

MOST_STAGES = 8
MOST_CP = 8
"""Without `--parallel`."""
_LEAST_CAPACITY = 1024
_ROW_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A layout of GPUs, the most tokens that it holds, and its time."""

    group: Group
    rates: tuple[float, float, float]
    """Seconds of a micro-batch on one stage: per squared token, per token, and constant."""

    def dominates(self, other: Scheme) -> bool:
        """Whether it holds as much in no more time, on GPUs that divide the other's."""
        return (
            other.group.num_gpus % self.group.num_gpus == 0
            and self.group.capacity >= other.group.capacity
            and self.group.pp_size <= other.group.pp_size
            and all(own <= rate for own, rate in zip(self.rates, other.rates, strict=True))
        )


def find_schemes(
    longest: int, num_gpus: int, model: GpuModel, most: Layout | None, most_sp: int = 1
) -> tuple[Scheme, ...]:
    """All schemes worth having, by rising capacity, of equal ones the cheapest last. Price: milliseconds.

    Each layout comes without checkpointed layers, as long as that holds, and with the fewest that hold `longest`.

    Args:
        longest: tokens of the longest sample; no micro-batch is longer.
        most: greatest degrees; None: tp within a node, cp up to 8, and pp up to 8 stages.
        most_sp: greatest SP degree; above 1, all schemes without cp may have one.

    Raises:
        ConfigError: the model does not know tensor parallelism, or no scheme holds the longest sample.
    """
    model.cost.require_known(Layout(pp=2))
    found = []
    for layout in _layouts(num_gpus, model, most, most_sp):
        memory = _without_sharing(model.memory, layout)
        whole = min(longest, memory.longest(layout, 0) // _ROW_MULTIPLE * _ROW_MULTIPLE)
        kept = [(whole, 0)] if whole >= min(longest, _LEAST_CAPACITY) else []
        if whole < longest:
            layers = memory.least_checkpoint_layers(longest, layout)
            held = longest if layers else min(longest, memory.longest(layout) // _ROW_MULTIPLE * _ROW_MULTIPLE)
            kept += [(held, layers or memory.num_layers)] if held >= min(longest, _LEAST_CAPACITY) else []
        for capacity, checkpoint_layers in kept:
            group = Group(capacity=capacity, checkpoint_layers=checkpoint_layers, **layout.sizes)
            found.append(Scheme(group=group, rates=stage_rates(group, model)))
    worth = [
        scheme
        for i, scheme in enumerate(found)
        if not any(
            other.dominates(scheme) and (j < i or not scheme.dominates(other))
            for j, other in enumerate(found)
            if j != i
        )
    ]
    if max((scheme.group.capacity for scheme in worth), default=0) < longest:
        limits = "" if most is None else f" up to --parallel tp={most.tp},cp={most.cp},pp={most.pp}"
        raise ConfigError(
            f"--strategy hydraulis: no pipeline{limits} on {counted(num_gpus, 'GPU')} holds a sample of {longest:,} "
            "tokens in memory; give shorter --groups, higher --parallel degrees, or more GPUs"
        )
    return tuple(sorted(worth, key=lambda scheme: (scheme.group.capacity, -_gpu_seconds(scheme, longest))))


def _layouts(num_gpus: int, model: GpuModel, most: Layout | None, most_sp: int) -> list[Layout]:
    assert model.cost.model_parallel is not None
    limit = most or Layout(tp=model.cost.model_parallel.gpus_per_node, cp=MOST_CP, pp=MOST_STAGES)
    node, layers = model.cost.model_parallel.gpus_per_node, model.memory.num_layers
    most_gpus = num_gpus if model.cost.model_parallel.network_bandwidth else min(num_gpus, node)
    powers = [2**power for power in range(num_gpus.bit_length())]
    of_rows = [(1, cp) for cp in powers if cp <= limit.cp] + [(sp, 1) for sp in powers if 1 < sp <= most_sp]
    return [
        Layout(sp=sp, cp=cp, tp=tp, pp=pp)
        for tp in powers
        if tp <= limit.tp and node % tp == 0
        for sp, cp in of_rows
        if sp * tp in model.sp_sizes  # Both distribute the heads.
        for pp in range(1, limit.pp + 1)
        if layers % pp == 0 and sp * cp * tp * pp <= most_gpus
    ]


def _without_sharing(memory: MemoryModel, layout: Layout) -> MemoryModel:
    """The memory of a pipeline that gathers no weights: others run other layouts, so it has its own (ZeRO-1)."""
    if layout.tp > 1 or layout.pp > 1 or not memory.num_parameters:
        return memory
    return replace(memory, constant=max(memory.constant, memory.zero1_bytes(layout)))


def _gpu_seconds(scheme: Scheme, tokens: int) -> float:
    quadratic, linear, constant = scheme.rates
    return scheme.group.num_gpus * (quadratic * tokens * tokens + linear * tokens + constant)
