"""The whole plan of 1, 10 and 100 million samples, and with `--slow` of a billion: time, peak memory, cost a sample.

`python -m tests.benchmark.scale SAMPLES PACKING` measures one plan in this process and prints a line of JSON. Its
lengths are in a mapped file, as those of a `.npy` are, so that a billion samples leave the memory to the plan: about
18 GB, with the lengths, whose 4 GB the system can take back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import make_pieces
from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.plan import CAPACITY, MIX128K, mix128k, production_rules
from tests.benchmark.report import table

SIZES = (1_000_000, 10_000_000, 100_000_000)
SLOW_SIZE = 1_000_000_000
"""Takes ten minutes and 18 GB."""
SLOW_VARIABLE = "HBPACK_BENCH_SLOW"
PACKINGS = ("bfs", "isf", "bfd")
"""The default, and the one that pads least."""

_STAGES = ("make_pieces", "build_plan", "check_pieces", "check_plan")
_ASKED = ("build_plan", "check_plan")
_MOST_SECONDS = 60.0
_MOST_GIB = 8.0
_FLAT = 1.5
"""Cost a sample at the greatest size to that at the least which still counts as flat."""
_NEEDED_BYTES = 19
"""A sample; without that much free memory a size is left out."""

_T = TypeVar("_T")


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    rows, lines = [], []
    for packing in PACKINGS:
        costs: dict[int, float] = {}
        for size in (*SIZES, SLOW_SIZE) if _is_slow(packing) else SIZES:
            if psutil.virtual_memory().available < size * _NEEDED_BYTES:
                lines.append(f"- {size:,} samples with `{packing}` were left out: too little memory was free.")
                continue
            print(f"scale: {size:,} samples, {packing}", file=sys.stderr)
            best = min((_plan(size, packing) for _ in range(runs if size < SIZES[-1] else 1)), key=_total)
            costs[size] = _total(best) / size
            rows.append(
                [
                    packing,
                    f"{size:,}",
                    *(f"{best[stage]:.2f}" for stage in _STAGES),
                    f"{_total(best):.2f}",
                    f"{best['wall']:.2f}",
                    f"{costs[size] * 1e9:.0f}",
                    f"{best['before_mib'] / 1024:.2f}",
                    f"{best['peak_mib'] / 1024:.2f}",
                ]
            )
            if size == SIZES[-1]:
                lines += _targets(packing, best)
        if costs.keys() >= set(SIZES):
            growth = costs[SIZES[-1]] / costs[SIZES[0]]
            verdict = "Met" if growth <= _FLAT else "Missed"
            lines.append(
                f"- {verdict}: with `{packing}` a sample costs {growth:.2f} times as much at {SIZES[-1]:,} as at "
                f"{SIZES[0]:,} (target: flat, which means at most {_FLAT:g} times)."
            )
    text = (
        f"Lengths: {MIX128K}. Groups 16k:1,128k:8 on 32 GPUs, and the defaults of `hbpack plan` for everything but "
        "the packing. Each plan has a new process, which has loaded its kernels by planning 20,000 samples. The "
        "figures are CPU seconds, which equal wall time on an idle machine because a plan uses one core; *plan* is "
        f"`{'` + `'.join(_ASKED)}`. Memory is the largest resident set of the process (VmHWM), with all stages "
        f"and the mapped lengths; *before* is that without them. Best of {runs} runs; from "
        f"{SIZES[-1]:,} on, one run."
    )
    header = [
        "packing", "samples", *(f"`{stage}`" for stage in _STAGES), "plan", "plan, wall", "ns a sample",
        "before, GiB", "peak, GiB",
    ]  # fmt: skip
    lists = "\n".join(lines)
    return f"{text}\n\n{table(header, rows)}\n\n{lists}"


def _is_slow(packing: str) -> bool:
    return packing == PACKINGS[0] and bool(os.environ.get(SLOW_VARIABLE))


def _total(result: dict[str, float]) -> float:
    return sum(result[stage] for stage in _ASKED)


def _targets(packing: str, result: dict[str, float]) -> list[str]:
    total, peak = result["wall"], result["peak_mib"] / 1024
    checks = (
        (
            total < _MOST_SECONDS,
            f"{SIZES[-1]:,} samples are planned in {total:.0f} s of wall time (target: under {_MOST_SECONDS:g} s)",
        ),
        (peak < _MOST_GIB, f"that takes {peak:.1f} GiB (target: within {_MOST_GIB:g} GiB)"),
    )
    return [f"- {'Met' if holds else 'Missed'}: with `{packing}` {what}." for holds, what in checks]


def _plan(size: int, packing: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmark.scale", str(size), packing]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _measure(size: int, packing: str) -> dict[str, float]:
    """CPU seconds of each stage, wall seconds of the plan, and peak memory."""
    result: dict[str, float] = {}

    def timed(name: str, function: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        start, wall = time.process_time(), time.perf_counter()
        value = function(*arguments, **options)
        result[name] = time.process_time() - start
        if name in _ASKED:
            result["wall"] = result.get("wall", 0.0) + time.perf_counter() - wall
        return value

    rules = production_rules(packing)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lengths.npy")
        np.save(path, mix128k(size))
        lengths = np.asarray(np.load(path, mmap_mode="c"))
    result["before_mib"] = _status_mib("VmRSS")
    pieces = timed("make_pieces", make_pieces, lengths, None, CAPACITY, "split")
    plan = timed("build_plan", build_plan, pieces, rules)
    timed("check_pieces", check_pieces, plan.pieces, lengths, None, is_whole=True)
    timed("check_plan", check_plan, plan)
    result["peak_mib"] = _status_mib("VmHWM")
    return result


def _status_mib(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise BenchmarkError(f"this system does not tell {key}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("samples", type=int)
    parser.add_argument("packing")
    arguments = parser.parse_args()
    _measure(20_000, arguments.packing)  # loads or compiles the kernels
    print(json.dumps(_measure(arguments.samples, arguments.packing)))


if __name__ == "__main__":
    main()
