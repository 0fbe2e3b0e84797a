"""`--align`: to what multiple of tokens trainers pad each sample, as text and in groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from packer_cli.plan.groups import Group

_OF_DEGREE = re.compile(r"([1-9][0-9]{0,8})\*cp")


def read_align(value: Any) -> Any:
    """`16` as an integer, `2*cp` as it is; other values are returned for pydantic to check.

    Raises:
        ValueError: text that is neither.
    """
    if not isinstance(value, str) or _OF_DEGREE.fullmatch(value):
        return value
    if re.fullmatch("[0-9]{1,12}", value):
        return int(value)
    raise ValueError(f"{value!r} is neither a number of tokens, such as 16, nor one for each GPU of a row, as 2*cp")


def with_align(groups: Sequence[Group], given: Sequence[Group], align: int | str, *, mixed: bool) -> tuple[Group, ...]:
    """The groups with their `align`.

    `N*cp` is N times the SP degree, and 1 for degree 1: such rows are not divided.

    Args:
        given: the groups that the user named, whose capacities stand; those of others are rounded up.
        mixed: whether samples move between the groups, so that all take the longest one's `align`.

    >>> groups = [Group(capacity=16384), Group(capacity=131072, sp_size=8)]
    >>> [group.align for group in with_align(groups, groups, "2*cp", mixed=False)]
    [1, 16]
    """
    multiples = [_multiple(align, group.sp_size) for group in groups]
    if mixed:
        multiples = [multiples[-1]] * len(groups)
    aligned = {}
    for group, multiple in zip(groups, multiples, strict=True):
        capacity = group.capacity if group in given else -(-group.capacity // multiple) * multiple
        aligned[capacity] = replace(group, capacity=capacity, align=multiple)  # Of equal ones, the higher degree.
    return tuple(aligned.values())


def _multiple(align: int | str, degree: int) -> int:
    if isinstance(align, int):
        return align
    return int(align.removesuffix("*cp")) * degree if degree > 1 else 1
