"""Plain-Python twins of the numba kernels: slow, obvious, and compared with them on generated inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

MASK = 0xFFFFFFFFFFFFFFFF


class SplitMix64:
    """Twin of `plan.random`."""

    def __init__(self, state: int) -> None:
        self.state = state

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return ((self.next() >> 32) * bound) >> 32

    def shuffle(self, values: list[int]) -> None:
        for i in range(len(values) - 1, 0, -1):
            j = self.below(i + 1)
            values[i], values[j] = values[j], values[i]


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


def descending(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    packs: list[list[int]] = []
    for i in descending(lengths):
        for pack in packs:
            if sum(lengths[j] for j in pack) + lengths[i] <= capacity:
                pack.append(i)
                break
        else:
            packs.append([i])
    return packs


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Among equally full packs, the one that was touched last."""
    packs: list[list[int]] = []
    touched: list[int] = []
    for clock, i in enumerate(descending(lengths)):
        rooms = [capacity - sum(lengths[j] for j in pack) for pack in packs]
        fitting = [k for k, room in enumerate(rooms) if room >= lengths[i]]
        if fitting:
            k = min(fitting, key=lambda k: (rooms[k], -touched[k]))
        else:
            k = len(packs)
            packs.append([])
            touched.append(0)
        packs[k].append(i)
        touched[k] = clock
    return packs


def iterative_sampling_filling(
    lengths: Sequence[int], capacity: int, least: int, rounds: int, state: int
) -> list[list[int]]:
    rng = SplitMix64(state)
    left = list(range(len(lengths)))
    packs: list[list[int]] = []
    for round_number in range(rounds):
        rng.shuffle(left)
        drawn = [[left[k] for k in pack] for pack in next_fit([lengths[i] for i in left], capacity)]
        left = []
        for pack in drawn:
            if round_number == rounds - 1 or sum(lengths[i] for i in pack) >= least:
                packs.append(pack)
            else:
                left += pack
        if not left:
            break
    return packs


def greedy_fill(room: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """HBP, algorithm 6, read literally: for each pack, the remaining samples from the longest down."""
    remaining = descending(lengths)
    added: list[list[int]] = []
    for free in room:
        chosen = []
        for i in remaining:
            if lengths[i] <= free:
                chosen.append(i)
                free -= lengths[i]
        remaining = [i for i in remaining if i not in chosen]
        added.append(chosen)
    return added


def balanced_fill(
    room: Sequence[int],
    work: Sequence[int],
    order: Sequence[int],
    num_ranks: int,
    lengths: Sequence[int],
    typical: int,
) -> list[tuple[int, int]]:
    """(pack, sample) in the order of choice."""
    remaining = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    chosen = []
    for first in range(0, len(order), num_ranks):
        packs = order[first : first + num_ranks]
        target = max(float(work[k]) + float(room[k]) * typical for k in packs)
        for k in packs:
            free, done = room[k], float(work[k])
            while free > 0 and remaining:
                wanted = filler_length(free, target - done)
                fitting = [i for i in remaining if lengths[i] <= wanted]
                longest = max((lengths[i] for i in fitting), default=lengths[remaining[0]])
                if longest > free:
                    break
                sample = next(i for i in remaining if lengths[i] == longest)
                remaining.remove(sample)
                chosen.append((k, sample))
                free -= longest
                done += float(longest) * longest
    return chosen


def filler_length(free: int, lack: float) -> int:
    square = float(free) * free
    if lack >= square:
        return free
    if lack <= free:
        return 1
    k = np.ceil(square / lack)
    return max(1, int((free + np.sqrt((k - 1) * max(0.0, k * lack - square))) / k))


def spread(lengths: Sequence[int], order: Iterable[int], capacity: int, num_rows: int) -> list[int] | None:
    tokens, work, row_of = [0] * num_rows, [0] * num_rows, [-1] * len(lengths)
    for i in order:
        rows = [r for r in range(num_rows) if tokens[r] + lengths[i] <= capacity]
        if not rows:
            return None
        best = min(rows, key=lambda r: (work[r], tokens[r], r))
        row_of[i] = best
        tokens[best] += lengths[i]
        work[best] += lengths[i] ** 2
    return row_of


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


def steps_of(tokens: Sequence[int], target: int) -> list[int]:
    steps: list[int] = []
    step, total = 0, 0
    for count in tokens:
        if steps and abs(total + count - target) > abs(target - total) and total + count > target:
            step, total = step + 1, 0
        steps.append(step)
        total += count
    return steps


def packs_of(offsets: np.ndarray, members: np.ndarray) -> list[list[int]]:
    """Compressed arrays as lists."""
    return [members[a:b].tolist() for a, b in itertools.pairwise(offsets)]
