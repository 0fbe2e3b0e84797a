"""Figures as text, in tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packer_cli.compare import ComparedRow, Comparison
from packer_cli.compare.columns import COLUMNS
from packer_cli.format.metrics import Metrics, OverallMetrics, PlanMetrics, SampleCounts
from packer_cli.plan.figures import LengthStats
from packer_cli.sizes import ratio


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page; its first column names the rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None
    """The row that is the user's own."""
    notes: tuple[str, ...] = ()
    """Sentences below it."""
    is_open: bool = True
    """Whether it is shown at first, or opened by the reader."""


_FIGURES: tuple[tuple[str, Callable[[Metrics], float | None], Callable[[float], str]], ...] = (
    ("ABR", lambda figures: figures.abr, ratio),
    ("ABR bound", lambda figures: figures.abr_bound, ratio),
    ("CBR", lambda figures: figures.cbr, ratio),
    ("CBR bound", lambda figures: figures.cbr_bound, ratio),
    ("DBR", lambda figures: figures.dbr, ratio),
    ("PR", lambda figures: figures.pr, ratio),
    ("align PR", lambda figures: figures.alignment_pr, ratio),
    ("CR", lambda figures: figures.cr, ratio),
    ("Ave-T", lambda figures: figures.ave_t, "{:,.0f}".format),
    ("imbalance", lambda figures: figures.imbalance, "{:.3f}".format),
    ("packs", lambda figures: figures.num_packs, "{:,}".format),
    ("bound", lambda figures: figures.packs_lower_bound, "{:,}".format),
    ("iterations", lambda figures: figures.num_iterations, "{:,}".format),
    ("samples", lambda figures: figures.num_samples, "{:,}".format),
    ("tokens", lambda figures: figures.num_tokens, "{:,}".format),
)
_ALL_PACKS = "all packs"


def figures_table(metrics: PlanMetrics) -> Table:
    """The figures of the groups, of all packs and of the baseline."""
    named: list[tuple[str, Metrics]] = [(group.name, group) for group in metrics.groups]
    named += [(_ALL_PACKS, metrics.overall), (f"baseline: {metrics.baseline.name}", metrics.baseline)]
    shown = [each for each in _FIGURES if each[1](metrics.overall) is not None]

    def cell(figures: Metrics, value: Callable[[Metrics], float | None], show: Callable[[float], str]) -> str:
        number = value(figures)
        return "" if number is None else show(number)

    return Table(
        title="Balance and padding",
        header=("", *(name for name, *_ in shown)),
        rows=tuple((name, *(cell(figures, value, show) for _, value, show in shown)) for name, figures in named),
        marked=len(metrics.groups),
        notes=("Lower is better, except for Ave-T, the tokens of a micro-batch. 0 is best for all ratios.",),
    )


_OF_THE_MACHINE = ("time", "memory")
"""Columns that are not the same in every run."""


def comparison_table(comparison: Comparison) -> Table:
    """Plans of the same samples side by side; the user's own is marked."""
    rows = comparison.rows
    done = [row.figures for row in rows if row.figures]
    # A plan may know the sources of its samples when the others do not, which are planned from lengths.
    others = [row.figures for row in rows if row.figures and not row.spec.is_own]
    has_sources = any(each.metrics.overall.source_mix_spread for each in others)
    columns = [
        column
        for column in COLUMNS
        if column.name not in _OF_THE_MACHINE
        and 2 * sum(column.value(each) is not None for each in done) > len(done)
        and (column.name != "source-mix" or has_sources)
    ]

    def cells(row: ComparedRow) -> tuple[str, ...]:
        values = [column.value(row.figures) if row.figures else None for column in columns]
        shown = zip(columns, values, strict=True)
        return (row.spec.name, *("" if value is None else column.show(value) for column, value in shown))

    notes = [f"{row.spec.name}: {row.spec.note}." for row in rows if row.spec.note]
    notes += [f"{row.spec.name} failed: {row.error}." for row in rows if row.error]
    return Table(
        title="The same samples, planned in other ways",
        header=("", *(column.header for column in columns)),
        rows=tuple(map(cells, rows)),
        marked=next((place for place, row in enumerate(rows) if row.spec.is_own), None),
        notes=tuple(notes),
    )


def order_table(overall: OverallMetrics) -> Table:
    """How random the order is, and what the strategy has of delays and imbalances."""
    uniform = f"{overall.mean_displacement:,.1f} steps on average (uniform: {overall.num_steps / 3:,.1f}), "
    rows = [
        ("steps", f"{overall.num_steps:,}"),
        ("displacement from a uniform order", f"{uniform}{overall.max_displacement:,} at most"),
        ("length-step correlation (0 is random)", f"{overall.length_step_correlation:.3f}"),
        ("length mix spread (0: steps mix lengths as the data does)", f"{overall.length_mix_spread:.3f}"),
        ("source mix spread (0: steps mix sources as the data does)", f"{overall.source_mix_spread:.3f}"),
    ]
    if overall.mean_delay is not None:
        text = f"{overall.mean_delay:,.2f} steps on average, {overall.max_delay:,} at most"
        rows.append(("delay of a token from its arrival", text))
    for queue in overall.queues or ():
        text = f"{queue.num_samples:,} samples, {queue.mean_delay:,.2f} steps on average, {queue.max_delay:,} at most"
        rows.append((f"samples of {queue.threshold:,} tokens or more wait", text))
    if overall.cp_imbalance is not None:
        text = f"{overall.cp_imbalance:.3f} on average, {overall.cp_imbalance_max:.3f} at most"
        rows.append(("context-parallel ranks: busiest / mean", text))
        rows.append(("packs sharded per document", f"{overall.cp_document_share:.0%}"))
    for name, value, show in (
        ("tokens on larger pipelines than needed", overall.sampling_within, ratio),
        ("time with one layout for all steps / with the best of each", overall.sampling_between, "{:.3f}".format),
        ("pipelines: longest / mean micro-batch", overall.packing_within, "{:.3f}".format),
        ("pipelines: slowest / mean", overall.packing_between, "{:.3f}".format),
    ):
        if value is not None:
            rows.append((name, show(value)))
    return Table(title="Order, delays and imbalances", header=("", "value"), rows=tuple(rows))


def counts_table(counts: SampleCounts) -> Table:
    """What became of the records or samples."""
    rows = tuple((name.replace("_", " "), f"{number:,}") for name, number in vars(counts).items() if number)
    return Table(title="Samples", header=("", "count"), rows=rows)


def lengths_table(stats: LengthStats) -> Table:
    """The distribution of lengths."""
    rows = tuple(
        (name.removeprefix("num_").replace("tokens_over_", "tokens of samples over "), f"{value:,.0f}")
        for name, value in stats.values().items()
    )
    return Table(title="Lengths, in tokens", header=("", "value"), rows=rows)


def facts_table(pairs: Sequence[tuple[str, str]]) -> Table:
    """What the set was made from and with."""
    return Table(title="How it was made", header=("", "value"), rows=tuple(pairs), is_open=False)
