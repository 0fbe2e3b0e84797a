"""Process groups of all SP degrees, made once, so that an iteration picks its own at no cost (HBP, adaptive SP)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class SPGroups:
    """The SP groups of this process, one of each degree.

    A group of degree d is d ranks in a row whose first number divides by d, which is how a plan lays its slots.
    """

    rank: int
    """This process among those that read the set: the `rank` of `PackedDataset`."""
    world_size: int
    groups: Mapping[int, dist.ProcessGroup | None]
    """Degree -> group; None for degree 1, which has nobody to talk to."""

    def group(self, sp_size: int) -> dist.ProcessGroup | None:
        """The group of degree `sp_size`; ValueError where that degree was not prepared."""
        try:
            return self.groups[sp_size]
        except KeyError:
            known = ", ".join(map(str, self.groups))
            raise ValueError(
                f"no process groups of SP degree {sp_size} (there are: {known}): "
                "give init_sp_groups every degree of the packed set"
            ) from None

    def for_batch(self, batch: Mapping[str, Any]) -> dist.ProcessGroup | None:
        """The group that shares `batch` (or the metadata of one).

        Raises ValueError where the batch is another rank's: its `sp_rank` is not this process's place in the group.
        """
        sp_size, sp_rank = batch["sp_size"], batch["sp_rank"]
        group = self.group(sp_size)
        if sp_rank != self.rank % sp_size:
            raise ValueError(
                f"the batch is of sp_rank {sp_rank} and this process, rank {self.rank}, is {self.rank % sp_size} in "
                f"its group of {sp_size}: give PackedDataset the same rank as init_sp_groups"
            )
        return group


def data_rank(ranks: DeviceMesh | Sequence[int] | None = None) -> tuple[int, int]:
    """`rank` and `world_size` for `PackedDataset`: this process's place among those that read the set.

    Args:
        ranks: the processes that read the set, in order, as a mesh (its ranks row by row; leave out the dimensions
            whose ranks take the same batch, such as tensor or pipeline parallelism: ``mesh["dp", "sp"]``), or as
            global rank numbers; None for all.

    Raises ValueError where this process is not among them.
    """
    numbers = _numbers(ranks)
    try:
        return numbers.index(dist.get_rank()), len(numbers)
    except ValueError:
        raise ValueError(f"rank {dist.get_rank()} is not among the ranks that read the set: {numbers}") from None


def init_sp_groups(
    degrees: Iterable[int], ranks: DeviceMesh | Sequence[int] | None = None, *, warm_up: bool = True
) -> SPGroups:
    """Make the process groups of all `degrees`; every process calls it, with the same degrees, once, at the start.

    After `torch.distributed.init_process_group` and, on GPUs, `torch.cuda.set_device`.

    ``init_sp_groups({group["sp_size"] for group in dataset.manifest["groups"]})``

    Args:
        degrees: SP degrees; each must divide the number of ranks.
        ranks: as in `data_rank`.
        warm_up: one tiny all-reduce in each group, so that the communicators exist before training (NCCL makes them
            at the first use).

    Raises:
        ValueError: a degree that does not divide the number of ranks, or this process is not among `ranks`.

    Price: one rendezvous a degree, and the communicators' memory; switching afterwards is a dictionary look-up.
    """
    wanted = sorted(set(degrees))
    rank, world_size = data_rank(ranks)
    for degree in wanted:
        if degree < 1 or world_size % degree:
            raise ValueError(f"SP degree {degree} does not divide the {world_size} ranks that read the set")
    numbers = _numbers(ranks)
    groups: dict[int, dist.ProcessGroup | None] = {}
    # Ascending on every rank: groups that overlap must be made in one order everywhere.
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
