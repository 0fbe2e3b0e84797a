"""The fewest packs, by integer programming over the histogram of lengths: cutting stock with column generation.

Source: Gilmore and Gomory 1961 (patterns and pricing); Farley 1990 (the bound of an unfinished run). A linear program
chooses how often to pack each *pattern* of lengths. Its integer part is kept; diving and then an integer program solve
the rest, and best-fit decreasing places what remains. The result is never worse than `bfd`'s.

Price: O(n) for best-fit, and nothing more if its packs meet the bound, as they do on most mixed lengths; minimum
bin slack settles most other cases, so a million such samples take a fraction of a second. Otherwise rounds of pricing
at O(distinct lengths * capacity), seconds to a minute. Use it when samples are a third of the capacity or more, so
that only certain lengths fill a pack and `bfd` pads. Do not use it on lengths that are short against the capacity:
there is little left to gain.

Up to `max_lengths` distinct lengths are solved exactly, mostly to the bound or one pack above it. With more, short
samples are left to best-fit; if there are still too many long ones, they are packed in `stages`, by a linear program
of a hundred `knots`. Excess over the proved bound for 20,000 samples at capacity 128K: at most one pack if lengths are
uniform between 30K and 60K (`bfd`: 8.7 %) or 20K and 50K (3.4 %), 0.1 % between 20K and 100K, where two fill a pack
and each must find its counterpart (0.6 %), 0.2 % for a normal distribution around 45K (4.6 %).
`solve_cutting_stock` also returns the bound proved on the way. The linear program proves it in exact integers, the
integer program up to the solver's tolerances.

A run that ends within `time_limit` gives the same packs everywhere; one that is cut off gives the best so far, which
depends on the machine's speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing import bfd
from packer_cli.plan.packing.base import ChunkOptions, PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.ilp.columns import SAND, generate_columns, make_classes, start_patterns
from packer_cli.plan.packing.ilp.patterns import add_best_fit
from packer_cli.plan.packing.ilp.search import CuttingStock, Search, min_bin_slack
from packer_cli.plan.packing.ilp.stages import NUM_KNOTS, pack_in_stages, solve_many

_MOST_NODES = 5_000
"""Nodes to search for the samples of one pack: usually a tenth of a millisecond."""


def solve_cutting_stock(lengths: Int32Array, capacity: int, time_limit: float, max_lengths: int) -> CuttingStock:
    """The fewest packs that column generation finds; never more than best-fit decreasing needs.

    Args:
        lengths: int32[n], each 1 .. capacity.
        capacity: most tokens of a pack.
        time_limit: seconds, after which the best packing so far is returned.
        max_lengths: most distinct lengths to solve exactly; see `classes`.

    Raises:
        RunError: PuLP has no solver.
    """
    deadline = time.monotonic() + time_limit
    offsets, order = bfd.pack(lengths, capacity, 0, ChunkOptions())
    best = CuttingStock(offsets=offsets, order=order, bound=packs_lower_bound(lengths, capacity))
    if best.is_optimal:
        return best
    counts = np.bincount(lengths)
    best = _better(best, lengths, capacity, *min_bin_slack(counts, capacity, _MOST_NODES))
    if best.is_optimal:
        return best
    classes = make_classes(lengths, capacity, max_lengths)
    if classes is None:
        return _solve_in_stages(lengths, capacity, max_lengths, best, deadline)
    return Search(lengths, capacity, classes, best, deadline).run()


def _solve_in_stages(
    lengths: Int32Array, capacity: int, max_lengths: int, best: CuttingStock, deadline: float
) -> CuttingStock:
    """Pack the stones in stages, the last few exactly, and the sand by best-fit; the better of that and `best`."""
    counts = np.bincount(lengths)
    counts[: capacity // SAND + 1] = 0
    taken, offsets, bound = pack_in_stages(counts, capacity, max_lengths, deadline)
    best = replace(best, bound=max(best.bound, bound))
    rest = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    if 0 < np.count_nonzero(counts) <= max_lengths and not best.is_optimal:
        left = max(1e-3, deadline - time.monotonic())
        solved = solve_cutting_stock(rest, capacity, left, max_lengths)
        taken = np.concatenate([taken, rest[solved.order]])
        offsets = np.concatenate([offsets, offsets[-1] + solved.offsets[1:]])
    return _better(best, lengths, capacity, taken, offsets)


def _better(
    best: CuttingStock, lengths: Int32Array, capacity: int, taken: Int32Array, offsets: Int64Array
) -> CuttingStock:
    """The packs `taken`, completed by best-fit with the remaining samples; or `best` if they are no fewer."""
    order = argsort_descending(lengths)
    placed, left_over = _samples_of(taken, lengths, order)
    totals = np.concatenate([[0], np.cumsum(taken, dtype=np.int64)])
    sizes = np.diff(offsets).astype(np.int32)
    rooms = capacity - np.diff(totals[offsets])
    found, members = add_best_fit(lengths, capacity, placed, sizes, rooms, left_over)
    return replace(best, offsets=found, order=members) if len(found) - 1 < best.num_packs else best


def lp_lower_bound(lengths: Int32Array, capacity: int, time_limit: float = 60.0, max_lengths: int = 300) -> int:
    """No packing needs fewer packs than the linear program of cutting stock, rounded up; at least `packs_lower_bound`.

    Source: Gilmore and Gomory 1961; Farley 1990, whose bound also holds if column generation is stopped early. The
    optimum is hardly ever more than one pack above the full program's value, so the bound tells a good packing from a
    merely plausible one; with more than `max_lengths` distinct lengths it is hardly weaker (see `knots`).
    Price: seconds, O(distinct lengths * capacity) a round; if samples are short against the capacity,
    `packs_lower_bound` is as good, and free.

    Args:
        lengths: int32[n], each 1 .. capacity.
        capacity: most tokens of a pack.
        time_limit: seconds; less gives a valid bound that may be smaller.
        max_lengths: most distinct lengths to solve exactly.

    Raises:
        RunError: PuLP has no solver.
    """
    deadline = time.monotonic() + time_limit
    bound = packs_lower_bound(lengths, capacity)
    classes = make_classes(lengths, capacity, max_lengths)
    if classes is None:
        counts = np.bincount(lengths)
        stones = np.flatnonzero(counts)
        stones = stones[stones > capacity // SAND]
        return max(bound, solve_many(stones, counts[stones], capacity, 2 * NUM_KNOTS, deadline).bound)
    if len(classes.counts) == 0:
        return bound
    start = start_patterns(classes.down, classes.counts, classes.capacity)
    relaxed = generate_columns(classes.down, classes.counts, classes.capacity, start, deadline)
    return bound if relaxed is None else max(bound, relaxed.bound)


@njit(cache=True)
def _samples_of(
    taken: NDArray[np.int32], lengths: NDArray[np.int32], order: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`(placed, left)`: one sample for each length taken, and the others by decreasing length."""
    longest = lengths[order[0]]
    begin = np.zeros(longest + 2, dtype=np.int64)
    for length in lengths:
        begin[length] += 1
    for length in range(longest, -1, -1):
        begin[length] += begin[length + 1]
    # order[begin[x + 1]:begin[x]] have length x.
    next_of = begin[1:].copy()
    placed = np.empty(len(taken), dtype=np.int32)
    for k in range(len(taken)):
        placed[k] = order[next_of[taken[k]]]
        next_of[taken[k]] += 1
    left = np.empty(len(order) - len(taken), dtype=np.int32)
    num_left = 0
    for length in range(longest, -1, -1):
        for place in range(next_of[length], begin[length]):
            left[num_left] = order[place]
            num_left += 1
    return placed, left


@dataclass(frozen=True, kw_only=True)
class IlpOptions(PackingOptions):
    """Greater values take longer and pad less."""

    time_limit: float = 60.0
    """Seconds per call, after which the best packing so far is returned."""
    max_lengths: int = 300
    """Most distinct lengths to solve exactly."""

    def __post_init__(self) -> None:
        if not 0 < self.time_limit <= 1e6:  # refuses NaN too
            raise ValueError(
                f"option 'time_limit' of packing 'ilp' must be over 0 and at most 1e6 seconds, got {self.time_limit}"
            )
        if not 1 <= self.max_lengths <= 2000:
            raise ValueError(f"option 'max_lengths' of packing 'ilp' must be in 1..2000, got {self.max_lengths}")


def pack(lengths: Int32Array, capacity: int, seed: int, options: IlpOptions) -> tuple[Int64Array, Int32Array]:
    """See the package for shapes."""
    result = solve_cutting_stock(lengths, capacity, options.time_limit, options.max_lengths)
    return result.offsets, result.order


ALGORITHM = PackingAlgorithm(
    name="ilp",
    summary="cutting stock by column generation: fewest packs, slow",
    pack=pack,
    options=IlpOptions,
)
