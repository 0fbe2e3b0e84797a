"""Every packing algorithm by name; those of other packages or a user are proved on each pack that they make.

Price of a proof: O(n) a call, in numpy; hbpack's own algorithms are proved by its tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packer_cli.errors import PlanError, RunError
from packer_cli.plan.core.check import forbid, require
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing import best_fit, first_fit, ilp, isf, next_fit, spfhp, wrap_decompose
from packer_cli.plan.packing.base import PackFunction, PackingAlgorithm, PackingOptions
from packer_cli.plugins import Registry, blaming


def take_packing(name: str, thing: Any) -> PackingAlgorithm:
    """Take the algorithm that an object stands for: itself, or a function of (lengths, capacity, seed).

    Raises:
        TypeError, ValueError: it is neither, or has another name.
    """
    if isinstance(thing, PackingAlgorithm):
        if thing.name != name:
            raise ValueError(f"its name is {thing.name!r}")
        return replace(thing, pack=partial(_proved, name, thing.pack))
    if not callable(thing) or isinstance(thing, type):
        raise TypeError(f"it must be a PackingAlgorithm or a function, not {type(thing).__name__}")
    summary = (thing.__doc__ or "").strip().partition("\n")[0]
    return PackingAlgorithm(name=name, summary=summary, pack=partial(_proved, name, partial(_call, thing)))


def check_packs(offsets: Any, order: Any, lengths: Int32Array, capacity: int) -> None:
    """Raise PlanError unless each sample is in exactly one pack, no pack is empty, and none is over the capacity."""
    for name, array in (("offsets", offsets), ("order", order)):
        is_array = isinstance(array, np.ndarray)
        shown = f"{array.dtype}{list(array.shape)}" if is_array else type(array).__name__
        is_row = is_array and array.ndim == 1 and array.dtype.kind in "iu"
        require(is_row, f"its {name} must be one row of integers in numpy, got {shown}")
    num = len(order)
    require(num == len(lengths), f"it packs {num:,} samples of {len(lengths):,}")
    is_whole = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == num
    require(is_whole, f"its offsets must go from 0 to {num:,}, the number of samples")
    offsets = offsets.astype(np.int64)
    forbid(np.diff(offsets) < 1, lambda pack: f"its pack {pack} is empty")
    if num:
        is_known = order.min() >= 0 and order.max() < num
        require(is_known, f"its order must number samples from 0 to {num - 1:,}")
        times = np.bincount(order, minlength=num)
        forbid(times != 1, lambda sample: f"sample {sample} is in {times[sample]} packs, not in one")
        tokens = np.add.reduceat(lengths[order], offsets[:-1], dtype=np.int64)
        what = f"tokens, and the capacity is {capacity:,}"
        forbid(tokens > capacity, lambda pack: f"its pack {pack} has {tokens[pack]:,} {what}")


def _call(
    function: Callable[..., Any], lengths: Int32Array, capacity: int, seed: int, options: PackingOptions
) -> tuple[Int64Array, Int32Array]:
    found: tuple[Int64Array, Int32Array] = function(lengths, capacity, seed)
    return found


def _proved(
    name: str, pack: PackFunction, lengths: Int32Array, capacity: int, seed: int, options: Any, **more: Any
) -> tuple[Int64Array, Int32Array]:
    given = lengths.copy()
    with blaming("packing", name, ""):
        found = pack(given, capacity, seed, options, **more)
    try:
        require(isinstance(found, tuple) and len(found) == 2, "it must return (offsets, order)")
        require(np.array_equal(given, lengths), "it changes the lengths that it is given")
        check_packs(*found, lengths, capacity)
    except PlanError as error:
        raise RunError(f"packing {name!r} broke the rules of a packing: {error}") from None
    offsets, order = found
    return offsets.astype(np.int64, copy=False), order.astype(np.int32, copy=False)


_OWN = {
    algorithm.name: algorithm
    for algorithm in (
        isf.ALGORITHM,
        next_fit.NEXT_FIT,
        first_fit.FFD,
        best_fit.BFD,
        first_fit.FFS,
        best_fit.BFS,
        spfhp.ALGORITHM,
        ilp.ALGORITHM,
        wrap_decompose.WRAP,
        best_fit.BFD_SPLIT,
        wrap_decompose.DECOMPOSE,
        next_fit.RANDOM,
        next_fit.SORTED,
        next_fit.NO_PACKING,
        next_fit.PADDED,
    )
}

REGISTRY: Registry[PackingAlgorithm] = Registry("packings", "packing algorithm", _OWN, take_packing)
"""By name, in the order of tables."""
