"""From a pack to one rank's micro-batch: padding, positions, labels, slice. Vectorised numpy, one copy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from packer_cli.loader.rows import Row
from packer_cli.loader.shards import Pack

PadTo = Literal["multiple", "row", "capacity"]
PAD_TO: tuple[PadTo, ...] = ("multiple", "row", "capacity")

IGNORE_INDEX = np.int32(-100)

FILLER_TOKENS = 8
"""Padding tokens of a filler for each GPU of its slot, before rounding."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One rank's forward in one iteration, before an adapter gives it a trainer's names.

    T is the length of the padded row, t that of this rank's part: T / sp_size where the row is sliced, else T.
    Token arrays are this rank's part; `cu_seqlens` and `max_seqlen` always describe the whole row.
    """

    input_ids: np.ndarray
    """int64 [t]"""
    position_ids: np.ndarray
    """int64 [t], from 0 in every segment"""
    next_labels: np.ndarray
    """int64 [t+1]: the labels of this part and of the token after it (-100 after the row's last token)"""
    cu_seqlens: np.ndarray
    """int32 [segments+1], from 0 to T; padding, where there is any, is the last segment"""
    max_seqlen: int
    sample_ids: np.ndarray
    """int64 [n]; padding is no sample"""
    row: Row
    pack_id: int
    num_loss_tokens: int
    epoch: int

    @property
    def labels(self) -> np.ndarray:
        """int64 [t], aligned with `input_ids`; a view."""
        return self.next_labels[:-1]

    @property
    def shift_labels(self) -> np.ndarray:
        """int64 [t]: what each token has to predict, shifted over the whole row and only then sliced; a view.

        No sample sees the next one's first token: that label is always -100.
        """
        return self.next_labels[1:]


def round_up(number: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class BatchBuilder:
    """How a data set makes micro-batches of packs; the arguments of `PackedDataset`, checked there."""

    pad_to: PadTo
    pad_to_multiple_of: int
    pad_token_id: int
    sp_slice: bool
    capacities: tuple[int, ...]
    """Capacity of each group, in tokens."""

    def padded_length(self, num_tokens: int, row: Row) -> int:
        """Length T of the padded row of a pack of `num_tokens` tokens."""
        if self.pad_to == "row":
            num_tokens = max(num_tokens, row.row_length)
        elif self.pad_to == "capacity":
            num_tokens = max(num_tokens, self.capacities[row.group])
        return round_up(num_tokens, math.lcm(self.pad_to_multiple_of, row.sp_size))

    def build(self, pack: Pack, row: Row, epoch: int) -> MicroBatch:
        """The micro-batch of `row`, which reads `pack`. Price: about one pass over this rank's part."""
        num_tokens = len(pack.input_ids)
        length = self.padded_length(num_tokens, row)
        start, stop = self._part(length, row)
        cu_seqlens = _with_padding(pack.cu_seqlens, length)
        real = min(stop, num_tokens)

        input_ids = np.empty(stop - start, dtype=np.int64)
        filled = max(0, real - start)
        input_ids[:filled] = pack.input_ids[start:real]
        input_ids[filled:] = self.pad_token_id

        next_labels = np.empty(stop - start + 1, dtype=np.int64)
        real = min(stop + 1, num_tokens)
        filled = max(0, real - start)
        next_labels[filled:] = IGNORE_INDEX
        if filled:
            # Arithmetic instead of a masked copy: no branches, half the time.
            labels = pack.input_ids[start:real] - IGNORE_INDEX
            labels *= pack.loss_mask[start:real]
            labels += IGNORE_INDEX
            next_labels[:filled] = labels
            # The format says so already; a writer's slip here would leak one sample into another.
            firsts = cu_seqlens[:-1]
            firsts = firsts[(firsts >= start) & (firsts < real)]
            next_labels[firsts - start] = IGNORE_INDEX
        return MicroBatch(
            input_ids=input_ids,
            position_ids=_positions(cu_seqlens, start, stop),
            next_labels=next_labels,
            cu_seqlens=cu_seqlens,
            max_seqlen=int(np.diff(cu_seqlens).max()),
            sample_ids=pack.sample_ids.copy(),
            row=row,
            pack_id=pack.pack_id,
            num_loss_tokens=pack.num_loss_tokens,
            epoch=epoch,
        )

    def filler(self, row: Row, epoch: int) -> MicroBatch:
        """The micro-batch of an iteration in which the rank has no pack: padding tokens without loss.

        A few of them, or as many as `pad_to` asks for: who needs fixed shapes needs them here too.
        """
        length = self.padded_length(row.sp_size * FILLER_TOKENS, row)
        start, stop = self._part(length, row)
        return MicroBatch(
            input_ids=np.full(stop - start, self.pad_token_id, dtype=np.int64),
            position_ids=np.arange(start, stop, dtype=np.int64),
            next_labels=np.full(stop - start + 1, IGNORE_INDEX, dtype=np.int64),
            cu_seqlens=np.array([0, length], dtype=np.int32),
            max_seqlen=length,
            sample_ids=np.empty(0, dtype=np.int64),
            row=row,
            pack_id=-1,
            num_loss_tokens=0,
            epoch=epoch,
        )

    def _part(self, length: int, row: Row) -> tuple[int, int]:
        if not self.sp_slice:
            return 0, length
        part = length // row.sp_size
        return row.sp_rank * part, (row.sp_rank + 1) * part


def _with_padding(cu_seqlens: np.ndarray, length: int) -> np.ndarray:
    """A copy of `cu_seqlens`, with one more segment where it ends before `length`."""
    if cu_seqlens[-1] == length:
        return cu_seqlens.copy()
    return np.append(cu_seqlens, np.int32(length))


def _positions(cu_seqlens: np.ndarray, start: int, stop: int) -> np.ndarray:
    """int64 [stop-start]: place of each token of this part in its segment."""
    counts = np.diff(np.clip(cu_seqlens, start, stop))
    positions = np.arange(start, stop, dtype=np.int64)
    positions -= np.repeat(cu_seqlens[:-1], counts)
    return positions
