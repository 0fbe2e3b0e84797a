"""Twins of `plan.strategies.hydraulis`. A micro-batch is the list of its samples' lengths, a pipeline that of its
micro-batches."""

from __future__ import annotations

import itertools
import math

from tests.naive.random import SplitMix64


class Costs:
    """Twin of `GroupCosts`."""

    def __init__(self, gpus, pp, quadratic, linear, constant, capacity):
        self.gpus, self.pp, self.capacity = gpus, pp, capacity
        self.rates = list(zip(quadratic, linear, constant, strict=True))

    def seconds(self, kind, micro_batch):
        quadratic, linear, constant = self.rates[kind]
        return quadratic * sum(s * s for s in micro_batch) + linear * sum(micro_batch) + constant

    def pipeline_seconds(self, kind, micro_batches):
        times = [self.seconds(kind, micro_batch) for micro_batch in micro_batches]
        return sum(times) + (self.pp[kind] - 1) * max(times, default=0.0)

    def fits(self, kind, micro_batch):
        return sum(micro_batch) <= self.capacity[kind]


def partitions(samples):
    """All ways to divide the samples into micro-batches."""
    if not samples:
        yield []
        return
    first, *rest = samples
    for parts in partitions(rest):
        yield [[first], *parts]
        for i in range(len(parts)):
            yield [*parts[:i], [first, *parts[i]], *parts[i + 1 :]]


def fastest_pipeline(samples, kind, costs):
    """Seconds of the best micro-batches of one pipeline."""
    fitting = (parts for parts in partitions(samples) if all(costs.fits(kind, part) for part in parts))
    return min((costs.pipeline_seconds(kind, parts) for parts in fitting), default=math.inf)


def fastest_step(samples, kinds, costs):
    """Seconds of the slowest pipeline, over all ways to deal the samples to pipelines and micro-batches."""
    best = math.inf
    for dealt in itertools.product(range(len(kinds)), repeat=len(samples)):
        pipelines = [[s for s, p in zip(samples, dealt, strict=True) if p == q] for q in range(len(kinds))]
        best = min(best, max(fastest_pipeline(own, kind, costs) for own, kind in zip(pipelines, kinds, strict=True)))
    return best


def range_seconds(kind, costs, number, tokens, work, longest):
    """Twin of `candidates.least_range_seconds`: v micro-batches of a share of samples, v any real number."""
    quadratic, linear, constant = costs.rates[kind]
    waiting = costs.pp[kind] - 1
    alone = (quadratic * longest + linear) * longest
    total = max(quadratic * work + linear * tokens, alone)
    fewest = max(1.0, tokens / costs.capacity[kind])
    most = max(number, fewest)
    numbers = [fewest, most, total / alone]
    if constant and waiting:
        numbers.append(math.sqrt(waiting * total / constant))
    if not waiting:
        return total + fewest * constant
    return min(
        total + v * constant + waiting * (max(total / v, alone) + constant) for v in numbers if fewest <= v <= most
    )


def our_cost(kind, costs, r, number, tokens, work, longest):
    """Of r pipelines, `range_seconds` of a share."""
    return range_seconds(kind, costs, number / r, tokens / r, work / r, longest)


def printed_cost(kind, costs, r, number, tokens, work, longest):
    """Of r pipelines, a share of the time of one that runs each sample alone (Hydraulis's paper)."""
    quadratic, linear, constant = costs.rates[kind]
    whole = quadratic * work + linear * tokens + constant * number
    return (whole + (costs.pp[kind] - 1) * costs.seconds(kind, [longest])) / r


def fastest_layout(sums, longest, costs, num_gpus, cost):
    """The least time of the slowest range, over all ranges of lengths and pipelines for each."""
    cells = len(longest) - 1
    best = math.inf
    for cuts in itertools.product((False, True), repeat=max(0, cells - 1)):
        borders = [0, *(i + 1 for i, is_cut in enumerate(cuts) if is_cut), cells]
        ranges = [(a, b) for a, b in itertools.pairwise(borders) if longest[b] > longest[a]]
        if any(longest[b] == longest[b - 1] for _, b in ranges):
            continue  # Some other cuts end the range where its samples do.
        choices = [
            [
                (
                    r * costs.gpus[kind],
                    cost(kind, costs, r, *(row[b] - row[a] for row in sums), longest[b]),
                )
                for kind in range(len(costs.gpus))
                if longest[b] <= costs.capacity[kind]
                for r in range(1, num_gpus // costs.gpus[kind] + 1)
            ]
            for a, b in ranges
        ]
        for chosen in itertools.product(*choices):
            if sum(gpus for gpus, _ in chosen) <= num_gpus:
                best = min(best, max((seconds for _, seconds in chosen), default=0.0))
    return best


def printed_stage_1(falling, kinds, costs, restarts, state):
    """Twin of `published.deal_as_printed`: (pipeline of each sample, greatest load).

    Args:
        kinds: by falling capacity.
    """

    def load(kind, own):
        quadratic, linear, _ = costs.rates[kind]
        total = quadratic * sum(s * s for s in own) + linear * sum(own)
        longest = max(own, default=0)
        return total + (costs.pp[kind] - 1) * (quadratic * longest + linear) * longest

    holders = [[p for p, kind in enumerate(kinds) if costs.capacity[kind] >= s] for s in falling]
    if not all(holders):
        return None, math.inf
    alone = [i for i, own in enumerate(holders) if own == [0]]
    others = [i for i, own in enumerate(holders) if own != [0]]
    random, best, least = SplitMix64(state), None, math.inf
    for _ in range(restarts):
        random.shuffle(others)
        dealt = dict.fromkeys(alone, 0)
        pipelines = [[falling[i] for i in alone], *([] for _ in kinds[1:])]
        for i in others:
            slowest = max(map(load, kinds, pipelines))
            after = {p: max(slowest, load(kinds[p], [*pipelines[p], falling[i]])) for p in holders[i]}
            equal = [p for p in holders[i] if after[p] == min(after.values())]
            empty = [p for p in equal if not pipelines[p]]
            dealt[i] = empty[-1] if empty else equal[0]
            pipelines[dealt[i]].append(falling[i])
        slowest = max(map(load, kinds, pipelines))
        if slowest < least:
            best, least = [dealt[i] for i in range(len(falling))], slowest
    return best, least
