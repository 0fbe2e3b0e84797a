"""`--groups` and `--align`: groups as text, and the groups that a strategy uses, each with its `align`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from packer_cli.config.messages import rule
from packer_cli.format.layout import ONE_GPU, Layout
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.sizes import parse_integer, parse_tokens

_group = TypeAdapter(Group)
_OF_DEGREE = re.compile(r"([1-9][0-9]{0,8})\*cp")


def parse_group(text: str) -> Group:
    """Read `CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]]`.

    >>> parse_group("128k:8")
    Group(capacity=131072, sp_size=8, checkpoint_layers=0, align=1, cp_size=1, tp_size=1, pp_size=1, vpp_size=1)
    """
    names = ("capacity", "sp_size", "checkpoint_layers")
    parts = text.strip().split(":")
    try:
        if len(parts) > len(names):
            raise ValueError("too many parts")
        numbers = [parse_tokens(parts[0]), *(parse_integer(part) for part in parts[1:])]
    except ValueError:
        raise ValueError(
            f"group {text!r} is not CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]], such as 16k:1 or 128k:8"
        ) from None
    try:
        return _group.validate_python(dict(zip(names, numbers, strict=False)))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"group {text!r}: {first['loc'][0]} {rule(first)}") from None


_PARALLEL = ("cp", "tp", "pp", "vpp")


def read_parallel(value: Any) -> Any:
    """Read `tp=8,cp=2,pp=4`, in any order, some left out.

    >>> read_parallel("tp=8,pp=4")
    Layout(sp=1, cp=1, tp=8, pp=4, vpp=1)
    """
    if not isinstance(value, str):
        return value
    degrees: dict[str, int] = {}
    for word in value.split(","):
        name, equals, number = (part.strip() for part in word.partition("="))
        if name not in _PARALLEL or not equals or name in degrees or not re.fullmatch("[1-9][0-9]{0,4}", number):
            raise ValueError(
                f"{value!r} is not a list of degrees such as tp=8,cp=2,pp=4: tp (tensor), cp (context), pp "
                "(pipeline) and vpp (parts of a stage), each once, at least 1; give SP degrees in --groups"
            )
        degrees[name] = int(number)
    if degrees.get("vpp", 1) > 1 and degrees.get("pp", 1) == 1:
        raise ValueError(f"{value!r}: vpp divides the stages of a pipeline; give pp, too")
    return Layout(**degrees)


def write_parallel(layout: Layout) -> str:
    """Write the degrees as `read_parallel` takes them, without SP's.

    >>> write_parallel(Layout(sp=2, tp=8, pp=4))
    'tp=8,pp=4'
    """
    return ",".join(f"{name}={value}" for name in ("tp", "cp", "pp", "vpp") if (value := getattr(layout, name)) > 1)


def with_parallel(groups: Iterable[Group], parallel: Layout) -> tuple[Group, ...]:
    """Give groups these degrees.

    Raises:
        ValueError: a group has other degrees of its own, or SP and CP degrees above 1.
    """
    done = []
    for group in groups:
        own = group.layout._replace(sp=1)
        if parallel != ONE_GPU and own not in (ONE_GPU, parallel):
            raise ValueError(f"group {group} has degrees of its own ({own}), other than those of --parallel; give one")
        if parallel != ONE_GPU:
            sizes = {**parallel.sizes, "sp_size": group.sp_size, "vpp_size": parallel.vpp}
            group = replace(group, **sizes)
        if group.sp_size > 1 and group.cp_size > 1:
            raise ValueError(
                f"group {group} has SP degree {group.sp_size} and CP degree {group.cp_size}; rows are shared in one "
                "way only, so leave one of them at 1"
            )
        done.append(group)
    return tuple(done)


def read_mapping(value: Any) -> Any:
    """Read a group as a mapping, which may have text for its capacity, for pydantic to check."""
    if isinstance(value, dict) and isinstance(value.get("capacity"), str):
        return {**value, "capacity": parse_tokens(value["capacity"])}
    return value


def read_align(value: Any) -> Any:
    """Read `16` as an integer, and keep `2*cp` and `2*cp,32` as they are.

    Raises:
        ValueError: the value is none of these.
    """
    if value is None:
        return None
    for part in str(value).split(","):
        if not (_OF_DEGREE.fullmatch(part) or re.fullmatch("[1-9][0-9]{0,8}", part)):
            raise ValueError(
                f"{value!r} must be a number of tokens, at least 1, such as 16, or N*cp for N times the SP or CP "
                "degree of each group, such as 2*cp; or several, such as 2*cp,32"
            )
    return int(value) if str(value).isdigit() else value


def with_align(groups: Sequence[Group], given: Sequence[Group], align: int | str, *, mixed: bool) -> tuple[Group, ...]:
    """Give groups their `align`.

    `N*cp` is N times the SP or CP degree, and 1 for degree 1: such rows are not divided. Where several are given,
    their least common multiple counts.

    Args:
        given: the groups that the user named, whose capacities stand; capacities of other groups are rounded up.
        mixed: whether samples move between the groups, so that all take the longest one's `align`.

    >>> groups = [Group(capacity=16384), Group(capacity=131072, sp_size=8)]
    >>> [group.align for group in with_align(groups, groups, "2*cp", mixed=False)]
    [1, 16]
    >>> [group.align for group in with_align(groups, groups, "2*cp,12", mixed=False)]
    [12, 48]
    """
    multiples = [_multiple(align, group.layout.row_ranks) for group in groups]
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
    parts = [part.partition("*") for part in align.split(",")]
    return math.lcm(*(int(number) * (degree if star else 1) for number, star, _ in parts if degree > 1 or not star))


def choose_groups(
    groups: Sequence[Group], strategy: Strategy, parallel: Layout, align: int | str | None, *, are_named: bool
) -> tuple[Group, ...]:
    """Choose the groups that a strategy uses, with the degrees of `--parallel`, and aligned.

    Args:
        are_named: whether the user named the groups: then the strategy must use all, and their capacities stand.

    Raises:
        ValueError: named groups do not fit the strategy or the degrees.
    """
    given = tuple(groups) if strategy.finds_layouts else with_parallel(groups, parallel)
    with strategy.blamed():
        chosen = strategy.groups(given)
    if are_named and chosen != given and (kept := used_groups(given, strategy)) != given:
        used = map(as_named, chosen)
        raise ValueError(
            f"--strategy {strategy.name} plans with {','.join(map(str, used))}, and the rest of "
            f"{','.join(map(str, given))} has no effect; give {','.join(map(str, kept))}"
        )
    if align is None:
        return chosen
    return with_align(chosen, given if are_named else (), align, mixed=strategy.mixes_layouts)


def used_groups(given: Sequence[Group], strategy: Strategy) -> tuple[Group, ...]:
    """Find the given groups that decide the groups of a strategy's plan, as the strategy takes them."""
    with strategy.blamed():
        used = strategy.groups(given)
        longest = next((group for group in used if group.capacity == given[-1].capacity), given[-1])
        kept = [*given[:-1], given[-1] if as_named(given[-1]) == as_named(longest) else longest]
        for group in given[:-1]:
            others = [each for each in kept if each != group]
            if as_named(group) not in map(as_named, used) and strategy.groups(others) == used:
                kept = others
    return tuple(kept)


def as_named(group: Group) -> Group:
    """Return a group as `--groups` names it, whatever shares its rows."""
    return replace(group, sp_size=group.layout.row_ranks, cp_size=1)
