"""Twins of `plan.packing`, of the bound on packs, and of sorting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

from tests.naive.random import SplitMix64, shuffled


def next_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    packs: list[list[int]] = []
    room = 0
    for i, length in enumerate(lengths):
        if not packs or length > room:
            packs.append([])
            room = capacity
        packs[-1].append(i)
        room -= length
    return packs


def padded_batches(lengths: Sequence[int], order: Sequence[int], capacity: int, most: int) -> list[list[int]]:
    """Consecutive samples of at most `most` (0: any number), whose number times the longest fits the capacity."""
    batches: list[list[int]] = []
    for i in order:
        batch = [*batches[-1], i] if batches else []
        if batch and (most == 0 or len(batch) <= most) and len(batch) * max(lengths[j] for j in batch) <= capacity:
            batches[-1] = batch
        else:
            batches.append([i])
    return batches


def descending(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def in_order(lengths: Sequence[int], order: Sequence[int], capacity: int) -> list[list[int]]:
    """Next-fit of the samples in an order."""
    return [[order[k] for k in pack] for pack in next_fit([lengths[i] for i in order], capacity)]


def first_fit(lengths: Sequence[int], order: Sequence[int], capacity: int) -> list[list[int]]:
    packs: list[list[int]] = []
    for i in order:
        for pack in packs:
            if sum(lengths[j] for j in pack) + lengths[i] <= capacity:
                pack.append(i)
                break
        else:
            packs.append([i])
    return packs


def best_fit(lengths: Sequence[int], order: Sequence[int], capacity: int) -> list[list[int]]:
    """Among equally full packs, the one that was touched last."""
    return fit_by_room(lengths, order, capacity, lambda room, touched: (room, -touched))


def worst_fit_decreasing(lengths: Sequence[int], capacity: int, max_samples: int) -> list[list[int]]:
    """Among packs of equal room, the one that was touched last."""
    order = descending(lengths)
    return fit_by_room(lengths, order, capacity, lambda room, touched: (-room, -touched), max_samples)


def fit_by_room(
    lengths: Sequence[int],
    order: Sequence[int],
    capacity: int,
    key: Callable[[int, int], tuple[int, int]],
    max_samples: int = 0,
) -> list[list[int]]:
    packs: list[list[int]] = []
    touched: list[int] = []
    for clock, i in enumerate(order):
        rooms = [capacity - sum(lengths[j] for j in pack) for pack in packs]
        fitting = [
            k
            for k, room in enumerate(rooms)
            if room >= lengths[i] and (max_samples == 0 or len(packs[k]) < max_samples)
        ]
        if fitting:
            k = min(fitting, key=lambda k: key(rooms[k], touched[k]))
        else:
            k = len(packs)
            packs.append([])
            touched.append(0)
        packs[k].append(i)
        touched[k] = clock
    return packs


def place_limited(
    lengths: Sequence[int], packs: Sequence[tuple[int, int]], capacity: int, most: int
) -> tuple[list[int], int]:
    """Best-fit into packs of (free tokens, samples that it may take); of equally full ones, the last touched.

    Returns the pack of each sample, and the number of packs.
    """
    rooms, slots = [room for room, _ in packs], [slot for _, slot in packs]
    touched = list(range(len(packs)))
    found = []
    for length in lengths:
        fitting = [k for k in range(len(rooms)) if rooms[k] >= length and slots[k] > 0]
        if fitting:
            pack = min(fitting, key=lambda k: (rooms[k], -touched[k]))
        else:
            pack = len(rooms)
            rooms.append(capacity)
            slots.append(most)
            touched.append(0)
        rooms[pack] -= length
        slots[pack] -= 1
        touched[pack] = len(packs) + len(found)
        found.append(pack)
    return found, len(rooms)


def wrap(pieces: Sequence[tuple[int, int, int]], capacity: int, state: int) -> list[list[tuple[int, int, int]]]:
    """Rows of (sample, start, length), token by token."""
    stretches: list[list[tuple[int, int]]] = []
    for sample, start, length in pieces:
        if not stretches or stretches[-1][-1] != (sample, start - 1):
            stretches.append([])
        stretches[-1] += [(sample, start + k) for k in range(length)]
    tokens = [(number, *token) for number in shuffled(len(stretches), state) for token in stretches[number]]
    rows = []
    for first in range(0, len(tokens), capacity):
        row = itertools.groupby(tokens[first : first + capacity], key=lambda token: token[:2])
        parts = [(sample, [token[2] for token in part]) for (_, sample), part in row]
        rows.append([(sample, part[0], len(part)) for sample, part in parts])
    return rows


def iterative_sampling_filling(
    lengths: Sequence[int], capacity: int, least: int, rounds: int, state: int, bits: int = 0
) -> list[list[int]]:
    return isf_of_needs([[length] for length in lengths], [capacity], [least], rounds, state, bits)


Needs = Sequence[Sequence[int]]
"""Of each piece, of each need."""


def sums_of(needs: Needs, pack: Sequence[int]) -> list[int]:
    return [sum(each) for each in zip(*(needs[i] for i in pack), strict=True)]


def isf_of_needs(
    needs: Needs, limits: Sequence[int], least: Sequence[int], rounds: int, state: int, bits: int = 0
) -> list[list[int]]:
    rng = SplitMix64(state)
    left = list(range(len(needs)))
    packs: list[list[int]] = []
    for round_number in range(rounds):
        if bits:
            rng.shuffle_buckets(left, bits)
        else:
            rng.shuffle(left)
        drawn: list[list[int]] = []
        for i in left:
            if not drawn or any(map(int.__gt__, sums_of(needs, [*drawn[-1], i]), limits)):
                drawn.append([])
            drawn[-1].append(i)
        left = []
        for pack in drawn:
            if round_number == rounds - 1 or any(map(int.__ge__, sums_of(needs, pack), least)):
                packs.append(pack)
            else:
                left += pack
        if not left:
            break
    return packs


def l2_bound(lengths: Sequence[int], capacity: int) -> int:
    """Martello and Toth, as in the textbook."""
    best = 0
    for a in range(capacity // 2 + 1):
        alone = [s for s in lengths if s > capacity - a]
        big = [s for s in lengths if capacity - a >= s > capacity / 2]
        small = [s for s in lengths if capacity / 2 >= s >= a]
        over = sum(small) - (len(big) * capacity - sum(big))
        best = max(best, len(alone) + len(big) + max(0, -(-over // capacity)))
    return best


def fewest_packs(lengths: Sequence[int], capacity: int) -> int:
    """Exact, by trying everything; for a handful of samples."""
    best = len(lengths)

    def place(i: int, rooms: list[int]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if i == len(lengths):
            best = len(rooms)
            return
        for k in {room: k for k, room in enumerate(rooms)}.values():
            if rooms[k] >= lengths[i]:
                rooms[k] -= lengths[i]
                place(i + 1, rooms)
                rooms[k] += lengths[i]
        place(i + 1, [*rooms, capacity - lengths[i]])

    place(0, [])
    return best


def decompose(length: int, longest: int, shortest: int = 64) -> list[tuple[int, int]]:
    """(start, length) of the pieces of a sample: the powers of two of its length, and a rest below the shortest."""
    found, start, left = [], 0, length
    while left > 0:
        powers = [1 << k for k in range(32) if min(shortest, longest) <= 1 << k <= min(left, longest)]
        size = max(powers, default=left)
        found.append((start, size))
        start, left = start + size, left - size
    return found


def fit_needs(needs: Needs, limits: Sequence[int], order: Sequence[int], *, is_best: bool) -> list[list[int]]:
    packs: list[list[int]] = []
    for i in order:
        fitting = [pack for pack in packs if all(map(int.__le__, sums_of(needs, [*pack, i]), limits))]
        if not fitting:
            packs.append(fitting_one := [])
        elif is_best:
            fitting_one = max(fitting, key=lambda pack: max(map(Fraction, sums_of(needs, pack), limits)))
        else:
            fitting_one = fitting[0]
        fitting_one.append(i)
    return packs
