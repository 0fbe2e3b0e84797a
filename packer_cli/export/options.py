"""The options of an export, and the header that they make with a packed set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer_cli.engine.progress import warn
from packer_cli.errors import ConfigError, OutputError
from packer_cli.export.formats import FORMATS, OTHERS, keeping_weights, load_format
from packer_cli.export.order import check_one_capacity, choose_groups
from packer_cli.files import fingerprint
from packer_cli.format.checksums import require_damage
from packer_cli.format.manifest import Manifest
from packer_cli.shards.manifest import read_manifest
from packer_cli.sizes import parse_bytes

EXPORT_VERSION = 2
"""Part of the fingerprint; a release that writes other bytes raises it."""

_LEAST_SHARD = 65_536


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options that, with the packed set, decide the bytes of an export."""

    format: str
    groups: str | None = None
    epoch: int | None = None
    """None: the set's first epoch, which is above 0 if an earlier one was over when the set was rebalanced."""
    order: str = "use"
    shard_size: int | None = None
    """Bytes; None is the format's default."""
    loss_weights: bool = True
    """Whether to write the weights of loss tokens, if the set has any."""


def parse_shard_size(text: str | None) -> int | None:
    """`--shard-size` in bytes.

    Raises:
        ConfigError
    """
    if text is None:
        return None
    try:
        size = parse_bytes(str(text))
    except ValueError as error:
        raise ConfigError(f"--shard-size: {error}") from None
    if size < _LEAST_SHARD:
        raise ConfigError(f"--shard-size must be at least {_LEAST_SHARD}, got {size}")
    return size


def describe_export(options: ExportOptions, source: Path) -> tuple[Manifest, dict[str, Any]]:
    """The set's manifest, and the header of its export, which decides every byte of it.

    Raises:
        InputError, FormatError: `source` holds no packed set.
        ConfigError: an option does not fit the set or the format.
    """
    format = load_format(options.format)
    manifest = read_manifest(source)
    groups = tuple(choose_groups(manifest, options.groups))
    shard_size = options.shard_size or format.shard_size
    if format.most_shard_size is not None and shard_size > format.most_shard_size:
        raise ConfigError(
            f"--shard-size must be at most {format.most_shard_size} for {options.format}, got {shard_size}"
        )
    if format.needs_one_capacity:
        check_one_capacity(options.format, manifest, groups)
    if manifest.config.plan.get("mask") == "causal":
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
            *others, last = keeping_weights()
            raise ConfigError(
                f"{str(source)!r} has loss weights, for which {options.format} has no place: export to "
                f"{', '.join(others)} or {last}, or add --no-loss-weights, with which all loss tokens count 1"
            )
    if options.format not in FORMATS:
        header["package"] = OTHERS.package(options.format)
    header["fingerprint"] = fingerprint(header)
    return manifest, header


NAME = ".hbpack-export.json"
"""The header and the files of a finished export. Hidden, since readers take visible files for data."""
WORK = ".export"
"""Folder in an unfinished export for its header, the markers of finished parts, and files that parts share."""


def is_same_export(folder: Path, entries: list[str], header: dict[str, Any]) -> bool:
    """Whether an earlier run of the same export wrote a folder.

    Args:
        header: what decides the bytes, and its fingerprint.

    Raises:
        OutputError: the folder holds another export.
    """
    earlier = read_json(folder / NAME) or read_json(folder / WORK / NAME)
    if not earlier:
        return entries == [WORK]
    what = _difference(earlier, header)
    if what:
        raise OutputError(
            f"output folder {str(folder)!r} holds an export {what}; remove it, or name an empty or a new folder"
        )
    return True


def _difference(earlier: dict[str, Any], header: dict[str, Any]) -> str | None:
    """How an earlier export differs from the requested one."""
    if earlier.get("set_fingerprint") != header["set_fingerprint"]:
        return "of another packed set"
    if earlier.get("format") != header["format"]:
        return f"to {earlier.get('format')}"
    for key in ("groups", "order", "epoch", "shard_size"):
        value = earlier.get(key)
        if value != header[key]:
            return f"with --{key.replace('_', '-')} {','.join(value) if isinstance(value, list) else value}"
    if earlier.get("loss_weights") != header.get("loss_weights"):
        return f"{'with' if earlier.get('loss_weights') else 'without'} loss weights"
    return None if earlier.get("fingerprint") == header["fingerprint"] else "of another release"


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        require_damage(error)
        return None
    return value if isinstance(value, dict) else None
