"""The end of the commands that plan, such as `hbpack pack`: the figures of the plan, and the next steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from packer_cli.cli.console import print_json, print_line, print_note, print_tables, say_next, say_set, shown_command
from packer_cli.commands.inputs import parts_of_epoch
from packer_cli.commands.planned import Plan, read_planned
from packer_cli.compare.outcome import PlanSimulation, savings
from packer_cli.config import GpuConfig, TrainConfig
from packer_cli.config.fields import ABILITIES, asked_of_trainer
from packer_cli.config.gpu_model import most_positions
from packer_cli.engine.progress import warn
from packer_cli.errors import UsageError
from packer_cli.format.constants import PLAN_NAME, REJECTED_NAME, VALIDATION
from packer_cli.format.metrics import Counts, GroupChoice, NamedInput, PlanMetrics
from packer_cli.format.tokens import InputInfo
from packer_cli.plan.figures import as_in_text
from packer_cli.remote.path import as_path
from packer_cli.shards.plan_file import read_plan_header
from packer_cli.sizes import counted, duration
from packer_cli.tables.stats import counts_table, describe_plan, metrics_tables, sources_tables

_MUCH_PADDING = 0.2
_FEW_ITERATIONS = 10
"""Steps of an epoch: with more, padding does not come from too few tokens for the GPUs."""


@dataclass(frozen=True, kw_only=True)
class WrittenShards:
    """The files of a packed set."""

    num_shards: int
    num_bytes: int
    """Bytes of the shards."""
    num_gpus: int
    """Ranks with a manifest."""
    num_epochs: int
    """Epochs with manifests."""


@dataclass(frozen=True, kw_only=True)
class SetOutput(PlanMetrics):
    """Output of `hbpack pack`, `plan`, `append` and `write`."""

    output: str
    """The folder, as the user named it."""
    counts: Counts
    """Records by their outcome."""
    validation: Counts | None = None
    """Records of the validation set by their outcome; none for a plan that sets nothing aside."""
    inputs: tuple[NamedInput, ...] | None = None
    """Each input's part of an epoch."""
    group_choice: GroupChoice | None = None
    """The choice of automatic groups."""
    prediction: PlanSimulation | None = None
    """The predicted epoch, with `--model` and `--gpu`, or `--profile`."""
    sources: tuple[InputInfo, ...] | None = None
    """The inputs, each with its files that were not read, and what was read of the others."""
    shards: WrittenShards | None = None
    """Fields of a set that is complete."""


def print_set(output: str, config: GpuConfig) -> None:
    """Print the result of a command that plans or writes: the figures of the plan, its predicted epoch, and its set.

    Args:
        config: model and GPU with which an epoch is predicted, if they are named.
    """
    folder = as_path(output)
    planned = read_planned(folder)
    counts, manifest = planned.counts, planned.manifest
    assert isinstance(counts, Counts)  # Of the plan of a token store.
    assert planned.header is not None
    prediction = None
    if config.has_gpu_model:  # Importing the simulator takes 0.05 s.
        from packer_cli.commands.simulate import simulate_plan

        with suppress(UsageError):  # Too few rows of a profile, a degree that it lacks, or a file that is gone.
            _, prediction = simulate_plan(planned, config, TrainConfig())
    _warn_of_positions(planned, config)
    _warn_of_trainer(planned, config)
    sources = planned.sources
    inputs = parts_of_epoch(sources, counts)
    counts_of = {folder / name: read_plan_header(folder / name / PLAN_NAME).counts for name in planned.config.sets}
    aside = counts_of.get(folder / VALIDATION)
    shards = (
        None
        if manifest is None
        else WrittenShards(
            num_shards=len(list(manifest.shards)),
            num_bytes=sum(shard.num_bytes for shard in manifest.shards),
            num_gpus=manifest.num_gpus,
            num_epochs=len(manifest.epochs),
        )
    )
    result = SetOutput(
        output=output,
        counts=replace(counts, inputs=None),
        validation=aside,
        inputs=inputs,
        **vars(planned.metrics),
        group_choice=planned.group_choice,
        prediction=prediction,
        sources=sources,
        shards=shards,
    )
    if print_json(result):
        return
    of_records = [counts_table(counts)]
    if aside is not None:
        number = counts.samples + aside.samples
        share = f"{aside.samples / number:.2%} of {counted(number, counts.unit)}, in {folder / VALIDATION}"
        of_records.append(replace(counts_table(aside), title="Validation", notes=(share,)))
    how = describe_plan(planned.config.strategy, planned.config.used_packing)
    tables = sources_tables(sources or (), inputs or (), counts.reasons or (), counts.unit, most=6)
    print_tables(*of_records, *tables, *metrics_tables(planned.metrics, counts, how))
    lost = ("dropped", "truncated", "rejected", "duplicates_left_out")
    reasons = [own for own, each in counts_of.items() if any(getattr(each, name) for name in lost)]
    if reasons:
        names = " and ".join(str(own / REJECTED_NAME) for own in reasons)
        print_line(f"  records left out or cut, with reasons: {names}")
    overall = planned.metrics.overall
    if overall.pr > _MUCH_PADDING and overall.num_iterations < _FEW_ITERATIONS:
        print_note(
            f"warning: {overall.pr:.0%} of the rows is padding: {counted(overall.num_tokens, 'token')} make "
            f"{counted(overall.num_iterations, 'iteration')} on {counted(planned.config.gpus, 'GPU')}; give fewer "
            "--gpus, shorter --groups, or more data"
        )
    if prediction is not None:
        _print_prediction(prediction)
    if manifest is not None:
        say_set(output, manifest, config)
        return
    packs = counted(planned.metrics.overall.num_packs, "pack")
    what = f"{output} has a plan of {packs} for {counted(planned.config.gpus, 'GPU')}, no shards"
    say_next(what, shown_command("hbpack", "write", output))


def _print_prediction(result: PlanSimulation) -> None:
    """Print an epoch's predicted time and the speed-up, in a line."""
    padded = [("padded batches", result.padded)] if result.padded else []
    ratios = ", ".join(
        f"{savings(result.overall, other).speedup:.2f} times as fast as {name} ({duration(other.seconds)})"
        for name, other in [
            (result.naive_at_best.name, result.naive_at_best),
            (as_in_text(result.baseline.name), result.baseline),
            *padded,
        ]
    )
    gpus = counted(result.overall.num_gpus, "GPU")
    for warning in result.warnings:
        warn(warning)
    print_note(f"predicted epoch on {gpus}: {duration(result.overall.seconds)}; {ratios}")


def _warn_of_positions(planned: Plan, config: GpuConfig) -> None:
    """Warn of samples that are longer than the model's positions."""
    most = most_positions(config.model) if config.model else None
    longest = int(planned.arrays.pieces.length.max(initial=0))
    if most is not None and longest > most and planned.counts.items is None:
        warn(
            f"a sample has {longest:,} tokens, and {config.model} has positions for {most:,}; give shorter --groups, "
            "or a model whose RoPE is scaled"
        )


def _warn_of_trainer(planned: Plan, config: GpuConfig) -> None:
    """Warn of a plan that the named trainer cannot run."""
    lacks = asked_of_trainer(planned.request) - config.abilities if config.trainer else ()
    if lacks:
        warn(f"--trainer {config.trainer} cannot {', or '.join(ABILITIES[each] for each in sorted(lacks))}")
