"""Exact duplicates among the samples of a token store: the same tokens and the same loss, and of items the same trees.

Two hashes of 64 bits tell samples apart. The first is the one of their tokens by which `--validation` divides samples,
so a sample and its duplicates are on one side. The second covers all that a model could learn from, and is made only
in record batches with samples whose first hashes are equal.

Price: 0.2 s a million samples, and 1.5 s a million in such record batches (one core).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns
from packer_cli.format.ragged import Lists, begins_run
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.types import Int32Array
from packer_cli.tokens.content_hash import hash_lists

_OF_RECORDS = ("line", "num_loss_tokens", "content_hash")
"""Columns in which duplicates may differ, or that follow from others."""
_JOIN = np.uint64(0x9E3779B97F4A7C15)

ReadBatches = Callable[[NDArray[np.bool_]], Iterable[tuple[Columns, NDArray[np.bool_]]]]


def find_duplicates(hashes: NDArray[np.uint64], read: ReadBatches) -> Int32Array:
    """Find all samples (int32[k], rising) but the first of those that are the same. O(n log n + tokens).

    Args:
        hashes: uint64[n], the content hash of each sample.
        read: yields the columns of the samples, see `TokenStore.batches_of`.
    """
    may_be = np.zeros(len(hashes), dtype=np.bool_)
    order = np.argsort(hashes)
    is_like_next = hashes[order[1:]] == hashes[order[:-1]]
    may_be[order[1:][is_like_next]] = may_be[order[:-1][is_like_next]] = True
    seconds = [np.zeros(0, dtype=np.uint64), *(_second_hashes(batch)[own] for batch, own in read(may_be))]
    samples, second = ids_of(may_be), np.concatenate(seconds)
    order = np.lexsort((second, hashes[samples]))  # It is stable: of equal ones, the first sample comes first.
    samples, second = samples[order], second[order]
    return np.sort(samples[~begins_run(hashes[samples], second)])


def _second_hashes(batch: Columns) -> NDArray[np.uint64]:
    """Hash all that a model could learn from each sample: uint64[r]."""
    num = len(batch["line"])
    one_each, hashes = np.arange(num + 1), np.zeros(num, dtype=np.uint64)
    for name in sorted(batch.keys() - {*_OF_RECORDS}):
        offsets, values = batch[name] if isinstance(batch[name], Lists) else Lists(one_each, batch[name])
        if values.dtype.kind != "f":  # Parts without trees have integers of other types than those with trees.
            values = values.astype(np.int32)
        hashes = (hashes ^ hash_lists(Lists(offsets, values), seed=1)) * _JOIN
    return hashes
