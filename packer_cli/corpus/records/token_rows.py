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
from collections.abc import Mapping, Sequence
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
NUM_IDS = 2**31
"""Ids that any tokenizer may have: 0 to this, less 1."""


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


def read_records(records: Sequence[TokenRecord], num_ids: int = NUM_IDS) -> tuple[TokenBatch | None, list[Reject]]:
    """Read the samples and rejects of records whose columns are lists of Python integers, or arrays.

    Args:
        num_ids: of the tokenizer.
    """
    rejects: list[Reject] = []
    weights: dict[int, float] = {}
    by_columns: dict[tuple[str, ...], tuple[list[int], list[list[NDArray[Any]]]]] = {}
    for line, record, values in records:
        try:
            for sample in (record,) if values is None else _samples_of_pair(record, num_ids):
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
        batch, refused = read_rows(TokenRows(np.array(lines, dtype=np.int64), columns), num_ids)
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


def _samples_of_pair(record: Record, num_ids: int) -> list[Record]:
    """Make a tokenized record of each answer of a preference pair, the better one first."""
    prompt, chosen, rejected = (_ids(record, name, num_ids) for name in PAIR_IDS)
    border, weight = len(prompt), read_weight(record)
    if record.get(PAIR_IDS[0]) is None:
        border = min(common_prefix(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    samples = (np.concatenate([prompt, answer]) for answer in (chosen, rejected))
    return [{IDS: ids, MASKS[0]: (np.arange(len(ids)) >= border).astype(np.int8), WEIGHT: weight} for ids in samples]


def _ids(record: Record, name: str, num_ids: int) -> NDArray[np.int64]:
    """Read the ids of a part; raises BadRecordError. A prompt may be missing, or empty."""
    is_prompt = name == PAIR_IDS[0]
    if is_prompt and record.get(name) is None:
        return np.zeros(0, dtype=np.int64)
    ids = integers(record[name], name)
    if not len(ids) and not is_prompt:
        raise BadRecordError(f'"{name}" is empty')
    _require(name, ids, (ids >= 0) & (ids < num_ids), _rule(num_ids))
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


def read_rows(rows: TokenRows, num_ids: int = NUM_IDS) -> tuple[TokenBatch, list[Reject]]:
    """Read samples of tokenized records with a tokenizer of so many ids, and why others give none.

    If one is wrong, each half is read alone, and so on, until that record is alone. O(tokens), of each wrong record
    O(log n) times.
    """
    num = len(rows.lines)
    try:
        return _read(rows, num_ids), []
    except BadRecordError as error:
        if num == 1:
            return _read(rows.part(0, 0), num_ids), [Reject(int(rows.lines[0]), str(error))]
    halves = [read_rows(rows.part(start, stop), num_ids) for start, stop in ((0, num // 2), (num // 2, num))]
    return join_samples([batch for batch, _ in halves]), [reject for _, rejects in halves for reject in rejects]


def _read(rows: TokenRows, num_ids: int) -> TokenBatch:
    """Read samples of tokenized records.

    Raises:
        BadRecordError: one is wrong; with its reason if it is the only one.
    """
    lengths = _check_lengths(rows.columns)
    mask, sample = _check_tokens(rows.columns), find_samples(rows.columns)
    offsets, ids = rows.columns[IDS]
    if sample is None:
        _require(IDS, ids, ids < num_ids, _rule(num_ids))
        return TokenBatch(rows.lines, offsets, ids, mask)
    kept = np.flatnonzero(sample >= 0)
    _require(IDS, ids, ids[kept] < num_ids, _rule(num_ids), kept)  # Those of padding are not used.
    row = owners(lengths)[kept]
    starts = np.flatnonzero(begins_run(row, sample[kept]))
    mask = None if mask is None else mask[kept]
    return TokenBatch(rows.lines[row[starts]], np.append(starts, len(kept)), ids[kept], mask)


def _rule(num_ids: int) -> str:
    return f"the tokenizer's ids are 0 to {num_ids - 1}" if num_ids < NUM_IDS else f"an id must be in 0..{NUM_IDS - 1}"


def _check_lengths(columns: Mapping[str, Lists]) -> NDArray[np.int64]:
    """Refuse records whose columns do not fit together; return the number of ids of each."""
    lengths = np.diff(columns[IDS].offsets)
    if not lengths.all():
        raise BadRecordError(f'"{IDS}" is empty')
    for name, (offsets, values) in columns.items():
        num = np.diff(offsets)
        if name == LENGTHS:
            fits = (values > 0) & (values <= np.repeat(lengths, num))
            ends = np.append(0, np.cumsum(np.where(fits, values, 0), dtype=np.int64))
            if not fits.all() or (np.diff(ends[offsets]) != lengths).any():
                raise BadRecordError(f'"{LENGTHS}" must be above 0 and add up to the {lengths[0]} entries of "{IDS}"')
        elif (num != lengths).any():
            raise BadRecordError(f'"{name}" has {num[0]} entries but "{IDS}" has {lengths[0]}; they must be equal')
    return lengths


def _check_tokens(columns: Mapping[str, Lists]) -> NDArray[np.bool_] | None:
    """Refuse values that cannot be; return the loss mask (bool[t]), None for all."""
    ids = columns[IDS].values
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= NUM_IDS):
        _require(IDS, ids, (ids >= 0) & (ids < NUM_IDS), _rule(NUM_IDS))
    mask: NDArray[np.bool_] | None = None
    if LABELS in columns:
        labels = columns[LABELS].values
        mask = labels != NO_LOSS
        for i in np.flatnonzero(mask & (labels != ids))[:1].tolist():
            what = f"{LABELS}[{i}] is {labels[i]} but {IDS}[{i}] is {ids[i]}"
            raise BadRecordError(f"{what}; a label must be its own token, or -100 for no loss")
    for name in MASKS:
        if name in columns:
            values = columns[name].values
            _require(name, values, (values == 0) | (values == 1), "a mask holds only 0 and 1")
            mask = values == 1 if mask is None else mask & (values == 1)
    return None if mask is None or mask.all() else mask


def _require(
    name: str, values: NDArray[Any], is_right: NDArray[np.bool_], rule: str, at: NDArray[np.int64] | None = None
) -> None:
    """Refuse the first value that is wrong.

    Args:
        is_right: bool[k]: whether values are.
        at: int64[k]: their places; None: all.
    """
    if not is_right.all():
        i = is_right.argmin()
        i = i if at is None else at[i]
        raise BadRecordError(f"{name}[{i}] is {values[i]}; {rule}")


def find_samples(columns: Mapping[str, Lists]) -> NDArray[np.int64] | None:
    """Give tokens numbers (int64[t]) that change where a sample ends in its row; -1: padding. None: each row is one.

    Refuses rows whose columns contradict themselves or each other.
    """
    offsets = columns[IDS].offsets
    num_tokens = int(offsets[-1])
    if not num_tokens or not columns.keys() & {PADDING, POSITIONS, LENGTHS}:
        return None
    real = np.arange(num_tokens)
    given: dict[str, NDArray[np.int64]] = {}
    """By column: a number for the sample of each real token."""
    if PADDING in columns:
        padding = columns[PADDING].values.astype(np.int64)
        if not np.logical_or.reduceat(padding != 0, offsets[:-1]).all():
            raise BadRecordError(f'"{PADDING}" is all zeros: the record is nothing but padding')
        real = np.flatnonzero(padding)
    row_of = owners(np.diff(offsets))[real]
    if LENGTHS in columns:
        given[LENGTHS] = owners(columns[LENGTHS].values.astype(np.int64))[real]
    if POSITIONS in columns:
        positions = columns[POSITIONS].values[real].astype(np.int64)
        counts_up = (positions == 0) | (positions == _before(positions, row_of, -1) + 1)
        _require(
            POSITIONS, columns[POSITIONS].values, counts_up, "positions count up by 1, from 0 in each sample", real
        )
        given[POSITIONS] = np.cumsum(positions == 0)
    if PADDING in columns:
        counts = given[PADDING] = padding[real]
        before = _before(counts, row_of, 0)
        counts_up = (counts == before + 1) | ((counts == before) & (before != 0))
        rule = "it is 0 for padding and 1 for tokens, or counts the samples of a packed row from 1"
        _require(PADDING, padding, counts_up, rule, real)
    (name, sample), *others = given.items()
    begins = begins_run(row_of, sample)
    for other, numbers in others:
        differs = begins_run(row_of, numbers) != begins
        if other == PADDING:  # An ordinary mask says nothing about samples.
            differs &= np.isin(row_of, row_of[numbers > 1])
        for i in real[differs][:1].tolist():
            raise BadRecordError(f'"{name}" and "{other}" disagree on whether a sample begins at {IDS}[{i}]')
    samples = np.full(num_tokens, -1, np.int64)
    samples[real] = sample
    return samples


def _before(values: NDArray[np.int64], row: NDArray[np.int64], at_start: int) -> NDArray[np.int64]:
    """Return the value before each in its row, int64[t]."""
    before = np.concatenate([[at_start], values[:-1]])
    return np.where(begins_run(row), at_start, before)
