"""transformers' `train_sampling_strategy="batch_rebalance"` (`BatchRebalanceSampler`, 5.23), as a row of a comparison.

A step has as many random samples as its tokens over their mean length. Sorted by length, they are cut into batches,
one for each rank and micro-batch, each padded to its longest sample. The cuts move one sample at a time, from the
batch of the greatest cost to that of the least, `B L + 0.001 B L^2` for B samples of at most L tokens, and the best
ones seen stay. Batches of like cost share an iteration. A user chooses the number of micro-batches; here it is the
least in which every batch fits its row. Price: O(n K) for n samples and K batches, times the numbers of micro-batches
that are tried.
"""

from __future__ import annotations

import numpy as np

from packer_cli.format.ragged import offsets_of
from packer_cli.jit import njit
from packer_cli.plan.core.iterations import deal
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import BoolArray, Float64Array, Int64Array, Pieces, Plan, as_ids
from packer_cli.plan.kernels.timed_dealing import hash_of
from packer_cli.plan.strategies.assemble import assemble_padded, make_packs
from packer_cli.plan.strategies.protocol import PlanRequest

_SQUARE = 0.001
"""Cost of a squared token beside a token; the sampler's."""


def plan_rebalanced(pieces: Pieces, request: PlanRequest) -> Plan:
    """Plan the batches of all steps, in random order."""
    (group,), tokens, lengths = request.groups, request.steps.global_tokens, pieces.length
    assert tokens is not None
    num_ranks = group.num_dp_ranks(request.num_gpus)
    order = shuffled(len(lengths), rng_state(request.seed, Stream.ARRIVAL))
    of_step = max(num_ranks, round(tokens * len(lengths) / max(1, int(lengths.sum(dtype=np.int64)))))
    none = np.empty(0, dtype=np.int64)
    sizes, members, slots, steps, first = [none], [as_ids(none)], [as_ids(none.reshape(0, num_ranks))], [none], 0
    for number, begin in enumerate(range(0, len(order), of_step)):
        own = order[begin : begin + of_step]
        own = own[np.argsort(-lengths[own], kind="stable")]
        falling = lengths[own].astype(np.int64)
        counts = _counts_that_fit(falling, num_ranks, group.capacity)
        by_cost = np.argsort(-costs_of(falling, counts), kind="stable")
        members.append(own)
        sizes.append(counts)
        slots.append(deal(as_ids(first + by_cost), num_ranks))
        steps.append(np.full(len(slots[-1]), number))
        first += len(counts)
    counts = np.concatenate(sizes)
    batches = make_packs(offsets_of(counts), np.concatenate(members), np.zeros_like(counts))
    return assemble_padded(pieces, batches, np.concatenate(slots), request, np.concatenate(steps))


def _counts_that_fit(falling: Int64Array, num_ranks: int, capacity: int) -> Int64Array:
    """Count samples of each batch (int64[K]), in the fewest micro-batches whose batches all fit; at worst one each.

    Bisect, as if more micro-batches always fitted better.
    """
    counts = np.ones(len(falling), dtype=np.int64)
    low, high = -(-int(falling.sum()) // (capacity * num_ranks)), len(falling) // num_ranks
    while low <= high:
        middle = (low + high) // 2
        tried = balanced_counts(falling, middle * num_ranks, num_ranks)
        if (tried * falling[np.cumsum(tried) - tried] <= capacity).all():
            counts, high = tried, middle - 1
        else:
            low = middle + 1
    return counts


@njit(cache=True)
def costs_of(falling: Int64Array, counts: Int64Array) -> Float64Array:
    """Compute the cost (float64[K]) of consecutive batches of these numbers of samples, at least 1 each."""
    costs = np.empty(len(counts))
    begin = 0
    for k in range(len(counts)):
        longest = float(falling[begin])
        costs[k] = counts[k] * longest + _SQUARE * counts[k] * longest * longest
        begin += counts[k]
    return costs


@njit(cache=True)
def balanced_counts(falling: Int64Array, num_batches: int, num_ranks: int) -> Int64Array:
    """Count samples of each batch (int64[K]), for lengths (int64[n], falling, n >= K), as the sampler finds them.

    Where the costliest batch is down to one sample, it and those that share its iteration are filled up and then left
    alone.
    """
    num = len(falling)
    counts = np.full(num_batches, num // num_batches)
    counts[: num % num_batches] += 1
    best, least = counts.copy(), np.inf
    is_frozen = np.zeros(num_batches, dtype=np.bool_)
    seen = {hash_of(counts)}
    for turn in range(max(30 * num_batches, num)):
        if turn:
            key = hash_of(counts)
            if key in seen:
                break
            seen.add(key)
        costs = costs_of(falling, counts)
        high, low, num_active = -1, -1, 0
        for k in range(num_batches):
            if not is_frozen[k]:
                num_active += 1
                if high < 0 or costs[k] > costs[high]:
                    high = k
                if low < 0 or costs[k] < costs[low]:
                    low = k
        if num_active <= 1:
            break
        if costs[high] - costs[low] < least:
            least = costs[high] - costs[low]
            best[:] = counts
        if costs[high] == costs[low]:
            break
        if counts[high] > 1:
            counts[high] -= 1
            counts[low] += 1
        else:
            _freeze(falling, counts, costs, high, num_ranks, is_frozen)
    return best


@njit(cache=True)
def _freeze(
    falling: Int64Array, counts: Int64Array, costs: Float64Array, high: int, num_ranks: int, is_frozen: BoolArray
) -> None:
    """Fill up the batches of the costliest one's iteration from the cheapest others, and freeze them."""
    ranking = np.argsort(-costs, kind="mergesort")
    first = np.flatnonzero(ranking == high)[0] // num_ranks * num_ranks
    in_slot = np.zeros(len(counts), dtype=np.bool_)
    in_slot[ranking[first : first + num_ranks]] = True
    for k in range(len(counts)):
        if not in_slot[k] or is_frozen[k] or k == high:
            continue
        while True:
            now = costs_of(falling, counts)
            longest = float(falling[counts[:k].sum()])
            more = counts[k] + 1
            if more * longest + _SQUARE * more * longest * longest > costs[high]:
                break
            donor = -1
            for i in range(len(counts)):
                if not is_frozen[i] and not in_slot[i] and counts[i] > 1 and (donor < 0 or now[i] < now[donor]):
                    donor = i
            if donor < 0:
                break
            counts[k] += 1
            counts[donor] -= 1
    is_frozen |= in_slot
