"""Many small objects on S3: runs beside fsspec's bare concurrent `cat` of the same keys.

`python -m tests.benchmark.objects [--number 10000] [--latency 0.02] [--workers 2]` prints seconds and requests; the
server, one process of moto, takes more of the machine than the runs do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.s3_server import s3_server

ROOT = Path(__file__).parents[2]


def serve(connection: Any, latency: float) -> None:
    """Answer each message with the requests since the last one, by method."""
    with s3_server() as server:
        connection.send((server.url, server.environment))
        while connection.recv():
            server.latency = latency
            connection.send(Counter(request.split()[0] for request in server.requests))
            server.requests.clear()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=serve, args=(theirs, options.latency), daemon=True).start()
    url, environment = ours.recv()
    os.environ.update(environment)
    import fsspec

    system = fsspec.filesystem("s3", endpoint_url=url)
    system.mkdir("bucket")
    texts = ("lorem ipsum dolor sit amet " * 170).encode()
    keys = [f"bucket/corpus/{number % 100:02}/{number:05}.jsonl" for number in range(options.number)]
    system.pipe({key: json.dumps({"text": f"{key} {texts.decode()}"}).encode() + b"\n" for key in keys})

    def measure(name: str, call: Callable[[], object]) -> float:
        ours.send(True)
        ours.recv()
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        ours.send(True)
        print(f"{name:24} {seconds:7.1f} s  {dict(ours.recv())}", flush=True)
        return seconds

    with tempfile.TemporaryDirectory() as folder:
        words = ["tokenize", "s3://bucket/corpus", "--tokenizer", ROOT / "examples/sample/tokenizer"]
        command = [
            sys.executable,
            "-c",
            "from packer_cli.cli.main import run; run()",
            *words,
            "--output",
            f"{folder}/out",
        ]
        run = [*map(str, command), "--workers", str(options.workers)]
        bare = measure("fsspec cat", lambda: system.cat(keys))
        measure("listing", lambda: system.find("bucket/corpus", detail=True, refresh=True))
        measure("start-up", lambda: subprocess.run([*run[:4], "--help"], check=True, stdout=subprocess.DEVNULL))
        first = measure("first run", lambda: subprocess.run(run, check=True))
        measure("nothing to do", lambda: subprocess.run(run, check=True))
    print(f"first run / cat: {first / bare:.2f}")


if __name__ == "__main__":
    main()
