"""The tables of `hbpack stats`, `plan` and `pack`."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.cli.console import print_table
from packer_cli.format.constants import Mask
from packer_cli.format.metrics import Counts, Metrics, OverallMetrics, PipelineImbalances, PlanMetrics, SampleCounts
from packer_cli.plan.figures import ORIGINAL_NAME, LengthStats
from packer_cli.plan.sparsity import BLOCK, Sparsity
from packer_cli.sizes import counted, ratio

_HEADER = [
    "",
    "ABR",
    "ABR bound",
    "CBR",
    "CBR bound",
    "DBR",
    "PR",
    "align PR",
    "CR",
    "Ave-T",
    "imbalance",
    "packs",
    "bound",
    "iterations",
    "samples",
    "tokens",
]


def print_stats(metrics: PlanMetrics) -> None:
    """Print one row each for the groups, all packs and the baseline; then the figures on randomness."""
    overall, baseline = metrics.overall, metrics.baseline
    rows = [_row(group.name, group) for group in metrics.groups]
    rows += [_row("all", overall), _row(f"baseline: {baseline.name}", baseline)]
    unknown = {
        *(("CBR", "CBR bound") if overall.cbr is None else ()),
        *(("align PR",) if overall.alignment_pr is None else ()),
    }
    shown = [i for i, name in enumerate(_HEADER) if name not in unknown]
    rows = [[row[i] for i in shown] for row in rows]
    print_table("Balance and padding (lower is better, except Ave-T)", [_HEADER[i] for i in shown], rows)
    print(
        f"  {counted(overall.num_steps, 'step')}; displacement from a uniform order {overall.mean_displacement:,.1f} "
        f"steps on average (uniform: {overall.num_steps / 3:,.1f}), {overall.max_displacement:,} at most; "
        f"length-step correlation {overall.length_step_correlation:.3f}; "
        f"length mix spread {overall.length_mix_spread:.3f}, source mix spread {overall.source_mix_spread:.3f}"
    )
    if overall.mean_delay is not None:
        _print_delays(overall)
    if overall.cp_imbalance is not None:
        beside = "" if baseline.cp_imbalance is None else f"; baseline {baseline.cp_imbalance:.3f}"
        print(
            f"  CP ranks of a pack: the busiest has {overall.cp_imbalance:.3f} times the mean attention work "
            f"({overall.cp_imbalance_max:.3f} at most{beside}); "
            f"{overall.cp_document_share:.0%} of the packs are sharded per document"
        )
    if overall.alignment_pr is not None:
        print("  align PR: the part of PR that comes from padding samples to a multiple of --align")
    if baseline.name == ORIGINAL_NAME:
        print("  baseline: the same stream of samples, cut into micro-batches of one context window as it comes")
    else:
        print(
            "  baseline: as in HBP, isf packs the same samples to the longest group's capacity; packs in random order"
        )
    if overall.num_fillers:
        print(f"  {counted(overall.num_fillers, 'filler')} (without loss, so that every rank is busy)")
    if overall.packing_between is not None:
        print()
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
    print(
        f"  delay: a token runs {overall.mean_delay:,.2f} steps from its arrival on average, {overall.max_delay:,} at "
        f"most{carried}"
    )
    for queue in overall.queues or ():
        print(
            f"    samples of {queue.threshold:,} tokens or more wait: {queue.num_samples:,}, {queue.mean_delay:,.2f} "
            f"steps on average, {queue.max_delay:,} at most"
        )


def print_masks(names: Sequence[str], masks: Sequence[Sparsity], mask: Mask) -> None:
    """Print what the masks leave out of attention, a row for each name."""
    header = ["", "scores left out", f"blocks of {BLOCK} left out", "packs for FlexAttention", "dense work"]
    rows = [
        [
            name,
            ratio(figures.token_sparsity),
            ratio(figures.block_sparsity),
            ratio(figures.flex_share),
            f"{figures.dense_work:,.1f}",
        ]
        for name, figures in zip(names, masks, strict=True)
    ]
    print()
    print_table("Document masks" if mask == "document" else "Causal masks over whole rows", header, rows)
    print(
        "  packs for FlexAttention: the longest sample is at most half the pack; dense work: scores that SDPA with a\n"
        "  dense mask computes for each one that counts"
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
    "samples": True,
    "left_out_by_weight": False,
    "repeated_by_weight": False,
    "split": False,
    "truncated": False,
    "dropped": False,
    "pieces": True,
    "tokens": True,
    "loss_tokens": False,
    "loss_weight": False,
    "records_with_special_tokens": False,
}
"""In processing order; False: shown only if there are any."""


def _row(name: str, metrics: Metrics) -> list[str]:
    return [
        name,
        ratio(metrics.abr),
        ratio(metrics.abr_bound),
        ratio(metrics.cbr or 0.0),
        ratio(metrics.cbr_bound or 0.0),
        ratio(metrics.dbr),
        ratio(metrics.pr),
        ratio(metrics.alignment_pr or 0.0),
        ratio(metrics.cr),
        f"{metrics.ave_t:,.0f}",
        f"{metrics.imbalance:.3f}",
        f"{metrics.num_packs:,}",
        f"{metrics.packs_lower_bound:,}",
        f"{metrics.num_iterations:,}",
        f"{metrics.num_samples:,}",
        f"{metrics.num_tokens:,}",
    ]
