"""Columns of tokenized records -> samples: lengths, ids, labels and masks are checked, packed rows split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer_cli.corpus.records.tokens.borders import changes, find_samples
from packer_cli.corpus.records.tokens.columns import IDS, LABELS, LENGTHS, MASKS, MAX_ID, NO_LOSS
from packer_cli.corpus.records.tokens.refusals import Left
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
            lambda at, i: f"{IDS}[{i}] is {ids[at]}; an id lies in 0..{MAX_ID}",
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
