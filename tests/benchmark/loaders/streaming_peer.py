"""An epoch of the packs of one set with mosaicml streaming; `hbpack export --to mds` wrote them.

Needs mosaicml-streaming, torch and numpy, but not hbpack, so it may run in another Python. The collate function does
only what the tensors of a batch of one pack need.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import sys
import time
import types
from typing import Any

import numpy as np
import torch

_WARM_UP = 32


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def _import_streaming() -> Any:
    """Import streaming, with an empty torchvision if that does not load: only data sets of images use it."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in ("", ".datasets", ".datasets.folder", ".transforms", ".transforms.functional"):
            module = types.ModuleType(f"torchvision{name}")
            module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
            module.__path__ = []
            module.__getattr__ = _empty_class  # type: ignore[method-assign]
            sys.modules[module.__name__] = module
    import streaming

    return streaming


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The tensors of a batch of one pack."""
    (pack,) = samples
    ids, borders = pack["input_ids"].astype(np.int64), pack["cu_seqlens"]
    lengths = np.diff(borders)
    labels = np.where(pack["loss_mask"] != 0, ids, -100)
    labels[borders[:-1]] = -100
    positions = np.arange(len(ids), dtype=np.int64) - np.repeat(borders[:-1], lengths)
    cu_seqlens = torch.from_numpy(np.array(borders))
    longest = int(lengths.max())
    return {
        "input_ids": torch.from_numpy(ids)[None],
        "labels": torch.from_numpy(labels)[None],
        "position_ids": torch.from_numpy(positions)[None],
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
        "sample_ids": torch.from_numpy(np.array(pack["sample_ids"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    arguments = parser.parse_args()
    streaming = _import_streaming()
    from torch.utils.data import DataLoader

    dataset = streaming.StreamingDataset(local=arguments.path, batch_size=1, shuffle=False)
    batches = DataLoader(dataset, batch_size=1, collate_fn=collate, num_workers=arguments.workers)
    tokens = 0
    start = 0.0
    for number, batch in enumerate(batches):
        if number == _WARM_UP:
            start, tokens = time.perf_counter(), 0
        tokens += batch["input_ids"].shape[-1]
        if number == _WARM_UP + arguments.batches:
            break
    seconds = time.perf_counter() - start
    tokens -= batch["input_ids"].shape[-1]
    print(json.dumps({"seconds": seconds, "tokens": tokens, "batches": arguments.batches}), flush=True)


if __name__ == "__main__":
    main()
