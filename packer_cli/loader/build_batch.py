"""Builds one rank's micro-batch from a pack: padding, positions, labels, slicing. Vectorised numpy, one copy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from packer_cli.format.constants import FILLER_TOKENS, Mask
from packer_cli.format.entries import GroupInfo
from packer_cli.format.layout import Layout
from packer_cli.format.loss_spans import spans_to_weights
from packer_cli.format.ragged import Lists
from packer_cli.format.ranks import RankRow
from packer_cli.format.sharding import PLANNED, Sharding, length_multiple, local_indices
from packer_cli.format.shards import Pack
from packer_cli.format.trees import Trees
from packer_cli.loader import passes


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """One rank's forward in one iteration, before an adapter converts it to a trainer's batch.

    T is the length of the padded row, t that of this rank's part: T / `layout.row_ranks` if the row is sliced, else T.
    Token arrays hold this rank's part; `cu_seqlens`, `max_seqlen` and all about samples describe the whole row.
    """

    input_ids: np.ndarray
    """int64 [t]"""
    position_ids: np.ndarray
    """int64 [t], from 0 in every segment"""
    labels: np.ndarray
    """int64 [t], aligned with `input_ids`; -100 for no loss and for the first token of each sample"""
    shift_labels: np.ndarray
    """int64 [t]: the label that each token must predict, shifted over the whole row and only then sliced.

    The last token of a sample never predicts the next one's first: that label is -100. May share memory with `labels`.
    """
    cu_seqlens: np.ndarray
    """int32 [segments+1], from 0 to T; any padding at the tail is the last segment, but for empty ones that make the
    number of segments fixed"""
    max_seqlen: int
    """tokens of the longest segment; T if the number of segments is fixed"""
    sample_borders: np.ndarray
    """int32 [n+1], or [n+2] with padding at the tail: where samples begin"""
    sample_num_loss_tokens: np.ndarray
    """int64 [n]"""
    loss_weights: np.ndarray | None = None
    """float32 [t], aligned with `labels`: the weight of each token's loss, 0 where the label is -100; None: there are
    no weights"""
    shift_loss_weights: np.ndarray | None = None
    """float32 [t], aligned with `shift_labels`; where the row keeps its trees, the sum over branches that train the
    token, and in a set without weights their number"""
    loss_weight: float | None = None
    """Sum of the weights of the pack; None: there are none"""
    items: dict[str, np.ndarray] = field(default_factory=dict)
    """The metadata of items, by name; empty in a set of flat samples"""
    trees: Trees | None = None
    """Trees of the whole row, where it keeps them, see `loader.trees`: the segments; padding is the last root."""
    paths: Lists | None = None
    """Tokens of the paths of the trees' leaves, int64 [K]: the keys of the run of queries that each leaf ends"""
    last_index: np.ndarray | None = None
    """int64 [n]: the last token of each branch of trees, in this rank's part; -1 if another rank has it"""
    pack: Pack
    """Pack that the row has, before its samples are aligned; that of a filler has no samples."""
    row: RankRow
    builder: BatchBuilder
    epoch: int
    sharding: Sharding
    """Sharding of the row among the ranks that share it; the token arrays are only a part of the row if `sliced`."""
    sliced: bool

    @property
    def layout(self) -> Layout:
        """Layout of the replica that runs the row; `row.place` is this rank's GPU in it."""
        return self.builder.layouts[self.row.group]

    @property
    def row_rank(self) -> int:
        """Number of this rank among the ranks that share the row."""
        return self.layout.row_rank(self.row.place)


PadTo = Literal["multiple", "row", "capacity"]

SPSharding = Literal[Sharding, "planned"]
"""A sharding, or "planned": the one that the pack's `cp_sharding` column names, see `PLANNED`."""
SP_SHARDINGS: tuple[SPSharding, ...] = (*get_args(Sharding), "planned")


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


_NONE = np.empty(0, dtype=np.int64)
NO_PACK = Pack(-1, 0, _NONE, _NONE, _NONE, np.zeros(1, dtype=np.int32), _NONE, 0, np.empty(0, dtype=np.float32))
"""Pack that a filler is built from."""


@dataclass(frozen=True, kw_only=True)
class BatchBuilder:
    """Builds a data set's micro-batches from packs; the fields are arguments of `PackedDataset`, checked there."""

    unit: ClassVar[str] = "sample"
    """The noun for what rows of a set must hold one after another: "sample" or "item"."""
    pad_to: PadTo
    pad_to_multiple_of: int
    pad_token_id: int
    sp_slice: bool
    groups: tuple[GroupInfo, ...]
    sp_sharding: SPSharding | None = None
    """Sharding of rows; None: "contiguous" for sequence parallelism (Ulysses), "planned" for context parallelism."""
    align_samples: bool = False
    """Pad each sample to a multiple of its group's `align`, and of twice the ranks that share a row, if several do
    (Megatron, TransformerEngine)."""
    mask: Mask = "document"
    """Whether the segments of attention are the samples, or the whole row is one."""
    reset_positions: bool = True
    """Whether positions begin at 0 in each sample, or run through the row."""
    is_weighted: bool = False
    """Whether to give the weights of loss tokens, which the set has."""
    max_segments: int | None = None
    """Segments of every row, at least those of the largest pack and one of padding; the rest are empty."""

    @cached_property
    def has_varying_degrees(self) -> bool:
        """Whether the number of ranks that share a row differs between groups."""
        return len({layout.row_ranks for layout in self.layouts}) > 1

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Layouts of each group's replicas."""
        return tuple(group.layout for group in self.groups)

    def padded_length(self, num_tokens: int, row: RankRow, sharding: Sharding = "contiguous") -> int:
        """Return the length T of the padded row of a pack of `num_tokens` tokens."""
        if self.pad_to == "row":
            num_tokens = max(num_tokens, row.row_length)
        elif self.pad_to == "capacity":
            num_tokens = max(num_tokens, self.groups[row.group].capacity)
        layout = self.layouts[row.group]
        multiple = self.alignment(row) if self.align_samples else length_multiple(sharding, layout.row_ranks)
        if layout.tp > 1:  # Each of its ranks holds equally many of the tokens of a part.
            multiple = math.lcm(multiple, layout.tp * length_multiple(sharding, layout.row_ranks))
        return round_up(num_tokens, math.lcm(self.pad_to_multiple_of, multiple))

    def build(self, pack: Pack, row: RankRow, epoch: int) -> MicroBatch:
        """Build the micro-batch of `row`, which reads `pack`. Price: less than two plain copies of its arrays.

        A filler, whose row reads `NO_PACK`, has a few padding tokens, or as many as `pad_to` requires, so that shapes
        stay fixed.
        """
        layout = self.layouts[row.group]
        given, borders = pack, pack.cu_seqlens
        num_loss_tokens = passes.count_loss_tokens(pack.loss_starts, pack.loss_stops, borders, pack.num_loss_tokens)
        alignment = self.alignment(row)
        if alignment > 1 and self.mask == "document":
            pack = passes.align_samples(pack, alignment, self.pad_token_id)
        lengths = pack.cu_seqlens[1:] - pack.cu_seqlens[:-1]
        num_tokens = len(pack.input_ids)
        sharding = self.sp_sharding or ("planned" if layout.cp > 1 else "contiguous")
        if sharding == "planned":
            sharding = PLANNED[pack.cp_sharding]
        least = num_tokens or layout.stage_gpus * FILLER_TOKENS
        length = self.padded_length(least, row, sharding)
        samples = passes.with_padding(pack.cu_seqlens, length)
        whole = np.array([0, length], dtype=np.int32)
        cu_seqlens, longest = samples, max(int(np.maximum.reduce(lengths, initial=0)), length - num_tokens)
        if self.mask == "causal":
            cu_seqlens, longest = whole, length
        places = samples if self.reset_positions else whole
        sliced = self.sp_slice and layout.row_ranks > 1
        row_rank = layout.row_rank(row.place)
        is_run = sliced and sharding == "contiguous"
        part = length // layout.row_ranks if is_run else length
        start = row_rank * part if is_run else 0
        held: np.ndarray = passes.ramp(start + part)[start:]
        tokens = self._run(pack, places, start, start + part)
        if sliced and not is_run:
            held = local_indices(cu_seqlens, layout.row_ranks, row_rank, sharding)
            tokens = [values[held] for values in tokens]
        is_weighted = self.is_weighted and pack.loss_weights is not None
        weights = _weights(pack, held, length) if is_weighted else {}
        return MicroBatch(
            **weights,
            input_ids=tokens[0],
            position_ids=tokens[1],
            labels=tokens[2],
            shift_labels=tokens[3],
            cu_seqlens=self._fixed(cu_seqlens),
            max_seqlen=length if self.max_segments else longest,
            sample_borders=samples,
            sample_num_loss_tokens=num_loss_tokens,
            pack=given,
            row=row,
            builder=self,
            epoch=epoch,
            sharding=sharding,
            sliced=sliced,
        )

    def _fixed(self, cu_seqlens: np.ndarray) -> np.ndarray:
        """Return the borders, the last one repeated for segments without tokens, which varlen kernels skip."""
        if self.max_segments is None:
            return cu_seqlens
        fixed = np.full(self.max_segments + 1, cu_seqlens[-1], dtype=np.int32)
        fixed[: len(cu_seqlens)] = cu_seqlens
        return fixed

    def alignment(self, row: RankRow) -> int:
        """Return the tokens to a multiple of which each sample of a row is padded."""
        if not self.align_samples:
            return 1
        planned = self.groups[row.group].align
        ranks = self.layouts[row.group].row_ranks
        return math.lcm(planned, 2 * ranks) if ranks > 1 else planned

    def _run(self, pack: Pack, places: np.ndarray, start: int, stop: int) -> list[np.ndarray]:
        """Copy the tokens `start` to `stop` of the row: `input_ids`, `position_ids`, `labels` and `shift_labels`.

        Positions begin at 0 at each of `places`.
        """
        ids, spans, firsts = pack.input_ids, (pack.loss_starts, pack.loss_stops), pack.cu_seqlens[:-1]
        num_tokens, length = len(ids), stop - start
        # One more label than tokens, so that both alignments are views. One block: the C library keeps its memory for
        # the next rows, while that of several would return to the system, which clears it page by page.
        block = np.empty((3, length + 1), dtype=np.int64)
        input_ids, labels, positions = block[0, :length], block[1], block[2, :length]
        real = max(0, min(length, num_tokens - start))
        input_ids[:real] = ids[start : start + real]
        input_ids[real:] = self.pad_token_id
        real = max(0, min(length + 1, num_tokens - start))
        labels[real:] = passes.IGNORE_INDEX
        if 0 < real < num_tokens:  # Only a part of the tokens is here.
            firsts = firsts[int(firsts.searchsorted(start)) :] - np.int32(start)
            firsts = firsts[: int(firsts.searchsorted(real))]
            spans = passes.cut_spans(*spans, start, start + real)
        if real:
            passes.write_labels(ids[start : start + real], *spans, firsts, labels[:real])
        passes.write_positions(places, start, positions)
        return [input_ids, positions, labels[:-1], labels[1:]]


def _weights(pack: Pack, held: np.ndarray, length: int) -> dict[str, Any]:
    """Return the fields of a micro-batch that only a set with weights has.

    Args:
        held: integers [t], rising: places in the row of this rank's tokens.
        length: of the row.
    """
    assert pack.loss_weights is not None
    row = np.zeros(length + 1, dtype=np.float32)
    num_tokens = len(pack.input_ids)
    row[:num_tokens] = spans_to_weights(pack.loss_starts, pack.loss_stops, pack.loss_weights, num_tokens)
    row.put(pack.cu_seqlens[:-1], 0)  # As for labels: an error in a shard would leak one sample into another.
    lengths = (pack.loss_stops - pack.loss_starts).astype(np.float64)
    return {
        "loss_weights": row[held],
        "shift_loss_weights": row[held + 1],
        "loss_weight": float(lengths @ pack.loss_weights.astype(np.float64)),
    }
