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

from dataclasses import dataclass

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.ilp.cutting_stock import solve_cutting_stock


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
