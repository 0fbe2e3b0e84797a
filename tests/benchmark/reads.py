"""Bytes of inputs on S3 that runs read, beside the bytes of the objects: a first run, an append, an array, a `.gz`.

`python -m tests.benchmark.reads [--megabytes 60] [--tasks 8]` prints a line a run. Times say nothing here: the server
is moto, on the same machine.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from tests.s3_server import s3_server

ROOT = Path(__file__).parents[2]
CHATS = ROOT / "examples" / "sample" / "chats.jsonl"
HBPACK = [sys.executable, "-c", "from packer_cli.cli.main import run; run()"]


def make_corpus(folder: Path, num_bytes: int) -> None:
    """Write files of each kind, of which JSON Lines are most: some are cut into slices, and many share a part."""
    lines = CHATS.read_bytes().splitlines(keepends=True)
    text = b"".join(lines)

    def copies(size: int) -> bytes:
        return text * max(1, size // len(text))

    for number in range(20):
        (folder / f"small-{number:02}.jsonl").write_bytes(copies(num_bytes // 100))
    for number in range(2):
        name = f"large-{number}.jsonl"
        (folder / name).write_bytes(copies(num_bytes // 4).replace(b"e", b"a" if number else b"e"))
    table = pa.json.read_json(pa.BufferReader(copies(num_bytes // 10)))
    pq.write_table(table, folder / "chats.parquet", row_group_size=5000)
    (folder / "chats.jsonl.gz").write_bytes(gzip.compress(copies(num_bytes), 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=8)
    options = parser.parse_args()
    with s3_server() as server, tempfile.TemporaryDirectory() as temporary:
        os.environ.update(server.environment)
        import fsspec

        folder = Path(temporary)
        (folder / "corpus").mkdir()
        make_corpus(folder / "corpus", options.megabytes << 20)
        system = fsspec.filesystem("s3", endpoint_url=server.url)
        system.mkdir("bucket")
        system.put(f"{folder}/corpus", "bucket/corpus", recursive=True)

        def count(name: str, objects: str, *runs: list[Any], code: int = 0) -> None:
            sizes = {f"/{path}": size for path, size in system.du(objects, total=False).items()}
            server.sent.clear()
            for task, words in enumerate(runs):
                os.environ["HBPACK_CACHE"] = f"{folder}/cache-{name}-{task}"  # A machine of its own.
                subprocess.run([*HBPACK, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
            read = Counter({path: num for path, num in server.sent.items() if path.startswith("/bucket/corpus")})
            worst = max(sizes, key=lambda path: read[path] / sizes[path])
            total = sum(read.values()) / sum(sizes.values())
            print(
                f"{name:26} {total:5.2f} times {objects}; most {read[worst] / sizes[worst]:5.2f} of {worst}",
                flush=True,
            )

        same = ["--tokenizer", ROOT / "examples/sample/tokenizer"]
        plan = ["--groups", "1k:1,8k:4", "--gpus", 8, "--output"]
        count("pack", "bucket/corpus", ["pack", "s3://bucket/corpus", *same, *plan, folder / "out"])
        (folder / "new.jsonl").write_bytes(CHATS.read_bytes().replace(b"a", b"e") * options.megabytes)
        system.put_file(folder / "new.jsonl", "bucket/corpus-new.jsonl")
        count("append", "bucket/corpus-new.jsonl", ["append", folder / "out", "s3://bucket/corpus-new.jsonl"])
        tasks = [
            ["tokenize", "s3://bucket/corpus", *same, "--output", folder / "array", "--shard", f"{i}/{options.tasks}"]
            for i in range(options.tasks)
        ]
        count(f"tokenize, array of {options.tasks}", "bucket/corpus", *tasks)
        archive = ["tokenize", "s3://bucket/corpus/chats.jsonl.gz", *same, "--workers", 8, "--output", folder / "gz"]
        count("tokenize a .gz, 8 workers", "bucket/corpus/chats.jsonl.gz", archive)


if __name__ == "__main__":
    main()
