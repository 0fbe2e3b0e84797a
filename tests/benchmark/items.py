"""Preference pairs with long prompts, and conversations of thinking turns: what trees save, and their packing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from packer_cli.loader import PackedDataset
from tests.benchmark.measure import HOW_LONG, ROOT, BenchmarkError, Run, repeat, run_measured
from tests.benchmark.report import spread, table, times, versions
from tests.benchmark.rival import corpora
from tests.item_corpora import Record, conversations, pairs, write_jsonl

PAIRS, CONVERSATIONS, TURNS = 20_000, 5_000, 8
CORPORA = {
    f"{PAIRS:,} pairs": ("pairs", []),
    f"{CONVERSATIONS:,} conversations": ("turns", ["--turns", "branch"]),
}
"""By title: name of the file, and options of `tokenize`."""
LIMITS = ("2x", "none")
"""Of path tokens."""
PACKINGS = ("bfs", "isf")
"""The default of flat samples, and that of items."""
OVER_BOUND = 0.01
"""Most packs over the bound, for the last of `PACKINGS`."""
_PLAN = ["--groups", "128k:1", "--gpus", "8", "--overflow", "truncate"]
_BATCHES = 200


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    words = " ".join(pq.read_table(corpora() / "long_docs.parquet")["text"].to_pylist()[:200]).split()
    write_jsonl(work / "pairs.jsonl", pairs(words, PAIRS))
    write_jsonl(work / "pairs-flat.jsonl", _samples_of(pairs(words, PAIRS)))
    write_jsonl(work / "turns.jsonl", conversations(words, CONVERSATIONS, turns=TURNS))
    (work / "turns-flat.jsonl").symlink_to(work / "turns.jsonl")
    saved, packed, loaded, met = [], [], [], []
    for title, (name, options) in CORPORA.items():
        tree, flat = work / name, work / f"{name}-flat"
        _tokenize(tree, options)
        _tokenize(flat, [])
        _hbpack("plan", tree, *_PLAN, "--output", tree / LIMITS[0])
        saved.append(_saved_row(title, _stats(tree / LIMITS[0])["counts"]["trees"]))
        for limit, packing in itertools.product(LIMITS, PACKINGS):
            row, over = _pack_row(tree, flat, limit, packing, runs)
            packed.append([title, limit, f"`{packing}`", *row])
            if packing == PACKINGS[-1]:
                verdict = "Met" if over <= OVER_BOUND else "Missed"
                met.append(
                    f"- {verdict}: {title}, path tokens {limit}: {over:.2%} over the bound (target: at most 1%)."
                )
        loaded.append([title, *_loader_row(tree, runs)])
    return (
        "Seeded corpora of the words of the shared documents (`tests/item_corpora.py`): pairs with prompts of 1,500 "
        f"words in the median, and conversations of {TURNS} turns with 100 to 800 words of reasoning each, which the "
        "template drops from the history. *Padded* is a batch for each item, as long as its longest branch; *flat* is "
        "every branch on its own; *unique* has shared prefixes once. Attention work is the sum of squares, for trees "
        f"`(p + n)^2 - p^2` of segments of n tokens below p others. {versions(('numba', 'numpy', 'torch'))}.\n\n"
        + table(["", "padded", "flat", "unique", "saved of padded", "of flat", "attention", "K a token"], saved)
        + "\n\nPlans for 8 GPUs with rows of 128K tokens; packs are multiples of 8. The *bound* counts unique tokens "
        "and, where there is a limit, path tokens. *Wall* is that of `hbpack plan`, beside plans of flat samples: "
        "both samples of each pair on their own, and whole conversations. "
        f"{runs} runs in turn, median (minimum-maximum). {HOW_LONG}\n\n"
        + table(
            ["", "path tokens", "packing", "packs", "bound", "padding", "ABR", "wall, s", "of flat samples, s"], packed
        )
        + f"\n\nA row from the loader, mean of {_BATCHES} rows of up to 128K tokens.\n\n"
        + table(["", "`tree`, ms", "`tree-flex`, ms", "`pairs`, ms"], loaded)
        + "\n\n"
        + "\n".join(met)
    )


def _saved_row(title: str, trees: dict[str, Any]) -> list[str]:
    padded, flat, unique = (trees[f"tokens_{kind}"] for kind in ("padded", "flat", "unique"))
    return [
        title,
        *(f"{tokens / 1e6:,.1f}M" for tokens in (padded, flat, unique)),
        f"{1 - unique / padded:.0%}",
        f"{1 - unique / flat:.0%}",
        times(trees["attention_flat"], trees["attention_tree"]),
        f"{trees['path_tokens'] / unique:.2f}",
    ]


def _pack_row(tree: Path, flat: Path, limit: str, packing: str, runs: int) -> tuple[list[str], float]:
    walls: dict[Path, list[float]] = {tree: [], flat: []}
    for number in range(runs):
        print(f"items: {tree.name}, {limit}, {packing}, round {number + 1} of {runs}", file=sys.stderr)
        for store in walls:
            of_trees = ["--max-path-tokens", limit] if store is tree else []
            (store / limit / "plan.arrow").unlink(missing_ok=True)
            options = [*_PLAN, "--packing", packing, *of_trees]
            walls[store].append(_hbpack("plan", store, *options, "--output", store / limit).wall)
    overall = _stats(tree / limit)["overall"]
    packs, bound = overall["num_packs"], overall["packs_lower_bound"]
    row = [f"{packs:,}", f"{bound:,}", f"{overall['pr']:.2%}", f"{overall['abr']:.2%}"]
    return [*row, *(spread(walls[store], 2) for store in walls)], packs / bound - 1


def _loader_row(tree: Path, runs: int) -> list[str]:
    folder = tree / LIMITS[0]
    _hbpack("write", folder)
    names = ["tree", "tree-flex", *(["pairs"] if tree.name == "pairs" else [])]
    sets = {name: PackedDataset(folder, 0, 8, format=name) for name in names}
    number = min(_BATCHES, *map(len, sets.values()))
    seconds = repeat({name: partial(_read, dataset, number) for name, dataset in sets.items()}, runs)
    return [
        f"{seconds[name] / number * 1e3:.2f}" if name in seconds else "" for name in ("tree", "tree-flex", "pairs")
    ]


def _read(dataset: PackedDataset, number: int) -> None:
    for index in range(number):
        dataset[index]


def _samples_of(records: Iterator[Record]) -> Iterator[Record]:
    for record in records:
        for role in ("chosen", "rejected"):
            yield {"prompt": record["prompt"], "completion": record[role]}


def _tokenize(store: Path, options: list[str]) -> None:
    tokenizer = ["--tokenizer", corpora() / "tokenizers" / "minimind-chatml", "--chat-template", "qwen3"]
    _hbpack("tokenize", store.with_suffix(".jsonl"), *tokenizer, *options, "--output", store)


def _stats(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "packer_cli", "stats", str(folder), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"hbpack stats: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _hbpack(*words: object) -> Run:
    try:
        return run_measured([sys.executable, "-m", "packer_cli", *map(str, words)], watch_memory=False)
    except BenchmarkError as error:
        raise BenchmarkError(f"hbpack {words[0]}: {error}") from None
