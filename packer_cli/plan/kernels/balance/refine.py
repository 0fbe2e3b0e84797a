"""Refine: exchange samples between the packs of one iteration until their work is even (`plan.core.cost`).

Sorting (HBP, algorithm 7) puts packs of nearly equal work into an iteration; this module reduces the remaining
difference. The heaviest pack gives work to a lighter one by exchanges that keep both within capacity, see `exchange`.
An iteration is done when its heaviest pack has at most the mean work or that of the iteration's longest sample, or is
close to the bound that `bounds.least_max_work` proves.

Our own; the neighborhood is that of pairwise-interchange heuristics for number partitioning. Price: O(samples) for
even iterations; an exchange costs O(samples of two packs), and an iteration takes a few of them per pack.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.bounds import least_max_work
from packer_cli.plan.core.groups import UNLIMITED
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.balance.exchange import Rows, exchange_until

_MOST_PARTNERS = 31
"""Lighter packs to try before giving up on the heaviest one."""
_HOPELESS = 0.1
"""If the least possible work exceeds the mean by this share, only an eighth of the tries is made."""
_GROWTH = 8
"""A pack may grow to this many times the samples of the iteration's largest pack."""


def refine_packs(
    offsets: Int64Array,
    pieces: Int32Array,
    lengths: Int32Array,
    first: int,
    stop: int,
    num_ranks: int,
    capacity: int,
    linear: int = 0,
    tolerance: float = 0.0002,
    most_tries: int = 64,
    most: int = UNLIMITED,
) -> None:
    """Even out, in place, the iterations of packs `first .. stop - 1`, each of `num_ranks` consecutive packs.

    No pack becomes empty or exceeds the capacity, and the greatest work of an iteration never increases. In a changed
    iteration, every pack holds its samples by decreasing length.

    Args:
        offsets, pieces: the packs, int64[p+1] and int32[m]; both are rewritten.
        lengths: int32, length of each piece.
        first, stop: the range of packs; the last iteration may have fewer than `num_ranks`.
        capacity: most tokens of a pack.
        linear: tokens, see `Cost.linear_tokens`.
        tolerance: stop when the heaviest pack is within this share of the least possible work, or within half of it if
            that is more than the mean.
        most_tries: pairs of packs to search for an exchange, per pack of an iteration.
        most: most samples of a pack.
    """
    for begin in range(first, stop, num_ranks):
        end = min(begin + num_ranks, stop)
        own = slice(int(offsets[begin]), int(offsets[end]))
        members = pieces[own]
        length = lengths[members].astype(np.int64)
        starts = offsets[begin:end] - own.start
        work = np.add.reduceat(length * (length + linear), starts)
        longest = float(length.max())
        least = max(work.sum() / len(work), longest * (longest + linear))
        if work.max() <= least * (1 + tolerance):
            continue
        order = np.argsort(-length, kind="stable")
        least = least_max_work(length[order], end - begin, capacity, linear)
        count = np.diff(offsets[begin : end + 1])
        must_wait = least * len(work) / work.sum() - 1
        # Half of it if ranks must wait anyway: the avoidable waiting should be small against that.
        limit = least * (1 + (tolerance if must_wait <= tolerance else tolerance / 2))
        if work.max() <= limit:
            continue
        tries = len(count) * (most_tries if must_wait < _HOPELESS else most_tries // 8)
        lengths_of, pieces_of = _to_rows(length, members, count, order, most)
        rows = Rows(lengths_of, pieces_of, count, np.add.reduceat(length, starts), work)
        exchange_until(rows, capacity, linear, limit, tries, _MOST_PARTNERS)
        pieces[own] = pieces_of[np.arange(pieces_of.shape[1]) < count[:, None]]
        offsets[begin + 1 : end] = own.start + np.cumsum(count)[:-1]


def _to_rows(length: Int64Array, members: Int32Array, count: Int64Array, order: Int64Array, most: int) -> Int64Array:
    """Lay packs out in rows (int64[2, packs, width]): lengths and pieces, by falling length. None outgrows width."""
    pack = np.repeat(np.arange(len(count)), count)[order]
    by_pack = np.argsort(pack, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    rows = np.empty((2, len(count), min(len(order), _GROWTH * int(count.max()), most)), dtype=np.int64)
    rows[:, pack[by_pack], place] = length[order[by_pack]], members[order[by_pack]]
    return rows
