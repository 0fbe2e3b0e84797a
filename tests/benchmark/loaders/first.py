"""Time to the first batch of a set of a million packs, after the imports.

It is made from a real set for one GPU: the manifest lists its shards repeatedly, under other numbers, until there are
enough packs, and the rank's rows name all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from packer_cli.format.arrays import to_arrow
from packer_cli.format.checksums import file_checksum, sign_json
from packer_cli.format.versions import set_at

WHERE = ("start", "middle", "another epoch")
STEP_ITERATIONS = 8


def write_set(source: Path, folder: Path, num_packs: int) -> int:
    """Write the set; returns the number of its packs, `num_packs` or a few more."""
    source = set_at(source)
    manifest = json.loads((source / "hbpack.json").read_text())
    (group,) = manifest["groups"]
    own = sum(shard["num_packs"] for shard in group["shards"])
    num_packs = -(-num_packs // own) * own
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source / "shards", folder / "shards", copy_function=os.link)
    step = np.arange(num_packs, dtype=np.int64) // STEP_ITERATIONS
    (epoch,) = manifest["epochs"][:1]
    epoch |= {"num_iterations": num_packs, "num_steps": int(step[-1]) + 1}
    manifest["epochs"] = [epoch]
    columns = {
        "step": step,
        "iteration": np.arange(num_packs),
        "pack": np.arange(num_packs) % own,
        "num_replicas": np.ones(num_packs),
        "row_length": np.full(num_packs, group["capacity"]),
    }
    (folder / epoch["path"]).mkdir(parents=True)
    xxh3 = {}
    for name in ("iterations.arrow", "rank-00000.arrow"):
        path = f"{epoch['path']}/{name}"
        schema = pa.ipc.open_file(pa.memory_map(str(source / path))).schema
        values = [columns.get(field.name, np.zeros(num_packs)).astype(str(field.type)) for field in schema]
        with pa.OSFile(str(folder / path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([to_arrow(value) for value in values], schema=schema))
        xxh3[name] = file_checksum(folder / path)
    epoch["iterations_xxh3"] = xxh3["iterations.arrow"]
    epoch["ranks"] = [{"first": 0, "last": 0, "xxh3": xxh3["rank-00000.arrow"]}]
    del manifest["xxh3"]
    (folder / "hbpack.json").write_bytes(sign_json(manifest))
    return num_packs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--where", choices=WHERE, required=True)
    arguments = parser.parse_args()
    from torch.utils.data import DataLoader

    from packer_cli.format.constants import STATE_VERSION
    from packer_cli.loader import PackedDataset

    state = None
    if arguments.where == "middle":
        manifest = json.loads((Path(arguments.path) / "hbpack.json").read_text())
        at = manifest["epochs"][0]["num_iterations"] // 2
        known = {"epoch": 0, "iteration": at, "step": at // STEP_ITERATIONS}
        names = dict.fromkeys(("fingerprint", "planned_fingerprint"), manifest["fingerprint"])
        state = {"version": STATE_VERSION, **names, **known}
    start = time.perf_counter()
    dataset = PackedDataset(arguments.path, 0, 1, epoch=3 if arguments.where == "another epoch" else 0)
    if state is not None:
        dataset.load_state_dict(state)
    opened = time.perf_counter()
    batch = next(iter(DataLoader(dataset, batch_size=None, sampler=dataset.remaining())))
    seconds = time.perf_counter() - start
    assert batch["iteration"] == (state["iteration"] if state is not None else 0)
    print(json.dumps({"seconds": seconds, "opening": opened - start, "iterations": len(dataset)}))


if __name__ == "__main__":
    main()
