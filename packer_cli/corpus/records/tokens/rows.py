"""Columns of tokenized records -> samples: lengths, ids, labels and masks are checked, packed rows split."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from packer_cli.corpus.ragged import take
from packer_cli.corpus.records.tokens.columns import IDS, LABELS, LENGTHS, MASKS, MAX_ID, NO_LOSS, PADDING, POSITIONS
from packer_cli.corpus.types import Lists, Reject, TokenBatch, TokenRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOSS = "loss"


def read_rows(rows: TokenRows) -> tuple[TokenBatch, list[Reject]]:
    """The samples of tokenized records, and why others give none; ids are checked for sign and 31 bits. O(tokens)."""
    left = Left(rows)
    _check_lengths(left)
    mask = _check_tokens(left)
    batch = _split(left, mask)
    return batch, left.rejects()


def _check_lengths(left: Left) -> None:
    """Refuse rows whose columns do not fit together; those left share their offsets."""
    import numpy as np

    lengths = np.diff(left.columns[IDS].offsets)
    left.refuse(lengths == 0, lambda row: f'"{IDS}" is empty')
    for name, lists in left.columns.items():
        if name == LENGTHS:
            _check_sums(left, lists, lengths)
        else:
            _check_same(left, name, np.diff(lists.offsets), lengths)
    left.drop()


def _check_same(left: Left, name: str, found: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    left.refuse(
        found != lengths,
        lambda row: f'"{name}" has {found[row]} entries but "{IDS}" has {lengths[row]}; they must be equal',
    )


def _check_sums(left: Left, lists: Lists, lengths: NDArray[np.int64]) -> None:
    import numpy as np

    fits = (lists.values > 0) & (lists.values <= np.repeat(lengths, np.diff(lists.offsets)))
    ends = np.concatenate([[0], np.cumsum(np.where(fits, lists.values, 0), dtype=np.int64)])
    wrong = np.diff(ends[lists.offsets]) != lengths
    wrong[np.searchsorted(lists.offsets, np.flatnonzero(~fits), side="right") - 1] = True
    left.refuse(wrong, lambda row: f'"{LENGTHS}" must be above 0 and add up to the {lengths[row]} entries of "{IDS}"')


def _check_tokens(left: Left) -> NDArray[np.bool_] | None:
    """Refuse rows with values that cannot be; gives the loss mask (bool[t]) of those left, None for all."""
    import numpy as np

    ids = left.columns[IDS].values
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > MAX_ID):
        left.refuse_tokens(
            np.flatnonzero((ids < 0) | (ids > MAX_ID)),
            lambda at, i: f"{IDS}[{i}] is {ids[at]}; an id must be in 0..{MAX_ID}",
        )
    mask: NDArray[np.bool_] | None = None
    if LABELS in left.columns:
        labels = left.columns[LABELS].values
        mask = labels != NO_LOSS
        left.refuse_tokens(
            np.flatnonzero(mask & (labels != ids)),
            lambda at, i: (
                f"{LABELS}[{i}] is {labels[at]} but {IDS}[{i}] is {ids[at]}; "
                "a label must be its own token, or -100 for no loss"
            ),
        )
    for name in MASKS:
        if name in left.columns:
            values = left.columns[name].values
            _check_mask(left, name, values)
            mask = values == 1 if mask is None else mask & (values == 1)
    if mask is None or mask.all():
        left.drop()
        return None
    left.columns = {**left.columns, _LOSS: Lists(left.columns[IDS].offsets, mask)}
    left.drop()
    return left.columns[_LOSS].values


def _check_mask(left: Left, name: str, values: NDArray[Any]) -> None:
    import numpy as np

    left.refuse_tokens(
        np.flatnonzero((values != 0) & (values != 1)),
        lambda at, i: f"{name}[{i}] is {values[at]}; a mask holds only 0 and 1",
    )


def _split(left: Left, mask: NDArray[np.bool_] | None) -> TokenBatch:
    """The samples of the rows that are left."""
    import numpy as np

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
    """int64[t]: numbers that change where a sample ends in its row, -1 for padding; None: each row is a sample.

    Refuses rows whose columns contradict themselves or each other.
    """
    import numpy as np

    columns, offsets = left.columns, left.columns[IDS].offsets
    num_tokens = int(offsets[-1])
    if not num_tokens or not columns.keys() & {PADDING, POSITIONS, LENGTHS}:
        return None
    real = np.arange(num_tokens)
    given: dict[str, NDArray[np.int64]] = {}
    """By column: a number for the sample of each real token."""
    if PADDING in columns:
        padding = columns[PADDING].values.astype(np.int64)
        left.refuse(
            ~np.logical_or.reduceat(padding != 0, offsets[:-1]),
            lambda row: f'"{PADDING}" is all zeros: the record is nothing but padding',
        )
        real = np.flatnonzero(padding)
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[real]
    if LENGTHS in columns:
        lengths = columns[LENGTHS].values.astype(np.int64)
        given[LENGTHS] = np.repeat(np.arange(len(lengths)), lengths)[real]
    if POSITIONS in columns:
        given[POSITIONS] = _check_positions(left, columns[POSITIONS].values, real, row)
    if PADDING in columns:
        given[PADDING] = _check_counts(left, padding, real, row)
    (name, sample), *others = given.items()
    begins = changes(row) | changes(sample)
    for other, numbers in others:
        differs = (changes(row) | changes(numbers)) != begins
        if other == PADDING:  # An ordinary mask says nothing about samples.
            differs &= np.isin(row, row[numbers > 1])
        _check_agree(left, name, other, real[differs])
    samples = np.full(num_tokens, -1, np.int64)
    samples[real] = sample
    return samples


def changes(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[t]: whether each differs from the one before."""
    import numpy as np

    differs = np.ones(len(numbers), np.bool_)
    differs[1:] = numbers[1:] != numbers[:-1]
    return differs


def _check_agree(left: Left, name: str, other: str, differs: NDArray[np.int64]) -> None:
    left.refuse_tokens(
        differs, lambda at, i: f'"{name}" and "{other}" disagree on whether a sample begins at {IDS}[{i}]'
    )


def _check_counts(
    left: Left, padding: NDArray[np.int64], real: NDArray[np.int64], row: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The `attention_mask` of the real tokens; refuses rows where it does not count up from 1."""
    counts = padding[real]
    before = _before(counts, row, 0)
    wrong = (counts != before + 1) & ((counts != before) | (before == 0))
    left.refuse_tokens(
        real[wrong],
        lambda at, i: (
            f"{PADDING}[{i}] is {padding[at]}; it is 0 for padding and 1 for tokens, or counts the "
            "samples of a packed row from 1"
        ),
    )
    return counts


def _check_positions(
    left: Left, positions: NDArray[Any], real: NDArray[np.int64], row: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for the sample of each real token; refuses rows whose `position_ids` do not count up."""
    import numpy as np

    values = positions[real].astype(np.int64)
    left.refuse_tokens(
        real[(values != 0) & (values != _before(values, row, -1) + 1)],
        lambda at, i: f"{POSITIONS}[{i}] is {positions[at]}; positions count up by 1, from 0 in each sample",
    )
    return np.cumsum(values == 0)


def _before(values: NDArray[np.int64], row: NDArray[np.int64], at_start: int) -> NDArray[np.int64]:
    """int64[t]: the value before each in its row."""
    import numpy as np

    before = np.concatenate([[at_start], values[:-1]])
    return np.where(changes(row), at_start, before)


class Left:
    """The rows of tokenized records that are left."""

    def __init__(self, rows: TokenRows) -> None:
        import numpy as np

        self.columns = rows.columns
        """Those of the rows that are left."""
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
        import numpy as np

        return np.isin(self.row, list(self._reasons))

    def refuse(self, wrong: NDArray[np.bool_], say: Callable[[int], str]) -> None:
        """Refuse rows (bool[k]); the first reason of a row counts."""
        import numpy as np

        for row in np.flatnonzero(wrong).tolist():
            self._reasons.setdefault(int(self.row[row]), say(row))

    def refuse_tokens(self, wrong: NDArray[np.int64], say: Callable[[int, int], str]) -> None:
        """Refuse the rows of these tokens (rising); `say` gets the first one of a row, and its place in the row."""
        import numpy as np

        if not len(wrong):
            return
        offsets = self.columns[IDS].offsets
        rows, first = np.unique(np.searchsorted(offsets, wrong, side="right") - 1, return_index=True)
        for row, at in zip(rows.tolist(), wrong[first].tolist(), strict=True):
            self._reasons.setdefault(int(self.row[row]), say(at, at - int(offsets[row])))

    def drop(self) -> None:
        """Leave out the rows that were refused."""
        import numpy as np

        is_left = ~self.refused if self._reasons else None
        if is_left is None or is_left.all():
            return
        left = np.flatnonzero(is_left)
        self.row = self.row[left]
        self.columns = {name: take(lists, left) for name, lists in self.columns.items()}

    def rejects(self) -> list[Reject]:
        """The rows that were refused, in order."""
        return [Reject(int(self._lines[row]), self._reasons[row]) for row in sorted(self._reasons)]
