"""The loader's memory after many batches: the kernel's count of anonymous memory of the process and its workers.

Pages of mapped shards are not counted: they belong to the page cache, which the kernel can reclaim at any time.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import psutil

_WARM_UP_EPOCHS = 2


def anonymous_bytes() -> int:
    """`Anonymous` of /proc/PID/smaps_rollup, summed over this process and its descendants."""
    process = psutil.Process(os.getpid())
    total = 0
    for pid in [process.pid, *(child.pid for child in process.children(recursive=True))]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                total += int(line.split()[1]) * 1024
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True, help="at least; epochs are whole")
    arguments = parser.parse_args()
    from torch.utils.data import DataLoader

    from packer_cli.loader import PackedDataset

    workers = arguments.workers
    dataset = PackedDataset(arguments.path, 0, 1)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    epochs = batches = warm = 0
    while epochs < arguments.epochs + _WARM_UP_EPOCHS or batches < arguments.batches:
        if epochs == _WARM_UP_EPOCHS:
            warm, batches = anonymous_bytes(), 0
        dataset.set_epoch(epochs)
        for _batch in loader:
            batches += 1
        epochs += 1
    result = {"epochs": epochs - _WARM_UP_EPOCHS, "batches": batches, "warm": warm, "end": anonymous_bytes()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
