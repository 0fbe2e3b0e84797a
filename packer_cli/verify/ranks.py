"""Whether the ranks read what the plan says: each pack once over all of them, in each epoch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from packer_cli.format.checksums import require_damage
from packer_cli.format.entries import EpochInfo, Generation
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import read_iterations, read_rank
from packer_cli.format.schema import iterations_path
from packer_cli.remote.local import open_source
from packer_cli.shards.ranks import EpochColumns
from packer_cli.sizes import counted


def check_epoch(
    folder: Path,
    manifest: Manifest,
    generation: Generation,
    epoch: EpochInfo,
    columns: EpochColumns | None,
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
    expected = columns.of_file(epoch.path) if columns else {}
    of_file = {epoch.file_of(ranks.first)[0]: ranks.first for ranks in epoch.ranks}
    for path in (iterations_path(epoch.path), *of_file):
        if path in skip:
            continue
        rank = of_file.get(path)
        try:
            with open_source(folder / path) as source:
                data = source.read_buffer()
                if rank is None:
                    table = read_iterations(data, epoch, generation.fingerprint, compares=False)
                else:
                    table = read_rank(data, epoch, rank, generation.fingerprint, compares=False)
        except (OSError, ValueError) as error:
            require_damage(error)
            found[path] = str(error)
            continue
        if columns and path not in expected:
            found[path] = "the plan has no such ranks"
            continue
        wrong = [
            name
            for name, values in (expected[path]() if columns else {}).items()
            if not np.array_equal(values, table[name])
        ]
        if wrong:
            found[path] = f"its {', '.join(wrong)} are not the plan's"
            continue
        if rank is not None:
            # A replica's packs count once, in the file of its first GPU.
            packs = table["pack"][(table["first_gpu"] == rank) & (table["pack"] >= 0)]
            if len(packs) and packs.max() >= len(times):
                found[path] = "it names packs that the set does not have"
                continue
            np.add.at(times, packs, 1)
    if found or any(path in skip for path in of_file):
        return found  # Others' packs cannot be counted.
    wrong_packs = np.flatnonzero(times > 1 if epoch.first_step else times != 1)
    if len(wrong_packs):
        pack = int(wrong_packs[0])
        others = f"; {counted(len(wrong_packs) - 1, 'other pack')} likewise" if len(wrong_packs) > 1 else ""
        found[epoch.path] = f"pack {pack} is read {counted(int(times[pack]), 'time')} over all ranks, not once{others}"
    return found
