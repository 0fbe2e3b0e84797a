"""Which row of which rank manifest a user means: a step or iteration of a rank, a pack, a sample.

Price: a rank's manifest is some 75 bytes a row; to find a pack, those of the ranks before it are read as well;
to find a sample, `plan.arrow`, some 50 bytes a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packer_cli.errors import ConfigError, FormatError, RemoteError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.checksums import check_bytes
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.layout import Layout
from packer_cli.format.manifest import Manifest
from packer_cli.format.ranks import Columns, RankFileError, RankRow, as_epoch, read_rows
from packer_cli.remote.local import open_source
from packer_cli.remote.names import as_path, path_from
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest


class SetFiles:
    """The files of the packed set in a folder, by their paths there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def remedy(self) -> str:
        """What to do about a damaged file."""
        return "copy the set again" if is_remote(self.root) else "run hbpack write, which rewrites damaged files"

    def name(self, path: str) -> str:
        """A file's full name, for messages."""
        return str(path_from(self.root, path))

    def manifest(self) -> Manifest:
        """`hbpack.json`. Raises InputError where there is none, FormatError where it is damaged."""
        return read_manifest(self.root)

    @contextmanager
    def open(
        self, path: str, columns: list[str] | None = None, *, xxh3: str | None = None
    ) -> Iterator[pa.ipc.RecordBatchFileReader]:
        """An Arrow file, of which only these columns are read; None is all.

        Args:
            xxh3: of the whole file, which then is read and compared first; None: the caller checks what it reads.

        Raises:
            FormatError: it is missing or damaged, also where that shows inside the block.
            RemoteError: it cannot be fetched.
        """
        with self.reading(path), self._source(path) if xxh3 is None else self._checked(path, xxh3) as source:
            reader = pa.ipc.open_file(source)
            if columns is not None:
                numbers = [reader.schema.get_field_index(name) for name in columns]
                if -1 in numbers:
                    raise KeyError(f"no column {columns[numbers.index(-1)]!r}")
                reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=numbers))
            yield reader

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """While a file is read: what goes wrong becomes an error that names the file and the remedy.

        Raises:
            FormatError: it is missing or damaged.
            RemoteError: it cannot be fetched.
        """
        try:
            yield
        except (FormatError, RemoteError):
            raise
        except (OSError, pa.ArrowException, KeyError, IndexError, ValueError) as error:
            raise self._error(path, error) from None

    def buffer(self, path: str) -> pa.Buffer:
        """All of a file; for use inside `reading`."""
        with self._source(path) as source:
            return source.read_buffer()

    def _source(self, path: str) -> pa.NativeFile:
        return open_source(path_from(self.root, path))

    def _checked(self, path: str, xxh3: str) -> pa.NativeFile:
        data = self.buffer(path)
        why = check_bytes(data, xxh3)
        if why is not None:
            raise ValueError(why)
        return pa.BufferReader(data)

    def _error(self, path: str, error: Exception) -> Exception:
        reason = getattr(error, "strerror", None) or str(error)
        return FormatError(
            f"{self.name(path)!r} is missing or damaged ({' '.join(str(reason).split())}); {self.remedy}"
        )

    def read(self, path: str) -> bytes:
        """A small file. Raises OSError."""
        return path_from(self.root, path).read_bytes()


def open_files(name: str) -> SetFiles:
    """The files of the set in a folder, or at a URL such as `s3://bucket/out`."""
    return SetFiles(as_path(name))


@dataclass(frozen=True, kw_only=True)
class Place:
    """One micro-batch of one rank, and the epoch that it belongs to."""

    epoch: int
    rank: int
    num_iterations: int
    """Of the epoch."""
    row: RankRow
    layout: Layout
    """Of the replica that runs it."""

    @property
    def row_rank(self) -> int:
        """The rank's number among those that share the row."""
        return self.layout.row_rank(self.row.place)


@dataclass(frozen=True, kw_only=True)
class RankEpoch:
    """What one rank reads in one epoch."""

    epoch: int
    rank: int
    layouts: tuple[Layout, ...]
    """Of the groups."""
    columns: Columns
    """In the order of the epoch; steps and iterations are numbered as the loader does."""

    @property
    def num_iterations(self) -> int:
        """Of the epoch."""
        return int(self.columns["iteration"][-1]) + 1

    def place(self, number: int) -> Place:
        """What row `number` says."""
        row = RankRow(*(self.columns[name].item(number) for name in RankRow._fields))
        return Place(
            epoch=self.epoch,
            rank=self.rank,
            num_iterations=self.num_iterations,
            row=row,
            layout=self.layouts[row.group],
        )


def read_rank_epoch(files: SetFiles, manifest: Manifest, rank: int, epoch: int) -> RankEpoch:
    """The manifest of a rank in an epoch; one that was not written repeats one that was, as for the loader.

    Raises:
        ConfigError: there is no such rank or epoch.
        FormatError: the file is missing or damaged.
    """
    if not 0 <= rank < manifest.num_gpus:
        raise ConfigError(
            f"--rank must be from 0 to {manifest.num_gpus - 1}, got {rank}: the set is for {manifest.num_gpus} GPUs"
        )
    entry, is_written = manifest.generation.find_epoch(epoch, "--epoch")

    def read(path: str) -> pa.Buffer:
        with files.reading(path):
            return files.buffer(path)

    try:
        columns = read_rows(read, manifest, entry, rank)
    except RankFileError as error:
        with files.reading(error.path):
            raise
    columns = as_epoch(columns, entry, manifest.seed, epoch, is_written=is_written)
    layouts = tuple(group.layout for group in manifest.groups)
    return RankEpoch(epoch=epoch, rank=rank, layouts=layouts, columns=columns)


def rows_of_step(rows: RankEpoch, step: int) -> list[int]:
    """The rows of a step, rising. Raises ConfigError where the epoch has no such step."""
    steps = rows.columns["step"]
    first, last = int(steps[0]), int(steps[-1])
    if not first <= step <= last:
        raise ConfigError(
            f"--step must be from {first} to {last}, got {step}: those are the steps of epoch {rows.epoch}"
        )
    return np.flatnonzero(steps == step).tolist()


def rows_of_iteration(rows: RankEpoch, iteration: int) -> list[int]:
    """The rows of an iteration, rising. Raises ConfigError where the epoch has no such iteration."""
    if not 0 <= iteration < rows.num_iterations:
        raise ConfigError(
            f"--iteration must be from 0 to {rows.num_iterations - 1}, got {iteration}: those are the iterations of "
            f"epoch {rows.epoch}"
        )
    return np.flatnonzero(rows.columns["iteration"] == iteration).tolist()


def locate_pack(manifest: Manifest, pack: int) -> tuple[int, int, int]:
    """(group, shard, row) of a pack. Raises ConfigError where there is none of that id."""
    for g, group in enumerate(manifest.groups):
        for s, shard in enumerate(group.shards):
            if shard.first_pack <= pack < shard.first_pack + shard.num_packs:
                return g, s, pack - shard.first_pack
    num_packs = sum(group.num_packs for group in manifest.groups)
    raise ConfigError(f"--pack must be from 0 to {num_packs - 1}, got {pack}: the set has {num_packs:,} packs")


def pack_id_of(place: Place, manifest: Manifest) -> int:
    """Id of the pack of a micro-batch that has one."""
    return manifest.groups[place.row.group].shards[place.row.shard].first_pack + place.row.row


def find_pack(files: SetFiles, manifest: Manifest, packs: Iterable[int], epoch: int) -> dict[int, Place]:
    """Where each pack is used in an epoch, on the first rank of its SP group; packs that are not used are left out.

    A set that was dealt to other GPUs in mid-epoch does not use again what it had used before.

    Raises:
        ConfigError: there is no such pack or epoch.
    """
    wanted = {locate_pack(manifest, pack): pack for pack in packs}
    keys = np.array([_key(*place) for place in wanted], dtype=np.int64)
    found: dict[int, Place] = {}
    entry, _ = manifest.generation.find_epoch(epoch, "--epoch")
    for rank in (ranks.first for ranks in entry.ranks):
        if len(found) == len(wanted):
            break
        rows = read_rank_epoch(files, manifest, rank, epoch)
        own = _key(*(rows.columns[name].astype(np.int64) for name in ("group", "shard", "row")))
        for number in np.flatnonzero(np.isin(own, keys) & (rows.columns["shard"] >= 0)).tolist():
            place = rows.place(number)
            found.setdefault(wanted[place.row.group, place.row.shard, place.row.row], place)
    return found


def packs_of_sample(files: SetFiles, manifest: Manifest, sample: int) -> list[int]:
    """The packs that hold a sample, or pieces of it, rising.

    Raises:
        ConfigError: none does.
        FormatError: `plan.arrow`, which tells, is missing or damaged.
    """
    wanted = ["piece_sample", "pack_offsets", "pack_pieces"]
    with files.open(PLAN_NAME, wanted, xxh3=manifest.plan.xxh3) as reader:
        batch = reader.get_batch(0)
        samples, offsets, pieces = (
            to_numpy(batch.column(name).values) for name in ("piece_sample", "pack_offsets", "pack_pieces")
        )
        places = np.flatnonzero(np.isin(pieces, np.flatnonzero(samples == sample)))
        packs = np.unique(np.searchsorted(offsets, places, side="right") - 1).tolist()
        last = int(samples.max(initial=-1))
        del batch, samples, offsets, pieces
    if not packs:
        raise ConfigError(
            f"--sample {sample} is in no pack; sample ids are the row numbers of the token store, here 0 to {last}, "
            "and some may be left out (see rejected.jsonl, and weights as in PATH@0.5)"
        )
    return packs


def _key(group: Any, shard: Any, row: Any) -> Any:
    return (group << 52) | (shard << 32) | row
