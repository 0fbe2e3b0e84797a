"""Chooses the packs of an export, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.checksums import inside
from packer_cli.format.entries import EpochInfo, GroupInfo
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import Columns, RankFileError, as_epoch, read_rows
from packer_cli.remote.local import open_source
from packer_cli.sizes import format_tokens, parse_tokens


def choose_groups(manifest: Manifest, text: str | None) -> list[int]:
    """Indices of the groups in `--groups`, each as CAPACITY[:SP_DEGREE] or the name of its folder; None is all.

    Raises:
        ConfigError: a name fits no group, or several.
    """
    if text is None:
        return list(range(len(manifest.groups)))
    chosen = set()
    for word in (word.strip() for word in text.split(",")):
        found = [number for number, group in enumerate(manifest.groups) if _is_named(group, word)]
        if len(found) != 1:
            known = ", ".join(f"{_spelled(group)} ({group.name})" for group in manifest.groups)
            rule = "fits several groups" if found else "is not a group"
            raise ConfigError(f"--groups: {word!r} {rule} of this set; it has {known}")
        chosen.add(found[0])
    return sorted(chosen)


def _spelled(group: GroupInfo) -> str:
    return f"{format_tokens(group.capacity)}:{group.sp_size}"


def _is_named(group: GroupInfo, word: str) -> bool:
    if word == group.name:
        return True
    capacity, _, degree = word.partition(":")
    try:
        return parse_tokens(capacity) == group.capacity and degree in ("", str(group.sp_size))
    except ValueError:
        return False


def check_one_capacity(format_name: str, manifest: Manifest, groups: Sequence[int]) -> None:
    """Raise ConfigError for groups of different capacities, for a format whose rows all have the same length."""
    chosen = [manifest.groups[group] for group in groups]
    if len({group.capacity for group in chosen}) > 1:
        names = [_spelled(group) for group in chosen]
        if len(set(names)) < len(names):  # Groups of unlike layouts may have equal capacities.
            names = [group.name for group in chosen]
        raise ConfigError(
            f"--to {format_name} writes rows of one length, but the groups {', '.join(names)} have different "
            f"capacities; export each to its own folder, the first with --groups {names[0]}"
        )


def packs_by_id(manifest: Manifest, groups: list[int]) -> NDArray[np.int64]:
    """int64[r]: the pack ids of the groups, increasing."""
    shards = [shard for group in groups for shard in manifest.groups[group].shards]
    ranges = [np.arange(shard.first_pack, shard.first_pack + shard.num_packs) for shard in shards]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *ranges]))


def packs_by_use(folder: Path, manifest: Manifest, groups: list[int], epoch: int) -> NDArray[np.int64]:
    """int64[r]: the packs of the groups as the ranks use them in an epoch, without fillers, which have no pack.

    The packs of an iteration are in the order of the DP ranks, so in a group without fillers DP rank d of N finds its
    packs at d, d + N, d + 2 N, ... where all GPUs run in lockstep. As in the loader, an epoch that was not written
    repeats one that was. Price: reads each rank manifest once; 20 bytes a slot.

    Raises:
        ConfigError: there is no such epoch.
        FormatError: a rank's manifest is missing or damaged.
    """
    entry, is_written = manifest.generation.find_epoch(epoch, "--epoch")
    counts = [len(group.shards) for group in manifest.groups]
    first_shard = np.cumsum(counts) - counts
    first_pack = np.array([shard.first_pack for group in manifest.groups for shard in group.shards], dtype=np.int64)
    wanted = np.isin(np.arange(len(manifest.groups)), groups)
    packs, iterations, dp_ranks = [], [], []
    for rank in (ranks.first for ranks in entry.ranks):
        columns = as_epoch(_read(folder, manifest, entry, rank), entry, manifest.seed, epoch, is_written=is_written)
        is_own = (columns["place"] == 0) & (columns["shard"] >= 0) & wanted[columns["group"]]
        own = {name: values[is_own] for name, values in columns.items()}
        packs.append(first_pack[first_shard[own["group"]] + own["shard"]] + own["row"])
        iterations.append(own["iteration"])
        dp_ranks.append(own["dp_rank"])
    return np.concatenate(packs)[np.lexsort((np.concatenate(dp_ranks), np.concatenate(iterations)))]


def _read(folder: Path, manifest: Manifest, entry: EpochInfo, rank: int) -> Columns:
    def read(path: str) -> pa.Buffer:
        with open_source(inside(folder, path)) as source:
            return source.read_buffer()

    try:
        return read_rows(read, manifest, entry, rank)
    except RankFileError as error:
        raise FormatError(
            f"{str(folder / error.path)!r} is damaged or incomplete ({error}); run hbpack write again"
        ) from None
