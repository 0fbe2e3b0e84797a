"""WLB-LLM's packers in plain Python, as `algorithms.md` numbers them; nothing here is fast."""

from __future__ import annotations

from collections import deque


def arrive(order, pieces, tokens):
    """(sample, start, length) in the order of arrival, token by token, cut at every multiple of `tokens`."""
    found, place = [], 0
    for i in order:
        sample, start, length = pieces[i]
        while length:
            part = min(length, tokens - place % tokens)
            found.append((sample, start, part))
            place, start, length = place + part, start + part, length - part
    return found


def work(length, linear):
    return length * (length + linear)


def delay_queues(batches, num_micro_batches, capacity, thresholds, linear=0):
    """Algorithm 1: a list of steps, each a list of micro-batches of (batch, index) documents; steps may be empty."""
    queues = [deque() for _ in thresholds]
    remained, steps = [], []
    length = {(b, i): d for b, batch in enumerate(batches) for i, d in enumerate(batch)}
    number = 0
    while number < len(batches) or remained or any(queues):
        new = []
        if number < len(batches):
            for i, d in enumerate(batches[number]):
                levels = [q for q, threshold in enumerate(thresholds) if d >= threshold]
                (queues[levels[-1]] if levels else new).append((number, i))
        for queue in queues:
            if len(queue) >= num_micro_batches or number >= len(batches):
                new += [queue.popleft() for _ in range(min(num_micro_batches, len(queue)))]
        new.sort(key=lambda document: -length[document])
        todo, remained = remained + new, []
        step = [[] for _ in range(num_micro_batches)]
        for document in todo:
            least = min(step, key=lambda own: sum(work(length[x], linear) for x in own))
            shortest = min(step, key=lambda own: sum(length[x] for x in own))
            for own in (least, shortest):
                if sum(length[x] for x in own) + length[document] <= capacity:
                    own.append(document)
                    break
            else:
                remained.append(document)
        steps.append(step)
        number += 1
    return steps


def greedy_window(lengths, num_rows, capacity):
    """Row of each length, longest first to the least sum of squares that has room; None for what finds none."""
    rows = [[] for _ in range(num_rows)]
    row_of = [None] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [row for row in rows if sum(row) + lengths[i] <= capacity]
        if fitting:
            best = min(fitting, key=lambda row: sum(d * d for d in row))
            best.append(lengths[i])
            row_of[i] = next(r for r, row in enumerate(rows) if row is best)
    return row_of


def imbalances(steps, linear):
    """M max / sum of the work of each step's micro-batches (lists of lengths)."""
    found = []
    for step in steps:
        works = [sum(work(d, linear) for d in own) for own in step]
        found.append(len(works) * max(works) / sum(works))
    return found


def pipeline_seconds(times, pp_size):
    """Of a replica: its micro-batches, and the longest once more for each stage but one."""
    return sum(times) + (pp_size - 1) * max(times, default=0)


def deal(times, num_replicas, most, pp_size, exchanges):
    """Replica of each micro-batch: longest first to the one that ends first, then exchanges of the slowest."""
    own = [[] for _ in range(num_replicas)]
    replica_of = [0] * len(times)

    def end(r, members):
        return pipeline_seconds([times[k] for k in members], pp_size)

    for k in sorted(range(len(times)), key=lambda k: -times[k]):
        r = min((r for r in range(num_replicas) if len(own[r]) < most), key=lambda r: end(r, [*own[r], k]))
        own[r].append(k)
        replica_of[k] = r
    for _ in range(exchanges):
        slowest = max(range(num_replicas), key=lambda r: end(r, own[r]))
        least, best = end(slowest, own[slowest]) * (1 - 1e-9), None
        for a in sorted(own[slowest]):
            for b in range(len(times)):
                r = replica_of[b]
                if r == slowest:
                    continue
                slower = max(
                    end(slowest, [b if k == a else k for k in own[slowest]]),
                    end(r, [a if k == b else k for k in own[r]]),
                )
                if slower < least:
                    least, best = slower * (1 - 1e-9), (a, b)
        if best is None:
            break
        a, b = best
        r = replica_of[b]
        own[slowest][own[slowest].index(a)], own[r][own[r].index(b)] = b, a
        replica_of[a], replica_of[b] = r, slowest
    return replica_of
