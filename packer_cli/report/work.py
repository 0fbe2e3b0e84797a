"""How attention work is spread over the GPUs of an iteration (HBP's figure 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.metrics import slot_contents
from packer_cli.plan.core.types import Int64Array, Plan
from packer_cli.report.packs import evenly

_MOST_RANKS = 48


@dataclass(frozen=True, kw_only=True)
class WorkOfRanks:
    """n iterations, evenly spread over the epoch, with q points."""

    iterations: Int64Array
    """int64[n]: their numbers."""
    greatest: NDArray[np.float64]
    """float64[n]: of the slowest GPU, as a multiple of the mean."""
    least: NDArray[np.float64]
    """float64[n]: of the GPU with the least."""
    point_iteration: Int64Array
    """int64[q]: index of `iterations`."""
    point_work: NDArray[np.float64]
    """float64[q]: work per GPU of a replica, as a multiple of the mean of the iteration's GPUs."""


def work_of_ranks(plan: Plan, most: int = 24) -> WorkOfRanks:
    """Attention work per GPU of the replicas of some iterations. Price: O(pieces + slots).

    Of many replicas, some are drawn, in the order of their work; those with the most and the least are among them.
    """
    slots = slot_contents(plan)
    iteration, gpus = slots.replicas
    work = slots.of_replicas(slots.work)
    first = np.searchsorted(iteration, np.arange(plan.epochs[0].num_iterations + 1))
    mean = np.add.reduceat(work, first[:-1]) / np.add.reduceat(gpus, first[:-1])
    chosen = np.flatnonzero(mean > 0)
    chosen = chosen[evenly(len(chosen), most)]
    drawn = []
    for number in chosen.tolist():
        own = slice(int(first[number]), int(first[number + 1]))
        rising = np.sort(work[own] / gpus[own] / mean[number])
        drawn.append(rising[evenly(len(rising), _MOST_RANKS)])
    return WorkOfRanks(
        iterations=chosen,
        greatest=np.array([points[-1] for points in drawn]),
        least=np.array([points[0] for points in drawn]),
        point_iteration=np.repeat(np.arange(len(drawn)), [len(points) for points in drawn]),
        point_work=np.concatenate(drawn),
    )
