"""First-fit: each sample into the first pack that has room.

- `ffd`: the longest sample first (first-fit decreasing). Source: Johnson 1973; at most 11/9 of the optimum + 6/9
  (Dosa 2007). Price: O(n) to sort and to write the packs out, and O(log p), in a tree of greatest rooms, for each pack
  that the samples of one length touch. Use it as the textbook reference; `bfd` pads as little and is faster with many
  packs.
- `ffs`: on a shuffled order. Source: Ullman 1971; at most 1.7 times the optimum (Dosa and Sgall 2013). Price:
  O(n log p), the same tree. Use it to see what `ffd` gains by sorting. Do not use it to plan: `bfs` is as random, pads
  a little less and is faster.

`fit_needs` is first-fit and best-fit of pieces whose packs have several limits, such as of tokens and of path tokens.
A piece goes into the first pack, or into the pack with least room, that has room for all of its needs; room is the
least of the free shares of all limits. Source: vector packing, as in Panigrahy et al. 2011, "Heuristics for vector bin
packing". Price: O(pieces * open packs); a pack is open while a smallest piece could fit.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import ONE_EACH, argsort_descending, count_lengths, group_moves
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array, as_ids
from packer_cli.plan.packing.base import ChunkOptions, PackingAlgorithm, PackingOptions


def runs_by_decreasing_length(lengths: Int32Array) -> tuple[Int32Array, Int64Array]:
    """Make the histogram: distinct lengths int32[r], falling, and their samples' numbers int64[r]. O(n + longest)."""
    count = count_lengths(lengths)
    found = np.flatnonzero(count)[::-1]
    return found.astype(np.int32), count[found]


def _falling(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    to_pack, to_number, num_packs = first_fit(*runs_by_decreasing_length(lengths), capacity)
    return group_moves(to_pack, to_number, argsort_descending(lengths), num_packs)


def _shuffled(lengths: Int32Array, capacity: int, seed: int, options: ChunkOptions) -> tuple[Int64Array, Int32Array]:
    """Pack the samples in shuffled order, of which the chunks are."""
    return options.pack(shuffled(len(lengths), rng_state(seed)), lengths, lambda own: _in_order(own, capacity))


def _in_order(lengths: Int32Array, capacity: int) -> tuple[Int64Array, Int32Array]:
    to_pack, to_number, num_packs = first_fit(lengths, np.ones(len(lengths), dtype=np.int64), capacity)
    return group_moves(to_pack, to_number, np.arange(len(lengths), dtype=np.int32), num_packs)


@njit(cache=True)
def first_fit(run_lengths: Int32Array, run_counts: Int64Array, capacity: int) -> tuple[Int32Array, Int32Array, int]:
    """Put each sample in turn into the first pack that has room; arguments and results as in `best_fit`."""
    total, num_samples = (run_lengths * run_counts).sum(), run_counts.sum()
    # Two neighbouring packs hold more than one capacity, or the second would not have been opened.
    most_packs = min(2 * (total // capacity) + 2, max(1, num_samples))
    leaves = 1
    while leaves < most_packs:
        leaves *= 2
    room = np.full(2 * leaves, capacity, dtype=np.int64)
    to_pack = np.empty(num_samples, dtype=np.int32)
    to_number = np.empty(num_samples, dtype=np.int32)
    num_moves = 0
    num_packs = 0
    for run in range(len(run_lengths)):
        length = np.int64(run_lengths[run])
        left = run_counts[run]
        while left > 0:
            node = 1
            while node < leaves:
                node = 2 * node if room[2 * node] >= length else 2 * node + 1
            number = min(left, room[node] // length)
            left -= number
            to_pack[num_moves] = node - leaves
            to_number[num_moves] = number
            num_moves += 1
            num_packs = max(num_packs, node - leaves + 1)
            room[node] -= number * length
            # Up to the first node whose greatest room does not change.
            node //= 2
            while node:
                most = max(room[2 * node], room[2 * node + 1])
                if room[node] == most:
                    break
                room[node] = most
                node //= 2
    return to_pack[:num_moves], to_number[:num_moves], num_packs


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
    num_packs = _fit(needs, limits, order, least, is_best, pack_of)
    return group_moves(pack_of, ONE_EACH, order, num_packs)


@njit(cache=True)
def _fit(
    needs: Int64Array, limits: Int64Array, order: Int32Array, least: Int64Array, is_best: bool, pack_of: Int32Array
) -> int:
    """Write the pack of each piece to `pack_of` (int32[n]); returns the number of packs."""
    rooms = np.empty((len(order), len(limits)), dtype=np.int64)
    opened = np.empty(len(order), dtype=np.int64)
    num_packs, num_open, share = 0, 0, 1 / limits
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


FFD = PackingAlgorithm(
    name="ffd",
    summary="first-fit decreasing",
    pack=_falling,
    pack_needs=partial(fit_needs, is_best=False, is_shuffled=False),
)
FFS = PackingAlgorithm(
    name="ffs",
    summary="first-fit on a shuffled order",
    pack=_shuffled,
    options=ChunkOptions,
    bytes_a_sample=30,
    pack_needs=partial(fit_needs, is_best=False, is_shuffled=True),
)
