"""Writes a part of the token store. No kernels here: workers that only tokenize need not load numba."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import or_
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.corpus.ragged import join_samples
from packer_cli.corpus.types import TokenBatch
from packer_cli.files import HashingFile
from packer_cli.format.arrays import Columns, columns_of, to_batch
from packer_cli.format.items import all_trees
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, count_by_row, mask_to_spans
from packer_cli.format.ragged import Lists, offsets_of
from packer_cli.format.schema import ITEM_VALUES, KEPT, RowColumns
from packer_cli.format.trees import GROUP, KINDS, SAMPLE, SHARE_FROM
from packer_cli.tokens.content_hash import hashes_of
from packer_cli.tokens.encode.rows import Items
from packer_cli.tokens.input_slices import LINE, LINE_BITS

_TOKENS_PER_BATCH = 2**22


FIGURES = ("num_samples", "num_tokens", "num_loss_tokens")


class LateColumnsError(Exception):
    """Weights or trees came after record batches without them were written: begin the part again, with `columns`."""

    def __init__(self, columns: RowColumns) -> None:
        super().__init__(columns)
        self.columns = columns


class PartWriter:
    """Writes the batches of one part to an open file.

    Args:
        token: the type of its ids, which must hold all of them.
        columns: by default, the first few million tokens decide whether loss tokens have weights, and rows trees.
        share_prefixes: whether branches of an item share tokens.
        num_slices: slices of input in the part.
        keep: columns of records to keep.
        kept: their values, by the keys of the records; missing where all are.
    """

    def __init__(
        self,
        file: HashingFile,
        token: pa.DataType,
        columns: RowColumns | None = None,
        *,
        share_prefixes: bool = True,
        num_slices: int = 1,
        keep: Sequence[str] = (),
        kept: Mapping[int, Sequence[str | None]] = MappingProxyType({}),
    ) -> None:
        self._keep, self._kept = [KEPT + name for name in keep], kept
        self._token_type = token
        self._token = np.dtype(str(token))
        self._file = file
        self._columns = columns or RowColumns()
        self._shares = share_prefixes
        self._writer: pa.RecordBatchWriter | None = None
        self._waiting: list[tuple[TokenBatch, Items]] = []
        self._num_waiting = 0
        self._kinds = np.zeros(len(KINDS), dtype=np.int64)
        self.num_branches = 0
        self.num_flat_tokens = 0
        self.of_slices = np.zeros((num_slices, 3), dtype=np.int64)
        """int64[s, 3]: samples, tokens and loss tokens of each slice."""
        self.loss_weight: float | None = 0.0 if self._columns.is_weighted else None
        """Sum of the weights of loss tokens; None if they have none."""

    @property
    def kinds(self) -> dict[str, int]:
        """Number of items of each kind; empty without trees, and only then."""
        found = {name: number for name, number in zip(KINDS, self._kinds.tolist(), strict=True) if number}
        return found or ({KINDS[SAMPLE]: 0} if self._columns.of_items else {})

    @property
    def figures(self) -> dict[str, Any]:
        """Figures of the whole part and of its file, as `PartInfo` names them."""
        own = ("loss_weight", "kinds", "num_branches", "num_flat_tokens")
        of_file = {"num_bytes": self._file.num_bytes, "xxh3": self._file.hexdigest()}
        return of_file | {name: getattr(self, name) for name in own}

    def write(self, samples: TokenBatch, items: Items | None = None) -> None:
        """Append samples; `lines` are their keys, see `packer_cli.tokens.input_slices`, and rise from call to call.

        Small batches are gathered into record batches of a few million tokens.

        Args:
            items: which of them belong together; None: each is an item.

        Raises:
            LateColumnsError: see there.
        """
        own = samples._replace(input_ids=samples.input_ids.astype(self._token, copy=False))
        self._waiting.append((own, items or Items.of_samples(len(samples.lines))))
        self._num_waiting += len(samples.input_ids)
        if self._num_waiting >= _TOKENS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        batches, of_each = zip(*self._waiting, strict=True)
        samples, items = join_samples(batches), join_items(of_each)
        self._waiting, self._num_waiting = [], 0
        starts, stops, num_spans, weights = _loss_spans(samples)
        _, schema = self._open(RowColumns(bool((weights != 1).any()), bool((items.kinds != SAMPLE).any())))
        span_ends = np.concatenate([[0], np.cumsum(num_spans)])
        columns: Columns = {"input_ids": Lists(samples.offsets, samples.input_ids)}
        lines = samples.lines
        if self._columns.of_items:
            columns = item_columns(columns["input_ids"], items, num_spans, share_prefixes=self._shares)
            span_ends, lines = span_ends[items.offsets], lines[items.offsets[:-1]]
        columns |= {
            STARTS: Lists(span_ends, starts),
            STOPS: Lists(span_ends, stops),
            WEIGHTS: Lists(span_ends, weights),
            "num_loss_tokens": count_by_row(starts, stops, span_ends).astype(np.int32),
            "content_hash": hashes_of(columns),
            "line": lines & LINE,
        }
        none = [None] * len(self._keep)
        rows = [self._kept.get(line, none) for line in (lines.tolist() if self._keep else ())]
        columns |= {name: pa.array([row[k] for row in rows], pa.string()) for k, name in enumerate(self._keep)}
        self.write_rows(to_batch(columns, schema), lines >> LINE_BITS)

    def write_rows(self, batch: pa.RecordBatch, slices: NDArray[np.int64]) -> None:
        """Append a record batch with all columns of the part, whose rows are of these slices, and count its rows."""
        self._open(RowColumns())[0].write_batch(batch)
        columns, is_item = columns_of(batch), self._columns.of_items
        tokens = np.diff(columns["input_ids"].offsets)
        flat = all_trees(columns).branch_lengths() if is_item else tokens
        self.num_branches += len(flat)
        self.num_flat_tokens += int(flat.sum())
        self._kinds += np.bincount(columns["item_kind"], minlength=len(KINDS)) if is_item else 0
        figures = np.ones_like(tokens), tokens, columns["num_loss_tokens"]
        np.add.at(self.of_slices, slices, np.stack(figures, axis=1))
        if self._columns.is_weighted:
            sums = (columns[STOPS].values - columns[STARTS].values) * columns[WEIGHTS].values.astype(np.float64)
            self.loss_weight = (self.loss_weight or 0.0) + float(sums.sum())

    def _open(self, needed: RowColumns) -> tuple[pa.RecordBatchWriter, pa.Schema]:
        """Open the writer of record batches, which all have the same columns."""
        columns = RowColumns(*map(or_, self._columns, needed))
        if self._writer is not None and columns != self._columns:
            raise LateColumnsError(columns)
        self._columns = columns
        schema = pa.schema([*columns.part(self._token_type), *(pa.field(name, pa.string()) for name in self._keep)])
        if self._writer is None:
            self._writer = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), schema)
        return self._writer, schema

    def close(self) -> None:
        """Write the remaining samples and the footer."""
        self._flush()
        self._open(RowColumns())[0].close()


def _loss_spans(
    batch: TokenBatch,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    """Find the spans of all samples: starts and stops (int32[s]) in their sample; the number of spans of each sample
    (int64[n]); and the weight of each span (float32[s], in no memory where all are 1). O(t).
    """
    begins, ends = batch.offsets[:-1], batch.offsets[1:]
    weights = None
    if batch.loss_mask is None:
        starts, stops = begins + 1, ends
        starts, stops = starts[starts < stops], stops[starts < stops]
    else:
        starts, stops, values = mask_to_spans(batch.loss_mask, batch.offsets)
        weights = values if values.dtype == np.float32 else None
    if weights is None:
        weights = np.broadcast_to(np.float32(1), len(starts))
    num_spans = np.diff(np.searchsorted(starts, batch.offsets))
    begin = np.repeat(begins, num_spans)
    return (starts - begin).astype(np.int32), (stops - begin).astype(np.int32), num_spans, weights


def join_items(each: Sequence[Items]) -> Items:
    """Join the items of several batches of samples, one after another.

    One branch to which no value belongs is a sample, as of a conversation with one turn; a group stays one.
    """
    offsets = offsets_of(np.concatenate([np.diff(items.offsets) for items in each]))
    kinds, roles, rewards = (
        np.concatenate([getattr(items, name) for items in each]) for name in ("kinds", "roles", "rewards")
    )
    values = {name: np.concatenate([items.values[name] for items in each]) for name in ITEM_VALUES}
    first = offsets[:-1]
    is_plain = (np.diff(offsets) == 1) & (kinds != GROUP) & np.isnan([rewards[first], *values.values()]).all(axis=0)
    roles[first[is_plain]], kinds[is_plain] = 0, SAMPLE
    return Items(offsets, kinds, roles, rewards, values)


def item_columns(branches: Lists, items: Items, num_spans: NDArray[np.int64], *, share_prefixes: bool) -> Columns:
    """Make the unique tokens of items, a list of each, and the columns that only parts with trees have. O(tokens).

    Args:
        branches: the ids of each.
        num_spans: int64[n]: loss spans of each.
    """
    from packer_cli.tokens.prefix_trees import NOTHING_SHARED, make_trees

    input_ids, trees = make_trees(branches, items.offsets, SHARE_FROM if share_prefixes else NOTHING_SHARED)
    return {
        "input_ids": input_ids,
        **trees,
        "branch_roles": Lists(items.offsets, items.roles),
        "branch_loss_spans": Lists(items.offsets, num_spans.astype(np.int32)),
        "rewards": Lists(items.offsets, items.rewards),
        "item_kind": items.kinds,
        **items.values,
    }
