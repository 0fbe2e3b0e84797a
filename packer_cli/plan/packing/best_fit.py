"""Best-fit: each sample into the fullest pack that has room. It places runs of equal lengths, not samples.

After the fullest pack with room for a sample has taken it, it is still the fullest with room for another of the same
length; so a pack takes as many samples of a run as fit, at once. Price: O(1) for each pack that a run touches, which
are far fewer than samples if these are short against the capacity, and a look-up in a bitmap of remaining capacities
for each room that a run meets. Memory: 8 bytes a token of the longest sample, however great the capacity.

- `bfd`: the longest sample first (best-fit decreasing). Source: Johnson 1973; at most 11/9 of the optimum + 4. Price:
  O(n), about that of sorting: a counting sort, and best-fit on the histogram; 10 ms for a million samples, 12 bytes
  each. Use it for the least padding: on mixed lengths it is within a pack of the lower bound. Which samples share a
  pack depends on their lengths alone, so packs are less random than `isf`'s.
- `bfd-split`: cut only samples longer than the capacity, then the same (best-fit packing). Source: Ding et al., "Fewer
  Truncations Improve Language Modeling", arXiv 2404.10830. Use it for pre-training that should keep documents whole
  where it can; `wrap` pads nothing, but cuts about one sample per pack. `--overflow split` cuts the samples, at the
  greatest capacity; other values of `--overflow` are refused, because without the cutting this is `bfd`.
- `bfs`: on a shuffled order. Source: Johnson 1973; at most 1.7 times the optimum (Dosa and Sgall 2014). Price: O(n),
  sample by sample; 12 bytes each. Use it, the default, if most samples are short against the capacity: which samples
  share a pack depends on the shuffle, and it needs only a few packs in ten thousand more than `bfd`. Do not use it if
  most samples are a tenth of the capacity or longer: late ones find no room, and `bfd` or `ilp` need a few per cent
  fewer packs.

`ilp` uses it, too, for the samples that its patterns leave, and `limit_samples` for those over a limit on the samples
of a pack, whatever packed them: trainers whose graphs are captured once (CUDA graphs, `torch.compile`) take borders of
a fixed number of samples. Price: nothing where no pack is over it; else O(n log n) for the samples of packs that are.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.csr import ONE_EACH, argsort_descending, group_moves, merge_packs, pack_tokens_and_work
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import LengthIndex, empty_index, index_add, index_ceiling, index_remove
from packer_cli.plan.packing.base import ChunkOptions, PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.first_fit import fit_needs, runs_by_decreasing_length

_NONE = np.empty(0, dtype=np.int64)
_BLOCK = 1 << 20


def best_fit(run_lengths: Int32Array, run_counts: Int64Array, capacity: int) -> tuple[Int32Array, Int32Array, int]:
    """Put each sample in turn into the fullest pack that has room; of equally full ones, into the last one touched.

    Args:
        run_lengths: int32[r], lengths in the order of placing, each 1 .. capacity.
        run_counts: int64[r], consecutive samples of each length.
        capacity: most tokens of a pack.

    Returns:
        `(pack int32[t], number int32[t], packs)`: in the order of placing, the first `number[0]` samples go to
        `pack[0]`, the next `number[1]` to `pack[1]`, and so on; `packs` counts all packs.
    """
    most = int(run_counts.sum())
    to_pack, to_number = (np.empty(most, dtype=np.int32) for _ in range(2))  # untouched memory costs nothing
    stacks = _stacks(int(run_lengths.max(initial=0)), most, _NONE)
    num_moves = _best_fit(run_lengths, run_counts, capacity, stacks, to_pack, to_number)
    return to_pack[:num_moves], to_number[:num_moves], int(stacks.num_packs[0])


def best_fit_each(
    lengths: Int32Array, order: Int32Array, capacity: int, rooms: Int64Array = _NONE, slots: Int64Array = _NONE
) -> tuple[Int32Array, int]:
    """Place sample by sample as `best_fit`; return `(pack int32[n] of each sample of order, packs)`.

    Works block by block: besides the result, it needs 4 bytes a pack.

    Args:
        lengths: int32, of the samples.
        order: int32[n], the samples in the order of placing.
        rooms: int64[k], free tokens of packs 0 .. k-1 at the start; new packs are numbered from k.
        slots: int64[k+n], samples that each pack may still take, counted down; empty for any number.
    """
    to_pack = np.empty(len(order), dtype=np.int32)
    stacks = _stacks(min(capacity, int(lengths.max(initial=0))), len(rooms) + len(order), slots)
    _open(np.argsort(-rooms, kind="stable"), rooms, stacks)
    one_each = np.ones(min(_BLOCK, len(order)), dtype=np.int64)
    to_number = np.empty(len(one_each), dtype=np.int32)
    for first in range(0, len(order), _BLOCK):
        block = lengths[order[first : first + _BLOCK]]
        _best_fit(block, one_each[: len(block)], capacity, stacks, to_pack[first : first + _BLOCK], to_number)
    return to_pack, int(stacks.num_packs[0])


def best_fit_decreasing(lengths: Int32Array, capacity: int) -> tuple[Int64Array, Int32Array]:
    """Pack the longest sample first; see the package for shapes."""
    to_pack, to_number, num_packs = best_fit(*runs_by_decreasing_length(lengths), capacity)
    return group_moves(to_pack, to_number, argsort_descending(lengths), num_packs)


def _falling(lengths: Int32Array, capacity: int, seed: int, options: ChunkOptions) -> tuple[Int64Array, Int32Array]:
    """Pack the longest first; chunks are of the data's order."""
    if not options.chunk:
        return best_fit_decreasing(lengths, capacity)
    order = np.arange(len(lengths), dtype=np.int32)
    return options.pack(order, lengths, lambda own: best_fit_decreasing(own, capacity))


def _shuffled(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    order = shuffled(len(lengths), rng_state(seed))
    to_pack, num_packs = best_fit_each(lengths, order, capacity)
    del lengths
    return group_moves(to_pack, ONE_EACH, order, num_packs)


class _Stacks(NamedTuple):
    """Packs that have room, those with the same on a stack; kernels keep them up to date.

    Those with more room than any sample takes share the last stack, with the least room on top: a pack that took a
    sample has less than those below it, and a new one is opened only where no other is left.
    """

    filled: LengthIndex
    """The rooms below `longest` that have a stack."""
    top: Int64Array
    """int64[longest + 1]: the pack on top of each stack; -1 for none."""
    below: Int32Array
    """int32[p]: the pack below each."""
    room: Int64Array
    """int64[p]: the room of those on the last stack."""
    slots: Int64Array
    """int64[p]: samples that each may still take; empty for any number."""
    num_packs: Int64Array
    """int64[1]"""


def _stacks(longest: int, most: int, slots: Int64Array) -> _Stacks:
    """Make stacks of at most so many packs, for samples of at most so many tokens: all empty.

    Untouched memory costs nothing.
    """
    top, below = np.full(longest + 1, -1, dtype=np.int64), np.empty(most, dtype=np.int32)
    room = np.empty(most, dtype=np.int64)
    return _Stacks(empty_index(longest + 1), top, below, room, slots, np.zeros(1, dtype=np.int64))


@njit(cache=True)
def _open(falling: Int64Array, rooms: Int64Array, stacks: _Stacks) -> None:
    """Open packs with these rooms (int64[k]), whose order `falling` (int64[k]) is by falling room."""
    index, top, below, last_rooms, slots, num_packs = stacks
    longest = len(top) - 1
    for pack in falling:
        if rooms[pack] > 0 and (len(slots) == 0 or slots[pack] > 0):
            place = min(rooms[pack], longest)
            if top[place] < 0 and place < longest:
                index_add(index, place)
            below[pack], last_rooms[pack] = top[place], rooms[pack]
            top[place] = pack
    num_packs[0] = len(rooms)


@njit(cache=True)
def _best_fit(
    lengths: Int32Array, counts: Int64Array, capacity: int, stacks: _Stacks, to_pack: Int32Array, to_number: Int32Array
) -> int:
    """Place runs of samples: write to `to_pack` and `to_number`; returns the entries written."""
    index, top, below, last_rooms, slots, num = stacks
    longest, is_limited, num_packs = len(top) - 1, len(slots) > 0, num[0]
    num_moves = 0
    for run in range(len(lengths)):
        length = np.int64(lengths[run])
        left = counts[run]
        while left > 0:
            place = index_ceiling(index, length)
            if place < 0 and top[longest] >= 0:
                place = longest
            is_new = place < 0
            pack = num_packs if is_new else top[place]
            room = capacity if is_new else last_rooms[pack] if place == longest else place
            fits = room // length
            # All packs of this room in turn: afterwards they have no room for the run's length, or the run is placed.
            while left > 0 and pack >= 0:
                number = min(left, fits)
                if is_limited:
                    number = min(number, slots[pack])
                    slots[pack] -= number
                left -= number
                to_pack[num_moves] = pack
                to_number[num_moves] = number
                num_moves += 1
                after = room - number * length
                if is_limited and slots[pack] == 0:
                    after = 0
                following = num_packs + 1
                if is_new:
                    num_packs = following
                else:
                    following = np.int64(below[pack])
                    top[place] = following
                if after >= longest:
                    last_rooms[pack] = after
                    below[pack], top[longest] = top[longest], pack
                elif after > 0:
                    if top[after] < 0:
                        index_add(index, after)
                    below[pack], top[after] = top[after], pack
                pack = following if place < longest else np.int64(-1)
            if 0 <= place < longest and top[place] < 0:
                index_remove(index, place)
    num[0] = num_packs
    return num_moves


def limit_samples(
    offsets: Int64Array, members: Int32Array, lengths: Int32Array, capacity: int, most: int
) -> tuple[Int64Array, Int32Array]:
    """Limit packs to `most` samples each, with as many more packs as that takes.

    A pack over the limit keeps its longest samples. The others go, the longest first, into the fullest pack that has
    room for them in tokens and in samples, or into new packs at the end.

    Args:
        offsets, members: the packs, int64[p+1] and int32[n].
        lengths: int32, of the samples.
        capacity: most tokens of a pack.
        most: at least 1.
    """
    kept, kept_members, excess = trim_packs(offsets, members, lengths, most)
    if not len(excess):
        return offsets, members
    order = excess[np.argsort(-lengths[excess], kind="stable")]
    tokens, _ = pack_tokens_and_work(kept, kept_members, lengths)
    slots = np.append(most - np.diff(kept), np.full(len(order), most))
    pack_of, num_packs = best_fit_each(lengths, order, capacity, capacity - tokens, slots)
    added_offsets, added = group_moves(pack_of, ONE_EACH, order, num_packs)
    return merge_packs(
        np.append(kept, np.full(num_packs + 1 - len(kept), kept[-1])), kept_members, added_offsets, added
    )


def trim_packs(
    offsets: Int64Array, members: Int32Array, lengths: NDArray[np.int32], most: int
) -> tuple[Int64Array, Int32Array, Int32Array]:
    """Trim packs of more than `most` samples to their longest ones; return the packs, and the samples that they lost.

    Of samples of equal length, a pack keeps its first ones. The order of those that stay is kept.

    Returns:
        `(offsets int64[p+1], members int32[m], lost int32[n - m])`.
    """
    sizes = np.diff(offsets)
    over = np.flatnonzero(sizes > most)
    if not len(over):
        return offsets, members, members[:0]
    stays = np.ones(len(members), dtype=np.bool_)
    size = sizes[over]
    first = np.cumsum(size) - size
    place = np.arange(int(size.sum())) + np.repeat(offsets[over] - first, size)
    pack = np.repeat(np.arange(len(over)), size)
    falling = np.lexsort((-lengths[members[place]], pack))  # Stable, and of each pack a run of its own.
    is_lost = np.arange(len(falling)) - np.repeat(first, size) >= most
    stays[place[falling[is_lost]]] = False
    new_offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, most))])
    return new_offsets, members[stays], members[~stays]


BFD = PackingAlgorithm(
    name="bfd",
    summary="best-fit decreasing: least padding",
    pack=_falling,
    options=ChunkOptions,
    pack_needs=partial(fit_needs, is_best=True, is_shuffled=False),
)
BFD_SPLIT = PackingAlgorithm(
    name="bfd-split",
    summary="best-fit packing: cut only what exceeds the capacity, then `bfd`",
    pack=_falling,
    options=ChunkOptions,
    needs_split=True,
)
BFS = PackingAlgorithm(
    name="bfs",
    summary="best-fit on a shuffled order",
    pack=_shuffled,
    pack_needs=partial(fit_needs, is_best=True, is_shuffled=True),
)
