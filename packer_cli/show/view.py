"""What `hbpack show` shows: found, read and checked, before it is made text or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer_cli.format.manifest import Manifest
from packer_cli.shards.files import SetFolder
from packer_cli.show.contents import ShownPack, ShownSample, read_pack
from packer_cli.show.decode import Decode, decode_runs
from packer_cli.show.places import (
    Place,
    find_pack,
    packs_of_sample,
    place_of,
    rows_of_iteration,
    rows_of_rank,
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


def look(root: Path, manifest: Manifest, wanted: Wanted) -> list[View]:
    """What is asked for; several views only for a sample that is in several packs.

    Raises:
        ConfigError: there is no such epoch, rank, step, iteration, pack or sample.
        FormatError: a file of the set is missing or damaged.
        RemoteError: remote storage does not answer.
    """
    files = SetFolder(root)
    epoch = manifest.first_epoch if wanted.epoch is None else wanted.epoch
    if wanted.pack is not None or wanted.sample is not None:
        return _look_for_packs(files, manifest, wanted, epoch)
    rows = rows_of_rank(files, manifest, wanted.rank, epoch)
    if wanted.iteration is not None:
        found = rows_of_iteration(rows, wanted.iteration)
    else:
        found = rows_of_step(rows, int(rows.columns["step"][0]) if wanted.step is None else wanted.step)
    places = tuple(place_of(manifest, rows, wanted.rank, number) for number in found)
    place = places[0]
    pack = None if place.pack is None else read_pack(files, manifest, place.pack)
    return [
        View(
            epoch=epoch,
            place=place,
            pack=pack,
            samples=pack.samples if pack else (),
            step_places=places if len(places) > 1 else (),
        )
    ]


def _look_for_packs(files: SetFolder, manifest: Manifest, wanted: Wanted, epoch: int) -> list[View]:
    packs = [wanted.pack] if wanted.pack is not None else packs_of_sample(files, manifest, int(wanted.sample or 0))
    shown = [read_pack(files, manifest, number) for number in packs]
    places = find_pack(files, manifest, packs, epoch)
    views = []
    for pack in shown:
        samples = tuple(s for s in pack.samples if wanted.sample is None or s.sample_id == wanted.sample)
        views.append(View(epoch=epoch, place=places.get(pack.pack_id), pack=pack, samples=samples))
    # Pieces of a sample in its own order.
    return sorted(views, key=lambda view: view.samples[0].start if view.samples else 0)


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
    """A sample of a pack."""

    index: int
    """Its place in the pack."""
    sample_id: int
    source: str | None
    file: str | None
    line: int | None
    """The record that it comes from."""
    begin: int
    """Its first token in the pack."""
    start: int
    """Its first token in the whole sample, which may be cut."""
    num_tokens: int
    num_loss_tokens: int
    runs: list[RunRecord]


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
    cp_sharding: str | None
    num_samples: int
    rank_tokens: tuple[int, int] | None
    """Begin and end of the part of its row that the rank takes."""


@dataclass(frozen=True, kw_only=True)
class ViewRecord:
    """One pack in one place."""

    place: dict[str, int] | None
    """Epoch, rank, iteration, degrees and places; None where the epoch does not use the pack."""
    pack: PackRecord | None
    """None for a filler."""
    samples: list[SampleRecord]
    step_iterations: list[int]
    """Those of the rank's micro-batches in the step or iteration that was asked for."""
    step_packs: list[int | None]
    """Their packs; None for a filler."""


def view_record(view: View, manifest: Manifest, decode: Decode | None) -> ViewRecord:
    """A view for JSON.

    Args:
        decode: None leaves the texts out.
    """
    place, pack = view.place, view.pack
    places = view.step_places or ((place,) if place else ())
    shown = None
    if pack is not None:
        group = manifest.groups[pack.group]
        shown = PackRecord(
            pack_id=pack.pack_id,
            group=group.name,
            capacity=group.capacity,
            num_tokens=pack.num_tokens,
            num_loss_tokens=pack.num_loss_tokens,
            loss_weight=pack.loss_weight,
            attention_work=pack.attention_work,
            cp_sharding=pack.cp_sharding if group.layout.cp > 1 else None,
            num_samples=len(pack.samples),
            rank_tokens=None if place is None else view.rank_tokens,
        )
    return ViewRecord(
        place=None if place is None else _place_values(place),
        pack=shown,
        samples=[_sample_record(sample, decode) for sample in view.samples],
        step_iterations=sorted({other.row.iteration for other in places}),
        step_packs=[other.pack for other in places],
    )


def _place_values(place: Place) -> dict[str, int]:
    of_epoch = {"epoch": place.epoch, "rank": place.rank, "num_iterations": place.num_iterations}
    layout = place.layout
    return {**of_epoch, **place.row._asdict(), **layout.sizes, **layout.place(place.row.place)._asdict()}


def _sample_record(sample: ShownSample, decode: Decode | None) -> SampleRecord:
    is_weighted = sample.loss_mask.dtype == np.float32
    return SampleRecord(
        index=sample.index,
        sample_id=sample.sample_id,
        source=sample.source,
        file=sample.file,
        line=sample.line,
        begin=sample.begin,
        start=sample.start,
        num_tokens=len(sample.input_ids),
        num_loss_tokens=sample.num_loss_tokens,
        runs=[
            RunRecord(
                trained=run.is_trained,
                weight=run.weight if is_weighted else None,
                num_tokens=len(run.input_ids),
                text=run.text if decode else None,
                input_ids=run.input_ids,
            )
            for run in decode_runs(decode or (lambda ids: ""), sample.input_ids, sample.loss_mask)
        ],
    )
