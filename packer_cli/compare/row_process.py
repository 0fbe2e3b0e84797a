"""One row of a comparison: its plans on every layout, the fastest, and its process: plan, check, measure."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.config.fields import ABILITIES, asked_of_trainer, default_of
from packer_cli.config.groups import as_named, used_groups, write_parallel
from packer_cli.config.resolve import Resolved, resolve
from packer_cli.cost.predict import GpuModel
from packer_cli.errors import ConfigError, HbpackError, RunError
from packer_cli.format.layout import ONE_GPU
from packer_cli.format.metrics import PlanFigures
from packer_cli.groups.settings import ways
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import Samples, pieces_to_plan
from packer_cli.plan.core.groups import Group, SizeRule
from packer_cli.plan.core.types import Pieces
from packer_cli.plan.figures import plan_figures, prove_by_program
from packer_cli.plan.strategies.protocol import PlanRequest, stage_rates
from packer_cli.plan.warming import warm_up
from packer_cli.simulate.epoch import choose_layers
from packer_cli.simulate.figures import EpochFigures, Simulator, attention_work
from packer_cli.sizes import Share


def candidates(own: Resolved, model: GpuModel) -> tuple[Resolved, ...]:
    """List a row's plan as the options have it, if memory holds it, and on other layouts; at least one.

    A strategy that makes its groups of the longest gets that at every degree; one that takes all groups as they are
    keeps them. Where the trainer's layouts hold nothing, those of any trainer are tried.

    Args:
        own: with known groups.
        model: with weights gathered in every micro-batch.
    """
    if own.request.strategy.finds_layouts:
        return (own,)
    able = own.given.abilities | asked_of_trainer(own.request)
    for allowed in (able, frozenset(ABILITIES)):
        given = own.given.model_copy(update={"trainer": ",".join(sorted(allowed))})
        others = _on_layouts(given, model)
        found = {layout_key(each): each for each in others if holds(each, model)}
        if holds(own, model):
            found = {layout_key(own): own} | found
        if found:
            return tuple(found.values())
    return (own,)


def holds(plan: Resolved, model: GpuModel) -> bool:
    """Whether a full row of each group fits in memory, with as many layers checkpointed as the group says or needs."""
    memory = model.of_lockstep(plan.request.lockstep).memory
    return all(choose_layers(group, memory).fits for group in plan.request.groups)


def groups_and_degrees(plan: Resolved) -> dict[str, str]:
    """Return `groups` of a plan, and unusual `parallel` and `lockstep`, as options take them."""
    config, strategy, groups = plan.config, plan.request.strategy, plan.config.groups
    longest = as_named(groups[-1])
    if strategy.finds_layouts:
        groups = used_groups(plan.given.groups, strategy)
    elif strategy.groups([longest]) == groups:
        groups = (longest,)
    found = {"groups": ",".join(map(str, groups))}
    kinds = {group.layout._replace(sp=1) for group in groups}
    if len(kinds) == 1 and kinds != {ONE_GPU}:
        found["parallel"] = write_parallel(kinds.pop())
    if config.lockstep != default_of(PlanConfig.model_fields["lockstep"], config.strategy):
        found["lockstep"] = config.lockstep
    return found


def _on_layouts(given: PlanConfig, model: GpuModel) -> list[Resolved]:
    strategy, longest = given.planner, given.groups[-1]
    takes_all = len(given.groups) > 1 and all(strategy.groups(g) == g for g in (given.groups, (longest,)))
    found = []
    for way in ways(given, model):
        config = given.model_copy(update={"lockstep": way.lockstep})
        sets = [Group(capacity=longest.capacity, vpp_size=each.vpp, **each.sizes) for each in way.layouts]
        for groups in [given.groups] if takes_all else [(group,) for group in sets]:
            try:
                found.append(resolve(config.with_groups(groups)))
            except (ConfigError, ValueError):  # The strategy cannot plan so.
                continue
    return found


def layout_key(plan: Resolved) -> tuple[object, ...]:
    """Return a value that is equal for plans whose replicas run in the same way."""
    groups = (replace(group, checkpoint_layers=0) for group in plan.request.groups)
    return *groups, plan.request.lockstep


_NUM_REHEARSED = 2000
"""About how many samples are planned before the clock starts."""


@dataclass(frozen=True, kw_only=True)
class RowTask:
    """The task of a row's process."""

    requests: tuple[PlanRequest, ...]
    """One, or several, of which the fastest is planned."""
    rule: SizeRule
    folder: Path
    """The folder given to `save_samples`."""
    weights: tuple[Share, ...]
    scale: float
    """Times as many tokens that an epoch has as these samples, for the predicted one."""
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
    work_left_out: float = 0.0
    """Share of the samples' attention work that the plan does not do, since it cuts more of them than the options."""
    chosen: int = 0
    """Number of the request that the result is of."""


def save_samples(samples: Samples, folder: Path) -> None:
    """Save the samples as files that all row processes map."""
    folder.mkdir()
    for name, values in samples.columns().items():
        np.save(folder / f"{name}.npy", values)


def row_figures(task: RowTask) -> RowFigures:
    """Plan, check and measure the request whose epoch is shortest; where several are alike, the best two."""
    samples = _load_samples(task)
    best = fastest(task.requests, pieces_to_plan(samples, task.rule, task.requests[0].seed), task.simulator)
    found = [_measured(samples, task, k) for k in best]
    return min(found, key=lambda figures: figures.simulation.order if figures.simulation else (False, 0.0))


def fastest(requests: Sequence[PlanRequest], pieces: Pieces, simulator: Simulator | None) -> list[int]:
    """Find the request with the shortest predicted epoch of some of the pieces, and the next if it is as short."""
    if len(requests) == 1 or simulator is None:
        return [0]
    first = requests[0]
    mean = int(pieces.length.sum(dtype=np.int64)) / len(pieces)
    enough = _ITERATIONS * first.num_gpus * first.groups[-1].capacity / mean
    some = _some_of(pieces, int(min(max(enough, _FEWEST), _MOST)))
    found: list[tuple[tuple[bool, float], int]] = []
    numbers: Sequence[int] = range(len(requests))
    if first.strategy.keeps_steps:  # Each takes long.
        numbers = sorted(numbers, key=lambda k: _estimate(requests[k], some, simulator.model))[:_MOST_TRIED]
    for k in numbers:
        request = requests[k]
        with suppress(HbpackError, ValueError):  # Others may do.
            found.append((simulator.figures(build_plan(some, request)).order, k))
    found.sort()
    best = [k for (_, seconds), k in found[:2] if seconds <= found[0][0][1] * (1 + _ALIKE)]
    is_sure = len(some) == len(pieces) or first.strategy.keeps_steps
    return (best[:1] if is_sure else best) or [0]


def _estimate(request: PlanRequest, pieces: Pieces, model: GpuModel) -> float:
    """Estimate seconds of an epoch without waiting, each piece in full rows of the group where it takes least."""
    model = model.of_lockstep(request.lockstep)
    length = pieces.length.astype(np.float64)
    least = np.full(len(length), np.inf)
    for group in request.groups:
        quadratic, linear, constant = stage_rates(group, model)
        in_row = linear + constant / group.capacity
        seconds = group.num_gpus * (quadratic * length + in_row) * length
        np.minimum(least, seconds, out=least, where=length <= group.capacity)
    longest = request.groups[-1]
    micro_batches = (request.steps.global_tokens or 0) / longest.capacity / longest.num_dp_ranks(request.num_gpus)
    bubbles = (longest.pp_size - 1) / max(1.0, micro_batches)
    return float(least.sum()) / request.num_gpus * (1 + bubbles)


_MOST_TRIED = 12
"""Layouts of a strategy that plans step by step; of more, those of the least estimates."""
_ITERATIONS = 4
_FEWEST, _MOST = 20_000, 50_000
"""Samples by which layouts are chosen: as many as rows of single GPUs have in so many iterations, in these limits."""
_ALIKE = 0.03
"""Share by which the second best may be slower on some of the samples and still be planned on all."""


def _some_of(pieces: Pieces, most: int) -> Pieces:
    """Take at most so many of the pieces, evenly over the lengths."""
    if len(pieces) <= most:
        return pieces
    order = np.argsort(pieces.length, kind="stable")
    return pieces.take(np.sort(order[((np.arange(most) + 0.5) * (len(pieces) / most)).astype(np.int64)]))


def _measured(samples: Samples, task: RowTask, number: int) -> RowFigures:
    request = task.requests[number]
    warm_up(request)
    _rehearse(samples, task.rule, request)
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
        simulation=task.simulator.figures(plan).scaled(task.scale) if task.simulator else None,
        work_left_out=round(1 - attention_work(plan.pieces) / max(1.0, attention_work(pieces)), 6),
        chosen=number,
    )


def _rehearse(samples: Samples, rule: SizeRule, request: PlanRequest) -> None:
    """Plan some of the samples, to load every kernel that these lengths need before the clock starts."""
    num = len(samples.lengths)
    some = np.arange(0, num, 1 + num // _NUM_REHEARSED, dtype=np.int32)
    few = replace(samples, sources=None, among=some).alone()
    options = request.packing_options
    if hasattr(options, "time_limit"):
        options = type(options)(**vars(options) | {"time_limit": min(0.1, options.time_limit)})
    with suppress(RunError):  # None of these few may fit.
        build_plan(pieces_to_plan(few, rule, request.seed), replace(request, packing_options=options))


def _load_samples(task: RowTask) -> Samples:
    """Map the samples and read them once, so that the plan is not charged for them."""
    # Numba would compile kernels anew for read-only ones.
    found = {path.stem: np.load(path, mmap_mode="c") for path in task.folder.glob("*.npy")}
    found["lengths"].max(initial=0)
    return Samples.of(found, task.weights)


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
        """Return the bytes so far."""
        return max(0, (_status("VmHWM") or _highest()) - self._before)


def _status(name: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), None)
    except OSError:
        return None


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
