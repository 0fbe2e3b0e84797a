"""`find`: where records went: their samples, packs and shards, and when each pack is trained on which ranks.

Price: the lines of the token store and the tables of the plan, memory-mapped: about 50 bytes a sample. Tokens of these
records alone are read, and no shard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.commands.arguments import StrPath, path_names
from packer_cli.commands.planned import Plan, read_planned
from packer_cli.errors import ConfigError, InputError
from packer_cli.format.ranks import locate_packs
from packer_cli.format.versions import plan_file, set_at
from packer_cli.remote.path import as_path
from packer_cli.shards.own_store import open_own_store
from packer_cli.shards.repair import generation_plan
from packer_cli.tables.table import Result, Table, cell
from packer_cli.tokens.exclusions import files_named
from packer_cli.tokens.store import TokenStore


@dataclass(frozen=True)
class Place:
    """A sample of a record, or a piece of it, in a pack, and where that is trained; None for all that there is not."""

    file: str
    """The file, as the set names it."""
    line: int
    """Line of the file, or row of a table, from 1."""
    sample: int | None = None
    """Row number in the token store; None: the record was rejected, or the file does not have it."""
    hash: str | None = None
    """Hash of the tokens of the whole sample, as `--exclude` takes it."""
    start: int | None = None
    """First token of the piece in its sample."""
    tokens: int | None = None
    """Tokens of the piece."""
    pack: int | None = None
    """Number of the pack; None: the plan leaves the sample out, or sets it aside for the validation set."""
    shard: str | None = None
    """Path of the shard in the folder of the version; None: no shards are written."""
    row: int | None = None
    """Row of the pack in the shard."""
    epoch: int | None = None
    """Epoch that was written; later ones repeat the steps of a written one in another order."""
    step: int | None = None
    """Optimizer step of the epoch."""
    iteration: int | None = None
    """Iteration of the epoch; after a rebalance in its middle, of what was left."""
    rank: int | None = None
    """First rank of the replica that runs the pack."""
    ranks: int | None = None
    """Ranks of the replica."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Places(Result):
    """The places of records, in the order in which these were asked for."""

    places: tuple[Place, ...]
    """One or more of each record."""

    def _tables(self) -> Iterable[Table]:
        return [places_table(self)]


def places_table(found: Places) -> Table:
    """Tabulate the places of records."""
    rows = tuple(tuple(cell(value, str, "-") for value in vars(place).values()) for place in found.places)
    return Table(title="Records", header=tuple(field.name for field in fields(Place)), rows=rows)


def find(path: StrPath, records: str | Sequence[str] = (), *, ids: str | Sequence[str] = ()) -> Places:
    """Find the samples, packs and shards of records, and when and where they are trained, as `hbpack find` does.

    Args:
        path: a packed set or a plan that keeps its token store.
        records: one or several, as `"FILE:LINE"`; the line of a table is its row, from 1.
        ids: records by their value in the first of the `keep_columns` that the set was packed with.

    Raises:
        HbpackError: the path has no plan or no token store, or none of its files has this name.
    """
    folder = as_path(path)
    planned = read_planned(folder)
    assert planned.header is not None
    try:
        place = set_at(folder) if planned.manifest else plan_file(folder).parent
        store = open_own_store(place, planned.header)
    except InputError:
        raise InputError(
            f"{str(path)!r} keeps no token store, which alone knows the records of its samples; pack it again, "
            "without --no-keep-tokens"
        ) from None
    files = dict.fromkeys(file.path for part in store.index.parts for file in part.files)
    asked = [_place(record, files) for record in path_names(records)] + _with_ids(store, path_names(ids))
    found = store.find(asked)
    samples = sorted({sample for samples in found for sample in samples})
    uses, hashes = _uses(folder, planned, samples), store.hashes()
    return Places(
        places=tuple(
            Place(file, line, *use[:1], *(f"hash:{hashes[sample]:016x}" for sample in use[:1]), *use[1:])
            for (file, line), samples in zip(asked, found, strict=True)
            for use in [use for sample in samples for use in uses.get(sample, [(sample,)])] or [()]
        )
    )


def _with_ids(store: TokenStore, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Find the records with these ids, in their order, each once."""
    if ids and not store.index.options.kept:
        raise InputError(f"the records of {str(store.folder)!r} have no ids; pack them again, with --keep-columns id")
    found: dict[tuple[str, int], None] = {}
    for value, samples in store.find_kept(ids).items() if ids else ():
        if not samples:
            raise InputError(f"no sample has the {store.index.options.kept[0]} {value!r}; it may have been rejected")
        found |= dict.fromkeys(store.locate(np.array(samples)))
    return [*found]


def _place(record: str, files: Collection[str]) -> tuple[str, int]:
    """Read FILE:LINE. The file may be named with fewer, or more, of the folders above it than the set has."""
    name, _, line = record.rpartition(":")
    if not name or not line.isdecimal():
        raise ConfigError(f"{record!r} is not a record; give FILE:LINE, such as chats.jsonl:17")
    near = files_named(name, files)
    if len(near) != 1:
        what = "several files" if near else "not a file"
        raise InputError(f"{name!r} is {what} of the set, which has {', '.join([*(near or files)][:5])}")
    return near[0], int(line)


def _uses(folder: Path, planned: Plan, samples: Sequence[int]) -> dict[int, list[tuple[Any, ...]]]:
    """Find where each sample is that is in a pack: the fields of `Place` from `sample` on."""
    plan, manifest = planned.arrays, planned.manifest
    epochs = [(number, 0) for number in range(len(plan.epochs))]
    if manifest is not None:
        plan = generation_plan(set_at(folder), manifest.generation, plan)
        epochs = [(manifest.first_epoch + number, epoch.first_step) for number, epoch in enumerate(manifest.epochs)]
    pieces, packs = plan.pieces, plan.packs
    at = np.flatnonzero(np.isin(packs.pieces, np.flatnonzero(np.isin(pieces.sample, samples))))
    number, pack = packs.pieces[at], np.searchsorted(packs.offsets, at, side="right") - 1
    trained = defaultdict(list)
    for (epoch, first_step), schedule in zip(epochs, plan.epochs, strict=True):
        slots = np.flatnonzero(np.isin(schedule.slot_pack, pack))
        iteration, rank = schedule.slot_iteration[slots], schedule.slot_first_gpu[slots]
        step, ranks = first_step + schedule.iteration_step[iteration], plan.slot_gpus(schedule)[slots]
        for own, *use in np.stack([schedule.slot_pack[slots], step, iteration, rank, ranks], axis=1).tolist():
            trained[own].append((epoch, *use))
    shards: list[tuple[str | None, int | None]] = [(None, None)] * len(pack)
    if manifest is not None:
        located = zip(*locate_packs(manifest, pack), strict=True)
        shards = [(manifest.groups[group].shards[shard].path, int(row)) for group, shard, row in located]
    uses: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for k in np.lexsort((pieces.start[number], pieces.sample[number])).tolist():
        sample, *piece = (int(each[number[k]]) for each in (pieces.sample, pieces.start, pieces.length))
        uses[sample] += [(sample, *piece, int(pack[k]), *shards[k], *use) for use in trained[int(pack[k])] or [()]]
    return uses
