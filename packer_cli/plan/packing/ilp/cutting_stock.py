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
samples are left to best-fit; if there are still too many long ones, neighboring lengths are rounded up to the longest
of a class. Excess over the fewest packs known for 20,000 samples at capacity 128K, of 300 classes: 0.16 % if lengths
are uniform between 30K and 60K (`bfd`: 8.7 %), 0.15 % between 20K and 50K (3.4 %), 0.27 % between 20K and 100K, where
two fill a pack and each must find its counterpart (0.5 %), and 0.34 % for a normal distribution around 45K (2.6 %).
`solve_cutting_stock` also returns the bound proved on the way. The linear program proves it in exact integers, the
integer program up to the solver's tolerances.

A run that ends within `time_limit` gives the same packs everywhere; one that is cut off gives the best so far, which
depends on the machine's speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing import bfd
from packer_cli.plan.packing.base import ChunkOptions, PackingAlgorithm, PackingOptions, within
from packer_cli.plan.packing.ilp.columns import generate_columns, make_classes, start_patterns
from packer_cli.plan.packing.ilp.search import CuttingStock, Search, min_bin_slack

_MOST_NODES = 5_000
"""Nodes to search for the samples of one pack: usually a tenth of a millisecond."""


def solve_cutting_stock(lengths: Int32Array, capacity: int, time_limit: float, max_lengths: int) -> CuttingStock:
    """The fewest packs that column generation finds; never more than best-fit decreasing needs.

    Args:
        lengths: int32[n], each 1 .. capacity.
        capacity: most tokens of a pack.
        time_limit: seconds, after which the best packing so far is returned.
        max_lengths: most classes of lengths; more distinct lengths are rounded, see `columns`.

    Raises:
        RunError: PuLP has no solver.
    """
    deadline = time.monotonic() + time_limit
    offsets, order = bfd.pack(lengths, capacity, 0, ChunkOptions())
    best = CuttingStock(offsets=offsets, order=order, bound=packs_lower_bound(lengths, capacity))
    if best.is_optimal:
        return best
    order, (taken, offsets) = argsort_descending(lengths), min_bin_slack(np.bincount(lengths), capacity, _MOST_NODES)
    if len(offsets) - 1 < best.num_packs:
        members = np.empty_like(order)
        members[argsort_descending(taken)] = order
        best = replace(best, offsets=offsets, order=members)
    if best.is_optimal:
        return best
    return Search(lengths, capacity, make_classes(lengths, capacity, max_lengths), best, deadline).run()


def lp_lower_bound(lengths: Int32Array, capacity: int, time_limit: float = 60.0, max_lengths: int = 300) -> int:
    """No packing needs fewer packs than the linear program of cutting stock, rounded up; at least `packs_lower_bound`.

    Source: Gilmore and Gomory 1961; Farley 1990, whose bound also holds if column generation is stopped early. The
    optimum is hardly ever more than one pack above the full program's value, so the bound tells a good packing from a
    merely plausible one. With more than `max_lengths` distinct lengths, these are rounded down to the shortest of a
    class, and the bound is up to 0.2 % lower.
    Price: seconds, O(distinct lengths * capacity) a round; if samples are short against the capacity,
    `packs_lower_bound` is as good, and free.

    Args:
        lengths: int32[n], each 1 .. capacity.
        capacity: most tokens of a pack.
        time_limit: seconds; less gives a valid bound that may be smaller.
        max_lengths: likewise.

    Raises:
        RunError: PuLP has no solver.
    """
    deadline = time.monotonic() + time_limit
    bound = packs_lower_bound(lengths, capacity)
    classes = make_classes(lengths, capacity, max_lengths)
    if len(classes.counts) == 0:
        return bound
    start = start_patterns(classes.down, classes.counts, classes.capacity)
    relaxed = generate_columns(classes.down, classes.counts, classes.capacity, start, deadline)
    return bound if relaxed is None else max(bound, relaxed.bound)


@dataclass(frozen=True, kw_only=True)
class IlpOptions(PackingOptions):
    """Greater values take longer and pad less."""

    time_limit: float = within(60.0, 0, 10**6, is_open=True)
    """Seconds per call, after which the best packing so far is returned."""
    max_lengths: int = within(300, 1, 2000)
    """Most distinct lengths to solve exactly; of more, neighboring ones are rounded up alike."""


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
