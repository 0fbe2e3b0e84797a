"""An export's job (rows in order, cut into parts) and what a format has to write."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.engine.sink import Sink, WrittenFile
from packer_cli.export.listing import WORK, ExportHeader, ExportListing
from packer_cli.export.packed import PackedSet
from packer_cli.format.arrays import Lists
from packer_cli.format.manifest import Manifest

Int64Array = NDArray[np.int64]
PartFacts = dict[str, int]
"""Facts that a format notes of a part, by names of its own; in the listing of the export."""

TOKENS_PER_BATCH = 4 * 2**20
"""Most tokens that a thread holds at once, unless one pack has more."""

_ROWS_PER_BATCH = 65_536


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows that one task writes."""

    number: int
    first: int
    stop: int
    """Rows `first .. stop - 1` of the export."""
    fingerprint: str
    """The export's; with the number it decides every byte."""

    @property
    def name(self) -> str:
        """Names the part's marker."""
        return f"part-{self.number:05d}"

    def piece_of(self, path: str) -> str:
        """Return the path of the part's piece of a file that is joined of all parts' (`Format.joined`)."""
        return f"{WORK}/{path}.{self.number:05d}"


@dataclass(kw_only=True)
class Job:
    """One export."""

    source: Path
    """The packed set."""
    manifest: Manifest
    folder: Path
    """The output."""
    header: ExportHeader
    format: Format
    packed: PackedSet
    groups: tuple[int, ...]
    packs: Int64Array
    """int64[r]: the pack of each row."""
    parts: tuple[Part, ...]
    prepared: Hashable = None
    """Value that `Format.preparing` gave for the parts that are written."""

    @property
    def is_weighted(self) -> bool:
        """Whether the weights of loss tokens are written."""
        return self.header.get("loss_weights", False)

    def aligned(self, lengths: Lists, packs: Int64Array) -> Lists:
        """Round the tokens (int32) of each of these packs' samples up to what the plan aligns them to."""
        ends = np.cumsum([group.num_packs for group in self.manifest.groups])
        aligns = np.array([group.align for group in self.manifest.groups], dtype=np.int32)
        if (aligns == 1).all():
            return lengths
        align = np.repeat(aligns[ends.searchsorted(packs, "right")], np.diff(lengths.offsets))
        return Lists(lengths.offsets, -(-lengths.values // align) * align)

    def row_tokens(self) -> NDArray[np.int32]:
        """Return the tokens of each row, int32[r]."""
        return self.packed.num_tokens[self.packs]

    def row_samples(self) -> NDArray[np.int32]:
        """Count the samples of each row, int32[r]."""
        return self.packed.num_samples[self.packs]

    def part_tokens(self) -> list[int]:
        """Count the tokens of each part."""
        tokens = self.row_tokens()
        return [int(tokens[part.first : part.stop].sum(dtype=np.int64)) for part in self.parts]

    @property
    def capacity(self) -> int:
        """Most tokens that a row may hold."""
        return max(self.manifest.groups[group].capacity for group in self.groups)

    def batches(self, first: int, stop: int, max_rows: int = _ROWS_PER_BATCH) -> Iterator[Int64Array]:
        """Yield the packs of rows `first .. stop - 1`, at most `max_rows` and about TOKENS_PER_BATCH tokens a time."""
        ends = np.cumsum(self.packed.num_tokens[self.packs[first:stop]], dtype=np.int64)
        begin = 0
        while begin < stop - first:
            before = int(ends[begin - 1]) if begin else 0
            fitting = int(np.searchsorted(ends, before + TOKENS_PER_BATCH, side="right"))
            end = min(max(fitting, begin + 1), begin + max_rows)
            yield self.packs[first + begin : first + end]
            begin = end


def cut_parts(row_bytes: Int64Array, shard_size: int, fingerprint: str) -> tuple[Part, ...]:
    """Cut rows, at least one, into even parts of about `shard_size` bytes, so that none is a small remainder.

    >>> [(part.first, part.stop) for part in cut_parts(np.full(10, 100), 300, "")]
    [(0, 4), (4, 7), (7, 10)]
    """
    ends = np.cumsum(row_bytes, dtype=np.int64)
    num_parts = max(1, round(int(ends[-1]) / shard_size))
    targets = int(ends[-1]) * np.arange(1, num_parts) // num_parts
    places = np.unique(np.concatenate([[0], np.searchsorted(ends, targets) + 1, [len(ends)]])).tolist()
    return tuple(
        Part(number=number, first=first, stop=stop, fingerprint=fingerprint)
        for number, (first, stop) in enumerate(pairwise(places))
    )


class Format(ABC):
    """One target format. Its instances have no state: the job has it all."""

    shard_size = 256 * 2**20
    """Default bytes of a part."""

    bytes_of = (5, 4, 16)
    """Approximate bytes of a token, of a sample and of a row, which decide where parts are cut."""

    most_shard_size: int | None = None
    """Most bytes that `--shard-size` may request."""

    needs_one_capacity = False
    """Whether all rows must have one capacity: they are padded to it, or their trainer packs by it."""

    shares_rows = True
    """Whether its trainer can run a row on several GPUs."""

    usage: str | None = None
    """Command that starts its trainer, for people, with the places {output} and {capacity}."""

    hub_files: str | None = None
    """The files of an export on the Hub that its trainer takes by `datasets.load_dataset`: a glob; None if none."""

    joined: tuple[str, ...] = ()
    """Files that are joined, once all parts are written, of the pieces that each part has written of them, in this
    order: for formats that have all rows in one file. Price: reading and writing their bytes once more, and room for
    them twice meanwhile."""

    weight_bytes = 0
    """Bytes that the weight of a token's loss adds to a row; 0: the format has no place for weights."""

    def describe(self, source: Path, manifest: Manifest, groups: Sequence[int]) -> dict[str, Any]:
        """Describe what the format makes of a set, as JSON values, a part of the listing of the export.

        Raises:
            ConfigError: the set does not fit the format.
        """
        return {}

    def usage_of(self, output: str, listing: ExportListing) -> str | None:
        """Return `usage` for a finished export.

        Args:
            listing: what the export says of itself, with what `describe` gave.
        """
        return self.usage and self.usage.format(output=shlex.quote(output), capacity=listing["capacity"])

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """Return the bytes of each row by `bytes_of`, int64[r]."""
        token, sample, row = self.bytes_of
        return token * num_tokens + sample * num_samples + row

    @contextmanager
    def preparing(self, job: Job, parts: Sequence[Part]) -> Iterator[Hashable]:
        """Prepare, while the block runs, what all of these parts need; give `Job.prepared`, which is pickled.

        Args:
            parts: at least one.
        """
        yield None

    @abstractmethod
    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write the rows of a part, on a thread. Returns what `finish` needs to know of it."""

    def finish(self, job: Job, parts: list[PartFacts], files: list[WrittenFile], sink: Sink) -> None:  # noqa: B027
        """Write the files that describe the whole export, after all parts; by default none.

        Args:
            parts: the results of `write_part`, in order.
            files: what the parts wrote, in order.
        """
