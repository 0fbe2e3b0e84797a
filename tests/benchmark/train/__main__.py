"""The command; see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.config.gpu_model import read_profile, read_shape
from packer_cli.cost.fit_profile import measured_model
from packer_cli.cost.profile import Profile
from packer_cli.measure.device import Device
from tests.benchmark.gpu import BILLION
from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.report import machine, write_section
from tests.benchmark.train.measured import (
    Floats,
    all_ranks,
    rows_of,
    timed_again,
    turns_to_come,
    with_bandwidth,
)
from tests.benchmark.train.padded import padded_rows
from tests.benchmark.train.pipelines import (
    ROW,
    SIZE,
    STAGES,
    pipeline_jobs,
    pipeline_results,
    pipelines_table,
    pipelines_verdict,
    write_job,
)
from tests.benchmark.train.sets import PlannedSet, draw_lengths, known_strategies, make_set, write_samples
from tests.benchmark.train.table import result_of, results_table, verdict
from tests.benchmark.train.worker import LINKS, PROFILE

SMALL = BILLION | {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 2, "num_hidden_layers": 2,
                   "num_key_value_heads": 2, "vocab_size": 1024, "dtype": "float32"}  # fmt: skip
"""A Llama for CPUs."""
CPU_MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"}
"""glibc keeps freed memory, as torch's allocator does on a GPU; otherwise each large tensor costs page faults."""
LONGEST = 4096
MIN_ROUNDS = 3
"""Of all ranks."""
RUNS_OF_ROWS = 3
"""Runs of each row of the profile in a round."""
RUNS_OF_LINKS = 30
"""Exchanges of keys and values in a round."""
PIPELINE_STEPS = 5
"""About how many steps the pipeline of a plan has."""
BANDWIDTH = "2GB"
"""From which plans with CP are made; their prediction takes the one that the rounds measure."""


def torchrun(num_processes: int, module: str, *arguments: object) -> None:
    """Run a module in so many processes of one thread, as users start them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes),
               "-m", module, *map(str, arguments)]  # fmt: skip
    environment = os.environ | CPU_MEMORY | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{module}: exit code {done.returncode}\n{done.stderr[-4000:]}")


def measure_profile(given: argparse.Namespace, config: Path, work: Path) -> Profile:
    """As a user would, for a trainer that keeps whole weights on each GPU."""
    file = work / "profile.json"
    file.unlink(missing_ok=True)
    lengths = ",".join(str(given.longest // part) for part in (16, 8, 4, 2, 1))
    torchrun(given.processes, "packer_cli", "profile", "--model", config, "--output", file, "--lengths", lengths,
             "--modelling", "plain", "--logits", "chunked", "--weights", "whole", "--checkpoint-layers", 0,
             "--gpus", given.processes, "--repeats", 5, "--bandwidth", BANDWIDTH)  # fmt: skip
    return read_profile(file)


def measure_round(
    job: Mapping[str, Any], path: Path, num_processes: int
) -> tuple[dict[str, Floats], dict[str, list[Floats]]]:
    """Seconds of each set, float64 [r, i, ranks], NaN where a rank did not run; and of what each process profiles."""
    path.write_text(json.dumps(job))
    torchrun(num_processes, "tests.benchmark.train.worker", path)
    parts = [np.load(f"{job['output']}-{process}.npz") for process in range(num_processes)]
    of_sets = {name: np.fmax.reduce([part[name] for part in parts]) for name in job["sets"]}
    return of_sets, {name: [part[name] for part in parts] for name in (PROFILE, LINKS)}


def entry_of(made: PlannedSet, num_gpus: int) -> dict[str, Any]:
    """What a worker needs to open a set."""
    if made.folder is None:
        return {"rows": [padded_rows(made.plan, rank) for rank in range(num_gpus)]}
    return {"folder": str(made.folder), "lockstep": made.plan.lockstep is None}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmark.train", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=30,
        help="start no fourth round, or further one, that would end later (default: 30)",
    )
    parser.add_argument("--tokens", type=int, default=180_000, help="tokens of the samples (default: 180,000)")
    parser.add_argument("--longest", type=int, default=LONGEST, help="the longest sample (default: 4096)")
    parser.add_argument("--gpus", type=int, default=8, help="ranks of the plans (default: 8)")
    parser.add_argument("--pipeline-rounds", type=int, default=6, help="runs of each pipeline (default: 6)")
    parser.add_argument("--processes", type=int, default=2, help="that run them; GPUs, if there are any (default: 2)")
    parser.add_argument("--strategies", default=",".join(known_strategies()))
    parser.add_argument("--seed", type=int, default=4, help="of the samples (default: 4)")
    parser.add_argument("--output", type=Path, default=Path("bench-out/train"), help="(default: bench-out/train)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks/training.md")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hbpack-bench-") as work:
        text = compare(given, Path(work))
    (given.output / "report.md").write_text(text)
    print(text)
    if given.write:
        write_section("train", f"Made by `make bench-train`.\n\n{text}")
    return 0


def _joined(rounds: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: np.concatenate([each[name] for each in rounds]) for name in rounds[0]}


def _of_processes(rounds: Sequence[Mapping[str, list[Floats]]], name: str) -> list[Floats]:
    return [np.concatenate(of_process) for of_process in zip(*(each[name] for each in rounds), strict=True)]


def measure_pipelines(given: argparse.Namespace, work: Path, *, is_gpu: bool) -> str:
    """Run the pipelines, and return the report."""
    jobs = pipeline_jobs(work, PIPELINE_STEPS, given.seed, is_gpu=is_gpu)
    output, path = str(given.output / "pipelines"), work / "pipelines.json"
    write_job(path, jobs, output, given.pipeline_rounds)
    torchrun(STAGES, "tests.benchmark.train.pipeline_worker", path)
    results = pipeline_results(jobs, output)
    return (
        f"\nPipelines of {STAGES} stages, by wall clock: a decoder of 4 layers of {SIZE['hidden']}, rows of up to "
        f"{ROW} tokens; {given.pipeline_rounds} rounds.\n\n"
        f"{pipelines_table(results)}\n\n{pipelines_verdict(results)}\n"
    )


def compare(given: argparse.Namespace, work: Path) -> str:
    """Measure round by round, and return the report."""
    began = time.monotonic()
    device = Device("auto")
    config = work / "config.json"
    config.write_text(json.dumps(BILLION if device.is_gpu else SMALL))
    longest = given.longest
    groups = f"{longest // 8}:1,{longest}:{given.processes}"
    lengths = draw_lengths(longest, given.tokens, given.seed)
    samples = work / "samples.parquet"
    write_samples(lengths, samples, given.seed)
    job: dict[str, Any] = {
        "model": str(config), "device": device.device.type, "num_gpus": given.gpus,
        "vocabulary_size": SMALL["vocab_size"],
    }  # fmt: skip
    pipelines = "" if given.processes < STAGES else measure_pipelines(given, work, is_gpu=device.is_gpu)
    profile = measure_profile(given, config, work)
    file = work / "profile.json"
    sets = {name: make_set(name, samples, lengths, groups, given.gpus, file) for name in given.strategies.split(",")}
    job["sets"] = {name: entry_of(made, given.gpus) for name, made in sets.items()}
    job["turns"] = {name: all_ranks(made.plan.epochs[0].num_iterations, given.gpus) for name, made in sets.items()}
    job["rows"], job["runs_of_rows"] = rows_of(profile), RUNS_OF_ROWS
    shape = read_shape(config)
    exchanged = longest * shape.dtype_bytes * shape.kv_size
    job["exchanged_bytes"], job["runs_of_links"] = exchanged, RUNS_OF_LINKS
    rounds: list[dict[str, Floats]] = []
    profiled: list[dict[str, list[Floats]]] = []
    seconds = 0.0
    while len(rounds) < MIN_ROUNDS or time.monotonic() - began + seconds < 60 * given.minutes:
        start = time.monotonic()
        if len(rounds) >= MIN_ROUNDS:
            job["turns"] = turns_to_come(_joined(rounds), given.processes)
        job["output"] = str(given.output / f"round-{len(rounds)}")
        of_sets, of_profile = measure_round(job, work / "job.json", given.processes)
        rounds.append(of_sets)
        profiled.append(of_profile)
        seconds = time.monotonic() - start
        print(f"round {len(rounds)} is done after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    profile = timed_again(profile, _of_processes(profiled, PROFILE))
    if given.processes > 1:  # An all-gather, and an all-reduce of twice as much.
        moved = 3 * exchanged * (given.processes - 1) / given.processes
        profile = with_bandwidth(profile, moved, _of_processes(profiled, LINKS))
    (given.output / "profile.json").write_text(profile.model_dump_json(indent=2) + "\n")
    model = measured_model(profile)
    assert profile.cost is not None
    runs = _joined(rounds)
    results = [result_of(name, made.plan, model, runs[name]) for name, made in sets.items()]
    llama = "Llama 3.2 1B" if device.is_gpu else "a Llama of 2 layers of 128"
    return (
        f"{llama} on {given.processes} x {device.name}, {machine()}: {len(lengths):,} samples of up to {longest:,} "
        f"tokens, {lengths.sum():,} in all, planned for {given.gpus} GPUs in the groups {groups}; {len(rounds)} "
        f"rounds, {time.monotonic() - began:.0f} s.\n\n"
        f"{results_table(results)}\n\n{verdict(results, profile.cost.mean_error)}\n{pipelines}"
    )


if __name__ == "__main__":
    sys.exit(main())
