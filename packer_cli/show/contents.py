"""A pack as it lies in its shard, and where its samples came from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import ConfigError, HbpackError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.folder import SetFolder
from packer_cli.format.layout import Layout
from packer_cli.format.loss_spans import find_wrong_row, spans_to_mask, spans_to_weights
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import locate_packs
from packer_cli.format.records import Hidden
from packer_cli.format.sharding import PLANNED, Sharding
from packer_cli.format.shards import IndexFile, Pack, ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.remote.names import path_from
from packer_cli.shards.plan_file import parse_plan_header
from packer_cli.tokens.index import INDEX_NAME, parse_index


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Tokens in a row that are all trained on, or all masked."""

    trained: bool
    weight: float | None = None
    """Of the loss of each token, in a set with weights."""
    num_tokens: int
    text: str | None
    """None without the tokenizer."""
    input_ids: list[int]


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
    runs: tuple[RunRecord, ...]
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
    rank_tokens: tuple[int, int] | None
    """Begin and end of the part of its row that the rank takes."""
    layout: Hidden[Layout]
    """Of the group."""
    samples: Hidden[tuple[SampleRecord, ...]]


def read_pack(files: SetFolder, manifest: Manifest, pack: int) -> PackRecord:
    """A pack as it lies in its shard. Price: one record batch; of a remote shard, some 16 packs travel.

    Raises:
        ConfigError: there is none of that id.
        FormatError: the shard is missing or damaged.
    """
    num_packs = sum(group.num_packs for group in manifest.groups)
    if not 0 <= pack < num_packs:
        raise ConfigError(f"--pack must be from 0 to {num_packs - 1}, got {pack}: the set has {num_packs:,} packs")
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
        file.check(row)
        others = file.columns(row)
        starts, sources = others["sample_starts"].tolist(), others["source_ids"].tolist()
        borders = found.cu_seqlens.tolist()
        if len(borders) < 2 or borders[-1] != len(found.input_ids) or len(borders) != len(found.sample_ids) + 1:
            raise ValueError("the borders of its samples do not agree with its tokens")
        loss_mask = _loss_mask(found)
    origins = sample_origins(files, found.sample_ids)
    names = {source: given.name for source, given in enumerate(manifest.sources)}
    samples = tuple(
        SampleRecord(
            index=i,
            sample_id=int(found.sample_ids[i]),
            source=names.get(sources[i], f"source {sources[i]}"),
            file=origins[i][0] if origins else None,
            line=origins[i][1] if origins else None,
            begin=begin,
            start=starts[i],
            num_tokens=end - begin,
            num_loss_tokens=int(np.count_nonzero(loss_mask[begin:end])),
            runs=(),
            input_ids=found.input_ids[begin:end],
            loss_mask=loss_mask[begin:end],
        )
        for i, (begin, end) in enumerate(pairwise(borders))
    )
    return PackRecord(
        pack_id=pack,
        group=group.name,
        capacity=group.capacity,
        num_tokens=len(found.input_ids),
        num_loss_tokens=found.num_loss_tokens,
        attention_work=others["attention_work"],
        loss_weight=float(loss_mask.sum(dtype=np.float64)) if manifest.is_weighted else None,
        cp_sharding=PLANNED[found.cp_sharding] if group.layout.cp > 1 else None,
        num_samples=len(samples),
        rank_tokens=None,
        layout=group.layout,
        samples=samples,
    )


def _loss_mask(pack: Pack) -> NDArray[np.int8] | NDArray[np.float32]:
    """int8[t], or float32[t] with weights. Raises ValueError where the spans of the pack break a rule."""
    starts, stops, weights, borders = pack.loss_starts, pack.loss_stops, pack.loss_weights, pack.cu_seqlens
    is_even = len(starts) == len(stops) and (weights is None or len(weights) == len(starts))
    whole = np.array([0, len(starts)]), borders[[0, -1]]
    if not is_even or find_wrong_row(starts, stops, *whole, borders, weights) is not None:
        raise ValueError("its loss spans are wrong")
    if weights is not None:
        return spans_to_weights(starts, stops, weights, len(pack.input_ids))
    return spans_to_mask(starts, stops, len(pack.input_ids))


def sample_origins(files: SetFolder, samples: NDArray[np.int64]) -> list[tuple[str, int]] | None:
    """(file, line) of each sample, out of the token store; None where it is gone, or is another one by now.

    Price: the line column of the parts that hold them, 8 bytes a sample.
    """
    try:
        with files.open(PLAN_NAME) as reader:
            header = parse_plan_header(reader.schema)
        index = parse_index(path_from(files.root, f"{header.store}/{INDEX_NAME}").read_bytes())
        if index.fingerprint != header.store_fingerprint:
            return None
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
        return None


def _lines(files: SetFolder, path: str) -> NDArray[np.int64]:
    with files.open(path, ["line"]) as reader:
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        return np.concatenate([np.array(to_numpy(batch.column("line"))) for batch in batches])
