"""Costs that Hydraulis plans by: schemes that memory holds, their seconds and capacity, least time of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.plan.core.cost import KernelCosts
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Float64Array
from packer_cli.plan.strategies.predict import stage_rates
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.cost.models import GpuModel


@njit(cache=True, no_cpython_wrapper=True)
def rates_of(rates: Float64Array, kind: int) -> tuple[float, float, float, float]:
    """Return the first four rates of a scheme: quadratic, linear and constant seconds, and the stages that wait."""
    return rates[0, kind], rates[1, kind], rates[2, kind], rates[3, kind]


@njit(cache=True)
def least_pipeline_seconds(costs: KernelCosts, kind: int, work: int, tokens: int, longest: int, num: int) -> float:
    """Bound the seconds of every division of the samples into micro-batches from below; most are hardly slower. O(1).

    With v micro-batches of total cost S, without constants, of which the costliest sample takes x, the pipeline takes
    at least `S + v c + (pp - 1) (max(S / v, x) + c)`. That is least at v = S / x, or before it at
    `sqrt((pp - 1) S / c)`, within `ceil(tokens / capacity) <= v <= num`. See also `GroupCosts.enough`.

    Args:
        costs: of `GroupCosts.arrays`.
        kind: the pipeline's scheme.
        work, tokens, longest, num: sum of s^2, sum of s, greatest s, and number of the samples.
    """
    if num == 0:
        return 0.0
    quadratic, linear, constant, waiting = rates_of(costs.rates, kind)
    total: float = quadratic * work + linear * tokens
    fewest = -(-tokens // costs.capacity[kind])
    if waiting == 0.0:
        found: float = total + fewest * constant
        return found
    alone = (quadratic * longest + linear) * longest
    best = total / alone
    if constant > 0.0:
        best = min(best, np.sqrt(waiting * total / constant))
    least = np.inf
    most = max(fewest, min(num, int(tokens / costs.rates[4, kind])))
    for near in range(2):
        v = min(max(int(best) + near, fewest), most)
        least = min(least, total + v * constant + waiting * (max(total / v, alone) + constant))
    return least


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
    """Find all schemes worth having, by rising capacity, of equal ones the cheapest last. Price: milliseconds.

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
        memory = model.memory
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


def _gpu_seconds(scheme: Scheme, tokens: int) -> float:
    quadratic, linear, constant = scheme.rates
    return scheme.group.num_gpus * (quadratic * tokens * tokens + linear * tokens + constant)
