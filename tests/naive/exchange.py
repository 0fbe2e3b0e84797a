"""Plain-Python twins of `plan.kernels.refine` and the bounds: moves as sets of places, all scored alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

Move = tuple[frozenset[int], frozenset[int]]
"""Places in the heavy row and in the light row that change sides."""


def at_least(row: Sequence[int], least: int) -> int:
    """Samples of at least this length."""
    return sum(length >= least for length in row)


def best_move(
    heavy: list[int], light: list[int], room_heavy: int, room_light: int, linear: int = 0
) -> tuple[int, Move | None]:
    """(gap that is left, move) of the first of the moves tried that leaves least; the gap itself and None."""
    gap = work_of(heavy, linear) - work_of(light, linear)
    left, best = gap, None
    stride = max(1, len(light) // 8)
    room = (room_heavy, room_light)

    def choose(moves: Iterator[Move]) -> None:
        nonlocal left, best
        for given, received in moves:
            tokens = sum(light[q] for q in received) - sum(heavy[q] for q in given)
            moved = work_of([heavy[q] for q in given], linear) - work_of([light[q] for q in received], linear)
            if -room_light <= tokens <= room_heavy and abs(gap - 2 * moved) < left:
                left, best = abs(gap - 2 * moved), (given, received)

    choose(single_moves(heavy, light, gap, room_light, linear))
    choose(one_for_many(heavy, light, gap, room, stride))
    if 2 * left > gap:
        choose(blocks(heavy, light, gap, room, linear))
    if 2 * left > gap and 1 < stride <= 6:
        choose(one_for_many(heavy, light, gap, room, 1))
    return left, best


def work_of(row: Sequence[int], linear: int = 0) -> int:
    return sum(length * (length + linear) for length in row)


def single_moves(heavy: list[int], light: list[int], gap: int, room_light: int, linear: int) -> Iterator[Move]:
    for i, x in enumerate(heavy):
        if i and x == heavy[i - 1]:
            continue
        if len(heavy) > 1:
            yield frozenset({i}), frozenset()
        # The positive root of y (y + linear) = rest.
        rest = max(0.0, x * (x + linear) - gap / 2)
        ideal = math.ceil((math.sqrt(float(linear) * linear + 4 * rest) - linear) / 2)
        near = at_least(light, max(ideal, x - room_light)) - 1
        for j in range(max(near, 0), min(near + 2, len(light))):
            if light[j] < x:
                yield frozenset({i}), frozenset({j})


def one_for_many(heavy: list[int], light: list[int], gap: int, room: tuple[int, int], stride: int) -> Iterator[Move]:
    for j in range(0, len(light), stride):
        y = light[j]
        near = at_least(heavy, math.ceil((y + math.sqrt(y * y + 2.0 * gap)) / 2)) - 1
        for i in range(max(near - 1, 0), min(near + 3, len(heavy))):
            if heavy[i] <= y:
                continue
            yield from fill_place(heavy, light, frozenset({i}), j, room)
            free = heavy[i] + room[0]
            last = prefix(light, j, free)
            over = sum(light[j : last + 1]) - free  # what the next one lacks
            if last == len(light) or free - sum(light[j:last]) <= sum(room):
                continue
            tail = len(heavy)
            while over > 0 and tail > i + 1:
                tail -= 1
                over -= heavy[tail]
            yield from fill_place(heavy, light, frozenset({i, *range(tail, len(heavy))}), j, room)


def prefix(light: list[int], start: int, tokens: int) -> int:
    """The greatest place up to which the samples from `start` on have at most so many tokens."""
    last = start
    while last < len(light) and sum(light[start : last + 1]) <= tokens:
        last += 1
    return last


def blocks(heavy: list[int], light: list[int], gap: int, room: tuple[int, int], linear: int) -> Iterator[Move]:
    def is_enough(i: int, end: int, j: int) -> bool:
        free = sum(heavy[i:end]) + room[0]
        last = prefix(light, j, free)
        moved = work_of(heavy[i:end], linear) - work_of(light[j:last], linear)
        return 2 * moved >= gap or free - sum(light[j:last]) > sum(room)

    starts = [0] + [2**k for k in range(len(heavy).bit_length()) if 2**k < len(heavy)]
    for i in starts:
        for k in range(len(light).bit_length()):
            j = len(light) - 2**k
            if j < 0 or light[j] >= heavy[i]:
                break
            low, high = i + 1, len(heavy)
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if is_enough(i, middle, j) else (middle + 1, high)
            for end in range(max(i + 1, low - 1), low + 1):
                yield from fill_place(heavy, light, frozenset(range(i, end)), j, room)


def fill_place(
    heavy: list[int], light: list[int], given: frozenset[int], start: int, room: tuple[int, int]
) -> Iterator[Move]:
    place = sum(heavy[q] for q in given) + room[0]
    last = prefix(light, start, place)
    for stop in range(last, max(start, last - 3), -1):
        row = set(range(start, stop))
        free = place - sum(light[start:stop])
        yield given, frozenset(row)
        if free > sum(room):
            for but in range(start, stop, max(1, len(row) // 16)):
                other = at_least(light, light[but] + free + 1)
                if other not in row:
                    yield given, frozenset(row - {but} | {other})
        first = max(stop, at_least(light, free + 1))
        for j in range(first, min(first + 8, len(light))):
            yield given, frozenset(row | {j})
            other = max(j + 1, at_least(light, free - light[j] + 1))
            if other < len(light):
                yield given, frozenset(row | {j, other})


def refine(
    packs: list[list[int]], lengths: Sequence[int], capacity: int, limit: float, most_tries: int, linear: int = 0
) -> None:
    """Twin of `exchange_until` for the packs of one iteration, lists of samples by falling length."""
    width = min(sum(map(len, packs)), 8 * max(map(len, packs)))
    tries = 0
    while tries < most_tries:
        rows = [[lengths[sample] for sample in pack] for pack in packs]
        works = [work_of(row, linear) for row in rows]
        heavy = works.index(max(works))
        if works[heavy] <= limit:
            return
        by_work = sorted((p for p in range(len(packs)) if p != heavy), key=lambda p: works[p])
        for light in by_work[:31]:
            tries += 1
            room = capacity - sum(rows[heavy]), capacity - sum(rows[light])
            left, move = best_move(rows[heavy], rows[light], *room, linear)
            if move is None or left >= works[heavy] - works[light] or grown(rows[heavy], rows[light], move) > width:
                continue
            given, received = (
                [pack[q] for q in sorted(places)]
                for pack, places in zip((packs[heavy], packs[light]), move, strict=True)
            )
            of_heavy = [sample for sample in packs[heavy] if sample not in given]
            of_light = [sample for sample in packs[light] if sample not in received]
            # Of equal samples, those that were the heavy pack's come first.
            packs[heavy] = sorted(of_heavy + received, key=lambda sample: -lengths[sample])
            packs[light] = sorted(given + of_light, key=lambda sample: -lengths[sample])
            break
        else:
            return


def grown(heavy: list[int], light: list[int], move: Move) -> int:
    """Samples of the larger pack after the move."""
    more = len(move[1]) - len(move[0])
    return max(len(heavy) + more, len(light) - more)


def least_max_work(lengths: Sequence[int], num_ranks: int, capacity: int, linear: int = 0) -> int:
    """The least greatest work by trying every deal; 0 where none fits."""
    best: list[int] = []

    def deal(rest: list[int], ranks: list[list[int]]) -> None:
        greatest = max(work_of(rank, linear) for rank in ranks)
        if best and greatest >= best[0]:
            return
        if not rest:
            best[:] = [greatest]
            return
        for rank in range(num_ranks):
            if sum(ranks[rank]) + rest[0] <= capacity:
                ranks[rank].append(rest[0])
                deal(rest[1:], ranks)
                ranks[rank].pop()
            if not ranks[rank]:
                break  # empty ranks are alike

    deal(sorted(lengths, reverse=True), [[] for _ in range(num_ranks)])
    return best[0] if best else 0


def work_bound(lengths: Sequence[int], num_ranks: int, capacity: int, linear: int = 0) -> int:
    """Twin of `bounds.least_max_work`: its three bounds, sample by sample and in fractions."""
    falling = sorted(lengths, reverse=True)
    if not falling:
        return 0
    tokens = sum(falling)
    bounds = [Fraction(work_of(falling, linear), num_ranks), Fraction(work_of(falling[:1], linear))]
    for k in range(1, min(num_ranks, len(falling)) + 1):
        besides = tokens - sum(falling[:k]) - (num_ranks - k) * capacity
        least = work_of(falling[:k], linear) + partly(falling[::-1], besides, linear)
        bound = Fraction(math.ceil(Fraction(least, k)))
        bounds.append(min(bound, work_of(falling[k - 2 : k], linear)) if k > 1 else bound)
    big = [length for length in falling if 2 * length > capacity]
    small = falling[len(big) :]
    if len(big) <= num_ranks:
        frees = [capacity - length for length in big] + [capacity] * (num_ranks - len(big))
        most = [partly([length for length in small if length <= free], free, linear) for free in frees]
        alone = [work_of([length], linear) for length in big] + [0] * num_ranks
        most = sorted(work + own for work, own in zip(most, alone, strict=False))
        left = work_of(falling, linear)
        for k, work in enumerate(most):
            share = math.ceil(Fraction(left, num_ranks - k))
            if share <= work:
                bounds.append(Fraction(share))
                break
            left -= work
    return math.ceil(max(bounds))


def partly(lengths: Sequence[int], tokens: int, linear: int) -> int:
    """Work of the first samples of so many tokens, the last of them in part."""
    work = 0
    for length in lengths:
        part = min(length, max(tokens, 0))
        work += part * (length + linear)
        tokens -= part
    return work
