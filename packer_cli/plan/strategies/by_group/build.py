"""From pieces to a plan, one group after another (HBP, algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packer_cli.plan.core.schedule import GroupIterations, deal, one_group_each
from packer_cli.plan.core.segments import padded_lengths
from packer_cli.plan.core.streams import Stream, rng_state
from packer_cli.plan.core.types import Pieces, Plan, as_ids
from packer_cli.plan.core.work import plan_tokens_and_work
from packer_cli.plan.strategies.assemble import assemble, pack_sizes
from packer_cli.plan.strategies.by_group.arrange import arrange_batches, arrange_group
from packer_cli.plan.strategies.group_packs import GroupPacks
from packer_cli.plan.strategies.protocol import PlanRequest


def plan_groups(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces; each ends up in exactly one pack.

    From the longest group down: pack the group's own pieces, fill with shorter ones, balance. The plan's pieces are
    the given ones, unless the packing cut samples. Price: that of the packing algorithm, plus O(m) for the rest.
    """
    if request.algorithm.cut:
        seed = int(rng_state(request.seed, Stream.CUT)[0])
        pieces = request.algorithm.cut(pieces, request.groups[0].capacity, seed, request.groups[0].align)
    lengths = pieces.length
    if request.algorithm.is_padded:
        by_group = [arrange_batches(lengths, request)]
        sizes = pack_sizes(by_group, padded_lengths(by_group[0].offsets, by_group[0].pieces, lengths), request)
        iterations = one_group_each(request.groups, _iterations(by_group, request), sizes.aligned)
        return _padded(assemble(pieces, by_group, iterations, sizes, request))
    is_left = np.ones(len(pieces), dtype=np.bool_)
    by_group = [arrange_group(lengths, is_left, g, request) for g in reversed(range(len(request.groups)))]
    by_group.reverse()
    sizes = pack_sizes(by_group, lengths, request)
    iterations = one_group_each(request.groups, _iterations(by_group, request), sizes.aligned)
    return assemble(pieces, by_group, iterations, sizes, request)


def _padded(plan: Plan) -> Plan:
    """The plan of padded batches: each has rows of its own length."""
    plan = replace(plan, is_padded=True)
    tokens, _ = plan_tokens_and_work(plan)
    rows = np.append(tokens, 0).astype(np.int32)  # FILLER is -1, the appended zero
    epochs = (replace(schedule, slot_row_length=rows[schedule.slot_pack]) for schedule in plan.epochs)
    return replace(plan, epochs=tuple(epochs))


def _iterations(by_group: Sequence[GroupPacks], request: PlanRequest) -> list[GroupIterations]:
    iterations = []
    first = 0
    for part, group in zip(by_group, request.groups, strict=True):
        num_packs = len(part.offsets) - 1
        num_ranks = group.num_dp_ranks(request.num_gpus)
        slots = deal(as_ids(first + np.arange(num_packs)), num_ranks)
        num_rest = -(-(num_packs - part.num_whole) // num_ranks)
        iterations.append(GroupIterations(slots=slots, num_spread=num_rest if part.is_spread else 0))
        first += num_packs
    return iterations
