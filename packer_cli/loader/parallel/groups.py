"""Process groups of all replicas, created once, so that an iteration can switch at no cost (HBP, adaptive SP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class SPGroups:
    """The SP groups of this process: one for each replica that it belongs to."""

    rank: int
    """This process's number among those that read the set: the `rank` of `PackedDataset`."""
    world_size: int
    groups: Mapping[tuple[int, int], dist.ProcessGroup]
    """(degree, first rank) -> group, for degrees above 1."""

    def for_batch(self, batch: Mapping[str, Any]) -> dist.ProcessGroup | None:
        """The group that shares a batch, which may be given as its metadata; None where this process has it alone.

        Raises:
            ValueError: there is no such group, or the batch is another rank's.
        """
        sp_size, sp_rank = batch["sp_size"], batch["sp_rank"]
        if sp_size == 1:
            return None
        first = self.rank - sp_rank
        try:
            return self.groups[sp_size, first]
        except KeyError:
            known = ", ".join(f"{begin}-{begin + degree - 1}" for degree, begin in self.groups) or "none"
            raise ValueError(
                f"the batch is for place {sp_rank} of {sp_size} ranks, which for this process, rank {self.rank}, are "
                f"ranks {first}-{first + sp_size - 1}, and it has process groups of {known}: give PackedDataset the "
                "same rank, and init_sp_groups the replicas of the same set"
            ) from None


def data_rank(ranks: DeviceMesh | Sequence[int] | None = None) -> tuple[int, int]:
    """`rank` and `world_size` for `PackedDataset`: this process's place among those that read the set.

    Args:
        ranks: the processes that read the set, in order, as a mesh (its ranks row by row; leave out dimensions whose
            ranks read the same batch, such as those of tensor or pipeline parallelism: ``mesh["dp", "sp"]``), or as
            global rank numbers; None for all.

    Raises:
        ValueError: this process is not among them.
    """
    numbers = _numbers(ranks)
    try:
        return numbers.index(dist.get_rank()), len(numbers)
    except ValueError:
        raise ValueError(f"rank {dist.get_rank()} is not among the ranks that read the set: {numbers}") from None


def init_sp_groups(
    replicas: Mapping[int, Sequence[int]],
    ranks: DeviceMesh | Sequence[int] | None = None,
    *,
    warm_up: bool = True,
) -> SPGroups:
    """Create the process groups of all replicas. Every process must call it once at the start, with the same replicas.

    Call it after `torch.distributed.init_process_group` and, on GPUs, `torch.cuda.set_device`.

    ``init_sp_groups(dataset.replicas)``

    Args:
        replicas: SP degree -> first ranks, as `PackedDataset.replicas` gives them.
        ranks: as in `data_rank`.
        warm_up: run one tiny all-reduce in each group, so that the communicators exist before training (NCCL creates
            them on first use).

    Raises:
        ValueError: a replica has ranks that do not exist, or this process is not among `ranks`.

    Price: one rendezvous and the communicators' memory for each group that this process belongs to; switching
    afterwards is a dictionary look-up. Ranks that have no part in a round of groups get one of their own, unused.
    """
    rank, world_size = data_rank(ranks)
    numbers = _numbers(ranks)
    groups: dict[tuple[int, int], dist.ProcessGroup] = {}
    for degree, firsts in _rounds(replicas, world_size):
        first = next((first for first in firsts if first <= rank < first + degree), None)
        if first is None:
            # torch names a group by the number of groups that the process has, so all ranks must have equally many.
            dist.new_group([numbers[rank]], use_local_synchronization=True)
            continue
        group = dist.new_group(numbers[first : first + degree], use_local_synchronization=True)
        if warm_up:
            device = "cuda" if torch.cuda.is_available() and dist.get_backend(group) != "gloo" else "cpu"
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        groups[degree, first] = group
    return SPGroups(rank=rank, world_size=world_size, groups=groups)


def _rounds(replicas: Mapping[int, Sequence[int]], world_size: int) -> list[tuple[int, list[int]]]:
    """(degree, first ranks) of replicas that do not overlap, in the same order on every rank."""
    rounds: dict[tuple[int, int], list[int]] = {}
    for degree, first in sorted((degree, first) for degree, firsts in replicas.items() for first in firsts):
        if degree < 1 or not 0 <= first <= world_size - degree:
            raise ValueError(
                f"a replica of {degree} ranks from rank {first} on does not fit the {world_size} ranks that read the "
                "set: use the replicas of the same set"
            )
        if degree > 1:
            rounds.setdefault((degree, first % degree), []).append(first)
    return [(degree, firsts) for (degree, _), firsts in sorted(rounds.items())]


def _numbers(ranks: DeviceMesh | Sequence[int] | None) -> list[int]:
    if ranks is None:
        return list(range(dist.get_world_size()))
    if isinstance(ranks, DeviceMesh):
        return [int(number) for number in ranks.mesh.flatten().tolist()]
    return [int(number) for number in ranks]
