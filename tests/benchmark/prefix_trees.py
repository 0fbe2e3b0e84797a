"""The prefix trees of a million branches of 512 tokens: time on one core, and memory.

Run as a program with a shape, it is one process that makes them, batch by batch as the token store does, and prints
what that took.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from packer_cli.format.arrays import Lists
from packer_cli.format.trees import SHARE_FROM
from packer_cli.plan.core.types import Int64Array
from packer_cli.tokens.prefix_trees import make_trees
from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.report import mebibytes, spread, table, versions

BRANCHES, TOKENS = 1_000_000, 512
AT_ONCE = 8_192
"""Branches of a record batch of the store."""
MOST_SECONDS = 5.0
_PROMPT = 384
_TURNS = 8
SHAPES = {
    "pairs": (2, f"pairs that share {_PROMPT} tokens"),
    "groups": (64, f"64 completions of a prompt of {_PROMPT} tokens"),
    "turns": (_TURNS, f"conversations of {_TURNS} turns"),
    "apart": (2, "pairs that share nothing"),
    "short": (64, "64 branches that fork every 8 tokens"),
}
"""By name: branches of an item, and what to call them."""


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SHAPES}
    for number in range(runs):
        print(f"prefix-trees: round {number + 1} of {runs}", file=sys.stderr)
        for name, results in found.items():
            results.append(_measure(name))
    rows, lines = [], []
    for name, results in found.items():
        title = SHAPES[name][1]
        seconds, peaks = ([result[key] for result in results] for key in ("seconds", "peak"))
        rows.append([title, spread(seconds), f"{results[0]['unique']:.0%}", mebibytes(statistics.median(peaks))])
        middle = statistics.median(seconds)
        verdict = "Met" if middle <= MOST_SECONDS else "Missed"
        lines.append(f"- {verdict}: {title}: {middle:.1f} s (target: at most {MOST_SECONDS:g} s).")
    text = (
        f"Prefix trees (`tokens/prefix_trees.py`) of {BRANCHES:,} branches of {TOKENS} tokens on average, {AT_ONCE:,} "
        f"of them at a time, as the token store writes them; ids are uint16, runs of fewer than {SHARE_FROM} tokens "
        "stay apart. *Unique* is the share of tokens that are left. Seconds are CPU time of one thread, *peak* is "
        f"what the largest resident set of the process grew by; {runs} runs, median (minimum-maximum). "
        f"{versions(('numba', 'numpy'))}."
    )
    return f"{text}\n\n{table(['', 'seconds', 'unique', 'peak, MiB'], rows)}\n\n" + "\n".join(lines)


def _measure(name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmark.prefix_trees", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{name}: {done.stderr[-1000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def branches_of(name: str, generator: np.random.Generator) -> tuple[Lists, Int64Array]:
    """A batch of items of a shape."""
    size = SHAPES[name][0]
    ids = generator.integers(0, 50_000, (AT_ONCE // size, size, TOKENS)).astype(np.uint16)
    lengths = np.full((AT_ONCE // size, size), TOKENS)
    if name in ("pairs", "groups"):
        ids[:, :, :_PROMPT] = ids[:, :1, :_PROMPT]
    elif name == "turns":
        # Each branch goes on from the one before it, by as much again.
        lengths[:] = 2 * TOKENS * np.arange(1, size + 1) // (size + 1)
        ids = np.repeat(
            generator.integers(0, 50_000, (AT_ONCE // size, 1, 2 * TOKENS)).astype(np.uint16), size, axis=1
        )
        ids[np.arange(len(ids))[:, None], np.arange(size), lengths - 2] = 50_001
    elif name == "short":
        for k in range(1, size):
            ids[:, k, : 8 * k] = ids[:, k - 1, : 8 * k]
    values = ids[np.arange(ids.shape[2]) < lengths[:, :, None]]
    return Lists(np.append(0, np.cumsum(lengths)), values), np.arange(0, AT_ONCE + 1, size)


def main(name: str) -> None:
    """Make the trees of one shape."""
    generator = np.random.default_rng(0)
    make_trees(Lists(np.arange(2), np.zeros(1, dtype=np.uint16)), np.arange(2))  # Compiles.
    batches = [branches_of(name, generator) for _ in range(4)]
    ctypes.CDLL(None).malloc_trim(0)  # Else memory that making the batches has left is used.
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins again.
    before = _peak()
    seconds = num_branches = num_tokens = num_unique = 0.0
    while num_branches < BRANCHES:
        branches, items = batches[int(num_branches) // AT_ONCE % len(batches)]
        start = time.process_time()
        ids, _ = make_trees(branches, items)
        seconds += time.process_time() - start
        num_branches += AT_ONCE
        num_tokens += len(branches.values)
        num_unique += len(ids.values)
    result = {
        "peak": _peak() - before,
        "unique": num_unique / num_tokens,
        "seconds": seconds * BRANCHES / num_branches,
    }
    print(json.dumps(result))


def _peak() -> int:
    """The largest resident set, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
