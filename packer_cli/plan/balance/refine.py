"""Refine: exchange samples between the packs of one iteration until their work is even (`plan.cost`).

Sorting (HBP, algorithm 7) puts packs of nearly equal work into an iteration; what it leaves is lowered here. The
heaviest pack gives work to a lighter one by exchanges that keep both within capacity, see `exchange`. An
iteration is done when no pack does more than the mean, or than the iteration's longest sample alone, which the
pack that holds it does at least; `bounds.least_max_work` proves what is possible.

Ours; the neighbourhood is that of pairwise-interchange heuristics for number partitioning. Price: O(samples) for what
is even already; an exchange costs O(samples of two packs), and an iteration takes a few of them a pack.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.balance.exchange import exchange_until
from packer_cli.plan.bounds import least_max_work
from packer_cli.plan.types import Int32Array, Int64Array

_MOST_PARTNERS = 31
"""Lighter packs that are tried before the heaviest one is given up."""
_HOPELESS = 0.1
"""Where the least possible work is so much over the mean, an eighth of the tries has to do."""
_GROWTH = 8
"""A pack may come to hold so many times the samples of the iteration's largest."""


def refine_packs(
    offsets: Int64Array,
    pieces: Int64Array,
    lengths: Int32Array,
    first: int,
    stop: int,
    num_ranks: int,
    capacity: int,
    linear: int = 0,
    tolerance: float = 0.0002,
    most_tries: int = 64,
) -> None:
    """Even out the iterations that packs `first .. stop - 1` form, `num_ranks` consecutive ones each, in place.

    No pack becomes empty or exceeds the capacity, and the greatest work of an iteration never rises. A pack of an
    iteration that was changed holds its samples by falling length.

    Args:
        offsets, pieces: the packs, int64[p+1] and int64[m]; both are rewritten.
        lengths: int32, length of each piece.
        first, stop: packs that are looked at; the last iteration may have fewer than `num_ranks`.
        capacity: most tokens of a pack.
        linear: tokens, see `Cost.linear_tokens`.
        tolerance: stop where the heaviest pack is within this share of the least possible, half of it where that
            is more than the mean.
        most_tries: pairs of packs that an exchange is looked for in, for each pack of an iteration.
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
        # Half of it where ranks must wait: what is left should be small beside the bound.
        limit = least * (1 + (tolerance if must_wait <= tolerance else tolerance / 2))
        if work.max() <= limit:
            continue
        tries = len(count) * (most_tries if must_wait < _HOPELESS else most_tries // 8)
        tokens = np.add.reduceat(length, starts)
        rows, names = _to_rows(length, members, count, order)
        exchange_until(rows, names, count, tokens, work, capacity, linear, limit, tries, _MOST_PARTNERS)
        pieces[own] = names[np.arange(names.shape[1]) < count[:, None]]
        offsets[begin + 1 : end] = own.start + np.cumsum(count)[:-1]


def _to_rows(length: Int64Array, members: Int64Array, count: Int64Array, order: Int64Array) -> Int64Array:
    """int64[2, packs, width]: lengths and pieces of each pack by falling length."""
    pack = np.repeat(np.arange(len(count)), count)[order]
    by_pack = np.argsort(pack, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    rows = np.empty((2, len(count), min(len(order), _GROWTH * int(count.max()))), dtype=np.int64)
    rows[:, pack[by_pack], place] = length[order[by_pack]], members[order[by_pack]]
    return rows
