"""Each input's part of an epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.format.metrics import InputCounts
from packer_cli.plan.core.types import Int64Array, Pieces
from packer_cli.sizes import EpochShare, Share, TokenShare

_BLOCK = 1 << 20


def in_tokens(weights: Sequence[Share], tokens: Sequence[float]) -> list[float | TokenShare]:
    """Return weights with numbers of tokens for shares of an epoch: the largest epoch in which no sample repeats.

    Args:
        weights: either all are shares of an epoch, or none.
        tokens: of each input.

    Raises:
        RunError: an input that is to have a share has no tokens.
    """
    percents = [weight.percent for weight in weights if isinstance(weight, EpochShare)]
    if not percents:
        return [weight for weight in weights if not isinstance(weight, EpochShare)]
    if 0 in tokens:
        number = list(tokens).index(0)
        raise RunError(
            f"input {number + 1} is to have {weights[number]} of an epoch's tokens, and has no samples; correct it, "
            "or leave it out"
        )
    of_percent = min(total / percent for total, percent in zip(tokens, percents, strict=True))
    return [TokenShare(round(percent * of_percent)) for percent in percents]


def tokens_of_sources(sources: NDArray[np.integer], lengths: NDArray[np.generic], num_sources: int) -> Int64Array:
    """Sum the tokens (int64[s]) of each source, each sample once. O(n), block by block."""
    tokens = np.zeros(num_sources, dtype=np.int64)
    for first in range(0, len(lengths), _BLOCK):
        block = slice(first, first + _BLOCK)
        tokens += np.bincount(sources[block], weights=lengths[block], minlength=num_sources).astype(np.int64)
    return tokens


def count_inputs(sources: NDArray[np.integer], pieces: Pieces, num_inputs: int) -> tuple[InputCounts, ...]:
    """Count the samples and tokens that an epoch has of each input. O(pieces).

    Args:
        sources: int[n], the input of each sample.
    """
    of_pieces = sources if pieces.samples is None else sources[pieces.samples]
    samples = tokens_of_sources(of_pieces, pieces.start == 0, num_inputs).tolist()
    tokens = tokens_of_sources(of_pieces, pieces.length, num_inputs).tolist()
    return tuple(InputCounts(samples=number, tokens=total) for number, total in zip(samples, tokens, strict=True))
