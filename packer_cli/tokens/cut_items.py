"""What pieces keep of their items.

A piece keeps the segments that its branches pass through and that begin above its depth, each as far as that. A
segment with a single kept child is one with it. A branch that is cut ends where its path ends. Pieces of flat samples
are ranges of tokens. `packer_cli.plan.core.items` counts by the same rule.

Price: O(segments) of the items; tokens are not touched.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from packer_cli.format.tree_parts import BatchItems
from packer_cli.format.trees import SAMPLE
from packer_cli.plan.core.types import Int32Array, Int64Array, read_only
from packer_cli.tokens.item_pieces import Cuts, Kept


def cut_items(items: BatchItems, cuts: Cuts) -> Kept:
    """What pieces keep of their items, which `are_of` must confirm."""
    num, num_segments = len(items.kinds), len(items.segment_parents)
    segments, runs = (np.zeros(num + 1, dtype=np.int64) for _ in range(2))
    lengths, parents = (np.empty(num_segments, dtype=np.int32) for _ in range(2))
    starts, sizes = (np.empty(num_segments, dtype=np.int64) for _ in range(2))
    ends = np.empty(int((cuts.stop_branch - cuts.first_branch).sum(dtype=np.int64)), dtype=np.int32)
    kept = Kept(segments, lengths, parents, ends, runs, starts, sizes)
    scratch = np.empty((3, int(np.diff(items.segment_offsets).max(initial=0))), dtype=np.int64)
    _cut(BatchItems(*(read_only(each) for each in items)), Cuts(*(read_only(each) for each in cuts)), kept, scratch)
    last, run = segments[-1], runs[-1]
    return Kept(segments, lengths[:last], parents[:last], ends, runs, starts[:run], sizes[:run])


@njit(cache=True, nogil=True)
def _cut(items: BatchItems, cuts: Cuts, kept: Kept, scratch: Int64Array) -> None:
    """Write to `kept`."""
    number = 0
    for k in range(len(items.kinds)):
        first, branches = kept.segment_offsets[k], items.branch_offsets[k]
        if items.kinds[k] == SAMPLE:
            run = kept.run_offsets[k]
            kept.segment_lengths[first], kept.segment_parents[first] = cuts.length[k], -1
            kept.run_starts[run], kept.run_sizes[run] = cuts.start[k], cuts.length[k]
            kept.segment_offsets[k + 1], kept.run_offsets[k + 1] = first + 1, run + 1
            kept.branch_segments[number] = 0
            number += 1
            continue
        segments = slice(items.segment_offsets[k], items.segment_offsets[k + 1])
        starts = items.segment_starts[segments.start + k : segments.stop + k + 1]
        own = slice(branches + cuts.first_branch[k], branches + cuts.stop_branch[k])
        _keep(k, starts, items.segment_parents[segments], items.branch_segments[own], cuts.depth[k], kept, scratch)
        for branch in range(own.start, own.stop):
            segment = int(items.branch_segments[branch])
            while scratch[1, segment] < 0:
                segment = int(items.segment_parents[segments.start + segment])
            kept.branch_segments[number] = scratch[2, segment]
            number += 1


@njit(cache=True)
def _keep(
    k: int, starts: Int32Array, parents: Int32Array, ends: Int32Array, depth: int, kept: Kept, scratch: Int64Array
) -> None:
    """Write what piece k keeps of its item's segments.

    Args:
        ends: of its branches.
        scratch: for each segment, where it ends in its branches; how many kept children it has, -1 for one that is not
            kept; and its number in the piece.
    """
    stops, children, numbers = scratch[0], scratch[1], scratch[2]
    for s in range(len(parents)):
        stops[s] = starts[s + 1] - starts[s] + (stops[parents[s]] if parents[s] >= 0 else 0)
        children[s] = -1
    for end in ends:
        s, is_below = int(end), False
        while s >= 0:
            is_known = children[s] >= 0
            if stops[s] - (starts[s + 1] - starts[s]) < depth:
                children[s] = max(children[s], 0) + is_below
                is_below = True
            if is_known:
                break
            s = int(parents[s])
    first, run = kept.segment_offsets[k], kept.run_offsets[k]
    number = -1
    for s in range(len(parents)):
        if children[s] < 0:
            continue
        size = min(stops[s], depth) - (stops[s] - (starts[s + 1] - starts[s]))
        parent = parents[s]
        if parent >= 0 and children[parent] == 1:
            kept.segment_lengths[first + number] += size
        else:
            number += 1
            kept.segment_lengths[first + number] = size
            kept.segment_parents[first + number] = numbers[parent] if parent >= 0 else -1
        numbers[s] = number
        if run > kept.run_offsets[k] and kept.run_starts[run - 1] + kept.run_sizes[run - 1] == starts[s]:
            kept.run_sizes[run - 1] += size
        else:
            kept.run_starts[run], kept.run_sizes[run] = starts[s], size
            run += 1
    kept.segment_offsets[k + 1], kept.run_offsets[k + 1] = first + number + 1, run
