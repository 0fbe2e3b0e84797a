"""Pipelines on two processes: wall clock beside the recurrence on the times of their stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.kernels.durations import pipeline_seconds
from tests.benchmark.report import table
from tests.benchmark.train.measured import TARGET, Floats
from tests.benchmark.train.sets import VOCABULARY, pack, write_samples

STAGES = 2
ROW = 512
"""Tokens of a row; of one that is planned, at most."""
MICRO_BATCHES = 8
"""Of a step."""
SIZE = {"vocab_size": VOCABULARY, "longest": ROW, "hidden": 512}
"""A decoder so heavy that calls and transfers are short beside a pass, which takes a tenth of a second on a CPU."""
EQUAL = {"row": ROW, "samples": 2, "micro_batches": MICRO_BATCHES}
PLANNED = "pp 2, rows of a plan"


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """Steps of a pipeline, predicted and measured."""

    name: str
    num_parts: int
    """Into which each stage is divided."""
    offsets: Int64Array
    """int64[s+1]: step i has the micro-batches `offsets[i] .. offsets[i+1] - 1`."""
    alone: Floats
    """float64 [rounds, stages, micro-batches, 2]: seconds of each stage alone, forward and backward."""
    runs: Floats
    """float64 [rounds, s]: measured seconds of the steps."""

    @property
    def micro_batches(self) -> tuple[Floats, Floats]:
        """Seconds of each micro-batch on the slowest stage, and the forward pass's share, as `simulate` has them."""
        stages = np.median(self.alone, axis=0)
        slowest = stages[stages.sum(axis=(1, 2)).argmax()]
        seconds = slowest.sum(axis=1)
        return seconds, slowest[:, 0] / seconds

    @property
    def predicted(self) -> Floats:
        """float64[s]: seconds of the steps."""
        num_steps = len(self.offsets) - 1
        parts = np.full(num_steps, self.num_parts)
        return pipeline_seconds(self.offsets, *self.micro_batches, np.full(num_steps, self.alone.shape[1]), parts)

    @property
    def measured(self) -> Floats:
        """float64[s]: median seconds of the steps."""
        seconds: Floats = np.median(self.runs, axis=0)
        return seconds

    @property
    def error(self) -> float:
        """Of the predicted steps together."""
        return float(self.predicted.sum() / self.measured.sum() - 1)

    @property
    def step_error(self) -> float:
        """Mean of |predicted - measured| over that of the measured steps."""
        return float(np.abs(self.predicted - self.measured).sum() / self.measured.sum())

    @property
    def noise(self) -> float:
        """Mean distance of a step's time in a run from its median, over the mean of those."""
        return float(np.abs(self.runs - self.measured).mean() / self.measured.mean())


def pipeline_jobs(work: Path, num_steps: int, seed: int, *, is_gpu: bool) -> dict[str, dict[str, Any]]:
    """What the stages run: equal rows, plain and interleaved, and on a CPU the rows of a plan.

    Next fit leaves the rows of long samples more or less full, so that they take unlike times.
    `examples/pipeline_stages.py` sends by gloo: under NCCL, each of two stages that send to each other at once would
    wait for the other to receive.
    """
    jobs: dict[str, dict[str, Any]] = {"pp 2": {**EQUAL, "parts": 1}, "pp 2, vpp 2": {**EQUAL, "parts": 2}}
    if not is_gpu:
        random, samples = np.random.default_rng(seed), work / "pipeline.parquet"
        lengths = random.integers(ROW // 8, ROW, num_steps * MICRO_BATCHES, dtype=np.int32, endpoint=True)
        write_samples(lengths, samples, seed)
        options = ["--strategy", "longalign-packing", "--lockstep", 1, "--parallel", f"pp={STAGES}",
                   "--global-tokens", MICRO_BATCHES * ROW // 2]  # fmt: skip
        pack(samples, work / "pipeline", f"{ROW}:1", STAGES, options)
        jobs[PLANNED] = {"folder": str(work / "pipeline"), "parts": 1}
    return jobs


def pipeline_results(jobs: Mapping[str, Mapping[str, Any]], output: str) -> list[PipelineResult]:
    """Read what the stages measured."""
    parts = [np.load(f"{output}-{stage}.npz") for stage in range(STAGES)]
    return [
        PipelineResult(
            name=name,
            num_parts=job["parts"],
            offsets=parts[0][f"{name} offsets"],
            alone=np.stack([part[f"{name} alone"] for part in parts], axis=1),
            runs=np.max([part[name] for part in parts], axis=0),
        )
        for name, job in jobs.items()
    ]


def pipelines_verdict(results: Sequence[PipelineResult]) -> str:
    """Whether the target is met, in a sentence."""
    worst = max(results, key=lambda each: abs(each.error))
    return f"The greatest error of a pipeline is {worst.error:+.1%}, of {worst.name} (target: {TARGET:.0%})."


def pipelines_table(results: Sequence[PipelineResult]) -> str:
    """A row for each pipeline, in Markdown."""
    rows = []
    for result in results:
        measured, predicted = float(result.measured.sum()), float(result.predicted.sum())
        alone = float(result.micro_batches[0].sum())
        rows.append([
            result.name, str(len(result.offsets) - 1), str(result.offsets[-1]), f"{alone:.2f}",
            f"{measured:.2f}", f"{predicted:.2f}", f"{measured / alone:.2f}", f"{predicted / alone:.2f}",
            f"{result.error:+.1%}", f"{result.step_error:.1%}", f"{result.noise:.1%}",
        ])  # fmt: skip
    header = [
        "pipeline", "steps", "micro-batches", "seconds of a stage alone", "of the pipeline, measured", "predicted",
        "over the stage, measured", "predicted", "error", "error a step", "noise of a run",
    ]  # fmt: skip
    return table(header, rows)


def write_job(path: Path, jobs: Mapping[str, Any], output: str, rounds: int) -> None:
    """What `pipeline_worker` reads."""
    path.write_text(
        json.dumps({"pipelines": jobs, "output": output, "rounds": rounds, "size": SIZE, "device": "auto"})
    )
