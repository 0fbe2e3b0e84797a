"""The same records in other files: a JSON array, compressed lines, and 20,000 small files."""

from __future__ import annotations

import gzip
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from backports import zstd

from tests.benchmark.measure import HOW_LONG, BenchmarkError, Run, num_cores, run_measured
from tests.benchmark.report import mebibytes, spread, table, times, versions
from tests.benchmark.rival import corpora

SMALL_FILES = 20_000


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    folder = work / "containers"
    folder.mkdir()
    lines = (corpora() / "sft_messages.jsonl").read_bytes().splitlines()
    inputs = {name: folder / name for name in ("chats.jsonl", "chats.json", "chats.jsonl.gz", "chats.jsonl.zst")}
    for path in inputs.values():
        _write(path, lines)
    inputs[f"{SMALL_FILES:,} files"] = _small_files(folder / "small", lines)
    own: dict[str, list[Run]] = defaultdict(list)
    for number in range(runs):
        for name, path in inputs.items():
            print(f"containers: {name}, round {number + 1} of {runs}", file=sys.stderr)
            own[name].append(_tokenize(path, work / "containers-out", len(lines)))
    shutil.rmtree(folder)
    floor = statistics.median(run.wall for run in own["chats.jsonl"])
    rows = []
    for name, done in own.items():
        wall, cpu = (statistics.median(getattr(run, what) for run in done) for what in ("wall", "cpu"))
        rows.append([name, spread([run.wall for run in done]), times(wall, floor), f"{cpu:.1f}", f"{cpu / wall:.2f}"])
    text = (
        f"`hbpack tokenize` with {num_cores()} workers. The {len(lines):,} shared chats "
        f"({mebibytes(sum(map(len, lines)))} MiB) are stored as JSON lines, as one JSON array, as compressed lines, "
        f"and as {SMALL_FILES:,} files of JSON lines in one folder. {runs} runs each, in turn; median "
        "(minimum-maximum). *Cores* is CPU time divided by wall time, with the start and end of the command. "
        f"{HOW_LONG} {versions(('gigatoken', 'tokenizers', 'pyarrow'))}."
    )
    return f"{text}\n\n{table(['', 'wall, s', 'to JSON lines', 'CPU, s', 'cores'], rows)}"


def _write(path: Path, lines: list[bytes]) -> None:
    forms: dict[str, Callable[[bytes], bytes]] = {
        ".jsonl": bytes,
        ".json": lambda data: b"[" + data.rstrip(b"\n").replace(b"\n", b",\n") + b"]\n",
        ".gz": gzip.compress,
        ".zst": zstd.compress,
    }
    path.write_bytes(forms[path.suffix](b"\n".join(lines) + b"\n"))


def _small_files(folder: Path, lines: list[bytes]) -> Path:
    folder.mkdir()
    for number in range(SMALL_FILES):
        some = lines[number * len(lines) // SMALL_FILES : (number + 1) * len(lines) // SMALL_FILES]
        (folder / f"{number:05d}.jsonl").write_bytes(b"\n".join(some) + b"\n")
    return folder


def _tokenize(path: Path, output: Path, num_records: int) -> Run:
    tokenizer = corpora() / "tokenizers" / "minimind-chatml"
    command = [sys.executable, "-m", "packer_cli", "tokenize", path, "--tokenizer", tokenizer, "--output", output]
    done = run_measured(list(map(str, command)), watch_memory=False)
    shutil.rmtree(output)
    if not any(line.startswith(f"tokenized {num_records:,} records") for _, line in done.lines):
        raise BenchmarkError(f"hbpack tokenize did not take all records of {path.name}")
    return done
