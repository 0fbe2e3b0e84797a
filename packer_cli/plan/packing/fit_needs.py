"""First-fit and best-fit of pieces whose packs have several limits, such as of tokens and of path tokens.

A piece goes into the first pack, or into the pack with least room, that has room for all of its needs; room is the
least of the free shares of all limits. Source: vector packing, as in Panigrahy et al. 2011, "Heuristics for vector bin
packing". Price: O(pieces * open packs); a pack is open while a smallest piece could fit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.plan.core.csr import ONE_EACH, group_moves
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array, as_ids
from packer_cli.plan.packing.base import PackingOptions


def fit_needs(
    needs: Int64Array, limits: Int64Array, seed: int, options: PackingOptions, *, is_best: bool, is_shuffled: bool
) -> tuple[Int64Array, Int32Array]:
    """Place each piece in turn, as a `PackNeedsFunction`.

    Args:
        options: none of them has a part in it.
        is_best: whether in the pack with least room, and not in the first.
        is_shuffled: whether in random order, and not the piece with the greatest share of a limit first.
    """
    num = needs.shape[1]
    if is_shuffled:
        order = shuffled(num, rng_state(seed))
    else:
        order = as_ids(np.argsort(-(needs / limits[:, None]).max(axis=0), kind="stable"))
    pack_of = np.empty(num, dtype=np.int32)
    least = needs.min(axis=1) if num else limits
    num_packs = _fit(needs, limits, order, least, 1 / limits, is_best, pack_of)
    return group_moves(pack_of, ONE_EACH, order, num_packs)


@njit(cache=True)
def _fit(
    needs: Int64Array,
    limits: Int64Array,
    order: Int32Array,
    least: Int64Array,
    share: Float64Array,
    is_best: bool,
    pack_of: Int32Array,
) -> int:
    """Write the pack of each piece to `pack_of` (int32[n]); returns the number of packs."""
    rooms = np.empty((len(order), len(limits)), dtype=np.int64)
    opened = np.empty(len(order), dtype=np.int64)
    num_packs, num_open = 0, 0
    for place in range(len(order)):
        need = needs[:, order[place]]
        chosen, least_room = num_open, np.inf
        for q in range(num_open):
            room = rooms[opened[q]]
            if (room < need).any():
                continue
            free = (room * share).min() if is_best else 0.0
            if free < least_room:
                chosen, least_room = q, free
            if not is_best:
                break
        if chosen == num_open:
            rooms[num_packs], opened[num_open] = limits, num_packs
            num_packs, num_open = num_packs + 1, num_open + 1
        pack = opened[chosen]
        rooms[pack] -= need
        pack_of[place] = pack
        if (rooms[pack] < least).any():
            opened[chosen : num_open - 1] = opened[chosen + 1 : num_open].copy()
            num_open -= 1
    return num_packs
