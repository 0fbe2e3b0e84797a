"""The tables of `hbpack stats`, `plan` and `pack`, and the end of the commands that plan: what to do next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from packer_cli.cli.console import print_note, print_table, say_next, shown_command
from packer_cli.cli.tables.written import say_set, set_of_plan
from packer_cli.commands.planned import Planned, read_planned
from packer_cli.config import GpuConfig
from packer_cli.format.constants import REJECTED_NAME, VALIDATION, Mask
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import Counts, Metrics, OverallMetrics, PipelineImbalances, PlanMetrics, SampleCounts
from packer_cli.plan.core.segments import BLOCK, Sparsity
from packer_cli.plan.figures import LengthStats
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.remote.names import as_path
from packer_cli.sizes import counted, ratio

if TYPE_CHECKING:
    from packer_cli.compare.savings import PlanSimulation


def print_set(output: str, config: GpuConfig, *, as_json: bool) -> None:
    """Print what came of `pack`, `plan` or `append`: the figures of the plan, its predicted epoch, and its set.

    Args:
        config: with what an epoch is predicted, if it names a model.
    """
    folder = as_path(output)
    planned = read_planned(folder)
    prediction = None
    if config.has_gpu_model:  # Importing the simulator takes 0.05 s.
        from packer_cli.commands.simulate import predict_plan

        prediction = predict_plan(planned, config)
    if as_json:
        _print_record(output, planned, prediction)
        return
    counts = planned.counts
    print_counts(counts)
    if isinstance(counts, Counts) and counts.validation_samples is not None:
        number = counts.samples + counts.validation_samples
        print_note(
            f"validation: {counts.validation_samples / number:.2%} of {counted(number, 'sample')}, in "
            f"{folder / VALIDATION}"
        )
        click.echo()
    print_stats(planned.metrics)
    reasons = (
        [folder] if counts.dropped or counts.truncated or (isinstance(counts, Counts) and counts.rejected) else []
    )
    if isinstance(counts, Counts) and (counts.validation_dropped or counts.validation_truncated):
        reasons.append(folder / VALIDATION)
    if reasons:
        names = " and ".join(str(each / REJECTED_NAME) for each in reasons)
        click.echo(f"  records left out or cut, with reasons: {names}")
    if prediction is not None:
        from packer_cli.cli.tables.compare import print_prediction

        print_prediction(prediction)
    manifest = _manifest(planned)
    if manifest is not None:
        say_set(output, manifest, config)
        return
    packs = counted(planned.metrics.overall.num_packs, "pack")
    what = f"{output} has a plan of {packs} for {counted(planned.config.gpus, 'GPU')}, no shards"
    say_next(what, shown_command("hbpack", "write", output))


def print_record(output: str) -> None:
    """Print what came of `write`, as JSON."""
    _print_record(output, read_planned(as_path(output)), None)


def _print_record(output: str, planned: Planned, prediction: PlanSimulation | None) -> None:
    from packer_cli.cli.outputs.base import print_json
    from packer_cli.cli.outputs.figures import SetOutput, WrittenShards

    manifest, metrics = _manifest(planned), planned.metrics
    print_json(
        SetOutput(
            output=output,
            counts=planned.counts,
            overall=metrics.overall,
            groups=metrics.groups,
            baseline=metrics.baseline,
            group_choice=planned.group_choice,
            prediction=prediction and prediction.values(),  # type: ignore[arg-type]  # JSON values of that record.
            shards=None
            if manifest is None
            else WrittenShards(
                num_shards=len(list(manifest.shards)),
                num_bytes=sum(shard.num_bytes for shard in manifest.shards),
                num_gpus=manifest.num_gpus,
                num_epochs=len(manifest.epochs),
            ),
        )
    )


def _manifest(planned: Planned) -> Manifest | None:
    assert planned.header is not None
    return set_of_plan(planned.manifest, planned.header)


_LEAST = "  least possible"
_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("ABR: waiting for the slowest rank", "abr", ratio),
    (_LEAST, "abr_bound", ratio),
    ("CBR: the same by --cost", "cbr", ratio),
    (_LEAST, "cbr_bound", ratio),
    ("DBR: uneven tokens", "dbr", ratio),
    ("PR: padding", "pr", ratio),
    ("  of it to align samples", "alignment_pr", ratio),
    ("CR: tokens in SP communication", "cr", ratio),
    ("Ave-T: mean tokens of a rank", "ave_t", "{:,.0f}".format),
    ("imbalance: slowest over mean", "imbalance", "{:.3f}".format),
    ("packs", "num_packs", "{:,}".format),
    (_LEAST, "packs_lower_bound", "{:,}".format),
    ("iterations", "num_iterations", "{:,}".format),
    ("samples", "num_samples", "{:,}".format),
    ("tokens", "num_tokens", "{:,}".format),
)
"""Label, field of `Metrics`, and how a value is written."""
_KNOWN_WITHOUT_PACKS = ("num_packs", "packs_lower_bound", "num_iterations", "num_samples", "num_tokens")
"""Fields that mean something for a group without packs, too."""


def print_stats(metrics: PlanMetrics) -> None:
    """Print a column for all packs, the baseline and each group; then the figures on randomness."""
    overall, baseline = metrics.overall, metrics.baseline
    # What is compared stands together, also where a narrow terminal breaks the table.
    columns: list[tuple[str, Metrics]] = [("all", overall), ("baseline", baseline)]
    columns += [(group.name, group) for group in metrics.groups]
    rows = []
    for label, field, show in _FIGURES:
        is_known = field in _KNOWN_WITHOUT_PACKS
        values = [getattr(column, field) if column.num_packs or is_known else None for _, column in columns]
        if any(value is not None for value in values):
            rows.append([label, *("" if value is None else show(value) for value in values)])
    title = "Balance and padding (lower is better, except Ave-T)"
    print_table(title, ["", *(name for name, _ in columns)], rows, is_dense=True)
    print_note(
        f"{counted(overall.num_steps, 'step')}; displacement from a uniform order {overall.mean_displacement:,.1f} "
        f"steps on average (uniform: {overall.num_steps / 3:,.1f}), {overall.max_displacement:,} at most; "
        f"length-step correlation {overall.length_step_correlation:.3f}; "
        f"length mix spread {overall.length_mix_spread:.3f}, source mix spread {overall.source_mix_spread:.3f}"
    )
    if overall.mean_delay is not None:
        _print_delays(overall)
    if overall.cp_imbalance is not None:
        beside = "" if baseline.cp_imbalance is None else f"; baseline {baseline.cp_imbalance:.3f}"
        print_note(
            f"CP ranks of a pack: the busiest has {overall.cp_imbalance:.3f} times the mean attention work "
            f"({overall.cp_imbalance_max:.3f} at most{beside}); "
            f"{overall.cp_document_share:.0%} of the packs are sharded per document"
        )
    notes = {strategy.baseline_name: strategy.baseline_note for strategy in STRATEGIES.values()}
    print_note(": ".join(filter(None, ("baseline", baseline.name, notes.get(baseline.name)))))
    if overall.num_fillers:
        print_note(f"{counted(overall.num_fillers, 'filler')} (without loss, so that every rank is busy)")
    if overall.packing_between is not None:
        click.echo()
        print_imbalances(overall)


def print_imbalances(pipelines: PipelineImbalances) -> None:
    """Print the four imbalances of Hydraulis, a row each."""
    rows = [
        [f"{name}: {meaning}", "-" if value is None else ratio(value) if is_share else f"{value:.3f}"]
        for name, value, is_share, meaning in (
            ("sampling, within iterations", pipelines.sampling_within, True, "tokens on larger pipelines than needed"),
            ("sampling, between iterations", pipelines.sampling_between, False, "time with one layout for all steps"),
            ("packing, within pipelines", pipelines.packing_within, False, "longest over mean micro-batch"),
            ("packing, between pipelines", pipelines.packing_between, False, "slowest over mean pipeline"),
        )
    ]
    print_table("Imbalances of pipelines (0 and 1 are best)", ["", "value"], rows)


def _print_delays(overall: OverallMetrics) -> None:
    """Print how far samples are from the step in which a stream would bring them."""
    carried = f"; {counted(overall.num_carried, 'piece')} found no room at first" if overall.num_carried else ""
    print_note(
        f"delay: a token runs {overall.mean_delay:,.2f} steps from its arrival on average, {overall.max_delay:,} at "
        f"most{carried}"
    )
    for queue in overall.queues or ():
        click.echo(
            f"    samples of {queue.threshold:,} tokens or more wait: {queue.num_samples:,}, {queue.mean_delay:,.2f} "
            f"steps on average, {queue.max_delay:,} at most"
        )


def print_masks(metrics: PlanMetrics, masks: Sequence[Sparsity], mask: Mask) -> None:
    """Print what the masks leave out of attention, a row for each group with packs, and one for all."""
    header = ["", "scores left out", f"blocks of {BLOCK} left out", "packs for FlexAttention", "dense work"]
    named = [*((group.name, group.num_packs) for group in metrics.groups), ("all", metrics.overall.num_packs)]
    rows = [
        [
            name,
            ratio(figures.token_sparsity),
            ratio(figures.block_sparsity),
            ratio(figures.flex_share),
            f"{figures.dense_work:,.1f}",
        ]
        for (name, num_packs), figures in zip(named, masks, strict=True)
        if num_packs
    ]
    click.echo()
    print_table(
        "Document masks" if mask == "document" else "Causal masks over whole rows", header, rows, is_dense=True
    )
    print_note(
        "packs for FlexAttention: the longest sample is at most half the pack; dense work: scores that SDPA with a "
        "dense mask computes for each one that counts"
    )


def print_lengths(stats: LengthStats) -> None:
    """Print the distribution of lengths."""
    rows = [
        [_length_label(name), f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"]
        for name, value in stats.values().items()
    ]
    print_table("Lengths, in tokens", ["", "value"], rows)


def _length_label(name: str) -> str:
    return name.removeprefix("num_").replace("tokens_over_", "tokens of samples over ")


def print_counts(counts: SampleCounts) -> None:
    """Print what happened to the records, or to the samples if only lengths are known."""
    values = vars(counts)
    rows = [
        [name.replace("_", " "), f"{values[name]:,.10g}" if isinstance(values[name], float) else f"{values[name]:,}"]
        for name, is_always in _COUNTS.items()
        if values.get(name) or (is_always and name in values)
    ]
    print_table("Records" if isinstance(counts, Counts) else "Samples", ["", "count"], rows)


_COUNTS = {
    "records": True,
    "rejected": True,
    "records_without_loss": False,
    "validation_samples": False,
    "validation_split": False,
    "validation_truncated": False,
    "validation_dropped": False,
    "validation_tokens": False,
    "samples": True,
    "left_out_by_weight": False,
    "repeated_by_weight": False,
    "split": False,
    "truncated": False,
    "dropped": False,
    "pieces": True,
    "pieces_without_loss": False,
    "tokens": True,
    "loss_tokens": False,
    "loss_weight": False,
    "records_with_special_tokens": False,
}
"""In processing order; False: shown only if there are any."""
