"""Twin of replicas that run without lockstep."""

from __future__ import annotations

from collections.abc import Sequence

Slot = tuple[int, int, int, int, int]
"""Iteration, first GPU, group, pack (-1: a filler), row length."""


def run_freely(
    slots: Sequence[Slot], steps: Sequence[int], times: Sequence[float] | None, falling: Sequence[int] | None = None
) -> tuple[list[Slot], list[int]]:
    """The slots of the merged iterations, and the step of each."""
    by_iteration = [[slot for slot in slots if slot[0] == i] for i in range(len(steps))]
    num_groups = 1 + max(slot[2] for slot in slots)
    layouts = [tuple(sum(slot[2] == g for slot in own) for g in range(num_groups)) for own in by_iteration]
    merged_slots, merged_steps = [], []
    for step, layout in sorted(set(zip(steps, layouts, strict=True))):
        own = [
            slot
            for i, slots_of in enumerate(by_iteration)
            if (steps[i], layouts[i]) == (step, layout)
            for slot in slots_of
        ]
        place = {slot: slot[1] for slot in own}
        for group in {slot[2] for slot in own} if times is not None else ():
            loads = dict.fromkeys(sorted({slot[1] for slot in own if slot[2] == group}), (0.0, 0))
            in_group = [slot for slot in own if slot[2] == group]
            time = {slot: 0.0 if slot[3] < 0 else times[slot[3]] for slot in in_group}
            for slot in sorted(in_group, key=lambda slot: -time[slot]):
                gpu = min(loads, key=lambda gpu: loads[gpu])
                loads[gpu] = loads[gpu][0] + time[slot], loads[gpu][1] + 1
                place[slot] = gpu
        for gpu in sorted(set(place.values())):
            here = [slot for slot in own if place[slot] == gpu]
            packs = [slot for slot in here if slot[3] >= 0] or here[:1]
            if falling is not None and packs[0][3] >= 0:
                packs.sort(key=lambda slot: -falling[slot[3]])
            merged_slots += [(len(merged_steps), gpu, *slot[2:]) for slot in packs]
        merged_steps.append(step)
    return merged_slots, merged_steps
