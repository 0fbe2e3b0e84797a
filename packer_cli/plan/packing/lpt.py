"""Longest processing time: the longest sample first, into the pack of least work that has room.

Source: Graham 1969, with a capacity. Price: O(n log p) a round; one to three rounds for `work`, about ten for
`tokens`. Use it to make the work of *all* packs of a group as even as the capacity allows. Do not use it if packs are
balanced within iterations anyway (`--balance`), nor with `tokens` for little padding: evenly filled packs each leave a
gap that no sample fits, so more packs are needed.

A sample that finds no room opens a pack; the next round then starts with as many packs as this one ended with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.csr import argsort_descending, group_by_pack
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, require_objective
from packer_cli.plan.packing.heap import heap_pop, heap_push, heap_replace


@dataclass(frozen=True, kw_only=True)
class LptOptions(PackingOptions):
    """Options of `lpt`."""

    objective: str = "work"
    """What to even out: `work`, by default the sum of squared lengths, or `tokens`."""

    def __post_init__(self) -> None:
        require_objective("lpt", self.objective)


def pack(
    lengths: Int32Array, capacity: int, seed: int, options: LptOptions, linear: int = 0
) -> tuple[Int64Array, Int32Array]:
    """See the package for shapes; `linear` (tokens) is the linear term of work, see `plan.core.cost`."""
    cost = (1, linear) if options.objective == "work" else (0, 1)
    order = argsort_descending(lengths)
    num_packs = packs_lower_bound(lengths, capacity)
    pack_of, needed = _lpt(lengths, order, capacity, num_packs, *cost)
    while needed > num_packs:
        num_packs = needed
        pack_of, needed = _lpt(lengths, order, capacity, num_packs, *cost)
    return group_by_pack(pack_of, order, num_packs)


@njit(cache=True)
def _lpt(
    lengths: NDArray[np.int32], order: NDArray[np.int32], capacity: int, num_packs: int, quadratic: int, linear: int
) -> tuple[NDArray[np.int32], int]:
    """`(pack of each sample int32[n], packs)`; more than `num_packs` if a sample found no room.

    A sample of s tokens costs `s (quadratic s + linear)`, which increases with s.
    """
    # The heap holds packs by (work, number). A pack without room waits, listed by its room, until the samples, which
    # come by decreasing length, are short enough; so its room is below the longest of them.
    # Each sample may open a pack; memory of packs that none opens is not touched, and costs nothing.
    keys = np.zeros(len(lengths) + 1, dtype=np.int64)
    ids = np.empty(len(lengths) + 1, dtype=np.int64)
    size = num_packs
    ids[:size] = np.arange(size)
    room = np.empty(len(lengths), dtype=np.int64)
    room[:size] = capacity
    reach = np.int64(lengths[order[0]]) if len(order) else np.int64(0)
    waiting = np.full(reach + 1, -1, dtype=np.int64)
    next_waiting = np.empty(len(lengths), dtype=np.int64)
    work_of = np.zeros(len(lengths), dtype=np.int64)
    pack_of = np.empty(len(lengths), dtype=np.int32)
    for sample in order:
        length = np.int64(lengths[sample])
        while reach > length:
            reach -= 1
            pack = waiting[reach]
            while pack >= 0:
                heap_push(keys, ids, size, work_of[pack], pack)
                size += 1
                pack = next_waiting[pack]
        while size and room[ids[0]] < length:
            pack = ids[0]
            next_waiting[pack] = waiting[room[pack]]
            waiting[room[pack]] = pack
            heap_pop(keys, ids, size)
            size -= 1
        cost = length * (quadratic * length + linear)
        if size:
            pack = ids[0]
            work_of[pack] += cost
            heap_replace(keys, ids, size, work_of[pack], pack)
        else:
            pack = num_packs
            num_packs += 1
            work_of[pack] = cost
            room[pack] = capacity
            heap_push(keys, ids, size, cost, pack)
            size += 1
        pack_of[sample] = pack
        room[pack] -= length
    return pack_of, num_packs


ALGORITHM = PackingAlgorithm(
    name="lpt",
    summary="longest processing time: packs of even attention work, or of that of `--cost`",
    pack=pack,
    options=LptOptions,
    uses_work=True,
    bytes_a_sample=34,
)
