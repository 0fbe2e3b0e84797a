"""Process groups of the ranks that share rows, created once, so that an iteration can switch at no cost (HBP)."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from packer_cli.format.layout import DEGREES, Layout, Place

_GLOO_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class SPGroups:
    """The groups of this process that share rows, by SP or CP: one for each replica that it belongs to."""

    rank: int
    """Number of this process among the ones that read the set: the `rank` of `PackedDataset`."""
    world_size: int
    """Number of processes that read the set."""
    groups: Mapping[tuple[Layout, int], dist.ProcessGroup]
    """(layout, first rank of the replica) -> group; none where a rank has its rows alone."""

    def for_batch(self, batch: Mapping[str, Any]) -> dist.ProcessGroup | None:
        """Return the group that shares a batch, given whole or as its metadata; None where this process is alone.

        Raises:
            ValueError: there is no such group, or the batch is another rank's.
        """
        layout = Layout(*(batch[f"{name}_size"] for name in DEGREES))
        if layout.row_ranks == 1:
            return None
        place = layout.gpu(**{name: batch[name] for name in Place._fields})
        first = self.rank - place
        try:
            return self.groups[layout, first]
        except KeyError:
            known = ", ".join(f"{begin}-{begin + each.num_gpus - 1}" for each, begin in self.groups) or "none"
            raise ValueError(
                f"the batch is for place {place} of {layout.num_gpus} ranks, which for this process, rank "
                f"{self.rank}, are ranks {first}-{first + layout.num_gpus - 1}, and it has process groups of "
                f"{known}: give PackedDataset the same rank, and init_sp_groups the replicas of the same set"
            ) from None


def data_rank(ranks: DeviceMesh | Sequence[int] | None = None) -> tuple[int, int]:
    """Return `rank` and `world_size` for `PackedDataset`: this process's place among those that read the set.

    Args:
        ranks: the processes that read the set, in the plan's order, as a mesh (its ranks row by row), or as global
            rank numbers; None for all. The plan numbers the ranks of a replica side by side: DP outermost, then PP,
            CP, SP, TP (see `plan_rank`). Where it knows nothing of tensor or pipeline parallelism, leave those
            dimensions out: ``mesh["dp", "sp"]``.

    Raises:
        ValueError: this process is not among them.
    """
    numbers = _numbers(ranks)
    try:
        return numbers.index(dist.get_rank()), len(numbers)
    except ValueError:
        raise ValueError(f"rank {dist.get_rank()} is not among the ranks that read the set: {numbers}") from None


def plan_rank(
    layout: Layout, *, dp_rank: int, pp_rank: int = 0, cp_rank: int = 0, sp_rank: int = 0, tp_rank: int = 0
) -> int:
    """Return `rank` for `PackedDataset` of a trainer's coordinates, where all replicas have one layout.

    Trainers number their processes in other ways (Megatron and torchtitan put PP outermost, before DP), so the global
    rank will not do.

    Raises:
        ValueError: a rank is not below its degree.

    >>> plan_rank(Layout(tp=2, pp=2), dp_rank=3, pp_rank=1)
    14
    """
    place = layout.gpu(pp_rank=pp_rank, cp_rank=cp_rank, sp_rank=sp_rank, tp_rank=tp_rank)
    return dp_rank * layout.num_gpus + place


def _wait_for_gloo() -> None:
    """Wait until gloo's threads have dropped the tensors of the last collective.

    They do so under the interpreter's lock, and abort the process if that comes after the interpreter's end.
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":
        time.sleep(_GLOO_SECONDS)


def end_process_group() -> None:
    """End the default process group when all processes have come here.

    ``torch.distributed.destroy_process_group`` alone hangs or aborts under gloo, once in some hundred runs on busy
    cores, where gloo's threads still hold the tensors of the last collectives. Price: 0.2 s with gloo.
    """
    dist.barrier()
    _wait_for_gloo()
    dist.destroy_process_group()


def init_sp_groups(
    replicas: Mapping[Layout, Sequence[int]],
    ranks: DeviceMesh | Sequence[int] | None = None,
    *,
    warm_up: bool = True,
) -> SPGroups:
    """Create the process groups of the ranks that share rows, in all replicas.

    Every process must call it once at the start, with the same replicas.

    Call it after `torch.distributed.init_process_group` and, on GPUs, `torch.cuda.set_device`.

    ``init_sp_groups(dataset.replicas)``

    Args:
        replicas: layout -> first ranks, as `PackedDataset.replicas` gives them.
        ranks: as in `data_rank`.
        warm_up: run one tiny all-reduce in each group, so that the communicators exist before training (NCCL creates
            them on first use).

    Raises:
        ValueError: a replica has ranks that do not exist, or this process is not among `ranks`.

    Price: one rendezvous and the communicators' memory for each group that this process belongs to; switching
    afterwards is a dictionary look-up. Ranks that have no part in a round of groups get one of their own, unused.
    """
    atexit.unregister(_wait_for_gloo)  # Another call registered it.
    atexit.register(_wait_for_gloo)
    rank, world_size = data_rank(ranks)
    numbers = _numbers(ranks)
    groups: dict[tuple[Layout, int], dist.ProcessGroup] = {}
    for layout, firsts in _rounds(replicas, world_size):
        first = next((first for first in firsts if first <= rank < first + layout.num_gpus), None)
        if first is None:
            # torch names a group by the number of groups that the process has, so all ranks must have equally many.
            dist.new_group([numbers[rank]], use_local_synchronization=True)
            continue
        begin = layout.place(rank - first)._replace(cp_rank=0, sp_rank=0)
        start = first + layout.gpu(**begin._asdict())
        sharing = numbers[start : start + layout.stage_gpus : layout.tp]
        group = dist.new_group(sharing, use_local_synchronization=True)
        if warm_up:
            device = "cuda" if torch.cuda.is_available() and dist.get_backend(group) != "gloo" else "cpu"
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        groups[layout, first] = group
    return SPGroups(rank=rank, world_size=world_size, groups=groups)


def _rounds(replicas: Mapping[Layout, Sequence[int]], world_size: int) -> list[tuple[Layout, list[int]]]:
    """Return (layout, first ranks) of replicas that do not overlap, in the same order on every rank."""
    rounds: dict[tuple[Layout, int], list[int]] = {}
    for layout, first in sorted((layout, first) for layout, firsts in replicas.items() for first in firsts):
        num_gpus = layout.num_gpus
        if num_gpus < 1 or not 0 <= first <= world_size - num_gpus:
            raise ValueError(
                f"a replica of {num_gpus} ranks from rank {first} on does not fit the {world_size} ranks that read "
                "the set: use the replicas of the same set"
            )
        if layout.row_ranks > 1:
            rounds.setdefault((layout, first % num_gpus), []).append(first)
    return [(layout, firsts) for (layout, _), firsts in sorted(rounds.items())]


def _numbers(ranks: DeviceMesh | Sequence[int] | None) -> list[int]:
    if ranks is None:
        return list(range(dist.get_world_size()))
    if isinstance(ranks, DeviceMesh):
        return [int(number) for number in ranks.mesh.flatten().tolist()]
    return [int(number) for number in ranks]
