"""The tokens of a row that each of its ranks holds: what the planner, the writer and the loader share. Pure numpy.

There are three shardings, each a partition of the row's T tokens into `sp_size` parts of T / sp_size; a part keeps its
tokens in the order of the row:

============  ===========================================  ================================  ==================
name          part of rank r                               for                               T is a multiple of
============  ===========================================  ================================  ==================
`contiguous`  the r-th of sp_size runs                     Ulysses (DeepSpeed), FSDP         sp_size
`zigzag`      chunks r and 2*sp_size-1-r of 2*sp_size      ring attention, context parallel  2 * sp_size
`document`    chunks r and 2*sp_size-1-r of each sample    context parallel per document     sp_size
============  ===========================================  ================================  ==================

`zigzag` balances the causal work of one long sample, `document` that of a pack (WLB-LLM, arXiv 2503.17924, section
5.1; "per-sequence" and "per-document sharding" there). If the length of every sample is a multiple of 2*sp_size,
`document` is the same as TransformerEngine's `thd_get_partitioned_indices`.

**What a sample leaves over.** A sample cut into 2n equal chunks (n = sp_size) leaves up to 2n - 1 tokens, and every
rank must get the same number of them in all. WLB-LLM deals them out one by one, round-robin. Each is then a piece of
its own, for which an attention kernel computes a whole tile of 128 queries, and one rank may always get the last token
of a sample, which sees most: with 8 ranks and samples of 8 tokens that rank has 78 % more than its share. Here tokens
are dealt to *chunks* instead. From the longest sample to the shortest, the chunks that hold one token more than the
others go round: 0, 1, ..., 2n-1, 0, .... A rank then has two runs of a sample and no single tokens. In samples with
chunks of fewer than `STRETCHED` tokens one more would matter; what they leave over is dealt after all others, from the
last place in its sample to the first, each token to the rank of the chunk whose turn it is.

**How even that is.** The causal work of a rank is the number of keys that its tokens see. With C the longest chunk, m
the number of samples whose chunks were stretched, and S the longest of the other samples that left tokens over (0 if
there is none), the work of any two ranks of a row differs by at most

    (3n - 2) C  +  (2n + 1) m  +  2 S,      where S < 2n * STRETCHED

The first two terms are at most 1.5 times the longest sample, and 2 % of the rest of the work. Proof: a chunk k of c
tokens before which P tokens were added, and that has y in {0, 1} more itself, does `k c^2 + c(c+1)/2` (summed over a
rank's chunks r and 2n-1-r the same for all ranks) plus `c (P + y (k+1)) + y (P + 1)`.

- `c (..)` is a sum over the tokens added. One added to chunk j gives each rank c for each of its chunks after j, and
  c (j + 1) more to the rank of j itself. A round over all chunks gives every rank 4n c. Inside a round the ranks are
  apart by at most (3n - 2) c, reached when n + 1 tokens are dealt. As c falls from sample to sample, summation by
  parts bounds the whole by the greatest c.
- `y (P + 1)` is between 0 and 2n + 1 for a rank and sample. A stretched sample does at least 2n c^2 a rank, so this is
  at most 1 / 50 of its work.
- The single tokens come in falling order of their work, and two ranks take turns as a b b a a b b a ..: summation by
  parts again, with counts that are never apart by more than two.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from packer_cli.format.ragged import expand

Sharding = Literal["contiguous", "zigzag", "document"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)

PLANNED: tuple[Sharding, ...] = ("zigzag", "document")
"""The meaning of each value of a pack's `cp_sharding`: 0 per sequence, 1 per document."""

STRETCHED = 8
"""Tokens of a chunk, at least, that may be stretched by one."""


def length_multiple(sharding: Sharding, sp_size: int) -> int:
    """Find the number of which a row's length must be a multiple.

    >>> length_multiple("zigzag", 4), length_multiple("document", 4), length_multiple("zigzag", 1)
    (8, 4, 1)
    """
    return 2 * sp_size if sharding == "zigzag" and sp_size > 1 else sp_size


def local_indices(
    cu_seqlens: npt.ArrayLike, sp_size: int, sp_rank: int, sharding: Sharding = "contiguous"
) -> npt.NDArray[np.int64]:
    """List the places in the row of the tokens of rank `sp_rank`.

    Args:
        cu_seqlens: integers [segments+1], from 0 to T: the borders of the whole row, padding included.
        sp_size: ranks that share the row.
        sp_rank: 0 to sp_size - 1.
        sharding: one of `SHARDINGS`.

    Returns:
        int64 [T / sp_size], ascending.

    Raises:
        ValueError: an unknown sharding, a rank out of range, or a row of the wrong length.

    Price: one pass over the result; `document` sorts the segments, too.

    >>> local_indices([0, 5, 8], 2, 0, "contiguous").tolist()
    [0, 1, 2, 3]
    >>> local_indices([0, 5, 8], 2, 0, "zigzag").tolist()
    [0, 1, 6, 7]
    >>> local_indices([0, 34], 2, 0, "document").tolist()  # Chunks 0 and 3 of 9, 9, 8 and 8 tokens.
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 26, 27, 28, 29, 30, 31, 32, 33]
    >>> local_indices([0, 5, 8], 2, 0, "document").tolist()  # Chunks of 1 and 0 tokens; 4, 7, 6, 5 go to 0, 1, 1, 0.
    [0, 3, 4, 5]
    """
    cu = np.asarray(cu_seqlens, dtype=np.int64)
    length = int(cu[-1])
    if sharding not in SHARDINGS:
        raise ValueError(f"unknown sharding {sharding!r}: choose one of {', '.join(SHARDINGS)}")
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


def added_before(dealt: Any, chunk: int, num_chunks: int) -> Any:
    """Count the tokens among the first `dealt` that went to chunks before `chunk`, where chunks take turns.

    Integers, or arrays of them; the planner compiles it.

    >>> int(added_before(10, 3, 8))  # Chunks 0 to 7 got one each, then 0 and 1 another.
    5
    """
    return dealt // num_chunks * chunk + np.minimum(dealt % num_chunks, chunk)


def _document_indices(cu: npt.NDArray[np.int64], sp_size: int, sp_rank: int) -> npt.NDArray[np.int64]:
    first, lengths = cu[:-1], np.diff(cu)
    num_chunks, mirror = 2 * sp_size, 2 * sp_size - 1 - sp_rank
    chunk = lengths // num_chunks
    rest = lengths - num_chunks * chunk
    added = np.where(chunk >= STRETCHED, rest, 0)
    longest_first = np.argsort(-lengths, kind="stable")
    after = np.empty_like(lengths)
    after[longest_first] = np.cumsum(added[longest_first])
    before = after - added

    def border(k: int) -> npt.NDArray[np.int64]:
        moved = added_before(after, k, num_chunks) - added_before(before, k, num_chunks)
        found: npt.NDArray[np.int64] = first + k * chunk + moved
        return found

    short = np.flatnonzero(added < rest)
    single = expand(first[short] + num_chunks * chunk[short], rest[short])
    place = single - np.repeat(first[short], rest[short])
    turn = (int(added.sum()) + np.arange(len(single))) % num_chunks
    single = single[np.argsort(-place, kind="stable")][(turn == sp_rank) | (turn == mirror)]
    starts = np.concatenate((border(sp_rank), border(mirror), single))
    stops = np.concatenate((border(sp_rank + 1), border(mirror + 1), single + 1))
    in_order = np.argsort(starts, kind="stable")
    return expand(starts[in_order], (stops - starts)[in_order])


def row_order(cu_seqlens: Any, sp_size: int, sharding: Sharding = "contiguous") -> npt.NDArray[np.int64]:
    """Find the place of each token of the row in the concatenated parts of ranks 0, 1, ...

    int64 [T]; ``parts[row_order(...)]`` restores the row. Raises as `local_indices`.

    >>> row_order([0, 8], 2, "zigzag").tolist()
    [0, 1, 4, 5, 6, 7, 2, 3]
    """
    parts = np.concatenate([local_indices(cu_seqlens, sp_size, rank, sharding) for rank in range(sp_size)])
    order = np.empty_like(parts)
    order[parts] = np.arange(len(parts))
    return order
