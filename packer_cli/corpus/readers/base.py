"""Parts of every file reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from packer_cli.corpus.types import CorpusFile, CorpusSlice, Record, Reject, TokenRows

MIB = 1 << 20
BATCH_BYTES = 256 << 10
"""Default input bytes a batch. Small on purpose: its records then stay in the processor's cache and in memory that is
used again."""
MAX_RECORD_BYTES = 256 * MIB
"""Default of `--max-record-bytes`."""


@dataclass(kw_only=True)
class RawBatch:
    """Some records of a slice, in order, before their shape is known."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    """(line, record)"""
    tokens: TokenRows | None = None
    """Tokenized records, column by column; `records` is then empty."""
    rejects: list[Reject] = field(default_factory=list)
    lost: int = 0
    """Bytes of the file, about, that cannot be read; of a file whose end is missing, nothing is known."""


@dataclass(frozen=True, kw_only=True)
class ReadRules:
    """Limits of how much is read at a time, and at most."""

    batch_bytes: int = BATCH_BYTES
    """Input bytes a batch, about."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """A record of more bytes, once decompressed, is rejected; reading one takes no more memory than this allows."""
    vocab_size: int = 0
    """Vocabulary size of the tokenizer, which bounds ids, and says how wide they are in a file that does not; 0: it is
    not known."""
    keep: tuple[str, ...] = ()
    """Columns of records to keep, see `--keep-columns`."""
    eos_id: int | None = None
    """Id that ends documents in a file that does not say its own."""

    def too_long(self) -> str:
        """Say why a record that is longer is rejected."""
        return f"longer than {self.max_record_bytes:,} bytes, the limit of --max-record-bytes"


class FileReader(NamedTuple):
    """Reader of one file format: how its files are cut and read."""

    cut: Callable[[CorpusFile, int | None], list[CorpusSlice]]
    """(file, slice_bytes) -> slices in order; with the fingerprint and checksums filled in if all of it was read.

    Raises InputError when the file cannot be read."""
    read: Callable[[CorpusSlice, ReadRules, frozenset[str]], Iterator[RawBatch]]
    """(slice, rules, fields) -> its records; columns outside `fields` need not be loaded."""
    parts: Callable[[str], list[str]] = lambda path: [path]
    """path -> the files that hold what the path names: itself, and what is read with it."""


def default_slice_bytes(num_bytes: int) -> int:
    """Return the bytes a slice of a file: a 32nd of it, within 4..128 MiB; depends on nothing else."""
    return min(max(num_bytes // 32, 4 * MIB), 128 * MIB)
