"""`hbpack write` beside `cp -r` and `sync` of its output, the floor set by the disk and the page cache."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from packer_cli.format.versions import set_at
from packer_cli.sizes import counted
from tests.benchmark.measure import HOW_LONG, BenchmarkError, Run, folder_bytes, run_measured
from tests.benchmark.report import mebibytes, spread, table, versions
from tests.benchmark.rival import corpora

PLANS = {
    "32 ranks, 1 epoch": (4, ["--groups", "16k:1,128k:8", "--gpus", "32"]),
    "the same, 4 times the data": (16, ["--groups", "16k:1,128k:8", "--gpus", "32"]),
    "1,024 ranks, 3 epochs": (4, ["--groups", "2k:1,16k:8", "--gpus", "1024", "--epochs", "3"]),
}
"""By name: copies of the shared corpora (about 190 MB of shards each), and options of the plan."""
ASKED = 0.6
_IMPORTS = "import packer_cli.cli.main, packer_cli.cli.write, packer_cli.commands.write, pyarrow.compute"


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    rows: list[list[str]] = []
    met: list[str] = []
    stores: dict[int, Path] = {}
    for name, (copies, options) in PLANS.items():
        if copies not in stores:
            stores[copies] = _store(work, copies)
        store = stores[copies]
        folder = work / f"write-{len(rows)}"
        _hbpack("plan", store, *options, "--overflow", "split", "--output", folder)
        _hbpack("write", folder)  # fills the page cache
        version = set_at(folder)
        num_bytes = sum(folder_bytes(version / part) for part in ("shards", "ranks"))
        num_files = sum(path.is_file() for part in ("shards", "ranks") for path in (version / part).rglob("*"))
        own: dict[str, list[Run]] = defaultdict(list)
        for number in range(runs):
            print(f"write: {name}, round {number + 1} of {runs}", file=sys.stderr)
            own["copy"].append(_copy(version, work / "copy"))
            own["write"].append(_write(folder))
            own["imports"].append(run_measured([sys.executable, "-c", _IMPORTS], watch_memory=False))
        walls = {contender: statistics.median(run.wall for run in done) for contender, done in own.items()}
        rate = walls["copy"] / walls["write"]
        without = walls["copy"] / max(walls["write"] - walls["imports"], 1e-9)
        rows.append(
            [
                name,
                mebibytes(num_bytes),
                f"{num_files:,}",
                *(spread([run.wall for run in own[contender]], 2) for contender in ("copy", "write", "imports")),
                *(f"{statistics.median(run.cpu for run in own[contender]):.2f}" for contender in ("copy", "write")),
                f"{rate:.2f}x",
                f"{without:.2f}x",
            ]
        )
        if len(rows) < len(PLANS):  # The target is for large files; small ones wait for the disk.
            verdict = "Met" if rate >= ASKED else "Missed"
            met.append(f"- {verdict}: {name}: {rate:.2f} of the copy's rate (target: {ASKED}).")
        shutil.rmtree(folder)
    header = [
        "", "MiB", "files", "copy, s", "write, s", "imports, s", "copy, CPU s", "write, CPU s",
        "rate to the copy's", "without imports",
    ]  # fmt: skip
    text = (
        f"*Write* is the command `hbpack write FOLDER`, from its start to its end; the plan and the token store, made "
        f"from {' or '.join(map(str, sorted(stores)))} copies of the shared corpora, are in the page cache. *Copy* is "
        "`cp -r` of what it wrote, and `sync`. Both read and write the same number of bytes; hbpack puts them into "
        "another order, computes checksums, and syncs each file. *Imports* is Python with the modules of `write`, "
        "without any work. "
        f"{counted(runs, 'run')} each, in turn; median (minimum-maximum). {HOW_LONG} "
        f"{versions(('numpy', 'pyarrow', 'xxhash'))}."
    )
    return f"{text}\n\n{table(header, rows)}\n\n" + "\n".join(met)


def _store(work: Path, copies: int) -> Path:
    """The token store of this many copies of the shared corpora; a file named twice would count once."""
    store, inputs = work / f"store-{copies}", work / f"inputs-{copies}"
    inputs.mkdir()
    for name in ("sft_messages.jsonl", "long_docs.parquet"):
        for number in range(copies):
            shutil.copyfile(corpora() / name, inputs / f"{number}-{name}")
    _hbpack("tokenize", inputs, "--tokenizer", corpora() / "tokenizers" / "minimind-chatml", "-o", store)
    shutil.rmtree(inputs)
    return store


def _hbpack(*arguments: object) -> Run:
    return run_measured([sys.executable, "-m", "packer_cli", *map(str, arguments)], watch_memory=False)


def _copy(folder: Path, target: Path) -> Run:
    target.mkdir()
    os.sync()
    command = 'cp -r "$0/shards" "$0/ranks" "$0/hbpack.json" "$1" && sync'
    done = run_measured(["sh", "-c", command, str(folder), str(target)], watch_memory=False)
    shutil.rmtree(target)
    return done


def _write(folder: Path) -> Run:
    shutil.rmtree(set_at(folder))
    (folder / "hbpack.json").unlink()
    os.sync()
    done = _hbpack("write", folder)
    if not any(re.match(r"wrote \d+ shards", line) for _, line in done.lines):
        raise BenchmarkError("hbpack write wrote nothing: " + " ".join(line for _, line in done.lines))
    return done
