"""The shardings of a row, dealt token by token, and what each rank computes."""

from __future__ import annotations

from collections.abc import Callable

from packer_cli.format.sharding import STRETCHED


def runs(lengths: list[int], sp_size: int, sharding: str) -> list[tuple[int, int, int, int]]:
    """Rank, start and stop in the row, and the start of its sample, of each run of tokens; chunk by chunk."""
    ranks = [*range(sp_size), *reversed(range(sp_size))]
    """The rank of each chunk."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    found = []
    if sharding != "document":
        num_chunks = sp_size if sharding == "contiguous" else 2 * sp_size
        chunk = -(-sum(lengths) // num_chunks)
        for k in range(num_chunks):
            for start, length in zip(starts, lengths, strict=True):
                overlap = max(start, k * chunk), min(start + length, (k + 1) * chunk)
                found += [(ranks[k], *overlap, start)]
        return [run for run in found if run[1] < run[2]]
    turn = 0
    singles = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        chunk, rest = divmod(lengths[i], 2 * sp_size)
        sizes = [chunk] * (2 * sp_size)
        if chunk >= STRETCHED:
            for _ in range(rest):
                sizes[turn % (2 * sp_size)] += 1
                turn += 1
        place = starts[i]
        for rank, size in zip(ranks, sizes, strict=True):
            found.append((rank, place, place + size, starts[i]))
            place += size
        singles += [(starts[i] - token, token) for token in range(place, starts[i] + lengths[i])]
    for before, token in sorted(singles):  # Those with the most tokens of their sample before them come first.
        found.append((ranks[turn % (2 * sp_size)], token, token + 1, token + before))
        turn += 1
    return [run for run in found if run[1] < run[2]]


def shard(lengths: list[int], sp_size: int, sharding: str) -> list[list[int]]:
    """The places that each rank holds."""
    parts: list[list[int]] = [[] for _ in range(sp_size)]
    for rank, start, stop, _ in runs(lengths, sp_size, sharding):
        parts[rank] += range(start, stop)
    return [sorted(part) for part in parts]


def seconds(lengths: list[int], cp_size: int, sharding: str, rate: Callable[[int, int], float]) -> float:
    """Time of the slowest rank: tiles of 128 queries times the keys of the middle query, over the kernel's rate."""
    of_rank = [0.0] * cp_size
    for rank, start, stop, first in runs(lengths, cp_size, sharding):
        keys = [place - first + 1 for place in range(start, stop)]
        of_rank[rank] += 128 * -(-len(keys) // 128) * (sum(keys) / len(keys)) / rate(len(keys), keys[-1])
    return max(of_rank)


def imbalance(lengths: list[int], cp_size: int, sharding: str) -> float:
    """Keys that the queries of the busiest rank see, over the mean of the ranks."""
    of_rank = [0] * cp_size
    for rank, start, stop, first in runs(lengths, cp_size, sharding):
        of_rank[rank] += sum(place - first + 1 for place in range(start, stop))
    return max(of_rank) / (sum(of_rank) / cp_size)


def slowdown(lengths: list[int], cp_size: int, sharding: str) -> float:
    """Time of the slowest rank, over that of whole samples if all ranks shared it evenly."""
    alone = sum(seconds([length], 1, "contiguous", lambda q, kv: 1.0) for length in lengths)
    return seconds(lengths, cp_size, sharding, lambda q, kv: 1.0) * cp_size / alone


def most_apart(lengths: list[int], sp_size: int) -> int:
    """The bound that `packer_cli.format.sharding` proves on how far apart the work of two ranks is, per document."""
    stretched = [length for length in lengths if length // (2 * sp_size) >= STRETCHED]
    others = [length for length in lengths if length not in stretched and length % (2 * sp_size)]
    longest_chunk = max(stretched, default=0) // (2 * sp_size)
    num_stretched = sum(length % (2 * sp_size) > 0 for length in stretched)
    of_singles = 2 * max(others, default=0)
    return (3 * sp_size - 2) * longest_chunk + (2 * sp_size + 1) * num_stretched + of_singles
