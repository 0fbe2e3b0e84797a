"""The token store on disk: `tokens.json`, and the Arrow parts that it lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from packer_cli.corpus.types import Source
from packer_cli.engine.local import Engine
from packer_cli.errors import FormatError, InputError, VersionError, fault_of
from packer_cli.files import atomic_file
from packer_cli.format.arrays import columns_of
from packer_cli.format.checksums import check_json, describe_signature, find_damage, require_damage, sign_text
from packer_cli.format.entries import RelativePath
from packer_cli.format.items import find_wrong_item
from packer_cli.format.loss_spans import find_wrong_spans
from packer_cli.format.records import read_record
from packer_cli.format.schema import KEPT, RowColumns, own_columns, token_type
from packer_cli.format.tokens import SampleOptions, TokenizerInfo
from packer_cli.remote.local import map_file, open_source
from packer_cli.remote.path import RemotePath, is_remote
from packer_cli.version import __version__

TOKENS = "tokens"
"""The folder of a token store in the output of a command."""
INDEX_NAME = "tokens.json"
WORK = ".parts"
"""Folder in the store for the markers of finished parts, until the index is written."""
EXCLUDED = "excluded"
"""Reason of a record that is left out on request."""
STORE_FORMAT = "hbpack-tokens"
STORE_VERSION = 9
"""Version of a store that has trees: a release that knows only flat samples must not read it."""


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """An input file, or a slice of one, in a part. Small files share a part."""

    path: str
    """Path as the user named it."""
    source: int
    fingerprint: str
    """Fingerprint of the file's content, and of the files that are read with it."""
    num_bytes: int
    """Bytes of the whole file."""
    num_samples: int
    num_rejected: int
    num_tokens: int
    num_loss_tokens: int
    num_without_loss: int = 0
    """Rejected records in which no token carries a loss."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Rejected records by the kind of reason, the most frequent first."""
    lost_bytes: int = 0
    """Bytes of the file, about, that could not be read."""
    unreadable: str = ""
    """Why the file, or a part of it, could not be read, the first reason if there are several; empty if it could."""

    @property
    def num_records(self) -> int:
        """Records, those that were rejected included."""
        return self.num_samples + self.num_rejected

    @property
    def num_excluded(self) -> int:
        """Rejected records that were left out on request."""
        return self.reasons.get(EXCLUDED, 0)

    @property
    def num_refused(self) -> int:
        """Rejected records but for those without a loss and excluded ones, which are as they should be."""
        return self.num_rejected - self.num_without_loss - self.num_excluded


@dataclass(frozen=True, kw_only=True)
class PartInfo:
    """One part of the store."""

    path: RelativePath
    """File name in the store's folder."""
    fingerprint: str
    """Covers the slices of input, the tokenizer and the options of the part."""
    files: tuple[PartFile, ...]
    """The part's files: its samples, and its rejected records, follow their order."""
    num_samples: int
    """Rows: samples, or items in a part with trees."""
    num_tokens: int
    """Tokens; the ones that branches of an item share count once."""
    num_loss_tokens: int
    """Loss tokens; the ones of each branch count."""
    loss_weight: float | None = None
    """Sum of the weights of loss tokens; None if the part has no weights, as all are 1."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Number of items of each kind (`pair`, `group`, `turns`, `sample`); empty: the part has no trees, a row is a
    sample."""
    num_branches: int
    """Samples; in a part with trees, the branches of its items."""
    num_flat_tokens: int
    """Tokens of all branches, without sharing."""
    num_rejected: int
    num_without_loss: int
    """Rejected records in which no token carries a loss."""
    num_with_special: int
    """Records whose own contents hold the text of a special token."""
    num_open: int
    """Samples that end with neither EOS nor an end of turn."""
    shapes: dict[str, int]
    """Samples by the shape of their records (`messages`, `alpaca`, ...)."""
    unused: dict[str, int] = field(default_factory=dict)
    """Records with something that is not used, by what it is, for people."""
    num_bytes: int
    xxh3: str
    """xxh3-128 of the part's file."""
    rejects_xxh3: str | None = None
    """xxh3-128 of the file of its rejected records; None if there are none."""
    backend: str
    """The backend that encoded the part."""
    warnings: tuple[str, ...] = ()
    excluded: tuple[tuple[int, int], ...] = ()
    """File and line of each record that was left out on request; the part's name covers them, not its fingerprint."""

    @property
    def columns(self) -> RowColumns:
        """The columns that it has besides those of all parts."""
        return RowColumns(self.loss_weight is not None, bool(self.kinds))

    @property
    def rejects_name(self) -> str:
        """File name of its rejected records, without excluded ones, if it has any."""
        return rejects_name(part_name(self.fingerprint))


@dataclass(frozen=True, kw_only=True)
class StoreIndex:
    """`tokens.json`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"json_schema_extra": describe_signature}

    format: str = STORE_FORMAT
    format_version: int = STORE_VERSION
    fingerprint: str
    """Covers all parts, the input of each, and the inputs' weights, but no names."""
    tokenizer: TokenizerInfo
    options: SampleOptions
    library_versions: dict[str, str]
    sources: tuple[Source, ...]
    parts: tuple[PartInfo, ...]
    excluded: str = ""
    """Fingerprint of the keys of the records that it leaves out, see `packer_cli.tokens.exclusions`; empty: none."""

    def total(self, figure: str) -> int:
        """Sum up a figure of the parts, such as `num_samples`."""
        return sum(getattr(part, figure) for part in self.parts)

    @cached_property
    def columns(self) -> RowColumns:
        """The columns that any part has besides those of all."""
        return RowColumns(*map(any, zip(RowColumns(), *(part.columns for part in self.parts), strict=True)))

    @property
    def unit(self) -> str:
        """The noun for its rows."""
        return self.columns.unit

    @property
    def token_type(self) -> pa.DataType:
        """Type of the ids in the parts and in the shards."""
        return token_type(self.tokenizer.vocab_size)

    @property
    def unused(self) -> Counter[str]:
        """Records that hold something which is not used, by what it is."""
        return sum((Counter(part.unused) for part in self.parts), Counter())

    def write(self, folder: Path, name: str = INDEX_NAME) -> None:
        """Write `tokens.json` atomically, with its checksum."""
        from pydantic import TypeAdapter  # Six times as fast as `json`, for many files; workers do without.

        with atomic_file(folder / name) as file:
            file.write(sign_text(TypeAdapter(StoreIndex).dump_json(self, indent=2)))


def read_index(folder: Path, name: str = INDEX_NAME) -> StoreIndex:
    """Read `tokens.json`, or a version's copy. Raises the errors of `open_store`."""
    path = folder / name
    try:
        data = path.read_bytes()
        values: Any = {}
        with suppress(ValueError):  # Its checksum says more.
            values = json.loads(data)
        found = values.get("format"), values.get("format_version")
        # First, since another version has other fields.
        if None not in found and found != (STORE_FORMAT, STORE_VERSION):
            raise VersionError(
                f"{str(path)!r} has format {found[0]} version {found[1]}; hbpack {__version__} reads {STORE_FORMAT} "
                f"version {STORE_VERSION}; run hbpack pack or hbpack tokenize again"
            )
        index = read_record(StoreIndex, json.loads(check_json(data)))
        for part in index.parts:
            counts = (sum(file.num_samples for file in part.files), sum(file.num_rejected for file in part.files))
            if counts != (part.num_samples, part.num_rejected):
                raise ValueError(f"num_samples or num_rejected of {part.path} is not the sum of its files")
        return index
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{str(folder)!r} holds no token store (no {INDEX_NAME}); run hbpack tokenize") from None
    except (OSError, ValueError, AttributeError) as error:
        require_damage(error)
        raise FormatError(f"{str(path)!r} is damaged ({str(error).splitlines()[0]}); tokenize again") from None


def find_damaged_parts(folder: Path, index: StoreIndex, engine: Engine) -> dict[str, str]:
    """Name the fault of each damaged part, by the name of its file. Price: reading all parts once."""

    def find(part: PartInfo) -> str | None:
        return find_damage(folder / part.path, part.num_bytes, part.xxh3, INDEX_NAME)

    found = engine.find_faults(find, index.parts, [part.num_bytes for part in index.parts])
    return {part.path: why for part, why in found}


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Read columns of a part, whose other columns do not travel."""
    with open_source(path) as source:
        numbers = [pa.ipc.open_file(source).schema.get_field_index(name) for name in names]
        return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=numbers)).read_all()


def find_unkept(folder: Path, index: StoreIndex) -> list[str]:
    """Name the columns to keep that no record of a store has. Price: these columns of the first part, as a rule."""
    lacking = index.options.kept
    for part in index.parts if lacking else ():
        found = read_columns(folder / part.path, [KEPT + name for name in lacking])
        lacking = [name for name in lacking if found[KEPT + name].null_count == len(found)]
        if not lacking:
            break
    return lacking


def remedy(path: Path | RemotePath) -> str:
    """Write the remedy for a damaged file of a part. A run reads no remote file that the index lists with its size."""
    return "remove it and tokenize again" if is_remote(path) else "tokenize again"


_RULES = {
    "sample": (find_wrong_spans, "loss spans of the sample"),
    "item": (find_wrong_item, "tree or the loss spans of the item"),
}
"""Function that finds a row that breaks a rule, and the words for that, by the unit of a part."""


def open_part(folder: Path, part: PartInfo, token: pa.DataType) -> list[pa.RecordBatch]:
    """Open the record batches of a part, memory-mapped; read and check lengths and loss spans, not tokens.

    Args:
        token: the type of its ids.

    Raises:
        FormatError: the part is missing or damaged.
    """
    path = folder / part.path
    try:
        if path.stat().st_size != part.num_bytes:
            raise pa.ArrowInvalid(f"it has {path.stat().st_size} bytes instead of {part.num_bytes}")
        reader = pa.ipc.open_file(map_file(path, part.num_bytes, part.xxh3).read_buffer())
        if own_columns(reader.schema) != part.columns.part(token):
            raise pa.ArrowInvalid("it has other columns")
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)
            find, what = _RULES[part.columns.unit]
            wrong = find(columns_of(batch))
            if wrong is not None:
                raise ValueError(f"the {what} of line {batch.column('line')[wrong]} are wrong")
        if sum(len(batch) for batch in batches) != part.num_samples:
            raise pa.ArrowInvalid(f"it does not hold its {part.num_samples} samples")
    except (OSError, ValueError, pa.ArrowException) as error:
        require_damage(error)
        raise damaged_part(path, error) from None
    return batches


def damaged_part(path: Path | RemotePath, why: object) -> FormatError:
    """Make the error for a part that is not as it was written."""
    return FormatError(f"token store part {str(path)!r} {fault_of(why)}; {remedy(path)}")


def part_name(part_fingerprint: str) -> str:
    """Return the file name of a part: a file of that name always holds the same bytes."""
    return f"part-{part_fingerprint}.arrow"


def rejects_name(name: str) -> str:
    """Return the file name of a part's rejected records; the file exists only if there are any."""
    return name.replace("part-", "rejected-").replace(".arrow", ".jsonl")
