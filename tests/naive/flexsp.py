"""Twins of `plan.strategies.flexsp`. Costs are lists by degree; a group is the list of its samples' lengths."""

from __future__ import annotations

import itertools
import math


class Costs:
    """Twin of `GroupCosts`."""

    def __init__(self, degrees, quadratic, linear, constant, capacity):
        self.degrees, self.capacity = degrees, capacity
        self.rates = list(zip(quadratic, linear, constant, strict=True))

    def seconds(self, kind, group):
        quadratic, linear, constant = self.rates[kind]
        return quadratic * sum(s * s for s in group) + linear * sum(group) + constant if group else 0.0

    def fits(self, kind, group):
        return sum(group) <= self.capacity[kind]

    def gpu_seconds(self, length, limit=math.inf):
        """(kind, GPU-seconds) of the cheapest degree within the limit, else of the fastest; (-1, inf) if none fits."""
        found = []
        for kind, (degree, (quadratic, linear, constant)) in enumerate(zip(self.degrees, self.rates, strict=True)):
            if length <= self.capacity[kind]:
                own = (quadratic * length + linear) * length
                found.append((kind, degree * (own + constant / self.capacity[kind] * length), own + constant))
        within = [entry for entry in found if entry[2] <= limit]
        if within:
            return min(within, key=lambda entry: entry[1])[:2]
        return min(found, key=lambda entry: entry[2], default=(-1, math.inf, 0))[:2]


def least_bucket_error(lengths, num_buckets):
    """FlexSP's recurrence as printed: at most `num_buckets`, each sample rounded up to its bucket's longest."""
    s = sorted(lengths)
    error = [[math.inf] * (num_buckets + 1) for _ in range(len(s) + 1)]
    error[0] = [0] * (num_buckets + 1)
    for k in range(1, len(s) + 1):
        for q in range(1, num_buckets + 1):
            error[k][q] = min(error[j][q - 1] + sum(s[k - 1] - s[i] for i in range(j, k)) for j in range(k))
    return error[-1][-1]


def least_greatest_sum(values, num_parts):
    """FlexSP's recurrence of micro-batches, as printed."""
    least = [[math.inf] * (num_parts + 1) for _ in range(len(values) + 1)]
    least[0] = [0] * (num_parts + 1)
    for k in range(1, len(values) + 1):
        for i in range(1, num_parts + 1):
            least[k][i] = min(max(least[j][i - 1], sum(values[j:k])) for j in range(k))
    return least[-1][-1]


def deal(lengths, kinds, costs, limit=math.inf):
    """(group of each sample, seconds): each to the group that finishes first; None where one finds no room."""
    groups = [[] for _ in kinds]
    dealt = []
    for length in lengths:
        after = [
            (costs.seconds(kind, [*group, length]), p)
            for p, (kind, group) in enumerate(zip(kinds, groups, strict=True))
            if costs.fits(kind, [*group, length])
        ]
        if not after or min(after)[0] >= limit:
            return None
        dealt.append(min(after)[1])
        groups[dealt[-1]].append(length)
    return dealt, max(costs.seconds(kind, group) for kind, group in zip(kinds, groups, strict=True))


def deal_by_room(lengths, kinds, costs):
    """The same, each sample to the group with the least room that holds it."""
    groups = [[] for _ in kinds]
    dealt = []
    for length in lengths:
        rooms = [
            (costs.capacity[kind] - sum(group), p) for p, (kind, group) in enumerate(zip(kinds, groups, strict=True))
        ]
        enough = [entry for entry in rooms if entry[0] >= length]
        if not enough:
            return None
        dealt.append(min(enough)[1])
        groups[dealt[-1]].append(length)
    return dealt, max(costs.seconds(kind, group) for kind, group in zip(kinds, groups, strict=True))


def best_division(lengths, kinds, costs, dealt):
    """(the greatest seconds, the least of the slower of two groups, however they divide their samples).

    One of the two is the slowest group.
    """
    groups = [[s for s, own in zip(lengths, dealt, strict=True) if own == p] for p in range(len(kinds))]
    before = list(map(costs.seconds, kinds, groups))
    slowest = before.index(max(before))
    least = math.inf
    for p in range(len(kinds)):
        samples = groups[p] + groups[slowest]
        for chosen in itertools.product([True, False], repeat=len(samples) if p != slowest else 0):
            one, other = (
                [s for s, own in zip(samples, chosen, strict=False) if own == side] for side in (True, False)
            )
            if costs.fits(kinds[p], one) and costs.fits(kinds[slowest], other) and p != slowest:
                least = min(least, max(costs.seconds(kinds[p], one), costs.seconds(kinds[slowest], other)))
    return max(before), least


def least_seconds(lengths, costs, num_gpus):
    """No groups are faster; infinite if a sample is too long."""
    total = sum(costs.gpu_seconds(length)[1] for length in lengths)
    alone = [
        min((costs.seconds(k, [s]) for k in range(len(costs.degrees)) if costs.fits(k, [s])), default=math.inf)
        for s in lengths
    ]
    return max(total / num_gpus, *alone)


def fastest_groups(lengths, costs, num_gpus):
    """The optimum of a micro-batch, by trying every division into groups with every degree."""

    def divisions(samples):
        if not samples:
            yield []
            return
        for division in divisions(samples[1:]):
            yield [[samples[0]], *division]
            for k in range(len(division)):
                yield [*division[:k], [samples[0], *division[k]], *division[k + 1 :]]

    best = math.inf
    for division in divisions(list(lengths)):
        for kinds in itertools.product(range(len(costs.degrees)), repeat=len(division)):
            if sum(costs.degrees[kind] for kind in kinds) <= num_gpus and all(map(costs.fits, kinds, division)):
                best = min(best, max(map(costs.seconds, kinds, division)))
    return best


def pack_longest_first(own, fillers, kind, costs, limit=math.inf):
    """Packs (lists of lengths) of all own samples and of fillers, always the longest that fits the room and limit."""
    own, fillers = sorted(own), sorted(fillers)
    packs = []
    while own:
        packs.append([own.pop()])
        while True:
            room = costs.capacity[kind] - sum(packs[-1])
            found = [
                (s, source)
                for source in (own, fillers)
                for s in source
                if s <= room and costs.seconds(kind, [*packs[-1], s]) <= limit
            ]
            if not found:
                break
            length, source = max(found, key=lambda entry: entry[0])
            source.remove(length)
            packs[-1].append(length)
    return packs


def form_iterations(kinds, seconds, degrees, num_gpus):
    """Lists of packs: the slowest left that fits, if it can, so that degrees still left can fill the GPUs."""
    left = list(range(len(kinds)))
    iterations = []

    def can_fill(gpus, available):
        return gpus == 0 or any(gpus >= d and can_fill(gpus - d, available) for d in available)

    while left:
        iteration, free = [], num_gpus
        while True:
            available = {degrees[kinds[p]] for p in left}
            fitting = [p for p in left if degrees[kinds[p]] <= free]
            if not fitting:
                break
            to_end = [p for p in fitting if can_fill(free - degrees[kinds[p]], available)]
            chosen = min(to_end or fitting, key=lambda p: (-seconds[p], kinds[p]))
            left.remove(chosen)
            iteration.append(chosen)
            free -= degrees[kinds[chosen]]
        iterations.append(iteration)
    return iterations
