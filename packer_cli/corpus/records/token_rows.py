"""Tokenized records to samples, checked and split, many at a time.

The loss comes from `labels` (-100 where there is none, else the token itself), or from masks of 0 and 1:
`loss_mask`, `assistant_masks`, `completion_mask`. Where several are given, a token counts if all say so.
Positions whose `attention_mask` is 0 are padding and are dropped. `weight`, a number, is that of all its tokens.

A packed row is split into its samples again, by `seq_lengths` (TRL), by `position_ids` that restart at 0 (Axolotl,
TRL), or by an `attention_mask` that counts the samples from 1 (Axolotl, LLaMA-Factory).

The answers of a tokenized preference pair become samples, whose loss begins with the answer. Without `prompt_ids`, the
answers are whole, and it begins where they differ: before, the better and the worse answer are equally likely.

Records are checked many at a time: 2 ns a token for arrays. JSON lists cost about 20 ns a token to become arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.ragged import common_prefix, join_arrays, join_samples
from packer_cli.corpus.records.base import BadRecordError, Shape, type_name
from packer_cli.corpus.records.weights import WEIGHT, WEIGHTS, read_weight
from packer_cli.corpus.types import Record, Reject, TokenBatch, TokenRows
from packer_cli.format.ragged import Lists, begins_run, owners

IDS, LABELS, PADDING, POSITIONS, LENGTHS = "input_ids", "labels", "attention_mask", "position_ids", "seq_lengths"
MASKS = ("loss_mask", "assistant_masks", "completion_mask")
COLUMNS = (IDS, LABELS, *MASKS, PADDING, POSITIONS, LENGTHS)
PAIR_IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
NO_BOOLEANS = (IDS, LABELS, POSITIONS, LENGTHS, *PAIR_IDS)
"""Columns in which True is not 1."""
NO_LOSS = -100
MAX_ID = 2**31 - 1


class TokenRecord(NamedTuple):
    """A tokenized record, or preference pair, to be read with others by `read_records`."""

    line: int
    record: Record
    values: dict[str, float] | None = None
    """Values that a pair brings; None: it is none."""


def parse(record: Record, line: int) -> TokenRecord:
    """Return the record itself, unless it has no ids."""
    if record[IDS] is None:
        raise BadRecordError(f'"{IDS}" must be an array of integers, this is null')
    return TokenRecord(line, record)


SHAPE = Shape(((IDS,),), (*COLUMNS[1:], *WEIGHTS), parse)


def read_records(records: Sequence[TokenRecord]) -> tuple[TokenBatch | None, list[Reject]]:
    """Read the samples and rejects of records whose columns are lists of Python integers, or arrays."""
    rejects: list[Reject] = []
    weights: dict[int, float] = {}
    by_columns: dict[tuple[str, ...], tuple[list[int], list[list[NDArray[Any]]]]] = {}
    for line, record, values in records:
        try:
            for sample in (record,) if values is None else _samples_of_pair(record):
                names = tuple(name for name in COLUMNS if sample.get(name) is not None)
                arrays = [integers(sample[name], name) for name in names]
                if not sample.keys().isdisjoint(WEIGHTS):
                    weights[line] = read_weight(sample, names=WEIGHTS)
                lines, rows = by_columns.setdefault(names, ([], []))
                lines.append(line)
                rows.append(arrays)
        except BadRecordError as error:
            rejects.append(Reject(line, str(error)))
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


def _samples_of_pair(record: Record) -> list[Record]:
    """Make a tokenized record of each answer of a preference pair, the better one first."""
    prompt, chosen, rejected = (_ids(record, name) for name in PAIR_IDS)
    border, weight = len(prompt), read_weight(record)
    if record.get(PAIR_IDS[0]) is None:
        border = min(common_prefix(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    samples = (np.concatenate([prompt, answer]) for answer in (chosen, rejected))
    return [{IDS: ids, MASKS[0]: (np.arange(len(ids)) >= border).astype(np.int8), WEIGHT: weight} for ids in samples]


def _ids(record: Record, name: str) -> NDArray[np.int64]:
    """Read the ids of a part; raises BadRecordError. A prompt may be missing, or empty."""
    is_prompt = name == PAIR_IDS[0]
    if is_prompt and record.get(name) is None:
        return np.zeros(0, dtype=np.int64)
    ids = integers(record[name], name)
    if not len(ids) and not is_prompt:
        raise BadRecordError(f'"{name}" is empty')
    wrong = np.flatnonzero((ids < 0) | (ids > MAX_ID))
    if len(wrong):
        raise BadRecordError(f"{name}[{wrong[0]}] is {ids[wrong[0]]}; an id must be in 0..{MAX_ID}")
    return ids.astype(np.int64)


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


def read_rows(rows: TokenRows) -> tuple[TokenBatch, list[Reject]]:
    """Read samples of tokenized records, and why others give none; ids are checked for sign and 31 bits. O(tokens)."""
    left = Left(rows)
    _check_lengths(left)
    mask = _check_tokens(left)
    batch = _split(left, mask, find_samples(left))
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
    """Refuse rows with values that cannot be; gives the loss mask (bool[t]), None for all."""
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
    return None if mask is None or mask.all() else mask


def _split(left: Left, mask: NDArray[np.bool_] | None, sample: NDArray[np.int64] | None) -> TokenBatch:
    """Split the rows that are not refused into their samples, see `find_samples`."""
    offsets, ids = left.columns[IDS]
    refused = left.refused
    if sample is None and not refused.any():
        return TokenBatch(left.lines, offsets, ids, mask)
    row = owners(np.diff(offsets))
    sample = row if sample is None else sample
    kept = np.flatnonzero((sample >= 0) & ~refused[row])
    row, sample = row[kept], sample[kept]
    starts = np.flatnonzero(begins_run(row, sample))
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
    row_of = owners(np.diff(offsets))[real]
    if LENGTHS in columns:
        lengths = columns[LENGTHS].values.astype(np.int64)
        given[LENGTHS] = owners(lengths)[real]
    if POSITIONS in columns:
        given[POSITIONS] = _check_positions(left, columns[POSITIONS].values, real, row_of)
    if PADDING in columns:
        given[PADDING] = _check_counts(left, padding, real, row_of)
    (name, sample), *others = given.items()
    begins = begins_run(row_of, sample)
    for other, numbers in others:
        differs = begins_run(row_of, numbers) != begins
        if other == PADDING:  # An ordinary mask says nothing about samples.
            differs &= np.isin(row_of, row_of[numbers > 1])
        for row, _, i in left.firsts(real[differs]):
            left.refuse(row, f'"{name}" and "{other}" disagree on whether a sample begins at {IDS}[{i}]')
    samples = np.full(num_tokens, -1, np.int64)
    samples[real] = sample
    return samples


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
    return np.where(begins_run(row), at_start, before)


class Left:
    """The rows of tokenized records that are left."""

    def __init__(self, rows: TokenRows) -> None:
        self.lines, self.columns = rows.lines, rows.columns
        self._reasons: dict[int, str] = {}
        self._dropped: list[Reject] = []

    @property
    def refused(self) -> NDArray[np.bool_]:
        """bool[k]: whether a row was refused since `drop`."""
        found = np.zeros(len(self.lines), np.bool_)
        found[list(self._reasons)] = True
        return found

    def refuse(self, row: int, reason: str) -> None:
        """Refuse a row; its first reason counts."""
        self._reasons.setdefault(row, reason)

    def firsts(self, tokens: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """Yield each row that holds some of these tokens (rising), the first of them, and its place in the row."""
        offsets = self.columns[IDS].offsets
        rows, first = np.unique(np.searchsorted(offsets, tokens, side="right") - 1, return_index=True)
        for row, at in zip(rows.tolist(), tokens[first].tolist(), strict=True):
            yield row, at, at - int(offsets[row])

    def drop(self) -> None:
        """Leave out the rows that were refused."""
        if not self._reasons:
            return
        left = np.flatnonzero(~self.refused)
        self._dropped = self.rejects()
        self._reasons.clear()
        self.lines = self.lines[left]
        self.columns = {name: lists.take(left) for name, lists in self.columns.items()}

    def rejects(self) -> list[Reject]:
        """List the rows that were refused, in order."""
        refused = [Reject(int(self.lines[row]), reason) for row, reason in self._reasons.items()]
        return sorted(self._dropped + refused, key=lambda reject: reject.line)
