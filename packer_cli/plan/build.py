"""Builds a plan: group -> pack -> fill -> balance -> schedule (HBP, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from packer_cli.plan.arrange import GroupPacks, arrange_batches, arrange_group
from packer_cli.plan.core.schedule import GroupIterations, Iterations, deal, one_group_each, schedule_epoch
from packer_cli.plan.core.segments import align_up, padded_lengths
from packer_cli.plan.core.sharding import choose_sharding
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces, Plan, as_ids
from packer_cli.plan.core.work import pack_tokens_and_work, plan_tokens_and_work
from packer_cli.plan.free import pack_times, run_freely
from packer_cli.plan.numbering import number_as_used
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.strategies.flexsp.arrange import arrange_mixed
from packer_cli.plan.strategies.hydraulis.arrange import plan_pipelines
from packer_cli.plan.strategies.wlb.plan import plan_steps


def build_plan(pieces: Pieces, rules: PlanRules) -> Plan:
    """Plan the pieces; each ends up in exactly one pack, for which a CP sharding is chosen.

    From the longest group down: pack the group's own pieces, fill with shorter ones, balance. The plan's pieces are
    the given ones, unless the packing cut samples. Price: that of the packing algorithm, plus O(m) for
    the rest. `check_plan` proves the result.
    """
    return choose_sharding(_build(pieces, rules), rules.sharding)


def _build(pieces: Pieces, rules: PlanRules) -> Plan:
    if rules.wlb:
        return plan_steps(pieces, rules, rules.wlb)
    if rules.algorithm.cut:
        seed = int(rng_state(rules.seed, Stream.CUT)[0])
        pieces = rules.algorithm.cut(pieces, rules.groups[0].capacity, seed, rules.groups[0].align)
    if rules.scheme_costs:
        return plan_pipelines(pieces, rules)
    lengths = pieces.length
    if rules.replica_costs:
        by_group, mixed = arrange_mixed(align_up(lengths, rules.groups[0].align), rules.replica_costs, rules)
        return assemble(pieces, by_group, mixed, pack_sizes(by_group, lengths, rules), rules)
    if rules.algorithm.is_padded:
        by_group = [arrange_batches(lengths, rules)]
        sizes = pack_sizes(by_group, padded_lengths(by_group[0].offsets, by_group[0].pieces, lengths), rules)
        iterations = one_group_each(rules.groups, _iterations(by_group, rules), sizes.aligned)
        return _padded(assemble(pieces, by_group, iterations, sizes, rules))
    is_left = np.ones(len(pieces), dtype=np.bool_)
    by_group = [arrange_group(lengths, is_left, g, rules) for g in reversed(range(len(rules.groups)))]
    by_group.reverse()
    sizes = pack_sizes(by_group, lengths, rules)
    iterations = one_group_each(rules.groups, _iterations(by_group, rules), sizes.aligned)
    return assemble(pieces, by_group, iterations, sizes, rules)


def assemble(
    pieces: Pieces, by_group: list[GroupPacks], iterations: Iterations, sizes: PackSizes, rules: PlanRules
) -> Plan:
    """The plan of packs and iterations: schedules each epoch, and numbers the packs as the first one reads them.

    Args:
        by_group: emptied, so that no group's packs are held longer than needed.
        iterations: their slots number the packs through the groups.
    """
    schedules = [
        schedule_epoch(iterations, sizes.tokens, sizes.work, len(rules.groups), rules.steps, rules.seed, epoch)
        for epoch in range(rules.epochs)
    ]
    if rules.lockstep == 1:
        group = np.repeat(np.arange(len(by_group)), [len(part.offsets) - 1 for part in by_group])
        times = pack_times(group, sizes.aligned, sizes.work, rules.evened, rules.replica_costs)
        schedules = [run_freely(schedule, len(rules.groups), times) for schedule in schedules]
    packs, schedules = number_as_used(by_group, schedules)
    return Plan(
        groups=rules.groups,
        num_gpus=rules.num_gpus,
        pieces=pieces,
        packs=packs,
        epochs=tuple(schedules),
        lockstep=rules.lockstep,
        max_samples=rules.max_samples,
        mask=rules.mask,
    )


def _padded(plan: Plan) -> Plan:
    """The plan of padded batches: each has rows of its own length."""
    plan = replace(plan, is_padded=True)
    tokens, _ = plan_tokens_and_work(plan)
    rows = np.append(tokens, 0).astype(np.int32)  # FILLER is -1, the appended zero
    epochs = (replace(schedule, slot_row_length=rows[schedule.slot_pack]) for schedule in plan.epochs)
    return replace(plan, epochs=tuple(epochs))


class PackSizes(NamedTuple):
    """What each pack holds, numbered through the groups."""

    tokens: Int64Array
    """int64[p]"""
    aligned: Int64Array
    """int64[p]: tokens with the padding that aligns samples."""
    work: Int64Array
    """int64[p]: what the plan evens out, see `PlanRules.evened`; the padding counts."""


def pack_sizes(by_group: Sequence[GroupPacks], lengths: Int32Array, rules: PlanRules) -> PackSizes:
    """The sizes of all packs. O(m)."""
    of_groups = [
        pack_tokens_and_work(part.offsets, part.pieces, align_up(lengths, group.align), rules.evened)
        for part, group in zip(by_group, rules.groups, strict=True)
    ]
    aligned, work = (np.concatenate(parts) for parts in zip(*of_groups, strict=True))
    if all(group.align == 1 for group in rules.groups):
        return PackSizes(aligned, aligned, work)
    tokens = [pack_tokens_and_work(part.offsets, part.pieces, lengths)[0] for part in by_group]
    return PackSizes(np.concatenate(tokens), aligned, work)


def _iterations(by_group: Sequence[GroupPacks], rules: PlanRules) -> list[GroupIterations]:
    iterations = []
    first = 0
    for part, group in zip(by_group, rules.groups, strict=True):
        num_packs = len(part.offsets) - 1
        num_ranks = group.num_dp_ranks(rules.num_gpus)
        slots = deal(as_ids(first + np.arange(num_packs)), num_ranks)
        num_rest = -(-(num_packs - part.num_whole) // num_ranks)
        iterations.append(GroupIterations(slots=slots, num_spread=num_rest if part.is_spread else 0))
        first += num_packs
    return iterations
