"""The tokens of a row that each rank of a sequence-parallel (SP) group holds. Pure numpy.

There are three shardings, each a partition of the row's T tokens into `sp_size` parts of T / sp_size; a part keeps its
tokens in the order of the row:

============  ===========================================  ================================  ==================
name          part of rank r                               for                               T is a multiple of
============  ===========================================  ================================  ==================
`contiguous`  the r-th of sp_size runs                     Ulysses (DeepSpeed), FSDP         sp_size
`zigzag`      chunks r and 2*sp_size-1-r of 2*sp_size      ring attention, context parallel  2 * sp_size
`document`    the same of each sample; remainders dealt    context parallel per document     sp_size
============  ===========================================  ================================  ==================

`zigzag` balances the causal work of one long sample, `document` that of a pack (WLB-LLM, section 4; "per-sequence" and
"per-document sharding" there). If the length of every sample is a multiple of 2*sp_size, `document` is the same as
TransformerEngine's `thd_get_partitioned_indices`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Sharding = Literal["contiguous", "zigzag", "document"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)


def length_multiple(sharding: Sharding, sp_size: int) -> int:
    """The number of which a row's length must be a multiple.

    >>> length_multiple("zigzag", 4), length_multiple("document", 4), length_multiple("zigzag", 1)
    (8, 4, 1)
    """
    return 2 * sp_size if sharding == "zigzag" and sp_size > 1 else sp_size


def local_indices(
    cu_seqlens: npt.ArrayLike, sp_size: int, sp_rank: int, sharding: Sharding = "contiguous"
) -> npt.NDArray[np.int64]:
    """The places in the row of the tokens of rank `sp_rank`.

    Args:
        cu_seqlens: integers [segments+1], from 0 to T: the borders of the whole row, padding included.
        sp_size: ranks that share the row.
        sp_rank: 0 to sp_size - 1.
        sharding: one of `SHARDINGS`.

    Returns:
        int64 [T / sp_size], ascending.

    Raises:
        ValueError: an unknown sharding, a rank out of range, or a row of the wrong length.

    Price: one pass over the result.

    >>> local_indices([0, 5, 8], 2, 0, "contiguous").tolist()
    [0, 1, 2, 3]
    >>> local_indices([0, 5, 8], 2, 0, "zigzag").tolist()
    [0, 1, 6, 7]
    >>> local_indices([0, 5, 8], 2, 0, "document").tolist()  # sample 0: chunks 0, 3 and the rest; sample 1: its rest
    [0, 3, 4, 6]
    >>> local_indices([0, 5, 8], 2, 1, "document").tolist()
    [1, 2, 5, 7]
    """
    cu = np.asarray(cu_seqlens, dtype=np.int64)
    length = int(cu[-1])
    check_sharding(sharding)
    if not 0 <= sp_rank < sp_size:
        raise ValueError(f"sp_rank is {sp_rank}: it must be from 0 to {sp_size - 1}")
    multiple = length_multiple(sharding, sp_size)
    if length % multiple:
        raise ValueError(
            f"a row of {length} tokens cannot be split as {sharding!r} over {sp_size} ranks: "
            f"pad it to a multiple of {multiple}"
        )
    part = length // sp_size
    if sharding == "contiguous" or sp_size == 1:
        return np.arange(sp_rank * part, (sp_rank + 1) * part)
    if sharding == "zigzag":
        chunk, mirror = part // 2, 2 * sp_size - 1 - sp_rank
        return np.concatenate((np.arange(chunk) + sp_rank * chunk, np.arange(chunk) + mirror * chunk))
    return _document_indices(cu, sp_size, sp_rank)


def check_sharding(sharding: str) -> None:
    """Raise ValueError, which lists the names, for an unknown sharding."""
    if sharding not in SHARDINGS:
        raise ValueError(f"unknown sharding {sharding!r}: choose one of {', '.join(SHARDINGS)}")


def _document_indices(cu: npt.NDArray[np.int64], sp_size: int, sp_rank: int) -> npt.NDArray[np.int64]:
    first, lengths = cu[:-1], np.diff(cu)
    chunks = 2 * sp_size
    chunk = lengths // chunks
    rest = lengths - chunks * chunk
    # Dealing continues from sample to sample, so the parts are equal; a rank gets at most two tokens of a rest.
    dealt = np.cumsum(rest) - rest
    mine = (sp_rank - dealt) % sp_size
    rest_start = first + chunks * chunk + mine
    starts = np.stack(
        (first + sp_rank * chunk, first + (chunks - 1 - sp_rank) * chunk, rest_start, rest_start + sp_size), axis=1
    ).ravel()
    counts = np.stack((chunk, chunk, mine < rest, mine + sp_size < rest), axis=1).ravel()
    ends = np.cumsum(counts)
    indices = np.repeat(starts - (ends - counts), counts)
    indices += np.arange(len(indices))
    return indices


def row_order(cu_seqlens: Any, sp_size: int, sharding: Sharding = "contiguous") -> npt.NDArray[np.int64]:
    """The place of each token of the row in the concatenated parts of ranks 0, 1, ...

    int64 [T]; ``parts[row_order(...)]`` restores the row. Raises as `local_indices`.

    >>> row_order([0, 8], 2, "zigzag").tolist()
    [0, 1, 4, 5, 6, 7, 2, 3]
    """
    parts = np.concatenate([local_indices(cu_seqlens, sp_size, rank, sharding) for rank in range(sp_size)])
    order = np.empty_like(parts)
    order[parts] = np.arange(len(parts))
    return order
