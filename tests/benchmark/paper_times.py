"""HBP's tables 5, 6, 11, 12 and 14 (arXiv 2503.07680v3): predicted times beside the paper's.

All rows use the same model of time: the shape of the model, an H100's data sheet, and the defaults of
`cost.analytic`. Nothing is fitted to the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from packer_cli.cost.analytic import Assumptions, analytic_model, parse_gpu
from packer_cli.cost.predict import GpuModel
from packer_cli.cost.shape import ModelShape
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Int32Array, Pieces, Plan
from packer_cli.plan.strategies.flexsp.batches import plan_batches
from packer_cli.plan.strategies.flexsp.plan import plan_of
from packer_cli.simulate.epoch import PARTS, Simulation, simulate
from tests.benchmark.paper import HBP, HIERARCHICAL, LONGEST, NAIVE, NUM_GPUS, OURS, Mix, Options, make_plan
from tests.benchmark.report import table
from tests.requests import request

LLAMA_8B = ModelShape(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=14336,
    vocabulary_size=128256,
)  # fmt: skip
QWEN_32B = ModelShape(
    num_layers=64, hidden_size=5120, num_heads=40, num_kv_heads=8, head_dim=128, ffn_size=27648,
    vocabulary_size=152064,
)  # fmt: skip
LLAMA_70B = ModelShape(
    num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, head_dim=128, ffn_size=28672,
    vocabulary_size=128256,
)  # fmt: skip
LAYERS = 28
"""Checkpointed layers of the 8B model's groups in tables 18 and 19."""
GPU_TOKENS = 16_384
"""Tokens of a GPU in each of the paper's settings."""
BATCH_TOKENS = round(0.96 * NUM_GPUS * GPU_TOKENS)
"""FlexSP's batches: what fits 32 GPUs at once, less the 4 % that table 12 says are padding."""
_ITERATION = NUM_GPUS * GPU_TOKENS

BY_HAND: Options = {**HBP, "groups": "32k:2,128k:8"}
ROWS: dict[str, tuple[Options | None, float | None]] = {
    "LongAlign, sorted": ({"strategy": "longalign-sorted", "groups": LONGEST}, 33.3),
    "LongAlign, packing": ({"strategy": "longalign-packing", "groups": LONGEST}, 5.4),
    "ISF": (NAIVE, 5.22),
    "+ hierarchical packing": (HIERARCHICAL, 4.51),
    "FlexSP, batch by batch": (None, 4.35),
    "groups by hand, 32K sp 2 and 128K sp 8": (BY_HAND, 4.25),
    "+ balance batching: HBP": (HBP, 3.73),
    "hbpack's default": (OURS, None),
}
"""Row to its plan, FlexSP where there is none, and the paper's GPU-days; slowest first by the paper."""
FULL = "+ balance batching: HBP"
_SHOWN = ("recompute", "communication", "waiting", "constant")
_TOLERANCE = 0.15

_OTHER_MODELS = {
    "LLaMA 3.1 8B": (LLAMA_8B, 5.22, 3.73),
    "Qwen2.5 32B": (QWEN_32B, 21.3, 16.0),
    "LLaMA 3.1 70B": (LLAMA_70B, 44.4, 31.1),
}
_TABLE_18 = {2: (3.01, 28), 4: (2.95, 23), 8: (2.82, 8), 16: (3.60, 0)}
"""SP degree to seconds of an iteration of 32K rows, and checkpointed layers."""
_TABLE_19_16K = 2.65
"""Seconds of an iteration of 16K rows on one GPU each, 28 layers checkpointed."""


def model_of(shape: ModelShape, assumptions: Assumptions | None = None) -> GpuModel:
    """The analytic model of a shape on the paper's GPUs."""
    return analytic_model(shape, parse_gpu("h100"), NUM_GPUS, assumptions or Assumptions())


def with_layers(plan: Plan, layers: int) -> Plan:
    """The plan with this many checkpointed layers in all groups."""
    return replace(plan, groups=tuple(replace(group, checkpoint_layers=layers) for group in plan.groups))


def make_plans(lengths: Int32Array, model: GpuModel) -> dict[str, Plan]:
    """The plan of every row."""
    plans = {}
    for title, (options, _) in ROWS.items():
        print(f"paper-times: {title}", file=sys.stderr)
        if options is None:
            plans[title] = plan_flexsp(lengths, model)
        else:
            plans[title] = with_layers(make_plan(lengths, options), LAYERS)
    return plans


def plan_flexsp(lengths: Int32Array, model: GpuModel) -> Plan:
    """FlexSP as published: consecutive batches of the samples in the order given, each planned for itself."""
    costs = degree_costs(model, NUM_GPUS, GPU_TOKENS, LAYERS)
    groups = tuple(
        Group(capacity=GPU_TOKENS * degree, sp_size=degree, checkpoint_layers=LAYERS) for degree in costs.gpus.tolist()
    )
    asked = request(groups, NUM_GPUS, strategy="flexsp:all")
    start = np.zeros(len(lengths), dtype=np.int64)
    pieces = Pieces(samples=None, start=start, length=lengths)
    iterations, _ = plan_batches(lengths, costs, NUM_GPUS, BATCH_TOKENS)
    plan = plan_of(iterations, pieces, asked)
    check_plan(plan)
    return plan


def degree_costs(model: GpuModel, num_gpus: int, gpu_tokens: int, layers: int) -> GroupCosts:
    """The record that FlexSP plans by, of the powers of two among the model's degrees."""
    cost = model.cost
    degrees = np.array([degree for degree in model.sp_sizes if degree <= num_gpus and degree & (degree - 1) == 0])
    again = 1 + cost.recompute * layers / cost.num_layers
    resend = 1 + cost.resend * layers / cost.num_layers
    is_sent = degrees > 1
    return GroupCosts(
        gpus=degrees,
        quadratic=cost.quadratic * again / degrees,
        linear=cost.linear * again / degrees + [cost.send.get(degree, 0.0) * resend for degree in degrees.tolist()],
        constant=cost.constant + is_sent * cost.send_constant,
        capacity=degrees * gpu_tokens,
    )


def run(work: Path, runs: int) -> str:
    """Predict, and return the text of the section. Nothing is timed, so one run is enough."""
    mix = Mix()
    lengths = mix.lengths()
    model = model_of(LLAMA_8B)
    plans = make_plans(lengths, model)
    simulations = {title: simulate(plan, model) for title, plan in plans.items()}
    assumed = Assumptions()
    tables = {
        "Tables 5, 6, 11 and 12: the 8B model": _speedups(simulations),
        "Seconds of an iteration, for 524,288 tokens on 32 GPUs": _iterations(simulations),
        "Table 5: other dense models, all layers checkpointed": _models(plans),
        "What the assumptions are worth: seconds of the row / seconds of HBP": _assumptions(plans),
    }
    text = (
        f"LLaMA 3.1 8B on {NUM_GPUS} H100 (eight per node), one epoch of {len(lengths):,} samples, "
        f"{lengths.sum() / 1e6:,.0f} million tokens, as in the previous section. All rows use the same constants: "
        f"{assumed.gemm_efficiency:.0%} of the peak FLOP/s, in attention {assumed.attention_efficiency:.0%}, "
        f"{assumed.bandwidth_efficiency:.0%} of the links, {assumed.exposed_gather:.0%} of FSDP's gathers not hidden; "
        f"{LAYERS} layers checkpointed, as in tables 18 and 19. Each column *paper* has HBP's figures for the column "
        "before it; *off* is how far ours are from them."
    )
    return "\n\n".join([text, *(f"**{title}**\n\n{body}" for title, body in tables.items())])


@dataclass(frozen=True)
class Ratio:
    """The time of one row relative to another."""

    ours: float
    paper: float

    @property
    def error(self) -> float:
        """Our value over the paper's, minus 1."""
        return self.ours / self.paper - 1


def ratios(simulations: Mapping[str, Simulation], to: str) -> dict[str, Ratio]:
    """Of each other row of the paper to the row `to`."""
    printed = {title: days for title, (_, days) in ROWS.items() if days is not None}
    return {
        title: Ratio(simulations[title].seconds / simulations[to].seconds, days / printed[to])
        for title, days in printed.items()
        if title != to
    }


def _speedups(simulations: Mapping[str, Simulation]) -> str:
    of_hbp = ratios(simulations, FULL)
    over_naive = {title: Ratio(1 / r.ours, 1 / r.paper) for title, r in ratios(simulations, "ISF").items()}
    rows = []
    for title, simulation in simulations.items():
        split = dict(zip(PARTS, simulation.gpu_seconds.sum(axis=0) / simulation.gpu_seconds.sum(), strict=True))
        rows.append(
            [
                title,
                f"{simulation.gpu_seconds.sum() / 86_400:.2f}",
                "-" if ROWS[title][1] is None else f"{ROWS[title][1]:.2f}",
                *_cells(of_hbp.get(title)),
                *_cells(over_naive.get(title)),
                *(f"{split[name]:.1%}" for name in _SHOWN),
            ]
        )
    header = ["", "GPU-days", "paper", "time / HBP's", "paper", "off", "ISF's / time", "paper", "off", *_SHOWN]
    return f"{table(header, rows)}\n\n{_verdict(of_hbp, over_naive)}"


def _cells(ratio: Ratio | None) -> list[str]:
    return [f"{ratio.ours:.3f}", f"{ratio.paper:.3f}", f"{ratio.error:+.0%}"] if ratio else ["-", "-", "-"]


def _verdict(of_hbp: Mapping[str, Ratio], over_naive: Mapping[str, Ratio]) -> str:
    same_order = sorted(of_hbp, key=lambda title: -of_hbp[title].ours) == list(of_hbp)
    lines = [f"- The order of the rows is {'' if same_order else 'not '}the paper's."]
    for what, found in (("HBP's speed-up over each row", of_hbp), ("Each row's speed-up over ISF", over_naive)):
        missed = [title for title, ratio in found.items() if abs(ratio.error) > _TOLERANCE]
        outcome = f"missed by {' and '.join(missed)}" if missed else "met by all"
        lines.append(f"- {what}, within {_TOLERANCE:.0%} of the paper's: {outcome}.")
    return "\n".join(lines)


def _iterations(simulations: Mapping[str, Simulation]) -> str:
    printed = {FULL: "2.75 (table 14)", "FlexSP, batch by batch": "3.02 (table 14)"}
    rows = []
    for title, simulation in simulations.items():
        seconds = simulation.seconds * _ITERATION / int(simulation.group_tokens.sum())
        rows.append([title, f"{seconds:.2f}", printed.get(title, "-")])
    return table(["", "seconds", "paper"], rows)


def _models(plans: Mapping[str, Plan]) -> str:
    rows = []
    for name, (shape, isf, hbp) in _OTHER_MODELS.items():
        seconds = {
            title: simulate(with_layers(plans[title], shape.num_layers), model_of(shape)).seconds
            for title in ("ISF", FULL)
        }
        ours, paper = seconds["ISF"] / seconds[FULL], isf / hbp
        rows.append([name, f"{ours:.3f}", f"{paper:.3f}", f"{ours / paper - 1:+.0%}"])
    return table(["model", "ISF / HBP", "paper", "off"], rows)


def from_the_papers_profile() -> GpuModel:
    """The analytic model with computing and communication from HBP's tables 18 and 19 instead of the data sheet.

    Each GPU has 16K tokens in every setting, so seconds are `computing * (1 + layers / 32 / 3) + communication`: 16K
    on one GPU gives the first, and then table 18 the second for each degree.
    """
    model = model_of(LLAMA_8B)
    cost = model.cost
    again = {layers: 1 + cost.recompute * layers / cost.num_layers for layers in (0, 8, 23, 28)}
    computing = (_TABLE_19_16K - cost.constant) / again[28]
    send = {
        degree: (seconds - cost.constant - computing * again[layers])
        / (1 + cost.resend * layers / cost.num_layers)
        / (GPU_TOKENS * degree)
        for degree, (seconds, layers) in _TABLE_18.items()
    }
    linear = computing / GPU_TOKENS
    return replace(model, cost=replace(cost, linear=linear, send={**cost.send, **send}, send_constant=0.0))


def _assumptions(plans: Mapping[str, Plan]) -> str:
    models = {
        "as above": model_of(LLAMA_8B),
        "attention at 30 %": model_of(LLAMA_8B, Assumptions(attention_efficiency=0.3)),
        "attention at 60 %": model_of(LLAMA_8B, Assumptions(attention_efficiency=0.6)),
        "all else at 40 %": model_of(LLAMA_8B, Assumptions(gemm_efficiency=0.4)),
        "links at 20 %": model_of(LLAMA_8B, Assumptions(bandwidth_efficiency=0.2)),
        "computing and links as in tables 18 and 19": from_the_papers_profile(),
    }
    rows = []
    for name, model in models.items():
        of_hbp = ratios({title: simulate(plan, model) for title, plan in plans.items()}, FULL)
        rows.append([name, *(f"{ratio.ours:.3f}" for ratio in of_hbp.values())])
    paper = [f"{ratio.paper:.3f}" for ratio in of_hbp.values()]
    return table(["", *of_hbp], [*rows, ["the paper", *paper]])
