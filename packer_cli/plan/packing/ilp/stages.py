"""Packs of thousands of distinct lengths: a linear program gives the proportions, samples near its lengths the packs.

A stage solves a linear program for the samples left and packs half of what it plans: it takes samples near the lengths
of a pattern, the last two so that they leave the least room. The next stage corrects the resulting shift, and the last
few hundred lengths are solved exactly.

The dual values of the program are linear in the length between a few *knots*, which move closer to the lengths that
are left. A sample between two knots counts partly for each, by its distance, in demands and patterns alike. Patterns
therefore keep their true lengths; only the dual values between two knots can no longer vary freely, which costs little
if the value of a sample does not jump with its length. This is the full program with fewer dual values to choose from,
so its bound is proved. Classes of rounded lengths err in proportion to their width: on 20,000 lengths between 20K and
100K, 300 classes lose 12 packs of 9,168, and 50 knots none. Price: seconds, 20 rounds of
O(distinct lengths * capacity).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.streams import next_below, rng_state
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import index_add, index_ceiling, index_floor, index_remove, make_index
from packer_cli.plan.packing.ilp.columns import UNIT, solve_master, total_worth

NUM_KNOTS = 100
"""More are slower and no better; the next stage has as many for half the samples."""
_SHARE = 0.5
"""Share of its plan that a stage packs; more is faster and needs slightly more packs."""
_ENOUGH = 0.9
"""Part of that share at which the stage ends; the rest may be hard to find, and waits for the next stage."""
_TRIES = 4
"""Random choices of samples for a pattern before going on to the next one."""
_ZERO = cast("int", np.int64(0))
"""Of int64, since numba compiles a function again for each Python literal passed to it."""


def pack_in_stages(
    counts: Int64Array, capacity: int, max_lengths: int, deadline: float
) -> tuple[Int32Array, Int64Array, int]:
    """Pack until at most `max_lengths` distinct lengths are left, a stage packs nothing, or half the time has passed.

    Args:
        counts: int64[longest + 1], samples of each length; afterwards, the samples left.
        capacity: most tokens of a pack.
        max_lengths: distinct lengths that can be solved exactly.
        deadline: in `time.monotonic()` seconds.

    Returns:
        `(taken int32[a], offsets int64[k+1], bound)`: pack j holds samples of the lengths
        `taken[offsets[j]:offsets[j+1]]`; no packing of all samples needs fewer than `bound` packs.
    """
    now = time.monotonic()
    until = now + 0.5 * (deadline - now)
    words, starts = make_index(len(counts))
    for length in np.flatnonzero(counts):
        index_add(words, starts, length)
    taken = np.empty(counts.sum(), dtype=np.int32)
    offsets = np.zeros(len(taken) + 1, dtype=np.int64)
    state = rng_state(0)
    num_packs = 0
    bound = 0
    while np.count_nonzero(counts) > max_lengths and time.monotonic() < until:
        values = np.flatnonzero(counts)
        solved = solve_many(values, counts[values], capacity, NUM_KNOTS, until)
        # Only the first stage's bound holds for all samples.
        bound = bound or solved.bound
        before = num_packs
        num_packs = _stage(solved, capacity, counts, words, starts, taken, offsets, num_packs, state)
        if num_packs == before:
            break
    return taken[: offsets[num_packs]], offsets[: num_packs + 1], bound


def _stage(
    solved: ManyLengths,
    capacity: int,
    counts: Int64Array,
    words: NDArray[np.uint64],
    starts: Int64Array,
    taken: Int32Array,
    offsets: Int64Array,
    num_packs: int,
    state: NDArray[np.uint64],
) -> int:
    """Pack a share of the plan; returns the number of packs so far."""
    # Take the same share of every pattern: the easy ones would use up the short samples that the others need.
    share = np.where(_SHARE * solved.use >= 1, np.rint(_SHARE * solved.use), np.floor(solved.use + 1e-6))
    use = share.astype(np.int64)
    chosen = np.flatnonzero(use)
    if len(chosen) == 0:
        return num_packs
    use = use[chosen]
    patterns = [solved.patterns[k] for k in chosen]
    ends = np.cumsum([0] + [len(pattern) for pattern in patterns])
    lengths = np.concatenate(patterns)
    knots = solved.knots.astype(np.float64)
    gap = np.interp(lengths, knots, np.gradient(knots)) if len(knots) > 1 else np.ones(len(lengths))
    reach = np.minimum(np.maximum(solved.grain, gap).astype(np.int64), lengths - 1)
    enough = num_packs + _ENOUGH * int(use.sum())
    tolerance = 0
    while num_packs < enough and tolerance <= reach.max():
        num_packs = pack_near(
            capacity, ends, lengths, reach, use, solved.grain, tolerance,
            counts, words, starts, taken, offsets, num_packs, state,
        )  # fmt: skip
        tolerance = 2 * tolerance + 1
    return num_packs


@njit(cache=True)
def _take(counts: NDArray[np.int64], words: NDArray[np.uint64], starts: NDArray[np.int64], length: int) -> None:
    counts[length] -= 1
    if counts[length] == 0:
        index_remove(words, starts, length)


@njit(cache=True)
def pack_near(
    capacity: int,
    ends: NDArray[np.int64],
    lengths: NDArray[np.int64],
    reach: NDArray[np.int64],
    use: NDArray[np.int64],
    grain: int,
    tolerance: int,
    counts: NDArray[np.int64],
    words: NDArray[np.uint64],
    starts: NDArray[np.int64],
    taken: NDArray[np.int32],
    offsets: NDArray[np.int64],
    num_packs: int,
    state: NDArray[np.uint64],
) -> int:
    """Pack samples near each pattern's lengths, at most `use` times, while packs leave little more room than patterns.

    Args:
        ends: int64[k+1]: pattern j is `lengths[ends[j]:ends[j+1]]`.
        lengths, reach: int64[a]: a sample may be longer or shorter than its length by this much.
        use: int64[k]; the packs made are subtracted.
        grain: unit in tokens to which the patterns' lengths were rounded down.
        tolerance: tokens that a pack may leave free beyond those that its pattern does.
        counts, words, starts: the samples left, by length, and an index of the lengths; samples packed are removed.
        taken, offsets, num_packs: the packs so far; new ones are appended.
        state: of the random numbers.

    Returns:
        The number of packs.
    """
    for k in range(len(use)):
        begin = ends[k]
        last = ends[k + 1] - 1
        plan = capacity
        for i in range(begin, last + 1):
            plan -= lengths[i] + grain - 1
        plan = max(0, plan)
        tries = 0
        while use[k] > 0 and tries < _TRIES:
            at = offsets[num_packs]
            room = capacity
            # All but the last two: any sample near the length.
            i = begin
            while i < last - 1:
                low = lengths[i] - reach[i]
                high = min(lengths[i] + reach[i], room)
                if high < low:
                    break
                length = index_floor(words, starts, low + next_below(state, high - low + 1))
                if length < low:
                    length = index_ceiling(words, starts, low)
                    if length < 0 or length > high:
                        break
                _take(counts, words, starts, length)
                taken[at] = length
                at += 1
                room -= length
                i += 1
            least = capacity + 1
            one = other = _ZERO
            if i >= last - 1:
                low = lengths[last] - reach[last]
                high = lengths[last] + reach[last]
                if begin == last:
                    other = index_floor(words, starts, min(high, room))
                    if other >= low:
                        least = 0
                else:
                    # The last but one: from a random length down and around, until the last sample fills the rest.
                    from_low = lengths[last - 1] - reach[last - 1]
                    from_high = min(lengths[last - 1] + reach[last - 1], room)
                    middle = from_low + next_below(state, from_high - from_low + 1) if from_high >= from_low else -1
                    for part in range(2 if middle >= 0 else 0):
                        stop = from_low if part == 0 else middle + 1
                        length = index_floor(words, starts, middle if part == 0 else from_high)
                        while length >= stop and least > plan:
                            limit = min(room - length, high)
                            closing = index_floor(words, starts, limit) if limit > 0 else -1
                            if closing == length and counts[length] < 2:
                                closing = index_floor(words, starts, length - 1)
                            if closing >= low and room - length - closing < least:
                                least = room - length - closing
                                one = length
                                other = closing
                            length = index_floor(words, starts, length - 1)
            if least <= plan + tolerance:
                if one > 0:
                    _take(counts, words, starts, one)
                    taken[at] = one
                    at += 1
                _take(counts, words, starts, other)
                taken[at] = other
                num_packs += 1
                offsets[num_packs] = at + 1
                use[k] -= 1
                tries = 0
                continue
            for j in range(offsets[num_packs], at):
                if counts[taken[j]] == 0:
                    index_add(words, starts, np.int64(taken[j]))
                counts[taken[j]] += 1
            # With one or two samples, every choice was tried.
            tries = tries + 1 if last - begin > 1 else _TRIES
    return num_packs


_MOST_STATES = 1 << 26
"""Most distinct lengths * capacity of one pricing; beyond that, lengths are rounded down to grains."""
_CLOSE = 0.25
"""Pricing stops when the program's value is within this many packs of its bound."""


@dataclass(frozen=True, kw_only=True)
class ManyLengths:
    """The program's solution, or the best one at the deadline."""

    patterns: list[Int64Array]
    """For each pattern the lengths of its samples, decreasing, each rounded down to a multiple of `grain`."""
    use: NDArray[np.float64]
    """float64[k]: how often each pattern is used; empty if no program was solved in time."""
    bound: int
    """No packing needs fewer packs."""
    grain: int
    """Tokens."""
    knots: Int64Array
    """int64[m], increasing lengths."""


def solve_many(values: Int64Array, counts: Int64Array, capacity: int, num_knots: int, deadline: float) -> ManyLengths:
    """Price patterns until the program is within a quarter of a pack of its bound, or the deadline passes.

    Args:
        values: int64[v], distinct lengths, increasing; the least, which bounds the samples per pack, well over 0.
        counts: int64[v], samples of each.
        capacity: most tokens of a pack.
        num_knots: most knots.
        deadline: in `time.monotonic()` seconds.
    """
    grain = 1
    while len(np.unique(values // grain)) * (capacity // grain) > _MOST_STATES:
        grain *= 2
    sizes, place = np.unique(values // grain, return_inverse=True)
    number = np.bincount(place, weights=counts).astype(np.int64)
    room = capacity // grain
    at_knots = _knots(sizes, number, num_knots)
    knots = sizes[at_knots]
    position = np.interp(sizes, knots, np.arange(len(knots)))
    lower = np.minimum(position.astype(np.int64), max(0, len(knots) - 2))
    upper = np.minimum(lower + 1, len(knots) - 1)
    share = position - lower

    def parts(items: NDArray[np.int32]) -> NDArray[np.float64]:
        rows = np.zeros((len(items), len(knots)))
        for column in range(items.shape[1]):
            held = np.flatnonzero(items[:, column] >= 0)
            item = items[held, column]
            np.add.at(rows, (held, lower[item]), 1 - share[item])
            np.add.at(rows, (held, upper[item]), share[item])
        return rows

    demands = np.bincount(lower, number * (1 - share), minlength=len(knots))
    demands += np.bincount(upper, number * share, minlength=len(knots))
    most_items = room // int(sizes[0])
    items = np.full((len(knots), most_items), -1, dtype=np.int32)
    for k, place_of_knot in enumerate(at_knots):
        items[k, : room // sizes[place_of_knot]] = place_of_knot
    rows = parts(items)
    nearest = np.minimum(np.rint(position).astype(np.int64), len(knots) - 1)
    bound = 0.0
    proved = 0
    use = np.empty(0)
    used = items[:0]
    while (solved := solve_master(rows, demands, deadline)) is not None:
        use, duals = solved
        used = items
        worth = np.floor(np.clip(duals[lower] * (1 - share) + duals[upper] * share, 0, 1) * UNIT).astype(np.int64)
        most = most_worth(sizes, worth, room)
        if most[room] > 0:
            total = total_worth(number, worth)
            bound = max(bound, total / int(most[room]))
            proved = max(proved, -(-total // int(most[room])))
        with_item = most[room - sizes] + worth
        # For each knot, the best pack with a length near it.
        ranked = np.lexsort((-with_item, nearest))
        first = ranked[np.flatnonzero(np.diff(nearest[ranked], prepend=-1))]
        first = first[with_item[first] > UNIT * (1 + 1e-6)]
        if len(first) == 0 or use.sum() - bound < _CLOSE or time.monotonic() >= deadline:
            break
        new = np.unique(np.sort(packs_with(sizes, worth, most, room, first, most_items), axis=1), axis=0)
        if len(items) > 6 * len(knots) + 500:
            cost = 1 - rows @ duals
            cost[use > 0] = -1
            kept = np.sort(np.argsort(cost, kind="stable")[: 3 * len(knots) + 250])
            items, rows = items[kept], rows[kept]
        items, rows = np.concatenate([items, new]), np.concatenate([rows, parts(new)])
    is_used = use >= 1e-6
    patterns = [np.sort(sizes[row[row >= 0]])[::-1] * grain for row in used[is_used]]
    return ManyLengths(patterns=patterns, use=use[is_used], bound=proved, grain=grain, knots=knots * grain)


def _knots(sizes: Int64Array, number: Int64Array, most: int) -> Int64Array:
    """Indices of the knots in `sizes`: both ends, and in between, one per equal share of the tokens."""
    mass = np.cumsum(sizes * number)
    cuts = np.searchsorted(mass, np.linspace(0, mass[-1], most))
    return np.unique(np.concatenate([[0], np.minimum(cuts, len(sizes) - 1), [len(sizes) - 1]]))


@njit(cache=True)
def most_worth(sizes: NDArray[np.int64], worth: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """int64[room + 1]: the greatest worth of a pack that has this much room, with any number of each size.

    Args:
        sizes: int64[v], increasing, at least 1.
        worth: int64[v], not negative.
    """
    best = np.zeros(room + 1, dtype=np.int64)
    # A block reads only entries before it, so the iterations of its inner loop are independent.
    block = sizes[0]
    for first in range(sizes[0], room + 1, block):
        stop = min(first + block, room + 1)
        for r in range(first, stop):
            best[r] = best[first - 1]
        for i in range(len(sizes)):
            if sizes[i] >= stop:
                break
            for r in range(max(first, sizes[i]), stop):
                value = best[r - sizes[i]] + worth[i]
                if value > best[r]:
                    best[r] = value
        for r in range(first, stop):
            best[r] = max(best[r], best[r - 1])
    return best


@njit(cache=True)
def packs_with(
    sizes: NDArray[np.int64],
    worth: NDArray[np.int64],
    most: NDArray[np.int64],
    room: int,
    firsts: NDArray[np.int64],
    most_items: int,
) -> NDArray[np.int32]:
    """For each item of `firsts`, a pack of greatest worth that holds it: int32[f, most_items], padded with -1."""
    packs = np.full((len(firsts), most_items), -1, dtype=np.int32)
    for k in range(len(firsts)):
        packs[k, 0] = firsts[k]
        num = 1
        left = room - sizes[firsts[k]]
        while most[left] > 0:
            while left > 0 and most[left - 1] == most[left]:
                left -= 1
            i = 0
            while most[left - sizes[i]] + worth[i] != most[left]:
                i += 1
            packs[k, num] = i
            num += 1
            left -= sizes[i]
    return packs
