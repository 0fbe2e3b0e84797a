"""Flat arrays: packs as offsets int64[p+1] into members int32[m], their tokens and work; counting sort; bisection."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.segments import row_lengths
from packer_cli.plan.core.types import BoolArray, Int32Array, Int64Array, Plan, as_ids

ONE_EACH = np.empty(0, dtype=np.int32)
"""`to_number` where every move is of one sample."""
_BLOCK = 1 << 20
_ZERO = cast(int, np.int64(0))  # numba would compile a function again for each Python integer that it is given.


def group_by_pack(pack_of: NDArray[np.integer], order: Int32Array, num_packs: int) -> tuple[Int64Array, Int32Array]:
    """Return `(offsets int64[p+1], members int32[n])`; samples of a pack are in the order of `order`. O(n + p).

    Args:
        pack_of: int[n], pack of each sample.
        order: int32[n], the samples in the order of placing.
        num_packs: p.
    """
    return group_moves(as_ids(pack_of)[order], ONE_EACH, order, num_packs)


def group_moves(
    to_pack: Int32Array, to_number: Int32Array, order: Int32Array, num_packs: int
) -> tuple[Int64Array, Int32Array]:
    """Return `(offsets int64[p+1], members int32[n])` from `best_fit`'s result and the order of placing, int32[n]."""
    offsets = np.zeros(num_packs + 2, dtype=np.int64)
    members = np.empty(len(order), dtype=np.int32)
    _group_moves(to_pack, to_number, order, offsets, members)
    return offsets[:-1], members


@njit(cache=True)
def _group_moves(
    to_pack: Int32Array,
    to_number: Int32Array,
    order: Int32Array,
    offsets: Int64Array,
    members: Int32Array,
) -> None:
    """Write to `offsets` (int64[p+2], zeros), whose spare entry lets each pack's begin advance to its end."""
    for move in range(len(to_pack)):
        offsets[to_pack[move] + 2] += to_number[move] if len(to_number) else 1
    for k in range(2, len(offsets)):
        offsets[k] += offsets[k - 1]
    first = 0
    for move in range(len(to_pack)):
        pack = to_pack[move] + 1
        number = int(to_number[move]) if len(to_number) else 1
        at = offsets[pack]
        for j in range(number):
            members[at + j] = order[first + j]
        first += number
        offsets[pack] = at + number


def ids_of(chosen: BoolArray) -> Int32Array:
    """Return `np.flatnonzero` as int32, block by block, to need no array of int64. O(n)."""
    ids = np.empty(np.count_nonzero(chosen), dtype=np.int32)
    stop = 0
    for first in range(0, len(chosen), _BLOCK):
        found = np.flatnonzero(chosen[first : first + _BLOCK])
        ids[stop : stop + len(found)] = first + found
        stop += len(found)
    return ids


def rename_members(members: Int32Array, names: Int32Array) -> None:
    """Replace each member i by `names[i]`, in place and block by block, to need no second array. O(m)."""
    for first in range(0, len(members), _BLOCK):
        block = members[first : first + _BLOCK]
        block[:] = names[block]


def merge_packs(
    offsets: Int64Array, pieces: Int32Array, added_offsets: Int64Array, added: Int32Array
) -> tuple[Int64Array, Int32Array]:
    """Append `added` pieces to each pack. O(m), and 2 bytes per member besides the result."""
    sizes = np.stack([np.diff(offsets), np.diff(added_offsets)], axis=1).ravel()
    is_added = np.repeat(np.tile([False, True], len(offsets) - 1), sizes)
    merged = np.empty(len(is_added), dtype=np.int32)
    merged[is_added] = added
    merged[~is_added] = pieces
    return offsets + added_offsets, merged


@njit(cache=True)
def copy_packs(
    offsets: Int64Array, pieces: Int32Array, packs: Int32Array, to_offsets: Int64Array, to_pieces: Int32Array
) -> None:
    """Copy the given packs, in the given order, to the first ones of other arrays. O(m)."""
    place = 0
    for i in range(len(packs)):
        for j in range(offsets[packs[i]], offsets[packs[i] + 1]):
            to_pieces[place] = pieces[j]
            place += 1
        to_offsets[i + 1] = place


def select_packs(offsets: Int64Array, pieces: Int32Array, packs: NDArray[np.integer]) -> tuple[Int64Array, Int32Array]:
    """Select the given packs (int[k]), in the given order. O(m)."""
    packs = as_ids(packs)
    new_offsets = np.zeros(len(packs) + 1, dtype=np.int64)
    new_pieces = np.empty((offsets[packs + 1] - offsets[packs]).sum(), dtype=np.int32)
    copy_packs(offsets, pieces, packs, new_offsets, new_pieces)
    return new_offsets, new_pieces


def pack_tokens_and_work(
    offsets: Int64Array,
    pieces: Int32Array,
    lengths: Int32Array,
    linear: int = 0,
    attention: Int64Array | None = None,
) -> tuple[Int64Array, Int64Array]:
    """Sum the tokens and work of each pack, both int64[p].

    Work is the sum of s (s + linear); HBP section 3.1 has linear = 0.

    Price: O(m).

    Args:
        offsets, pieces: the packs as CSR arrays, int64[p+1] and int32[m].
        lengths: int32, length of each piece.
        linear: tokens, see `Cost.linear_tokens`.
        attention: int64, attention work of each piece, see `Pieces.work`; None: the square of its length.
    """
    tokens = pack_sums(lengths, offsets, pieces)
    if attention is None:
        work = pack_sums(lengths, offsets, pieces, power=2)
    else:
        work = pack_sums(attention, offsets, pieces)
    return tokens, work + linear * tokens


def plan_tokens_and_work(plan: Plan) -> tuple[Int64Array, Int64Array]:
    """Sum each pack's tokens, with padding that aligns samples, and attention work (int64[p] both). O(m).

    Work is the sum of squares of the aligned samples or, with a causal mask over whole rows, the square of the tokens;
    of trees it is their own.
    """
    lengths = row_lengths(plan)
    packs = plan.packs
    tokens, work = pack_tokens_and_work(packs.offsets, packs.pieces, lengths, attention=plan.pieces.work)
    return tokens, work if plan.mask == "document" else tokens * tokens


_SORT_BLOCK = 1 << 20


def count_lengths(lengths: NDArray[np.integer], chosen: BoolArray | None = None) -> Int64Array:
    """Count the lengths (int[n]), or the chosen ones (bool[n]), in a histogram (int64[longest + 1]). O(n + longest).

    Counts in blocks, since numpy copies its input as int64. A block is at least as long as the histogram so far.
    """
    count = np.zeros(1, dtype=np.int64)
    first = 0
    while first < len(lengths):
        stop = first + max(_SORT_BLOCK, len(count))
        block = lengths[first:stop]
        if chosen is not None:
            block = block[chosen[first:stop]]
        shorter, count = sorted((count, np.bincount(block)), key=len)
        count[: len(shorter)] += shorter
        first = stop
    return count


def argsort_descending(lengths: Int32Array) -> Int32Array:
    """Return the indices (int32[n]) of lengths (int32[n]) by decreasing length.

    Ties keep their order. O(n + longest).
    """
    order = np.empty(len(lengths), dtype=np.int32)
    argsort_into(lengths, np.zeros(int(lengths.max(initial=0)) + 2, dtype=np.int64), order)
    return order


@njit(cache=True)
def argsort_into(lengths: Int32Array, place: Int64Array, order: Int32Array) -> None:
    """Write to `order`: the kernel of `argsort_descending`. `place` is int64[longest + 2], initially zeros."""
    longest = len(place) - 2
    for i in range(len(lengths)):
        place[longest - lengths[i] + 1] += 1
    for i in range(1, longest + 2):
        place[i] += place[i - 1]
    for i in range(len(lengths)):
        bucket = longest - lengths[i]
        order[place[bucket]] = i
        place[bucket] += 1


@njit(cache=True, no_cpython_wrapper=True)
def first_over(rising: Int64Array, low: int, high: int, value: int) -> int:
    """Find the first place of `low .. high - 1` with more than this value, else `high`. O(log n)."""
    while low < high:
        middle = (low + high) >> 1
        if rising[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, no_cpython_wrapper=True)
def num_at_least(falling: Int64Array, least: int) -> int:
    """Count the values, which fall, that are at least so great: the place of the first lower one. O(log n)."""
    low, high = _ZERO, len(falling)
    while low < high:
        middle = (low + high) // 2
        if falling[middle] >= least:
            low = middle + 1
        else:
            high = middle
    return low
