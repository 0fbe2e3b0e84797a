"""Which row of which rank manifest a user means: a step or iteration of a rank, a pack, a sample.

Price: a rank's manifest is some 75 bytes a row; to find a pack, those of the ranks before it are read as well;
to find a sample, `plan.arrow`, some 50 bytes a sample.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from packer_cli.errors import ConfigError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.layout import Layout
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import RankRow, RankRows, read_rank_rows
from packer_cli.shards.files import SetFolder


@dataclass(frozen=True, kw_only=True)
class Place:
    """One micro-batch of one rank, and the epoch that it belongs to."""

    epoch: int
    rank: int
    num_iterations: int
    """Of the epoch."""
    row: RankRow
    pack: int | None
    """None: a filler."""
    layout: Layout
    """Of the replica that runs it."""

    @property
    def row_rank(self) -> int:
        """The rank's number among those that share the row."""
        return self.layout.row_rank(self.row.place)


def place_of(manifest: Manifest, rows: RankRows, rank: int, number: int) -> Place:
    """What row `number` of a rank says."""
    row, pack = rows.row(number), int(rows.columns["pack"][number])
    return Place(
        epoch=rows.epoch,
        rank=rank,
        num_iterations=len(rows),
        row=row,
        pack=pack if pack >= 0 else None,
        layout=manifest.groups[row.group].layout,
    )


def rows_of_rank(files: SetFolder, manifest: Manifest, rank: int, epoch: int) -> RankRows:
    """The rows of a rank in an epoch; one that was not written repeats one that was, as for the loader.

    Raises:
        ConfigError: there is no such rank or epoch.
        FormatError: the file is missing or damaged.
    """
    if not 0 <= rank < manifest.num_gpus:
        raise ConfigError(
            f"--rank must be from 0 to {manifest.num_gpus - 1}, got {rank}: the set is for {manifest.num_gpus} GPUs"
        )
    return read_rank_rows(files, manifest, rank, epoch, "--epoch")


def rows_of_step(rows: RankRows, step: int) -> list[int]:
    """The rows of a step, rising. Raises ConfigError where the epoch has no such step."""
    steps = rows.columns["step"]
    first, last = int(steps[0]), int(steps[-1])
    if not first <= step <= last:
        raise ConfigError(
            f"--step must be from {first} to {last}, got {step}: those are the steps of epoch {rows.epoch}"
        )
    return np.flatnonzero(steps == step).tolist()


def rows_of_iteration(rows: RankRows, iteration: int) -> list[int]:
    """The rows of an iteration, rising. Raises ConfigError where the epoch has no such iteration."""
    if not 0 <= iteration < len(rows):
        raise ConfigError(
            f"--iteration must be from 0 to {len(rows) - 1}, got {iteration}: those are the iterations of epoch "
            f"{rows.epoch}"
        )
    return [*rows.rows_of(iteration)]


def locate_pack(manifest: Manifest, pack: int) -> tuple[int, int, int]:
    """(group, shard, row) of a pack. Raises ConfigError where there is none of that id."""
    for g, group in enumerate(manifest.groups):
        for s, shard in enumerate(group.shards):
            if shard.first_pack <= pack < shard.first_pack + shard.num_packs:
                return g, s, pack - shard.first_pack
    num_packs = sum(group.num_packs for group in manifest.groups)
    raise ConfigError(f"--pack must be from 0 to {num_packs - 1}, got {pack}: the set has {num_packs:,} packs")


def find_pack(files: SetFolder, manifest: Manifest, packs: Collection[int], epoch: int) -> dict[int, Place]:
    """Where each pack is used in an epoch, on the first rank of its SP group; packs that are not used are left out.

    A set that was dealt to other GPUs in mid-epoch does not use again what it had used before.

    Raises:
        ConfigError: there is no such epoch.
    """
    found: dict[int, Place] = {}
    entry, _ = manifest.generation.find_epoch(epoch, "--epoch")
    for rank in (ranks.first for ranks in entry.ranks):
        if len(found) == len(packs):
            break
        rows = rows_of_rank(files, manifest, rank, epoch)
        for number in np.flatnonzero(np.isin(rows.columns["pack"], [*packs])).tolist():
            found.setdefault(int(rows.columns["pack"][number]), place_of(manifest, rows, rank, number))
    return found


def packs_of_sample(files: SetFolder, manifest: Manifest, sample: int) -> list[int]:
    """The packs that hold a sample, or pieces of it, rising.

    Raises:
        ConfigError: none does.
        FormatError: `plan.arrow`, which tells, is missing or damaged.
    """
    wanted = ["piece_sample", "pack_offsets", "pack_pieces"]
    with files.open(PLAN_NAME, wanted, xxh3=manifest.plan.xxh3) as reader:
        batch = reader.get_batch(0)
        samples, offsets, pieces = (
            to_numpy(batch.column(name).values) for name in ("piece_sample", "pack_offsets", "pack_pieces")
        )
        places = np.flatnonzero(np.isin(pieces, np.flatnonzero(samples == sample)))
        packs: list[int] = np.unique(np.searchsorted(offsets, places, side="right") - 1).tolist()
        last = int(samples.max(initial=-1))
        del batch, samples, offsets, pieces
    if not packs:
        raise ConfigError(
            f"--sample {sample} is in no pack; sample ids are the row numbers of the token store, here 0 to {last}, "
            "and some may be left out (see rejected.jsonl, and weights as in PATH@0.5)"
        )
    return packs
