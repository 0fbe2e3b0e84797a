"""The shardings of a row, dealt token by token, and what each rank computes."""

from __future__ import annotations

from packer_cli.format.sharding import STRETCHED


def shard(lengths: list[int], sp_size: int, sharding: str) -> list[list[int]]:
    """The places that each rank holds."""
    ranks = [*range(sp_size), *reversed(range(sp_size))]
    """The rank of each chunk."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    parts: list[list[int]] = [[] for _ in range(sp_size)]
    if sharding == "contiguous":
        for place in range(sum(lengths)):
            parts[place // (sum(lengths) // sp_size)].append(place)
        return parts
    if sharding == "zigzag":
        lengths, starts = [sum(lengths)], [0]
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
            parts[rank] += range(place, place + size)
            place += size
        singles += [(starts[i] - token, token) for token in range(place, starts[i] + lengths[i])]
    for _, token in sorted(singles):  # Those with the most tokens of their sample before them come first.
        parts[ranks[turn % (2 * sp_size)]].append(token)
        turn += 1
    return [sorted(part) for part in parts]


def most_apart(lengths: list[int], sp_size: int) -> int:
    """The bound that `packer_cli.format.sharding` proves on how far apart the work of two ranks is, per document."""
    stretched = [length for length in lengths if length // (2 * sp_size) >= STRETCHED]
    others = [length for length in lengths if length not in stretched and length % (2 * sp_size)]
    longest_chunk = max(stretched, default=0) // (2 * sp_size)
    num_stretched = sum(length % (2 * sp_size) > 0 for length in stretched)
    of_singles = 2 * max(others, default=0)
    return (3 * sp_size - 2) * longest_chunk + (2 * sp_size + 1) * num_stretched + of_singles
