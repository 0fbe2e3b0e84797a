"""`hbpack.json`: what it says of a set, reading and writing it in a folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format.checksums import file_checksum, require_damage
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.format.entries import FileInfo, GroupInfo, Replicas, ShardInfo
from packer_cli.format.manifest import Manifest, manifest_bytes, parse_manifest
from packer_cli.format.tokens import SourceInfo
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import PieceLoss, Plan
from packer_cli.remote.path import is_remote
from packer_cli.shards.write import ShardTask
from packer_cli.tokens.index import INDEX_NAME, TOKENS, StoreIndex

REMEDY = "run hbpack write, which rewrites it"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `hbpack.json` atomically, with its checksum."""
    with atomic_file(folder / MANIFEST_NAME) as file:
        file.write(manifest_bytes(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Read and check `hbpack.json`.

    Raises:
        InputError: the folder holds no finished packed data set.
        FormatError: the manifest is damaged, or of another version.
    """
    file = folder / MANIFEST_NAME
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{str(folder)!r} holds no packed data set (no {MANIFEST_NAME}); {_next(folder)}") from None
    except OSError as error:
        require_damage(error)
        raise FormatError(f"{str(file)!r} cannot be read ({error.strerror}); {REMEDY}") from None
    return parse_manifest(data, str(file), REMEDY)


def _next(folder: Path) -> str:
    """Write the command that makes a packed set of a folder that is not one, or leads to the set around it."""
    if is_remote(folder):
        return "check the address"
    folder, is_store = (folder.parent, True) if (folder / INDEX_NAME).exists() else (folder, False)
    name = shlex.quote(str(folder))
    if is_store and (folder / MANIFEST_NAME).exists():
        return f"name {str(folder)!r}, whose token store it is"
    if (folder / PLAN_NAME).exists():
        return f"run hbpack write {name}"
    if is_store or (folder / TOKENS / INDEX_NAME).exists():
        return f"run hbpack plan {name} --groups GROUPS --gpus N, then hbpack write {name}"
    return "run hbpack pack"


def describe_groups(
    plan: Plan, piece_loss: PieceLoss, shards: Sequence[ShardTask], finished: Mapping[str, FinishedPart]
) -> tuple[GroupInfo, ...]:
    """Describe for the manifest the groups, whose shards are written; `finished` has the shards by path."""
    num_samples = plan.pieces.num_samples(plan.packs)
    num_tokens, num_loss_tokens = (
        pack_sums(each, plan.packs.offsets, plan.packs.pieces) for each in (plan.pieces.length, piece_loss.tokens)
    )
    loss_weight = None
    if piece_loss.weights is not None:
        pack = np.repeat(np.arange(len(plan.packs)), np.diff(plan.packs.offsets))
        loss_weight = np.bincount(pack, piece_loss.weights[plan.packs.pieces], minlength=len(plan.packs))
    groups = []
    for g, group in enumerate(plan.groups):
        own = plan.packs.group == g
        files = [
            ShardInfo(
                path=shard.path,
                first_pack=shard.first_pack,
                num_packs=shard.num_packs,
                num_bytes=file.num_bytes,
                xxh3=file.xxh3,
            )
            for shard in shards
            if shard.group == g
            for file in finished[shard.path].files
        ]
        groups.append(
            GroupInfo(
                name=group.name(g),
                **vars(group),
                num_packs=int(own.sum()),
                num_samples=int(num_samples[own].sum()),
                most_samples=int(num_samples[own].max(initial=0)),
                num_tokens=int(num_tokens[own].sum()),
                num_loss_tokens=int(num_loss_tokens[own].sum()),
                loss_weight=None if loss_weight is None else float(loss_weight[own].sum()),
                shards=tuple(files),
            )
        )
    return tuple(groups)


def shared_replicas(plan: Plan) -> tuple[Replicas, ...]:
    """List for the manifest the replicas of more than one GPU."""
    return tuple(
        Replicas(**layout.sizes, first_gpus=tuple(first.tolist()))
        for layout, first in plan.replicas.items()
        if layout.num_gpus > 1
    )


def file_info(folder: Path, path: str) -> FileInfo:
    """Describe for the manifest a file that is there. Price: reading it once."""
    file = folder / path
    return FileInfo(path=path, num_bytes=file.stat().st_size, xxh3=file_checksum(file))


def source_infos(index: StoreIndex) -> tuple[SourceInfo, ...]:
    """Describe for the manifest the inputs."""
    return tuple(replace(source.given, skipped=source.skipped) for source in index.sources)


def with_names(manifest: Manifest, index: StoreIndex) -> Manifest:
    """Put the names that its token store has now into the manifest of a set; names decide no byte of the shards."""
    return replace(manifest, tokenizer=index.tokenizer, sources=source_infos(index))
