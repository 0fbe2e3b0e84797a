"""Peak memory of tokenize, plan and write on a corpus, and on ten times as much."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.benchmark.measure import SAMPLE_SECONDS, Run, num_cores, run_measured
from tests.benchmark.report import mebibytes, table, versions
from tests.benchmark.rival import corpora

TIMES = 10
MOST_GROWTH = 1.2
BYTES_A_SAMPLE = 16
_GROUPS = ("--groups", "16k:1,128k:8", "--gpus", "32", "--overflow", "split")
_REJECTED_LINES = 200_000


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section; each command runs once."""
    rows: list[list[str]] = []
    lines: list[str] = []
    for name, make in INPUTS.items():
        peaks: dict[str, list[Run]] = {}
        samples: list[int] = []
        sizes: list[int] = []
        for times in (1, TIMES):
            print(f"memory: {name}, {times} times", file=sys.stderr)
            path = make(work, times)
            sizes.append(path.stat().st_size)
            number, of_stages = _measure(path, work / "memory-out")
            samples.append(number)
            for stage, done in of_stages.items():
                peaks.setdefault(stage, []).append(done)
            path.unlink()
        more = BYTES_A_SAMPLE * (samples[1] - samples[0])
        for stage, of_sizes in peaks.items():
            small, large = (done.peak_own_bytes for done in of_sizes)
            most = small * MOST_GROWTH + more
            rows.append(
                [
                    f"{name}, {stage}",
                    *(mebibytes(size) for size in sizes),
                    *(f"{number:,}" for number in samples),
                    *(mebibytes(peak) for peak in (small, large, most, *(done.peak_bytes for done in of_sizes))),
                ]
            )
            verdict = "Met" if large <= most else "Missed"
            lines.append(
                f"- {verdict}: {name}, {stage}: {large / small:.2f} times the memory for {TIMES} times the input, "
                f"{mebibytes(large)} MiB (target: at most {mebibytes(most)} MiB)."
            )
    text = (
        f"Peak memory of each command with {num_cores()} workers, on one file and on one of {TIMES} times its "
        "records. *Chats* and *Parquet* repeat the shared chats and long documents; of *rejected*, no record is "
        f"valid. *Most* is the target: {MOST_GROWTH:g} times the peak of the small file, and {BYTES_A_SAMPLE} "
        f"bytes for each further sample. One run each. *Peak* is the largest proportional set size (PSS, "
        "which counts shared pages once) of all processes of the tree together, read every "
        f"{SAMPLE_SECONDS * 1000:.0f} ms, without mapped files, whose pages the system takes back when "
        f"it needs them; *mapped* is the peak with them. {versions(('numpy', 'pyarrow', 'gigatoken'))}."
    )
    header = [
        "", "MiB", f"MiB, {TIMES} times", "samples", f"samples, {TIMES} times", "peak, MiB",
        f"peak, {TIMES} times, MiB", "most, MiB", "mapped, MiB", f"mapped, {TIMES} times, MiB",
    ]  # fmt: skip
    return f"{text}\n\n{table(header, rows)}\n\n" + "\n".join(lines)


def _measure(path: Path, output: Path) -> tuple[int, dict[str, Run]]:
    """Samples, and the run of each stage."""
    tokenizer = corpora() / "tokenizers" / "minimind-chatml"
    commands = {
        "tokenize": ("tokenize", path, "--tokenizer", tokenizer, "--output", output),
        "plan": ("plan", output, *_GROUPS),
        "write": ("write", output),
    }
    runs: dict[str, Run] = {}
    samples = 0
    for stage, command in commands.items():
        done = _run(command, is_rejected=path.stem == "rejected")
        runs[stage] = done
        if stage == "tokenize":
            found = next(match for _, line in done.lines if (match := re.search(r"records?: ([\d,]+) samples?", line)))
            samples = int(found.group(1).replace(",", ""))
            if not samples:
                break
    shutil.rmtree(output)
    return samples, runs


def _run(command: tuple[object, ...], *, is_rejected: bool) -> Run:
    """Run hbpack, which ends with an error where every record is rejected."""
    shell = [sys.executable, "-m", "packer_cli", *map(str, command)]
    return run_measured(["sh", "-c", '"$@" || test $? = 1', "sh", *shell] if is_rejected else shell)


def _chats(work: Path, times: int) -> Path:
    path = work / "chats.jsonl"
    data = (corpora() / "sft_messages.jsonl").read_bytes()
    with path.open("wb") as file:
        for _ in range(2 * times):
            file.write(data)
    return path


def _parquet(work: Path, times: int) -> Path:
    import pyarrow.parquet as pq

    path = work / "documents.parquet"
    source = pq.ParquetFile(corpora() / "long_docs.parquet")
    with pq.ParquetWriter(path, source.schema_arrow) as writer:
        for _ in range(2 * times):
            for group in range(source.num_row_groups):
                writer.write_table(source.read_row_group(group))
    return path


def _rejected(work: Path, times: int) -> Path:
    path = work / "rejected.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"row": row, "note": "x" * 200}) + "\n" for row in range(_REJECTED_LINES * times))
    return path


INPUTS: dict[str, Callable[[Path, int], Path]] = {"chats": _chats, "Parquet": _parquet, "rejected": _rejected}
