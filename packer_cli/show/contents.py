"""A pack as it lies in its shard, and where its samples came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import ConfigError, HbpackError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.folder import SetFolder
from packer_cli.format.layout import Layout
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import locate_packs
from packer_cli.format.records import Hidden
from packer_cli.format.sharding import PLANNED, Sharding
from packer_cli.format.shards import IndexFile, Row, ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.format.tree_rows import find_wrong_items
from packer_cli.remote.names import path_from
from packer_cli.shards.plan_file import parse_plan_header
from packer_cli.show.items import ItemRecord, read_items
from packer_cli.show.samples import Origin, SampleRecord, find_wrong_samples, read_samples
from packer_cli.tokens.index import INDEX_NAME, parse_index

_KINDS: Mapping[str, tuple[Callable[[Row], str | None], str, Callable[..., tuple[SampleRecord | ItemRecord, ...]]]] = {
    "sample": (find_wrong_samples, "sample_ids", read_samples),
    "item": (find_wrong_items, "item_ids", read_items),
}
"""Check of a row, its column with ids of rows of the token store, and the reader of its parts, by a set's unit."""


@dataclass(frozen=True, kw_only=True)
class PackRecord:
    """A pack."""

    pack_id: int
    group: str
    capacity: int
    num_tokens: int
    num_loss_tokens: int
    loss_weight: float | None = None
    """The sum of its tokens' weights, in a set that has any."""
    attention_work: int
    cp_sharding: Sharding | None
    """Sharding by which CP ranks divide the row; None without CP ranks."""
    num_samples: int
    """With trees, branches."""
    num_items: int | None = None
    """Number of items; only in a set with trees."""
    flat_tokens: int | None = None
    """Tokens of the pack's branches, one by one; only in a set with trees."""
    num_path_tokens: int | None = None
    """K: tokens of the paths of all leaves, which varlen kernels gather in every layer; only in a set with trees."""
    rank_tokens: tuple[int, int] | None
    """Begin and end of the part of its row that the rank takes."""
    layout: Hidden[Layout]
    """Layout of the group."""
    parts: Hidden[tuple[SampleRecord | ItemRecord, ...]]
    """Its samples or items."""


def require_between(option: str, value: int, first: int, last: int, why: str) -> None:
    """Raise ConfigError for a value that an option of this set does not take, and say why."""
    if not first <= value <= last:
        raise ConfigError(f"{option} must be from {first} to {last}, got {value}: {why}")


def read_pack(files: SetFolder, manifest: Manifest, pack: int) -> PackRecord:
    """Read a pack as it lies in its shard. Price: one record batch; of a remote shard, some 16 packs travel.

    Raises:
        ConfigError: there is none of that id.
        FormatError: the shard is missing or damaged.
    """
    num_packs = sum(group.num_packs for group in manifest.groups)
    require_between("--pack", pack, 0, num_packs - 1, f"the set has {num_packs:,} packs")
    number, shard, row = (int(each[0]) for each in locate_packs(manifest, np.array([pack])))
    group = manifest.groups[number]
    path = group.shards[shard].path
    # Of a remote set whose shards leave their tokens in the token store, whole parts travel.
    tokens = TokenParts(lambda part: files.read(part.path), manifest.tokens, is_weighted=manifest.is_weighted)
    with files.reading(path), files.source(path) as source:
        file = IndexFile(source, tokens) if manifest.tokens else ShardFile(source)
        found = file.read(row)
        if found is None or found.pack_id != pack:
            raise ValueError(f"pack {pack} is not where it should be")
        file.check(row, found)
        others = file.columns(row)
        find_wrong, ids, read_parts = _KINDS[manifest.unit]
        why = find_wrong(others)
        if why is not None:
            raise ValueError(why)
    parts = read_parts(others, [given.name for given in manifest.sources], sample_origins(files, others[ids]))
    items = [part for part in parts if isinstance(part, ItemRecord)]
    return PackRecord(
        pack_id=pack,
        group=group.name,
        capacity=group.capacity,
        num_tokens=len(found.input_ids),
        num_loss_tokens=found.num_loss_tokens,
        attention_work=others["attention_work"],
        loss_weight=sum(part.loss_weight for part in parts) if manifest.is_weighted else None,
        cp_sharding=PLANNED[found.cp_sharding] if group.layout.cp > 1 else None,
        num_samples=len(found.sample_ids),
        num_items=len(items) or None,
        flat_tokens=sum(item.flat_tokens for item in items) or None,
        num_path_tokens=others.get("num_path_tokens"),
        rank_tokens=None,
        layout=group.layout,
        parts=parts,
    )


def sample_origins(files: SetFolder, samples: NDArray[np.int64]) -> list[Origin]:
    """Find the origin of each sample, by the token store; unknown where the store is gone, or is another one by now.

    Price: the line column of the parts that hold them, 8 bytes a sample.
    """
    try:
        with files.open(PLAN_NAME) as reader:
            header = parse_plan_header(reader.schema)
        index = parse_index(path_from(files.root, f"{header.store}/{INDEX_NAME}").read_bytes())
        if index.fingerprint != header.store_fingerprint:
            return [(None, None)] * len(samples)
        first = np.cumsum([0, *(part.num_samples for part in index.parts)])
        numbers = np.searchsorted(first, samples, side="right") - 1
        lines = {number: _lines(files, f"{header.store}/{index.parts[number].path}") for number in set(numbers)}
        paths = [file.path for part in index.parts for file in part.files]
        ends = np.cumsum([file.num_samples for part in index.parts for file in part.files])
        return [
            (paths[file], int(lines[number][sample - first[number]]))
            for number, file, sample in zip(
                numbers.tolist(), np.searchsorted(ends, samples, side="right").tolist(), samples.tolist(), strict=True
            )
        ]
    except (HbpackError, OSError, ValueError, TypeError, KeyError, IndexError):
        return [(None, None)] * len(samples)


def _lines(files: SetFolder, path: str) -> NDArray[np.int64]:
    with files.open(path, ["line"]) as reader:
        return np.array(to_numpy(reader.read_all().column("line").combine_chunks()))
