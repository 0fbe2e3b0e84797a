"""Hydraulis: predicted speed-ups over single layouts by the published 7B costs, and the planner beside the optimum."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.strategies.hydraulis.layouts import PUBLISHED, kinds_of
from packer_cli.plan.strategies.hydraulis.plan import plan_data_set
from tests.benchmark.report import seconds, table
from tests.naive.hydraulis import fastest_step
from tests.plan.strategies.hydraulis import FITTED, both, fitted_costs, planned, random_step

NUM_GPUS = 64
_SAMPLES = 20_000
_SMALL_STEPS = 100
_MOST_SAMPLES = 8
"""Of those, for which all divisions are tried."""
MIXES: dict[str, tuple[float, float, float, float, float]] = {
    "CommonCrawl-like": (0.93, 6.3, 1.1, 2500, 1.1),
    "GitHub-like": (0.88, 6.5, 1.4, 3000, 0.9),
}
"""Share of lognormal samples, their mean and deviation of log length; least length and exponent of the Pareto rest."""
SETTINGS = ((32_768, 200_000), (32_768, 400_000), (16_384, 200_000), (32_768, 100_000))
"""Longest sample, and tokens of a step."""
PAPER = "1.32x to 2.66x"


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    costs = worth_having(fitted_costs())
    rows, ablation = [], []
    for name, mix in MIXES.items():
        lengths = draw(mix)
        for longest, batch_tokens in SETTINGS:
            print(f"hydraulis: {name}, {longest}, {batch_tokens}", file=sys.stderr)
            measured = compare(np.minimum(lengths, longest).astype(np.int32), costs, longest, batch_tokens)
            rows.append([f"{name}, {longest // 1024}K", f"{batch_tokens // 1000}K", *measured.cells()])
            ablation.append([f"{name}, {longest // 1024}K", f"{batch_tokens // 1000}K", *measured.ablation()])
    header = [
        "lengths", "a step", "best single layout", "packed to the longest", "single, balanced", "as published",
        "Hydraulis", "over packed to the longest", "over single, balanced", "over as published", "layouts used",
        "CPU a step, layouts included",
    ]  # fmt: skip
    steps = ["lengths", "a step", "0", "1", "2", "3", "4"]
    return "\n\n".join(
        [
            _intro(),
            f"**Mean seconds a step, by the model**\n\n{table(header, rows)}",
            _ours_and_the_papers(),
            (
                "**The paper's ablation**, speed over baseline 0: one sample a row, padded to the longest (0); the "
                "sorted batch cut evenly, greedy packs (1); stage 1, greedy packs padded to the longest (2); the same "
                "without padding (3); all of Hydraulis (4). 0 and 1 run on the best single layout, 2 to 4 on the "
                f"layouts that Hydraulis chose.\n\n{table(steps, ablation)}"
            ),
            _optimum(),
        ]
    )


def _intro() -> str:
    mixes = "; ".join(
        f"{name}: {share:.0%} lognormal (log mean {mean}, deviation {deviation}), the rest Pareto from {least:,} "
        f"tokens on with exponent {exponent}"
        for name, (share, mean, deviation, least, exponent) in MIXES.items()
    )
    return (
        "Hydraulis divides the GPUs of each step among pipelines of unlike tp and pp. Times follow from the costs and "
        f"the memory formula of its public code for a 7B model on A800s, {len(FITTED)} schemes of tp 1 to 16 and pp 1 "
        f"to 8, on {NUM_GPUS} GPUs. A step takes as long as its slowest pipeline: the sum of its micro-batches and "
        f"(pp - 1) times the longest. The lengths are drawn, and cut at the longest; {mixes}. The paper's own samples "
        "of both data sets are not published."
    )


def _ours_and_the_papers() -> str:
    return (
        f"**The paper** measures {PAPER} over Megatron-LM, DeepSpeed and HotSPa, for 7B to 32B on both "
        "data sets; its values for each setting are only in a figure. *Packed to the longest* is its Megatron-LM: one "
        "layout for all steps, the best of the table that holds the longest sample; rows packed to the longest length "
        "in the order of the data, and dealt to the pipelines in turn. What differs: the lengths are ours; only the "
        "model's costs count (no gradient synchronisation, no switch of layouts, which the paper overlaps); "
        "the baseline's layout is tuned by the same model that predicts it; and the costs end at tp 16 and pp 8, with "
        "no context parallelism. *Single, balanced* is the same layout with our stages 1 and 2: what is left is the "
        "gain of unlike pipelines, and of changing them. *As published* is `--packing published`."
    )


def draw(mix: tuple[float, float, float, float, float]) -> np.ndarray:
    """Lengths of a mix, at least 16 tokens."""
    share, mean, deviation, least, exponent = mix
    rng = np.random.default_rng(0)
    long = (rng.pareto(exponent, _SAMPLES) + 1) * least
    drawn = np.where(rng.random(_SAMPLES) < share, rng.lognormal(mean, deviation, _SAMPLES), long)
    return np.maximum(drawn, 16)


def worth_having(costs: GroupCosts) -> GroupCosts:
    """Without the schemes that hold less than 1,024 tokens."""
    return costs.select(np.flatnonzero(costs.capacity >= 1024).tolist())


class Compared(NamedTuple):
    """Mean seconds a step."""

    scheme: str
    packed: float
    balanced: float
    published: float
    planned: float
    num_layouts: int
    cpu: float
    baselines: tuple[float, ...]
    """0 to 3 of the ablation."""

    def cells(self) -> list[str]:
        """For the table."""
        return [
            self.scheme, f"{self.packed:.3f}", f"{self.balanced:.3f}", f"{self.published:.3f}",
            f"{self.planned:.3f}", f"{self.packed / self.planned:.2f}x", f"{self.balanced / self.planned:.2f}x",
            f"{self.published / self.planned:.2f}x", str(self.num_layouts), seconds(self.cpu),
        ]  # fmt: skip

    def ablation(self) -> list[str]:
        """Speed over baseline 0."""
        return [f"{self.baselines[0] / each:.1f}x" for each in (*self.baselines, self.planned)]


def compare(lengths: Int32Array, costs: GroupCosts, longest: int, batch_tokens: int) -> Compared:
    """Hydraulis, single layouts and the baselines on the same steps."""
    plan_data_set(lengths[:500], costs, NUM_GPUS, batch_tokens, seed=0)  # compiles
    start = time.process_time()
    found = plan_data_set(lengths, costs, NUM_GPUS, batch_tokens, seed=0)
    cpu = (time.process_time() - start) / len(found.seconds)
    order = [found.order[a:b] for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    steps = [lengths[own].astype(np.int64) for own in order]
    singles = [k for k in range(len(costs)) if costs.capacity[k] >= longest and NUM_GPUS % costs.gpus[k] == 0]
    kinds = {k: np.full(NUM_GPUS // costs.gpus[k], k) for k in singles}

    def mean(step: Callable[[Int64Array, Int64Array], float], k: int) -> float:
        return float(np.mean([step(own, kinds[k]) for own in steps]))

    def best(step: Callable[[Int64Array, Int64Array], float]) -> float:
        return min(mean(step, k) for k in singles)

    def on_chosen(padded: bool) -> float:
        total = 0.0
        for j, own in enumerate(steps):
            chosen = kinds_of(found.layouts[found.layout_of[j]], costs)
            total += stage_1_greedy(own, chosen, costs, longest, padded)
        return total / len(steps)

    by_single = {k: mean(lambda own, chosen: packed_to(own, chosen, costs, longest), k) for k in singles}
    scheme = min(by_single, key=lambda k: by_single[k])
    name = next(
        f"tp {tp}, pp {pp}" for tp, pp in FITTED
        if tp * pp == costs.gpus[scheme] and pp == costs.pp[scheme]
    )  # fmt: skip
    return Compared(
        scheme=f"{name}, {len(kinds[scheme])} times",
        packed=by_single[scheme],
        balanced=best(lambda own, chosen: planned(own, chosen, costs).seconds),
        published=float(
            plan_data_set(lengths, costs, NUM_GPUS, batch_tokens, seed=0, packer=PUBLISHED).seconds.mean()
        ),
        planned=float(found.seconds.mean()),
        num_layouts=len(set(found.layout_of.tolist())),
        cpu=cpu,
        baselines=(
            best(lambda own, chosen: one_a_row(own, chosen, costs, longest)),
            best(lambda own, chosen: sorted_evenly(own, chosen, costs, longest)),
            on_chosen(True),
            on_chosen(False),
        ),
    )


def pipeline_seconds(kind: int, micro_batches: Sequence[Int64Array], costs: GroupCosts, pad_to: int = 0) -> float:
    """Seconds of a pipeline.

    Args:
        pad_to: tokens; the padding of a row is a sample of its own.
    """
    times = []
    for own in micro_batches:
        padding = max(0, pad_to - int(own.sum()))
        times.append(float(costs.seconds(kind, int(own @ own) + padding * padding, int(own.sum()) + padding)))
    return sum(times) + float(costs.rates[3, kind]) * max(times, default=0.0)


def in_turn(packs: Sequence[Int64Array], kinds: Int64Array, costs: GroupCosts, pad_to: int = 0) -> float:
    """Seconds of a step whose packs go to the pipelines in turn."""
    return max(pipeline_seconds(kind, packs[p :: len(kinds)], costs, pad_to) for p, kind in enumerate(kinds.tolist()))


def packed_to(own: Int64Array, kinds: Int64Array, costs: GroupCosts, longest: int) -> float:
    """Rows packed to the longest length, first-fit in the order of the data."""
    packs: list[list[int]] = []
    room: list[int] = []
    for length in np.random.default_rng(len(own)).permutation(own).tolist():
        at = next((i for i, left in enumerate(room) if left >= length), None)
        if at is None:
            packs.append([])
            room.append(longest)
            at = len(room) - 1
        packs[at].append(length)
        room[at] -= length
    return in_turn([np.array(pack) for pack in packs], kinds, costs)


def one_a_row(own: Int64Array, kinds: Int64Array, costs: GroupCosts, longest: int) -> float:
    """Baseline 0."""
    # A padded row of one sample is one sample of the longest length.
    return in_turn([np.array([longest])] * len(own), kinds, costs)


def sorted_evenly(own: Int64Array, kinds: Int64Array, costs: GroupCosts, longest: int) -> float:
    """Baseline 1."""
    parts = np.array_split(np.sort(own), len(kinds))
    return max(
        pipeline_seconds(kind, greedy_packs(part, longest), costs)
        for kind, part in zip(kinds.tolist(), parts, strict=True)
    )


def stage_1_greedy(own: Int64Array, kinds: Int64Array, costs: GroupCosts, longest: int, padded: bool) -> float:
    """Baselines 2 and 3; rows are as long as the pipeline holds, up to the longest sample."""
    dealt = planned(own, kinds, costs).pipeline_of
    slowest = 0.0
    for p, kind in enumerate(kinds.tolist()):
        capacity = min(longest, int(costs.capacity[kind]))
        packs = greedy_packs(own[dealt == p], capacity)
        slowest = max(slowest, pipeline_seconds(kind, packs, costs, capacity if padded else 0))
    return slowest


def greedy_packs(own: Int64Array, capacity: int) -> list[Int64Array]:
    """The paper's greedy packs: each opens with the shortest left, and takes, from the longest down, what fits."""
    left = np.sort(own)[::-1].tolist()
    packs = []
    while left:
        pack = [left.pop()]
        room = capacity - pack[0]
        kept = []
        for length in left:
            if length <= room:
                pack.append(length)
                room -= length
            else:
                kept.append(length)
        left = kept
        packs.append(np.array(pack))
    return packs


def _optimum() -> str:
    """Small random steps, both stages beside the best of all divisions."""
    gaps, of_search = [], []
    planned([1], [0], fitted_costs())  # compiles
    for seed in range(_SMALL_STEPS):
        lengths, kinds, costs = random_step(1000 + seed, _MOST_SAMPLES)
        start = time.process_time()
        found = planned(lengths, kinds, costs)
        of_search.append(time.process_time() - start)
        gaps.append(found.seconds / fastest_step(lengths.tolist(), kinds.tolist(), both(costs)[1]) - 1)
    header = ["", "mean gap", "greatest gap", "same time", "CPU time"]
    row = [
        "all steps", f"{np.mean(gaps):.2%}", f"{np.max(gaps):.2%}", str(sum(gap < 1e-6 for gap in gaps)),
        seconds(float(np.mean(of_search))),
    ]  # fmt: skip
    return (
        f"**Stages 1 and 2, and the best of all divisions**, on {_SMALL_STEPS} random steps of 3 to {_MOST_SAMPLES} "
        f"samples on 1 to 3 pipelines\n\n{table(header, [row])}"
    )
