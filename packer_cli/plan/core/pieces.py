"""The samples of a corpus as a plan sees them, and the pieces to pack, with `--overflow` applied to long samples.

The kernels of items are imported where there are some: flat samples need not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.format.metrics import ItemCounts, SampleCounts
from packer_cli.format.trees import ItemTrees
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.mixture import count_inputs, in_tokens, tokens_of_sources
from packer_cli.plan.core.path_tokens import RAISE_LIMIT
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import MOST_PIECES, Fates, Int32Array, ItemRule, Pieces, as_ids
from packer_cli.sizes import EpochShare, Share, TokenShare, counted

_BLOCK = 1 << 20

Overflow = Literal["split", "truncate", "drop", "error"]


def describe_overflow(num_long: int, capacity: int, overflow: str) -> str | None:
    """Say how many samples `drop` or `truncate` removes or cuts; None if no tokens are lost.

    >>> describe_overflow(2, 512, "drop")
    '--overflow drop: 2 samples are longer than 512 tokens and left out'
    """
    what = {"drop": "left out", "truncate": "cut off there"}.get(overflow)
    if not num_long or what is None:
        return None
    number = "1 sample is" if num_long == 1 else f"{num_long:,} samples are"
    return f"--overflow {overflow}: {number} longer than {capacity:,} tokens and {what}"


def overflow_notes(counts: SampleCounts, capacity: int, overflow: str, max_path_tokens: str | None) -> list[str]:
    """Notes for people on what a plan with these `counts` leaves out."""
    if counts.items is not None:
        return _item_notes(counts, counts.items, capacity, max_path_tokens)
    note = describe_overflow(counts.dropped + counts.truncated, capacity, overflow)
    return [f"{note}; {counts.tokens:,} tokens are planned"] if note else []


def _item_notes(counts: SampleCounts, items: ItemCounts, capacity: int, max_path_tokens: str | None) -> list[str]:
    nouns, fates = ("pair", "group", "conversation", "turn", "sample"), ("cut off", "left out", "divided")
    keys = {f"{noun}s_{fate.removesuffix(' off').replace(' ', '_')}": (noun, fate) for noun in nouns for fate in fates}
    found = [(getattr(items, key, 0), *words) for key, words in keys.items()]
    what = ", ".join(f"{counted(number, noun)} {fate}" for number, noun, fate in found if number)
    notes = [f"too long for rows of {capacity:,} tokens: {what}; {counts.tokens:,} tokens are planned"] if what else []
    if num := items.over_path_limit:
        fit = "fits by its tokens and exceeds" if num == 1 else "fit by their tokens and exceed"
        notes.append(f"{num:,} of these {fit} --max-path-tokens {max_path_tokens} alone; {RAISE_LIMIT}")
    return notes


def make_pieces(lengths: Int32Array, samples: Int32Array | None, capacity: int, overflow: Overflow) -> Pieces:
    """The pieces: whole samples, with `overflow` applied to those longer than `capacity`.

    `split` cuts after every `capacity` tokens; `truncate` keeps the first `capacity`; `drop` leaves the sample out.
    The caller raises the error of `error`. O(n), and no memory where every sample is packed once, as it is.

    Args:
        lengths: int32[n], length of every sample, each at least 1.
        samples: int32[k], the sample ids to pack, increasing, with repetitions; None for each once.

    Raises:
        RunError: there would be more than `MOST_PIECES`.
    """
    require_number(len(lengths) if samples is None else len(samples))
    samples = None if samples is None else as_ids(samples)
    length = lengths if samples is None else lengths[samples]
    if not len(length) or int(length.max()) <= capacity:
        # Zeros take no memory until they are written to.
        return Pieces(samples=samples, start=np.zeros(len(length), dtype=np.int32), length=length)
    if overflow == "split":
        return _split(samples, length, capacity)
    if overflow == "drop":
        keep = length <= capacity
        samples, length = ids_of(keep) if samples is None else samples[keep], length[keep]
    else:
        samples = np.arange(len(length), dtype=np.int32) if samples is None else samples
        length = np.minimum(length, capacity)
    return Pieces(samples=samples, start=np.zeros(len(length), dtype=np.int32), length=length)


def require_number(num_pieces: int) -> None:
    """Raise RunError for more pieces than a plan can number."""
    if num_pieces > MOST_PIECES:
        raise RunError(
            f"the plan would have {num_pieces:,} pieces of samples; it may have {MOST_PIECES:,} at most: divide the "
            "inputs among several sets, or give longer --groups or smaller weights (PATH@WEIGHT)"
        )


def _split(samples: Int32Array | None, lengths: Int32Array, capacity: int) -> Pieces:
    """The pieces of samples of these lengths, in their order; works block by block."""
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(lengths), _BLOCK)]
    ends = np.cumsum([0, *(int(_times(lengths[block], capacity).sum(dtype=np.int64)) for block in blocks)])
    require_number(int(ends[-1]))
    sample, length = (np.empty(ends[-1], dtype=np.int32) for _ in range(2))
    start = np.zeros(ends[-1], dtype=np.int32)  # Pages of zeros take no memory until they are written to.
    for block, first, stop in zip(blocks, ends, ends[1:], strict=False):
        own = lengths[block]
        times = _times(own, capacity)
        of = np.arange(block.start, block.start + len(own)) if samples is None else samples[block]
        sample[first:stop] = np.repeat(of, times)
        # The k-th piece of a sample starts k capacities into it.
        number = np.arange(stop - first) - np.repeat(np.cumsum(times, dtype=np.int64) - times, times)
        length[first:stop] = np.minimum(np.repeat(own, times) - number * capacity, capacity)
        later = np.flatnonzero(number)
        start[first + later] = number[later] * capacity
    return Pieces(samples=sample, start=start, length=length)


def _times(lengths: Int32Array, capacity: int) -> Int32Array:
    """The pieces (int32[n]) of each sample."""
    return 1 + (lengths - 1) // capacity


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
    """What the samples are, which are items; None: all are flat."""

    @property
    def num_samples(self) -> int:
        """How many there are to plan, each counted once."""
        return len(self.lengths if self.among is None else self.among)

    def alone(self) -> Samples:
        """Those to plan without the others, numbered anew."""
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

    def sizes(self, path_percent: int = 0) -> Int32Array:
        """int32[n]: what each takes of a capacity; of flat samples their lengths."""
        if self.trees is None:
            return self.lengths
        from packer_cli.plan.core.items import whole_items

        return whole_items(self.trees).sizes(path_percent)

    def epoch_sizes(self, seed: int, path_percent: int = 0) -> Int32Array:
        """int32[m]: what each of `chosen` takes of a capacity; of flat samples their lengths."""
        chosen, sizes = self.chosen(seed), self.sizes(path_percent)
        return sizes if chosen is None else sizes[chosen]


class SizeRule(NamedTuple):
    """The limits on samples and items, and the fate of those over them."""

    capacity: int
    """Tokens of the longest group."""
    overflow: Overflow
    path_percent: int = 0
    """See `ItemRule`."""

    @property
    def of_items(self) -> ItemRule:
        """The same for items; under `error`, none is cut."""
        divides, drops = self.overflow == "split", self.overflow in ("drop", "error")
        return ItemRule(capacity=self.capacity, path_percent=self.path_percent, divides=divides, drops=drops)


def pieces_to_plan(samples: Samples, rule: SizeRule, seed: int) -> Pieces:
    """The pieces to pack: samples repeated by weight, with the rule applied to those over the capacity.

    Raises:
        RunError: there is nothing to plan, or a sample is too long under `error`.
    """
    if rule.overflow == "error":
        longest = int(samples.epoch_sizes(seed, rule.path_percent).max(initial=0))
        if longest > rule.capacity:
            what = "sample has" if samples.trees is None else "item takes"
            raise RunError(
                f"the longest {what} {longest} tokens, over the largest group's {rule.capacity}; "
                "choose --overflow split, truncate or drop"
            )
    pieces = epoch_pieces(samples, samples.chosen(seed), rule)
    if not len(pieces):
        raise RunError("there is nothing to plan: no sample is left; add data, or choose longer --groups")
    return pieces


def epoch_pieces(samples: Samples, chosen: Int32Array | None, rule: SizeRule) -> Pieces:
    """The pieces of `Samples.chosen`, maybe none."""
    if samples.trees is None:
        return make_pieces(samples.lengths, chosen, rule.capacity, rule.overflow)
    from packer_cli.plan.core.items import item_pieces

    return item_pieces(samples.trees, chosen, rule.of_items)[0]


def sample_counts(samples: Samples, chosen: Int32Array | None, pieces: Pieces, rule: SizeRule) -> SampleCounts:
    """What became of the samples.

    Args:
        chosen: int32[m], the sample ids of an epoch, repeated by weight, increasing; None for each once.
        pieces: the packed pieces, including those that a packing cut.
    """
    lengths, num_samples = samples.lengths, samples.num_samples
    different = chosen if chosen is None else chosen[np.diff(chosen, prepend=-1) > 0]
    num_different = num_samples if different is None else len(different)
    if samples.trees is None:
        num_long = int(np.count_nonzero((lengths if different is None else lengths[different]) > rule.capacity))
        cut = np.flatnonzero(pieces.start > 0)
        fates = Fates(
            split=len(np.unique(pieces.samples[cut])) if pieces.samples is not None else 0,
            truncated=num_long if rule.overflow == "truncate" else 0,
            dropped=num_long if rule.overflow == "drop" else 0,
        )
    else:
        from packer_cli.plan.core.item_counts import count_items

        fates = count_items(samples.trees, chosen, pieces, rule.of_items)
    inputs = None
    if samples.sources is not None and len(samples.weights) > 1:
        inputs = count_inputs(samples.sources, pieces, len(samples.weights))
    return SampleCounts(
        inputs=inputs,
        samples=num_samples,
        left_out_by_weight=num_samples - num_different,
        repeated_by_weight=(num_samples if chosen is None else len(chosen)) - num_different,
        pieces=len(pieces),
        tokens=int(pieces.length.sum(dtype=np.int64)),
        **fates._asdict(),
    )


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


def kept_samples(lengths: Int32Array, chosen: Int32Array | None, capacity: int) -> Int32Array:
    """Those of the chosen samples (int32[m]; None: each once) that are not over the capacity."""
    return ids_of(lengths <= capacity) if chosen is None else chosen[lengths[chosen] <= capacity]


def _samples_of_tokens(lengths: NDArray[np.integer], tokens: int) -> tuple[int, int]:
    """How often to take all samples of a source, and how many of the first ones once more, for a number of tokens.

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
