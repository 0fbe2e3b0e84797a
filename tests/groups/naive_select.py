"""Plain twins of `packer_cli.groups`: samples one by one, and every set of groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from packer_cli.cost.predict import CostModel
from packer_cli.plan.core.groups import Group


def gpu_seconds(lengths: Sequence[int], groups: Sequence[Group], cost: CostModel, num_gpus: int) -> float:
    """Twin of `EpochModel.gpu_seconds`."""
    total, below = 0.0, 0
    for group in groups:
        own = sorted((s for s in lengths if below < s <= group.capacity), reverse=True)
        shorter = [s for s in lengths if s <= below]
        if own:
            total = _add(total, own, shorter, group, below, cost, num_gpus)
        below = group.capacity
    return total


def _add(
    total: float,
    own: Sequence[int],
    shorter: Sequence[int],
    group: Group,
    below: int,
    cost: CostModel,
    num_gpus: int,
) -> float:
    capacity, ranks = group.capacity, num_gpus // group.sp_size
    packs = max(least_packs(own, capacity), min(sum(own) * 16 / 15, sum(own) + sum(shorter) / 2) / capacity)
    share = min(1.0, max(0.0, packs * capacity - sum(own)) / sum(shorter)) if shorter else 0.0
    again = 1 + cost.recompute * group.checkpoint_layers / cost.num_layers
    sent = 0.0
    if group.sp_size > 1:
        sent = cost.send[group.sp_size] * (1 + cost.resend * group.checkpoint_layers / cost.num_layers)

    def alone(samples: Sequence[int]) -> float:
        work = sum(cost.quadratic * s * s + cost.linear * s for s in samples) * again
        return work + group.sp_size * sent * sum(samples)

    large = [s for s in own if s > max(capacity // 2, below)]
    waiting = 0.0
    if large:
        waiting = min(sum(large[0] ** 2 - s**2 for s in large), (ranks - 1) / 2 * (large[0] ** 2 - large[-1] ** 2))
        waiting += -len(large) % ranks * large[-1] ** 2
    constant = cost.constant + (cost.send_constant if group.sp_size > 1 else 0)
    return (
        (1 - share) * total
        + alone(own)
        + share * alone(shorter)
        + cost.quadratic * again * waiting
        + math.ceil(packs / ranks) * num_gpus * constant
    )


def least_packs(own: Sequence[int], capacity: int) -> float:
    """Martello and Toth's L2 at four thresholds, not rounded up."""
    bounds = []
    for divisor in (3, 4, 8, capacity + 1):
        least = max(capacity // divisor, 1)
        large = [s for s in own if s > capacity // 2]
        room = sum(capacity - s for s in large if s <= capacity - least)
        small = sum(s for s in own if least <= s <= capacity // 2)
        bounds.append(len(large) + max(0, small - room) / capacity)
    return max(bounds)


def all_sets(settings: Mapping[int, Sequence[Group]], longest: int, count: int) -> Iterator[tuple[Group, ...]]:
    """Every set of so many groups that holds the longest sample, each with every way to run it."""
    for chosen in itertools.combinations(sorted(settings), count):
        if chosen[-1] >= longest:
            yield from itertools.product(*(settings[length] for length in chosen))
