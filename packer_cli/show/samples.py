"""The samples of a pack of a set of flat samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, find_wrong_row, spans_to_weights
from packer_cli.format.records import Hidden
from packer_cli.format.shards import Row
from packer_cli.show.decode import Decode, Run, runs_of

Origin = tuple[str | None, int | None]
"""The file and line of a sample; None where the set does not keep its token store."""


@dataclass(frozen=True, kw_only=True)
class SampleRecord:
    """A sample of a pack, or a piece of one."""

    unit: ClassVar[str] = "sample"
    """The noun for it."""

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

    @property
    def number(self) -> int:
        """The id by which users find it."""
        return self.sample_id

    @property
    def loss_weight(self) -> float:
        """The sum of its tokens' weights."""
        return float(self.loss_mask.sum(dtype=np.float64))

    def with_runs(self, decode: Decode | None) -> SampleRecord:
        """Return the sample with its runs; None leaves the texts out."""
        return replace(self, runs=runs_of(decode, self.input_ids, self.loss_mask))


def find_wrong_samples(row: Row) -> str | None:
    """Say what is wrong with the borders and loss spans of a row of flat samples; None if they keep every rule."""
    starts, stops, weights, borders = row[STARTS], row[STOPS], row.get(WEIGHTS), row["cu_seqlens"]
    if len(borders) < 2 or borders[-1] != len(row["input_ids"]) or len(borders) != len(row["sample_ids"]) + 1:
        return "the borders of its samples do not agree with its tokens"
    is_even = len(starts) == len(stops) and (weights is None or len(weights) == len(starts))
    whole = np.array([0, len(starts)]), borders[[0, -1]]
    if not is_even or find_wrong_row(starts, stops, *whole, borders, weights) is not None:
        return "its loss spans are wrong"
    return None


def read_samples(row: Row, names: Sequence[str], origins: Sequence[Origin]) -> tuple[SampleRecord, ...]:
    """Read the samples of a row of a shard in which `find_wrong_samples` finds nothing wrong.

    Args:
        names: of the inputs.
        origins: of each sample.
    """
    ids = row["input_ids"]
    loss_mask = spans_to_weights(row[STARTS], row[STOPS], row.get(WEIGHTS), len(ids))
    starts, sources = row["sample_starts"].tolist(), row["source_ids"].tolist()
    return tuple(
        SampleRecord(
            index=i,
            sample_id=int(row["sample_ids"][i]),
            source=source_name(names, sources[i]),
            file=origins[i][0],
            line=origins[i][1],
            begin=begin,
            start=starts[i],
            num_tokens=end - begin,
            num_loss_tokens=int(np.count_nonzero(loss_mask[begin:end])),
            runs=(),
            input_ids=ids[begin:end],
            loss_mask=loss_mask[begin:end],
        )
        for i, (begin, end) in enumerate(pairwise(row["cu_seqlens"].tolist()))
    )


def source_name(names: Sequence[str], source: int) -> str:
    """Find the name of an input, if it has one."""
    return names[source] if 0 <= source < len(names) else f"source {source}"
