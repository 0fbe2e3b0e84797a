"""The fewest packs: minimum bin slack, and integer programming over the histogram of lengths where that fails.

Source: Gilmore and Gomory 1961 (cutting stock: patterns and pricing). A linear program chooses how often to pack each
*pattern* of lengths. Its integer part is fixed and the rest priced again, until all samples are placed. The result is
never worse than `bfd`'s.

Price: O(n) for best-fit, and nothing more if its packs meet the bound, as they do on most mixed lengths; minimum
bin slack settles most other cases, so a million such samples take a fraction of a second. Otherwise rounds of pricing
at O(distinct lengths * capacity), seconds to a minute. Use it when samples are a third of the capacity or more, so
that only certain lengths fill a pack and `bfd` pads. Do not use it on lengths that are short against the capacity:
there is little left to gain.

With more than `max_lengths` distinct lengths, short samples are left to best-fit; if there are still too many long
ones, neighboring lengths are rounded up to the longest of a class. Packs above `packs_lower_bound` for 20,000 samples
at capacity 128K, of 300 classes, in 3 to 20 s: 1.5 % if lengths are uniform between 30K and 60K (`bfd`: 10.2 %),
0.14 % between 20K and 50K (3.4 %), 0.34 % between 20K and 100K (0.56 %), and 0.45 % for a normal distribution of mean
45K and standard deviation 10K (4.1 %).

*Minimum bin slack*: each pack takes the longest sample left, and the samples that best fill the rest of it. Source:
Gupta and Ho 1999; with the longest sample fixed, MBS' of Fleszar and Hindi 2002. Price: a depth-first search for each
pack, which ends at the first choice that fills it to the token; among many short samples that is the first or second
choice, and a million samples take a twentieth of a second. If every pack can be filled, it saves the last packs
between best-fit and the bound; if not, it uses up the good matches first and needs more packs than best-fit.

A run that ends within `time_limit` gives the same packs everywhere; one that is cut off gives the best so far, which
depends on the machine's speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.csr import argsort_descending, count_lengths, group_by_pack
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array
from packer_cli.plan.kernels import length_index
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within
from packer_cli.plan.packing.best_fit import best_fit_decreasing, best_fit_each
from packer_cli.plan.packing.ilp.columns import Classes, generate_columns, make_classes


@dataclass(frozen=True, kw_only=True)
class IlpOptions(PackingOptions):
    """Greater values take longer and pad less."""

    time_limit: float = within(60.0, 0, 10**6, is_open=True)
    """Seconds per call, after which the best packing so far is returned."""
    max_lengths: int = within(300, 1, 2000)
    """Most distinct lengths to solve exactly; of more, neighboring ones are rounded up alike."""


def pack(lengths: Int32Array, capacity: int, seed: int, options: IlpOptions) -> tuple[Int64Array, Int32Array]:
    """Pack by the integer program, with no more packs than `bfd`; see the package for shapes.

    Raises:
        RunError: PuLP has no solver.
    """
    deadline = time.monotonic() + options.time_limit
    best = best_fit_decreasing(lengths, capacity)
    bound = packs_lower_bound(lengths, capacity)
    if len(best[0]) - 1 > bound:
        best = min(best, min_bin_slack(lengths, capacity), key=_num_packs)
    if len(best[0]) - 1 > bound:
        classes = make_classes(lengths, capacity, options.max_lengths)
        use = _dive(classes, len(best[0]) - 1, deadline)
        best = min(best, _pack_patterns(lengths, capacity, classes, *use), key=_num_packs)
    return best


def _num_packs(packing: tuple[Int64Array, Int32Array]) -> int:
    return len(packing[0]) - 1


def _dive(classes: Classes, fewest: int, deadline: float) -> tuple[Int64Array, Int64Array]:
    """Fix patterns one after another, and price again for what is left: `(patterns int64[k, m], times int64[k])`.

    Ends early, with samples left, where no packing of them can lead to less than `fewest` packs.
    """
    left = classes.counts.copy()
    patterns = np.empty((0, len(left)), dtype=np.int64)
    fixed, numbers = [patterns], [0]
    while left.any():
        relaxed = generate_columns(classes.up, left, classes.capacity, patterns, deadline)
        if relaxed is None or relaxed.bound + sum(numbers) >= fewest:
            break
        patterns = relaxed.patterns
        for pattern, times in zip(patterns, _choose(relaxed.use).tolist(), strict=True):
            # Together, patterns may hold more samples than there are.
            while times and (used := np.minimum(pattern, left)).any():
                number = min(times, int((left[used > 0] // used[used > 0]).min()))
                times -= number
                left -= number * used
                fixed.append(used[None])
                numbers.append(number)
    return np.concatenate(fixed), np.array(numbers[1:], dtype=np.int64)


def _choose(use: Float64Array) -> Int64Array:
    """Count how often to fix each pattern next: its integer part, or else once if it is used nearly once, or most."""
    times = np.floor(use + 1e-6).astype(np.int64)
    if not times.any():
        times[use > 0.9] = 1
        times[np.argmax(use)] = 1
    return times


def _pack_patterns(
    lengths: Int32Array, capacity: int, classes: Classes, patterns: Int64Array, times: Int64Array
) -> tuple[Int64Array, Int32Array]:
    """Make packs of the patterns, each so many times; best-fit places the samples that are in none."""
    order = argsort_descending(lengths)
    pack_of = np.full(len(order), -1, dtype=np.int64)
    # The stones stand first in `order`, class by class.
    begins = np.cumsum(classes.counts) - classes.counts
    for begin, of_class in zip(begins.tolist(), patterns.T, strict=True):
        packs = np.repeat(np.arange(times.sum()), np.repeat(of_class, times))
        pack_of[order[begin : begin + len(packs)]] = packs
    tokens = np.bincount(pack_of + 1, weights=lengths, minlength=times.sum() + 1)[1:]
    left = order[pack_of[order] < 0]
    pack_of[left], num_packs = best_fit_each(lengths, left, capacity, capacity - tokens.astype(np.int64))
    return group_by_pack(pack_of, order, num_packs)


_MOST_NODES = 5_000
"""Samples to try for one pack before taking the best choice so far: usually a tenth of a millisecond."""
_MOST_OF_ALL = 50_000_000
"""Samples to try for all packs, beyond their best choices: a bound on the time if no pack can be filled."""


def min_bin_slack(lengths: Int32Array, capacity: int) -> tuple[Int64Array, Int32Array]:
    """Return packs `(offsets int64[p+1], members int32[n])` of the lengths (int32[n], each 1 .. capacity)."""
    taken, offsets = _min_bin_slack(count_lengths(lengths), capacity)
    members = np.empty_like(taken)
    members[argsort_descending(taken)] = argsort_descending(lengths)
    return offsets, members


@njit(cache=True)
def _min_bin_slack(counts: Int64Array, capacity: int) -> tuple[Int32Array, Int64Array]:
    """Return `(taken int32[n], offsets int64[p+1])`: pack k has samples of lengths `taken[offsets[k]:offsets[k+1]]`.

    Args:
        counts: int64[longest + 1], samples of each length; zeros afterwards.
    """
    index = length_index.full_index(counts > 0)
    num = counts.sum()
    taken = np.empty(num, dtype=np.int32)
    offsets = np.zeros(num + 1, dtype=np.int64)
    chosen = np.empty(num, dtype=np.int64)
    num_packs = begin = 0
    spare = _MOST_OF_ALL
    while begin < num:
        shortest = length_index.index_ceiling(index, np.int64(1))
        room = limit = capacity
        least = capacity + 1
        level = nodes = num_best = 0
        while limit >= shortest:
            # Down: always the longest that fits and is no longer than the one before.
            length = length_index.index_floor(index, limit)
            while length > 0:
                _take(index, counts, length)
                chosen[level] = length
                level += 1
                nodes += 1
                room -= length
                limit = min(length, room)
                length = length_index.index_floor(index, limit)
            if room < least:
                least = room
                num_best = level
                for i in range(level):
                    taken[begin + i] = chosen[i]
            limit = 0
            # Up, to the last sample whose place a shorter one can take and leave room for another.
            while level > 1 and limit < shortest and least > 0 and nodes <= min(_MOST_NODES, spare):
                level -= 1
                _put(index, counts, chosen[level])
                room += chosen[level]
                limit = min(chosen[level] - 1, room - shortest)
        # Only nodes beyond the best choice's own samples count as search.
        spare -= nodes - num_best
        for i in range(level):
            _put(index, counts, chosen[i])
        for i in range(begin, begin + num_best):
            _take(index, counts, np.int64(taken[i]))
        begin += num_best
        num_packs += 1
        offsets[num_packs] = begin
    return taken, offsets[: num_packs + 1].copy()


@njit(cache=True, no_cpython_wrapper=True)
def _take(index: length_index.LengthIndex, counts: Int64Array, length: int) -> None:
    counts[length] -= 1
    if counts[length] == 0:
        length_index.index_remove(index, length)


@njit(cache=True, no_cpython_wrapper=True)
def _put(index: length_index.LengthIndex, counts: Int64Array, length: int) -> None:
    if counts[length] == 0:
        length_index.index_add(index, length)
    counts[length] += 1


ALGORITHM = PackingAlgorithm(
    name="ilp",
    summary="cutting stock by column generation: fewest packs, slow",
    pack=pack,
    options=IlpOptions,
)
