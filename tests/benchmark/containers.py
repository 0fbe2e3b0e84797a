"""The same records in other files: a JSON array, compressed lines, many small files, many sources, one large file."""

from __future__ import annotations

import gzip
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from backports import zstd

from packer_cli.sizes import counted
from tests.benchmark.measure import HOW_LONG, BenchmarkError, Run, num_cores, run_measured
from tests.benchmark.report import mebibytes, spread, table, times, versions
from tests.benchmark.rival import corpora

SMALL_FILES = 20_000
COPIES = 7
"""Of the chats, in as many files again, of about 10 kB each."""
SOURCES = 1_000
MOST = 1.3
LARGE_BYTES = 3_000_000_000
LARGE_FILES = 16
_FREE_BYTES = 16 << 30
"""On the disk, for the large file, its copy in several files, and their token store."""


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    folder = work / "containers"
    folder.mkdir()
    lines = (corpora() / "sft_messages.jsonl").read_bytes().splitlines()
    inputs = {name: folder / name for name in ("chats.jsonl", "chats.json", "chats.jsonl.gz", "chats.jsonl.zst")}
    for path in inputs.values():
        _write(path, lines)
    repeated = COPIES * lines
    inputs[REPEATED] = folder / "repeated.jsonl"
    _write(inputs[REPEATED], repeated)
    paths_of = {name: [path] for name, path in inputs.items()}
    tiny, small, sources = (
        f"{SMALL_FILES:,} files of 1.5 kB",
        f"{SMALL_FILES:,} files of 10 kB",
        f"{SOURCES:,} sources",
    )
    paths_of[tiny] = [_files(folder / "tiny", lines, SMALL_FILES)]
    paths_of[small] = [_files(folder / "small", repeated, SMALL_FILES)]
    paths_of[sources] = sorted(_files(folder / "sources", lines, SOURCES).iterdir())
    own: dict[str, list[Run]] = defaultdict(list)
    for number in range(runs):
        for name, paths in paths_of.items():
            print(f"containers: {name}, round {number + 1} of {runs}", file=sys.stderr)
            num_records = len(repeated if name in (REPEATED, small) else lines)
            own[name].append(_tokenize(paths, work / "containers-out", num_records))
    shutil.rmtree(folder)
    walls = {name: statistics.median(run.wall for run in done) for name, done in own.items()}
    to_lines = {
        name: wall / walls[REPEATED if name in (REPEATED, small) else "chats.jsonl"] for name, wall in walls.items()
    }
    rows = []
    for name, done in own.items():
        cpu = statistics.median(run.cpu for run in done)
        shown = [
            spread([run.wall for run in done]),
            times(to_lines[name], 1),
            f"{cpu:.1f}",
            f"{cpu / walls[name]:.2f}",
        ]
        rows.append([name, *shown])
    many = [tiny, small, sources]
    ratios = {name: to_lines[name] for name in many}
    if shutil.disk_usage(work).free > _FREE_BYTES:
        large = _large(work, lines)
        rows += [
            [
                name,
                f"{run.wall:.1f}",
                times(run.wall, large[LARGE_NAMES[1]].wall),
                f"{run.cpu:.1f}",
                f"{run.cpu / run.wall:.2f}",
            ]
            for name, run in large.items()
        ]
        ratios[LARGE_NAMES[0]] = large[LARGE_NAMES[0]].wall / large[LARGE_NAMES[1]].wall
    verdicts = [
        f"- {'Met' if ratio <= MOST else 'Missed'}: {name}: {ratio:.2f} times the time of the same bytes in "
        f"{'a few files' if name in many else f'{LARGE_FILES} files'} (target: at most {MOST:g})."
        for name, ratio in ratios.items()
    ]
    text = (
        f"`hbpack tokenize` with {num_cores()} workers. The {len(lines):,} shared chats "
        f"({mebibytes(sum(map(len, lines)))} MiB) are stored as JSON lines, as one JSON array, as compressed lines, "
        f"as {SMALL_FILES:,} files of JSON lines in one folder, and as {SOURCES:,} files that the command line names; "
        f"*{REPEATED}* is compared with the same in {SMALL_FILES:,} files. {counted(runs, 'run')} each, in turn; "
        f"median (minimum-maximum). *{LARGE_NAMES[0]}* repeats the chats; it ran once, and is compared with "
        f"*{LARGE_NAMES[1]}*. *Cores* is CPU time divided by wall time, with the start and end of the command. "
        f"{HOW_LONG} {versions(('gigatoken', 'tokenizers', 'pyarrow'))}."
    )
    header = ["", "wall, s", "to JSON lines", "CPU, s", "cores"]
    return f"{text}\n\n{table(header, rows)}\n\n" + "\n".join(verdicts)


REPEATED = f"chats.jsonl {COPIES} times"
LARGE_NAMES = (f"one file of {LARGE_BYTES / 1e9:g} GB", f"its lines in {LARGE_FILES} files")


def _large(work: Path, lines: list[bytes]) -> dict[str, Run]:
    """The large file, and the same lines in several files; each is removed when it has been read."""
    folder = work / "containers-large"
    folder.mkdir()
    data = b"\n".join(lines) + b"\n"
    copies = -(-LARGE_BYTES // len(data) // LARGE_FILES) * LARGE_FILES
    done = {}
    for name, num_files in zip(LARGE_NAMES, (1, LARGE_FILES), strict=True):
        print(f"containers: {name}", file=sys.stderr)
        paths = [folder / f"{number:02d}.jsonl" for number in range(num_files)]
        for path in paths:
            with path.open("wb") as file:
                for _ in range(copies // num_files):
                    file.write(data)
        done[name] = _tokenize(paths, work / "containers-out", copies * len(lines))
        for path in paths:
            path.unlink()
    folder.rmdir()
    return done


def _write(path: Path, lines: list[bytes]) -> None:
    forms: dict[str, Callable[[bytes], bytes]] = {
        ".jsonl": bytes,
        ".json": lambda data: b"[" + data.rstrip(b"\n").replace(b"\n", b",\n") + b"]\n",
        ".gz": gzip.compress,
        ".zst": zstd.compress,
    }
    path.write_bytes(forms[path.suffix](b"\n".join(lines) + b"\n"))


def _files(folder: Path, lines: list[bytes], num: int) -> Path:
    folder.mkdir()
    for number in range(num):
        some = lines[number * len(lines) // num : (number + 1) * len(lines) // num]
        (folder / f"{number:05d}.jsonl").write_bytes(b"\n".join(some) + b"\n")
    return folder


def _tokenize(paths: Sequence[Path], output: Path, num_records: int) -> Run:
    tokenizer = corpora() / "tokenizers" / "minimind-chatml"
    command = [sys.executable, "-m", "packer_cli", "tokenize", *paths, "--tokenizer", tokenizer, "--output", output]
    done = run_measured(list(map(str, command)), watch_memory=False)
    shutil.rmtree(output)
    if not any(line.startswith(f"tokenized {num_records:,} records") for _, line in done.lines):
        raise BenchmarkError(f"hbpack tokenize did not take all records of {paths[0].name}")
    return done
