"""`hbpack pack` from a cold start, beside the usual way, on the shared corpora."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmark.measure import HOW, ROOT, Run, folder_bytes, num_cores, run_measured
from tests.benchmark.pack_rows import ROW_VARIABLE, run_rows
from tests.benchmark.report import mebibytes, seconds, spread, table, times, versions
from tests.benchmark.rival import (
    PYTHON_VARIABLE,
    SEQ_LENGTH,
    STRATEGY,
    check_alike,
    corpora,
    find_peer,
    run_usual_way,
    warm_up_peer,
)

OPTIONS = ["--groups", "16k:1,128k:8", "--gpus", "32", "--packing", "isf", "--overflow", "split", "--seed", "0"]
NUM_GPUS = 32

WARM, COLD, USUAL = "hbpack pack", "hbpack pack, first run ever", "the usual way"
PHASES = ("start", "read", "tokenize chats", "tokenize documents", "pack", "write", "end")
_TOP_IMPORTS = 10


@dataclass(kw_only=True)
class _Result:
    """The runs of one contender."""

    runs: list[Run] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    output_bytes: int = 0
    written_bytes: int = 0
    samples: int = 0
    tokens: int = 0
    packs: int = 0
    packed_tokens: int = 0

    def median(self, name: str) -> float:
        return statistics.median(getattr(run, name) for run in self.runs)

    @property
    def watched(self) -> Run:
        """The run whose memory was read."""
        return self.runs[0]


def _pack_command(output: Path) -> list[str]:
    data = corpora()
    inputs = [data / "sft_messages.jsonl", data / "long_docs.parquet"]
    tokenizer = ["--tokenizer", str(data / "tokenizers" / "minimind-chatml")]
    return [
        sys.executable, "-m", "packer_cli", "pack", *map(str, inputs), *tokenizer, *OPTIONS, "--output", str(output),
    ]  # fmt: skip


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section. Leaves a packed set in `work/packed`, unless it runs one row."""
    numba_cache = work / "numba"
    if os.environ.get(ROW_VARIABLE):
        return run_rows(work, runs, numba_cache)
    peer = find_peer()
    results = {WARM: _Result(), COLD: _Result()} | ({USUAL: _Result()} if peer else {})
    _hbpack(work, numba_cache, _Result())  # fills the page cache and numba's
    if peer:
        warm_up_peer(peer[0])
    for number in range(runs):
        print(f"pack: round {number + 1} of {runs}", file=sys.stderr)
        _hbpack(work, numba_cache, results[WARM], watch_memory=number == 0)
        _hbpack(work, work / f"numba-{number}", results[COLD], watch_memory=number == 0)
        if peer:
            _usual_way(work, peer[0], results[USUAL], watch_memory=number == 0)
    for result in results.values():
        check_alike(result.tokens, results[WARM].tokens, results[WARM].samples)
    return "\n\n".join(
        [
            _setting(results, runs, peer[1] if peer else None),
            _main_table(results),
            _phase_table(results),
            _import_table(work, numba_cache, runs),
            run_rows(work, runs, numba_cache),
        ]
    )


def _hbpack(work: Path, numba_cache: Path, result: _Result, *, watch_memory: bool = False) -> None:
    output = work / "packed"
    shutil.rmtree(output, ignore_errors=True)
    numba_cache.mkdir(exist_ok=True)
    done = run_measured(_pack_command(output), {"NUMBA_CACHE_DIR": str(numba_cache)}, watch_memory=watch_memory)
    result.runs.append(done)
    result.output_bytes = result.written_bytes = folder_bytes(output)
    manifest = json.loads((output / "hbpack.json").read_text())
    index = json.loads((output / "tokens" / "tokens.json").read_text())
    result.samples = sum(part["num_samples"] for part in index["parts"])
    result.tokens = sum(part["num_tokens"] for part in index["parts"])
    result.packs = sum(group["num_packs"] for group in manifest["groups"])
    result.packed_tokens = sum(group["num_tokens"] for group in manifest["groups"])
    for phase, value in _hbpack_phases(done, output, index["parts"]).items():
        result.phases[phase].append(value)


def _hbpack_phases(done: Run, output: Path, parts: Sequence[dict]) -> dict[str, float]:
    """Phases from the times of the stage lines and of the parts' files (chats come first)."""
    ends = {}
    for stage, word in (("tokenize", "tokenized"), ("plan", "planned"), ("write", "wrote")):
        at, text = next((at, text) for at, text in done.lines if text.startswith(f"{word} "))
        found = re.search(r"\(([\d.]+) s\)$", text)
        assert found, text
        ends[stage] = (at, float(found[1]))
    tokenized, own = ends["tokenize"]
    chats = max(
        (output / "tokens" / part["path"]).stat().st_mtime - done.began
        for part in parts
        if part["files"][0]["source"] == 0
    )
    return {
        "start": tokenized - own,
        "tokenize chats": chats - (tokenized - own),
        "tokenize documents": tokenized - chats,
        "pack": ends["plan"][0] - tokenized,
        "write": ends["write"][0] - ends["plan"][0],
        "end": done.wall - ends["write"][0],
    }


def _usual_way(work: Path, python: str, result: _Result, *, watch_memory: bool) -> None:
    data = corpora()
    inputs = {"chats": data / "sft_messages.jsonl", "documents": data / "long_docs.parquet"}
    tokenizer = data / "tokenizers" / "minimind-chatml"
    done = run_usual_way(work / "usual", python, inputs, tokenizer, watch_memory=watch_memory)
    result.runs.append(done.run)
    result.output_bytes, result.written_bytes = done.output_bytes, done.written_bytes
    for phase, value in done.phases.items():
        result.phases[phase].append(value)
    for name, value in done.counts.items():
        setattr(result, name, value)


def _setting(results: dict[str, _Result], runs: int, peer: str | None) -> str:
    warm = results[WARM]
    elsewhere = statistics.median(run.busy_elsewhere for result in results.values() for run in result.runs)
    text = (
        f"`hbpack pack sft_messages.jsonl long_docs.parquet --tokenizer minimind-chatml {' '.join(OPTIONS)}`: "
        f"{warm.samples:,} samples, {warm.tokens:,} tokens. Each run has a new output folder and new processes; "
        "inputs, programs, byte code and numba's cache are in the page cache. The *first run ever* has an empty numba "
        "cache.\n\n"
    )
    if peer:
        text += (
            f"*The usual way* (`tests/benchmark/usual_way.py`; {peer}): `load_dataset`, `map` in batches over "
            f"{num_cores()} processes with `apply_chat_template` or the tokenizer, "
            f"`pack_dataset(strategy='{STRATEGY}', seq_length={SEQ_LENGTH})` as shipped, `save_to_disk`; all caches "
            f"are empty. It makes {results[USUAL].tokens:,} tokens, with EOS after each document, but no loss masks, "
            "no schedule and no checksums. It cuts off samples at the length of a pack, where hbpack splits them.\n\n"
        )
    else:
        text += f"*The usual way* was left out: {PYTHON_VARIABLE} names no Python with trl.\n\n"
    return text + (
        f"{runs} runs each, in turn; median (minimum-maximum). {HOW} It is read in the first run alone, since that "
        f"takes a fifth of a core. Other programs used {elsewhere:.0%} of the cores "
        f"meanwhile (median). hbpack ran with {versions(('gigatoken', 'tokenizers', 'numba', 'numpy', 'pyarrow'))}."
    )


def _main_table(results: dict[str, _Result]) -> str:
    base = results[WARM]
    rows = []
    for name, result in results.items():
        rows.append(
            [
                name,
                spread([run.wall for run in result.runs]),
                times(result.median("wall"), base.median("wall")),
                spread([run.cpu for run in result.runs]),
                times(result.median("cpu"), base.median("cpu")),
                f"{result.watched.peak_bytes / 2**20:.0f}",
                times(result.watched.peak_bytes, base.watched.peak_bytes),
                mebibytes(result.output_bytes),
                mebibytes(result.written_bytes),
                f"{result.watched.peak_at:.1f}",
                f"{result.packed_tokens:,}",
            ]
        )
    header = [
        "", "wall, s", "to hbpack", "CPU, s", "to hbpack", "peak memory, MiB", "to hbpack",
        "output, MiB", "written, MiB", "peak at, s", "tokens packed",
    ]  # fmt: skip
    return table(header, rows)


def _phase_table(results: dict[str, _Result]) -> str:
    header = ["seconds (median)", *results]
    rows = []
    for phase in PHASES:
        cells = [
            f"{statistics.median(result.phases[phase]):.2f}" if result.phases[phase] else "in tokenize"
            for result in results.values()
        ]
        rows.append([phase, *cells])
    text = (
        "The time of each phase: `start` covers the interpreter, imports and options; meanwhile, the workers' server "
        "begins to load the tokenizer. hbpack reads while it tokenizes. `tokenize chats` ends with the last part made "
        "of chats, according to the file times of the parts."
    )
    return f"{text}\n\n{table(header, rows)}"


def _import_table(work: Path, numba_cache: Path, runs: int) -> str:
    """hbpack's imports by package, in one process for one small file."""
    sample = ROOT / "examples" / "sample"
    output = work / "imports"
    command = [
        sys.executable, "-X", "importtime", "-m", "packer_cli", "pack", str(sample / "chats.jsonl"),
        "--tokenizer", str(sample / "tokenizer"), "--groups", "1k:1", "--gpus", "1", "--overflow", "split",
        "--workers", "1", "--output", str(output),
    ]  # fmt: skip
    by_run: list[dict[str, float]] = []
    for _ in range(runs):
        shutil.rmtree(output, ignore_errors=True)
        own: dict[str, float] = defaultdict(float)
        for _, text in run_measured(command, {"NUMBA_CACHE_DIR": str(numba_cache)}).lines:
            found = re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", text)
            if found:
                own[found[2].split(".")[0]] += int(found[1]) / 1e6
        by_run.append(own)
    medians = {name: statistics.median(own[name] for own in by_run) for name in by_run[0]}
    largest = sorted(medians.items(), key=lambda item: -item[1])
    rows = [[name, seconds(value)] for name, value in largest[:_TOP_IMPORTS]]
    rows.append(["all others", seconds(sum(value for _, value in largest[_TOP_IMPORTS:]))])
    rows.append(["all", seconds(sum(medians.values()))])
    text = (
        "The imports of `hbpack pack` with one worker, by package, from `python -X importtime`, which itself slows "
        "them down. With more workers, the part that tokenizing needs is imported once, in the workers' server."
    )
    return f"{text}\n\n{table(['package', 'own time (median)'], rows)}"
