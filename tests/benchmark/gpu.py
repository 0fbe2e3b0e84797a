"""`python -m tests.benchmark.gpu` (`make bench-gpu`): what is predicted beside what one GPU measures, in three pieces.

::

    profile    profiles a decoder and fits the models: profile.json
    packs      runs packs of real text, of little attention work to much, beside their predictions: packs.csv, packs.md
    cluster    runs the packs of each rank of a made-up cluster one after another, for plans of three strategies, and
               takes the slowest rank of each iteration: the speed-up beside the predicted one: cluster.csv, cluster.md

Each piece should take less than ten minutes on an H100, and stands alone: without the profile.json of an earlier run,
`packs` and `cluster` profile short rows first. Each writes while it runs, so that one that is stopped leaves what it
measured. `--tiny` runs all of it on a CPU in seconds, which tests the script but says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import packer_cli
from packer_cli.cli.main import main as hbpack
from packer_cli.config.gpu_model import read_profile, read_shape
from packer_cli.config.profile_options import ProfileConfig
from packer_cli.cost.fit_profile import measured_model
from packer_cli.cost.predict import GpuModel
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import RowAttention, choose_kernel
from packer_cli.measure.run import measure_profile
from packer_cli.measure.subject import Subject
from packer_cli.plan.core.types import FILLER, Plan
from packer_cli.simulate.epoch import simulate
from tests.benchmark.report import table
from tests.cli_runner import run

ROOT = Path(__file__).parents[2]

BILLION = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
    "dtype": "bfloat16",
}  # fmt: skip
"""Llama 3.2 1B."""
TINY = BILLION | {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
                  "num_key_value_heads": 2, "vocab_size": 256, "dtype": "float32"}  # fmt: skip

STRATEGIES = ("naive", "hbp", "balanced")
"""Of the cluster's plans, the first is what the others are compared with."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    config: Mapping[str, Any]
    short: tuple[int, ...]
    """Lengths of rows that are profiled first, or alone where a piece has no profile."""
    long: tuple[int, ...]
    groups: tuple[int, ...]
    """Capacities of the packs that are run."""
    cluster_groups: tuple[int, ...]
    cluster_gpus: int
    cluster_iterations: int
    """Of full rows."""


ONE_GPU = Size(BILLION, (2048, 4096, 8192, 16384), (32768, 65536), (4096, 16384, 65536), (2048, 16384), 8, 10)
CPU = Size(TINY, (64, 128, 256), (512,), (256, 512), (128, 512), 4, 3)


@dataclass(frozen=True)
class Trial:
    """One pack: what it holds, and its seconds."""

    tokens: int
    samples: int
    work: int
    predicted: float
    measured: float


@dataclass(frozen=True)
class RankTrial(Trial):
    """The pack of a rank in an iteration of a strategy's plan."""

    strategy: str
    iteration: int
    rank: int


class Bench:
    """The device, the decoder, and the predictions of what it takes."""

    def __init__(self, given: argparse.Namespace, work: Path) -> None:
        self.given, self.output = given, given.output
        self.size = CPU if given.tiny else ONE_GPU
        self.device = Device("cpu" if given.tiny else "cuda")
        self.config = work / "config.json"
        self.config.write_text(json.dumps(self.size.config))
        self.store = work / "store"
        self._subject: Subject | None = None

    def profile(self, lengths: tuple[int, ...]) -> float:
        """Profile rows of these lengths, write what was found, and return the fit's mean error."""
        options = ProfileConfig(
            model=str(self.config), modelling="plain", logits="chunked", device=self.device.device.type,
            lengths=lengths, repeats=self.given.repeats,
        )  # fmt: skip
        profile = measure_profile(options, print)
        (self.output / "profile.json").write_text(profile.model_dump_json(indent=2) + "\n")
        measured_model(profile)  # Says what to measure if nothing was fitted.
        assert profile.cost is not None
        return profile.cost.mean_error

    def model(self) -> GpuModel:
        """What predicts: the profile of an earlier run, or of short rows."""
        if not (self.output / "profile.json").exists():
            self.profile(self.size.short)
        return measured_model(read_profile(self.output / "profile.json"))

    def seconds(self, samples: tuple[int, ...], layers: int) -> float:
        """Median seconds of a pack with so many checkpointed layers."""
        if self._subject is None:
            _, kernel = choose_kernel("auto", self.device.device)
            self._subject = Subject(
                self.config, read_shape(self.config), "plain", RowAttention(kernel), self.device.device,
                chunked_logits=True,
            )  # fmt: skip
        subject = self._subject
        return self.device.median_seconds(lambda: subject.run(samples, layers), repeats=self.given.repeats)

    def lengths(self) -> np.ndarray:
        """The tokens of each sample of real text (int[n]), in random order."""
        if not self.store.exists():
            sample, data = (
                ROOT / "examples/sample",
                Path(os.environ.get("HBPACK_SHARED", ROOT.parent / "shared"), "data"),
            )
            words = [data / "sft_messages.jsonl", data / "long_docs.parquet"]
            tokenizer = data / "tokenizers" / "minimind-chatml"
            if self.given.tiny:
                words, tokenizer = [sample / "chats.jsonl", sample / "journals.jsonl"], sample / "tokenizer"
            done = run(hbpack, "tokenize", *words, "--tokenizer", tokenizer, "--output", self.store)
            if done.code:
                raise SystemExit(done.stderr)
        lengths = packer_cli.plan(self.store, groups=self.size.groups[-1], gpus=1, overflow="truncate").arrays.pieces
        return np.random.default_rng(0).permutation(lengths.length)

    def plan(self, lengths: np.ndarray, strategy: str, groups: Sequence[int], num_gpus: int) -> Plan:
        """A plan of rows of one GPU each."""
        used = groups[-1:] if strategy == "naive" else groups
        options = {"strategy": strategy, "groups": ",".join(f"{each}:1" for each in used), "gpus": num_gpus}
        return packer_cli.plan(lengths, overflow="split", **options).arrays

    @contextmanager
    def until_over(self) -> Iterator[Any]:
        """Whether there is time for another pack."""
        end = time.monotonic() + 60 * self.given.minutes
        yield lambda: time.monotonic() < end


def samples_of(plan: Plan, pack: int) -> tuple[int, ...]:
    """The lengths of a pack's samples."""
    begin, end = plan.packs.offsets[pack : pack + 2]
    return tuple(plan.pieces.length[plan.packs.pieces[begin:end]].tolist())


def write_row(path: Path, trial: Trial) -> None:
    """Add a row to a CSV file; the first one has the names above it."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, asdict(trial))
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(trial))


def run_profile(bench: Bench) -> str:
    """Short rows, then all: a piece that is stopped leaves a profile."""
    errors = {}
    for lengths in (bench.size.short, (*bench.size.short, *bench.size.long)):
        errors[lengths[-1]] = bench.profile(lengths)
    rows = [[f"{longest:,}", f"{100 * error:.1f} %"] for longest, error in errors.items()]
    return f"Profile of {bench.device.name}.\n\n{table(['rows up to', 'mean error of the fit'], rows)}\n"


def run_packs(bench: Bench) -> str:
    """Packs at equal distances in the logarithm of attention work, in random order."""
    model, plan = bench.model(), bench.plan(bench.lengths(), "balanced", bench.size.groups, 1)
    packs = [samples_of(plan, pack) for pack in range(len(plan.packs))]
    packs.sort(key=lambda samples: sum(size**2 for size in samples))
    work = np.log([sum(size**2 for size in samples) for samples in packs])
    places = np.unique(np.searchsorted(work, np.linspace(work[0], work[-1], bench.given.packs)))
    trials: list[Trial] = []
    with bench.until_over() as has_time:
        for place in np.random.default_rng(0).permutation(places).tolist():
            samples = packs[place]
            layers = model.memory.least_checkpoint_layers(sum(samples))
            if layers is None or not has_time():
                continue
            tokens, squares = sum(samples), sum(size**2 for size in samples)
            predicted = float(model.cost.seconds(squares, tokens, checkpoint_layers=layers))
            trials.append(Trial(tokens, len(samples), squares, predicted, bench.seconds(samples, layers)))
            write_row(bench.output / "packs.csv", trials[-1])
    bands = sorted({int(np.log2(trial.tokens)) for trial in trials})
    rows = []
    for label, chosen in [
        *((f"{2**band:,} to {2 ** (band + 1) - 1:,}", [t for t in trials if int(np.log2(t.tokens)) == band])
          for band in bands),
        ("all", trials),
    ]:  # fmt: skip
        errors = np.array([trial.predicted / trial.measured - 1 for trial in chosen])
        rows.append([
            label, str(len(chosen)), f"{np.mean([t.measured for t in chosen]) * 1e3:,.1f}",
            f"{100 * np.abs(errors).mean():.1f} %", f"{100 * errors.mean():+.1f} %",
            f"{100 * np.abs(errors).max():.1f} %",
        ])  # fmt: skip
    header = ["tokens of the pack", "packs", "mean ms", "mean error", "bias", "greatest error"]
    left_out = f"; {len(places) - len(trials)} more did not fit, or in time" if len(trials) < len(places) else ""
    return f"{len(trials)} packs on {bench.device.name}{left_out}.\n\n{table(header, rows)}\n"


def run_cluster(bench: Bench) -> str:
    """A share of each plan's iterations in turn, in random order: short groups come first in some plans."""
    size, model, lengths = bench.size, bench.model(), bench.lengths()
    full = size.cluster_groups[-1] * size.cluster_gpus * size.cluster_iterations
    lengths = np.minimum(lengths, size.cluster_groups[-1])
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), full)) + 1]
    plans = {each: bench.plan(lengths, each, size.cluster_groups, size.cluster_gpus) for each in STRATEGIES}
    done: dict[str, list[list[RankTrial]]] = {each: [] for each in STRATEGIES}
    counts = [plan.epochs[0].num_iterations for plan in plans.values()]
    orders = [np.random.default_rng(0).permutation(count) for count in counts]
    with bench.until_over() as has_time:
        for shares in zip(*(np.array_split(order, min(counts)) for order in orders), strict=True):
            if has_time():
                for (strategy, plan), share in zip(plans.items(), shares, strict=True):
                    done[strategy] += [list(_ranks(bench, model, strategy, plan, each)) for each in share.tolist()]
    seconds = {
        name: [sum(max(getattr(t, kind) for t in ranks) for ranks in of_plan) for kind in ("measured", "predicted")]
        for name, of_plan in done.items()
    }
    tokens = {name: sum(trial.tokens for ranks in of_plan for trial in ranks) for name, of_plan in done.items()}
    rates = {name: [tokens[name] / each for each in of_plan] for name, of_plan in seconds.items()}
    rows = []
    for name, (measured, predicted) in rates.items():
        naive = rates[STRATEGIES[0]]
        whole = plans[name].epochs[0].num_iterations
        rows.append([
            name, f"{len(done[name])} of {whole}", f"{measured:,.0f}", f"{predicted:,.0f}",
            f"{measured / naive[0]:.3f}", f"{predicted / naive[1]:.3f}",
        ])  # fmt: skip
    header = ["plan", "iterations run", "tokens/s, measured", "predicted", "over naive, measured", "predicted"]
    return (
        f"{size.cluster_gpus} ranks, one after another on {bench.device.name}: {len(lengths):,} samples of up to "
        f"{size.cluster_groups[-1]:,} tokens, {lengths.sum():,} in all.\n\n{table(header, rows)}\n"
    )


def _ranks(bench: Bench, model: GpuModel, strategy: str, plan: Plan, iteration: int) -> Iterator[RankTrial]:
    """Run the packs of an iteration, rank by rank."""
    schedule, times = plan.epochs[0], simulate(plan, model, pad_to="multiple", step_seconds=0.0)
    for slot in np.flatnonzero(schedule.slot_iteration == iteration).tolist():
        pack = int(schedule.slot_pack[slot])
        if pack == FILLER:
            continue
        samples = samples_of(plan, pack)
        trial = RankTrial(
            tokens=sum(samples), samples=len(samples), work=sum(each**2 for each in samples),
            predicted=float(times.slots.total[slot]),
            measured=bench.seconds(samples, times.layers[schedule.slot_group[slot]].layers),
            strategy=strategy, iteration=iteration, rank=int(schedule.slot_first_gpu[slot]),
        )  # fmt: skip
        write_row(bench.output / "cluster.csv", trial)
        yield trial


PIECES = {"profile": run_profile, "packs": run_packs, "cluster": run_cluster}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmark.gpu", description=__doc__)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"{', '.join(PIECES)} (default: all three)")
    parser.add_argument("--tiny", action="store_true", help="a tiny decoder and the bundled sample, on a CPU")
    parser.add_argument("--packs", type=int, default=40, help="packs to run (default: 40)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, of which the median counts (default: 2)")
    parser.add_argument("--minutes", type=float, default=7, help="most minutes for the packs of a piece (default: 7)")
    parser.add_argument("--output", type=Path, default=Path("bench-out/gpu"), help="folder (default: bench-out/gpu)")
    given = parser.parse_args(arguments)
    if unknown := set(given.pieces) - PIECES.keys():
        parser.error(f"there is no piece {', '.join(sorted(unknown))}: choose of {', '.join(PIECES)}")
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hbpack-bench-") as work:
        bench = Bench(given, Path(work))
        for piece in given.pieces or PIECES:
            (given.output / f"{piece}.csv").unlink(missing_ok=True)
            with bench.device.one_thread():
                text = PIECES[piece](bench)
            (given.output / f"{piece}.md").write_text(text)
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
