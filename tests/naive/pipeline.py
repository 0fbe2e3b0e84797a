"""Twin of `plan.kernels.durations`: an event simulation, in which whoever may run next does."""

from __future__ import annotations

import heapq


def passes_of_stage(stage: int, stages: int, parts: int, num: int) -> list[tuple[bool, int, int]]:
    """(is backward, part of the model, micro-batch) in the order in which a stage runs them."""
    order = [
        (part, number)
        for first in range(0, num, stages)
        for part in range(parts)
        for number in range(first, min(first + stages, num))
    ]
    forward = [(False, part * stages + stage, number) for part, number in order]
    backward = [(True, (parts - 1 - part) * stages + stage, number) for part, number in order]
    ahead = stages - stage - 1 if parts == 1 else 2 * (stages - stage - 1) + (parts - 1) * stages
    found = forward[: ahead + 1]
    rest = forward[ahead + 1 :]
    for each in backward:
        found.append(each)
        if rest:
            found.append(rest.pop(0))
    return found


def pipeline_seconds(seconds: list[float], forward: list[float], stages: int, parts: int) -> float:
    if parts > 1:  # Empty micro-batches complete the last round.
        more = -len(seconds) % stages
        seconds, forward = [*seconds, *[0.0] * more], [*forward, *[0.5] * more]
    num, last = len(seconds), stages * parts - 1
    waiting = {stage: passes_of_stage(stage, stages, parts, num) for stage in range(stages)}
    done: set[tuple[bool, int, int]] = set()
    busy = [False] * stages
    events: list[tuple[float, int, tuple[bool, int, int]]] = []
    now = 0.0

    def may_run(one: tuple[bool, int, int]) -> bool:
        is_backward, place, number = one
        if is_backward:
            return ((True, place + 1, number) if place < last else (False, place, number)) in done
        return place == 0 or (False, place - 1, number) in done

    def start() -> None:
        for stage in range(stages):
            if not busy[stage] and waiting[stage] and may_run(waiting[stage][0]):
                one = waiting[stage].pop(0)
                share = 1 - forward[one[2]] if one[0] else forward[one[2]]
                heapq.heappush(events, (now + share * seconds[one[2]] / parts, stage, one))
                busy[stage] = True

    start()
    while events:
        now, stage, one = heapq.heappop(events)
        done.add(one)
        busy[stage] = False
        start()
    assert not any(waiting.values())
    return now
