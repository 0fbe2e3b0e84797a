"""A pack as it lies in its shard, and where its samples came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import HbpackError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import PACKS_PER_BATCH, PLAN_NAME
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_row, spans_to_mask, spans_to_weights
from packer_cli.format.manifest import Manifest
from packer_cli.format.marks import CHECKSUM, row_checksums
from packer_cli.format.schema import shard_schema
from packer_cli.format.sharding import PLANNED, Sharding
from packer_cli.format.token_parts import TokenParts, with_tokens
from packer_cli.remote.names import path_from
from packer_cli.shards.files import SetFolder
from packer_cli.shards.plan_file import parse_plan_header
from packer_cli.show.places import locate_pack
from packer_cli.tokens.index import INDEX_NAME, parse_index


@dataclass(frozen=True, kw_only=True)
class ShownSample:
    """One sample of a pack, or a piece of one."""

    index: int
    """Place in the pack."""
    sample_id: int
    source: str
    """Name of the input."""
    file: str | None
    """The record's file; None where the set does not keep its token store."""
    line: int | None
    begin: int
    """First token in the row."""
    start: int
    """Where the piece begins in its sample; 0 unless it was cut."""
    input_ids: NDArray[Any]
    """uint16 or int32 [t]"""
    loss_mask: NDArray[np.int8] | NDArray[np.float32]
    """int8[t], or float32[t] in a set with weights: that of each token's loss, 0 for none"""

    @property
    def num_loss_tokens(self) -> int:
        """Tokens with a loss."""
        return int(np.count_nonzero(self.loss_mask))


@dataclass(frozen=True, kw_only=True)
class ShownPack:
    """One pack."""

    pack_id: int
    group: int
    num_tokens: int
    num_loss_tokens: int
    attention_work: int
    loss_weight: float | None
    """Sum of the weights of loss tokens; None in a set without weights."""
    cp_sharding: Sharding
    """How CP ranks divide the row, if there are any."""
    samples: tuple[ShownSample, ...]


def read_pack(files: SetFolder, manifest: Manifest, pack: int) -> ShownPack:
    """A pack as it lies in its shard. Price: one record batch; of a remote shard, some 16 packs travel.

    Raises:
        ConfigError: there is none of that id.
        FormatError: the shard is missing or damaged.
    """
    group, shard, row = locate_pack(manifest, pack)
    info = manifest.groups[group].shards[shard]
    with files.open(info.path) as reader:
        batch = reader.get_batch(row // PACKS_PER_BATCH).slice(row % PACKS_PER_BATCH, 1)
        if manifest.tokens:
            batch = _with_tokens(files, manifest, batch)
        _check_row(batch, pack)
        values: dict[str, Any] = {}
        for name in shard_schema(pa.int32(), is_weighted=manifest.is_weighted).names:
            item = batch.column(name)[0]
            values[name] = np.array(to_numpy(item.values)) if pa.types.is_list(item.type) else item.as_py()
            del item
        del batch
        borders = values["cu_seqlens"]
        if (
            len(borders) < 2
            or borders[-1] != len(values["input_ids"])
            or len(borders) != len(values["sample_ids"]) + 1
        ):
            raise ValueError("the borders of its samples do not agree with its tokens")
        loss_mask = _loss_mask(values[STARTS], values[STOPS], values.get(WEIGHTS), borders)
    origins = sample_origins(files, values["sample_ids"])
    samples = tuple(
        ShownSample(
            index=i,
            sample_id=int(values["sample_ids"][i]),
            source=_source_name(manifest, int(values["source_ids"][i])),
            file=origins[i][0] if origins else None,
            line=origins[i][1] if origins else None,
            begin=int(borders[i]),
            start=int(values["sample_starts"][i]),
            input_ids=values["input_ids"][borders[i] : borders[i + 1]],
            loss_mask=loss_mask[borders[i] : borders[i + 1]],
        )
        for i in range(len(borders) - 1)
    )
    return ShownPack(
        pack_id=values["pack_id"],
        group=group,
        num_tokens=len(values["input_ids"]),
        num_loss_tokens=values["num_loss_tokens"],
        attention_work=values["attention_work"],
        loss_weight=float(loss_mask.sum(dtype=np.float64)) if manifest.is_weighted else None,
        cp_sharding=PLANNED[values["cp_sharding"]],
        samples=samples,
    )


def _with_tokens(files: SetFolder, manifest: Manifest, row: pa.RecordBatch) -> pa.RecordBatch:
    """A row of an index-only set with its tokens, out of the token store. Of a remote set, whole parts travel."""
    row.validate(full=True)
    parts = TokenParts(
        lambda number: pa.BufferReader(files.read(manifest.tokens[number].path)),
        [part.num_samples for part in manifest.tokens],
        is_weighted=manifest.is_weighted,
    )
    samples, starts, borders = (row.column(name)[0].values for name in ("sample_ids", "sample_starts", "cu_seqlens"))
    tokens = parts.gather(to_numpy(samples), to_numpy(starts), np.diff(to_numpy(borders)))
    ends = np.array([0, len(tokens.input_ids)]), np.array([0, len(tokens.loss_starts)])
    return with_tokens(row, *ends, tokens)


def _check_row(row: pa.RecordBatch, pack: int) -> None:
    """Raise ValueError where this row is not as it was written."""
    row.validate(full=True)
    if row.column(CHECKSUM).to_pylist() != row_checksums(row).tolist():
        raise ValueError(f"the checksum of pack {pack} is not the one that was written")
    if row.column("pack_id").to_pylist() != [pack]:
        raise ValueError(f"pack {pack} is not where it should be")


def _loss_mask(
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    weights: NDArray[np.float32] | None,
    borders: NDArray[np.int32],
) -> NDArray[np.int8] | NDArray[np.float32]:
    """int8[t], or float32[t] with weights. Raises ValueError where the spans of the pack break a rule."""
    num_tokens, num_spans = int(borders[-1]), np.array([0, len(starts)])
    if len(starts) != len(stops) or (weights is not None and len(weights) != len(starts)):
        raise ValueError("its loss spans are wrong")
    if find_wrong_row(starts, stops, num_spans, borders[[0, -1]], borders, weights) is not None:
        raise ValueError("its loss spans are wrong")
    if weights is not None:
        return spans_to_weights(starts, stops, weights, num_tokens)
    return spans_to_mask(starts, stops, num_tokens)


def _source_name(manifest: Manifest, source: int) -> str:
    return str(manifest.sources[source]["name"]) if 0 <= source < len(manifest.sources) else f"source {source}"


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
