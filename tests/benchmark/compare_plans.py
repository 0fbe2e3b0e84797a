"""`hbpack compare` of a million samples: the whole command beside the plans that it compares."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import numpy as np

from packer_cli.sizes import counted
from tests.benchmark.measure import HOW_LONG, BenchmarkError, Run, num_cores, run_measured
from tests.benchmark.plan import MIX128K, mix128k
from tests.benchmark.report import spread, table, versions

_SAMPLES = 1_000_000
_TARGET = 45.0
"""Seconds of wall time."""
_DISTURBED = 0.1
"""Share of the cores that others used, over which a missed target says little."""


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    folder = work / "compare"
    folder.mkdir()
    rows, verdicts = [], []
    for number, (title, lengths) in enumerate(_mixes().items()):
        path = folder / f"{number}.npy"
        np.save(path, lengths)
        done, plans = [], []
        for attempt in range(runs):
            print(f"compare: {title}, round {attempt + 1} of {runs}", file=sys.stderr)
            one, seconds = _compare(path)
            done.append(one)
            plans.append(seconds)
        wall, cpu = (statistics.median(getattr(one, what) for one in done) for what in ("wall", "cpu"))
        busy = statistics.median(one.busy_elsewhere for one in done)
        rows.append(
            [
                title, f"{lengths.sum() / 1e6:,.0f}", spread([one.wall for one in done]), f"{cpu:.1f}",
                f"{statistics.median(plans):.1f}", f"{cpu / wall:.2f}", f"{busy:.0%}",
            ]
        )  # fmt: skip
        outcome = f"{title}: {wall:.0f} s (target: under {_TARGET:.0f} s)"
        if wall < _TARGET:
            verdicts.append(f"- Met: {outcome}.")
        elif busy > _DISTURBED and cpu / num_cores() < _TARGET:
            verdicts.append(
                f"- Disturbed: {outcome}, while other programs used {busy:.0%} of the cores; {cpu / num_cores():.0f} "
                "s of CPU time a core."
            )
        else:
            verdicts.append(f"- Missed: {outcome}.")
    text = (
        f"`hbpack compare LENGTHS.npy --groups 16k:1,128k:8 --gpus 32` with {num_cores()} workers: all rows of the "
        f"default table. {MIX128K}. *Gamma* lengths have a Pareto tail of the share and least length named, up to "
        f"128K. {HOW_LONG} *Plans* is the wall time of all rows' `build_plan` together, which includes the 10 s of "
        "`ilp`'s time limit. *Cores* is CPU time divided by wall time, and *elsewhere* the share of the cores that "
        f"other programs used meanwhile. {counted(runs, 'run')}; median (minimum-maximum). "
        f"{versions(('numba', 'numpy'))}."
    )
    header = ["", "million tokens", "wall, s", "CPU, s", "plans, s", "cores", "elsewhere"]
    return "\n\n".join([text, table(header, rows), "\n".join(verdicts)])


def _mixes() -> dict[str, np.ndarray]:
    return {
        "mix128k": mix128k(_SAMPLES),
        "gamma, mean 630, 2% Pareto from 4,000": _gamma(0.7, 900, 0.02, 1.1, 4000),
        "gamma, mean 800, 10% Pareto from 1,000": _gamma(2.0, 400, 0.1, 1.2, 1000),
        "gamma, mean 3,000, 5% Pareto from 3,000": _gamma(1.2, 2500, 0.05, 1.0, 3000),
    }


def _gamma(shape: float, scale: float, share: float, exponent: float, least: int) -> np.ndarray:
    """Gamma lengths (int32[n]), and a share from a Pareto distribution."""
    generator = np.random.default_rng(0)
    num_long = round(share * _SAMPLES)
    short = generator.gamma(shape, scale, _SAMPLES - num_long)
    long = (generator.pareto(exponent, num_long) + 1) * least
    lengths = np.clip(np.concatenate([short, long]), 1, 131_072).astype(np.int32)
    generator.shuffle(lengths)
    return lengths


def _compare(path: Path) -> tuple[Run, float]:
    """One run, and the seconds of its plans."""
    output = path.with_suffix(".json")
    command = [
        sys.executable,
        "-m",
        "packer_cli",
        "compare",
        path,
        "--groups",
        "16k:1,128k:8",
        "--gpus",
        "32",
        "--json",
    ]
    shell = ["sh", "-c", '"$@" > "$0"', output, *command]
    done = run_measured(list(map(str, shell)), watch_memory=False)
    rows = json.loads(output.read_text())["rows"]
    failed = [row["name"] for row in rows if row["error"]]
    if failed:
        raise BenchmarkError(f"hbpack compare: {failed[0]} failed")
    return done, sum(row["seconds"] for row in rows)
