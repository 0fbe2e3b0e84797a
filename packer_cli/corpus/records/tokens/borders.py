"""Where the samples of a packed row begin, and which of its tokens are padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer_cli.corpus.records.tokens.columns import IDS, LENGTHS, PADDING, POSITIONS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer_cli.corpus.records.tokens.refusals import Left


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
