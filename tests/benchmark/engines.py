"""The same `hbpack pack` on the processes of this machine and on Ray."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from packer_cli.sizes import counted
from tests.benchmark.measure import HOW_LONG, Run, num_cores, run_measured
from tests.benchmark.report import mebibytes, spread, table, times, versions
from tests.benchmark.rival import corpora

ENGINES = ("local", "ray")
MOST = 1.3
LEAST_SECONDS = 30.0
_COPIES = 34
_GROUPS = ("--groups", "16k:1,128k:8", "--gpus", "32", "--overflow", "split")


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    path = work / "engines.jsonl"
    data = (corpora() / "sft_messages.jsonl").read_bytes()
    with path.open("wb") as file:
        for _ in range(_COPIES):
            file.write(data)
    done: dict[str, list[Run]] = defaultdict(list)
    for number in range(runs):
        for engine in ENGINES:
            print(f"engines: {engine}, round {number + 1} of {runs}", file=sys.stderr)
            done[engine].append(_pack(path, work / "engines-out", engine))
    rows = []
    floor, floor_cpu = (statistics.median(getattr(run, what) for run in done["local"]) for what in ("wall", "cpu"))
    for engine, its in done.items():
        wall, cpu = (statistics.median(getattr(run, what) for run in its) for what in ("wall", "cpu"))
        first = statistics.median(_first_part(run) for run in its)
        rows.append(
            [
                f"`--engine {engine}`",
                *(spread([run.wall for run in its]), times(wall, floor)),
                *(f"{cpu:.1f}", times(cpu, floor_cpu), f"{first:.1f}"),
            ]
        )
    ratio = statistics.median(run.wall for run in done["ray"]) / floor
    verdict = "Met" if ratio <= MOST and floor >= LEAST_SECONDS else "Missed"
    text = (
        f"`hbpack pack` of {_COPIES} copies of the shared chats ({mebibytes(path.stat().st_size)} MiB) in one file, "
        f"with {num_cores()} workers. With `--engine ray`, the run starts and ends a Ray of this machine. *Started* "
        "is the time until the tokenizer is known, which is when the first worker is about to begin. "
        f"{counted(runs, 'run')} each, in turn; median (minimum-maximum). {HOW_LONG} "
        f"{versions(('ray', 'gigatoken', 'pyarrow'))}."
    )
    header = ["", "wall, s", "to local", "CPU, s", "CPU to local", "started, s"]
    path.unlink()
    return (
        f"{text}\n\n{table(header, rows)}\n\n"
        f"- {verdict}: Ray takes {ratio:.2f} times as long as local (target: at most {MOST:g} on a run of at least "
        f"{LEAST_SECONDS:g} s)."
    )


def _pack(path: Path, output: Path, engine: str) -> Run:
    tokenizer = corpora() / "tokenizers" / "minimind-chatml"
    options = ("--tokenizer", tokenizer, *_GROUPS, "--engine", engine, "--output", output)
    done = run_measured(
        [sys.executable, "-m", "packer_cli", "pack", str(path), *map(str, options)], watch_memory=False
    )
    shutil.rmtree(output)
    return done


def _first_part(run: Run) -> float:
    return next((at for at, line in run.lines if line.startswith("tokenizer ")), 0.0)
