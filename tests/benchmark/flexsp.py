"""A stand-in for FlexSP's planner (arXiv 2412.01523): mixed SP degrees in an iteration, decided batch by batch.

FlexSP divides a global batch into micro-batches of samples of similar length. For each, it chooses SP groups and deals
the samples to them so that the slowest group takes the least time, within each GPU's memory. Its solver is a MILP over
bucketed lengths with a time limit. This one tries all sets of degrees (powers of two that add up to the GPUs), and
deals longest first, each sample to the group that would then finish first. So it is no worse than FlexSP if the MILP
runs out of time, and knows lengths exactly, but it is not FlexSP's code.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit

from packer_cli.cost.models import CostModel
from packer_cli.plan.groups import Group
from packer_cli.plan.types import Int32Array, Packs, Pieces, Plan, Schedule

_MOST_MICRO_BATCHES = 3


def plan_flexsp(
    lengths: Int32Array, cost: CostModel, *, num_gpus: int, gpu_tokens: int, layers: int, batch_tokens: int
) -> Plan:
    """Plan the samples in the order given, batch by batch; a step is a batch.

    Args:
        gpu_tokens: tokens that fit the memory of a GPU.
        layers: checkpointed layers, at every degree.
        batch_tokens: most tokens of a batch.
    """
    degrees = [degree for degree in (1, 2, 4, 8, 16, 32) if degree == 1 or degree in cost.send]
    partitions = list(_partitions(num_gpus, degrees))
    again = 1 + cost.recompute * layers / cost.num_layers
    send = {degree: cost.send.get(degree, 0.0) * (1 + cost.resend * layers / cost.num_layers) for degree in degrees}
    micro_batches: list[tuple[Int32Array, np.ndarray, np.ndarray, int]] = []
    for step, batch in enumerate(_batches(lengths, batch_tokens)):
        best = None
        least = max(1, -(-int(lengths[batch].sum()) // (num_gpus * gpu_tokens)))
        for count in range(least, least + _MOST_MICRO_BATCHES):
            chosen = [
                (members, *_solve(lengths[members], partitions, cost, again, send, gpu_tokens))
                for members in _chunks(lengths, batch, count)
            ]
            seconds = sum(part[3] for part in chosen)
            if best is None or seconds < best[0]:
                best = (seconds, chosen)
        assert best is not None
        assert best[0] < np.inf, "a batch does not fit"
        micro_batches += [(members, groups, row, step) for members, groups, row, _ in best[1]]
    return _plan(lengths, micro_batches, degrees, num_gpus, gpu_tokens, layers)


def _batches(lengths: Int32Array, batch_tokens: int) -> Iterator[np.ndarray]:
    """Batches of consecutive samples, as many as fit the tokens."""
    ends = np.cumsum(lengths, dtype=np.int64)
    begin = 0
    while begin < len(lengths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + batch_tokens, side="right")))
        yield np.arange(begin, end)
        begin = end


def _chunks(lengths: Int32Array, batch: np.ndarray, count: int) -> list[np.ndarray]:
    """The batch by decreasing length, divided into micro-batches of equal tokens."""
    order = batch[np.argsort(-lengths[batch], kind="stable")]
    ends = np.cumsum(lengths[order], dtype=np.int64)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count)
    return [part for part in np.split(order, cuts) if len(part)]


def _partitions(total: int, degrees: list[int]) -> Iterator[np.ndarray]:
    """Every multiset of degrees that adds up to the GPUs, greatest degrees first."""
    if total == 0:
        yield np.zeros(0, dtype=np.int64)
        return
    for degree in reversed(degrees):
        if degree <= total:
            for rest in _partitions(total - degree, [other for other in degrees if other <= degree]):
                yield np.concatenate([[degree], rest]).astype(np.int64)


def _solve(lengths, partitions, cost, again, send, gpu_tokens):
    """(groups' degrees, group of each sample, seconds) of the best partition, for samples by decreasing length."""
    best = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.inf)
    for groups in partitions:
        if groups[0] * gpu_tokens < lengths[0]:
            continue
        per_work = cost.quadratic * again / groups
        per_token = cost.linear * again / groups + np.array([send[degree] for degree in groups.tolist()])
        start = np.where(groups > 1, cost.send_constant, 0.0) + cost.constant
        row, seconds = _deal(lengths, per_work, per_token, start, groups * gpu_tokens, best[2])
        if seconds < best[2]:
            best = (groups, row, seconds)
    return best


@njit(cache=True)
def _deal(lengths, per_work, per_token, start, capacity, limit):
    """Deal each sample to the group that would finish first; infinite if one finds no room or exceeds the limit."""
    seconds = start.copy()
    room = capacity.copy()
    row = np.empty(len(lengths), dtype=np.int64)
    for i in range(len(lengths)):
        length = lengths[i]
        best, least = -1, np.inf
        for p in range(len(seconds)):
            if room[p] >= length:
                done = seconds[p] + per_work[p] * length * length + per_token[p] * length
                if done < least:
                    best, least = p, done
        if best < 0 or least >= limit:
            return row, np.inf
        row[i] = best
        seconds[best] = least
        room[best] -= length
    return row, seconds.max()


def _plan(lengths, micro_batches, degrees, num_gpus, gpu_tokens, layers) -> Plan:
    """The plan, with one group per degree, to report each degree's time; an SP group without samples is a filler."""
    members, sizes, slot_pack, slot_iteration, slot_sp, steps = [], [], [], [], [], []
    for iteration, (samples, groups, row, step) in enumerate(micro_batches):
        order = np.argsort(row, kind="stable")
        counts = np.bincount(row, minlength=len(groups))
        packs = np.cumsum(counts > 0) - 1 + len(sizes)
        slot_pack.append(np.where(counts > 0, packs, -1))
        slot_iteration.append(np.full(len(groups), iteration))
        slot_sp.append(groups)
        members.append(samples[order])
        sizes += counts[counts > 0].tolist()
        steps.append(step)
    pack, sp = np.concatenate(slot_pack), np.concatenate(slot_sp)
    first = np.concatenate([np.cumsum(groups) - groups for groups in slot_sp])
    schedule = Schedule(
        slot_iteration=np.concatenate(slot_iteration),
        slot_pack=pack,
        slot_first_rank=first.astype(np.int32),
        slot_sp_size=sp.astype(np.int16),
        iteration_step=np.array(steps),
        iteration_row_length=np.full(len(steps), max(degrees) * gpu_tokens, dtype=np.int32),
    )
    return Plan(
        groups=tuple(Group(capacity=d * gpu_tokens, sp_size=d, checkpoint_layers=layers) for d in degrees),
        num_gpus=num_gpus,
        pieces=Pieces(sample=np.arange(len(lengths)), start=np.zeros(len(lengths), dtype=np.int64), length=lengths),
        packs=Packs(
            offsets=np.cumsum([0, *sizes]),
            pieces=np.concatenate(members),
            group=np.searchsorted(degrees, sp[pack >= 0]).astype(np.int16),
        ),
        epochs=(schedule,),
    )
