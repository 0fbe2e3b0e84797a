"""Each input's part of an epoch, and the samples that it has of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.format.metrics import InputCounts
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import MOST_PIECES, Int32Array, Int64Array, Pieces
from packer_cli.sizes import EpochShare, Share, TokenShare

_BLOCK = 1 << 20

ONCE = {1.0}
"""The weights of sources of which an epoch has each sample once."""


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


def count_inputs(
    sources: NDArray[np.integer], pieces: Pieces, num_inputs: int, loss_tokens: Int32Array | None = None
) -> tuple[InputCounts, ...]:
    """Count the samples, tokens and loss tokens that an epoch has of each input. O(pieces).

    Args:
        sources: int[n], the input of each sample.
        loss_tokens: int32[m], of each piece; None: not known.
    """
    of_pieces = sources if pieces.samples is None else sources[pieces.samples]
    found = [pieces.start == 0, pieces.length, *([] if loss_tokens is None else [loss_tokens])]
    sums = [tokens_of_sources(of_pieces, each, num_inputs).tolist() for each in found]
    names = ("samples", "tokens", "loss_tokens")
    return tuple(InputCounts(**dict(zip(names, of_input, strict=False))) for of_input in zip(*sums, strict=True))


def weighted_samples(
    sources: NDArray[np.integer],
    weights: Sequence[Share],
    seed: int,
    lengths: NDArray[np.integer],
    among: Int32Array | None = None,
) -> Int32Array | None:
    """Choose the sample ids (int32[m], increasing) of an epoch, repeated by weight; None for each once.

    A source of n samples with weight 2.5 gives each twice, and round(n / 2) of them, drawn with the seed, once more.
    A source of t tokens that is to give u tokens gives each sample u // t times, and samples in the order of a draw
    with the seed once more, until their tokens are as near to u % t as whole samples of this order allow: within half
    of the longest sample.

    Args:
        sources: int[n], the source of each sample.
        weights: one per source, > 0.
        lengths: int[n], of each sample.
        among: int32[k], increasing: choose among these samples; None for all.

    Raises:
        RunError: there would be more than `MOST_PIECES`.
    """
    if {*weights} <= ONCE:
        return among
    some = slice(None) if among is None else among
    of_some, of_lengths = sources[some], lengths[some]
    weights = _in_tokens(of_some, weights, of_lengths)
    wanted = num_weighted(of_some, weights, of_lengths)
    if wanted > MOST_PIECES:
        raise RunError(
            f"the weights make about {wanted:.3g} samples an epoch out of {len(of_some)}; it may have {MOST_PIECES} "
            "at most: give smaller weights (PATH@WEIGHT), or more epochs"
        )
    times = np.zeros(len(sources), dtype=np.int32)
    for source, weight in enumerate(weights):
        members = ids_of(of_some == source)
        members = members if among is None else among[members]
        generator = np.random.Generator(np.random.Philox(int(rng_state(seed, Stream.WEIGHTS, source)[0])))
        drawn = generator.permutation(members)
        if isinstance(weight, TokenShare):
            whole, extra = _samples_of_tokens(lengths[drawn], weight.tokens)
        else:
            whole = int(weight)
            extra = round((weight - whole) * len(members))
        times[members] = whole
        times[drawn[:extra]] += 1
    return _repeated(times)


def _samples_of_tokens(lengths: NDArray[np.integer], tokens: int) -> tuple[int, int]:
    """Find how often to take all samples of a source, and how many of the first once more, for a number of tokens.

    Args:
        lengths: int[n], in the order in which they are taken.
    """
    if not len(lengths):
        return 0, 0
    ends = np.cumsum(lengths, dtype=np.int64)
    whole, rest = divmod(tokens, int(ends[-1]))
    extra = int(np.searchsorted(ends, rest))  # The samples before `ends[extra]` have fewer tokens than the rest.
    below = int(ends[extra - 1]) if extra else 0
    return whole, extra + int(ends[extra] - rest < rest - below)


def _in_tokens(
    sources: NDArray[np.integer], weights: Sequence[Share], lengths: NDArray[np.integer]
) -> Sequence[float | TokenShare]:
    has_shares = any(isinstance(weight, EpochShare) for weight in weights)
    return in_tokens(weights, tokens_of_sources(sources, lengths, len(weights)).tolist() if has_shares else ())


def num_weighted(sources: NDArray[np.integer], weights: Sequence[Share], lengths: NDArray[np.integer]) -> float:
    """Estimate the number of samples of an epoch. O(n)."""
    weights = _in_tokens(sources, weights, lengths)
    counts = tokens_of_sources(sources, np.broadcast_to(1, len(sources)), len(weights))
    times = [weight for weight in weights if not isinstance(weight, TokenShare)]
    if len(times) < len(weights):
        tokens = tokens_of_sources(sources, lengths, len(weights))
        pairs = zip(weights, tokens.tolist(), strict=True)
        times = [each.tokens / max(total, 1) if isinstance(each, TokenShare) else each for each, total in pairs]
    return float(np.dot(times, counts))


def _repeated(times: Int32Array) -> Int32Array:
    """Repeat each number i `times[i]` times, block by block, to need no other array."""
    chosen = np.empty(int(times.sum(dtype=np.int64)), dtype=np.int32)
    stop = 0
    for first in range(0, len(times), _BLOCK):
        own = times[first : first + _BLOCK]
        found = np.repeat(np.arange(first, first + len(own), dtype=np.int32), own)
        chosen[stop : stop + len(found)] = found
        stop += len(found)
    return chosen
