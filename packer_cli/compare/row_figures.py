"""One row of a comparison, in a process of its own: plan, check, measure."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.compare.memory import PeakMemory
from packer_cli.config import PlanConfig
from packer_cli.config.rules import plan_rules
from packer_cli.errors import RunError
from packer_cli.plan.build import build_plan
from packer_cli.plan.check import check_plan
from packer_cli.plan.figures import plan_figures, prove_by_program
from packer_cli.plan.packing import PackingAlgorithm
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.samples import Samples, pieces_to_plan
from packer_cli.plan.types import Int32Array, Int64Array, Pieces
from packer_cli.plan.warming import warm_up
from packer_cli.simulate.figures import Simulator

_LENGTHS = "lengths.npy"
_SOURCES = "sources.npy"
_REHEARSED = 2000


@dataclass(frozen=True, kw_only=True)
class RowTask:
    """What the process of a row is told."""

    config: PlanConfig
    folder: Path
    """Of `save_samples`."""
    weights: tuple[float, ...]
    simulator: Simulator | None = None
    """What predicts the epoch's time."""
    by_program: bool = False
    """As `plan.figures.prove_by_program` does."""


def save_samples(samples: Samples, folder: Path) -> None:
    """Where all rows can map them."""
    np.save(folder / _LENGTHS, samples.lengths)
    if samples.sources is not None:
        np.save(folder / _SOURCES, samples.sources)


def row_figures(task: RowTask) -> dict[str, Any]:
    """JSON values: `overall` and `groups` as in `plan.figures.plan_stats`, and what the plan cost.

    `seconds` are those of `build_plan` with its kernels loaded. `peak_bytes` is what choosing and planning the samples
    held at most, above the samples themselves and what the rehearsal on a few of them left free to use again.
    `cut_off` says that a packing took all of its time limit. With a simulator, `simulation` is what it says.
    """
    rules = plan_rules(task.config)
    warm_up(rules)
    samples = _load_samples(task)
    _rehearse(samples, task.config, rules)
    packing = _Timed(rules.algorithm, getattr(rules.packing_options, "time_limit", None))
    rules = packing.within(rules)
    memory = PeakMemory()
    pieces = _pieces(samples, task.config)
    begin = time.perf_counter()
    plan = build_plan(pieces, rules)
    seconds = time.perf_counter() - begin
    peak_bytes = memory.num_bytes()
    check_plan(plan)
    figures = plan_figures(plan, task.config.seed, samples.sources, rules.linear)
    if task.by_program:
        prove_by_program(figures, plan)
    return {
        "seconds": round(seconds, 6),
        "peak_bytes": peak_bytes,
        "cut_off": packing.is_cut_off,
        **figures,
        **({"simulation": task.simulator.figures(plan)} if task.simulator else {}),
    }


def _rehearse(samples: Samples, config: PlanConfig, rules: PlanRules) -> None:
    """Plan some of the samples, so that whatever kernel these lengths need is loaded before the clock starts."""
    some = slice(None, None, 1 + len(samples.lengths) // _REHEARSED)
    few = replace(samples, lengths=samples.lengths[some], sources=None)
    options = rules.packing_options
    if hasattr(options, "time_limit"):
        options = type(options)(**vars(options) | {"time_limit": min(0.1, options.time_limit)})
    with suppress(RunError):  # None of the few can be planned.
        build_plan(_pieces(few, config), replace(rules, packing_options=options))


def _pieces(samples: Samples, config: PlanConfig) -> Pieces:
    return pieces_to_plan(samples, config.groups[-1].capacity, config.overflow, config.seed)


def _load_samples(task: RowTask) -> Samples:
    """Mapped, and read once, so that they are no part of what the plan takes."""
    lengths = np.load(task.folder / _LENGTHS, mmap_mode="r")
    lengths.max(initial=0)
    path = task.folder / _SOURCES
    sources = np.load(path, mmap_mode="r") if path.exists() else None
    return Samples(lengths=lengths, sources=sources, weights=task.weights)


class _Timed:
    """A packing algorithm that notes whether a call took as long as it may."""

    def __init__(self, algorithm: PackingAlgorithm, time_limit: float | None) -> None:
        self.is_cut_off = False
        self._algorithm = algorithm
        self._time_limit = time_limit

    def within(self, rules: PlanRules) -> PlanRules:
        """The rules with this algorithm."""
        return replace(rules, algorithm=replace(self._algorithm, pack=self._pack))

    def _pack(self, lengths: Int32Array, capacity: int, seed: int, options: Any) -> tuple[Int64Array, Int64Array]:
        begin = time.perf_counter()
        packs = self._algorithm.pack(lengths, capacity, seed, options)
        if self._time_limit is not None and time.perf_counter() - begin >= self._time_limit:
            self.is_cut_off = True
        return packs
