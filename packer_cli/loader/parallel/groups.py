"""Process groups of all SP degrees, created once, so that an iteration can switch at no cost (HBP, adaptive SP)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class SPGroups:
    """The SP groups of this process, one per degree.

    As in a plan's slots, a group of degree d is d consecutive ranks, the first of which is a multiple of d.
    """

    rank: int
    """This process's number among those that read the set: the `rank` of `PackedDataset`."""
    world_size: int
    groups: Mapping[int, dist.ProcessGroup | None]
    """Degree -> group; None for degree 1, which needs no communication."""

    def group(self, sp_size: int) -> dist.ProcessGroup | None:
        """The group of degree `sp_size`; ValueError if `init_sp_groups` was not given that degree."""
        try:
            return self.groups[sp_size]
        except KeyError:
            known = ", ".join(map(str, self.groups))
            raise ValueError(
                f"there are no process groups of SP degree {sp_size}, only of {known}: "
                "give init_sp_groups every degree of the packed set"
            ) from None

    def for_batch(self, batch: Mapping[str, Any]) -> dist.ProcessGroup | None:
        """The group that shares a batch, which may be given as its metadata.

        Raises:
            ValueError: the batch is another rank's: its `sp_rank` is not this process's place in the group.
        """
        sp_size, sp_rank = batch["sp_size"], batch["sp_rank"]
        group = self.group(sp_size)
        if sp_rank != self.rank % sp_size:
            raise ValueError(
                f"the batch is for sp_rank {sp_rank}, but this process, rank {self.rank}, is {self.rank % sp_size} in "
                f"its group of {sp_size}: give PackedDataset the same rank as init_sp_groups"
            )
        return group


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
    degrees: Iterable[int], ranks: DeviceMesh | Sequence[int] | None = None, *, warm_up: bool = True
) -> SPGroups:
    """Create the process groups of all `degrees`. Every process must call it once at the start, with the same degrees.

    Call it after `torch.distributed.init_process_group` and, on GPUs, `torch.cuda.set_device`.

    ``init_sp_groups({group["sp_size"] for group in dataset.manifest["groups"]})``

    Args:
        degrees: SP degrees; each must divide the number of ranks.
        ranks: as in `data_rank`.
        warm_up: run one tiny all-reduce in each group, so that the communicators exist before training (NCCL creates
            them on first use).

    Raises:
        ValueError: a degree does not divide the number of ranks, or this process is not among `ranks`.

    Price: one rendezvous per degree, and the communicators' memory; switching afterwards is a dictionary look-up.
    """
    wanted = sorted(set(degrees))
    rank, world_size = data_rank(ranks)
    for degree in wanted:
        if degree < 1 or world_size % degree:
            raise ValueError(f"SP degree {degree} does not divide the {world_size} ranks that read the set")
    numbers = _numbers(ranks)
    groups: dict[int, dist.ProcessGroup | None] = {}
    # Every rank must create overlapping groups in the same order.
    for degree in wanted:
        if degree == 1:
            groups[degree] = None
            continue
        first = rank // degree * degree
        group = dist.new_group(numbers[first : first + degree], use_local_synchronization=True)
        if warm_up:
            device = "cuda" if torch.cuda.is_available() and dist.get_backend(group) != "gloo" else "cpu"
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        groups[degree] = group
    return SPGroups(rank=rank, world_size=world_size, groups=groups)


def _numbers(ranks: DeviceMesh | Sequence[int] | None) -> list[int]:
    if ranks is None:
        return list(range(dist.get_world_size()))
    if isinstance(ranks, DeviceMesh):
        return [int(number) for number in ranks.mesh.flatten().tolist()]
    return [int(number) for number in ranks]
