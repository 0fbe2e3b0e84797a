"""HBP's algorithm 1 as published (arXiv 2503.07680): up to four groups from the fastest settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from packer_cli.groups.settings import Setting
from packer_cli.plan.core.groups import Group


def hbp_groups(best: Mapping[int, Setting], setting_of: Callable[[int], Group | None]) -> tuple[Group, ...]:
    """Groups by increasing capacity: `[l1, l_best, l2, l_max]` if l2 > l_best, else `[l1, l_best, l_max]`.

    l_best has the least time per token, l_max is the longest; l1 = floor(l_best / sp_best) and l2 = floor(l_max /
    sp_max) are the lengths that need no communication. Equal lengths become one group.

    Args:
        best: the fastest setting of each candidate length that fits; at least one.
        setting_of: gives the setting on one GPU of a length that is not a candidate; None if unknown.
    """
    fastest = min(best.values(), key=_time)
    longest = best[max(best)]
    groups = {longest.group.capacity: longest.group, fastest.group.capacity: fastest.group}
    short = [fastest.group]
    if longest.group.capacity // longest.group.sp_size > fastest.group.capacity:
        short.append(longest.group)
    for group in short:
        length = group.capacity // group.sp_size
        if length not in groups:
            # Each GPU holds as many tokens as in that group, so the same layers fit.
            same = replace(group, capacity=length, sp_size=1)
            groups[length] = setting_of(length) or same
    return tuple(groups[length] for length in sorted(groups))


def _time(setting: Setting) -> tuple[float, int]:
    """Sort key: time per token, then length."""
    assert setting.seconds_per_token is not None
    return setting.seconds_per_token, setting.group.capacity
