"""The strategies of the papers, as defaults of the plan options. An option that you give wins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from packer_cli.plan.core.groups import Group


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to plan."""

    summary: str
    """What it does, and whose it is; for tables and docs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Plan options that differ from those of `balanced`."""
    ignores: frozenset[str] = frozenset()
    """Plan options without effect on it, which it refuses."""
    lacks: frozenset[str] = frozenset()
    """Plan options that other strategies support and it does not, so that it refuses values other than the default."""
    has_packers: bool = False
    """Whether `packing` names one of its own packers, which fill whole steps, and not an algorithm of the others."""
    needs: str = ""
    """What a trainer must do for it beyond running each iteration's packs in lockstep, after "must"."""
    groups: Literal["given", "longest", "degrees", "schemes"] = "given"
    """Which groups it uses: those given; the longest alone; one for each SP degree that divides the longest's, and
    iterations that mix them; or one for each layout of GPUs that holds part of the lengths up to the longest's, and
    steps that mix these."""

    @property
    def packs_itself(self) -> bool:
        """Whether the packing algorithms of the other strategies have no part in it."""
        return self.has_packers or "packing" in self.ignores

    @property
    def mixes_degrees(self) -> bool:
        """Whether an iteration may have replicas of unlike degrees."""
        return self.groups in ("degrees", "schemes")

    @property
    def plans_steps(self) -> bool:
        """Whether it plans step by step, so that it needs the tokens of one."""
        return self.groups == "schemes"

    def choose_groups(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups that it uses, of those given (by rising capacity, at least one).

        >>> of_flexsp = STRATEGIES["flexsp"].choose_groups([Group(capacity=16384), Group(capacity=131072, sp_size=8)])
        >>> [str(group) for group in of_flexsp]
        ['16k:1', '32k:2', '64k:4', '128k:8']
        """
        if self.groups == "given":
            return tuple(groups)
        longest = groups[-1]
        if self.groups in ("longest", "schemes"):
            return (longest,)
        on_a_gpu = max(-(-group.capacity // group.sp_size) for group in groups)
        degrees = [degree for degree in divisors(longest.sp_size) if on_a_gpu * degree < longest.capacity]
        below = [replace(longest, capacity=on_a_gpu * degree, sp_size=degree) for degree in degrees]
        return (*below, longest)


STRATEGIES: Mapping[str, Strategy] = {
    "balanced": Strategy(summary="hbpack's own: best fit, fillers that even out work, samples exchanged"),
    "hbp": Strategy(
        summary="HBP (arXiv 2503.07680): ISF, GreedyFill, packs sorted by work, 500 steps of short groups first",
        defaults={"packing": "isf", "fill": "greedy", "balance": "sort", "curriculum_steps": 500},
    ),
    "naive": Strategy(
        summary="HBP's baseline: ISF packs everything to the longest length, in random order",
        defaults={"packing": "isf", "balance": "none"},
        groups="longest",
    ),
    "longalign": Strategy(
        summary="LongAlign (arXiv 2401.18058): packs of samples of like length, sorted batches in random order",
        defaults={"packing": "sorted", "balance": "sort"},
        groups="longest",
    ),
    "flexsp": Strategy(
        summary="FlexSP (arXiv 2412.01523) over the whole data set: iterations mix SP degrees of equal time",
        groups="degrees",
        needs="run replicas of unlike SP degrees side by side in one iteration",
        ignores=frozenset({"packing", "fill"}),
        lacks=frozenset({"max_samples", "mask"}),
    ),
    "wlb": Strategy(
        summary="WLB-LLM (arXiv 2503.17924): steps of micro-batches of equal predicted time, for pipelines",
        defaults={"groups": "auto", "packing": "delay", "cost": "1,24576"},
        groups="longest",
        has_packers=True,
        needs="run several micro-batches of unlike lengths on each replica in a step",
        ignores=frozenset(
            {"fill", "balance", "global_tokens", "lockstep", "step_mix", "curriculum", "curriculum_steps"}
        ),
        lacks=frozenset({"max_samples", "mask"}),
    ),
    "hydraulis": Strategy(
        summary="Hydraulis (arXiv 2412.07894): each step divides the GPUs among pipelines of unlike tp, cp and pp",
        groups="schemes",
        needs="run pipelines of unlike tp, cp and pp side by side, and change them between steps",
        defaults={"lockstep": "1"},
        ignores=frozenset({"packing", "fill", "balance", "lockstep", "step_mix", "curriculum", "curriculum_steps"}),
        lacks=frozenset({"max_samples", "mask", "align"}),
    ),
}
"""By name, in the order of tables."""


def unsupported(name: str, options: Mapping[str, Any]) -> str | None:
    """The first of these plan options, as text, that a strategy does not support; None if it supports all.

    Args:
        options: name and value of those that were given and differ from the default.
    """
    lacking = sorted(STRATEGIES[name].lacks & options.keys())
    return f"--{lacking[0].replace('_', '-')} {options[lacking[0]]}" if lacking else None


def refusal(name: str, options: Mapping[str, Any]) -> str | None:
    """The error for the option that `unsupported` finds; None if there is none."""
    option = unsupported(name, options)
    if option is None:
        return None
    able = [other for other in STRATEGIES if unsupported(other, options) is None]
    return f"strategy {name} does not support {option}; leave that out, or choose one of {', '.join(able)}"


def divisors(number: int) -> list[int]:
    """In rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
