"""Shortest-pack-first histogram packing: by decreasing length, into the packs with the most room, many at a time.

Source: Krell et al., arXiv 2107.02027, algorithm 1; worst-fit decreasing needs at most 5/4 of a large optimum
(Johnson 1974). Price: O(n) to sort and to write the packs out; the packing itself is O(lengths * samples of a pack)
if many packs are alike, so it is the fastest of those that pad little. Use it for very many samples of few lengths, or
to limit the samples of a pack (`max_samples`). Do not use it if most samples are a large part of the capacity: it
leaves a little room in many packs, where `bfd` leaves few such packs. Which samples share a pack depends on their
lengths alone.

Unlike published code, which opens a pack for each sample of a length at once, a new pack here takes as many as fit
before the next is opened. So this is worst-fit decreasing, and short samples do not each get their own pack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import argsort_descending, count_lengths
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import index_add, index_floor, index_remove, make_index
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, within


@dataclass(frozen=True, kw_only=True)
class SpfhpOptions(PackingOptions):
    """A limit on samples makes packs more alike, and pads more."""

    max_samples: int = within(0, 0, 2**31 - 1)
    """Most samples of a pack; 0 for no limit."""


def pack(lengths: Int32Array, capacity: int, seed: int, options: SpfhpOptions) -> tuple[Int64Array, Int32Array]:
    """Pack a histogram of lengths, shortest pack first; see the package for shapes."""
    order = argsort_descending(lengths)
    counts = count_lengths(lengths)
    most = options.max_samples or max(1, len(lengths))
    return _write_out(order, counts, *_pack_histogram(counts, capacity, most))


@njit(cache=True)
def _pack_histogram(counts: Int64Array, capacity: int, most: int) -> tuple[Int64Array, int]:
    """Return the kinds of packs (int64[5, n]), and how many there are.

    Rows are the packs of a kind, the samples of each, the parent, a length, and times. A kind is its parent plus
    `times` samples of that length. A kind whose packs were all extended has none left.
    """
    num_samples = counts.sum()
    # Each kind places at least one sample. Untouched memory costs nothing.
    kinds = np.empty((5, num_samples), dtype=np.int64)
    num_alike, size, parent, length_of, times = kinds
    num_kinds = 0
    longest = len(counts) - 1
    index = make_index(longest + 1)
    # Kinds with the same room form a stack. A pack with more room than the longest sample takes any, and no other is
    # opened before it has less: it is one pack, a kind by itself, and stands at `longest`.
    top = np.full(longest + 1, -1, dtype=np.int64)
    most_room = longest
    below = np.empty(num_samples, dtype=np.int64)
    for length in range(longest, 0, -1):
        left = counts[length]
        while left > 0:
            place = index_floor(index, longest)
            old_room = most_room if place == longest else place
            if old_room >= length:
                old = top[place]
                alike = min(left, num_alike[old])
                more = 1
                old_size = size[old]
                num_alike[old] -= alike
                if num_alike[old] == 0:
                    top[place] = below[old]
                    if top[place] < 0:
                        index_remove(index, place)
            else:
                # New packs, each with as many samples of this length as fit; the last one may hold fewer.
                old = -1
                old_room = capacity
                old_size = 0
                more = min(capacity // length, most, left)
                alike = left // more
            left -= alike * more
            kind = num_kinds
            num_kinds += 1
            num_alike[kind] = alike
            size[kind] = old_size + more
            parent[kind] = old
            length_of[kind] = length
            times[kind] = more
            room = old_room - more * length
            if room > 0 and size[kind] < most:
                if room >= longest:
                    most_room = room
                place = min(room, longest)
                if top[place] < 0:
                    index_add(index, place)
                below[kind] = top[place]
                top[place] = kind
    return kinds, num_kinds


@njit(cache=True)
def _write_out(
    order: Int32Array, counts: Int64Array, kinds: Int64Array, num_kinds: int
) -> tuple[Int64Array, Int32Array]:
    """Write out the packs of all kinds, each with the next samples of its lengths, longest first."""
    place = len(order) - np.cumsum(counts)
    num_alike, size, parent, length_of, times = kinds
    offsets = np.zeros(num_alike[:num_kinds].sum() + 1, dtype=np.int64)
    members = np.empty(len(order), dtype=np.int32)
    num_packs = 0
    for kind in range(num_kinds):
        for _ in range(num_alike[kind]):
            at = offsets[num_packs] + size[kind]
            num_packs += 1
            offsets[num_packs] = at
            link = kind
            while link >= 0:
                for _ in range(times[link]):
                    at -= 1
                    members[at] = order[place[length_of[link]]]
                    place[length_of[link]] += 1
                link = parent[link]
    return offsets, members


ALGORITHM = PackingAlgorithm(
    name="spfhp",
    summary="shortest-pack-first histogram packing: the fastest with little padding",
    pack=pack,
    options=SpfhpOptions,
)
