"""Distance of a plan's order of samples from the one in which a stream would bring them. O(m) for m pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import Delay, QueueMetrics, Randomness
from packer_cli.format.ragged import offsets_of
from packer_cli.plan.core.csr import select_packs
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import FILLER, Float64Array, Int32Array, Int64Array, Pieces, Plan, Schedule, blocks_of

_BLOCK = 1 << 18


Kinds = Callable[[Int32Array], Int64Array]
"""The kinds (int64[n], at least 0) of pieces (int32[n])."""


def measure_randomness(plan: Plan, source_of_sample: NDArray[np.integer] | None = None, seed: int = 0) -> Randomness:
    """Measure the randomness of epoch 0. Memory: 4 bytes a piece.

    Args:
        source_of_sample: int[samples]; None leaves the spread of the source mix at 0.
    """
    pieces, schedule = plan.pieces, plan.epochs[0]
    num_pieces, num_steps = len(pieces), max(1, schedule.num_steps)

    def size(chosen: Int32Array) -> Int64Array:
        """Return the exponent of the power of two at or below each length."""
        return np.frexp(pieces.length[chosen])[1].astype(np.int64) - 1

    def source(chosen: Int32Array) -> Int64Array:
        assert source_of_sample is not None
        return source_of_sample[chosen if pieces.samples is None else pieces.samples[chosen]].astype(np.int64)

    spreads = [_MixSpread(pieces, kinds) for kinds in ([size] if source_of_sample is None else [size, source])]
    counts = np.diff(plan.packs.offsets)
    sums = int(pieces.length.sum(dtype=np.int64)), int(schedule.step_of_packs(len(counts)) @ counts)
    means, products = np.array(sums)[:, None] / max(1, num_pieces), np.zeros((2, 2))
    reference = np.random.Generator(np.random.Philox(int(rng_state(seed, Stream.REFERENCE)[0])))
    place = np.arange(num_pieces, dtype=np.int32)
    reference.shuffle(place)
    total = most = 0
    for chosen, step in _blocks(plan, schedule):
        displacement = np.abs(step - place[chosen].astype(np.int64) * num_steps // num_pieces)
        total, most = total + int(displacement.sum()), max(most, int(displacement.max()))
        length = pieces.length[chosen]
        values = np.stack([length, step]) - means
        products += values @ values.T
        for spread in spreads:
            spread.add(chosen, step, length)
    squares = float(products[0, 0] * products[1, 1])
    return Randomness(
        num_steps=schedule.num_steps,
        mean_displacement=total / max(1, num_pieces),
        max_displacement=most,
        length_step_correlation=abs(float(products[0, 1])) / math.sqrt(squares) if squares > 0 else 0.0,
        length_mix_spread=spreads[0].mean(),
        source_mix_spread=spreads[1].mean() if len(spreads) > 1 else 0.0,
    )


def _blocks(plan: Plan, schedule: Schedule) -> Iterator[tuple[Int32Array, Int64Array]]:
    """Yield n pieces (int32[n]) and their steps (int64[n]), in the order of training, pack by pack. O(m).

    A block is of whole steps, of about 2^18 pieces or one step.
    """
    slots = np.flatnonzero(schedule.slot_pack != FILLER)
    packs, step = schedule.slot_pack[slots], schedule.iteration_step[schedule.slot_iteration[slots]]
    first = np.searchsorted(step, np.arange(schedule.num_steps + 1))
    ends = offsets_of(np.diff(plan.packs.offsets)[packs])[first]
    for block in blocks_of(ends, _BLOCK):
        own = slice(first[block.start], first[block.stop])
        offsets, pieces = select_packs(plan.packs.offsets, plan.packs.pieces, packs[own])
        yield pieces, np.repeat(step[own], np.diff(offsets))


def measure_delay(plan: Plan) -> Delay:
    """Measure how far epoch 0 is from the stream that it was planned from; nothing for other plans. O(m)."""
    if plan.delays is None:
        return Delay()
    length = plan.pieces.length.astype(np.int64)
    step, packs = np.empty(len(length), dtype=np.int64), plan.packs
    step[packs.pieces] = np.repeat(plan.epochs[0].step_of_packs(len(packs)), np.diff(packs.offsets))
    steps = np.abs(step - plan.delays.arrival)
    queue = np.searchsorted(plan.delays.thresholds, length, side="right") - 1
    queues = []
    for number, threshold in enumerate(plan.delays.thresholds):
        own = queue == number
        queues.append(
            QueueMetrics(
                threshold=threshold,
                num_samples=int(own.sum()),
                num_tokens=int(length[own].sum()),
                mean_delay=round(_weighted_mean(steps[own], length[own]), 10),
                max_delay=int(steps[own].max(initial=0)),
            )
        )
    return Delay(
        mean_delay=_weighted_mean(steps, length),
        max_delay=int(steps.max(initial=0)),
        num_carried=plan.delays.num_carried,
        queues=tuple(queues),
    )


def _weighted_mean(values: Int64Array, weights: Int64Array) -> float:
    return int(values @ weights) / max(1, int(weights.sum()))


class _MixSpread:
    """Mean distance of a step's mix of kinds from the whole epoch's; pieces are weighted by their tokens."""

    def __init__(self, pieces: Pieces, kinds: Kinds) -> None:
        self._kinds = kinds
        self._distances: list[Float64Array] = []
        whole: Float64Array = np.zeros(0)
        for first in range(0, len(pieces), _BLOCK):
            length = pieces.length[first : first + _BLOCK]
            chosen = np.arange(first, first + len(length), dtype=np.int32)
            own = np.bincount(kinds(chosen), weights=length, minlength=len(whole)).astype(np.float64, copy=False)
            own[: len(whole)] += whole
            whole = own
        self._whole = whole / max(1.0, whole.sum())

    def add(self, chosen: Int32Array, step: Int64Array, length: Int32Array) -> None:
        first, num_kinds = int(step[0]), len(self._whole)
        num_steps = int(step[-1]) - first + 1
        cells = (step - first) * num_kinds + self._kinds(chosen)
        mix = np.bincount(cells, weights=length, minlength=num_steps * num_kinds).reshape(num_steps, num_kinds)
        of_step = mix / np.maximum(mix.sum(axis=1, keepdims=True), 1)
        self._distances.append(np.abs(of_step - self._whole).sum(axis=1))

    def mean(self) -> float:
        return float(np.concatenate(self._distances).mean() / 2) if self._distances else 0.0
