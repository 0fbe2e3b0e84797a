"""`simulate`: the predicted epoch of a packed set or of a plan, and its trace; or that of many plans of lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import orjson

from packer_cli.commands.arguments import Inputs, StrPath, is_paths, path_names, refuse_given, takes
from packer_cli.commands.compare import Comparison, run_compare
from packer_cli.commands.pack import PackedSet
from packer_cli.commands.planned import Plan, read_planned
from packer_cli.commands.samples import look_at
from packer_cli.compare.outcome import PlanSimulation, plan_simulation
from packer_cli.config import GpuConfig, PlanConfig, TokenizeConfig, TrainConfig, WorkersConfig, validate
from packer_cli.config.fields import asked_of_trainer
from packer_cli.config.gpu_model import PREDICTION, load_gpu_model
from packer_cli.engine.progress import say
from packer_cli.errors import ConfigError, InputError
from packer_cli.files import atomic_file
from packer_cli.plan.core import types
from packer_cli.remote.path import as_path
from packer_cli.simulate.figures import Simulator
from packer_cli.simulate.timeline import iterations_of_steps, timeline, trace_events
from packer_cli.sizes import counted
from packer_cli.tables.compare import simulation_table
from packer_cli.tables.table import Result, Table
from packer_cli.version import __version__

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfSimulate, CallOfSimulateOfPlan


TRACE_MARK = b'{"otherData": {"made_by": "hbpack simulate'
"""The first bytes of a trace."""
_TRACE_STEPS = 10
_NEEDS = "--groups and --gpus"


class Simulation(Result, PlanSimulation):
    """A predicted epoch beside the baseline's, and what it saves."""

    def _tables(self) -> Iterable[Table]:
        return [simulation_table(self)]


@overload
def simulate(  # type: ignore[overload-overlap]  # Lengths come with `groups`, which the first form does not take.
    plan: Plan | PackedSet | StrPath,
    *,
    trace: StrPath | None = None,
    trace_steps: int = _TRACE_STEPS,
    **options: Unpack[CallOfSimulateOfPlan],
) -> Simulation: ...


@overload
def simulate(
    plan: Inputs, *, algorithms: str | None = None, sort: str | None = None, **options: Unpack[CallOfSimulate]
) -> Comparison: ...


@takes(PlanConfig, TrainConfig, TokenizeConfig, WorkersConfig)
def simulate(
    plan: Plan | PackedSet | Inputs,
    *,
    algorithms: str | None = None,
    sort: str | None = None,
    trace: StrPath | None = None,
    trace_steps: int = _TRACE_STEPS,
    **options: Any,
) -> Simulation | Comparison:
    """Predict an epoch's time, where the GPUs' time goes, and the savings over naive packing.

    Times are predicted from the model's shape and the GPU's data sheet (`model`, `gpu`), or from what `hbpack profile`
    measured (`profile`).

    Args:
        plan: a plan, a packed set, or the path of either, which is predicted as it is. With `groups` and `gpus`,
        anything that `compare` takes: every strategy is planned and predicted.
        algorithms: with `groups`, only these rows, as of `compare`, and the baseline.
        sort: with `groups`, a column of `compare`; by default `"epoch"`, the fastest first.
        trace: a file to write, replaced if it exists: the plan's first steps as trace events, GPU by GPU, for Perfetto
            or Chrome.
        trace_steps: steps of the trace, from the start of the first epoch.
        options: `model` and `gpu`, or `profile`; `pad_to` and `step_seconds`; with `groups`, those of `compare`.

    Returns:
        The predicted epoch beside the baseline's; with `groups`, a row for each strategy.

    Raises:
        HbpackError: an option is wrong, or there is no plan.
    """
    config, rules = validate(GpuConfig, options), validate(TrainConfig, options)
    config.require_gpu_model("hbpack simulate")
    if trace is None and trace_steps != _TRACE_STEPS:
        raise ConfigError("--trace-steps has no effect without --trace; give that, or leave it out")
    if options.get("groups") is None:
        found = _planned(plan, {**options, "algorithms": algorithms, "sort": sort})
        simulator, simulation = simulate_plan(found, config, rules)
        if trace is not None:
            _write_trace(Path(trace), trace_steps, found.arrays, simulator)
        return Simulation(**vars(simulation))
    if trace is not None:
        raise ConfigError("--trace takes one plan; name a packed data set or a plan, and leave out --groups")
    if isinstance(plan, (Plan, PackedSet)):
        raise ConfigError("--groups is for making plans, and this is already planned; leave it out")
    return run_compare(plan, {**options, "algorithms": algorithms, "sort": sort or "epoch"}, rules)


def simulate_plan(plan: Plan, config: GpuConfig, rules: TrainConfig) -> tuple[Simulator, PlanSimulation]:
    """Predict a plan with the model that the options name; the errors are those of `load_gpu_model`."""
    arrays, of_plan = plan.arrays, plan.config
    model = load_gpu_model(config, arrays.num_gpus, PREDICTION, of_plan.lockstep)
    simulator = Simulator(model=model, rules=rules)
    able = config.abilities | asked_of_trainer(plan.request)
    return simulator, plan_simulation(arrays, simulator, plan.baseline, plan.padded, of_plan, able)


def _planned(plan: Plan | PackedSet | Inputs, options: Mapping[str, Any]) -> Plan:
    """Return the plan to predict; raise ConfigError for other inputs, and for options without effect."""
    if isinstance(plan, PackedSet):
        plan = plan.plan()
    if isinstance(plan, Plan):
        _refuse_plan_options(options, "this")
        return plan
    if not is_paths(plan):
        raise ConfigError(f"lengths are not a plan; give {_NEEDS} to plan them in every way, or plan() them first")
    names = path_names(plan)
    if len(names) != 1:
        raise ConfigError(
            f"several inputs are a corpus, which needs --tokenizer, {_NEEDS}" if names else "INPUT is required"
        )
    path = as_path(names[0])
    found = look_at(path)
    if found.kind == "nothing":
        raise InputError(
            f"{str(path)!r} does not exist; name a packed data set or a plan, or what to plan with {_NEEDS}"
        )
    if not (found.has_plan or path.suffix == ".arrow"):
        raise ConfigError(f"{str(path)!r} is not a packed data set or plan; give {_NEEDS} to plan it in every way")
    _refuse_plan_options(options, repr(str(path)))
    return read_planned(found.path, check=True)


def _refuse_plan_options(options: Mapping[str, Any], what: str) -> None:
    of_plans = [*PlanConfig.model_fields, *TokenizeConfig.model_fields, "algorithms", "sort", "workers"]
    others = [each for each in of_plans if each not in {*GpuConfig.model_fields, "inputs"}]
    why = f"is for making plans, and {what} is already planned; give {_NEEDS}"
    refuse_given(options, others, lambda name: f"{name} {why}, or leave {name} out")


def _write_trace(path: Path, most_steps: int, plan: types.Plan, simulator: Simulator) -> None:
    line = timeline(simulator.simulate(plan), iterations_of_steps(plan, most_steps))
    parallel = simulator.model.cost.model_parallel
    gpus_per_node = parallel.gpus_per_node if parallel else plan.num_gpus
    facts = orjson.dumps({"version": __version__, "predicted_with": dict(simulator.model.origin)})
    with atomic_file(path) as file:
        file.write(TRACE_MARK + b'", ' + facts[1:] + b',\n"displayTimeUnit": "ms",\n"traceEvents": [')
        for number, event in enumerate(trace_events(plan, line, gpus_per_node)):
            file.write((b",\n" if number else b"\n") + orjson.dumps(event))
        file.write(b"\n]}\n")
    num_steps = plan.epochs[0].num_steps
    say(
        f"wrote {str(path)!r}: the first {min(most_steps, num_steps):,} of {counted(num_steps, 'step')}; "
        "open it in Perfetto (ui.perfetto.dev) or in chrome://tracing"
    )
