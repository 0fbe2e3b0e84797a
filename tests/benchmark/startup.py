"""Start of a loader: seconds, memory and requests of one rank of many, in a set without the files of other ranks.

`python -m tests.benchmark.startup [--rows 1e9] [--ranks 1024] [--epochs 3] [--shards 31000]` prints a line a storage.
The set is made up: `hbpack.json` lists all shards and ranks, and the files of one rank hold all of its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import packer_cli as hbpack
from packer_cli.format.arrays import dtype_of, to_batch
from packer_cli.format.checksums import file_checksum
from packer_cli.format.entries import EpochInfo, RankFile, ShardInfo
from packer_cli.format.schema import RANK_SCHEMA, identify, iteration_schema, iterations_path, ranks_path, shard_path
from packer_cli.shards.manifest import read_manifest, write_manifest
from tests.s3_server import s3_server

ROOT = Path(__file__).parents[2]
START = """
import json, sys, time
import torch
def most():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
imported = most()
begin = time.perf_counter()
from packer_cli.loader.dataset import PackedDataset
options = {"storage_options": json.loads(sys.argv[3])} if sys.argv[3] else {}
ds = PackedDataset(sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[4]), **options)
num = len(ds)
opened = time.perf_counter() - begin
ds.set_epoch(1)
assert len(ds) == num
begin = time.perf_counter()
ds.set_epoch(99)
len(ds)
print(json.dumps([opened, time.perf_counter() - begin, most(), imported]))
"""


def make_set(folder: Path, options: argparse.Namespace, rank: int) -> None:
    """Make up a set, of which only what this rank reads to start is there."""
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": f"text {i} " * 99}) + "\n" for i in range(999)))
    tokenizer = ROOT / "examples/sample/tokenizer"
    hbpack.pack([f"{folder}/corpus.jsonl"], output=folder / "one", tokenizer=str(tokenizer), groups="1k:1", gpus=1)
    manifest = read_manifest(folder / "one")
    group = manifest.groups[0]
    out = folder / "out"
    num_packs, num_shards, ranks = int(options.rows), options.shards, options.ranks
    borders = np.linspace(0, num_packs, num_shards + 1).astype(np.int64).tolist()
    shards = tuple(
        ShardInfo(
            path=shard_path(group.name, number),
            num_bytes=1 << 30,
            xxh3=f"{number:032x}",
            first_pack=borders[number],
            num_packs=borders[number + 1] - borders[number],
        )
        for number in range(num_shards)
    )
    num_iterations = num_packs // ranks
    order = np.random.default_rng(0).permutation(num_iterations)

    def write(path: str, schema: pa.Schema, columns: dict[str, Any]) -> str:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        schema = identify(schema, manifest.fingerprint, path)
        typed = {field.name: columns[field.name].astype(dtype_of(field.type)) for field in schema}
        with pa.OSFile(f"{out / path}", "wb") as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(to_batch(typed, schema))
        return file_checksum(out / path)

    epochs = []
    each = np.ones(num_iterations, dtype=np.int64)
    for number in range(options.epochs):
        name = f"ranks/epoch-{number:03}"
        common = {"step": np.arange(num_iterations)}
        schema = iteration_schema(())
        common |= {field.name: each * ranks for field in schema if field.name != "step"}
        xxh3 = write(iterations_path(name), schema, common)
        rows = {"iteration": np.arange(num_iterations), "pack": order * ranks + rank, "group": 0 * each}
        rows |= {"first_gpu": rank * each, "dp_rank": rank * each, "row_length": 1024 * each}
        files = [RankFile(first=i, last=i, xxh3=f"{i:032x}") for i in range(ranks)]
        files[rank] = replace(files[rank], xxh3=write(ranks_path(name, rank, rank), RANK_SCHEMA, rows))
        epochs.append(
            EpochInfo(
                path=name,
                num_iterations=num_iterations,
                num_steps=num_iterations,
                iterations_xxh3=xxh3,
                ranks=tuple(files),
            )
        )
    group = replace(group, shards=shards, num_packs=num_packs)
    out.mkdir(exist_ok=True)
    write_manifest(out, replace(manifest, num_gpus=ranks, groups=(group,), epochs=tuple(epochs), folder=None))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--shards", type=int, default=31_000)
    options = parser.parse_args()
    rank = options.ranks // 2
    with s3_server() as server, tempfile.TemporaryDirectory() as temporary:
        os.environ.update(server.environment)
        folder = Path(temporary)
        make_set(folder, options, rank)
        import fsspec

        system = fsspec.filesystem("s3", endpoint_url=server.url)
        system.mkdir("bucket")
        system.put(f"{folder}/out", "bucket/out", recursive=True)
        storage = json.dumps({"endpoint_url": server.url})
        for name, place, latency, more in [
            ("local disk", f"{folder}/out", 0.0, ""),
            ("S3, 100 ms a request", "s3://bucket/out", 0.1, storage),
        ]:
            server.latency = latency
            server.requests.clear()
            words = [sys.executable, "-c", START, place, str(rank), more, str(options.ranks)]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            opened, repeated, most, imported = json.loads(done.stdout)
            print(
                f"{name:22} open {opened:5.2f} s, an epoch that repeats {repeated:5.2f} s, "
                f"{(most - imported) / 1024:5.0f} MiB besides {imported / 1024:.0f} of torch, "
                f"{len(server.requests)} requests",
                flush=True,
            )


if __name__ == "__main__":
    main()
