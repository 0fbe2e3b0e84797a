"""Packing algorithms and the whole plan, beside `np.sort` of the same lengths."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from packer_cli.plan.bounds import packs_lower_bound
from packer_cli.plan.build import PlanRules, build_plan
from packer_cli.plan.check import check_plan
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.pieces import make_pieces
from packer_cli.plan.types import Group
from tests.benchmark.measure import repeat
from tests.benchmark.report import seconds, table, times, versions

CAPACITY = 131_072
GROUPS = (Group(capacity=16_384), Group(capacity=CAPACITY, sp_size=8))
NUM_GPUS = 32
_ROUNDS = {10_000: 25, 100_000: 9, 1_000_000: 3}
"""Numbers of samples, and how often each is measured in a run."""


def mix128k(num_samples: int) -> np.ndarray:
    """int32[n]: short samples (lognormal, median 300, at most 32K) and 0.2 % long ones (uniform, 8K to 128K)."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(300), 1.0, num_samples), 1, 32_768).astype(np.int32)
    long = generator.random(num_samples) < 0.002
    lengths[long] = generator.integers(8_192, CAPACITY + 1, int(long.sum()))
    return lengths


def run(work: Path, runs: int) -> str:
    """Measure, and give the text of the section."""
    rows = []
    _measure(2_000, 1)  # compiles
    for num_samples, rounds in _ROUNDS.items():
        print(f"plan: {num_samples:,} samples", file=sys.stderr)
        rows += _measure(num_samples, rounds * runs)
    text = (
        "Lengths *mix128k*: lognormal with median 300 and sigma 1, at most 32K, and 0.2 % uniform 8K-128K. `pack` is "
        f"the algorithm alone at capacity {CAPACITY:,}, `packs` what it makes, `bound` the least possible (Martello "
        f"and Toth's L2); `plan` is `build_plan` with groups 16k:1,128k:8 on {NUM_GPUS} GPUs, `check` is "
        "`check_plan`. The floor is `numpy.sort` of the same lengths. Medians; compiled before. "
        f"Rounds: {', '.join(f'{rounds * runs} at {n:,}' for n, rounds in _ROUNDS.items())}. "
        f"{versions(('numpy', 'numba'))}."
    )
    header = [
        "algorithm", "samples", "pack", "to the floor", "packs", "bound", "over the bound",
        "plan", "check", "plan to the floor", "floor",
    ]  # fmt: skip
    return f"{text}\n\n{table(header, rows)}"


def _measure(num_samples: int, rounds: int) -> list[list[str]]:
    lengths = mix128k(num_samples)
    bound = int(packs_lower_bound(lengths, CAPACITY))
    samples = np.arange(num_samples, dtype=np.int64)
    pieces = make_pieces(lengths, samples, CAPACITY, "split")
    functions = {"floor": lambda: np.sort(lengths)}
    counts = {}
    for name, algorithm in REGISTRY.items():
        options = algorithm.options()
        groups = GROUPS[-1:] if algorithm.cut else GROUPS
        rules = PlanRules(groups=groups, num_gpus=NUM_GPUS, algorithm=algorithm, packing_options=options)
        counts[name] = len(algorithm.pack(lengths, CAPACITY, 0, options)[0]) - 1
        plan = build_plan(pieces, rules)
        check_plan(plan)
        functions[f"pack {name}"] = lambda pack=algorithm.pack, options=options: pack(lengths, CAPACITY, 0, options)
        functions[f"plan {name}"] = lambda rules=rules: build_plan(pieces, rules)
        functions[f"check {name}"] = lambda plan=plan: check_plan(plan)
    medians = repeat(functions, rounds)
    floor = medians["floor"]
    return [
        [
            name,
            f"{num_samples:,}",
            seconds(medians[f"pack {name}"]),
            times(medians[f"pack {name}"], floor),
            f"{counts[name]:,}",
            f"{bound:,}",
            f"{counts[name] / bound - 1:.2%}",
            seconds(medians[f"plan {name}"]),
            seconds(medians[f"check {name}"]),
            times(medians[f"plan {name}"], floor),
            seconds(floor),
        ]
        for name in REGISTRY
    ]
