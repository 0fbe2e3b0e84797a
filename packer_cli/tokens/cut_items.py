"""What pieces keep of their items.

A piece keeps the segments that its branches pass through and that begin above its depth, each as far as that; a branch
that is cut ends where its path ends. `packer_cli.plan.core.items` counts by the same rule.

Price: O(segments) of the items; tokens are not touched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from packer_cli.format.ragged import expand, offsets_of
from packer_cli.format.tree_parts import BatchItems
from packer_cli.plan.core.types import Int32Array, Int64Array, read_only
from packer_cli.tokens.item_pieces import Cuts


class Runs(NamedTuple):
    """The tokens of m pieces, as runs of tokens of their items."""

    offsets: Int64Array
    """int64 [m+1]"""
    starts: Int64Array
    """int64 [r]: in the item."""
    sizes: Int64Array
    """int64 [r]"""


class _Kept(NamedTuple):
    """Fields of `BatchItems`, as the kernel writes them."""

    segment_offsets: Int32Array
    segment_starts: Int32Array
    segment_parents: Int32Array
    branch_segments: Int32Array


def cut_items(items: BatchItems, cuts: Cuts) -> tuple[BatchItems, Runs]:
    """The pieces as items, but for their loss spans, and where their tokens are; `are_of` must confirm the cuts."""
    num, num_segments = len(items.kinds), len(items.segment_parents)
    num_branches = cuts.stop_branch - cuts.first_branch
    branch = expand(items.branch_offsets[:-1] + cuts.first_branch, num_branches)
    starts, parents = (np.zeros(size, dtype=np.int32) for size in (num_segments + num, num_segments))
    kept = _Kept(np.zeros(num + 1, dtype=np.int32), starts, parents, items.branch_segments[branch])
    runs = Runs(np.zeros(num + 1, dtype=np.int64), *np.empty((2, num_segments), dtype=np.int64))
    scratch = np.empty((2, int(np.diff(items.segment_offsets).max(initial=0))), dtype=np.int64)
    offsets = offsets_of(num_branches)
    given = BatchItems._make(read_only(each) for each in items), Cuts._make(read_only(each) for each in cuts)
    _cut(*given, offsets, kept, runs, scratch)
    last, run = kept.segment_offsets[-1], runs.offsets[-1]
    kept = kept._replace(segment_starts=starts[: last + num], segment_parents=parents[:last])
    pieces = items._replace(
        **kept._asdict(),
        branch_offsets=offsets.astype(np.int32),
        branch_roles=items.branch_roles[branch],
        rewards=items.rewards[branch],
    )
    return pieces, Runs(runs.offsets, runs.starts[:run], runs.sizes[:run])


@njit(cache=True, nogil=True)
def _cut(
    items: BatchItems, cuts: Cuts, branch_offsets: Int64Array, kept: _Kept, runs: Runs, scratch: Int64Array
) -> None:
    """Write to `kept`, whose branches end where they do in the item, and to `runs`."""
    for k in range(len(items.kinds)):
        first, stop = items.segment_offsets[k], items.segment_offsets[k + 1]
        ends = kept.branch_segments[branch_offsets[k] : branch_offsets[k + 1]]
        starts, parents = items.segment_starts[first + k : stop + k + 1], items.segment_parents[first:stop]
        _keep(k, starts, parents, ends, cuts.start[k], cuts.stop[k], kept, runs, scratch)


@njit(cache=True)
def _keep(
    k: int,
    starts: Int32Array,
    parents: Int32Array,
    ends: Int32Array,
    start: int,
    stop: int,
    kept: _Kept,
    runs: Runs,
    scratch: Int64Array,
) -> None:
    """Write what piece k keeps of its item's segments.

    Args:
        ends: of its branches; written to.
        scratch: for each segment, where it begins in its branches; and its number in the piece, -1: no branch has it.
    """
    begins, numbers = scratch[0], scratch[1]
    for s in range(len(parents)):
        begins[s] = begins[parents[s]] + starts[parents[s] + 1] - starts[parents[s]] if parents[s] >= 0 else 0
        numbers[s] = -1
    for end in ends:
        s = int(end)
        while s >= 0 and numbers[s] < 0:
            numbers[s] = 0
            s = int(parents[s])
    number, run = kept.segment_offsets[k], runs.offsets[k]
    for s in range(len(parents)):
        if numbers[s] < 0:
            continue
        parent = numbers[parents[s]] if parents[s] >= 0 else -1
        if begins[s] >= stop:  # Its branches end above it.
            numbers[s] = parent
            continue
        skipped = max(start - begins[s], 0)
        place, size = starts[s] + skipped, min(starts[s + 1] - starts[s], stop - begins[s]) - skipped
        numbers[s] = number - kept.segment_offsets[k]
        kept.segment_parents[number] = parent
        kept.segment_starts[number + k + 1] = kept.segment_starts[number + k] + size
        number += 1
        if run > runs.offsets[k] and runs.starts[run - 1] + runs.sizes[run - 1] == place:
            runs.sizes[run - 1] += size
        else:
            runs.starts[run], runs.sizes[run] = place, size
            run += 1
    for b in range(len(ends)):
        ends[b] = numbers[ends[b]]
    kept.segment_offsets[k + 1], runs.offsets[k + 1] = number, run
