"""What `--packing` names with `--strategy hydraulis`: whose layouts the steps choose from, and whose stage 1 deals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm
from packer_cli.plan.strategies.hydraulis.candidates import length_table
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.layouts import ChosenLayouts, PlanStep, choose_layouts
from packer_cli.plan.strategies.hydraulis.published import plan_as_printed, printed_layouts
from packer_cli.plan.strategies.hydraulis.stage1 import RESTARTS
from packer_cli.plan.strategies.hydraulis.step import plan_sorted


@dataclass(frozen=True, kw_only=True)
class StepPacker(PackingAlgorithm):
    """One way to find layouts, and to plan a step on one of them."""

    pack: PlanStep  # type: ignore[assignment]
    find: Callable[[Sequence[Int64Array], Int64Array, int, SchemeCosts, int], ChosenLayouts]
    """(some steps, all samples, tokens of a step, costs, GPUs) -> the layouts of all steps"""
    restarts: int = 0
    """Shuffled orders that are dealt on each layout that a step tries; its best one gets all `RESTARTS`."""


def _timed(
    steps: Sequence[Int64Array], lengths: Int64Array, batch_tokens: int, costs: SchemeCosts, num_gpus: int
) -> ChosenLayouts:
    return choose_layouts(steps, length_table(lengths, batch_tokens), costs, num_gpus)


def _traced(
    steps: Sequence[Int64Array], lengths: Int64Array, batch_tokens: int, costs: SchemeCosts, num_gpus: int
) -> ChosenLayouts:
    return printed_layouts(length_table(lengths, int(lengths.sum())), costs, num_gpus)


SEARCH = StepPacker(
    name="search",
    summary="layouts timed on steps of the data, samples dealt by predicted time and exchanged",
    pack=plan_sorted,
    find=_timed,
)
PUBLISHED = StepPacker(
    name="published",
    summary="the layouts of Hydraulis's dynamic program as printed, and its stage 1 with 50 shuffled orders",
    pack=plan_as_printed,
    find=_traced,
    restarts=RESTARTS,
)
PACKERS: Mapping[str, StepPacker] = {packer.name: packer for packer in (SEARCH, PUBLISHED)}
