"""Limits the samples of a pack, for any packing algorithm: what is over the limit is packed again.

Trainers whose graphs are captured once (CUDA graphs, `torch.compile`) take borders of a fixed number of samples.
Price: nothing where no pack is over the limit; else O(n log n) for the samples of packs that are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.csr import ONE_EACH, group_moves, merge_packs, pack_tokens_and_work
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.best_fit import best_fit_each


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
