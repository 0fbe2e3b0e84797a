"""The contents that `hbpack show` shows: found, read and checked, before they are made text or JSON.

A user means a row of a rank manifest: by a step or iteration of a rank, a pack, a sample.

Price: a rank's manifest is some 75 bytes a row; to find a pack, those of the ranks before it are read as well;
to find a sample, `plan.arrow`, some 50 bytes a sample.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from packer_cli.config.set_options import ShowConfig
from packer_cli.errors import ConfigError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.layout import Layout
from packer_cli.format.manifest import Manifest, SetFolder
from packer_cli.format.ranks import RankRow, RankRows, read_rank_rows
from packer_cli.format.records import Hidden, in_json
from packer_cli.show.decode import Decode, decode_runs
from packer_cli.show.packs import PackRecord, PartRecord, SegmentRecord, read_pack, require_between

Part = TypeVar("Part", PartRecord, SegmentRecord)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One micro-batch of one rank, and the epoch that it belongs to."""

    epoch: int
    rank: int
    num_iterations: int
    """Iterations of the epoch."""
    row: RankRow
    pack: int | None
    """Id of the pack; None: a filler."""
    group: str
    """Its name."""
    layout: Layout
    """Layout of the replica that runs the micro-batch."""


def place_of(manifest: Manifest, rows: RankRows, rank: int, number: int) -> Place:
    """Describe row `number` of a rank."""
    row, pack = rows.row(number), int(rows.columns["pack"][number])
    return Place(
        epoch=rows.epoch,
        rank=rank,
        num_iterations=len(rows),
        row=row,
        pack=pack if pack >= 0 else None,
        group=manifest.groups[row.group].name,
        layout=manifest.groups[row.group].layout,
    )


def find_pack(files: SetFolder, manifest: Manifest, packs: Collection[int], epoch: int) -> dict[int, Place]:
    """Find the place of each pack in an epoch, on the first rank of its SP group; packs that are not used are left
    out.

    A set that was dealt to other GPUs in mid-epoch does not use again what it had used before.

    Raises:
        ConfigError: there is no such epoch.
    """
    found: dict[int, Place] = {}
    entry, _ = manifest.generation.find_epoch(epoch, "--epoch")
    for rank in entry.first_ranks:
        if len(found) == len(packs):
            break
        rows = read_rank_rows(files, manifest, rank, epoch, "--epoch")
        for number in np.flatnonzero(np.isin(rows.columns["pack"], [*packs])).tolist():
            found.setdefault(int(rows.columns["pack"][number]), place_of(manifest, rows, rank, number))
    return found


def packs_of_sample(files: SetFolder, manifest: Manifest, sample: int) -> list[int]:
    """Find the packs that hold a sample, or pieces of it, rising.

    Raises:
        ConfigError: none does.
        FormatError: `plan.arrow`, which tells, is missing or damaged.
    """
    with files.reading(PLAN_NAME):
        batch = pa.ipc.open_file(files.read(PLAN_NAME, manifest.plan.xxh3)).get_batch(0)
        samples, offsets, pieces = (
            to_numpy(batch.column(name).values) for name in ("piece_sample", "pack_offsets", "pack_pieces")
        )
        places = np.flatnonzero(np.isin(pieces, np.flatnonzero(samples == sample)))
        packs: list[int] = np.unique(np.searchsorted(offsets, places, side="right") - 1).tolist()
        last = int(samples.max(initial=-1))
    if not packs:
        raise ConfigError(
            f"--sample {sample} is in no pack; sample ids are the row numbers of the token store, here 0 to {last}, "
            "and some may be left out (see rejected.jsonl, and weights as in PATH@0.5)"
        )
    return packs


@dataclass(frozen=True, kw_only=True)
class View:
    """One pack in one place."""

    epoch: Hidden[int]
    shown: Hidden[Place | None]
    """Place of the pack; None: the pack is not used in this epoch (any more)."""
    place: dict[str, int] | None
    """Epoch, rank, iteration, degrees and places; None where the epoch does not use the pack."""
    pack: PackRecord | None
    """The pack; None for a filler."""
    samples: tuple[PartRecord, ...]
    """The samples to show."""
    items: tuple[PartRecord, ...] | None = None
    """The items to show, in place of samples; None in a set of flat samples."""
    step_places: Hidden[tuple[Place, ...]] = ()
    """All micro-batches of the step or iteration that was asked for."""

    @property
    @in_json
    def step_iterations(self) -> list[int]:
        """Iterations of the rank's micro-batches in the step or iteration that was asked for."""
        return sorted({place.row.iteration for place in self.step_places})

    @property
    @in_json
    def step_packs(self) -> list[int | None]:
        """Packs of these micro-batches; None for a filler."""
        return [place.pack for place in self.step_places]


def _view(
    wanted: ShowConfig, epoch: int, place: Place | None, pack: PackRecord | None, places: tuple[Place, ...]
) -> View:
    """Make the view of a pack, None for a filler, with the sample that is wanted or all."""
    values = None
    if place is not None:
        layout, row = place.layout, place.row
        of_epoch = {"epoch": place.epoch, "rank": place.rank, "num_iterations": place.num_iterations}
        values = {**of_epoch, **row._asdict(), **layout.sizes, **layout.place(row.place)._asdict()}
        if pack is not None:
            size = -(-pack.num_tokens // layout.row_ranks)
            begin = size * layout.row_rank(row.place)
            pack = replace(pack, rank_tokens=(begin, begin + size))
    given = pack.parts if pack else ()
    parts = tuple(each for each in given if wanted.sample in (None, each.sample_id, each.item_id))
    samples, items = (parts, None) if pack is None or pack.num_items is None else ((), parts)
    return View(epoch=epoch, shown=place, place=values, pack=pack, samples=samples, items=items, step_places=places)


def look(root: Path, manifest: Manifest, wanted: ShowConfig) -> list[View]:
    """Find the views that are asked for; several only for a sample that is in several packs.

    Raises:
        ConfigError: there is no such epoch, rank, step, iteration, pack or sample.
        FormatError: a file of the set is missing or damaged.
        RemoteError: remote storage does not answer.
    """
    files = SetFolder(root)
    epoch = manifest.first_epoch if wanted.epoch is None else wanted.epoch
    if wanted.pack is not None or wanted.sample is not None:
        return _look_for_packs(files, manifest, wanted, epoch)
    require_between("--rank", wanted.rank, 0, manifest.num_gpus - 1, f"the set is for {manifest.num_gpus} GPUs")
    rows = read_rank_rows(files, manifest, wanted.rank, epoch, "--epoch")
    if wanted.iteration is not None:
        require_between(
            "--iteration", wanted.iteration, 0, len(rows) - 1, f"those are the iterations of epoch {epoch}"
        )
        found = [*rows.rows_of(wanted.iteration)]
    else:
        steps = rows.columns["step"]
        step = int(steps[0]) if wanted.step is None else wanted.step
        require_between("--step", step, int(steps[0]), int(steps[-1]), f"those are the steps of epoch {epoch}")
        found = np.flatnonzero(steps == step).tolist()
    places = tuple(place_of(manifest, rows, wanted.rank, number) for number in found)
    place = places[0]
    pack = None if place.pack is None else read_pack(files, manifest, place.pack)
    return [_view(wanted, epoch, place, pack, places)]


def _look_for_packs(files: SetFolder, manifest: Manifest, wanted: ShowConfig, epoch: int) -> list[View]:
    packs = [wanted.pack] if wanted.pack is not None else packs_of_sample(files, manifest, int(wanted.sample or 0))
    shown = [read_pack(files, manifest, number) for number in packs]
    places = find_pack(files, manifest, packs, epoch)
    views = []
    for pack in shown:
        place = places.get(pack.pack_id)
        views.append(_view(wanted, epoch, place, pack, (place,) if place else ()))
    # Pieces of a sample in its own order.
    return sorted(views, key=lambda view: next((part.start for part in view.items or view.samples), 0))


def with_runs(view: View, decode: Decode | None) -> View:
    """Add the runs of its samples or items to the view, for JSON.

    Args:
        decode: None leaves the texts out.
    """

    def decoded(part: Part, before: Sequence[int] = ()) -> Part:
        return replace(part, runs=tuple(decode_runs(decode, part.input_ids, part.loss_mask, before)))

    items = view.items and tuple(
        replace(item, segments=tuple(decoded(each, each.before.tolist()) for each in item.segments or ()))
        for item in view.items
    )
    return replace(view, samples=tuple(map(decoded, view.samples)), items=items)
