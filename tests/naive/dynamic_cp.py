"""Twin of context parallelism of a degree that a step's samples decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

BLOCK = 8
Placed = dict[int, tuple[int, int]]
"""Pack -> its round and first rank."""


def pack_by_need(lengths: Sequence[int], capacity: Sequence[int], *, shares_rows: bool) -> tuple[list[int], list[int]]:
    """Pack of each sample (falling lengths), and the degree of each pack."""
    room: list[int] = []
    kinds: list[int] = []
    pack_of = []
    for length in lengths:
        kind = min(k for k, most in enumerate(capacity) if most >= length)
        able = [p for p in range(len(room)) if room[p] >= length and (shares_rows or kinds[p] == kind == 0)]
        if not able:
            able = [len(room)]
            room.append(capacity[kind])
            kinds.append(kind)
        pack = min(able, key=lambda p: room[p])
        room[pack] -= length
        pack_of.append(pack)
    return pack_of, kinds


def place(taken: set[int], degree: int, num_ranks: int) -> int | None:
    """First rank of a replica: in the emptiest block, or in blocks of its own."""
    free = [
        [rank for rank in range(b, min(b + BLOCK, num_ranks)) if rank not in taken] for b in range(0, num_ranks, BLOCK)
    ]
    if degree <= BLOCK:
        able = [block for block in free if len(block) >= degree]
        return max(able, key=len)[0] if able else None
    blocks = -(-degree // BLOCK)
    stride = 1 << (blocks - 1).bit_length()
    for first in range(0, num_ranks - degree + 1, stride * BLOCK):
        if not taken & set(range(first, min(first + blocks * BLOCK, num_ranks))):
            return first
    return None


def form_rounds(degrees: Sequence[int], kinds: Sequence[int], seconds: Sequence[float], num_ranks: int) -> Placed:
    """The rounds of a step's packs, one a replica."""
    waiting = sorted(range(len(kinds)), key=lambda p: -seconds[p])
    placed: Placed = {}
    number = 0
    while waiting:
        taken: set[int] = set()
        for pack in list(waiting):
            degree = degrees[kinds[pack]]
            first = place(taken, degree, num_ranks)
            if first is not None:
                taken |= set(range(first, first + degree))
                placed[pack] = number, first
                waiting.remove(pack)
        number += 1
    return placed


def place_freely(order: Sequence[int], degree: Sequence[int], seconds: Sequence[float], num_ranks: int) -> list[int]:
    """First rank of each pack, one after another where it begins first."""
    ready = [0.0] * num_ranks
    first_rank = [-1] * len(order)
    for pack in order:
        size = degree[pack]
        inside = [a for a in range(num_ranks - size + 1) if a // BLOCK == (a + size - 1) // BLOCK]
        aligned = [a for a in range(num_ranks - size + 1) if a % (1 << (size - 1).bit_length()) == 0]

        def waits(first: int, size: int = size) -> tuple[float, float]:
            own = ready[first : first + size]
            return max(own), sum(max(own) - each for each in own)

        best = min(inside if size <= BLOCK else aligned, key=waits)
        end = waits(best)[0] + seconds[pack]
        ready[best : best + size] = [end] * size
        first_rank[pack] = best
    return first_rank


def least_rounds(order: Sequence[int], degree: Sequence[int], first_rank: Sequence[int], num_ranks: int) -> int:
    """The fewest rounds in which ranks can run packs in this order: the most replicas, one after another."""
    ran: list[tuple[int, tuple[int, int] | None]] = [(0, None)] * num_ranks  # Rounds so far, and the last replica.
    for pack in order:
        own = range(first_rank[pack], first_rank[pack] + degree[pack])
        replica = (degree[pack], first_rank[pack])
        is_new = any(ran[rank][1] != replica for rank in own)
        number = max(ran[rank][0] for rank in own) + is_new
        for rank in own:
            ran[rank] = number, replica
    return max(number for number, _ in ran)


def least_slowest(
    least: Sequence[int], seconds: Sequence[Sequence[float]], degrees: Sequence[int], ranks: int
) -> float:
    """FCP's program for packs of one block, by trying all degrees of at least each one's least (as indices)."""
    choices = product(*(range(k, len(degrees)) for k in least))
    return min(
        max(seconds[k][i] for i, k in enumerate(chosen))
        for chosen in choices
        if sum(degrees[k] for k in chosen) <= ranks
    )


def dynamic_rounds(
    lengths: Sequence[int], degrees: Sequence[int], capacity: Sequence[int], num_ranks: int
) -> Iterator[list[tuple[int, list[int]]]]:
    """Megatron-LM's rounds: the degree and the samples of each replica, rank by rank as its code keeps them."""
    waiting = list(range(len(lengths)))  # By falling length.
    while waiting:
        limit = 1.05 * lengths[waiting[0]] * capacity[0]
        work = [0.0] * num_ranks
        owner: list[int | None] = [None] * num_ranks
        replicas: list[tuple[int, list[int]]] = []
        left = []
        for sample in waiting:
            length = lengths[sample]
            best: tuple[float, int, int | None, list[int]] | None = None
            for kind, degree in enumerate(degrees):
                if capacity[kind] < length:
                    continue
                places = [
                    (g, [rank for rank in range(num_ranks) if owner[rank] == g])
                    for g, (k, members) in enumerate(replicas)
                    if k == kind and sum(lengths[i] for i in members) + length <= capacity[kind]
                ]
                free = [rank for rank in range(num_ranks) if owner[rank] is None][:degree]
                new: list[tuple[int | None, list[int]]] = [(None, free)] if len(free) == degree else []
                for group, ranks in [*places, *new]:
                    after = max(load + length**2 / degree * (rank in ranks) for rank, load in enumerate(work))
                    if (after <= limit or not replicas) and (best is None or after < best[0]):
                        best = after, kind, group, ranks
                if best is not None and not replicas:
                    break
            if best is None:
                left.append(sample)
                continue
            _, kind, group, ranks = best
            if group is None:
                group = len(replicas)
                replicas.append((kind, []))
                for rank in ranks:
                    owner[rank] = group
            replicas[group][1].append(sample)
            for rank in ranks:
                work[rank] += length**2 / degrees[kind]
        idle = owner.count(None)
        while idle:
            group = min(range(len(replicas)), key=lambda g: replicas[g][0])
            kind = replicas[group][0]
            more = degrees[kind + 1] - degrees[kind] if kind + 1 < len(degrees) else num_ranks
            if more <= idle:
                replicas[group] = kind + 1, replicas[group][1]
                idle -= more
                continue
            if degrees[-1] == num_ranks:
                members: list[int] = []
                for sample in waiting:
                    if sum(lengths[i] for i in [*members, sample]) <= capacity[-1]:
                        members.append(sample)
                replicas = [(len(degrees) - 1, members)]
                left = [sample for sample in waiting if sample not in members]
            break
        yield replicas
        waiting = left
