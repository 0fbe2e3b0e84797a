"""The samples of a corpus as a plan sees them, and those that an epoch has of them.

The kernels of items are imported where there are some: flat samples need not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.format.trees import ItemTrees
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.mixture import in_tokens, tokens_of_sources
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import MOST_PIECES, Int32Array
from packer_cli.sizes import EpochShare, Share, TokenShare

_BLOCK = 1 << 20

_ONCE = {1.0}
"""The weights of sources of which an epoch has each sample once."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The facts about samples that a plan needs."""

    lengths: Int32Array
    """int32[n]"""
    sources: NDArray[np.integer] | None = None
    """int[n], the source of each sample; None if unknown."""
    weights: tuple[Share, ...] = ()
    """One per source: how often an epoch contains its samples, or how many tokens, or which share, it has of it."""
    among: Int32Array | None = None
    """int32[k], increasing: the ids of the samples to plan, of these n; None for all."""
    trees: ItemTrees | None = None
    """The trees of the samples, which are items; None: all are flat."""

    @property
    def num_samples(self) -> int:
        """The number of samples to plan, each counted once."""
        return len(self.lengths if self.among is None else self.among)

    def alone(self) -> Samples:
        """Select the samples to plan, numbered anew."""
        if self.among is None:
            return self
        sources = None if self.sources is None else self.sources[self.among]
        trees = self.trees
        if trees is not None:
            from packer_cli.plan.core.items import select_items

            trees = select_items(trees, self.among)
        return Samples(lengths=self.lengths[self.among], sources=sources, weights=self.weights, trees=trees)

    def drawn(self, number: int, seed: int) -> Samples:
        """This many of those to plan, drawn evenly over the lengths. O(n log n)."""
        own = self.alone()
        if own.num_samples <= number:
            return own
        order = np.argsort(own.lengths, kind="stable")
        begins = np.linspace(0, own.num_samples, number + 1).astype(np.int64)
        places = begins[:-1] + (np.random.default_rng(seed).random(number) * np.diff(begins)).astype(np.int64)
        return replace(own, among=np.sort(order[places]).astype(np.int32)).alone()

    def chosen(self, seed: int) -> Int32Array | None:
        """The sample ids (int32[m], increasing) of an epoch, repeated by weight; None for each once."""
        if self.sources is None or {*self.weights} <= _ONCE:
            return self.among
        return weighted_samples(self.sources, self.weights, seed, self.lengths, self.among)

    @property
    def num_wanted(self) -> float:
        """About how many samples an epoch has. O(n)."""
        if self.sources is None or {*self.weights} <= _ONCE:
            return self.num_samples
        among = slice(None) if self.among is None else self.among
        return num_weighted(self.sources[among], self.weights, self.lengths[among])

    def sizes(self, limits: Sequence[int] = ()) -> Int32Array:
        """int32[n]: what each takes of a capacity; of flat samples their lengths."""
        if self.trees is None:
            return self.lengths
        from packer_cli.plan.core.items import whole_items

        return whole_items(self.trees).sizes(limits)

    def epoch_sizes(self, seed: int, limits: Sequence[int] = ()) -> Int32Array:
        """int32[m]: what each of `chosen` takes of a capacity; of flat samples their lengths."""
        chosen, sizes = self.chosen(seed), self.sizes(limits)
        return sizes if chosen is None else sizes[chosen]


def weighted_samples(
    sources: NDArray[np.integer],
    weights: Sequence[Share],
    seed: int,
    lengths: NDArray[np.integer] | None = None,
    among: Int32Array | None = None,
) -> Int32Array | None:
    """The sample ids (int32[m], increasing) of an epoch, repeated by weight; None for each once.

    A source of n samples with weight 2.5 gives each twice, and round(n / 2) of them, drawn with the seed, once more.
    A source of t tokens that is to give u tokens gives each sample u // t times, and samples in the order of a draw
    with the seed once more, until their tokens are as near to u % t as whole samples of this order allow: within half
    of the longest sample.

    Args:
        sources: int[n], the source of each sample.
        weights: one per source, > 0.
        lengths: int[n], which shares of tokens need.
        among: int32[k], increasing: choose among these samples; None for all.

    Raises:
        RunError: there would be more than `MOST_PIECES`.
    """
    if {*weights} <= _ONCE:
        return among
    some = slice(None) if among is None else among
    of_some, of_lengths = sources[some], None if lengths is None else lengths[some]
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
            assert lengths is not None
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
    sources: NDArray[np.integer], weights: Sequence[Share], lengths: NDArray[np.integer] | None
) -> Sequence[float | TokenShare]:
    if not any(isinstance(weight, EpochShare) for weight in weights):
        return in_tokens(weights, ())
    assert lengths is not None
    return in_tokens(weights, tokens_of_sources(sources, lengths, len(weights)).tolist())


def num_weighted(
    sources: NDArray[np.integer], weights: Sequence[Share], lengths: NDArray[np.integer] | None = None
) -> float:
    """About how many samples an epoch has. O(n)."""
    weights = _in_tokens(sources, weights, lengths)
    counts = np.zeros(len(weights), dtype=np.int64)
    for first in range(0, len(sources), _BLOCK):
        counts += np.bincount(sources[first : first + _BLOCK], minlength=len(weights))
    times = [weight for weight in weights if not isinstance(weight, TokenShare)]
    if len(times) < len(weights):
        assert lengths is not None
        tokens = tokens_of_sources(sources, lengths, len(weights))
        pairs = zip(weights, tokens.tolist(), strict=True)
        times = [each.tokens / max(total, 1) if isinstance(each, TokenShare) else each for each, total in pairs]
    return float(np.dot(times, counts))


def _repeated(times: Int32Array) -> Int32Array:
    """Each number i `times[i]` times, block by block, to need no other array."""
    chosen = np.empty(int(times.sum(dtype=np.int64)), dtype=np.int32)
    stop = 0
    for first in range(0, len(times), _BLOCK):
        own = times[first : first + _BLOCK]
        found = np.repeat(np.arange(first, first + len(own), dtype=np.int32), own)
        chosen[stop : stop + len(found)] = found
        stop += len(found)
    return chosen
