"""Every packing algorithm by name; those of other packages or a user are proved on each pack that they make.

Price of a proof: O(n) a call, in numpy; hbpack's own algorithms are proved by its tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packer_cli.errors import RunError
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing import (
    bfd,
    bfd_split,
    bfs,
    decompose,
    ffd,
    ffs,
    ilp,
    isf,
    next_fit,
    no_packing,
    padded,
    random_fit,
    sorted_fit,
    spfhp,
    wrap,
)
from packer_cli.plan.packing.base import PackFunction, PackingAlgorithm, PackingOptions
from packer_cli.plugins import Registry, blaming


def take_packing(name: str, thing: Any) -> PackingAlgorithm:
    """The algorithm that an object stands for: itself, or a function of (lengths, capacity, seed).

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
    """Raise ValueError unless each sample is in exactly one pack, no pack is empty, and none is over the capacity."""
    for name, array in (("offsets", offsets), ("order", order)):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            shown = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"its {name} must be one row of integers in numpy, got {shown}")
    if len(order) != len(lengths):
        raise ValueError(f"it packs {len(order):,} samples of {len(lengths):,}")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(order):
        raise ValueError(f"its offsets must go from 0 to {len(order):,}, the number of samples")
    if (np.diff(offsets.astype(np.int64)) < 1).any():
        raise ValueError(f"its pack {np.flatnonzero(np.diff(offsets.astype(np.int64)) < 1)[0]} is empty")
    if not len(order):
        return
    if order.min() < 0 or order.max() >= len(lengths):
        raise ValueError(f"its order must number samples from 0 to {len(lengths) - 1:,}")
    times = np.bincount(order, minlength=len(lengths))
    if (times != 1).any():
        sample = int(np.flatnonzero(times != 1)[0])
        raise ValueError(f"sample {sample} is in {times[sample]} packs, not in one")
    tokens = np.add.reduceat(lengths[order], offsets[:-1].astype(np.int64), dtype=np.int64)
    if (tokens > capacity).any():
        pack = int(np.flatnonzero(tokens > capacity)[0])
        raise ValueError(f"its pack {pack} has {tokens[pack]:,} tokens, and the capacity is {capacity:,}")


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
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError("it must return (offsets, order)")
        if not np.array_equal(given, lengths):
            raise ValueError("it changes the lengths that it is given")
        check_packs(*found, lengths, capacity)
    except ValueError as error:
        raise RunError(f"packing {name!r} broke the rules of a packing: {error}") from None
    offsets, order = found
    return offsets.astype(np.int64, copy=False), order.astype(np.int32, copy=False)


_OWN = {
    module.ALGORITHM.name: module.ALGORITHM
    for module in (
        isf,
        next_fit,
        ffd,
        bfd,
        ffs,
        bfs,
        spfhp,
        ilp,
        wrap,
        bfd_split,
        decompose,
        random_fit,
        sorted_fit,
        no_packing,
        padded,
    )
}

REGISTRY: Registry[PackingAlgorithm] = Registry("packings", "packing algorithm", _OWN, take_packing)
"""By name, in the order of tables."""
