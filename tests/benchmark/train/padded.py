"""Padded batches, as the loader gives packs: what trainers without packing run, and no set holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from packer_cli.format.constants import FILLER_TOKENS
from packer_cli.format.layout import Layout
from packer_cli.loader.passes import IGNORE_INDEX
from packer_cli.plan.core.types import FILLER, Plan

Rows = list[tuple[int, int, int, list[int]]]
"""For each iteration: degree, place in the replica, tokens to which each sample is padded, and the samples' own."""


def padded_rows(plan: Plan, rank: int) -> Rows:
    """What a rank runs; one row an iteration."""
    schedule, offsets = plan.epochs[0], plan.packs.offsets
    degrees = plan.slot_gpus(schedule)
    rows: Rows = []
    for slot in np.flatnonzero(
        (schedule.slot_first_gpu <= rank) & (rank < schedule.slot_first_gpu + degrees)
    ).tolist():
        degree, place = int(degrees[slot]), rank - int(schedule.slot_first_gpu[slot])
        pack = int(schedule.slot_pack[slot])
        if pack == FILLER:
            rows.append((degree, place, degree * FILLER_TOKENS, [0]))
            continue
        samples = plan.pieces.length[plan.packs.pieces[offsets[pack] : offsets[pack + 1]]].tolist()
        rows.append((degree, place, max(samples), samples))
    return rows


class PaddedDataset:
    """The padded batches of a rank, with the loader's keys that a model needs."""

    def __init__(self, rows: Rows, vocabulary_size: int) -> None:
        self._rows = rows
        self._vocabulary_size = vocabulary_size

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        degree, place, longest, samples = self._rows[i]
        sizes = [longest] * len(samples)
        if sum(sizes) % degree:
            sizes.append(degree - sum(sizes) % degree)
            samples = [*samples, 0]
        positions = np.concatenate([np.arange(size) for size in sizes])
        ids = np.random.default_rng(i).integers(0, self._vocabulary_size, len(positions))
        is_real = np.concatenate([np.arange(size) < real - 1 for size, real in zip(sizes, samples, strict=True)])
        labels = np.where(is_real, np.roll(ids, -1), IGNORE_INDEX)
        mine = slice(place * len(ids) // degree, (place + 1) * len(ids) // degree)
        row = {"input_ids": ids, "position_ids": positions, "shift_labels": labels}
        return {
            **{key: torch.from_numpy(values[mine].astype(np.int64))[None] for key, values in row.items()},
            "cu_seq_lens_q": torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)),
            **Layout(sp=degree).sizes,
            **Layout(sp=degree).place(place)._asdict(),
            "checkpoint_layers": 0,
        }
