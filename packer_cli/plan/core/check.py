"""The checker of a plan, used by the tests and by every run. Price: O(pieces + slots)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import PlanError
from packer_cli.format.ragged import begins_run
from packer_cli.format.sharding import PLANNED
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.segments import row_lengths
from packer_cli.plan.core.types import (
    FILLER,
    BoolArray,
    Int32Array,
    Int64Array,
    Packs,
    Pieces,
    Plan,
    Schedule,
)

MOST_PROCESS_GROUPS = 32
"""Replicas of more than one GPU that a GPU may belong to: each is a communicator, which holds memory."""
NEEDS = ("loss terms", "path tokens")
"""Names of the needs of trees besides tokens."""
_BLOCK = 1 << 20


def check_plan(plan: Plan) -> None:
    """Prove that every piece is packed once, packs fit their capacity, every GPU is busy, and steps are in order.

    Raises:
        PlanError: naming the first pack, iteration or step that breaks a rule.
    """
    tokens = _check_packs(plan.packs, plan)
    for epoch, schedule in enumerate(plan.epochs):
        _check_schedule(schedule, plan, tokens, epoch)
    _check_process_groups(plan)


def check_pieces(pieces: Pieces, lengths: Int32Array, samples: Int32Array | None, *, is_whole: bool) -> None:
    """Prove that the pieces cover each sample as often as requested, without gaps.

    Args:
        lengths: int32[n], length of each sample.
        samples: int32[k], the requested sample ids, increasing, with repetitions; None for each once.
        is_whole: False if samples may be truncated.

    Raises:
        PlanError: they do not.
    """
    require(len(pieces) == 0 or int(pieces.length.min()) > 0, "a piece is empty")
    if _are_chains(pieces, lengths, samples, is_whole):
        return
    samples = np.arange(len(lengths), dtype=np.int32) if samples is None else samples
    # The pieces are in another order: sort them, which costs more and finds the error.
    order = np.lexsort((pieces.start, pieces.sample))
    sample, start, length = pieces.sample[order], pieces.start[order].astype(np.int64), pieces.length[order]
    del order
    begins = start == 0
    require(np.array_equal(sample[begins], samples), "the pieces do not begin each sample as often as asked")
    require(bool((start + length <= lengths[sample]).all()), "a piece reaches past the end of its sample")
    if is_whole:
        expected = np.bincount(samples, minlength=len(lengths)).astype(np.float64)
        expected *= lengths
        wrong = np.bincount(sample, weights=length, minlength=len(lengths)) != expected
        del expected
        forbid(wrong, lambda sample: f"sample {sample} is not covered by its pieces")
        # At each position inside a sample, as many pieces must begin as end. The pieces then form chains from its
        # begin to its end; copies of a sample may be cut at different positions.
        end = start + length
        inside = end < lengths[sample]
        by_end = np.lexsort((end[inside], sample[inside]))
        follows = np.array_equal(sample[inside][by_end], sample[~begins]) and np.array_equal(
            end[inside][by_end], start[~begins]
        )
        require(follows, "the pieces of a sample leave a gap or overlap")


def _are_chains(pieces: Pieces, lengths: Int32Array, samples: Int32Array | None, is_whole: bool) -> bool:
    """Whether the pieces are those of `samples[0]`, then of `samples[1]`, ..., each in order without gaps."""
    num_begun = 0
    for first in range(0, len(pieces), _BLOCK):
        block = slice(max(first - 1, 0), first + _BLOCK)  # with the piece before, which the block's first may continue
        start = pieces.start[block].astype(np.int64)
        sample = _some(pieces.samples, block.start, block.start + len(start))
        end = start + pieces.length[block]
        begins = start == 0
        goes_on = (sample[1:] == sample[:-1]) & (start[1:] == end[:-1])
        begun = sample[begins][int(first > 0 and begins[0]) :]
        ended = np.append(begins[1:], first + _BLOCK >= len(pieces))
        if not (
            np.array_equal(begun, _some(samples, num_begun, num_begun + len(begun)))
            and (begins[0] or first > 0)
            and (begins[1:] | goes_on).all()
            and (end <= lengths[sample]).all()
            and (not is_whole or (end == lengths[sample])[ended].all())
        ):
            return False
        num_begun += len(begun)
    return num_begun == len(lengths if samples is None else samples)


def _some(samples: Int32Array | None, first: int, stop: int) -> Int32Array:
    """Return some of the sample ids; None stands for each once."""
    return np.arange(first, stop, dtype=np.int32) if samples is None else samples[first:stop]


def _are_below(numbers: NDArray[np.integer], stop: int) -> bool:
    """Whether all numbers are in 0 .. stop-1."""
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < stop)


def _is_permutation(values: Int32Array) -> bool:
    """Whether each of 0 .. n-1 occurs once. All values must lie in that range. O(n)."""
    seen = np.zeros(len(values), dtype=np.bool_)
    seen[values] = True
    return bool(seen.all())


def _check_packs(packs: Packs, plan: Plan) -> Int64Array:
    """Prove the packs, whose tokens (int64[p]) it returns, each sample aligned."""
    num_pieces = len(plan.pieces)
    require(
        len(packs.offsets) == len(packs) + 1 and packs.offsets[0] == 0 and packs.offsets[-1] == len(packs.pieces),
        "the pack offsets do not enclose the pieces",
    )
    number, most = np.diff(packs.offsets), plan.max_samples
    forbid(number <= 0, lambda pack: f"pack {pack} is empty")
    forbid(number > most, lambda pack: f"pack {pack} holds {number[pack]} samples, more than {most}")
    require(len(packs.pieces) == num_pieces, f"{len(packs.pieces)} pieces are packed, not {num_pieces}")
    require(_are_below(packs.pieces, num_pieces), "the packs hold pieces that do not exist")
    if not _is_permutation(packs.pieces):
        times = np.bincount(packs.pieces, minlength=num_pieces)
        forbid(times != 1, lambda piece: f"piece {piece} is in {times[piece]} packs; it must be in exactly one")
    require(_are_below(packs.group, len(plan.groups)), "a pack belongs to no group")
    has_cp = np.array([group.cp_size > 1 for group in plan.groups])[packs.group]
    codes = packs.cp_sharding
    wrong = (codes < 0) | (codes >= np.where(has_cp, len(PLANNED), 1))
    forbid(wrong, lambda pack: f"pack {pack} has CP sharding {codes[pack]}, unknown to its group")
    tokens = pack_sums(row_lengths(plan), packs.offsets, packs.pieces)
    capacity = np.array([group.capacity for group in plan.groups], dtype=np.int64)[packs.group]
    for need, percent, name in zip(plan.pieces.needs[1:], plan.limits, NEEDS[: len(plan.limits)], strict=True):
        _check_need(plan, name, need, capacity * percent // 100)

    def too_long(pack: int) -> str:
        align = plan.groups[packs.group[pack]].align
        how = f" with samples aligned to {align}" if align > 1 else ""
        return f"pack {pack} holds {tokens[pack]} tokens{how}, over its capacity of {capacity[pack]}"

    forbid(tokens > capacity, too_long)
    return tokens


def _check_need(plan: Plan, name: str, need: NDArray[np.integer], most: Int64Array) -> None:
    """Require that each pack keeps within its limit (`most`, int64[p]) on a need of pieces (int[m]), named `name`."""
    found = pack_sums(need, plan.packs.offsets, plan.packs.pieces)
    forbid(found > most, lambda pack: f"pack {pack} has {found[pack]} {name}, over its limit of {most[pack]}")


def _check_schedule(schedule: Schedule, plan: Plan, tokens: Int64Array, epoch: int) -> None:
    where = f"epoch {epoch}: "
    is_pack = schedule.slot_pack != FILLER
    packs = schedule.slot_pack[is_pack]
    require(_are_below(packs, len(plan.packs)), where + "a slot has no such pack")
    times = np.bincount(packs, minlength=len(plan.packs))
    forbid(times != 1, lambda pack: f"{where}pack {pack} runs {times[pack]} times; it must run exactly once")
    require(_are_below(schedule.slot_group, len(plan.groups)), where + "a slot belongs to no group")
    require(
        np.array_equal(schedule.slot_group[is_pack], plan.packs.group[packs]),
        where + "a slot does not belong to the group of its pack",
    )
    _check_gpus(schedule, plan.slot_gpus(schedule), plan, where)
    steps = schedule.iteration_step
    if len(steps):
        require(steps[0] == 0 and bool(np.isin(np.diff(steps), (0, 1)).all()), where + "the steps are not in order")
    require(bool((tokens[packs] <= schedule.slot_row_length[is_pack]).all()), where + "a pack is longer than its row")
    if not plan.is_padded:  # Padded batches are never written.
        multiple = np.array([group.layout.row_multiple for group in plan.groups], dtype=np.int64)[schedule.slot_group]
        require(
            not (schedule.slot_row_length % multiple).any(),
            where + "a row does not divide among the GPUs that share it",
        )


def _check_gpus(schedule: Schedule, gpus: Int64Array, plan: Plan, where: str) -> None:
    """Require that an iteration's replicas divide the GPUs, and that each has as many slots as it may.

    The ranks of tensor parallelism are side by side, so they share a node if their degree divides its GPUs and the
    replica begins at a multiple of the degree.
    """
    is_first = schedule.begins_replica
    same = ~is_first[1:]
    require(
        np.array_equal(schedule.slot_group[1:][same], schedule.slot_group[:-1][same]),
        where + "a replica changes its group within an iteration",
    )
    require(
        plan.lockstep == 1 or len({group.pp_size for group in plan.groups}) == 1,
        where + "replicas have different numbers of pipeline stages, where all GPUs run in lockstep",
    )
    require(
        plan.lockstep == 1 or bool(is_first.all()),
        where + "a replica has more than one micro-batch in an iteration, where all GPUs run in lockstep",
    )
    tp_size = np.array([group.tp_size for group in plan.groups], dtype=np.int64)[schedule.slot_group]
    require(
        not (schedule.slot_first_gpu % tp_size).any(),
        where + "a replica begins inside a group of tensor parallelism, which could then reach into another node",
    )
    iteration, first_gpu = schedule.slot_iteration[is_first], schedule.slot_first_gpu[is_first]
    end_gpu = first_gpu + gpus[is_first]
    begins = begins_run(iteration)
    ends = np.append(begins[1:], True) if len(iteration) else begins
    in_row = np.ones(len(iteration), dtype=np.bool_)
    in_row[1:] = begins[1:] | (first_gpu[1:] == end_gpu[:-1])
    fine = (
        np.array_equal(iteration[begins], np.arange(schedule.num_iterations))
        and bool((first_gpu[begins] == 0).all())
        and bool((end_gpu[ends] == plan.num_gpus).all())
        and bool(in_row.all())
    )
    require(fine, f"{where}not every one of the {plan.num_gpus} GPUs is busy exactly once in every iteration")


def _check_process_groups(plan: Plan) -> None:
    """Require that no GPU is in more replicas than process groups can be kept open."""
    changes = np.zeros(plan.num_gpus + 1, dtype=np.int64)
    for layout, first in plan.replicas.items():
        if layout.num_gpus > 1:
            np.add.at(changes, first, 1)
            np.add.at(changes, first + layout.num_gpus, -1)
    held = np.cumsum(changes)
    gpu = int(held.argmax())
    require(
        int(held[gpu]) <= MOST_PROCESS_GROUPS,
        f"GPU {gpu} is in {held[gpu]} process groups, more than {MOST_PROCESS_GROUPS}",
    )


def forbid(wrong: BoolArray, say: Callable[[int], str]) -> None:
    """Raise PlanError with what there is to say of the first place that is wrong ([n])."""
    found = np.flatnonzero(wrong)
    if len(found):
        raise PlanError(say(int(found[0])))


def require(condition: bool, what: str) -> None:
    """Raise PlanError with what is wrong unless the condition holds."""
    if not condition:
        raise PlanError(what)
