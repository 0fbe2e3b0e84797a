"""FlexSP: the search beside the integer program, and the whole data set beside batches, HBP and the bound."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.types import FILLER, Int32Array
from packer_cli.plan.strategies.flexsp.batches import plan_batches, solve_in_buckets
from packer_cli.plan.strategies.flexsp.micro_batch import least_seconds, solve_micro_batch
from packer_cli.plan.strategies.flexsp.packing import MixedIterations
from packer_cli.plan.strategies.flexsp.plan import iteration_seconds, least_total_seconds, plan_data_set
from tests.benchmark.paper import HBP, NUM_GPUS, OURS, Mix, Options, make_plan
from tests.benchmark.paper_times import GPU_TOKENS, LAYERS, LLAMA_8B, degree_costs, model_of
from tests.benchmark.report import seconds, table
from tests.plan.strategies.flexsp import random_batch

_SMALL_BATCHES = 100
_TIME_LIMIT = 5.0
_PAPER_GPUS = 64
_PAPER_SAMPLES = 512
_OF_BATCHES = 100_000
"""Samples that are planned batch by batch; the whole data set would take minutes."""


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    costs = degree_costs(model_of(LLAMA_8B), NUM_GPUS, GPU_TOKENS, LAYERS)
    lengths = Mix().lengths(0.01)
    plan_data_set(lengths, costs, NUM_GPUS)  # compiles
    plan_batches(lengths[:2000], costs, NUM_GPUS, 2**19)
    parts = [
        (
            "FlexSP chooses the SP degrees of the groups of each micro-batch, and the samples of each group. Times "
            f"are predicted by one model: LLaMA 3.1 8B on H100s, {GPU_TOKENS:,} tokens a GPU, {LAYERS} layers "
            "checkpointed. *Alike* is the share of the variance of log length that lies between iterations: 0 where "
            "each iteration is a random part of the data, 1 where all its samples, or tokens, are of one length. The "
            f"rows with windows of 4 iterations and batches are of {_OF_BATCHES:,} samples at most."
        ),
        _search(),
        _paper_size(max(runs, 5)),
    ]
    for title, mix in _mixes():
        print(f"mixed-degrees: {title}", file=sys.stderr)
        parts.append(_totals(title, mix, costs))
    return "\n\n".join(parts)


def _search() -> str:
    """Small random batches, solved exactly and by search."""
    gaps, of_search, of_program = [], [], []
    for seed in range(_SMALL_BATCHES):
        lengths, costs, num_gpus = random_batch(100 + seed)
        start = time.process_time()
        found = solve_micro_batch(lengths, costs, num_gpus)
        of_search.append(time.process_time() - start)
        start = time.process_time()
        exact = solve_in_buckets(lengths, costs, num_gpus, num_buckets=len(lengths), time_limit=_TIME_LIMIT)
        of_program.append(time.process_time() - start)
        gaps.append(found.seconds / exact.seconds - 1)
    row = [
        f"{np.mean(gaps):.2%}", f"{np.max(gaps):.2%}", str(sum(gap < 1e-6 for gap in gaps)),
        seconds(float(np.mean(of_search))), seconds(float(np.mean(of_program))),
    ]  # fmt: skip
    header = [
        "", "mean gap", "greatest gap", "same time", "CPU time, search", "CPU time, program",
    ]  # fmt: skip
    return (
        f"**The search and the integer program** ({_TIME_LIMIT:.0f} s at most), on {_SMALL_BATCHES} random batches "
        f"of 4 to 14 samples on 4 to 16 GPUs\n\n{table(header, [['all batches', *row]])}"
    )


def _paper_size(runs: int) -> str:
    """Batches of the paper's size."""
    costs = degree_costs(model_of(LLAMA_8B), _PAPER_GPUS, GPU_TOKENS, LAYERS)
    rows = []
    for title, share in (("half full", 0.5), ("85 % full", 0.85), ("95 % full", 0.95)):
        took, over = [], []
        for seed in range(4 * runs):
            rng = np.random.default_rng(seed)
            lengths = np.minimum(rng.lognormal(6.5, 1.3, _PAPER_SAMPLES), 131_072)
            lengths *= share * _PAPER_GPUS * GPU_TOKENS / lengths.sum()
            lengths = np.maximum(1, lengths).astype(np.int32)
            start = time.process_time()
            found = solve_micro_batch(lengths, costs, _PAPER_GPUS)
            took.append(time.process_time() - start)
            falling = -np.sort(-lengths.astype(np.int64))
            over.append(found.seconds / least_seconds(falling, costs.arrays, _PAPER_GPUS) - 1)
        rows.append([title, seconds(float(np.median(took))), seconds(float(np.max(took))), f"{np.median(over):.1%}"])
    header = ["memory", "CPU time, median", "greatest", "over a simple bound, median"]
    return (
        f"**A batch of the paper's size**: {_PAPER_SAMPLES} samples on {_PAPER_GPUS} GPUs. The paper's solver takes 5 "
        f"to 15 s.\n\n{table(header, rows)}"
    )


def _mixes() -> Iterator[tuple[str, Int32Array]]:
    rng = np.random.default_rng(0)
    yield "the mix of HBP's paper", Mix().lengths()
    tail = (rng.pareto(1.2, 50_000) + 1) * 2000
    many = np.concatenate([rng.lognormal(6.5, 1.0, 950_000), tail])
    yield "a million samples, lognormal with a Pareto tail", _clipped(rng, many)
    tail = (rng.pareto(1.0, 2_400) + 1) * 1200
    yield (
        "33,400 samples, lognormal with a Pareto tail",
        _clipped(rng, np.concatenate([rng.lognormal(5.2, 0.7, 31_000), tail])),
    )
    yield "100,000 documents, mean 20K tokens", _clipped(rng, rng.lognormal(9.5, 0.9, 100_000))


def _clipped(rng: np.random.Generator, lengths: np.ndarray) -> Int32Array:
    return rng.permutation(np.clip(lengths, 1, 131_072).astype(np.int32))


def _totals(title: str, lengths: Int32Array, costs: GroupCosts) -> str:
    part = lengths[:_OF_BATCHES]
    rows: list[tuple[str, Int32Array, Callable[[], MixedIterations]]] = [
        ("the whole data set", lengths, lambda: plan_data_set(lengths, costs, NUM_GPUS)),
        ("windows of 64 iterations", lengths, lambda: plan_data_set(lengths, costs, NUM_GPUS, window=64)),
        ("windows of 4 iterations", part, lambda: plan_data_set(part, costs, NUM_GPUS, window=4)),
        ("FlexSP, batches of 2M tokens", part, lambda: plan_batches(part, costs, NUM_GPUS, 2**21)[0]),
        ("FlexSP, batches of 512K tokens", part, lambda: plan_batches(part, costs, NUM_GPUS, 2**19)[0]),
        ("HBP, 16k:1,128k:8", lengths, lambda: _from_plan(lengths, HBP, costs)),
        ("hbpack's default, 16k:1,128k:8", lengths, lambda: _from_plan(lengths, OURS, costs)),
    ]
    cells = []
    for name, chosen, make in rows:
        start = time.process_time()
        found = make()
        took = time.process_time() - start
        total = iteration_seconds(found, chosen, costs).sum()
        least = least_total_seconds(chosen, costs, NUM_GPUS)
        by_sample, by_token = _alike(found, chosen)
        cells.append(
            [
                name, f"{total / least - 1:.2%}", f"{total / chosen.sum() * 2**19:.3f}", f"{by_sample:.2f}",
                f"{by_token:.2f}", seconds(took),
            ]
        )  # fmt: skip
    header = [
        "", "over the bound", "seconds for 512K tokens", "alike, samples", "alike, tokens", "CPU time of planning",
    ]  # fmt: skip
    return f"**{title}**: {lengths.sum() / 1e6:,.0f} million tokens on {NUM_GPUS} GPUs\n\n{table(header, cells)}"


def _from_plan(lengths: Int32Array, options: Options, costs: GroupCosts) -> MixedIterations:
    """A plan of equal degrees, as FlexSP's parts have it."""
    plan = make_plan(lengths, options)
    schedule = plan.epochs[0]
    used = schedule.slot_pack != FILLER
    packs = schedule.slot_pack[used]
    sp_size = np.array([group.sp_size for group in plan.groups])[plan.packs.group[packs]]
    bounds = np.searchsorted(schedule.slot_iteration[used], np.arange(schedule.num_iterations + 1))
    offsets, pieces = select_packs(plan.packs.offsets, plan.packs.pieces, packs)
    return MixedIterations(offsets, pieces, np.searchsorted(costs.gpus, sp_size), bounds)


def _alike(found: MixedIterations, lengths: Int32Array) -> tuple[float, float]:
    """Share of the variance of log length that lies between iterations, by sample and by token; 0 is random."""
    log = np.log2(lengths[found.samples])
    sizes = np.diff(found.offsets[found.iterations])
    iteration = np.repeat(np.arange(len(sizes)), sizes)
    shares = []
    for weight in (np.ones(len(log)), lengths[found.samples].astype(np.float64)):
        own = np.bincount(iteration, weights=weight)
        mean = np.bincount(iteration, weights=weight * log) / own
        overall = np.average(log, weights=weight)
        shares.append(float((own @ (mean - overall) ** 2) / (weight @ (log - overall) ** 2)))
    return shares[0], shares[1]
