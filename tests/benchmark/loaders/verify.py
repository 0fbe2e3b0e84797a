"""The price of checks: time to the first batch, and of each batch when read first and when read again."""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from packer_cli.loader import PackedDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--verify", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.perf_counter
    start = clock()
    dataset = PackedDataset(arguments.path, 0, arguments.gpus, verify=arguments.verify)
    opened = clock()
    dataset[0]
    first = clock()
    passes: list[list[float]] = [[], []]
    for number in range(2):
        for i in range(1, len(dataset)):
            begin = clock()
            dataset[i]
            passes[number].append(clock() - begin)
    result = {
        "opening": opened - start,
        "first": first - start,
        "fresh": statistics.median(passes[0]),
        "again": statistics.median(passes[1]),
        "batches": len(dataset),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
