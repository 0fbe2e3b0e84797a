"""The ways to run replicas: the degrees and the synchronization that a trainer can do, and that these GPUs have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from packer_cli.config.plan_options import PlanConfig
from packer_cli.cost.models import GpuModel
from packer_cli.errors import ConfigError
from packer_cli.format.layout import DEGREES, Layout

MOST_STAGES = 8


class Way(NamedTuple):
    """One way to run replicas."""

    layouts: tuple[Layout, ...]
    """Layouts that groups of one plan may have; they differ in how they share rows."""
    lockstep: str


def ways(config: PlanConfig, model: GpuModel) -> Iterator[Way]:
    """Yield the ways to run a plan with these options that the trainer has, the simplest first, each with a layout.

    `--parallel` and `--lockstep` stay as they were given. Where stages or tensor parallelism keep weights, no
    micro-batch gathers them, and nothing but the end of a step makes replicas meet.

    Args:
        model: with weights gathered in every micro-batch.
    """
    model = model.of_lockstep(config.lockstep)
    able = config.abilities.union(name for name in DEGREES if getattr(config.layout, name) > 1)
    able -= frozenset() if config.max_path_tokens is None else {"cp"}  # It would divide what a token sees.
    is_fixed = "lockstep" in {*config.model_fields_set, *config.planner.ignores} or config.global_tokens is None
    for parallel in [config.layout] if config.parallel else _parallels(model, config.gpus, able):
        layouts = [each for each in model.layouts(config.gpus, parallel) if each.sp == 1 or "sp" in able]
        sets = [layouts] if "degrees" in able else [[each] for each in layouts]
        if "cp" in able and not config.parallel:  # `--parallel` gives it to all groups.
            sets += [[parallel._replace(cp=cp)] for cp in _powers(config.gpus // parallel.num_gpus)[1:]]
        known = (tuple(each for each in some if _is_known(model, each, config.gpus)) for some in sets)
        kinds = [config.lockstep]
        if not is_fixed:
            kinds = [str(model.shard_gpus or "all")] if "fsdp" in able and parallel.tp * parallel.pp == 1 else []
            kinds += ["1"] if "zero-1" in able else []
            kinds = kinds or [config.lockstep] * (config.parallel is not None)
        yield from (Way(some, kind) for some in known if some for kind in kinds)


def _parallels(model: GpuModel, num_gpus: int, able: frozenset[str]) -> Iterator[Layout]:
    """Yield degrees of TP and PP that divide the GPUs: powers of two, TP inside a node, a few stages."""
    links = None if model.shard_gpus else model.cost.model_parallel
    most_tp = links.gpus_per_node if links and "tp" in able else 1
    most_pp = MOST_STAGES if links and "pp" in able else 1
    for pp in _powers(min(most_pp, num_gpus)):
        for tp in _powers(min(most_tp, num_gpus // pp)):
            if num_gpus % (tp * pp) == 0:
                yield Layout(tp=tp, pp=pp)


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def _is_known(model: GpuModel, layout: Layout, num_gpus: int) -> bool:
    with suppress(ConfigError):
        model.cost.require_known(layout)
        return (model.shard_gpus or num_gpus) % layout.num_gpus == 0
    return False
