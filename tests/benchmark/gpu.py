"""`python -m tests.benchmark.gpu` (`make bench-gpu`): does a profile predict the packs of a real packed set?

It profiles a decoder on rows of equal samples and fits the models; then it runs packs of real text, from a set by
`hbpack pack`, and compares each pack's time with the prediction. It needs a GPU; with `--tiny` it runs on a CPU in
seconds, which tests the script but says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.cli.main import main as hbpack
from packer_cli.config.gpu_model import read_profile, read_shape
from packer_cli.cost.measured import measured_model
from packer_cli.cost.models import GpuModel
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import RowAttention, choose_kernel
from packer_cli.measure.run import ProfileOptions, measure_profile
from packer_cli.measure.subject import Subject
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


@dataclass(frozen=True)
class Trial:
    """The prediction and the measurement of one pack."""

    samples: tuple[int, ...]
    predicted: float
    measured: float

    @property
    def tokens(self) -> int:
        """Tokens of the pack."""
        return sum(self.samples)

    @property
    def work(self) -> int:
        """Sum of s^2."""
        return sum(size**2 for size in self.samples)

    @property
    def error(self) -> float:
        """The relative error."""
        return self.predicted / self.measured - 1


def pack(folder: Path, inputs: Sequence[str], tokenizer: str, groups: str) -> None:
    """Create the set whose packs are run."""
    done = run(hbpack, "pack", *inputs, "--tokenizer", tokenizer, "--groups", groups, "--gpus", 1, "-o", folder)
    if done.code:
        raise SystemExit(done.stderr)


def choose_packs(folder: Path, num_packs: int, seed: int = 0) -> list[tuple[int, ...]]:
    """The sample lengths of random packs, of each group in turn, so that the first few are of all lengths."""
    import pyarrow as pa

    random = np.random.default_rng(seed)
    groups = sorted({path.parent for path in folder.glob("shards/*/*.arrow")})
    chosen: list[list[tuple[int, ...]]] = []
    for group in groups:
        borders: list[list[int]] = []
        for path in sorted(group.glob("*.arrow")):
            borders += pa.ipc.open_file(pa.memory_map(str(path))).read_all()["cu_seqlens"].to_pylist()
        num = min(len(borders), -(-num_packs // len(groups)))
        picked = random.choice(len(borders), num, replace=False)
        chosen.append([tuple(np.diff(borders[i]).tolist()) for i in picked])
    in_turn = [pack for packs in zip_longest(*chosen) for pack in packs if pack is not None]
    return in_turn[:num_packs]


def run_packs(
    subject: Subject, device: Device, model: GpuModel, packs: Sequence[tuple[int, ...]], repeats: int, minutes: float
) -> Iterator[Trial]:
    """Run each pack with the fewest checkpointed layers that fit according to the memory model, until time is up."""
    end = time.monotonic() + 60 * minutes
    for number, samples in enumerate(packs):
        if time.monotonic() > end:
            print(f"{minutes:g} minutes are over: {len(packs) - number} packs are left out", file=sys.stderr)
            return
        tokens, work = sum(samples), sum(size**2 for size in samples)
        layers = model.memory.least_checkpoint_layers(tokens)
        if layers is None:
            print(f"a pack of {tokens:,} tokens does not fit, says the model: left out", file=sys.stderr)
            continue
        measured = device.median_seconds(
            lambda s=samples, k=layers: subject.run_samples(s, k), warm_up=1, repeats=repeats
        )
        predicted = float(model.cost.seconds(work, tokens, checkpoint_layers=layers))
        yield Trial(samples, predicted, measured)


def report(trials: Sequence[Trial], name: str, fit_error: float) -> str:
    """Mean errors by the number of tokens, in Markdown."""
    rows = []
    bands = sorted({int(np.log2(trial.tokens)) for trial in trials})
    for label, chosen in [
        *((f"{2**band:,} to {2 ** (band + 1) - 1:,}", [t for t in trials if int(np.log2(t.tokens)) == band])
          for band in bands),
        ("all", list(trials)),
    ]:  # fmt: skip
        errors = np.array([trial.error for trial in chosen])
        rows.append([
            label, str(len(chosen)), f"{np.mean([t.measured for t in chosen]) * 1e3:,.1f}",
            f"{100 * np.abs(errors).mean():.1f} %", f"{100 * errors.mean():+.1f} %",
            f"{100 * np.abs(errors).max():.1f} %",
        ])  # fmt: skip
    header = ["tokens of the pack", "packs", "mean ms", "mean error", "bias", "greatest error"]
    return f"{name}; mean error of the fit to its own rows {100 * fit_error:.1f} %.\n\n{table(header, rows)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmark.gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny decoder and the bundled sample, on a CPU")
    parser.add_argument("--model", help="another config.json")
    parser.add_argument("--packs", type=int, default=200, help="packs to run (default: 200)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=20, help="most minutes for packs (default: 20)")
    parser.add_argument("--profile", type=Path, help="the profile of an earlier run, instead of measuring again")
    parser.add_argument("--output", type=Path, default=Path("bench-out/gpu"), help="folder (default: bench-out/gpu)")
    given = parser.parse_args(arguments)
    device = Device("cpu" if given.tiny else "cuda")
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hbpack-bench-") as work:
        config = Path(work) / "config.json"
        config.write_text(json.dumps(TINY if given.tiny else BILLION))
        config = Path(given.model) if given.model else config
        options: dict[str, Any] = {"model": str(config), "modelling": "plain", "logits": "chunked",
                                   "device": device.device.type}  # fmt: skip
        if given.tiny:
            sample = ROOT / "examples" / "sample"
            pack(Path(work) / "set", [str(sample / "chats.jsonl"), str(sample / "journals.jsonl")],
                 str(sample / "tokenizer"), "256:1,1k:1")  # fmt: skip
            lengths: tuple[int, ...] = (128, 256, 512)
        else:
            data = Path(os.environ.get("HBPACK_SHARED", ROOT.parent / "shared")) / "data"
            pack(Path(work) / "set", [str(data / "sft_messages.jsonl"), str(data / "long_docs.parquet")],
                 str(data / "tokenizers" / "minimind-chatml"), "4k:1,16k:1,64k:1,128k:1")  # fmt: skip
            lengths = tuple(2**power for power in range(11, 18))
        if given.profile:
            profile = read_profile(str(given.profile))
        else:
            profile = measure_profile(ProfileOptions(**options, lengths=lengths, repeats=given.repeats), print)
        (given.output / "profile.json").write_text(profile.model_dump_json(indent=2) + "\n")
        model = measured_model(profile)  # Says what to measure if nothing was fitted.
        assert profile.cost is not None
        _, kernel = choose_kernel("auto", device.device)
        subject = Subject(
            config, read_shape(config), "plain", RowAttention(kernel), device.device, chunked_logits=True
        )  # fmt: skip
        packs = choose_packs(Path(work) / "set", given.packs)
        trials = []
        with (given.output / "packs.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["tokens", "samples", "work", "predicted_seconds", "measured_seconds"])
            for t in run_packs(subject, device, model, packs, given.repeats, given.minutes):
                writer.writerow([t.tokens, len(t.samples), t.work, t.predicted, t.measured])
                file.flush()
                trials.append(t)
    text = report(trials, f"{len(trials)} packs on {device.name}", profile.cost.mean_error)
    (given.output / "report.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
