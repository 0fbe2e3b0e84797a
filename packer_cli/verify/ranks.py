"""Whether the ranks read what the plan says: each pack once over all of them, in each epoch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.manifest import EpochInfo, Generation, Manifest
from packer_cli.format.ranks import read_rank
from packer_cli.format.schema import rank_path
from packer_cli.shards.ranks import RankColumns
from packer_cli.sizes import counted


def check_epoch(
    folder: Path,
    manifest: Manifest,
    generation: Generation,
    epoch: EpochInfo,
    columns: RankColumns | None,
    skip: Collection[str],
) -> dict[str, str]:
    """What is wrong with the rank manifests of an epoch, by path. Price: all of them, read once.

    Args:
        generation: whose epoch it is.
        columns: what they should hold; None where that is not known.
        skip: files that are known to be damaged.
    """
    found: dict[str, str] = {}
    times = np.zeros(sum(group.num_packs for group in manifest.groups), dtype=np.int64)
    first_pack = _first_packs(manifest)
    for rank in range(generation.num_gpus):
        path = rank_path(epoch.path, rank)
        if path in skip:
            continue
        try:
            with pa.memory_map(str(folder / path)) as source:
                table = read_rank(source.read_buffer(), epoch, rank, generation.fingerprint, compares=False)
        except (OSError, ValueError) as error:
            found[path] = str(error)
            continue
        expected = columns.of(rank) if columns else {}
        wrong = [name for name, values in expected.items() if not np.array_equal(values, table[name])]
        if wrong:
            found[path] = f"its {', '.join(wrong)} are not the plan's"
            continue
        is_own = (table["sp_rank"] == 0) & (table["shard"] >= 0)
        try:
            packs = first_pack[table["group"][is_own], table["shard"][is_own]] + table["row"][is_own]
            np.add.at(times, packs, 1)
        except IndexError:
            found[path] = "it names packs that the set does not have"
    if found or any(rank_path(epoch.path, rank) in skip for rank in range(generation.num_gpus)):
        return found  # Others' packs cannot be counted.
    wrong_packs = np.flatnonzero(times > 1 if epoch.first_step else times != 1)
    if len(wrong_packs):
        pack = int(wrong_packs[0])
        others = f"; {counted(len(wrong_packs) - 1, 'other pack')} likewise" if len(wrong_packs) > 1 else ""
        found[epoch.path] = f"pack {pack} is read {counted(int(times[pack]), 'time')} over all ranks, not once{others}"
    return found


def _first_packs(manifest: Manifest) -> NDArray[np.int64]:
    """int64[groups, most shards]: the first pack of each shard."""
    first = np.zeros((len(manifest.groups), max(len(group.shards) for group in manifest.groups)), dtype=np.int64)
    for g, group in enumerate(manifest.groups):
        first[g, : len(group.shards)] = [shard.first_pack for shard in group.shards]
    return first
