"""The simulate stage: the predicted epoch of a packed set or of a plan, and its trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from packer_cli.commands.planned import Planned
from packer_cli.compare.savings import PlanSimulation, plan_simulation
from packer_cli.config import GpuConfig
from packer_cli.config.gpu_model import load_gpu_model
from packer_cli.engine.progress import say
from packer_cli.errors import UsageError
from packer_cli.files import atomic_file
from packer_cli.plan.core.types import Plan
from packer_cli.simulate.figures import SimulateRules, Simulator
from packer_cli.simulate.slots import epoch_times
from packer_cli.simulate.timeline import iterations_of_steps, timeline, trace_events
from packer_cli.sizes import counted
from packer_cli.version import __version__

TRACE_MARK = b'{"otherData": {"made_by": "hbpack simulate'
"""The first bytes of a trace."""


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """A trace to write."""

    path: Path
    num_steps: int
    """Steps from the start of the first epoch."""


def run_simulate(
    planned: Planned, config: GpuConfig, rules: SimulateRules, trace: TraceFile | None = None
) -> PlanSimulation:
    """Predict an epoch of a plan, and write its trace if one is asked for."""
    plan = planned.arrays
    simulator = load_simulator(config, plan.num_gpus, rules)
    simulation = plan_simulation(plan, simulator, planned.baseline, planned.padded)
    if trace is not None:
        _write_trace(trace, plan, simulator)
    return simulation


def predict_plan(planned: Planned, config: GpuConfig) -> PlanSimulation | None:
    """The prediction for a plan; None if the options name no model that can predict it."""
    if not config.has_gpu_model:
        return None
    try:
        return run_simulate(planned, config, SimulateRules())
    except UsageError:  # Too few rows of a profile, a degree that it lacks, or a file that is gone.
        return None


def load_simulator(config: GpuConfig, num_gpus: int, rules: SimulateRules) -> Simulator:
    """The simulator with the model that the options name; all pipeline stages share its weights."""
    model = load_gpu_model(config, num_gpus, "a prediction of time")
    return Simulator(model=model, rules=rules)


def _write_trace(trace: TraceFile, plan: Plan, simulator: Simulator) -> None:
    times = epoch_times(plan, simulator.model, **vars(simulator.rules))
    line = timeline(plan, times, iterations_of_steps(plan, trace.num_steps))
    parallel = simulator.model.cost.model_parallel
    gpus_per_node = parallel.gpus_per_node if parallel else plan.num_gpus
    facts: dict[str, Any] = {"version": __version__, "predicted_with": dict(simulator.model.origin)}
    with atomic_file(trace.path) as file:
        file.write(TRACE_MARK + b'", ' + orjson.dumps(facts)[1:] + b',\n"displayTimeUnit": "ms",\n"traceEvents": [')
        for number, event in enumerate(trace_events(plan, line, gpus_per_node)):
            file.write((b",\n" if number else b"\n") + orjson.dumps(event))
        file.write(b"\n]}\n")
    num_steps = plan.epochs[0].num_steps
    say(
        f"wrote {str(trace.path)!r}: the first {min(trace.num_steps, num_steps):,} of {counted(num_steps, 'step')}; "
        "open it in Perfetto (ui.perfetto.dev) or in chrome://tracing"
    )
