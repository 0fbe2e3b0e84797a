"""Arranges one group: packs, fills, deals packs to iterations, evens them out (HBP, algorithm 2, lines 12 to 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from packer_cli.format.ragged import offsets_of
from packer_cli.plan.core import csr
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.groups import is_in_group, limits_of
from packer_cli.plan.core.iterations import Iterations, deal, one_group_each
from packer_cli.plan.core.segments import align_up, padded_lengths
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import BoolArray, Int32Array, Int64Array, Pieces, Plan, Schedule, UInt64Array, as_ids
from packer_cli.plan.kernels.balance import order_packs, spread
from packer_cli.plan.kernels.fill import balanced_fill, greedy_fill, longest_fill, median_length, pick_samples
from packer_cli.plan.kernels.refine import Evened, even_items, even_samples, refine_packs
from packer_cli.plan.packing.best_fit import limit_samples, trim_packs
from packer_cli.plan.strategies.assemble import assemble, assemble_padded, make_packs, pack_sizes, scheduled
from packer_cli.plan.strategies.protocol import PlanRequest


def plan_groups(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the pieces; each ends up in exactly one pack.

    From the longest group down: pack the group's own pieces, fill with shorter ones, balance. The plan's pieces are
    the given ones, unless the packing cut samples. Price: that of the packing algorithm, plus O(m) for the rest.
    """
    if request.algorithm.cut:
        seed = int(rng_state(request.seed, Stream.CUT)[0])
        pieces = request.algorithm.cut(pieces, request.groups[0].capacity, seed, request.groups[0].align)
    lengths = pieces.sizes(request.limits)
    if request.algorithm.is_padded:
        return _plan_batches(pieces, lengths, request)
    is_left = np.ones(len(pieces), dtype=np.bool_)
    by_group: list[GroupPacks] = []
    for g, group in reversed(list(enumerate(request.groups))):
        own = is_in_group(lengths, request.groups, g)
        own &= is_left
        is_left[own] = False
        num_ranks = group.num_dp_ranks(request.num_gpus)
        of_group = _OfGroup(request, g, group.capacity, num_ranks, align_up(lengths, group.align), pieces)
        by_group.insert(0, of_group.arrange(own, is_left))
    slots, num_spread, first = [], [], 0
    for part, group in zip(by_group, request.groups, strict=True):
        num_ranks = group.num_dp_ranks(request.num_gpus)
        slots.append(deal(as_ids(first + np.arange(part.num_packs)), num_ranks))
        num_spread.append(-(-part.num_rest // num_ranks) if part.is_spread else 0)
        first += part.num_packs
    offsets = offsets_of(np.concatenate([np.diff(part.offsets) for part in by_group]))
    group_of = np.repeat(np.arange(len(by_group)), [part.num_packs for part in by_group])
    packs = make_packs(offsets, np.concatenate([part.pieces for part in by_group]), group_of)
    del by_group, part
    sizes = pack_sizes(pieces, packs, request)
    return assemble(pieces, packs, _in_steps(slots, num_spread, sizes.aligned, request), sizes, request)


def _in_steps(
    slots: Sequence[Int32Array], num_spread: Sequence[int], tokens: Int64Array, request: PlanRequest
) -> Iterations:
    """Return the iterations of all groups; with `StepRules.evens_steps`, consecutive ones of a group share a step."""
    iterations = one_group_each(request.groups, slots, tokens, num_spread)
    if not request.steps.evens_steps:
        return iterations
    step, first = [], 0
    for own, group in zip(slots, request.groups, strict=True):
        number = np.arange(len(own)) // request.steps.iterations_a_step(group, request.num_gpus)
        step.append(first + number)
        first += int(number[-1]) + 1 if len(number) else 0
    place = shuffled(first, rng_state(request.seed, Stream.ORDER)).astype(np.int64)
    return replace(iterations, step=place[np.concatenate(step)])


def rest_of_groups(plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
    """Schedule the chosen packs in the fewest iterations, each of one group. O(m + p log p).

    Only a group's last iteration, that of its lightest packs, has fillers, and only if the packs do not fill it.
    Packs are sorted by work; samples are not exchanged, and a group's last packs are not spread.
    """
    packs, slots, num_spread = plan.packs, [], []
    sizes = pack_sizes(plan.pieces, packs, request)
    # FILLER is -1, the appended one.
    is_short = np.append(plan.epochs[0].short_packs(len(packs), plan.groups), True)
    for g, group in enumerate(plan.groups):
        members = chosen[packs.group[chosen] == g]
        num_ranks, state = group.num_dp_ranks(request.num_gpus), rng_state(request.seed, Stream.DEAL, g, epoch)
        order = order_packs(sizes.work[members], num_ranks, request.balance, state)
        slots.append(deal(members[order], num_ranks))
        is_long = (~is_short[slots[-1]]).any(axis=1)
        num_spread.append(len(slots[-1]) - 1 - int(np.flatnonzero(is_long)[-1]) if is_long.any() else len(slots[-1]))
    iterations = _in_steps(slots, num_spread, sizes.aligned, request)
    return scheduled(iterations, sizes, packs.group, request, epoch)


class GroupPacks(NamedTuple):
    """The packs of one group in the order of their iterations."""

    offsets: Int64Array
    """int64[p+1]"""
    pieces: Int32Array
    """int32[m]"""
    num_rest: int
    """Packs at the end that fill no whole iteration."""
    is_spread: bool
    """Whether these were spread over all ranks, in rows shorter than the capacity."""

    @property
    def num_packs(self) -> int:
        """p"""
        return len(self.offsets) - 1


FREE_TO_FILL = 1 / 16
"""Share of a long pack that should be free for shorter samples: a larger one lowers ABR and raises CR."""


@dataclass(frozen=True)
class _OfGroup:
    """All pieces, as one group takes them: it packs its own, fills with shorter ones, and evens out iterations."""

    request: PlanRequest
    g: int
    """Number of the group."""
    capacity: int
    """Most tokens of a pack."""
    num_ranks: int
    """Packs of an iteration."""
    lengths: Int32Array
    """int32[m], length of every piece, or the size of an item, aligned as the group says."""
    given: Pieces
    """All pieces."""

    @property
    def num_even(self) -> int:
        """Packs that are evened out together."""
        steps = self.request.steps
        of_step = steps.iterations_a_step(self.request.groups[self.g], self.request.num_gpus)
        return self.num_ranks * (of_step if steps.evens_steps else 1)

    def arrange(self, own: BoolArray, is_left: BoolArray) -> GroupPacks:
        """Arrange the group's own pieces (bool[m]) and some of those that are left (bool[m])."""
        request, lengths, num_ranks = self.request, self.lengths, self.num_ranks
        count = csr.count_lengths(lengths, is_left) if self.g else np.zeros(1, dtype=np.int64)
        offsets, pieces = self.pack(own, count)
        state = rng_state(request.seed, Stream.BALANCE, self.g)
        tokens, work = self.taken_and_work(offsets, pieces)
        order = None
        if len(tokens) and count.any():
            room = self.capacity - tokens
            if request.fill == "greedy":
                align = request.groups[self.g].align
                shorter = [-(-each.capacity // align) * align for each in request.groups[: self.g]]
                pack_of, added = greedy_fill(room, lengths, is_left, shorter)
            else:
                if request.fill == "balanced":
                    # By attention work, even with a linear cost: filled packs have equal tokens and linear terms.
                    order = order_packs(work, num_ranks, request.balance, state)
                    squares = self.in_squares(work)
                    pack_of, chosen = balanced_fill(room, squares, order, self.num_even, count, median_length(count))
                else:
                    pack_of, chosen = longest_fill(room, count)
                added = pick_samples(chosen, lengths, is_left, len(count) - 1)
                is_left[added] = False
            added_offsets, by_pack = csr.group_by_pack(pack_of, as_ids(np.arange(len(added))), len(tokens))
            offsets, pieces = csr.merge_packs(offsets, pieces, added_offsets, added[by_pack])
            offsets, pieces, lost = trim_packs(offsets, pieces, lengths, request.max_samples)
            is_left[lost] = True  # No samples of the group itself, which are longer and stand before the fillers.
            tokens, work = self.taken_and_work(offsets, pieces)
        if order is None:
            if self.given.work is not None:
                tokens = pack_sums(self.given.length, offsets, pieces)
            order = self.order(tokens, work, state)
        packs = self.complete(offsets, pieces, order)
        if request.balance.refine:
            self.refine(packs)
        return packs

    def taken_and_work(self, offsets: Int64Array, pieces: Int32Array) -> tuple[Int64Array, Int64Array]:
        """Sum up how much each pack takes of its capacity, by its scarcest limit, and its attention work (int64[p]
        both)."""
        if self.given.work is None:
            return csr.pack_tokens_and_work(offsets, pieces, self.lengths)
        taken = np.zeros(len(offsets) - 1, dtype=np.int64)
        for need, most in zip(self.given.needs, limits_of(self.capacity, self.request.limits), strict=True):
            np.maximum(taken, -(-pack_sums(need, offsets, pieces) * self.capacity // most), out=taken)
        return taken, pack_sums(self.given.work, offsets, pieces)

    def in_squares(self, work: Int64Array) -> Int64Array:
        """Scale attention work of packs (int64[p]) to that of squared lengths, by which fillers are chosen."""
        if self.given.work is None:
            return work
        squares = np.square(self.lengths, dtype=np.float64).sum()
        return (work * (float(squares) / max(1.0, float(self.given.work.sum())))).astype(np.int64)

    def evened_work(self, pieces: Int32Array | slice) -> Int64Array:
        """Compute what the plan evens out of these pieces (int64[k])."""
        linear, attention = self.request.evened, self.given.work
        if attention is not None:
            return attention[pieces] + linear * self.given.length[pieces].astype(np.int64)
        length = self.lengths[pieces].astype(np.int64)
        return length * (length + linear)

    def pack(self, own: BoolArray, count: Int64Array) -> tuple[Int64Array, Int32Array]:
        """Pack the group's own pieces (bool[m]); `(offsets, pieces)` as CSR arrays.

        Completely full packs of a few long samples could not be evened out. So if there are enough shorter samples,
        and the packs leave them less than `FREE_TO_FILL` of the capacity, the pieces are packed again with that much
        room.

        Args:
            count: int64[x+1], number of pieces of each length that may fill packs.
        """
        request, lengths, capacity, algorithm = self.request, self.lengths, self.capacity, self.request.algorithm
        seed = int(rng_state(request.seed, Stream.PACKING, self.g)[0])
        is_all = bool(own.all())
        needs = None
        if self.given.work is not None and algorithm.pack_needs is not None:
            needs = np.array([need[own] for need in self.given.needs], dtype=np.int64)

        def packed(most: int) -> tuple[Int64Array, Int32Array]:
            # A piece longer than `most` gets a pack of its own, as one of that length does.
            found: tuple[Int64Array, Int32Array]
            if needs is not None:
                limits = np.array(limits_of(most, request.limits))
                few = np.minimum(needs, limits[:, None])
                found = algorithm.pack_needs(few, limits, seed, request.packing_options)
                return found
            if most < capacity:
                found = algorithm.pack(np.minimum(lengths[own], most), most, seed, request.packing_options)
                return found
            # No variable holds their lengths, so that an algorithm may free them before it ends.
            found = algorithm.pack(lengths if is_all else lengths[own], most, seed, request.packing_options)
            return found

        offsets, pieces = packed(capacity)
        room = int((len(offsets) - 1) * capacity * FREE_TO_FILL)
        sums = [int(lengths.sum(where=own, dtype=np.int64))] if needs is None else needs.sum(axis=1).tolist()
        limits = limits_of(capacity, request.limits)  # By the need of which they have most.
        taken = max(total * capacity // most for total, most in zip(sums, limits, strict=False))
        free = (len(offsets) - 1) * capacity - taken
        if request.fill == "balanced" and free < room and 2 * room <= int(count @ np.arange(len(count))):
            offsets, pieces = packed(capacity - int(capacity * FREE_TO_FILL))
        if not is_all:
            csr.rename_members(pieces, csr.ids_of(own))
        return limit_samples(offsets, pieces, lengths, capacity, request.max_samples)

    def order(self, tokens: Int64Array, work: Int64Array, state: UInt64Array) -> Int32Array:
        """Return the packs (int32[p]) in the order of their iterations, the rest last.

        The rest always has the least attention work (`work`, int64[p]): its samples are short, and so easy to deal
        evenly.
        """
        request = self.request
        order = order_packs(work, self.num_ranks, request.balance, state)
        if request.evened:
            whole = order[: len(order) - _num_to_spread(len(order), self.num_ranks)]
            predicted = work[whole] + request.evened * tokens[whole]
            whole[:] = whole[order_packs(predicted, self.num_ranks, request.balance, state)]
        return order

    def complete(self, offsets: Int64Array, pieces: Int32Array, order: Int32Array) -> GroupPacks:
        """Put the packs in order, and spread those that do not fill an iteration over all ranks."""
        num_left = _num_to_spread(len(order), self.num_ranks)
        num_whole = len(order) - num_left
        left_offsets, left = csr.select_packs(offsets, pieces, order[num_whole:])
        spread_out = self.spread(left, -(-num_left // self.num_ranks) * self.num_ranks)
        if spread_out:
            left_offsets, left = spread_out
        new_offsets = np.zeros(num_whole + len(left_offsets), dtype=np.int64)
        new_pieces = np.empty(len(pieces), dtype=np.int32)
        csr.copy_packs(offsets, pieces, order[:num_whole], new_offsets, new_pieces)
        new_pieces[new_offsets[num_whole] :] = left
        new_offsets[num_whole:] = left_offsets + new_offsets[num_whole]
        return GroupPacks(new_offsets, new_pieces, len(left_offsets) - 1, spread_out is not None)

    def spread(self, pieces: Int32Array, num_rows: int) -> tuple[Int64Array, Int32Array] | None:
        """Spread the pieces over rows of even work, the heaviest row first; None if they do not fit."""
        num_rows = min(num_rows, len(pieces))
        work = self.evened_work(pieces)
        falling, most = as_ids(np.argsort(-work, kind="stable")), self.request.max_samples
        row_of = spread(self.lengths[pieces], work, falling, self.capacity, num_rows, most)
        if (row_of < 0).any():
            return None
        offsets, members = csr.group_by_pack(row_of, falling, num_rows)
        return csr.select_packs(
            offsets, pieces[members], np.argsort(-pack_sums(work, offsets, members), kind="stable")
        )

    def refine(self, packs: GroupPacks) -> None:
        """Even out each `num_even` packs in place; spread rows do not become longer."""
        request = self.request
        num_whole = packs.num_packs - packs.num_rest
        rest_tokens, _ = self.taken_and_work(packs.offsets[num_whole:], packs.pieces)
        longest_rest = int(rest_tokens.max(initial=0))
        for first, stop, most in ((0, num_whole, self.capacity), (num_whole, packs.num_packs, longest_rest)):
            even: Callable[..., Evened | None] = partial(
                even_samples, lengths=self.lengths, capacity=most, linear=request.evened, most=request.max_samples
            )
            if self.given.work is not None:
                limits, work = limits_of(most, request.limits), self.evened_work(slice(None))
                even = partial(even_items, needs=self.given.needs, work=work, limits=limits, most=request.max_samples)
            refine_packs(packs.offsets, packs.pieces, first, stop, self.num_even, even)


def _num_to_spread(num_packs: int, num_ranks: int) -> int:
    """Count the last packs that are dealt again, so that no rank idles in the last iteration.

    A few packs spread over many ranks would give each rank too few samples to be even. Then the packs of the iteration
    before join them; this gives two iterations, each over half full.
    """
    num_left = num_packs % num_ranks
    if 0 < num_left < num_ranks / 2 and num_packs > num_left:
        num_left += num_ranks
    return num_left


def _plan_batches(pieces: Pieces, lengths: Int32Array, request: PlanRequest) -> Plan:
    """Plan the padded batches of the only group; those that do not fill the last iteration leave ranks idle.

    Args:
        lengths: int32[m], length of every piece.
    """
    (group,) = request.groups
    num_ranks = group.num_dp_ranks(request.num_gpus)
    seed = int(rng_state(request.seed, Stream.PACKING, 0)[0])
    offsets, members = request.algorithm.pack(lengths, group.capacity, seed, request.packing_options)
    _, work = csr.pack_tokens_and_work(offsets, members, padded_lengths(offsets, members, lengths), request.evened)
    order = order_packs(work, num_ranks, request.balance, rng_state(request.seed, Stream.BALANCE, 0))
    batches = make_packs(*csr.select_packs(offsets, members, order), np.zeros_like(order))
    return assemble_padded(pieces, batches, deal(as_ids(np.arange(len(batches))), num_ranks), request)
