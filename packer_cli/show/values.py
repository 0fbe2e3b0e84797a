"""A view as JSON values: what `--json` prints. Nothing is shortened."""

from __future__ import annotations

from typing import Any

import numpy as np

from packer_cli.format.manifest import Manifest
from packer_cli.show.contents import ShownSample
from packer_cli.show.decode import Decode, decode_runs
from packer_cli.show.places import Place, pack_id_of
from packer_cli.show.view import View


def view_value(view: View, manifest: Manifest, decode: Decode | None) -> dict[str, Any]:
    """The keys `place` (null where the pack is not used in the epoch), `pack` (null for a filler), `samples`.

    `step_iterations` and `step_packs` (null for a filler) are those of the rank's micro-batches in the step or
    iteration that was asked for.

    Args:
        decode: None leaves the texts null.
    """
    place, pack = view.place, view.pack
    places = view.step_places or ((place,) if place else ())
    return {
        "place": None if place is None else _place_value(place),
        "pack": None
        if pack is None
        else {
            "pack_id": pack.pack_id,
            "group": manifest.groups[pack.group].name,
            "capacity": manifest.groups[pack.group].capacity,
            "num_tokens": pack.num_tokens,
            "num_loss_tokens": pack.num_loss_tokens,
            **({} if pack.loss_weight is None else {"loss_weight": pack.loss_weight}),
            "attention_work": pack.attention_work,
            "cp_sharding": pack.cp_sharding if manifest.groups[pack.group].layout.cp > 1 else None,
            "num_samples": len(pack.samples),
            "rank_tokens": None if place is None else list(view.rank_tokens),
        },
        "samples": [_sample_value(sample, decode) for sample in view.samples],
        "step_iterations": sorted({other.row.iteration for other in places}),
        "step_packs": [None if other.row.shard < 0 else pack_id_of(other, manifest) for other in places],
    }


def _place_value(place: Place) -> dict[str, Any]:
    of_epoch = {"epoch": place.epoch, "rank": place.rank, "num_iterations": place.num_iterations}
    layout = place.layout
    return {**of_epoch, **place.row._asdict(), **layout.sizes, **layout.place(place.row.place)._asdict()}


def _sample_value(sample: ShownSample, decode: Decode | None) -> dict[str, Any]:
    runs = decode_runs(decode or (lambda ids: ""), sample.input_ids, sample.loss_mask)
    return {
        "index": sample.index,
        "sample_id": sample.sample_id,
        "source": sample.source,
        "file": sample.file,
        "line": sample.line,
        "begin": sample.begin,
        "start": sample.start,
        "num_tokens": len(sample.input_ids),
        "num_loss_tokens": sample.num_loss_tokens,
        "runs": [
            {
                "trained": run.is_trained,
                **({"weight": run.weight} if sample.loss_mask.dtype == np.float32 else {}),
                "num_tokens": len(run.input_ids),
                "text": run.text if decode else None,
                "input_ids": run.input_ids,
            }
            for run in runs
        ],
    }
