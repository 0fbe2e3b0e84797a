"""`report`: the charts of a packed set, a plan or lengths, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.api.pack import PackedSet
from packer_cli.api.plan import Plan
from packer_cli.commands.arguments import (
    Lengths,
    StrPath,
    first_given,
    is_paths,
    one_path,
    plan_config_of,
    samples_of,
    takes,
)
from packer_cli.config import GpuConfig, PlanConfig, validate
from packer_cli.config.fields import GIVE
from packer_cli.config.models import TrainConfig, WorkersConfig
from packer_cli.errors import ConfigError

if TYPE_CHECKING:
    from packer_cli.commands.options import PlanOptions, TrainOptions, WorkersOptions
    from packer_cli.commands.report import Report, Subject

    class _Options(PlanOptions, TrainOptions, WorkersOptions, total=False): ...


@takes(PlanConfig, TrainConfig, WorkersConfig)
def report(
    plan: Plan | PackedSet | Lengths,
    *,
    output: StrPath | None = None,
    strategies: str = "all",
    **options: Unpack[_Options],
) -> Report:
    """Draw charts of a packed set, a plan or lengths, and say what to try next, as `hbpack report` does.

    Args:
        plan: a plan, a packed set, or the path of either, shown as it is. Or lengths as the function `plan` takes
            them: with `groups` and `gpus` they are planned in memory; without, only the lengths are shown.
        output: page to write, replaced if it exists. By default, nothing is written.
        strategies: strategies to compare the plan with: `"all"`, `"none"`, or a list of names, such as
            `"balanced,hbp"`.
        options: `model` and `gpu`, or `profile`, for predicted times; `pad_to` and `step_seconds`; `workers`; for
            lengths, those of a plan.

    Raises:
        HbpackError: an option or a length is wrong, or the path holds no lengths.
    """
    gpu = validate(GpuConfig, options)
    if gpu.has_gpu_model:
        gpu.require_gpu_model("hbpack report")
    without_times = None if gpu.has_gpu_model else first_given(options, TrainConfig.model_fields)
    if without_times is not None:
        raise ConfigError(f"{without_times} has no effect without predicted times; give {GIVE}, or leave it out")
    train = validate(TrainConfig, options)
    workers = validate(WorkersConfig, options).workers
    config = plan_config_of(options)
    from packer_cli.commands.report import run_report
    from packer_cli.simulate.figures import SimulateRules

    rules = SimulateRules(pad_to=train.pad_to, step_seconds=train.step_seconds)
    page = None if output is None else Path(output)
    return run_report(_subject(plan, config), gpu, rules, strategies, workers, page)


def _subject(plan: Any, config: PlanConfig | None) -> Subject:
    from packer_cli.commands.report import subject_at, subject_of_plan, subject_of_samples

    if isinstance(plan, Plan):
        if config is not None:
            raise ConfigError("--groups is for making plans, and this is already planned; leave it out")
        return subject_of_plan(plan._planned)
    if isinstance(plan, PackedSet):
        return subject_at(plan.path, config)
    if is_paths(plan):
        return subject_at(one_path(plan, "report"), config)
    return subject_of_samples(samples_of(plan), config)
