"""Which length groups to write into a config, where no model says which are fastest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.config.strategies import divisors
from packer_cli.sizes import format_tokens

_A_GPU = 16384
"""Tokens of a row on each GPU: HBP's tables end with 16k:1 and 128k:8 for 7B models on 80 GB."""
_LEAST = 8192
"""Shorter rows leave a GPU idle."""


def propose_groups(lengths: NDArray[np.int32], num_gpus: int) -> tuple[list[str], str]:
    """Groups as `--groups` takes them, and why.

    One group, or a second one for samples that one GPU does not hold: as many GPUs share its rows as leave each at
    most 16k tokens. Samples that all of them do not hold so are longer than the groups.

    Args:
        lengths: int32[n], of a sample; may be empty.

    >>> propose_groups(np.array([100, 20_000, 100_000], dtype=np.int32), 8)[0]
    ['16k:1', '128k:8']
    """
    if not len(lengths):
        return ["16k:1"], "No length is known: rows of 16k tokens, each on one GPU."
    longest = int(lengths.max())
    capacity = 1 << (longest - 1).bit_length()
    if capacity <= _A_GPU:
        capacity = max(capacity, _LEAST)
        return [f"{format_tokens(capacity)}:1"], f"One GPU holds the longest sample seen, {longest:,} tokens."
    wanted = capacity // _A_GPU
    degree = next((each for each in divisors(num_gpus) if each >= wanted), num_gpus)
    capacity = min(capacity, _A_GPU * degree)
    groups = [f"{format_tokens(_A_GPU)}:1", f"{format_tokens(capacity)}:{degree}"] if degree > 1 else ["16k:1"]
    why = f"Rows of 16k tokens run on one GPU each. The longest sample seen has {longest:,} tokens"
    if degree > 1:
        why += f", so {degree} GPUs share a long row"
    num_long = int((lengths > capacity).sum())
    if num_long:
        why += f", and {num_long / len(lengths):.1%} are over {format_tokens(capacity)}, which {num_gpus} GPUs hold"
    return groups, f"{why}."
