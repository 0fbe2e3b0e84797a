"""`simulate`: an epoch in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from packer_cli.api.pack import PackedSet
from packer_cli.api.plan import Plan
from packer_cli.commands.arguments import (
    Inputs,
    StrPath,
    corpus_of,
    first_given,
    is_paths,
    path_names,
    samples_of,
    takes,
)
from packer_cli.config import GpuConfig, PlanConfig, TokenizeConfig, validate
from packer_cli.config.models import TrainConfig, WorkersConfig
from packer_cli.errors import ConfigError, InputError
from packer_cli.remote.names import as_path

if TYPE_CHECKING:
    from packer_cli.commands.options import GpuOptions, PlanOptions, TokenizeOptions, TrainOptions, WorkersOptions
    from packer_cli.commands.planned import Planned
    from packer_cli.commands.results import Comparison, Simulation

    class _OfPlan(GpuOptions, TrainOptions, total=False): ...

    class _Options(PlanOptions, TrainOptions, TokenizeOptions, WorkersOptions, total=False): ...


_TRACE_STEPS = 10
_NEEDS = "--groups and --gpus"


@overload
def simulate(  # type: ignore[overload-overlap]  # Lengths come with `groups`, which the first form does not take.
    plan: Plan | PackedSet | StrPath,
    *,
    trace: StrPath | None = None,
    trace_steps: int = _TRACE_STEPS,
    **options: Unpack[_OfPlan],
) -> Simulation: ...


@overload
def simulate(
    plan: Inputs, *, algorithms: str | None = None, sort: str | None = None, **options: Unpack[_Options]
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
            whatever `compare` takes: every strategy is planned and predicted.
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
    config = validate(GpuConfig, options)
    config.require_gpu_model("hbpack simulate")
    if trace is None and trace_steps != _TRACE_STEPS:
        raise ConfigError("--trace-steps has no effect without --trace; give that, or leave it out")
    train = validate(TrainConfig, options)
    workers = validate(WorkersConfig, options).workers
    from packer_cli.commands.results import Comparison, Simulation
    from packer_cli.simulate.figures import SimulateRules

    rules = SimulateRules(pad_to=train.pad_to, step_seconds=train.step_seconds)
    if options.get("groups") is None:
        from packer_cli.commands.simulate import TraceFile, run_simulate

        planned = _planned(plan, {**options, "algorithms": algorithms, "sort": sort})
        file = None if trace is None else TraceFile(path=Path(trace), num_steps=trace_steps)
        return Simulation(**vars(run_simulate(planned, config, rules, file)))
    if trace is not None:
        raise ConfigError("--trace takes one plan; name a packed data set or a plan, and leave out --groups")
    if isinstance(plan, (Plan, PackedSet)):
        raise ConfigError("--groups is for making plans, and this is already planned; leave it out")
    plan_config = validate(PlanConfig, options)
    corpus = corpus_of(plan, options)
    from packer_cli.commands.compare import run_compare

    source = path_names(plan) if is_paths(plan) else samples_of(plan)
    found = run_compare(source, corpus, plan_config, algorithms, workers, rules, sort=sort or "epoch")
    return Comparison(**vars(found))


def _planned(plan: Plan | PackedSet | Inputs, options: Mapping[str, Any]) -> Planned:
    """The plan to predict. Raises ConfigError for other inputs, and for options without effect."""
    if isinstance(plan, PackedSet):
        plan = plan.plan()
    if isinstance(plan, Plan):
        _refuse_plan_options(options, "this")
        return plan._planned
    if not is_paths(plan):
        raise ConfigError(f"lengths are not a plan; give {_NEEDS} to plan them in every way, or plan() them first")
    names = path_names(plan)
    if len(names) != 1:
        raise ConfigError(
            f"several inputs are a corpus, which needs --tokenizer, {_NEEDS}" if names else "INPUT is required"
        )
    path = as_path(names[0])
    if not path.exists():
        raise InputError(
            f"{str(path)!r} does not exist; name a packed data set or a plan, or what to plan with {_NEEDS}"
        )
    file = path / "plan.arrow" if path.is_dir() else path
    if file.suffix != ".arrow" or not file.exists():
        raise ConfigError(f"{str(path)!r} is not a packed data set or plan; give {_NEEDS} to plan it in every way")
    _refuse_plan_options(options, repr(str(path)))
    from packer_cli.commands.planned import read_planned

    return read_planned(file, check=True)


def _refuse_plan_options(options: Mapping[str, Any], what: str) -> None:
    of_plans = [*PlanConfig.model_fields, *TokenizeConfig.model_fields, "algorithms", "sort", "workers"]
    name = first_given(options, [each for each in of_plans if each not in {*GpuConfig.model_fields, "inputs"}])
    if name is not None:
        raise ConfigError(
            f"{name} is for making plans, and {what} is already planned; give {_NEEDS}, or leave {name} out"
        )
