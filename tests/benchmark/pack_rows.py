"""`hbpack pack` beside the usual way, for each kind of record and each family of tokenizers."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.benchmark.families import tokenizer_folder
from tests.benchmark.measure import BenchmarkError, Run, run_measured
from tests.benchmark.record_kinds import make_corpus
from tests.benchmark.report import spread, table, times
from tests.benchmark.rival import check_alike, corpora, find_peer, run_usual_way, warm_up_peer

ROW_VARIABLE = "HBPACK_BENCH_ROW"
SEQ_LENGTH = 16_384
OPTIONS = ["--groups", "16k:1", "--gpus", "8", "--overflow", "split", "--seed", "0"]
SAME_WORK = {"alpaca": ["--alpaca", "stanford"], "chats": ["--loss-on", "all"]}
"""By record kind: options with which hbpack does what the usual way does."""
KINDS = ("chats", "alpaca", "prompt-completion", "texts", "tokens")

ROWS = {f"{kind} {family}": (kind, family) for kind in KINDS for family in ("gpt2",)} | {
    f"{kind} {family}": (kind, family) for family in ("cl100k", "llama3", "mistral") for kind in ("chats", "alpaca")
}
"""By name: (record kind, family of tokenizers)."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One row, measured."""

    own: list[Run]
    masked: list[Run]
    """With loss masks that the usual way does not make."""
    usual: Run | None
    input_bytes: int
    samples: int
    tokens: int


def chosen_rows() -> list[str]:
    """The rows to measure: all, or the requested one. Raises BenchmarkError if it is unknown."""
    name = os.environ.get(ROW_VARIABLE)
    if name and name not in ROWS:
        raise BenchmarkError(f"unknown row {name!r}; known: {', '.join(ROWS)}")
    return [name] if name else list(ROWS)


def run_rows(work: Path, runs: int, numba_cache: Path) -> str:
    """Measure the rows, and return their text and table."""
    peer = find_peer()
    if peer:
        warm_up_peer(peer[0])
    numba_cache.mkdir(exist_ok=True)
    rows = []
    for name in chosen_rows():
        print(f"pack: {name}", file=sys.stderr)
        rows.append(_cells(name, _measure(*ROWS[name], work, runs, peer[0] if peer else None, numba_cache)))
    header = [
        "", "records", "MB", "million tokens", "hbpack, s", "CPU, s", "the usual way, s", "CPU, s", "to hbpack",
        "hbpack with loss masks, s",
    ]  # fmt: skip
    return f"{_TEXT.format(options=' '.join(OPTIONS), runs=runs, length=SEQ_LENGTH)}\n\n{table(header, rows)}"


_TEXT = (
    "**Record kinds and tokenizers.** `hbpack pack FILE --tokenizer FOLDER {options}`, {runs} runs, median "
    "(minimum-maximum), and one run of the usual way between them with `seq_length={length}`; everything else as "
    "above, but nothing reads their memory. For prompts and completions, the usual way is TRL's, in batches: it "
    "tokenizes both together, with EOS, and the prompt alone once more for the mask. For Alpaca records, Stanford's "
    "prompt is rendered first. For chats, it makes no mask, and nor does hbpack here (`--loss-on all`); the last "
    "column has its time by default, with a loss on the assistant's turns alone. Tokens are only packed. The "
    "tokenizers are trained on the shared corpora "
    "(`tests/benchmark/families.py`) with the split pattern, kind of BPE and chat template of their family: GPT-2"
    " (50,256 ids), GPT-4's cl100k (100,256), Llama 3 (128,000), and Mistral's SentencePiece BPE with byte "
    "fallback (32,000). The records (`tests/benchmark/record_kinds.py`) are: *chats*, the shared ones, about thirteen "
    "times over, each time with another number in the first question; *alpaca*, questions and answers of gsm8k and "
    "bbh, about five times over, each time with another exercise number; *prompt-completion*, successive paragraphs "
    "of the long documents; *texts*, those documents; *tokens*, those documents tokenized, with up to about 4,000 ids "
    "per record, and over again with another number in each record. Rows of chats and tokens have 400 MB, because "
    "with less both sides would mostly start up."
)


def _measure(kind: str, family: str, work: Path, runs: int, python: str | None, numba_cache: Path) -> _Row:
    data = corpora()
    tokenizer = tokenizer_folder(family, data)
    corpus = make_corpus(kind, data, work, tokenizer)
    output = work / "row"
    command = [
        sys.executable, "-m", "packer_cli", "pack", str(corpus), "--tokenizer", str(tokenizer), *OPTIONS,
        "--output", str(output),
    ]  # fmt: skip

    def run_own(*options: str) -> Run:
        shutil.rmtree(output, ignore_errors=True)
        return run_measured([*command, *options], {"NUMBA_CACHE_DIR": str(numba_cache)}, watch_memory=False)

    run_own(*SAME_WORK.get(kind, []))  # Fills caches.
    own: list[Run] = []
    masked: list[Run] = []
    usual = None
    for number in range(runs):
        own.append(run_own(*SAME_WORK.get(kind, [])))
        if kind == "chats":
            masked.append(run_own())
        if python and number == (runs - 1) // 2:
            usual = run_usual_way(work / "usual", python, {kind: corpus}, tokenizer, SEQ_LENGTH, watch_memory=False)
    parts = json.loads((output / "tokens" / "tokens.json").read_text())["parts"]
    samples, tokens = (sum(part[name] for part in parts) for name in ("num_samples", "num_tokens"))
    if usual:
        check_alike(usual.counts["tokens"], tokens, samples)
    return _Row(
        own=own,
        masked=masked,
        usual=usual.run if usual else None,
        input_bytes=corpus.stat().st_size,
        samples=samples,
        tokens=tokens,
    )


def _cells(name: str, row: _Row) -> list[str]:
    wall = statistics.median(run.wall for run in row.own)
    cpu = statistics.median(run.cpu for run in row.own)
    usual = [f"{row.usual.wall:.1f}", f"{row.usual.cpu:.1f}", times(row.usual.wall, wall)] if row.usual else ["-"] * 3
    return [
        name,
        f"{row.samples:,}",
        f"{row.input_bytes / 1e6:.0f}",
        f"{row.tokens / 1e6:.1f}",
        spread([run.wall for run in row.own]),
        f"{cpu:.1f}",
        *usual,
        spread([run.wall for run in row.masked]) if row.masked else "",
    ]
