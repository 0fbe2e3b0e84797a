"""The layouts that the steps of `--strategy hydraulis` choose from, for people."""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Int32Array
from packer_cli.plan.strategies.hydraulis.batches import make_batches
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts, scheme_costs
from packer_cli.plan.strategies.hydraulis.data_set import layouts_of
from packer_cli.plan.strategies.layout_choice import LayoutChoice, LayoutRow, SchemeRow
from packer_cli.plan.strategies.protocol import PlanRequest


def choose_step_layouts(lengths: Int32Array, request: PlanRequest) -> LayoutChoice:
    """The layouts for samples (int32[n]), as planning chooses them. Price: see `hydraulis.layouts`.

    Args:
        request: of a strategy that finds layouts.
    """
    costs, global_tokens = scheme_costs(request), request.steps.global_tokens
    assert global_tokens is not None
    order, offsets = make_batches(lengths, global_tokens, request.seed)
    found = layouts_of(lengths[order].astype(np.int64), offsets, costs, request.num_gpus, global_tokens)
    used = np.flatnonzero(found.counts.sum(axis=0)).tolist()
    fastest = np.bincount(found.seconds.argmin(axis=0), minlength=len(found.counts)) / found.seconds.shape[1]
    names = {kind: pipeline_name(request.groups[kind]) for kind in used}
    return LayoutChoice(
        schemes=tuple(
            SchemeRow(
                name=names[kind],
                layout=request.groups[kind].layout._asdict(),
                num_gpus=int(costs.gpus[kind]),
                capacity=int(costs.capacity[kind]),
                checkpoint_layers=request.groups[kind].checkpoint_layers,
                gpu_seconds_short=_gpu_seconds(costs, kind, min(1024, int(costs.capacity[kind]))),
                gpu_seconds_long=_gpu_seconds(costs, kind, int(costs.capacity[kind])),
            )
            for kind in used
        ),
        layouts=tuple(
            LayoutRow(
                pipelines={names[kind]: int(counts[kind]) for kind in reversed(used) if counts[kind]},
                longest=int(longest),
                fastest=float(share),
                step_seconds=_digits(float(seconds.mean())) if np.isfinite(seconds).all() else None,
            )
            for counts, longest, share, seconds in zip(
                found.counts, found.longest, fastest, found.seconds, strict=True
            )
        ),
        step_seconds=_digits(float(found.seconds.min(axis=0).mean())),
        num_steps=len(offsets) - 1,
        num_tried=found.seconds.shape[1],
        num_gpus=request.num_gpus,
        global_tokens=global_tokens,
    )


def pipeline_name(group: Group) -> str:
    """A pipeline's degrees above 1 and its capacity.

    >>> pipeline_name(Group(capacity=17280, tp_size=2, pp_size=4))
    'tp2-pp4:17280'
    """
    degrees = [f"{name}{size}" for name, size in group.layout._asdict().items() if size > 1]
    return f"{'-'.join(degrees) or '1gpu'}:{group.capacity}"


def _gpu_seconds(costs: SchemeCosts, kind: int, length: int) -> float:
    """GPU-seconds of a million tokens in samples of one length, in full micro-batches."""
    number = max(1, int(costs.capacity[kind]) // length)
    seconds = float(costs.seconds(kind, number * length * length, number * length))
    return _digits(seconds * float(costs.gpus[kind]) / (number * length) * 1e6)


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
