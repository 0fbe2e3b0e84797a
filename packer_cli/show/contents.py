"""A pack as it lies in its shard, and where its samples came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import ConfigError, HbpackError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.folder import SetFolder
from packer_cli.format.layout import Layout
from packer_cli.format.loss_spans import find_wrong_row, spans_to_weights
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import locate_packs
from packer_cli.format.records import Hidden
from packer_cli.format.sharding import PLANNED, Sharding
from packer_cli.format.shards import IndexFile, Pack, Row, ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.format.tree_rows import find_wrong_items
from packer_cli.remote.names import path_from
from packer_cli.shards.plan_file import parse_plan_header
from packer_cli.show.decode import Run
from packer_cli.show.items import ItemRecord, Origin, SegmentRecord, read_items, source_name
from packer_cli.tokens.index import INDEX_NAME, parse_index


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """A sample of a pack, or a piece of one."""

    index: int
    """Its place in the pack."""
    sample_id: int
    source: str
    """Name of the input."""
    file: str | None
    line: int | None
    """The record that it comes from; None where the set does not keep its token store."""
    begin: int
    """Its first token in the pack."""
    start: int
    """Its first token in the whole sample, which may be cut."""
    num_tokens: int
    num_loss_tokens: int
    runs: tuple[Run, ...]
    input_ids: Hidden[NDArray[Any]]
    """uint16 or int32 [t]"""
    loss_mask: Hidden[NDArray[np.int8] | NDArray[np.float32]]
    """int8[t], or float32[t] in a set with weights: that of each token's loss, 0 for none"""


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
    """How CP ranks divide its row; None if there are none."""
    num_samples: int
    """With trees, branches."""
    num_items: int | None = None
    """Only in a set with trees; so are the next."""
    flat_tokens: int | None = None
    """Of its branches, one by one."""
    num_path_tokens: int | None = None
    """K: tokens of the paths of all leaves, which varlen kernels gather in every layer."""
    rank_tokens: tuple[int, int] | None
    """Begin and end of the part of its row that the rank takes."""
    layout: Hidden[Layout]
    """Of the group."""
    samples: Hidden[tuple[SampleRecord, ...]]
    items: Hidden[tuple[ItemRecord, ...]] = ()
    """In a set with trees, in place of samples."""


def require_between(option: str, value: int, first: int, last: int, why: str) -> None:
    """Raise ConfigError for a value that an option of this set does not take, and say why."""
    if not first <= value <= last:
        raise ConfigError(f"{option} must be from {first} to {last}, got {value}: {why}")


def read_pack(files: SetFolder, manifest: Manifest, pack: int) -> PackRecord:
    """A pack as it lies in its shard. Price: one record batch; of a remote shard, some 16 packs travel.

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
        why = find_wrong_items(others) if manifest.has_trees else _find_wrong_samples(found)
        if why is not None:
            raise ValueError(why)
    names = [given.name for given in manifest.sources]
    # Plan and token store count items, and a flat sample is one.
    origins = sample_origins(files, others["item_ids" if manifest.has_trees else "sample_ids"])
    samples = () if manifest.has_trees else _samples(found, others, names, origins)
    items = read_items(others, names, origins) if manifest.has_trees else ()
    parts: Iterator[SampleRecord | SegmentRecord] = chain(samples, *(item.segments for item in items))
    weight = sum(float(part.loss_mask.sum(dtype=np.float64)) for part in parts) if manifest.is_weighted else None
    return PackRecord(
        pack_id=pack,
        group=group.name,
        capacity=group.capacity,
        num_tokens=len(found.input_ids),
        num_loss_tokens=found.num_loss_tokens,
        attention_work=others["attention_work"],
        loss_weight=weight,
        cp_sharding=PLANNED[found.cp_sharding] if group.layout.cp > 1 else None,
        num_samples=len(found.sample_ids),
        num_items=len(items) if manifest.has_trees else None,
        flat_tokens=sum(item.flat_tokens for item in items) if manifest.has_trees else None,
        num_path_tokens=others["num_path_tokens"] if manifest.has_trees else None,
        rank_tokens=None,
        layout=group.layout,
        samples=samples,
        items=items,
    )


def _find_wrong_samples(pack: Pack) -> str | None:
    """What is wrong with the borders and loss spans of a flat pack; None if they keep every rule."""
    starts, stops, weights, borders = pack.loss_starts, pack.loss_stops, pack.loss_weights, pack.cu_seqlens
    if len(borders) < 2 or borders[-1] != len(pack.input_ids) or len(borders) != len(pack.sample_ids) + 1:
        return "the borders of its samples do not agree with its tokens"
    is_even = len(starts) == len(stops) and (weights is None or len(weights) == len(starts))
    whole = np.array([0, len(starts)]), borders[[0, -1]]
    if not is_even or find_wrong_row(starts, stops, *whole, borders, weights) is not None:
        return "its loss spans are wrong"
    return None


def _samples(pack: Pack, row: Row, names: Sequence[str], origins: Sequence[Origin]) -> tuple[SampleRecord, ...]:
    loss_mask = spans_to_weights(pack.loss_starts, pack.loss_stops, pack.loss_weights, len(pack.input_ids))
    starts, sources = row["sample_starts"].tolist(), row["source_ids"].tolist()
    return tuple(
        SampleRecord(
            index=i,
            sample_id=int(pack.sample_ids[i]),
            source=source_name(names, sources[i]),
            file=origins[i][0],
            line=origins[i][1],
            begin=begin,
            start=starts[i],
            num_tokens=end - begin,
            num_loss_tokens=int(np.count_nonzero(loss_mask[begin:end])),
            runs=(),
            input_ids=pack.input_ids[begin:end],
            loss_mask=loss_mask[begin:end],
        )
        for i, (begin, end) in enumerate(pairwise(pack.cu_seqlens.tolist()))
    )


def sample_origins(files: SetFolder, samples: NDArray[np.int64]) -> list[Origin]:
    """The origin of each sample, by the token store; unknown where the store is gone, or is another one by now.

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
