"""Packing algorithms and the whole plan, beside `np.sort` of the same lengths."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Pieces
from packer_cli.plan.packing import REGISTRY, PackingAlgorithm
from packer_cli.plan.strategies.protocol import PlanRequest
from tests.benchmark.measure import repeat
from tests.benchmark.report import seconds, table, times, versions

CAPACITY = 131_072
GROUPS = (Group(capacity=16_384), Group(capacity=CAPACITY, sp_size=8))
NUM_GPUS = 32
_ROUNDS = {10_000: 25, 100_000: 9, 1_000_000: 3}
"""Numbers of samples, and how often each is measured in a run."""
_SLOW = 5.0
"""Seconds over which an algorithm is measured once."""
MIX128K = (
    "*mix128k*, the given number of short samples (lognormal, median 300, sigma 1.1, at most 32K) plus 0.2 % long "
    "ones (uniform, 8K-128K), shuffled"
)


def mix128k(num_samples: int) -> np.ndarray:
    """int32[n + n // 500]: n short samples (at most 32K), and 0.2 % more, uniform from 8K to 128K; shuffled."""
    generator = np.random.default_rng(0)
    short = _short(generator, num_samples, 32_768)
    long = generator.integers(8_192, CAPACITY + 1, num_samples // 500).astype(np.int32)
    lengths = np.concatenate([short, long])
    generator.shuffle(lengths)
    return lengths


def short4k(num_samples: int) -> np.ndarray:
    """int32[n]: the short samples, at most 4,096 tokens each."""
    return _short(np.random.default_rng(0), num_samples, 4_096)


def _short(generator: np.random.Generator, num_samples: int, longest: int) -> np.ndarray:
    """Lognormal lengths of median 300, sigma 1.1, drawn in parts to save memory."""
    lengths = np.empty(num_samples, dtype=np.int32)
    for first in range(0, num_samples, 1 << 20):
        part = lengths[first : first + (1 << 20)]
        part[:] = np.clip(np.rint(generator.lognormal(np.log(300), 1.1, len(part))), 1, longest)
    return lengths


def production_rules(packing: str | None = None) -> PlanRequest:
    """The rules of `hbpack plan --groups 16k:1,128k:8 --gpus 32`, with default options except maybe `packing`."""
    config = PlanConfig(groups=GROUPS, gpus=NUM_GPUS)
    return resolve(config.model_copy(update={"packing": packing}) if packing else config).request


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    rows = []
    _measure(2_000, 1)  # compiles
    for num_samples, rounds in _ROUNDS.items():
        print(f"plan: {num_samples:,} samples", file=sys.stderr)
        rows += _measure(num_samples, rounds * runs)
    text = (
        f"Lengths: {MIX128K}. `pack` is the time of the algorithm alone, with its default options, at capacity "
        f"{CAPACITY:,}; `packs` is the number of packs it makes, and `bound` the minimum possible (Martello and "
        f"Toth's L2). `plan` is `build_plan` with this packing, groups 16k:1,128k:8 on {NUM_GPUS} GPUs, and the "
        f"defaults of `hbpack plan` for everything else ({_defaults()}); `check` is `check_plan`. Algorithms that cut "
        "samples plan one group of 128K. The floor is `numpy.sort` of the same lengths. Medians, after compilation. "
        f"Rounds: {', '.join(f'{rounds * runs} at {n:,}' for n, rounds in _ROUNDS.items())}. "
        f"{versions(('numpy', 'numba'))}."
    )
    header = [
        "algorithm", "samples", "pack", "to the floor", "packs", "bound", "over the bound",
        "plan", "check", "plan to the floor", "floor",
    ]  # fmt: skip
    return f"{text}\n\n{table(header, rows)}"


def _defaults() -> str:
    fields = PlanConfig.model_fields
    return ", ".join(f"`{name}` {fields[name].default}" for name in ("balance", "fill"))


def _measure(num_samples: int, rounds: int) -> list[list[str]]:
    lengths = mix128k(num_samples)
    bound = int(packs_lower_bound(lengths, CAPACITY))
    pieces = make_pieces(lengths, np.arange(len(lengths), dtype=np.int64), CAPACITY, "split")
    floor = repeat({"floor": lambda: np.sort(lengths)}, rounds)["floor"]
    return [_row(algorithm, lengths, pieces, bound, rounds, floor) for algorithm in REGISTRY.values()]


def _row(
    algorithm: PackingAlgorithm, lengths: np.ndarray, pieces: Pieces, bound: int, rounds: int, floor: float
) -> list[str]:
    options = algorithm.options()
    rules = replace(
        production_rules(),
        groups=GROUPS[-1:] if algorithm.needs_one_group else GROUPS,
        algorithm=algorithm,
        packing_options=options,
    )
    samples = np.arange(len(lengths), dtype=np.int64)
    cut = algorithm.cut(make_pieces(lengths, samples, CAPACITY, "split"), CAPACITY, 0) if algorithm.cut else pieces
    first = time.perf_counter()
    packs = len(algorithm.pack(cut.length, CAPACITY, 0, options)[0]) - 1
    plan = build_plan(pieces, rules)
    check_plan(plan)
    functions = {
        "pack": lambda: algorithm.pack(cut.length, CAPACITY, 0, options),
        "plan": lambda: build_plan(pieces, rules),
        "check": lambda: check_plan(plan),
    }
    medians = repeat(functions, rounds if time.perf_counter() - first < _SLOW else 1)
    return [
        algorithm.name,
        f"{len(lengths):,}",
        seconds(medians["pack"]),
        times(medians["pack"], floor),
        f"{packs:,}",
        f"{bound:,}",
        f"{packs / bound - 1:.2%}",
        seconds(medians["plan"]),
        seconds(medians["check"]),
        times(medians["plan"], floor),
        seconds(floor),
    ]
