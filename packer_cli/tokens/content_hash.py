"""A hash of each sample's token ids, by which samples are set aside for validation (`--validation`).

The hash covers the ids of the whole sample alone. So samples that a model could not tell apart are on one side,
even if their records differ in spelling or in which tokens carry a loss. And the split stays the same with other
files, another order, other weights, another --loss-on, and added data. Another tokenizer or chat template splits
differently, as the same text is then other tokens. A hash of the records' bytes would not change with those, but could
part a sample from its copy with the keys in another order.

Of an item of several branches, the hash goes on over its tree: where each segment ends, its parent, and the segment in
which each branch ends. So equal items are on one side, and an item of one branch is as that sample.

The format promises these numbers, xxh3-64 of the ids as the store has them: another hash would move samples from one
side to the other. Parts of the store keep them, so that no plan reads the tokens. Price: 0.25 s a million samples.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns
from packer_cli.format.ragged import Lists


def hashes_of(batch: Columns) -> NDArray[np.uint64]:
    """Hash each row of these columns, of samples or of items: uint64[r]."""
    ids = batch["input_ids"]
    hashes = hash_lists(ids)
    if "segment_starts" in batch:
        starts, *others = (batch[name] for name in ("segment_starts", "segment_parents", "branch_segments"))
        for row in np.flatnonzero(np.diff(others[1].offsets) > 1).tolist():
            digest = xxhash.xxh3_64(ids.row(row).tobytes())
            for numbers in (starts.row(row)[1:], *(other.row(row) for other in others)):
                digest.update(numbers.astype(np.int32).tobytes())
            hashes[row] = digest.intdigest()
    return hashes


def hash_lists(lists: Lists, seed: int = 0) -> NDArray[np.uint64]:
    """Hash the bytes of each list: uint64[r]."""
    data = memoryview(pa.py_buffer(np.ascontiguousarray(lists.values)))
    borders = (lists.offsets * lists.values.itemsize).tolist()
    hashes = [xxhash.xxh3_64_intdigest(data[begin:end], seed) for begin, end in pairwise(borders)]
    return np.array(hashes, dtype=np.uint64)
