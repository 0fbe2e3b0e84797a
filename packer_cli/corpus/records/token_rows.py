"""Tokenized records to samples, checked and split, many at a time.

The loss comes from `labels` (-100 where there is none, else the token itself), or from masks of 0 and 1:
`loss_mask`, `assistant_masks`, `completion_mask`. Where several are given, a token counts if all say so.
Positions whose `attention_mask` is 0 are padding and are dropped. `weight`, a number, is that of all its tokens.

A packed row is split into its samples again, by `seq_lengths` (TRL), by `position_ids` that restart at 0 (Axolotl,
TRL), or by an `attention_mask` that counts the samples from 1 (Axolotl, LLaMA-Factory).

Records are checked many at a time: 2 ns a token for arrays. JSON lists cost about 20 ns a token to become arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.ragged import join_arrays, join_samples
from packer_cli.corpus.records.base import BadRecordError, type_name
from packer_cli.corpus.records.tokens import (
    COLUMNS,
    IDS,
    LABELS,
    LENGTHS,
    MASKS,
    NO_BOOLEANS,
    PADDING,
    POSITIONS,
    TokenRecord,
)
from packer_cli.corpus.records.weights import WEIGHTS, read_weight
from packer_cli.corpus.types import Reject, TokenBatch, TokenRows
from packer_cli.format.arrays import Lists

NO_LOSS = -100
MAX_ID = 2**31 - 1


def read_records(records: Sequence[TokenRecord]) -> tuple[TokenBatch | None, list[Reject]]:
    """Read the samples and rejects of records whose columns are lists of Python integers, or arrays."""
    rejects: list[Reject] = []
    weights: dict[int, float] = {}
    by_columns: dict[tuple[str, ...], tuple[list[int], list[list[NDArray[Any]]]]] = {}
    for line, record, _ in records:
        names = tuple(name for name in COLUMNS if record.get(name) is not None)
        try:
            arrays = [integers(record[name], name) for name in names]
            if not record.keys().isdisjoint(WEIGHTS):
                weights[line] = read_weight(record, names=WEIGHTS)
        except BadRecordError as error:
            rejects.append(Reject(line, str(error)))
            continue
        lines, rows = by_columns.setdefault(names, ([], []))
        lines.append(line)
        rows.append(arrays)
    batches: list[TokenBatch] = []
    for names, (lines, rows) in by_columns.items():
        columns = {name: join_arrays([row[i] for row in rows]) for i, name in enumerate(names)}
        batch, refused = read_rows(TokenRows(np.array(lines, dtype=np.int64), columns))
        batches.append(_with_weights(batch, weights) if weights else batch)
        rejects += refused
    return (join_samples(batches) if batches else None), rejects


def _with_weights(batch: TokenBatch, weights: dict[int, float]) -> TokenBatch:
    """Give samples the weights of their lines in the loss, which are 1 unless given."""
    weight = np.array([weights.get(line, 1.0) for line in batch.lines.tolist()], dtype=np.float32)
    if (weight == 1).all():
        return batch
    of_token = np.repeat(weight, np.diff(batch.offsets))
    mask = of_token if batch.loss_mask is None else of_token * batch.loss_mask
    is_mask = ((weight == 0) | (weight == 1)).all()
    return batch._replace(loss_mask=mask > 0 if is_mask else mask, weight=weight)


def integers(value: Any, name: str) -> NDArray[Any]:
    """Return `value` as an array of integers or booleans; raises BadRecordError with a reason if it is not one."""
    if isinstance(value, list):
        try:
            found = np.asarray(array("q", value))
        except OverflowError:
            raise BadRecordError(f'"{name}" holds an integer beyond 64 bits') from None
        except TypeError:
            raise _not_integer(value, name) from None
        if name in NO_BOOLEANS:  # They pass for 0 and 1.
            for index in np.flatnonzero((found == 0) | (found == 1)).tolist():
                if type(value[index]) is bool:
                    raise _not_integer(value, name)
        return found
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iub":
        if value.dtype.kind == "b" and name in NO_BOOLEANS and len(value):
            raise _not_integer(value.tolist(), name)
        return value
    raise BadRecordError(f'"{name}" must be an array of integers, this is {type_name(value)}')


def _not_integer(value: list[Any], name: str) -> BadRecordError:
    kinds = (int,) if name in NO_BOOLEANS else (int, bool)
    index = next(index for index, entry in enumerate(value) if type(entry) not in kinds)
    return BadRecordError(f"{name}[{index}] must be an integer, this is {type_name(value[index])}")


_LOSS = "loss"


def read_rows(rows: TokenRows) -> tuple[TokenBatch, list[Reject]]:
    """Read samples of tokenized records, and why others give none; ids are checked for sign and 31 bits. O(tokens)."""
    left = Left(rows)
    _check_lengths(left)
    mask = _check_tokens(left)
    batch = _split(left, mask)
    return batch, left.rejects()


def _check_lengths(left: Left) -> None:
    """Refuse rows whose columns do not fit together; those left share their offsets."""
    lengths = np.diff(left.columns[IDS].offsets)
    for row in np.flatnonzero(lengths == 0).tolist():
        left.refuse(row, f'"{IDS}" is empty')
    for name, lists in left.columns.items():
        if name == LENGTHS:
            _check_sums(left, lists, lengths)
            continue
        found = np.diff(lists.offsets)
        for row in np.flatnonzero(found != lengths).tolist():
            left.refuse(row, f'"{name}" has {found[row]} entries but "{IDS}" has {lengths[row]}; they must be equal')
    left.drop()


def _check_sums(left: Left, lists: Lists, lengths: NDArray[np.int64]) -> None:
    fits = (lists.values > 0) & (lists.values <= np.repeat(lengths, np.diff(lists.offsets)))
    ends = np.concatenate([[0], np.cumsum(np.where(fits, lists.values, 0), dtype=np.int64)])
    wrong = np.diff(ends[lists.offsets]) != lengths
    wrong[np.searchsorted(lists.offsets, np.flatnonzero(~fits), side="right") - 1] = True
    for row in np.flatnonzero(wrong).tolist():
        left.refuse(row, f'"{LENGTHS}" must be above 0 and add up to the {lengths[row]} entries of "{IDS}"')


def _check_tokens(left: Left) -> NDArray[np.bool_] | None:
    """Refuse rows with values that cannot be; gives the loss mask (bool[t]) of those left, None for all."""
    ids = left.columns[IDS].values
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > MAX_ID):
        for row, at, i in left.firsts(np.flatnonzero((ids < 0) | (ids > MAX_ID))):
            left.refuse(row, f"{IDS}[{i}] is {ids[at]}; an id must be in 0..{MAX_ID}")
    mask: NDArray[np.bool_] | None = None
    if LABELS in left.columns:
        labels = left.columns[LABELS].values
        mask = labels != NO_LOSS
        for row, at, i in left.firsts(np.flatnonzero(mask & (labels != ids))):
            what = f"{LABELS}[{i}] is {labels[at]} but {IDS}[{i}] is {ids[at]}"
            left.refuse(row, f"{what}; a label must be its own token, or -100 for no loss")
    for name in MASKS:
        if name in left.columns:
            values = left.columns[name].values
            for row, at, i in left.firsts(np.flatnonzero((values != 0) & (values != 1))):
                left.refuse(row, f"{name}[{i}] is {values[at]}; a mask holds only 0 and 1")
            mask = values == 1 if mask is None else mask & (values == 1)
    if mask is None or mask.all():
        left.drop()
        return None
    left.columns = {**left.columns, _LOSS: Lists(left.columns[IDS].offsets, mask)}
    left.drop()
    return left.columns[_LOSS].values


def _split(left: Left, mask: NDArray[np.bool_] | None) -> TokenBatch:
    """Split the rows that are left into their samples."""
    offsets, ids = left.columns[IDS]
    sample = find_samples(left)
    if sample is None:
        return TokenBatch(left.lines, offsets, ids, mask)
    row = np.repeat(np.arange(len(left.row)), np.diff(offsets))
    kept = np.flatnonzero((sample >= 0) & ~left.refused[row])
    row, sample = row[kept], sample[kept]
    starts = np.flatnonzero(changes(row) | changes(sample))
    return TokenBatch(
        left.lines[row[starts]],
        np.append(starts, len(kept)),
        ids[kept],
        None if mask is None else mask[kept],
    )


def find_samples(left: Left) -> NDArray[np.int64] | None:
    """Give tokens numbers (int64[t]) that change where a sample ends in its row; -1: padding. None: each row is one.

    Refuses rows whose columns contradict themselves or each other.
    """
    columns, offsets = left.columns, left.columns[IDS].offsets
    num_tokens = int(offsets[-1])
    if not num_tokens or not columns.keys() & {PADDING, POSITIONS, LENGTHS}:
        return None
    real = np.arange(num_tokens)
    given: dict[str, NDArray[np.int64]] = {}
    """By column: a number for the sample of each real token."""
    if PADDING in columns:
        padding = columns[PADDING].values.astype(np.int64)
        for row in np.flatnonzero(~np.logical_or.reduceat(padding != 0, offsets[:-1])).tolist():
            left.refuse(row, f'"{PADDING}" is all zeros: the record is nothing but padding')
        real = np.flatnonzero(padding)
    row_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[real]
    if LENGTHS in columns:
        lengths = columns[LENGTHS].values.astype(np.int64)
        given[LENGTHS] = np.repeat(np.arange(len(lengths)), lengths)[real]
    if POSITIONS in columns:
        given[POSITIONS] = _check_positions(left, columns[POSITIONS].values, real, row_of)
    if PADDING in columns:
        given[PADDING] = _check_counts(left, padding, real, row_of)
    (name, sample), *others = given.items()
    begins = changes(row_of) | changes(sample)
    for other, numbers in others:
        differs = (changes(row_of) | changes(numbers)) != begins
        if other == PADDING:  # An ordinary mask says nothing about samples.
            differs &= np.isin(row_of, row_of[numbers > 1])
        for row, _, i in left.firsts(real[differs]):
            left.refuse(row, f'"{name}" and "{other}" disagree on whether a sample begins at {IDS}[{i}]')
    samples = np.full(num_tokens, -1, np.int64)
    samples[real] = sample
    return samples


def changes(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark each number (bool[t]) that differs from the one before."""
    differs = np.ones(len(numbers), np.bool_)
    differs[1:] = numbers[1:] != numbers[:-1]
    return differs


def _check_counts(
    left: Left, padding: NDArray[np.int64], real: NDArray[np.int64], row_of: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the `attention_mask` of the real tokens; refuse rows where it does not count up from 1."""
    counts = padding[real]
    before = _before(counts, row_of, 0)
    wrong = (counts != before + 1) & ((counts != before) | (before == 0))
    rule = "it is 0 for padding and 1 for tokens, or counts the samples of a packed row from 1"
    for row, at, i in left.firsts(real[wrong]):
        left.refuse(row, f"{PADDING}[{i}] is {padding[at]}; {rule}")
    return counts


def _check_positions(
    left: Left, positions: NDArray[Any], real: NDArray[np.int64], row_of: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give each real token the number of its sample; refuse rows whose `position_ids` do not count up."""
    values = positions[real].astype(np.int64)
    for row, at, i in left.firsts(real[(values != 0) & (values != _before(values, row_of, -1) + 1)]):
        left.refuse(row, f"{POSITIONS}[{i}] is {positions[at]}; positions count up by 1, from 0 in each sample")
    return np.cumsum(values == 0)


def _before(values: NDArray[np.int64], row: NDArray[np.int64], at_start: int) -> NDArray[np.int64]:
    """Return the value before each in its row, int64[t]."""
    before = np.concatenate([[at_start], values[:-1]])
    return np.where(changes(row), at_start, before)


class Left:
    """The rows of tokenized records that are left."""

    def __init__(self, rows: TokenRows) -> None:
        self.columns = rows.columns
        """Columns of the rows that are left."""
        self.row = np.arange(len(rows.lines))
        """int64[k]: which of the given rows are left."""
        self._lines = rows.lines
        self._reasons: dict[int, str] = {}

    @property
    def lines(self) -> NDArray[np.int64]:
        """int64[k]: of the rows that are left."""
        return self._lines[self.row]

    @property
    def refused(self) -> NDArray[np.bool_]:
        """bool[k]: whether a row was refused since the last `drop`."""
        return np.isin(self.row, list(self._reasons))

    def refuse(self, row: int, reason: str) -> None:
        """Refuse a row; its first reason counts."""
        self._reasons.setdefault(int(self.row[row]), reason)

    def firsts(self, tokens: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """Yield each row that holds some of these tokens (rising), the first of them, and its place in the row."""
        offsets = self.columns[IDS].offsets
        rows, first = np.unique(np.searchsorted(offsets, tokens, side="right") - 1, return_index=True)
        for row, at in zip(rows.tolist(), tokens[first].tolist(), strict=True):
            yield row, at, at - int(offsets[row])

    def drop(self) -> None:
        """Leave out the rows that were refused."""
        is_left = ~self.refused if self._reasons else None
        if is_left is None or is_left.all():
            return
        left = np.flatnonzero(is_left)
        self.row = self.row[left]
        self.columns = {name: lists.take(left) for name, lists in self.columns.items()}

    def rejects(self) -> list[Reject]:
        """List the rows that were refused, in order."""
        return [Reject(int(self._lines[row]), self._reasons[row]) for row in sorted(self._reasons)]
