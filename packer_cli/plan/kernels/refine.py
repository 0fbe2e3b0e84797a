"""Refine: exchange samples between the packs of one iteration until their work is even (`plan.core.cost`).

Sorting (HBP, algorithm 7) puts packs of nearly equal work into an iteration; this module reduces the remaining
difference. The heaviest pack gives work to a lighter one by exchanges that keep both within capacity, see `exchange`.
An iteration is done when its heaviest pack has at most the mean work or that of the iteration's longest sample, or is
close to the bound that `bounds.least_max_work` proves.

Our own; the neighborhood is that of pairwise-interchange heuristics for number partitioning. Price: O(samples) for
even iterations; an exchange costs O(samples of two packs), and an iteration takes a few of them per pack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.bounds import least_max_work
from packer_cli.plan.core.groups import UNLIMITED
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.exchange import MOST_TRIES, TOLERANCE, Rows, exchange_until

_HOPELESS = 0.1
"""If the least possible work exceeds the mean by this share, only an eighth of the tries is made."""
_GROWTH, _ITEM_GROWTH = 8, 2
"""A pack may grow to this many times the samples of the iteration's largest pack, or its items."""

Evened = tuple[Int64Array, Int64Array]
"""Pieces in rows (int64[packs, width]), and how many of each row a pack has (int64[packs])."""


def refine_packs(
    offsets: Int64Array,
    pieces: Int32Array,
    first: int,
    stop: int,
    num_ranks: int,
    even: Callable[[Int32Array, Int64Array], Evened | None],
) -> None:
    """Even out, in place, the iterations of packs `first .. stop - 1`, each of `num_ranks` consecutive packs.

    No pack becomes empty or exceeds a limit, and the greatest work of an iteration never increases. In a changed
    iteration, every pack holds its samples by falling length, or items by falling work.

    Args:
        offsets, pieces: the packs, int64[p+1] and int32[m]; both are rewritten.
        first, stop: the range of packs; the last iteration may have fewer than `num_ranks`.
        even: (pieces of an iteration, where its packs begin in them, and the end) -> the same in other packs; None
            where they are even. `even_samples`, or `even_items`.
    """
    for begin in range(first, stop, num_ranks):
        end = min(begin + num_ranks, stop)
        own = slice(int(offsets[begin]), int(offsets[end]))
        evened = even(pieces[own], offsets[begin : end + 1] - own.start)
        if evened is not None:
            rows, numbers = evened
            pieces[own] = rows[np.arange(rows.shape[1]) < numbers[:, None]]
            offsets[begin + 1 : end] = own.start + np.cumsum(numbers)[:-1]


def even_samples(
    members: Int32Array,
    offsets: Int64Array,
    lengths: Int32Array,
    capacity: int,
    linear: int = 0,
    most: int = UNLIMITED,
) -> Evened | None:
    """Even out an iteration of flat samples, see `refine_packs`.

    It ends when the heaviest pack is within `TOLERANCE` of the least possible work, or within half of that if this is
    more than the mean.

    Args:
        lengths: int32, length of each piece.
        capacity: most tokens of a pack.
        linear: tokens, see `Cost.linear_tokens`.
        most: most samples of a pack.
    """
    length, count = lengths[members].astype(np.int64), np.diff(offsets)
    work = np.add.reduceat(length * (length + linear), offsets[:-1])
    longest = float(length.max())
    least = max(work.sum() / len(work), longest * (longest + linear))
    if work.max() <= least * (1 + TOLERANCE):
        return None
    order = np.argsort(-length, kind="stable")
    least = least_max_work(length[order], len(count), capacity, linear)
    must_wait = least * len(work) / work.sum() - 1
    # Half of it if ranks must wait anyway: the avoidable waiting should be small against that.
    limit = least * (1 + (TOLERANCE if must_wait <= TOLERANCE else TOLERANCE / 2))
    if work.max() <= limit:
        return None
    tries = len(count) * (MOST_TRIES if must_wait < _HOPELESS else MOST_TRIES // 8)
    lengths_of, pieces_of = _to_rows((length, members), count, order, min(_GROWTH * int(count.max()), most))
    rows = Rows(lengths_of, pieces_of, count, np.add.reduceat(length, offsets[:-1]), work)
    exchange_until(rows, capacity, linear, limit, tries)
    return pieces_of, count


def even_items(
    members: Int32Array,
    offsets: Int64Array,
    needs: Sequence[NDArray[np.integer]],
    work: Int64Array,
    limits: Sequence[int],
    most: int = UNLIMITED,
) -> Evened | None:
    """Even out an iteration of items, see `refine_packs`.

    It ends when the heaviest pack is within `TOLERANCE` of the mean, or of the heaviest item.

    Args:
        needs: int[m] each, r of them, of each piece.
        work: int64[m], of each piece.
        limits: r numbers, the most of each need that a pack may have.
        most: most items of a pack.
    """
    from packer_cli.plan.kernels.exchange_items import exchange_items  # Flat samples need not wait for it.

    own, count = work[members], np.diff(offsets)
    of_packs = np.add.reduceat(own, offsets[:-1])
    limit = max(of_packs.mean(), float(own.max())) * (1 + TOLERANCE)
    if of_packs.max() <= limit:
        return None
    order, columns = np.argsort(-own, kind="stable"), np.vstack([own, *(need[members] for need in needs), members])
    rows = _to_rows(columns, count, order, min(_ITEM_GROWTH * int(count.max()), most))
    totals = np.vstack([np.add.reduceat(columns[:-1], offsets[:-1], axis=1), count])
    exchange_items(rows, totals, np.array(limits, dtype=np.int64), limit, MOST_TRIES * len(count))
    return rows[-1], totals[-1]


def _to_rows(columns: Iterable[NDArray[np.integer]], count: Int64Array, order: Int64Array, width: int) -> Int64Array:
    """Lay packs out in rows (int64[k, packs, width]), each in this order, and no wider than all samples.

    Args:
        columns: int[n] each, k of them, of the samples, pack by pack.
        count: int64[packs], samples of each.
        order: int64[n], all samples.
    """
    pack = np.repeat(np.arange(len(count)), count)[order]
    by_pack = np.argsort(pack, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    values = [column[order[by_pack]] for column in columns]
    rows = np.empty((len(values), len(count), min(len(order), width)), dtype=np.int64)
    rows[:, pack[by_pack], place] = values
    return rows
