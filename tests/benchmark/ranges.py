"""Bytes and requests of a node that reads its part of a set on S3, beside the bytes of the rows that its ranks read.

`python -m tests.benchmark.ranges [--gpus 256] [--ranks 8] [--iterations 6] [--vocabulary 1024] [--latency 0.1]`
prints a line an epoch: the first one, one that was written, and one that was not, which repeats the first with its
steps in another order. All ranks of the node run in this process, iteration by iteration, with a cache of a tenth of
the set. The server, a process of moto, takes more of the machine than the ranks do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.loader.node import make_set, read_node, row_bytes
from tests.s3_server import s3_server

NODE = 3
"""The node whose ranks read."""
FAILING = {"slow_down": 0.05, "cut": 0.05, "late": 0.05}


def serve(connection: Any) -> None:
    """Answer each message, a latency and how to fail, with what was asked and sent since the last one."""
    with s3_server() as server:
        connection.send((server.url, server.environment))
        while (settings := connection.recv()) is not None:
            for name, value in settings.items():
                setattr(server, name, value)
            kinds = Counter(request.split()[0] for request in server.requests if "shards" in request)
            connection.send((kinds, sum(size for path, size in server.sent.items() if "shards" in path)))
            server.requests.clear()
            server.sent.clear()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--step", type=float, default=1.0)
    parser.add_argument("--share", type=float, default=0.1)
    asked = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=serve, args=(theirs,), daemon=True).start()
    url, environment = ours.recv()
    os.environ.update(environment, LOCAL_WORLD_SIZE=str(asked.ranks))
    import fsspec

    system = fsspec.filesystem("s3", endpoint_url=url)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        out = make_set(folder, asked.gpus, asked.iterations, vocabulary=asked.vocabulary)
        system.mkdir("bucket")
        system.put(str(out), "bucket/out", recursive=True)
        sizes = row_bytes(out)
        ranks = range(NODE * asked.ranks % asked.gpus, NODE * asked.ranks % asked.gpus + asked.ranks)
        print(
            f"{len(sizes)} packs, {sizes.sum() / 1e6:.0f} MB; a node of {asked.ranks} of {asked.gpus} ranks",
            flush=True,
        )
        options = {"cache_dir": folder / "cache", "cache_bytes": int(asked.share * sizes.sum())}
        for name, epoch, latency, faults in (
            ("epoch 0", 0, 0.0, {}),
            ("epoch 0 again", 0, 0.0, {}),
            ("epoch 1, written", 1, 0.0, {}),
            ("epoch 2, not written", 2, 0.0, {}),
            ("epoch 2, failing", 2, 0.0, FAILING),
            ("epoch 0, latency", 0, asked.latency, {}),
            ("epoch 2, latency", 2, asked.latency, {}),
        ):
            if "again" not in name:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            ours.send({"latency": latency, "slow_down": 0.0, "cut": 0.0, "late": 0.0, **faults})
            ours.recv()
            step = asked.step if latency else 0.0
            packs, waits = read_node("s3://bucket/out", asked.gpus, ranks, epoch, seconds=step, **options)
            late = [seconds for seconds in waits[len(ranks) :] if seconds > latency / 2]
            ours.send({})
            requests, sent = ours.recv()
            wanted = sizes[[*packs]].sum()
            used = sum(512 * path.stat().st_blocks for path in (folder / "cache").iterdir())
            print(
                f"{name:22} {len(packs):5} rows, {wanted / 1e6:6.2f} MB; sent {sent / 1e6:6.2f} MB, "
                f"{sent / wanted:5.3f} times; {requests['GET']} GET; {sum(waits):5.2f} s, "
                f"after the first iteration {len(late)} waits; cache {used / sizes.sum():.3f}",
                flush=True,
            )
        ours.send(None)


if __name__ == "__main__":
    main()
