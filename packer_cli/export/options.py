"""The options of an export, the header that they make with a packed set, and which packs it has in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packer_cli.config.set_options import ExportConfig
from packer_cli.engine.progress import warn
from packer_cli.errors import ConfigError, OutputError
from packer_cli.export.formats import FORMATS, load_format
from packer_cli.export.listing import NAME, WORK, ExportHeader, read_record
from packer_cli.files import fingerprint
from packer_cli.format.entries import GroupInfo
from packer_cli.format.manifest import Manifest, SetFolder
from packer_cli.format.ranks import read_rank_rows
from packer_cli.sizes import format_tokens, parse_tokens

EXPORT_VERSION = 2
"""Part of the fingerprint; a release that writes other bytes raises it."""


def describe_export(options: ExportConfig, source: Path, manifest: Manifest) -> ExportHeader:
    """Describe what is asked for of the packed set `source`: the facts that decide every byte of the export.

    Raises:
        ConfigError: an option does not fit the set or the format.
    """
    format = load_format(options.format)
    remedy = 'train on it with PackedDataset(..., format="tree"), or pack data without pairs and groups, and with '
    manifest.require_samples(repr(str(source)), "exports have", f"{remedy}--turns whole")
    groups = tuple(choose_groups(manifest, options.groups))
    shard_size = options.shard_size or format.shard_size
    if format.most_shard_size is not None and shard_size > format.most_shard_size:
        raise ConfigError(
            f"--shard-size must be at most {format.most_shard_size} for {options.format}, got {shard_size}"
        )
    if format.needs_one_capacity:
        check_one_capacity(options.format, manifest, groups)
    if manifest.planned.mask == "causal":
        warn(
            f"{str(source)!r} was planned with --mask causal, but the export keeps the borders of its samples: have "
            "the trainer attend across them, or plan with --mask document"
        )
    first = manifest.first_epoch if options.epoch is None else options.epoch
    epoch = first if options.order == "use" else None
    header: dict[str, Any] = {
        "export_version": EXPORT_VERSION,
        "format": options.format,
        "set_fingerprint": manifest.fingerprint,
        "groups": [manifest.groups[group].name for group in groups],
        "order": options.order,
        "epoch": epoch,
        "shard_size": shard_size,
    }
    if manifest.is_weighted:
        header["loss_weights"] = options.loss_weights
        if options.loss_weights and not format.weight_bytes:
            *others, last = (name for name in FORMATS if load_format(name).weight_bytes)
            raise ConfigError(
                f"{str(source)!r} has loss weights, for which {options.format} has no place: export to "
                f"{', '.join(others)} or {last}, or add --no-loss-weights, with which all loss tokens count 1"
            )
    header |= format.describe(source, manifest, groups)
    if (package := FORMATS.package(options.format)) is not None:
        header["package"] = package
    header["fingerprint"] = fingerprint(header)
    return cast("ExportHeader", header)


def is_same_export(folder: Path, entries: list[str], header: ExportHeader) -> bool:
    """Whether an earlier run of the same export wrote a folder.

    Args:
        header: what decides the bytes, and its fingerprint.

    Raises:
        OutputError: the folder holds another export.
    """
    earlier = read_record(folder / NAME) or read_record(folder / WORK / NAME)
    if not earlier:
        return entries == [WORK]
    what = _difference(earlier, header)
    if what:
        raise OutputError(
            f"output folder {str(folder)!r} holds an export {what}; remove it, or name an empty or a new folder"
        )
    return True


def _difference(earlier: Mapping[str, object], header: ExportHeader) -> str | None:
    """Say how an earlier export differs from the requested one."""
    if earlier.get("set_fingerprint") != header["set_fingerprint"]:
        return "of another packed set"
    if earlier.get("format") != header["format"]:
        return f"to {earlier.get('format')}"
    for key in ("groups", "order", "epoch", "shard_size"):
        value = earlier.get(key)
        if value != header.get(key):
            return f"with --{key.replace('_', '-')} {','.join(value) if isinstance(value, list) else value}"
    if earlier.get("loss_weights") != header.get("loss_weights"):
        return f"{'with' if earlier.get('loss_weights') else 'without'} loss weights"
    return None if earlier.get("fingerprint") == header["fingerprint"] else "of another release"


def choose_groups(manifest: Manifest, text: str | None) -> list[int]:
    """Choose the groups (indices) in `--groups`, each as CAPACITY[:SP_DEGREE] or its folder's name; None is all.

    Raises:
        ConfigError: a name fits no group, or several.
    """
    if text is None:
        return list(range(len(manifest.groups)))
    chosen = set()
    for word in (word.strip() for word in text.split(",")):
        found = [number for number, group in enumerate(manifest.groups) if _is_named(group, word)]
        if len(found) != 1:
            known = ", ".join(f"{spelled(group)} ({group.name})" for group in manifest.groups)
            rule = "fits several groups" if found else "is not a group"
            raise ConfigError(f"--groups: {word!r} {rule} of this set; it has {known}")
        chosen.add(found[0])
    return sorted(chosen)


def spelled(group: GroupInfo) -> str:
    """Write a group as `--groups` takes it: CAPACITY:SP_DEGREE."""
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
        names = [spelled(group) for group in chosen]
        if len(set(names)) < len(names):  # Groups of unlike layouts may have equal capacities.
            names = [group.name for group in chosen]
        raise ConfigError(
            f"--to {format_name} takes groups of one capacity, and {', '.join(names)} have different "
            f"ones; export each to its own folder, the first with --groups {names[0]}"
        )


def packs_by_id(manifest: Manifest, groups: list[int]) -> NDArray[np.int64]:
    """Return the pack ids of the groups, rising, int64[r]."""
    shards = [shard for group in groups for shard in manifest.groups[group].shards]
    ranges = [np.arange(shard.first_pack, shard.first_pack + shard.num_packs) for shard in shards]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *ranges]))


def packs_by_use(folder: Path, manifest: Manifest, groups: list[int], epoch: int) -> NDArray[np.int64]:
    """Return the groups' packs (int64[r]) as the ranks use them in an epoch, without fillers, which have no pack.

    The packs of an iteration are in the order of the DP ranks, so in a group without fillers DP rank d of N finds its
    packs at d, d + N, d + 2 N, ... where all GPUs run in lockstep. As in the loader, an epoch that was not written
    repeats one that was. Price: reads each rank manifest once; 20 bytes a slot.

    Raises:
        ConfigError: there is no such epoch.
        FormatError: a rank's manifest is missing or damaged.
    """
    entry, _ = manifest.generation.find_epoch(epoch, "--epoch")
    wanted = np.isin(np.arange(len(manifest.groups)), groups)
    packs, iterations, dp_ranks = [], [], []
    for rank in entry.first_ranks:
        columns = read_rank_rows(SetFolder(folder), manifest, rank, epoch).columns
        is_own = (columns["place"] == 0) & (columns["pack"] >= 0) & wanted[columns["group"]]
        packs.append(columns["pack"][is_own])
        iterations.append(columns["iteration"][is_own])
        dp_ranks.append(columns["dp_rank"][is_own])
    return np.concatenate(packs)[np.lexsort((np.concatenate(dp_ranks), np.concatenate(iterations)))]
