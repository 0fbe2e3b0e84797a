"""The figures of lengths and plans, as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packer_cli.format import metrics as records
from packer_cli.format.tokens import InputInfo
from packer_cli.plan.core.segments import BLOCK
from packer_cli.plan.figures import LengthStats, Masks, Stats
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.sizes import counted, format_bytes, large, ratio
from packer_cli.tables.table import Table, cell, table_of, table_of_values


def stats_tables(stats: Stats) -> list[Table]:
    """Tabulate the figures of lengths, of a plan, or of both."""
    trees = stats.trees or (stats.counts.trees if stats.counts else None)
    tables = [lengths_table(stats.lengths, "item" if trees else "sample")] if stats.lengths else []
    reasons = stats.reasons or getattr(stats.counts, "reasons", None) or ()
    of_sources = sources_tables(stats.sources or (), stats.inputs or (), reasons, stats.unit)
    if stats.counts and stats.metrics:
        how = describe_plan(stats.strategy, stats.packing)
        tables += [counts_table(stats.counts), *of_sources, *metrics_tables(stats.metrics, stats.counts, how)]
        tables += [masks_table(stats.metrics, stats.masks)] if stats.masks else []
    else:
        tables += of_sources
    return [*tables, trees_table(trees)] if trees else tables


def trees_table(trees: records.TreeFigures) -> Table:
    """Tabulate what sharing prefixes saves."""
    padded, unique, flat, work = trees.tokens_padded, trees.tokens_unique, trees.tokens_flat, trees.attention_tree

    def saved(left: int, of: int) -> str:
        return ratio(1 - left / max(1, of))

    rows = (
        ("tokens, padded", f"{padded:,}", ""),
        ("tokens, flat", f"{flat:,}", saved(flat, padded)),
        ("tokens, unique", f"{unique:,}", saved(unique, padded)),
        ("attention work, flat", large(trees.attention_flat), ""),
        ("attention work, tree", large(work), saved(work, trees.attention_flat)),
        ("path tokens (K) for each token", f"{trees.path_tokens / max(1, unique):.2f}", ""),
    )
    note = (
        "padded: the branches of each pair, group or conversation as a batch of their own, padded to the longest, as "
        "TRL pads one pair; flat: branches one by one; unique: shared prefixes once"
    )
    return Table(title="Shared prefixes", header=("", "value", "saved"), rows=rows, notes=(note,))


def lengths_table(stats: LengthStats, unit: str) -> Table:
    """Tabulate the distribution of lengths; `unit` is what has them."""
    rows = (
        (
            name.replace("num_samples", f"{unit}s")
            .removeprefix("num_")
            .replace("tokens_over_", f"tokens of {unit}s over ")
            .replace("_", "."),
            f"{value:,.1f}" if isinstance(value, float) else f"{value:,}",
        )
        for name, value in vars(stats).items()
    )
    return table_of_values("Lengths, in tokens", rows)


_COUNTS = {
    "records": True,
    "rejected": True,
    "records_without_loss": False,
    "set_aside": False,
    "duplicates": False,
    "duplicates_left_out": False,
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


def counts_table(counts: records.SampleCounts) -> Table:
    """Tabulate what became of the records, or of the samples if only lengths are known."""
    values, shown, names = {**vars(counts), "set_aside": getattr(counts, "set_aside", 0)}, _COUNTS, {}
    if counts.items is not None:  # They say of each kind what became of it.
        values = values | vars(counts.items) | {"split": counts.split - counts.items.conversations_divided}
        shown = {name: always for name, always in _COUNTS.items() if name not in ("truncated", "dropped")}
        shown |= dict.fromkeys(vars(counts.items), False)
        names = {"samples": "items", "split": "samples split"}
    rows = (
        (
            names.get(name, name).replace("_", " "),
            f"{values[name]:,.10g}" if isinstance(values[name], float) else f"{values[name]:,}",
        )
        for name, is_always in shown.items()
        if values.get(name) or (is_always and name in values)
    )
    return table_of_values(
        "Records" if isinstance(counts, records.Counts) else f"{counts.unit.title()}s", rows, "count"
    )


_MOST_NOTES = 3
"""Damaged files that the notes below a table name, and inputs with skipped files."""
_MOST_REASONS = 10


def sources_tables(
    sources: Sequence[InputInfo],
    inputs: Sequence[records.NamedInput],
    reasons: Sequence[records.ReasonCount],
    unit: str,
    most: int = sys.maxsize,
) -> list[Table]:
    """Tabulate what went where: the mixture of an epoch, what was read of each input, and what was rejected.

    What other tables say, too, is left out: of one input, and of inputs of which an epoch has each record once.

    Args:
        most: rows of a table of inputs, the largest of them.
    """
    tables = [_mixture_table(sources, inputs, unit, most)] if len(inputs) > 1 else []
    is_whole = not any(source.skipped or source.read.num_damaged for source in sources)
    is_once = not any(source.read.rejected or _asked(source) != _ONCE for source in sources)
    if not is_whole or (len(sources) > 1 and not is_once):
        tables.append(_read_table(sources, most))
    if reasons:
        rows = [(f"{each.records:,}", each.reason) for each in reasons[:_MOST_REASONS]]
        if rest := reasons[_MOST_REASONS:]:
            rows.append((f"{sum(each.records for each in rest):,}", f"{len(rest)} other reasons"))
        header = ("records", "reason")
        tables.append(Table(title="Rejected, by reason", header=header, rows=tuple(rows), is_text=True))
    return tables


def _mixture_table(sources: Sequence[InputInfo], inputs: Sequence[records.NamedInput], unit: str, most: int) -> Table:
    shown, has_duplicates = [*zip(inputs, map(_asked, sources), strict=True)], inputs[0].duplicates is not None
    if len(shown) > most:
        shown.sort(key=lambda each: -each[0].tokens)
        rest = [each for each, _ in shown[most - 1 :]]
        names = ("samples", "tokens", "loss_tokens", "share", "duplicates")
        sums = {name: sum(getattr(each, name) or 0 for each in rest) for name in names}
        shown[most - 1 :] = [(records.NamedInput(name=f"{len(rest)} others", **sums), "")]
    columns: dict[str, Callable[[tuple[records.NamedInput, str]], object]] = {
        "": lambda each: each[0].name,
        "asked for": lambda each: each[1],
        f"{unit}s": lambda each: f"{each[0].samples:,}",
        "tokens": lambda each: f"{each[0].tokens:,}",
        "loss tokens": lambda each: cell(each[0].loss_tokens, "{:,}".format),
        "share": lambda each: f"{each[0].share:.1%}",
    }
    if has_duplicates:
        columns["duplicates"] = lambda each: cell(each[0].duplicates, "{:,}".format)
    return table_of("Inputs, in an epoch", shown, columns)


_ONCE = "once"


def _asked(source: InputInfo) -> str:
    """Write what was asked of an input."""
    if source.percent is not None:
        return f"{source.percent:g}%"
    if source.tokens is not None:
        return counted(source.tokens, "token")
    return _ONCE if source.weight == 1 else f"{source.weight:g} times"


def _read_table(sources: Sequence[InputInfo], most: int) -> Table:
    shown = sources if len(sources) <= most else sorted(sources, key=lambda each: -each.read.tokens)[:most]
    columns: dict[str, Callable[[InputInfo], object]] = {
        "": lambda each: each.name,
        "files": lambda each: f"{each.read.files:,}",
        "skipped": lambda each: f"{sum(skipped.num_files for skipped in each.skipped or ()):,}",
        "damaged": lambda each: f"{each.read.num_damaged:,}",
        "lost": lambda each: format_bytes(each.read.lost_bytes),
        "records": lambda each: f"{each.read.records:,}",
        "rejected": lambda each: f"{each.read.rejected:,}",
        "tokens": lambda each: f"{each.read.tokens:,}",
        "loss tokens": lambda each: f"{each.read.loss_tokens:,}",
    }
    skips = [
        f"skipped of {source.name}: "
        + ", ".join(f"{counted(each.num_files, 'file')} of {each.suffix}" for each in source.skipped)
        for source in sources
        if source.skipped
    ]
    damage = [
        f"{each.path}: {each.reason} ({format_bytes(each.num_bytes)} lost)"
        for source in sources
        for each in source.read.damaged
    ]
    notes = [*skips[:_MOST_NOTES], *damage[:_MOST_NOTES]]
    if len(sources) > most:
        notes.append(f"the {most} largest of {len(sources)} inputs; hbpack stats shows all")
    return table_of("Inputs, each record once", shown, columns, *notes)


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


def describe_plan(strategy: str | None, packing: str | None) -> str:
    """Describe a plan, such as `planned with strategy balanced, packing bfs`."""
    return f"planned with strategy {strategy}" + (f", packing {packing}" if packing else "")


def metrics_tables(metrics: records.PlanMetrics, counts: records.SampleCounts, how: str) -> list[Table]:
    """Make a column for all packs, the baseline and each group, notes on randomness, and pipelines' imbalances.

    Args:
        counts: those of the plan, which say whether its samples are items.
        how: it was planned, see `describe_plan`.
    """
    # What is compared stands together, also where a narrow terminal breaks the table.
    columns: list[tuple[str, records.Metrics]] = [("all", metrics.overall), ("baseline", metrics.baseline)]
    columns += [(group.name, group) for group in metrics.groups]
    rows = []
    for usual, field, show in _FIGURES:
        label = "items" if usual == "samples" and counts.items is not None else usual
        is_known = field in _KNOWN_WITHOUT_PACKS
        values = [getattr(column, field) if column.num_packs or is_known else None for _, column in columns]
        if any(value is not None for value in values):
            rows.append((label, *(cell(value, show) for value in values)))
    table = Table(
        title="Balance and padding (lower is better, except Ave-T)",
        header=("", *(name for name, _ in columns)),
        rows=tuple(rows),
        notes=(how, *_notes(metrics)),
    )
    return [table] if metrics.overall.packing_between is None else [table, imbalances_table(metrics.overall)]


def _notes(metrics: records.PlanMetrics) -> Iterator[str]:
    overall, baseline = metrics.overall, metrics.baseline
    yield (
        f"{counted(overall.num_steps, 'step')}; displacement from a uniform order {overall.mean_displacement:,.1f} "
        f"steps on average (uniform: {overall.num_steps / 3:,.1f}), {overall.max_displacement:,} at most; "
        f"length-step correlation {overall.length_step_correlation:.3f}; "
        f"length mix spread {overall.length_mix_spread:.3f}, source mix spread {overall.source_mix_spread:.3f}"
    )
    if overall.mean_delay is not None:
        yield from _on_delays(overall)
    if overall.cp_imbalance is not None:
        beside = "" if baseline.cp_imbalance is None else f"; baseline {baseline.cp_imbalance:.3f}"
        yield (
            f"CP ranks of a pack: the busiest has {overall.cp_imbalance:.3f} times the mean attention work "
            f"({overall.cp_imbalance_max:.3f} at most{beside}); "
            f"{overall.cp_document_share:.0%} of the packs are sharded per document"
        )
    notes = {strategy.baseline_name: strategy.baseline_note for strategy in STRATEGIES.values()}
    yield ": ".join(filter(None, ("baseline", baseline.name, notes.get(baseline.name))))
    if overall.num_fillers:
        yield f"{counted(overall.num_fillers, 'filler')} (without loss, so that every rank is busy)"


def _on_delays(overall: records.OverallMetrics) -> Iterator[str]:
    """Yield notes on samples' distance from the step in which a stream would bring them."""
    carried = f"; {counted(overall.num_carried, 'piece')} found no room at first" if overall.num_carried else ""
    yield (
        f"delay: a token runs {overall.mean_delay:,.2f} steps from its arrival on average, {overall.max_delay:,} at "
        f"most{carried}"
    )
    for queue in overall.queues or ():
        yield (
            f"samples of {queue.threshold:,} tokens or more wait: {queue.num_samples:,}, {queue.mean_delay:,.2f} "
            f"steps on average, {queue.max_delay:,} at most"
        )


def imbalances_table(pipelines: records.PipelineImbalances) -> Table:
    """Tabulate the four imbalances of Hydraulis, a row each."""
    rows = (
        (f"{name}: {meaning}", cell(value, ratio if is_share else "{:.3f}".format, "-"))
        for name, value, is_share, meaning in (
            ("sampling, within iterations", pipelines.sampling_within, True, "tokens on larger pipelines than needed"),
            ("sampling, between iterations", pipelines.sampling_between, False, "time with one layout for all steps"),
            ("packing, within pipelines", pipelines.packing_within, False, "longest over mean micro-batch"),
            ("packing, between pipelines", pipelines.packing_between, False, "slowest over mean pipeline"),
        )
    )
    return table_of_values("Imbalances of pipelines (0 and 1 are best)", rows)


def masks_table(metrics: records.PlanMetrics, masks: Masks) -> Table:
    """Tabulate what the masks leave out of attention, a row for each group with packs, and one for all."""
    known = {group.name for group in metrics.groups if group.num_packs}
    named = [(group.name, group) for group in masks.groups if group.name in known] + [("all", masks.overall)]
    return table_of(
        "Document masks" if masks.mask == "document" else "Causal masks over whole rows",
        named,
        {
            "": lambda each: each[0],
            "scores left out": lambda each: ratio(each[1].token_sparsity),
            f"blocks of {BLOCK} left out": lambda each: ratio(each[1].block_sparsity),
            "packs for FlexAttention": lambda each: ratio(each[1].flex_share),
            "dense work": lambda each: f"{each[1].dense_work:,.1f}",
        },
        "packs for FlexAttention: the longest sample is at most half the pack; dense work: scores that SDPA "
        "with a dense mask computes for each one that counts",
    )
