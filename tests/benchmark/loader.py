"""`PackedDataset` beside a plain copy of its tensors, and beside others that read the same packs."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packer_cli.format.versions import set_at
from tests.benchmark.loaders import first, peers
from tests.benchmark.measure import ROOT, BenchmarkError, run_measured
from tests.benchmark.report import mebibytes, seconds, table, times, versions
from tests.benchmark.rival import corpora

STREAMING_VARIABLE = "HBPACK_BENCH_STREAMING_PYTHON"

PACKS, ROWS, SHARED = "16k:1", "128k:1", "16k:1,128k:8"
_GPUS = {PACKS: 1, ROWS: 1, SHARED: 8}
_FORMATS = ("transformers", "flash-attn", "torchtitan", "megatron", "deepspeed", "torchtune")
_BATCHES = {PACKS: 600, ROWS: 100}
_MILLION = 1_000_000
_EPOCHS, _MOST_BATCHES, _WORKER_BATCHES = 10, 100_000, 20_000
_FACTOR, _MOST_SECONDS, _MOST_GROWTH = 20, 0.5, 8 * 2**20


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    sets = {groups: _pack(work / f"loader-{number}", groups) for number, groups in enumerate(_GPUS)}
    verdicts: list[str] = []
    parts = [
        _floors(sets, runs, verdicts),
        _peers(work, sets, runs, verdicts),
        _first(work, sets[PACKS], runs, verdicts),
        _verify(sets, runs),
        _index_only(work, sets, runs),
        _memory(sets[PACKS], verdicts),
    ]
    return "\n\n".join(
        [f"{versions(('torch', 'numpy', 'pyarrow', 'datasets', 'transformers'))}.", *parts, "\n".join(verdicts)]
    )


def _pack(output: Path, groups: str) -> Path:
    if (output / "hbpack.json").exists():
        return output
    print(f"loader: packs the corpora, {groups}", file=sys.stderr)
    data = corpora()
    run_measured(
        [
            sys.executable,
            "-m",
            "packer_cli",
            "pack",
            str(data / "sft_messages.jsonl"),
            str(data / "long_docs.parquet"),
            "--tokenizer",
            str(data / "tokenizers" / "minimind-chatml"),
            "--groups",
            groups,
            "--gpus",
            str(_GPUS[groups]),
            "--overflow",
            "split",
            "--output",
            str(output),
        ]
    )
    return output


def _floors(sets: dict[str, Path], runs: int, verdicts: list[str]) -> str:
    cases = [
        *((f"{name}: 16K pack", PACKS, 0, name) for name in _FORMATS),
        *((f"{name}: 128K row of 8 ranks", SHARED, 1, name) for name in _FORMATS),
    ]
    found: dict[str, list[dict[str, Any]]] = {case[0]: [] for case in cases}
    for number in range(runs):
        print(f"loader: floors, round {number + 1} of {runs}", file=sys.stderr)
        for title, groups, group, name in cases:
            slow = name == "torchtune" and groups == SHARED
            options = ["--gpus", str(_GPUS[groups]), "--group", str(group), "--format", name]
            options += ["--rounds", "1" if slow else "5"]
            found[title].append(_json("floor", str(sets[groups]), *options))
    rows = []
    for title, results in found.items():
        loader, copy, again, tokens = (_median(results, key) for key in ("loader", "copy", "again", "tokens"))
        ratio = statistics.median(result["loader"] / result["copy"] for result in results)
        rows.append(
            [
                title,
                f"{tokens:,.0f}",
                f"{loader * 1e6:,.0f}",
                f"{tokens / loader / 1e6:,.0f}",
                f"{copy * 1e6:,.0f}",
                times(ratio, 1.0),
                f"{again * 1e6:,.0f}",
            ]
        )
        if title.startswith("transformers"):
            verdicts.append(
                _verdict(
                    ratio < 2,
                    f"{title}: a batch takes {times(ratio, 1.0)} as long as a plain copy "
                    "of its tensors (target: under 2x)",
                )
            )
    text = (
        "**A batch and a plain copy.** Rank 0, no workers, one thread, files in the page cache. Each pass reads each "
        "iteration of the epoch once; a batch is released when the next one arrives. *Copy* is a loader with nothing "
        "to compute: all batches of the epoch (of the first 256 MiB) are ready in memory, and `clone` makes the same "
        "tensors. Like the loader, it reads from memory, where the epoch is, and writes to memory that the process "
        "has written before. *Again* copies the tensors that the loader has just written once more, from the core's "
        "cache, where no loader finds its source. Loader, copy and copy again take turns, batch by "
        f"batch; medians, and the median ratio of {runs} processes each. The tokens are those of this rank's tensors: "
        "if 8 ranks share a row, `transformers`, `flash-attn` and `deepspeed` take a slice, and the others the row."
    )
    header = ["", "tokens a batch", "us a batch", "million tokens/s", "copy, us", "to the copy", "again, us"]
    return f"{text}\n\n{table(header, rows)}"


def _peers(work: Path, sets: dict[str, Path], runs: int, verdicts: list[str]) -> str:
    streaming = _streaming_python()
    contenders: dict[str, Callable[[str], Sequence[str]]] = {
        "hbpack": lambda groups: _command("peers", "hbpack", str(sets[groups])),
        "datasets + DataCollatorWithFlattening": lambda groups: _command(
            "peers", "usual", str(work / f"usual-{_GPUS[groups]}-{groups.split(':')[0]}" / "samples")
        ),
    }
    for groups in _BATCHES:
        folder = work / f"usual-{_GPUS[groups]}-{groups.split(':')[0]}"
        if not (folder / "samples").exists():
            peers.write_samples(str(sets[groups]), folder)
    if streaming is not None:
        for groups in _BATCHES:
            target = work / f"mds-{groups.split(':')[0]}"
            if not (target / "index.json").exists():
                run_measured(
                    [
                        sys.executable,
                        "-m",
                        "packer_cli",
                        "export",
                        str(sets[groups]),
                        "--to",
                        "mds",
                        "--output",
                        str(target),
                    ]
                )
        script = str(ROOT / "tests" / "benchmark" / "loaders" / "streaming_peer.py")
        contenders[f"mosaicml streaming {streaming[1]}"] = lambda groups: [
            streaming[0],
            script,
            str(work / f"mds-{groups.split(':')[0]}"),
        ]
    speeds: dict[tuple[str, str, int], list[float]] = {}
    for number in range(runs):
        print(f"loader: peers, round {number + 1} of {runs}", file=sys.stderr)
        for groups, batches in _BATCHES.items():
            for workers in (0, 2):
                for name, command in contenders.items():
                    result = _run([*command(groups), "--workers", str(workers), "--batches", str(batches)])
                    speeds.setdefault((groups, name, workers), []).append(result["tokens"] / result["seconds"])
    rows = []
    for (groups, name, workers), values in speeds.items():
        speed, own = statistics.median(values), statistics.median(speeds[groups, "hbpack", workers])
        rows.append(
            [
                f"{name}, {workers} workers",
                "16K packs" if groups == PACKS else "128K rows",
                f"{speed / 1e6:,.1f}",
                times(own, speed),
            ]
        )
    for groups in _BATCHES:
        best = {
            name: max(statistics.median(speeds[groups, name, workers]) for workers in (0, 2)) for name in contenders
        }
        own, usual = best["hbpack"], best["datasets + DataCollatorWithFlattening"]
        verdicts.append(
            _verdict(
                own >= _FACTOR * usual,
                f"groups {groups}: {times(own, usual)} the tokens/s of datasets with the collator, each with the "
                f"number of workers that is best for it (target: {_FACTOR}x)",
            )
        )
    text = (
        "**The same packs, other loaders.** One GPU, whole rows, format `transformers`; "
        f"{_BATCHES[PACKS]} packs of 16K, {_BATCHES[ROWS]} of 128K, after the first {peers._WARM_UP}, in the order of "
        "use, in the page cache; each run is a new process, contenders in turn. *datasets* reads an Arrow data set of "
        "the packs' samples with `input_ids` and `labels`, through a batch sampler that names the samples of each "
        "pack, `DataCollatorWithFlattening(return_flash_attn_kwargs=True)` and a `DataLoader`. *streaming* reads the "
        "packs as MDS (`hbpack export --to mds`); a collate function in numpy makes the same tensors. With workers, a "
        "batch also has to be sent to the trainer's process; hbpack sends it as one block of bytes."
    )
    if streaming is None:
        text += f" *streaming* was left out: {STREAMING_VARIABLE} names no Python with mosaicml-streaming."
    return f"{text}\n\n{table(['', 'packs', 'million tokens/s', 'hbpack to it'], rows)}"


def _first(work: Path, source: Path, runs: int, verdicts: list[str]) -> str:
    folder = work / "million"
    if not folder.exists():
        first.write_set(source, folder, _MILLION)
    found: dict[str, list[dict[str, Any]]] = {where: [] for where in first.WHERE}
    for _ in range(runs):
        for where, results in found.items():
            results.append(_json("first", str(folder), "--where", where))
    rows = [
        [
            where,
            f"{results[0]['iterations']:,}",
            seconds(_median(results, "opening")),
            seconds(_median(results, "seconds")),
        ]
        for where, results in found.items()
    ]
    worst = max(_median(results, "seconds") for results in found.values())
    what = f"the first batch of a million packs comes after {seconds(worst)} (target: under {_MOST_SECONDS:g} s)"
    verdicts.append(_verdict(worst < _MOST_SECONDS, what))
    text = (
        "**Time to the first batch** of a set of a million packs, after the imports, in a new process. The loader "
        "reads the rows of the rank, and opens a shard. *Middle* loads a state from the middle of the epoch. *Another "
        "epoch* was not written; its steps are put into their own order."
    )
    return f"{text}\n\n{table(['begins at', 'iterations', 'data set open', 'first batch'], rows)}"


def _verify(sets: dict[str, Path], runs: int) -> str:
    cases = [(groups, mode) for groups in (PACKS, SHARED) for mode in ("none", "lazy", "full")]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for number in range(runs):
        print(f"loader: checks, round {number + 1} of {runs}", file=sys.stderr)
        for groups, mode in cases:
            options = ["--gpus", str(_GPUS[groups]), "--verify", mode]
            found[groups, mode].append(_json("verify", str(sets[groups]), *options))
    rows = [
        [
            f"{groups}, {mode}",
            seconds(_median(results, "opening")),
            seconds(_median(results, "first")),
            f"{_median(results, 'fresh') * 1e6:,.0f}",
            f"{_median(results, 'again') * 1e6:,.0f}",
        ]
        for (groups, mode), results in found.items()
    ]
    text = (
        "**What `verify` costs.** Rank 0, no workers, one thread, files in the page cache, a new process each. Time "
        "until the data set is open and until the first batch arrives (both after the imports), and time of a batch "
        "in the first and in the second pass over the epoch (medians). *lazy*, the default, compares a pack with its "
        f"checksum when the process first reads it; *full* reads all shards at the start. Medians of {runs} processes."
    )
    header = ["groups, `verify`", "open", "first batch", "us a batch, first pass", "second pass"]
    return f"{text}\n\n{table(header, rows)}"


def _index_only(work: Path, sets: dict[str, Path], runs: int) -> str:
    indexed = {groups: _index(source, work / f"{source.name}-index") for groups, source in sets.items()}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(runs):
        print(f"loader: index-only, round {number + 1} of {runs}", file=sys.stderr)
        for groups in sets:
            for kind, folder in (("written", sets[groups]), ("index-only", indexed[groups])):
                options = ["--gpus", str(_GPUS[groups]), "--verify", "lazy"]
                found.setdefault((groups, kind), []).append(_json("verify", str(folder), *options))
    rows = []
    for (groups, kind), results in found.items():
        folder = sets[groups] if kind == "written" else indexed[groups]
        again, written = _median(results, "again"), _median(found[groups, "written"], "again")
        rows.append(
            [
                f"{groups}, {kind}",
                mebibytes(sum(path.stat().st_size for path in set_at(folder).glob("shards/*/*"))),
                seconds(_median(results, "first")),
                f"{_median(results, 'fresh') * 1e6:,.0f}",
                f"{again * 1e6:,.0f}",
                times(again, written),
            ]
        )
    text = (
        "**Written shards and `--index-only`**, where the loader gathers each pack from the token store. Measured as "
        "above, with `lazy`: the two in turn, rank 0, files in the page cache. Rows of many short samples cost most: "
        "each sample lies somewhere else in the store."
    )
    header = ["groups", "shards, MiB", "first batch", "us a batch, first pass", "second pass", "to written shards"]
    return f"{text}\n\n{table(header, rows)}"


def _index(source: Path, output: Path) -> Path:
    """A copy of a set, written again with `--index-only`."""
    if not output.exists():
        shutil.copytree(source, output, symlinks=True)
        run_measured([sys.executable, "-m", "packer_cli", "write", str(output), "--index-only"])
    return output


def _memory(source: Path, verdicts: list[str]) -> str:
    rows = []
    for workers, least in ((0, _MOST_BATCHES), (2, _WORKER_BATCHES)):
        print(f"loader: memory, {workers} workers", file=sys.stderr)
        options = ["--workers", str(workers), "--epochs", str(_EPOCHS), "--batches", str(least)]
        result = _json("memory", str(source), *options)
        growth = result["end"] - result["warm"]
        rows.append(
            [
                f"{workers}",
                f"{result['epochs']}",
                f"{result['batches']:,}",
                mebibytes(result["warm"]),
                mebibytes(result["end"]),
                f"{growth / 2**20:+.1f}",
            ]
        )
        verdicts.append(
            _verdict(
                growth <= _MOST_GROWTH,
                f"{workers} workers: {growth / 2**20:+.1f} MiB after "
                f"{result['batches']:,} batches (target: flat, which means within "
                f"{mebibytes(_MOST_GROWTH)} MiB)",
            )
        )
    text = (
        "**Memory.** Anonymous memory (`Anonymous` of /proc/PID/smaps_rollup) of the process and its workers "
        "together, torch included, after two warm-up epochs and at the end. Pages of mapped shards are not counted: "
        "they belong to the page cache, which the kernel can take back at any time."
    )
    return f"{text}\n\n{table(['workers', 'epochs', 'batches', 'warm, MiB', 'end, MiB', 'growth, MiB'], rows)}"


def _verdict(holds: bool, what: str) -> str:
    return f"- {'Met' if holds else 'Missed'}: {what}."


def _median(results: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"tests.benchmark.loaders.{module}", *arguments]


def _json(module: str, *arguments: str) -> dict[str, Any]:
    return _run(_command(module, *arguments))


def _run(command: Sequence[str]) -> dict[str, Any]:
    """The last line that a command prints. Raises BenchmarkError if it fails."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _streaming_python() -> tuple[str, str] | None:
    """The Python that has mosaicml-streaming, and its version; without one, None and a line that says so.

    Its releases require transformers below 5 and numpy below 2.2, so it cannot be installed beside hbpack.
    """
    python = os.environ.get(STREAMING_VARIABLE, sys.executable)
    code = "from importlib.metadata import version; print(version('mosaicml-streaming'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError as error:
        raise BenchmarkError(f"{STREAMING_VARIABLE}: {error}") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        print(
            f"loader: streaming is left out, {reason}; name a Python that has it in {STREAMING_VARIABLE}",
            file=sys.stderr,
        )
        return None
    return python, done.stdout.strip()
