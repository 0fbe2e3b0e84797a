"""How far a plan's order of samples is from the one in which a stream would bring them. O(m) for m pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.metrics import Delay, QueueMetrics, Randomness
from packer_cli.plan.metrics import pieces_by_group
from packer_cli.plan.streams import Stream, rng_state
from packer_cli.plan.types import Int64Array, Pieces, Plan, Schedule


def measure_randomness(plan: Plan, source_of_sample: Int64Array | None = None, seed: int = 0) -> Randomness:
    """Measure the randomness of epoch 0.

    Args:
        source_of_sample: int64[samples]; None leaves the spread of the source mix at 0.
    """
    schedule = plan.epochs[0]
    step_of_piece = _step_of_piece(plan, schedule)
    num_pieces, num_steps = len(plan.pieces), max(1, schedule.num_steps)
    reference = np.random.Generator(np.random.Philox(int(rng_state(seed, Stream.REFERENCE)[0])))
    expected = reference.permutation(num_pieces) * num_steps // max(1, num_pieces)
    displacement = np.abs(step_of_piece - expected)
    correlations = [
        abs(_correlation(plan.pieces.length[members], step_of_piece[members])) for members in pieces_by_group(plan)
    ]
    size = np.floor(np.log2(plan.pieces.length)).astype(np.int64)
    spread = 0.0
    if source_of_sample is not None:
        spread = _mix_spread(plan.pieces, source_of_sample[plan.pieces.sample], step_of_piece, num_steps)
    return Randomness(
        num_steps=schedule.num_steps,
        mean_displacement=float(displacement.mean()) if len(displacement) else 0.0,
        max_displacement=int(displacement.max(initial=0)),
        length_step_correlation=max(correlations, default=0.0),
        length_mix_spread=_mix_spread(plan.pieces, size, step_of_piece, num_steps),
        source_mix_spread=spread,
    )


def measure_delay(plan: Plan) -> Delay:
    """Measure how far epoch 0 is from the stream that it was planned from; nothing for other plans. O(m)."""
    if plan.delays is None:
        return Delay()
    length = plan.pieces.length.astype(np.int64)
    steps = np.abs(_step_of_piece(plan, plan.epochs[0]) - plan.delays.arrival)
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


def _step_of_piece(plan: Plan, schedule: Schedule) -> Int64Array:
    step_of_pack = np.zeros(len(plan.packs) + 1, dtype=np.int64)
    step_of_pack[schedule.slot_pack] = schedule.iteration_step[schedule.slot_iteration]
    step_of_piece = np.empty(len(plan.pieces), dtype=np.int64)
    step_of_piece[plan.packs.pieces] = np.repeat(step_of_pack[:-1], np.diff(plan.packs.offsets))
    return step_of_piece


def _correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def _mix_spread(pieces: Pieces, kind: Int64Array, step: Int64Array, num_steps: int) -> float:
    """Mean distance of a step's mix of kinds from the whole epoch's; pieces are weighted by their tokens."""
    num_kinds = int(kind.max(initial=0)) + 1
    tokens = np.bincount(step * num_kinds + kind, weights=pieces.length, minlength=num_steps * num_kinds)
    mix = tokens.reshape(num_steps, num_kinds)
    of_step = mix / np.maximum(mix.sum(axis=1, keepdims=True), 1)
    whole = mix.sum(axis=0) / max(1.0, mix.sum())
    return float(np.abs(of_step - whole).sum(axis=1).mean() / 2)
