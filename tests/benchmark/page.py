"""`hbpack report` of a million samples: the whole command, and what a browser takes to draw its page."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from packer_cli.sizes import counted
from tests.benchmark.measure import HOW_LONG, Run, num_cores, run_measured
from tests.benchmark.plan import MIX128K, mix128k
from tests.benchmark.report import spread, table, versions
from tests.report import browser

_SAMPLES = 1_000_000
_TARGET = 10.0
"""Seconds of wall time."""
LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
_OPTIONS = {
    "without times": (),
    "with times": ("--model", "MODEL", "--gpu", "h100"),
    "without other strategies": ("--strategies", "none"),
}


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    folder = work / "page"
    folder.mkdir()
    lengths, model = folder / "lengths.npy", folder / "config.json"
    np.save(lengths, mix128k(_SAMPLES))
    model.write_text(json.dumps(LLAMA_8B))
    rows, verdicts = [], []
    for title, options in _OPTIONS.items():
        page = folder / f"{title.replace(' ', '-')}.html"
        done = [_report(lengths, page, [str(model) if each == "MODEL" else each for each in options])]
        for attempt in range(1, runs):
            print(f"page: {title}, round {attempt + 1} of {runs}", file=sys.stderr)
            done.append(_report(lengths, page, [str(model) if each == "MODEL" else each for each in options]))
        wall = statistics.median(one.wall for one in done)
        rows.append(
            [
                title, spread([one.wall for one in done]), f"{statistics.median(one.cpu for one in done):.1f}",
                f"{page.stat().st_size / 2**20:.2f}", _drawn(page, runs),
                f"{statistics.median(one.busy_elsewhere for one in done):.0%}",
            ]
        )  # fmt: skip
        verdicts.append(f"- {'Met' if wall < _TARGET else 'Missed'}: {title}: {wall:.1f} s (target: {_TARGET:.0f} s).")
    text = (
        f"`hbpack report LENGTHS.npy --groups 16k:1,128k:8 --gpus 32` with {num_cores()} workers, which also plans "
        f"the lengths. {MIX128K}. {HOW_LONG} *Drawn* is the time in which headless Chromium opens the page and draws "
        f"every chart. *Elsewhere* is the share of the cores that other programs used meanwhile. "
        f"{counted(runs, 'run')}; median (minimum-maximum). {versions(('numba', 'numpy'))}."
    )
    header = ["", "wall, s", "CPU, s", "page, MiB", "drawn, s", "elsewhere"]
    return "\n\n".join([text, table(header, rows), "\n".join(verdicts)])


def _report(lengths: Path, page: Path, options: list[str]) -> Run:
    command = ["report", str(lengths), "--groups", "16k:1,128k:8", "--gpus", "32", "-o", str(page), *options]
    return run_measured([sys.executable, "-m", "packer_cli", *command], watch_memory=False)


def _drawn(page: Path, runs: int) -> str:
    """Seconds until all charts are drawn; a dash without Chromium."""
    path = browser.find()
    if path is None:
        return "-"
    seconds = []
    with browser.running(path) as running:
        for _ in range(runs):
            tab = running.tab()
            tab.look(1280, 900)
            begin = time.perf_counter()
            tab.open(page)
            tab.wait_for("document.documentElement?.dataset.drawn === 'yes'")
            seconds.append(time.perf_counter() - begin)
    return spread(seconds, 2)
