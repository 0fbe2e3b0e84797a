"""One row of a comparison, run in its own process: plan, check, measure."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.errors import RunError
from packer_cli.format.metrics import PlanFigures
from packer_cli.format.trees import ItemTrees
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.pieces import Samples, SizeRule, pieces_to_plan
from packer_cli.plan.figures import plan_figures, prove_by_program
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plan.warming import warm_up
from packer_cli.simulate.figures import EpochFigures, Simulator
from packer_cli.sizes import Share

_NUM_REHEARSED = 2000
"""About how many samples are planned before the clock starts."""


@dataclass(frozen=True, kw_only=True)
class RowTask:
    """The task of a row's process."""

    request: PlanRequest
    rule: SizeRule
    folder: Path
    """The folder given to `save_samples`."""
    weights: tuple[Share, ...]
    simulator: Simulator | None = None
    """Predicts the epoch's time."""
    by_program: bool = False
    """Also prove the least number of packs, see `plan.figures.prove_by_program`."""


@dataclass(frozen=True, kw_only=True)
class RowFigures(PlanFigures):
    """The figures of a row's plan, and what it took to plan."""

    seconds: float | None
    """Time of `build_plan` with its kernels loaded; None of a plan that was there already."""
    peak_bytes: int | None
    """Peak memory of choosing and planning the samples, above the samples themselves and the memory that a rehearsal
    on a few of them had freed; None if the system does not report it."""
    cut_off: bool
    """Whether a packing used up its time limit."""
    simulation: EpochFigures | None
    """The predicted epoch; None without a simulator."""


def save_samples(samples: Samples, folder: Path) -> None:
    """Save the samples as files that all row processes map."""
    trees = {} if samples.trees is None else samples.trees._asdict()
    for name, values in {"lengths": samples.lengths, "sources": samples.sources, **trees}.items():
        if values is not None:
            np.save(folder / f"{name}.npy", values)


def row_figures(task: RowTask) -> RowFigures:
    """Plan, check and measure."""
    request = task.request
    warm_up(request)
    samples = _load_samples(task)
    _rehearse(samples, task)
    algorithm, seconds_of_calls = request.algorithm, [0.0]

    def timed(*arguments: Any, **more: Any) -> Any:
        begin = time.perf_counter()
        packs = algorithm.pack(*arguments, **more)
        seconds_of_calls.append(time.perf_counter() - begin)
        return packs

    request = replace(request, algorithm=replace(algorithm, pack=timed))
    memory = PeakMemory()
    pieces = pieces_to_plan(samples, task.rule, request.seed)
    begin = time.perf_counter()
    plan = build_plan(pieces, request)
    seconds = time.perf_counter() - begin
    peak_bytes = memory.num_bytes()
    check_plan(plan)
    metrics = plan_figures(plan, request, samples.sources)
    return RowFigures(
        seconds=round(seconds, 6),
        peak_bytes=peak_bytes,
        cut_off=max(seconds_of_calls) >= getattr(request.packing_options, "time_limit", np.inf),
        **vars(prove_by_program(metrics, plan) if task.by_program else metrics),
        simulation=task.simulator.figures(plan) if task.simulator else None,
    )


def _rehearse(samples: Samples, task: RowTask) -> None:
    """Plan some of the samples, to load every kernel that these lengths need before the clock starts."""
    num = len(samples.lengths)
    some = np.arange(0, num, 1 + num // _NUM_REHEARSED, dtype=np.int32)
    few = replace(samples, sources=None, among=some).alone()
    options = task.request.packing_options
    if hasattr(options, "time_limit"):
        options = type(options)(**vars(options) | {"time_limit": min(0.1, options.time_limit)})
    with suppress(RunError):  # None of these few may fit.
        build_plan(pieces_to_plan(few, task.rule, task.request.seed), replace(task.request, packing_options=options))


def _load_samples(task: RowTask) -> Samples:
    """Map the samples and read them once, so that the plan is not charged for them."""
    # Numba would compile kernels anew for read-only ones.
    found = {path.stem: np.load(path, mmap_mode="c") for path in task.folder.glob("*.npy")}
    lengths, sources = found.pop("lengths"), found.pop("sources", None)
    lengths.max(initial=0)
    trees = None if task.request.path_percent is None else ItemTrees(**found)
    return Samples(lengths=lengths, sources=sources, weights=task.weights, trees=trees)


class PeakMemory:
    """The peak memory of this process, above the memory at the object's creation.

    Linux reports the current memory and can reset the peak. Elsewhere only the highest peak so far is known, so work
    that stays below an earlier peak seems to take nothing.
    """

    def __init__(self) -> None:
        with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self._before = _status("VmRSS") or _highest()

    def num_bytes(self) -> int:
        """Bytes so far."""
        return max(0, (_status("VmHWM") or _highest()) - self._before)


def _status(name: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), None)
    except OSError:
        return None


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
