"""ABR against randomness: every way to form iterations, with and without `refine`, beside the proved bound."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from packer_cli.commands.engines import make_engine
from packer_cli.commands.tokenize import run_tokenize
from packer_cli.config import TokenizeConfig
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import measure_each
from packer_cli.plan.core.randomness import measure_randomness
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.tokens.store import open_store
from tests.benchmark.plan import mix128k, short4k
from tests.benchmark.report import seconds, table
from tests.benchmark.rival import corpora
from tests.requests import request

_BALANCES = [
    order + refine for order in ("none", "window:4", "window:16", "window:64", "sort") for refine in ("", "+refine")
]
_NUM_SAMPLES = 1_000_000
_PACKING = "bfs"
_LONG = 131_072


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    text = (
        f"Packing {_PACKING}, fill balanced, every way to form iterations (`--balance`). ABR is the share of time "
        "lost to waiting, and *bound* is the proved minimum for any distribution of the same samples within their "
        "iterations. *Length mix* and *source mix* tell how far the mix of sample lengths, and of inputs, in a step "
        "is from that of the whole corpus (0 is equal): this is what sorting costs in randomness. Every plan passed "
        "the checker. `plan` is the time of one `build_plan`, after compilation."
    )
    parts = [text]
    for title, lengths, sources, groups, num_gpus in _cases(work):
        print(f"frontier: {title}", file=sys.stderr)
        _row("sort+refine", lengths[:2000], None, groups, num_gpus)  # compiles
        rows = [_row(balance, lengths, sources, groups, num_gpus) for balance in _BALANCES]
        header = [
            "balance",
            "ABR",
            "bound",
            "ABR by group",
            "bound by group",
            "PR",
            "length mix",
            "source mix",
            "plan",
        ]
        parts.append(f"**{title}**\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def _cases(work: Path) -> list[tuple[str, np.ndarray, np.ndarray | None, tuple[Group, ...], int]]:
    two = (Group(capacity=16_384), Group(capacity=_LONG, sp_size=8))
    one = (Group(capacity=_LONG),)
    mix = mix128k(_NUM_SAMPLES)
    short = short4k(_NUM_SAMPLES)
    lengths, sources = shared_lengths()
    return [
        ("the shared corpora, 16k:1,128k:8 on 32 GPUs", lengths, sources, two, 32),
        (f"mix128k, {_NUM_SAMPLES:,} samples, 16k:1,128k:8 on 32 GPUs", mix, None, two, 32),
        (f"mix128k, {_NUM_SAMPLES:,} samples, one group of 128K on 4 ranks", mix, None, one, 4),
        (f"mix128k, {_NUM_SAMPLES:,} samples, one group of 128K on 32 ranks", mix, None, one, 32),
        (f"short4k, {_NUM_SAMPLES:,} samples, one group of 4K on 4 ranks", short, None, (Group(capacity=4096),), 4),
        (f"short4k, {_NUM_SAMPLES:,} samples, one group of 4K on 32 ranks", short, None, (Group(capacity=4096),), 32),
    ]


def shared_lengths() -> tuple[np.ndarray, np.ndarray]:
    """Lengths and inputs of the shared corpora's samples."""
    data = corpora()
    config = TokenizeConfig(
        inputs=(str(data / "sft_messages.jsonl"), str(data / "long_docs.parquet")),
        tokenizer=str(data / "tokenizers" / "minimind-chatml"),
    )
    with tempfile.TemporaryDirectory() as folder, make_engine({"workers": 2}) as engine:
        run_tokenize(config, Path(folder) / "out", engine)
        store = open_store(Path(folder) / "out" / "tokens")
        return store.lengths().copy(), store.sources()


def _row(
    balance: str,
    lengths: np.ndarray,
    sources: np.ndarray | None,
    groups: tuple[Group, ...],
    num_gpus: int,
) -> list[str]:
    rules = request(groups, num_gpus, _PACKING, balance=parse_balance(balance), fill="balanced")
    pieces = make_pieces(lengths, np.arange(len(lengths), dtype=np.int64), groups[-1].capacity, "split")
    start = time.perf_counter()
    plan = build_plan(pieces, rules)
    took = time.perf_counter() - start
    check_plan(plan)
    overall, *by_group = measure_each(plan, [None, *range(len(groups))])
    randomness = measure_randomness(plan, sources)
    return [
        balance,
        f"{overall.abr:.5f}",
        f"{overall.abr_bound:.5f}",
        " / ".join(f"{metrics.abr:.5f}" for metrics in by_group),
        " / ".join(f"{metrics.abr_bound:.5f}" for metrics in by_group),
        f"{overall.pr:.5f}",
        f"{randomness.length_mix_spread:.3f}",
        f"{randomness.source_mix_spread:.3f}" if sources is not None else "-",
        seconds(took),
    ]
