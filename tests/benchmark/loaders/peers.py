"""An epoch of the packs of one set, without and with workers: hbpack, and the usual way.

The usual way: an Arrow data set of the packs' samples (`input_ids`, `labels`), read by a `DataLoader` whose
`batch_sampler` names the samples of each pack, and `transformers.DataCollatorWithFlattening`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_WARM_UP = 32


def measure(batches: Iterable[dict[str, Any]], num_batches: int) -> dict[str, float]:
    """Seconds and tokens of `num_batches` batches after the first ones, when workers are up to speed."""
    tokens = 0
    start = 0.0
    for number, batch in enumerate(batches):
        if number == _WARM_UP:
            start, tokens = time.perf_counter(), 0
        tokens += batch["input_ids"].shape[-1]
        if number == _WARM_UP + num_batches:
            break
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": tokens - batch["input_ids"].shape[-1], "batches": num_batches}


def write_samples(path: str, folder: Path) -> None:
    """The samples of the packs of a set for one GPU, in the order of use, as a `datasets` data set on disk."""
    import datasets

    from packer_cli.loader import PackedDataset

    datasets.disable_progress_bars()
    packed = PackedDataset(path, 0, 1)

    def samples() -> Any:
        for batch in packed:
            ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
            borders = batch["cu_seq_lens_q"].tolist()
            for number in range(batch["num_samples"]):
                part = slice(borders[number], borders[number + 1])
                yield {"input_ids": ids[part], "labels": labels[part], "pack": batch["iteration"]}

    kinds = datasets.Features(
        {
            "input_ids": datasets.Sequence(datasets.Value("int32")),
            "labels": datasets.Sequence(datasets.Value("int32")),
            "pack": datasets.Value("int32"),
        }
    )
    made = datasets.Dataset.from_generator(samples, features=kinds, cache_dir=str(folder / "cache"))
    made.save_to_disk(str(folder / "samples"))


def hbpack(path: str, workers: int) -> Iterable[dict[str, Any]]:
    """`PackedDataset` under a `DataLoader`."""
    from torch.utils.data import DataLoader

    from packer_cli.loader import PackedDataset

    return DataLoader(PackedDataset(path, 0, 1), batch_size=None, num_workers=workers)


def usual_way(path: str, workers: int) -> Iterable[dict[str, Any]]:
    """See the module."""
    import datasets
    import numpy as np
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    samples = datasets.load_from_disk(path)
    packs = np.asarray(samples.with_format("numpy")["pack"])
    borders = [0, *(np.flatnonzero(np.diff(packs)) + 1).tolist(), len(packs)]
    return DataLoader(
        samples.remove_columns("pack"),
        batch_sampler=[list(range(a, b)) for a, b in itertools.pairwise(borders)],
        collate_fn=DataCollatorWithFlattening(return_flash_attn_kwargs=True),
        num_workers=workers,
    )


CONTENDERS = {"hbpack": hbpack, "usual": usual_way}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=sorted(CONTENDERS))
    parser.add_argument("path")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    arguments = parser.parse_args()
    print(json.dumps(measure(CONTENDERS[arguments.contender](arguments.path, arguments.workers), arguments.batches)))


if __name__ == "__main__":
    main()
