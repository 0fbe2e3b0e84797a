"""What each process of `test_versions.py` runs: two ranks read a set while commands make other versions of it."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from packer_cli.loader import PackedDataset
from tests.reference import read_packs


def read_versions(rank: int, out: str, store: str) -> None:
    """Open the set and read two passes, over and over in a run of its own, until `store`.end is there.

    Every batch is compared with the packs of the version that the data set says it reads.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    seen: list[str] = []
    ends = False
    while not ends:
        name = f"{store}.{len(seen)}"
        dist.init_process_group(
            "gloo", init_method=f"file://{name}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
        )
        ds = PackedDataset(out, rank, 2)
        seen.append(Path(ds.folder).name)
        packs = {pack["pack_id"]: pack for pack in read_packs(Path(ds.folder))}
        for epoch, workers in ((0, 0), (1, 1)):
            ds.set_epoch(epoch)
            loader: Any = DataLoader(ds, batch_size=None, sampler=ds.sampler(), num_workers=workers)
            for batch in loader:
                pack = packs.get(batch["pack_id"])
                if pack is not None:  # No filler.
                    assert batch["sample_ids"].tolist() == pack["sample_ids"].tolist()
                    assert batch["input_ids"][0, : pack["num_tokens"]].tolist() == pack["input_ids"].tolist()
        assert PackedDataset(out, rank, 2).folder == ds.folder
        both: list[Any] = [None, None]
        dist.all_gather_object(both, (seen[-1], Path(f"{store}.end").exists()))
        assert both[0][0] == both[1][0]
        ends = both[0][1]
        dist.destroy_process_group()
        if rank == 0:
            Path(f"{store}.done").write_text(f"{len(seen)} {len(set(seen))}")
            os.replace(f"{store}.done", f"{store}.rounds")
