"""The usual way as a contender: its Python, a measured run, and the corpora that both sides read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmark.measure import ROOT, BenchmarkError, Run, folder_bytes, num_cores, run_measured

SEQ_LENGTH = 131_072
STRATEGY = "bfd"
PEER = ("datasets", "transformers", "tokenizers", "trl", "torch")
PYTHON_VARIABLE = "HBPACK_BENCH_PYTHON"


@dataclass(frozen=True, kw_only=True)
class UsualRun:
    """One run of the usual way."""

    run: Run
    phases: dict[str, float]
    """Seconds."""
    output_bytes: int
    written_bytes: int
    """With its caches."""
    counts: dict[str, int]
    """`samples`, `tokens`, `packs`, `packed_tokens`."""


def corpora() -> Path:
    """The folder of the shared corpora. Raises BenchmarkError if there is none."""
    folder = Path(os.environ.get("HBPACK_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        raise BenchmarkError("no shared data: set HBPACK_SHARED to the folder that holds data/")
    return folder


def find_peer() -> tuple[str, str] | None:
    """The Python that has trl, and the peer's versions; without one, None and a line that says so."""
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    show = "print(', '.join(f'{name} {version(name)}' for name in sys.argv[1:]))"
    code = f"import sys; from importlib.metadata import version; {show}"
    try:
        done = subprocess.run([python, "-c", code, *PEER], capture_output=True, text=True)
    except OSError as error:
        raise BenchmarkError(f"{PYTHON_VARIABLE}: {error}") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        print(
            f"pack: the usual way is left out, {reason}; name a Python that has trl in {PYTHON_VARIABLE}",
            file=sys.stderr,
        )
        return None
    return python, done.stdout.strip()


def warm_up_peer(python: str) -> None:
    """Load the peer's modules into the page cache."""
    code = "from transformers import AutoTokenizer; from datasets import load_dataset; from trl import pack_dataset"
    subprocess.run([python, "-c", code], check=True, capture_output=True)


def run_usual_way(
    folder: Path,
    python: str,
    inputs: Mapping[str, Path],
    tokenizer: Path,
    seq_length: int = SEQ_LENGTH,
    *,
    watch_memory: bool = True,
) -> UsualRun:
    """Run the usual way in an empty folder, with empty caches, and remove the folder afterwards.

    Args:
        inputs: kind of records -> file, see `usual_way.py`.
        watch_memory: as for `run_measured`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "cache").mkdir(parents=True)
    command = [python, "-m", "tests.benchmark.usual_way", "--began", repr(time.time())]
    for kind, path in inputs.items():
        command += ["--input", f"{kind}={path}"]
    command += [
        "--tokenizer", str(tokenizer), "--seq-length", str(seq_length), "--strategy", STRATEGY,
        "--processes", str(num_cores()), "--output", str(folder / "packed"),
    ]  # fmt: skip
    caches = {name: str(folder / "cache") for name in ("HF_HOME", "HF_DATASETS_CACHE", "TMPDIR")}
    settings = caches | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = run_measured(command, settings, watch_memory=watch_memory)
    *phases, counts = [json.loads(text) for _, text in done.lines if text.startswith("{")]
    seconds = {entry["phase"]: entry["seconds"] for entry in phases}
    result = UsualRun(
        run=done,
        phases=seconds | {"end": done.wall - sum(seconds.values())},
        output_bytes=folder_bytes(folder / "packed"),
        written_bytes=folder_bytes(folder),
        counts=counts,
    )
    shutil.rmtree(folder)
    return result


def check_alike(tokens: int, own: int, samples: int) -> None:
    """Raise BenchmarkError unless both sides have the same number of tokens, except for one at each sample's end."""
    if abs(tokens - own) > samples:
        raise BenchmarkError(f"the contenders did not tokenize alike: {own:,} and {tokens:,} tokens")
