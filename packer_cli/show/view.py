"""What `hbpack show` shows: found, read and checked, before it is made text or JSON."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.format.manifest import Manifest
from packer_cli.show.contents import ShownPack, ShownSample, read_pack
from packer_cli.show.files import SetFiles
from packer_cli.show.places import (
    Place,
    find_pack,
    locate_pack,
    packs_of_sample,
    read_rank_epoch,
    rows_of_iteration,
    rows_of_step,
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asks for: a pack, a sample, or an iteration of a rank."""

    epoch: int | None = None
    """None: the first of the set."""
    rank: int = 0
    step: int | None = None
    iteration: int | None = None
    """Without this and a step, the first of the epoch."""
    pack: int | None = None
    sample: int | None = None


@dataclass(frozen=True, kw_only=True)
class View:
    """One pack in one place."""

    epoch: int
    place: Place | None
    """None: the pack is not used in this epoch (any more)."""
    pack: ShownPack | None
    """None: a filler."""
    samples: tuple[ShownSample, ...]
    """Those to show."""
    step_places: tuple[Place, ...] = ()
    """All micro-batches of the step or iteration that was asked for, where it has several."""

    @property
    def rank_tokens(self) -> tuple[int, int]:
        """[begin, end) of the row that this rank takes where the row is cut contiguously; the end may be padding."""
        assert self.place
        assert self.pack
        size = -(-self.pack.num_tokens // self.place.layout.row_ranks)
        return size * self.place.row_rank, size * (self.place.row_rank + 1)


def look(files: SetFiles, manifest: Manifest, wanted: Wanted) -> list[View]:
    """What is asked for; several views only for a sample that is in several packs.

    Raises:
        ConfigError: there is no such epoch, rank, step, iteration, pack or sample.
        FormatError: a file of the set is missing or damaged.
        RemoteError: remote storage does not answer.
    """
    epoch = manifest.first_epoch if wanted.epoch is None else wanted.epoch
    if wanted.pack is not None or wanted.sample is not None:
        return _look_for_packs(files, manifest, wanted, epoch)
    rows = read_rank_epoch(files, manifest, wanted.rank, epoch)
    if wanted.iteration is not None:
        found = rows_of_iteration(rows, wanted.iteration)
    else:
        found = rows_of_step(rows, int(rows.columns["step"][0]) if wanted.step is None else wanted.step)
    place = rows.place(found[0])
    pack = None if place.row.shard < 0 else read_pack(files, manifest, place.row.group, place.row.shard, place.row.row)
    return [
        View(
            epoch=epoch,
            place=place,
            pack=pack,
            samples=pack.samples if pack else (),
            step_places=tuple(map(rows.place, found)) if len(found) > 1 else (),
        )
    ]


def _look_for_packs(files: SetFiles, manifest: Manifest, wanted: Wanted, epoch: int) -> list[View]:
    packs = [wanted.pack] if wanted.pack is not None else packs_of_sample(files, manifest, int(wanted.sample or 0))
    places = find_pack(files, manifest, packs, epoch)
    views = []
    for number in packs:
        pack = read_pack(files, manifest, *locate_pack(manifest, number))
        samples = tuple(s for s in pack.samples if wanted.sample is None or s.sample_id == wanted.sample)
        views.append(View(epoch=epoch, place=places.get(number), pack=pack, samples=samples))
    # Pieces of a sample in its own order.
    return sorted(views, key=lambda view: view.samples[0].start if view.samples else 0)
