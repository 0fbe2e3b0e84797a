"""Twins of filling, spreading, steps and their order, and of copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from tests.naive.packing import descending
from tests.naive.random import MASK, SplitMix64


def greedy_fill(room: Sequence[int], lengths: Sequence[int], capacities: Sequence[int]) -> list[list[int]]:
    """HBP, algorithm 6, as printed, but that it removes samples after its innermost loop and not in it."""
    groups = [
        [i for i, length in enumerate(lengths) if shortest < length <= longest]
        for shortest, longest in zip((0, *capacities), capacities, strict=False)
    ]
    added: list[list[int]] = []
    for free in room:
        chosen = []
        for j in reversed(range(len(groups))):
            for i in groups[j]:
                if lengths[i] <= free:
                    chosen.append(i)
                    free -= lengths[i]
            groups[j] = [i for i in groups[j] if i not in chosen]
        added.append(chosen)
    return added


def longest_fill(room: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """For each pack, the remaining samples from the longest down."""
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
                wanted = filling_length(free, target - done)
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


def filling_length(free: int, lack: float) -> int:
    square = float(free) * free
    if lack >= square:
        return free
    if lack <= free:
        return 1
    k = np.ceil(square / lack)
    return max(1, int((free + np.sqrt((k - 1) * max(0.0, k * lack - square))) / k))


def spread(
    lengths: Sequence[int],
    own_work: Sequence[int],
    order: Iterable[int],
    capacity: int,
    num_rows: int,
    *,
    evens_tokens: bool = True,
) -> list[int]:
    tokens, work, row_of = [0] * num_rows, [0] * num_rows, [-1] * len(lengths)
    for i in order:
        rows = [r for r in range(num_rows) if tokens[r] + lengths[i] <= capacity]
        if not rows:
            continue
        best = min(rows, key=lambda r: (work[r], tokens[r] if evens_tokens else 0, r))
        row_of[i] = best
        tokens[best] += lengths[i]
        work[best] += own_work[i]
    return row_of


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


def spread_by_rank(values: Sequence[int], rng: SplitMix64) -> list[int]:
    num = len(values)
    first, second = list(range(num)), list(range(num))
    rng.shuffle(first)
    rng.shuffle(second)
    by_rank = sorted(first, key=lambda i: values[i])  # stable: equal ones stay shuffled
    by_class = [[by_rank[rank] for rank in range(num) if rank * 10 // num == c] for c in range(10)]
    drawn: list[int] = []
    for members in by_class:
        start = len(drawn)
        drawn += [by_rank[rank] for rank in sorted(range(start, start + len(members)), key=lambda rank: second[rank])]
    phase = rng.next()
    quantiles = [(k * 0x9E3779B97F4A7C15 + phase) & MASK for k in range(num)]
    return [drawn[sorted(quantiles).index(quantile)] for quantile in quantiles]


def stratify(group: Sequence[int], work: Sequence[int], state: int) -> list[int]:
    rng = SplitMix64(state)
    places: dict[int, float] = {}
    for g in range(max(group, default=-1) + 1):
        members = [i for i in range(len(group)) if group[i] == g]
        order = spread_by_rank([work[i] for i in members], rng)
        start = (rng.next() >> 11) / 2**53
        places |= {members[k]: (number + start) / len(members) for number, k in enumerate(order)}
    return sorted(range(len(group)), key=lambda i: (places[i], i))
