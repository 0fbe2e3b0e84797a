"""A set of realistic rows, the ranks of one node that read it, and the bytes of the rows that they read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.format.versions import set_at
from packer_cli.loader import PackedDataset

ROOT = Path(__file__).parents[2]
CAPACITY = 16_384
MEAN_LENGTH = 1000
"""Tokens of a document."""


def make_set(folder: Path, gpus: int, iterations: int, *options: str, vocabulary: int = 1024) -> Path:
    """Pack documents of random tokens into rows of 16K, for two epochs, in shards of about 2 MB."""
    rng = np.random.default_rng(1)
    tokens = gpus * iterations * CAPACITY
    sigma = 1.0
    lengths = rng.lognormal(np.log(MEAN_LENGTH) - sigma**2 / 2, sigma, int(tokens / MEAN_LENGTH)).astype(int)
    lengths = lengths.clip(16, CAPACITY)
    ids = pa.array(rng.integers(3, 1000, lengths.sum(), dtype=np.int32))
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)}), folder / "corpus.parquet")
    tokenizer = Path(shutil.copytree(ROOT / "examples" / "sample" / "tokenizer", folder / "tokenizer"))
    file = json.loads((tokenizer / "tokenizer.json").read_text())
    words = file["model"]["vocab"]
    words |= {f"word-{number}": number for number in range(len(words), vocabulary)}
    (tokenizer / "tokenizer.json").write_text(json.dumps(file))
    words = ["pack", folder / "corpus.parquet", "--tokenizer", tokenizer, "--output", folder / "out", "--epochs", 2]
    words += ["--groups", "16k:1", "--gpus", gpus, "--shard-size", "2MB", "--workers", 1, *options]
    command = [sys.executable, "-c", "from packer_cli.cli.main import run; run()", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "out"


def read_node(
    path: Any, gpus: int, ranks: range, epoch: int, *, seconds: float = 0.0, **options: Any
) -> tuple[dict[int, Any], list[float]]:
    """Read an epoch as the ranks of a node do, in lockstep; return the tokens of the packs that they have read, by
    id, and the seconds that each batch took.

    Args:
        seconds: of an iteration's step.
    """
    sets = [PackedDataset(path, rank, gpus, epoch, **options) for rank in ranks]
    found, waits = {}, []
    for i in range(len(sets[0])):
        for each in sets:
            begin = time.perf_counter()
            batch = each[i]
            waits.append(time.perf_counter() - begin)
            if batch["pack_id"] >= 0:
                found[batch["pack_id"]] = batch["input_ids"]
        time.sleep(seconds)
    for each in sets:
        each.close()
    return found, waits


def row_bytes(out: Path) -> np.ndarray:
    """The bytes of each pack's row, by id."""
    sizes = []
    for path in sorted(set_at(out).glob("shards/*/*.arrow")):
        for batch in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_batches():
            total = np.zeros(len(batch), dtype=np.int64)
            for column in batch.columns:
                if pa.types.is_list(column.type):
                    total += np.diff(column.offsets.to_numpy()) * (column.type.value_type.bit_width // 8)
                else:
                    total += column.type.bit_width // 8
            sizes.append(total)
    return np.concatenate(sizes)
