"""Which layouts the steps may use: the dynamic program's candidates, tried on a sample of the real steps.

Each layout costs a trainer process groups and a switch of its parameters, so only those stay that pay. The paper's
candidates follow from the lengths alone. Here the steps are known, so layouts are timed on some of them, and neighbors
of the best ones (some pipelines exchanged for others on as many GPUs) may join. Price: 1 to 10 s, bounded by counts.

`printed_layouts` are the paper's: candidates are traced from the dynamic program over the lengths of the whole data
set, with the printed cost, for every greatest length, after one layout of a single scheme. No other is timed, and no
neighbor is added. A step takes the candidate on which stage 2 leaves its slowest pipeline fastest. What is ours there:

- GPUs that a traced layout leaves idle get more pipelines, and a layout on which some stay idle is left out.
- The single scheme is that of the optimizer's states in the paper, which the user chooses. Here it is the one that is
  fastest on some of the steps, of those that hold the longest sample.
- At most `MOST_PROCESS_GROUPS` candidates stay, spread evenly over the greatest lengths: each may add a process group
  to every GPU, and the checker allows no more.

`measure_imbalances` are the four imbalances that the paper names, in our definitions; docs/metrics.md explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packer_cli.plan.core.check import MOST_PROCESS_GROUPS
from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import pack_tokens_and_work, select_packs
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Plan, Schedule, UInt64Array
from packer_cli.plan.packing.base import PackingAlgorithm
from packer_cli.plan.packing.next_fit import cut_steps
from packer_cli.plan.strategies.hydraulis.candidates import (
    LengthTable,
    fill_up,
    find_layouts,
    length_table,
    longest_held,
    of_one_scheme,
    require_held,
)
from packer_cli.plan.strategies.hydraulis.stage1 import Step, deal_as_printed, deal_to_pipelines
from packer_cli.plan.strategies.hydraulis.stage2 import Deal, plan_step
from packer_cli.plan.strategies.protocol import LayoutChoice, LayoutRow, PlanRequest, SchemeRow, digits

MOST_LAYOUTS = 12
"""Most layouts of all steps together. The paper's case study has 7."""
SAMPLE_STEPS = 32
"""Steps on which layouts are tried, at most."""
_LEAST_GAIN = 1e-3
"""Share of the total time that a layout must save to join."""
_SAMPLES = 12_800
"""About how many samples these steps may have together; fewer steps, if more, but at least 4."""
_NEIGHBORS = 300
"""Layouts to try besides those of the dynamic program; fewer, if the steps have many samples."""
_FEW = 8
"""A neighbor that is best in none of the first steps, so many or a quarter of all, is not tried on the others."""


def choose_layouts(
    steps: Sequence[Int64Array], lengths: Int64Array, batch_tokens: int, costs: GroupCosts, num_gpus: int
) -> Int64Array:
    """Choose layouts (int64[c, k], pipelines of each scheme) for a data set, that which saves most first.

    Args:
        steps: samples of a few steps, int64[n] each, by falling length.
        lengths: of all samples, int64[n]; one of the layouts holds the longest.
        batch_tokens: of a step.

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    table = length_table(lengths, batch_tokens)
    tried: dict[tuple[int, ...], Float64Array] = {}
    few = max(_FEW, len(steps) // 4)

    def add(counts: Int64Array, best: Float64Array | None = None) -> None:
        """Try a layout, on a few steps only if it is best in none of them."""
        key = tuple(counts.tolist())
        if key in tried:
            return
        seconds = tried[key] = np.full(len(steps), np.inf)
        for j, step in enumerate(steps):
            if best is not None and j == few and (seconds[:j] > best[:j]).all():
                seconds[:] = np.inf
                break
            seconds[j] = layout_seconds(step, counts, costs)

    for counts in [*find_layouts(table, costs, num_gpus), *of_one_scheme(costs, num_gpus)]:
        whole = fill_up(counts, table, costs, num_gpus)
        if whole is not None:
            add(whole)
    chosen = _select(tried, int(table.longest[-1]), costs, num_gpus)
    left = _NEIGHBORS * _SAMPLES // max(_SAMPLES, sum(map(len, steps)))
    expanded: set[tuple[int, ...]] = set()
    while left > 0:
        waiting = [key for key in chosen if key not in expanded]
        if not waiting:
            break
        expanded.add(waiting[0])
        best = np.min([tried[key] for key in chosen], axis=0)
        for counts in _neighbors(np.array(waiting[0]), costs):
            if left > 0 and tuple(counts.tolist()) not in tried:
                add(counts, best)
                left -= 1
        chosen = _select(tried, int(table.longest[-1]), costs, num_gpus)
    return np.array(chosen)


def make_batches(lengths: Int32Array, batch_tokens: int, seed: int) -> tuple[Int32Array, Int64Array]:
    """Return `(order int32[n], offsets int64[b+1])`: batch j holds `order[offsets[j]:offsets[j+1]]`, longest first.

    Args:
        lengths: int32[n], tokens.
        batch_tokens: most tokens of a batch; a longer sample is a batch of its own.

    >>> order, offsets = make_batches(np.array([3, 3, 3, 9], dtype=np.int32), 6, seed=1)
    >>> [np.array([3, 3, 3, 9])[order[a:b]].tolist() for a, b in zip(offsets, offsets[1:])]
    [[3], [9], [3, 3]]
    """
    order = shuffled(len(lengths), rng_state(seed, Stream.ORDER))
    offsets = cut_steps(lengths[order], batch_tokens)
    batch = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return order[np.lexsort((-lengths[order].astype(np.int64), batch))], offsets


def sampled_steps(offsets: Int64Array) -> Int64Array:
    """Choose steps (int64) on which to try layouts: evenly among all, fewer if they have many samples.

    Args:
        offsets: int64[s+1], of the samples of each step.
    """
    num_steps = len(offsets) - 1
    number = min(num_steps, SAMPLE_STEPS, max(4, _SAMPLES * num_steps // max(1, int(offsets[-1]))))
    return np.unique(np.linspace(0, num_steps - 1, number).astype(np.int64))


def steps_to_try(falling: Int64Array, offsets: Int64Array) -> list[Int64Array]:
    """Return the samples (int64[n], falling within each step) of `sampled_steps`."""
    return [falling[offsets[j] : offsets[j + 1]] for j in sampled_steps(offsets).tolist()]


def kinds_of(counts: Int64Array, costs: GroupCosts) -> Int64Array:
    """Return the schemes (int64[p]) of a layout's pipelines, by falling capacity."""
    kinds = np.repeat(np.arange(len(counts)), counts)
    return kinds[np.argsort(-costs.capacity[kinds], kind="stable")]


def layout_seconds(
    falling: Int64Array, counts: Int64Array, costs: GroupCosts, deal: Deal = deal_to_pipelines
) -> float:
    """Predict the seconds of a step (int64[n], falling lengths) on a layout; infinite if the step does not fit."""
    return plan_step(Step(falling, kinds_of(counts, costs), costs.arrays), rng_state(0), deal).seconds


def _neighbors(counts: Int64Array, costs: GroupCosts) -> Iterator[Int64Array]:
    """Yield layouts in which 1 to 4 pipelines of a scheme give way to 1 to 4 of another, on as many GPUs."""
    for old in np.flatnonzero(counts).tolist():
        for new in range(len(costs)):
            for number in range(1, 5):
                gpus = number * int(costs.gpus[old])
                if (
                    new != old
                    and number <= counts[old]
                    and gpus % costs.gpus[new] == 0
                    and gpus // costs.gpus[new] <= 4
                ):
                    neighbor = counts.copy()
                    neighbor[old] -= number
                    neighbor[new] += gpus // int(costs.gpus[new])
                    yield neighbor


def _select(
    tried: dict[tuple[int, ...], Float64Array], longest: int, costs: GroupCosts, num_gpus: int
) -> list[tuple[int, ...]]:
    """Select by greed the layouts whose fastest ones make all steps together fastest; the first holds every sample."""
    keys = list(tried)
    layouts = np.array(keys, dtype=np.int64).reshape(-1, len(costs))
    require_held(layouts, longest, costs, num_gpus)
    seconds = np.array([tried[key] for key in keys])
    chosen = [int(np.argmin(np.where(longest_held(layouts, costs) >= longest, seconds.sum(axis=1), np.inf)))]
    best = seconds[chosen[0]]
    while len(chosen) < MOST_LAYOUTS:
        totals: Float64Array = np.minimum(seconds, best).sum(axis=1)
        following = int(np.argmin(totals))
        if totals[following] > best.sum() * (1 - _LEAST_GAIN):
            break
        chosen.append(following)
        best = np.minimum(best, seconds[following])
    return [keys[each] for each in chosen]


def printed_layouts(
    steps: Sequence[Int64Array], lengths: Int64Array, batch_tokens: int, costs: GroupCosts, num_gpus: int
) -> Int64Array:
    """Find the paper's candidates (int64[c, k]), the one that holds most first. Price: that of the dynamic program.

    Args: as of `choose_layouts`; the steps decide the layout of one scheme.

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    table = length_table(lengths, int(lengths.sum()))
    traced = find_layouts(table, costs, num_gpus, as_printed=True)
    whole = [fill_up(counts, table, costs, num_gpus) for counts in traced]
    one = _of_one(steps, table, costs, num_gpus)
    keys = dict.fromkeys(tuple(each.tolist()) for each in [one, *whole] if each is not None)
    found = np.array([*keys], dtype=np.int64).reshape(-1, len(costs))
    require_held(found, int(table.longest[-1]), costs, num_gpus)
    falling = np.argsort(-longest_held(found, costs), kind="stable")
    kept = np.unique(np.linspace(0, len(keys) - 1, min(len(keys), MOST_PROCESS_GROUPS)).astype(np.int64))
    return found[falling[kept]]


def _of_one(steps: Sequence[Int64Array], table: LengthTable, costs: GroupCosts, num_gpus: int) -> Int64Array | None:
    """Find the layout of one scheme that holds the longest sample and is fastest on the steps, if there is one."""
    held = (
        fill_up(counts, table, costs, num_gpus)
        for counts in of_one_scheme(costs, num_gpus)
        if costs.capacity[int(np.argmax(counts))] >= table.longest[-1]
    )
    whole = [counts for counts in held if counts is not None]
    return min(whole, key=lambda counts: sum(layout_seconds(step, counts, costs) for step in steps), default=None)


@dataclass(frozen=True, kw_only=True)
class StepPacker(PackingAlgorithm):
    """One way to find layouts, and to plan a step on one of them; `pack` is stage 1, a `Deal`.

    `pack` is no kernel: a process that is given one would compile it again."""

    find: Callable[[Sequence[Int64Array], Int64Array, int, GroupCosts, int], Int64Array]
    """(some steps, all samples, tokens of a step, costs, GPUs) -> the layouts of all steps, int64[c, k]"""


def _deal(step: Step, state: UInt64Array, pipeline_of: Int64Array) -> float:
    return deal_to_pipelines(step, state, pipeline_of)


def _deal_as_printed(step: Step, state: UInt64Array, pipeline_of: Int64Array) -> float:
    return deal_as_printed(step, state, pipeline_of)


SEARCH = StepPacker(
    name="search",
    summary="layouts timed on steps of the data, samples dealt by predicted time and exchanged",
    pack=_deal,
    find=choose_layouts,
)
PUBLISHED = StepPacker(
    name="published",
    summary="the layouts of Hydraulis's dynamic program as printed, and its stage 1 with 50 shuffled orders",
    pack=_deal_as_printed,
    find=printed_layouts,
)
PACKERS: Mapping[str, StepPacker] = {packer.name: packer for packer in (SEARCH, PUBLISHED)}


def measure_imbalances(plan: Plan, request: PlanRequest) -> dict[str, float | None]:
    """Measure the `PipelineImbalances` of the plan's first epoch. O(pieces + slots), and 32 steps on each layout."""
    schedule, costs = plan.epochs[0], GroupCosts.of(request.groups, request.rates)
    costs = costs.select([request.groups.index(group) for group in plan.groups])
    tokens, work = pack_tokens_and_work(plan.packs.offsets, plan.packs.pieces, plan.pieces.length)
    seconds = np.append(costs.seconds(plan.packs.group.astype(np.int64), work, tokens), 0.0)[schedule.slot_pack]
    first = np.flatnonzero(schedule.begins_replica)
    number = np.diff(np.append(first, len(seconds)))
    total, greatest = np.add.reduceat(seconds, first), np.maximum.reduceat(seconds, first)
    is_busy = total > 0
    pipeline = total + costs.rates[3, schedule.slot_group[first]] * greatest
    begins = np.flatnonzero(np.diff(schedule.slot_iteration[first], prepend=-1))
    in_iteration = np.diff(np.append(begins, len(first)))
    slowest = np.maximum.reduceat(pipeline, begins)
    between = slowest * in_iteration / np.add.reduceat(pipeline, begins)
    return {
        "sampling_within": _oversized_share(plan, costs),
        "sampling_between": _gain_of_layouts(plan, schedule, costs),
        "packing_within": float((number * greatest / np.maximum(total, 1e-300))[is_busy].mean()),
        "packing_between": float(between.mean()),
    }


def _oversized_share(plan: Plan, costs: GroupCosts) -> float:
    capacities = np.unique(costs.capacity)
    length = plan.pieces.length[plan.packs.pieces]
    own = np.repeat(costs.capacity[plan.packs.group], np.diff(plan.packs.offsets))
    least = capacities[np.searchsorted(capacities, length)]
    return float(length[own > least].sum(dtype=np.int64) / length.sum(dtype=np.int64))


def _gain_of_layouts(plan: Plan, schedule: Schedule, costs: GroupCosts) -> float | None:
    first = schedule.begins_replica
    counts = np.zeros((schedule.num_iterations, len(costs)), dtype=np.int64)
    np.add.at(counts, (schedule.slot_iteration[first], schedule.slot_group[first]), 1)
    layouts = np.unique(counts, axis=0)
    of_slot = np.append(np.diff(plan.packs.offsets), 0)[schedule.slot_pack]
    number = np.bincount(schedule.slot_iteration, weights=of_slot, minlength=schedule.num_iterations)
    chosen = sampled_steps(np.concatenate([[0], np.cumsum(number)]))
    steps = [_falling(plan, schedule, iteration) for iteration in chosen.tolist()]
    seconds: Float64Array = np.array([[layout_seconds(step, layout, costs) for step in steps] for layout in layouts])
    of_one = float(seconds.sum(axis=1).min())
    return of_one / float(seconds.min(axis=0).sum()) if np.isfinite(of_one) else None


def _falling(plan: Plan, schedule: Schedule, iteration: int) -> Int64Array:
    """Return the lengths (int64[n], falling) of the samples of an iteration."""
    packs = schedule.slot_pack[schedule.slot_iteration == iteration]
    _, pieces = select_packs(plan.packs.offsets, plan.packs.pieces, packs[packs != FILLER])
    return -np.sort(-plan.pieces.length[pieces].astype(np.int64))


def choose_step_layouts(lengths: Int32Array, request: PlanRequest) -> LayoutChoice:
    """Choose the layouts for samples (int32[n]), as planning chooses them. Price: see `hydraulis.layouts`.

    Args:
        request: of a strategy that finds layouts.
    """
    costs, global_tokens = GroupCosts.of(request.groups, request.rates), request.steps.global_tokens
    assert global_tokens is not None
    order, offsets = make_batches(lengths, global_tokens, request.seed)
    falling, packer = lengths[order].astype(np.int64), request.algorithm
    steps = steps_to_try(falling, offsets)
    layouts = packer.find(steps, falling, global_tokens, costs, request.num_gpus)
    tried = np.array([[layout_seconds(step, counts, costs, packer.pack) for step in steps] for counts in layouts])
    used = np.flatnonzero(layouts.sum(axis=0)).tolist()
    fastest = np.bincount(tried.argmin(axis=0), minlength=len(layouts)) / len(steps)
    names = {kind: pipeline_name(request.groups[kind]) for kind in used}
    return LayoutChoice(
        schemes=tuple(
            SchemeRow(
                name=names[kind],
                layout=request.groups[kind].layout._asdict(),
                num_gpus=int(costs.gpus[kind]),
                capacity=int(costs.capacity[kind]),
                checkpoint_layers=request.groups[kind].checkpoint_layers,
                gpu_seconds_short=_gpu_seconds(costs, kind, min(1024, int(costs.capacity[kind]))),
                gpu_seconds_long=_gpu_seconds(costs, kind, int(costs.capacity[kind])),
            )
            for kind in used
        ),
        layouts=tuple(
            LayoutRow(
                pipelines={names[kind]: int(counts[kind]) for kind in reversed(used) if counts[kind]},
                longest=int(longest),
                fastest=float(share),
                step_seconds=digits(float(seconds.mean())) if np.isfinite(seconds).all() else None,
            )
            for counts, longest, share, seconds in zip(
                layouts, longest_held(layouts, costs), fastest, tried, strict=True
            )
        ),
        step_seconds=digits(float(tried.min(axis=0).mean())),
        num_steps=len(offsets) - 1,
        num_tried=len(steps),
        num_gpus=request.num_gpus,
        global_tokens=global_tokens,
    )


def pipeline_name(group: Group) -> str:
    """Name a pipeline by its degrees above 1 and its capacity.

    >>> pipeline_name(Group(capacity=17280, tp_size=2, pp_size=4))
    'tp2-pp4:17280'
    """
    degrees = [f"{name}{size}" for name, size in group.layout._asdict().items() if size > 1]
    return f"{'-'.join(degrees) or '1gpu'}:{group.capacity}"


def _gpu_seconds(costs: GroupCosts, kind: int, length: int) -> float:
    """Predict the GPU-seconds of a million tokens in samples of one length, in full micro-batches."""
    number = max(1, int(costs.capacity[kind]) // length)
    seconds = float(costs.seconds(kind, number * length * length, number * length))
    return digits(seconds * float(costs.gpus[kind]) / (number * length) * 1e6)
