"""One group: its packs, filled, dealt to iterations, and evened out (HBP, algorithm 2, lines 12 to 14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from packer_cli.plan.balance import order_packs, spread
from packer_cli.plan.cost import pack_tokens_and_work
from packer_cli.plan.fill import balanced_fill, greedy_fill
from packer_cli.plan.packing.csr import group_by_pack, merge_packs, select_packs
from packer_cli.plan.random import rng_state
from packer_cli.plan.refine import refine_packs
from packer_cli.plan.schedule import deal
from packer_cli.plan.sorting import argsort_descending
from packer_cli.plan.types import Int32Array, Int64Array

if TYPE_CHECKING:
    from packer_cli.plan.build import PlanRules

_STREAM_PACKING = 2
_STREAM_BALANCE = 3


@dataclass(frozen=True, kw_only=True)
class GroupPacks:
    """The packs of one group in the order of their iterations."""

    offsets: Int64Array
    """int64[p+1]"""
    pieces: Int64Array
    """int64[m]"""
    num_whole: int
    """Packs before this one are whole iterations; those from here on are the rest."""
    is_spread: bool
    """Whether the rest was dealt over all ranks, in rows shorter than the capacity."""


def arrange_group(lengths: Int32Array, own: Int64Array, shorter: Int64Array, g: int, rules: PlanRules) -> GroupPacks:
    """Pack the group's own pieces, fill with shorter ones, form iterations, even them out.

    Args:
        lengths: int32[m], length of every piece.
        own: int64[k], the pieces of this group.
        shorter: int64[c], pieces of shorter groups that may be moved here.
        g: index of the group.
    """
    capacity, num_ranks = rules.groups[g].capacity, rules.groups[g].num_dp_ranks(rules.num_gpus)
    seed = int(rng_state(rules.seed, _STREAM_PACKING, g)[0])
    offsets, members = rules.algorithm.pack(lengths[own], capacity, seed, rules.packing_options)
    pieces = own[members]
    state = rng_state(rules.seed, _STREAM_BALANCE, g)
    tokens, work = pack_tokens_and_work(offsets, pieces, lengths)
    order = None
    if len(shorter) and len(tokens):
        room = capacity - tokens
        longest = rules.groups[g - 1].capacity
        if rules.fill == "balanced":
            order = order_packs(work, num_ranks, rules.balance, state)
            typical = int(np.median(lengths[shorter]))
            pack_of, chosen = balanced_fill(room, work, order, num_ranks, lengths[shorter], longest, typical)
            by_pack = np.argsort(pack_of, kind="stable")
            counts = np.bincount(pack_of, minlength=len(tokens))
            added_offsets, chosen = np.concatenate([[0], np.cumsum(counts)]), chosen[by_pack]
        else:
            added_offsets, chosen = greedy_fill(room, lengths[shorter], longest)
        offsets, pieces = merge_packs(offsets, pieces, added_offsets, shorter[chosen])
        _, work = pack_tokens_and_work(offsets, pieces, lengths)
    if order is None:
        order = order_packs(work, num_ranks, rules.balance, state)
    packs = _complete(lengths, offsets, pieces, order, capacity, num_ranks)
    return _refine(lengths, packs, capacity, num_ranks) if rules.balance.refine else packs


def _complete(
    lengths: Int32Array, offsets: Int64Array, pieces: Int64Array, order: Int64Array, capacity: int, num_ranks: int
) -> GroupPacks:
    """The packs in order, those that do not fill an iteration spread over all ranks."""
    num_packs = len(order)
    num_left = _num_to_spread(num_packs, num_ranks)
    whole_offsets, whole = select_packs(offsets, pieces, order[: num_packs - num_left])
    left_offsets, left = select_packs(offsets, pieces, order[num_packs - num_left :])
    spread_out = _spread(lengths, left, capacity, -(-num_left // num_ranks) * num_ranks)
    if spread_out:
        left_offsets, left = spread_out
    return GroupPacks(
        offsets=np.concatenate([whole_offsets, left_offsets[1:] + whole_offsets[-1]]),
        pieces=np.concatenate([whole, left]),
        num_whole=num_packs - num_left,
        is_spread=spread_out is not None,
    )


def _num_to_spread(num_packs: int, num_ranks: int) -> int:
    """How many of the last packs are dealt out anew, so that no rank idles in the last iteration.

    A few packs over many ranks would be a handful of samples a rank, too few to be even: then the packs of the
    iteration before join them, and two iterations of rows over half full come out.
    """
    num_left = num_packs % num_ranks
    if 0 < num_left < num_ranks / 2 and num_packs > num_left:
        num_left += num_ranks
    return num_left


def _spread(
    lengths: Int32Array, pieces: Int64Array, capacity: int, num_rows: int
) -> tuple[Int64Array, Int64Array] | None:
    """The pieces over rows of even attention work, the heaviest row first; None where they do not fit."""
    num_rows = min(num_rows, len(pieces))
    by_length = argsort_descending(lengths[pieces], capacity)
    row_of, fits = spread(lengths[pieces], by_length, capacity, num_rows)
    if not fits:
        return None
    offsets, members = group_by_pack(row_of, by_length, num_rows)
    _, work = pack_tokens_and_work(offsets, pieces[members], lengths)
    return select_packs(offsets, pieces[members], np.argsort(-work, kind="stable"))


def _refine(lengths: Int32Array, packs: GroupPacks, capacity: int, num_ranks: int) -> GroupPacks:
    """Even out the iterations; spread rows stay as short as they are."""
    offsets, pieces = packs.offsets, packs.pieces
    num_packs = len(offsets) - 1
    tokens, _ = pack_tokens_and_work(offsets, pieces, lengths)
    longest_rest = int(tokens[packs.num_whole :].max(initial=0))
    for first, stop, most in ((0, packs.num_whole, capacity), (packs.num_whole, num_packs, longest_rest)):
        slots = deal(np.arange(first, stop), num_ranks)
        offsets, pieces = refine_packs(offsets, pieces, lengths, slots, most)
    return GroupPacks(offsets=offsets, pieces=pieces, num_whole=packs.num_whole, is_spread=packs.is_spread)
