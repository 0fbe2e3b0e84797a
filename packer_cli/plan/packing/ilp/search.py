"""From the linear program to packs: round down, dive, and place what is left by best-fit.

Minimum bin slack: each pack takes the longest sample left, and the samples that best fill the rest of it.
Source: Gupta and Ho 1999; with the longest sample fixed, MBS' of Fleszar and Hindi 2002. Price: a depth-first search
for each pack, which ends at the first choice that fills it to the token; among many short samples that is the first or
second choice, and a million samples take a twentieth of a second. If every pack can be filled, it saves the last packs
between best-fit and the bound; if not, it uses up the good matches first and needs more packs than best-fit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.streams import next_below, rng_state
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import index_add, index_ceiling, index_floor, index_remove, make_index
from packer_cli.plan.packing import bfd
from packer_cli.plan.packing.base import ChunkOptions
from packer_cli.plan.packing.ilp.columns import (
    Classes,
    Patterns,
    Relaxation,
    generate_columns,
    solve_integer,
    start_patterns,
    total_worth,
)
from packer_cli.plan.packing.ilp.knapsack import patterns_from
from packer_cli.plan.packing.ilp.patterns import pack_patterns

_DIVES = 12
"""Most dives; more rarely find anything better."""
_DIVES_BEFORE_PROOF = 2
"""Dives before `Search.prove`, which settles small searches but costs more."""
_MOST_PATTERNS = 20_000
_MOST_NODES = 50_000_000
"""Limits of `Search.prove`: an integer program that can still be solved, and half a second of search."""


@dataclass(frozen=True, kw_only=True)
class CuttingStock:
    """A packing, and a proved bound."""

    offsets: Int64Array
    order: Int32Array
    bound: int
    """No packing needs fewer packs."""

    @property
    def num_packs(self) -> int:
        """Packs of this packing."""
        return len(self.offsets) - 1

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no packing has fewer packs."""
        return self.num_packs == self.bound


class Search:
    """One run; `best` is the best packing so far."""

    def __init__(
        self,
        lengths: Int32Array,
        capacity: int,
        classes: Classes,
        best: CuttingStock,
        deadline: float,
    ) -> None:
        self.lengths = lengths
        self.capacity = capacity
        self.classes = classes
        self.best = best
        self.deadline = deadline
        self.least = best.bound
        """Packs that no packing of the classes goes below."""
        # A fixed seed: dives must differ from each other, but not from run to run.
        self.rng = rng_state(0)
        self.order = argsort_descending(lengths)
        # The stones stand first in `order`, class by class.
        self.class_starts = np.concatenate([[0], np.cumsum(classes.counts)]).astype(np.int64)

    def run(self) -> CuttingStock:
        """The best packing found, and the bound proved on the way."""
        classes = self.classes
        if len(classes.counts) == 0:
            return self.best
        root = generate_columns(classes.up, classes.counts, classes.capacity, self.first_patterns(), self.deadline)
        if root is None:
            return self.best
        self.raise_bound(root.bound)
        # Keep the integer part of the solution and search only for the rest, at most m packs.
        whole = np.floor(root.use + 1e-6).astype(np.int64)
        fixed, fixed_use, rest = _apply(root.patterns, whole, classes.counts)
        pool = root.patterns
        # Of rounded lengths, rounding loses more than other dives gain.
        for dive in range(_DIVES if classes.is_exact else 1):
            if self.is_done():
                break
            path, path_use, seen = self.dive(root, fixed, fixed_use, rest, dive)
            self.offer(np.concatenate([fixed, path]), np.concatenate([fixed_use, path_use]))
            pool = np.unique(np.concatenate([pool, seen]), axis=0)
            if self.is_done():
                break
            self.finish(pool, fixed, fixed_use, rest)
            if dive + 1 == _DIVES_BEFORE_PROOF:
                while not self.is_done() and self.prove(root):
                    pass
        return self.best

    def first_patterns(self) -> Patterns:
        """One pattern per class, and those of best-fit's packs, which are nearly optimal."""
        classes = self.classes
        start = start_patterns(classes.up, classes.counts, classes.capacity)
        sizes = np.repeat(classes.up, classes.counts).astype(np.int32)
        offsets, members = bfd.pack(sizes, classes.capacity, 0, ChunkOptions())
        class_of = np.repeat(np.arange(len(classes.counts)), classes.counts)[members]
        packed, counts = _distinct_packs(offsets, class_of, len(classes.counts), 4 * len(start))
        most_used = np.argsort(-counts, kind="stable")[: 2 * len(start)]
        return np.concatenate([start, packed[most_used]])

    def is_done(self) -> bool:
        """Whether nothing better can be found or time is up."""
        return self.best.num_packs <= self.least or time.monotonic() >= self.deadline

    def raise_bound(self, bound: int) -> None:
        """Adopt a bound on packings of the classes, which holds for the samples unless lengths were rounded."""
        self.least = max(self.least, bound)
        if self.classes.is_exact:
            self.best = replace(self.best, bound=self.least)

    def dive(
        self, root: Relaxation, fixed: Patterns, fixed_use: Int64Array, rest: Int64Array, number: int
    ) -> tuple[Patterns, Int64Array, Patterns]:
        """Fix patterns one after another, and price again for what is left.

        The first dive takes the pattern used most; dive k draws one of the k + 1 used most.

        Returns:
            `(patterns, how often each is used, every pattern seen)`
        """
        classes = self.classes
        path: list[Patterns] = [fixed[:0]]
        path_use: list[Int64Array] = [fixed_use[:0]]
        seen = [fixed[:0]]
        left = rest.copy()
        patterns = root.patterns
        while left.any() and time.monotonic() < self.deadline:
            kept = np.flatnonzero(left)
            # A pattern must not count samples that are no longer there.
            cut = np.minimum(patterns, left.astype(np.int32))[:, kept]
            cut = np.unique(cut[cut.any(axis=1)], axis=0)
            start = start_patterns(classes.up[kept], left[kept], classes.capacity)
            relaxed = generate_columns(
                classes.up[kept], left[kept], classes.capacity, np.concatenate([start, cut]), self.deadline
            )
            if relaxed is None:
                break
            patterns = np.zeros((len(relaxed.patterns), len(left)), dtype=np.int32)
            patterns[:, kept] = relaxed.patterns
            seen.append(patterns)
            placed, times, left = _apply(patterns, self.choose(relaxed, number), left)
            path.append(placed)
            path_use.append(times)
        return np.concatenate(path), np.concatenate(path_use), np.concatenate(seen)

    def choose(self, relaxed: Relaxation, number: int) -> Int64Array:
        """How often to fix each pattern next: the integer parts, or else one of the `number + 1` used most."""
        times = np.floor(relaxed.use + 1e-6).astype(np.int64)
        if times.any():
            return times
        ranked = np.argsort(-relaxed.use, kind="stable")
        choices = min(number + 1, int((relaxed.use > 1e-6).sum()), len(ranked))
        times[ranked[next_below(self.rng, choices) if choices > 1 else 0]] = 1
        # To shorten the dive, also fix all patterns that are used nearly once.
        times[relaxed.use > 0.9] = 1
        return times

    def finish(self, pool: Patterns, fixed: Patterns, fixed_use: Int64Array, rest: Int64Array) -> None:
        """Look for one pack less with an integer program over all patterns seen; at most a tenth of the time left."""
        now = time.monotonic()
        kept = np.flatnonzero(rest)
        cut = np.minimum(pool, rest.astype(np.int32))
        cut = np.unique(cut[cut.any(axis=1)], axis=0)
        most = self.best.num_packs - 1 - int(fixed_use.sum())
        use, _ = solve_integer(cut[:, kept], rest[kept], most, now + 0.1 * (self.deadline - now))
        if use is not None:
            self.offer(np.concatenate([fixed, cut]), np.concatenate([fixed_use, use]))

    def prove(self, root: Relaxation) -> bool:
        """Find a packing with one pack less among all patterns it could use, or prove that none exists.

        If K packs are worth at most Z each and D in total, each is worth at least D - (K - 1) Z. Few patterns are, if
        the bound is near.

        Returns:
            Whether a better packing was found.
        """
        classes = self.classes
        most = self.best.num_packs - 1
        least = total_worth(classes.counts, root.worth) - (most - 1) * root.most_worth
        if least < 1:
            return False
        patterns, is_complete = patterns_from(
            classes.up, root.worth, classes.counts, classes.capacity, least, _MOST_PATTERNS, _MOST_NODES
        )
        if not is_complete or time.monotonic() >= self.deadline:
            return False
        before = self.best.num_packs
        is_impossible = len(patterns) == 0
        if not is_impossible:
            use, is_impossible = solve_integer(patterns, classes.counts, most, self.deadline)
            if use is not None:
                self.offer(patterns, use)
        if is_impossible:
            self.raise_bound(most + 1)
        return self.best.num_packs < before

    def offer(self, patterns: Patterns, use: Int64Array) -> None:
        """Make packs of the patterns, place the other samples by best-fit, and keep the result if it is better."""
        used = use > 0
        offsets, order = pack_patterns(
            self.lengths, self.order, self.capacity, self.class_starts, patterns[used], use[used]
        )
        if len(offsets) - 1 < self.best.num_packs:
            self.best = replace(self.best, offsets=offsets, order=order)


@njit(cache=True)
def _distinct_packs(
    offsets: NDArray[np.int64], class_of: NDArray[np.int64], num_classes: int, most: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The patterns of runs of alike packs, and the packs in each run; the first `most`."""
    patterns = np.zeros((most, num_classes), dtype=np.int32)
    counts = np.zeros(most, dtype=np.int64)
    pattern = np.zeros(num_classes, dtype=np.int32)
    num = 0
    for k in range(len(offsets) - 1):
        pattern[:] = 0
        for j in range(offsets[k], offsets[k + 1]):
            pattern[class_of[j]] += 1
        if num and (patterns[num - 1] == pattern).all():
            counts[num - 1] += 1
        elif num < most:
            for c in range(num_classes):  # As a slice, it takes numba 1.5 s more to compile.
                patterns[num, c] = pattern[c]
            counts[num] = 1
            num += 1
    return patterns[:num], counts[:num]


def _apply(patterns: Patterns, use: Int64Array, left: Int64Array) -> tuple[Patterns, Int64Array, Int64Array]:
    """Use patterns as long as there are samples for them: `(patterns, times, samples left)`.

    Together, patterns may hold more samples than there are; the last use of a pattern is cut to what is left.
    """
    left = left.copy()
    chosen: list[NDArray[np.int32]] = []
    times: list[int] = []
    for k in np.flatnonzero(use):
        pattern = patterns[k].astype(np.int64)
        held = pattern > 0
        count = int(min(use[k], (left[held] // pattern[held]).min()))
        if count:
            chosen.append(patterns[k])
            times.append(count)
            left -= count * pattern
        if count < use[k] and (part := np.minimum(pattern, left)).any():
            chosen.append(part.astype(np.int32))
            times.append(1)
            left -= part
    rows = np.array(chosen, dtype=np.int32).reshape(len(chosen), patterns.shape[1])
    return rows, np.array(times, dtype=np.int64), left


_PACKS_IN_FULL = 10_000
"""Packs that may be searched to the limit, which bounds the time if no pack can be filled to the token."""


@njit(cache=True)
def min_bin_slack(
    counts: NDArray[np.int64], capacity: int, most_nodes: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """`(taken int32[n], offsets int64[p+1])`: pack k holds samples of the lengths `taken[offsets[k]:offsets[k+1]]`.

    Args:
        counts: int64[longest + 1], samples of each length; zeros afterwards.
        capacity: most tokens of a pack.
        most_nodes: samples to try for one pack before taking the best choice so far; after 10,000 times as many in
            total, each pack takes the first samples that fit.
    """
    index = make_index(len(counts))
    num = 0
    for length in range(1, len(counts)):
        if counts[length] > 0:
            index_add(index, length)
            num += counts[length]
    taken = np.empty(num, dtype=np.int32)
    offsets = np.zeros(num + 1, dtype=np.int64)
    chosen = np.empty(num + 1, dtype=np.int64)
    best = np.empty(num + 1, dtype=np.int64)
    num_taken = 0
    num_packs = 0
    spare = (_PACKS_IN_FULL + 1) * most_nodes
    while num_taken < num:
        longest = index_floor(index, capacity)
        shortest = index_ceiling(index, np.int64(1))
        counts[longest] -= 1
        room = capacity - longest
        least = room + 1
        num_best = 0
        level = 0
        limit = min(longest, room)
        nodes = 0
        while True:
            # Down: always the longest that fits and is no longer than the one before.
            length = index_floor(index, limit) if limit >= shortest else -1
            while length > 0 and counts[length] == 0:
                length = index_floor(index, length - 1)
            if length > 0:
                nodes += 1
                counts[length] -= 1
                chosen[level] = length
                level += 1
                room -= length
                limit = min(length, room)
                continue
            if room < least:
                least = room
                num_best = level
                for i in range(level):
                    best[i] = chosen[i]
            if least == 0 or nodes > min(most_nodes, spare):
                break
            # Up, to the last sample whose place a shorter one can take and leave room for another.
            limit = 0
            while level > 0 and limit < shortest:
                level -= 1
                counts[chosen[level]] += 1
                room += chosen[level]
                limit = min(chosen[level] - 1, room - shortest)
            if limit < shortest:
                break
        # Only nodes beyond the best choice's own samples count as search.
        spare = max(0, spare - max(0, nodes - num_best))
        for i in range(level):
            counts[chosen[i]] += 1
        best[num_best] = longest
        counts[longest] += 1
        for i in range(num_best, -1, -1):
            length = best[i]
            counts[length] -= 1
            if counts[length] == 0:
                index_remove(index, length)
            taken[num_taken] = length
            num_taken += 1
        num_packs += 1
        offsets[num_packs] = num_taken
    return taken, offsets[: num_packs + 1].copy()
