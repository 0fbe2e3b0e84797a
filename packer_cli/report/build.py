"""Facts to the page: its title, the tiles at its top, and its sections."""

from __future__ import annotations

import numpy as np

from packer_cli.compare.comparison import ALIKE
from packer_cli.config.fields import GIVE
from packer_cli.format.records import json_values
from packer_cli.plan.core.metrics import slot_contents
from packer_cli.plan.core.types import Plan
from packer_cli.plan.figures import BASELINE_NAME, as_in_text, length_stats
from packer_cli.plan.strategies.registry import BASELINE
from packer_cli.report.advice import Facts, PlanFacts, Prediction, next_steps
from packer_cli.report.charts.balance import Choice, chart_of_frontier, chart_of_series, chart_of_work, work_of_ranks
from packer_cli.report.charts.base import Chart, evenly
from packer_cli.report.charts.epochs import chart_of_epochs, chart_of_timeline, describe, total_seconds
from packer_cli.report.charts.samples import chart_of_packs, charts_of_lengths, length_classes
from packer_cli.report.page import Page, Section, Tile
from packer_cli.simulate.figures import OverallFigures, describe_origin, group_name
from packer_cli.simulate.timeline import Timeline, timeline
from packer_cli.sizes import counted, duration, gpu_time, large, ratio
from packer_cli.tables.compare import comparison_table
from packer_cli.tables.stats import counts_table, describe_plan, lengths_table, metrics_tables, trees_table
from packer_cli.tables.table import table_of_values


def build_page(facts: Facts) -> Page:
    """Build everything that the page says. Price: O(pieces + slots)."""
    planned = facts.planned
    values = json_values(facts.stats)
    if planned is not None and planned.prediction is not None:
        values["simulation"] = json_values(planned.prediction.result)
    return Page(
        title=facts.name,
        summary=_summary(facts),
        tiles=_tiles_of_lengths(facts) if planned is None else _tiles_of_plan(planned),
        next_steps=tuple(next_steps(facts)),
        sections=sections_of(facts),
        values=values,
    )


def _summary(facts: Facts) -> str:
    text = f"From {', '.join(facts.sources)}. " if facts.sources else ""
    if facts.stats.unit == "item":
        text += (
            "A sample is an item here: what stays together, such as a preference pair. Tokens that its branches share "
            "count once. "
        )
    if facts.planned is None:
        return f"{text}Only lengths are known; nothing is planned."
    config, plan = facts.planned.config, facts.planned.plan
    groups = ", ".join(map(group_name, plan.groups))
    return (
        f"{text}Planned with strategy {config.strategy} on {counted(plan.num_gpus, 'GPU')}; "
        f"{'groups' if len(plan.groups) > 1 else 'group'} {groups} (tokens of a row : GPUs that share it)."
    )


def _tiles_of_lengths(facts: Facts) -> tuple[Tile, ...]:
    stats = length_stats(facts.lengths)
    of_long = stats.tokens_over_8k
    return (
        Tile("Samples", f"{stats.num_samples:,}", f"{stats.mean:,.0f} tokens on average"),
        Tile("Tokens", large(stats.num_tokens), f"{stats.num_tokens:,}"),
        Tile("Median length", f"{stats.p50:,}", "tokens"),
        Tile("Longest sample", f"{stats.max:,}", "tokens"),
        Tile("In samples over 8k", f"{of_long / max(1, stats.num_tokens):.1%}", f"of the tokens, {of_long:,}"),
    )


def _tiles_of_plan(planned: PlanFacts) -> tuple[Tile, ...]:
    overall, before, counts = planned.metrics.overall, planned.metrics.baseline, planned.counts
    in_steps = f"in {counted(overall.num_iterations, 'iteration')} and {counted(overall.num_steps, 'step')}"
    least = f"least for these iterations {ratio(overall.abr_bound)}; naive packing {ratio(before.abr)}"
    of_tokens = f"share of tokens in sequence parallelism; naive packing {ratio(before.cr)}"
    tiles = (
        Tile(f"{counts.unit.capitalize()}s", f"{counts.samples:,}", f"{large(counts.tokens)} tokens are planned"),
        Tile("Packs", f"{overall.num_packs:,}", in_steps),
        Tile("Waiting (ABR)", ratio(overall.abr), least),
        Tile("Padding (PR)", ratio(overall.pr), f"naive packing {ratio(before.pr)}"),
        Tile("Communication (CR)", ratio(overall.cr), of_tokens),
    )
    return tiles if planned.prediction is None else (*tiles, _tile_of_time(planned.plan, planned.prediction))


def _tile_of_time(plan: Plan, prediction: Prediction) -> Tile:
    result = prediction.result
    at_best, at_degrees = result.saves_over_naive.speedup, result.saves.speedup
    gain = f"{at_best:.2f} times as fast as {result.naive_at_best.name}"
    if abs(at_best - 1) <= ALIKE:
        gain = f"as fast as {result.naive_at_best.name}, so packing alone gives the gain"
    gain += f"; {at_degrees:.2f} times as fast as {as_in_text(result.baseline.name)} at the plan's degrees"
    attention = f"attention takes {prediction.simulator.attention_share(plan.pieces):.0%} of the computing time"
    text = f"{gpu_time(result.overall.gpu_days)}; {gain}; {attention}"
    return Tile("Predicted epoch", duration(result.overall.seconds), text)


_MOST_GROUPS = 5
"""Groups whose packs are drawn."""
_DRAWN_ITERATIONS = 8


def sections_of(facts: Facts) -> tuple[Section, ...]:
    """Make all sections that the facts allow, in the order of the page."""
    found = [_lengths(facts)]
    if facts.planned is not None:
        found += [
            _packs(facts, facts.planned),
            _balance(facts.planned),
            _time(facts.planned),
            _ways(facts.planned),
            _figures(facts.planned),
        ]
    if facts.made_from:
        table = table_of_values("How it was made", facts.made_from, is_open=False)
        found.append(Section("made", "How it was made", "", tables=(table,)))
    return tuple(found)


def _lengths(facts: Facts) -> Section:
    plan, source = facts.planned.plan if facts.planned else None, facts.source_of_sample
    names: tuple[str, ...] = ("all samples",)
    if source is not None and len(facts.sources) > 1:
        samples = None if plan is None else plan.pieces.samples
        source, names = source if samples is None else source[samples], facts.sources
    else:
        source = None
    charts = charts_of_lengths(facts.lengths, source, names, plan)
    what = "Lengths of the pieces that are packed: whole samples, and parts of those that were cut."
    is_cut = facts.planned is not None and bool(facts.planned.counts.split)
    tables = (lengths_table(length_stats(facts.lengths), facts.stats.unit),) if plan is None else ()
    return Section("lengths", "Lengths", what if is_cut else "", charts, tables)


def _packs(facts: Facts, planned: PlanFacts) -> Section:
    plan, naive = planned.plan, planned.baseline
    classes = length_classes(facts.lengths)
    last = len(naive.plan.groups) - 1
    charts = [chart_of_packs(naive.plan, last, classes, "packs-before", f"Before: {as_in_text(naive.name)}")]
    for group in evenly(len(plan.groups), _MOST_GROUPS).tolist():
        title = f"This plan: group {group_name(plan.groups[group])}"
        charts.append(chart_of_packs(plan, group, classes, f"packs-{group}", title))
    return Section(
        "packs",
        "Packs",
        "A bar is a pack, the row of samples that GPUs run together. Every segment is a sample, the longest at "
        "the bottom; short ones of like length are drawn together.",
        charts=tuple(filter(None, charts)),
    )


def _balance(planned: PlanFacts) -> Section:
    overall, before = planned.metrics.overall, planned.metrics.baseline
    naive, own = work_of_ranks(planned.baseline.plan), work_of_ranks(planned.plan)
    highest = max(float(work[-1]) for each in (naive, own) for work in each.values())
    text = "ABR {}: GPUs wait for {:.1%} of their attention time."
    of_own = "ABR {}. This strategy evens out predicted time, and not attention work."
    of_own = of_own if "a cost model" in planned.config.planner.needs else text
    title = f"Before: {as_in_text(planned.baseline.name)}"
    charts = (
        chart_of_work(naive, highest, "work-before", title, text.format(ratio(before.abr), before.abr)),
        chart_of_work(own, highest, "work-after", "This plan", of_own.format(ratio(overall.abr), overall.abr)),
    )
    return Section(
        "balance",
        "Balance",
        "Attention work grows with the square of a sample's length, and all GPUs of an iteration wait for the "
        "one with the most. A column is an iteration, of some that are evenly spread over the epoch; a point is a GPU "
        "(or the GPUs that share a pack), and the bar on top the one that all wait for.",
        charts=(*charts, chart_of_series(planned.plan, planned.request.linear)),
    )


def _time(planned: PlanFacts) -> Section:
    prediction = planned.prediction
    text = "Predicted times. A micro-batch computes and communicates in turns; the timelines draw each once."
    if prediction is None:
        return Section("time", "Time", "", missing=f"Times are predicted with {GIVE}.")
    origin = describe_origin(prediction.result.predicted_with)
    name, epochs = _epochs(planned, prediction)
    return Section("time", "Time", text, (chart_of_epochs(epochs, name, origin), *_timelines(planned, prediction)))


def _epochs(planned: PlanFacts, prediction: Prediction) -> tuple[str, dict[str, OverallFigures]]:
    """Return the name of the user's own plan, and the epochs to compare, by name: baseline, strategies, others."""
    rows = planned.comparison.rows if planned.comparison else ()
    own = next((row.name for row in rows if row.is_own), "this plan")
    epochs = {own: prediction.result.overall}
    for row in rows:
        if row.kind != "balance" and row.simulation:
            epochs.setdefault(row.name, row.simulation.overall)
    if BASELINE not in epochs or prediction.result.baseline.name != BASELINE_NAME:
        epochs[as_in_text(prediction.result.baseline.name)] = prediction.result.baseline
    if prediction.result.padded is not None:
        epochs.setdefault("padded", prediction.result.padded)
    return own, dict(sorted(epochs.items(), key=lambda item: item[1].seconds))


def _timelines(planned: PlanFacts, prediction: Prediction) -> list[Chart]:
    """Draw the timeline of a few iterations of the plan, and of the same share of the baseline's."""
    naive, plan = planned.baseline, planned.plan
    num_iterations, of_naive = (each.epochs[0].num_iterations for each in (plan, naive.plan))
    num = min(_DRAWN_ITERATIONS, num_iterations)
    after = _timeline(plan, prediction, num)
    before = _timeline(naive.plan, prediction, max(1, round(num * of_naive / num_iterations)))
    end = max(total_seconds(before), total_seconds(after))
    drawn = (
        (naive.plan, before, "timeline-before", f"Before: {as_in_text(naive.name)}"),
        (plan, after, "timeline-after", "This plan"),
    )
    return [
        chart_of_timeline(
            line, of.num_gpus, end, name, title, describe(line, slot_contents(of).real_tokens[line.slots.number])
        )
        for of, line, name, title in drawn
    ]


def _timeline(plan: Plan, prediction: Prediction, num: int) -> Timeline:
    """Take iterations from shortest to longest, in the order of the epoch: their mean is about that of all."""
    times = prediction.simulator.simulate(plan)
    by_length = np.argsort(times.iteration_seconds, kind="stable")
    middles = (2 * np.arange(num) + 1) * len(by_length) // (2 * num)
    return timeline(times, np.sort(by_length[middles]))


def _ways(planned: PlanFacts) -> Section:
    title, comparison = "Other ways to plan", planned.comparison
    if comparison is None:
        return Section("strategies", title, "", missing=planned.why_not)
    choices = [
        Choice(row.name, "this plan" if row.is_own else row.kind, row.overall.abr, row.overall.length_mix_spread)
        for row in comparison.rows
        if row.overall and row.kind != "baseline"  # Padded batches wait so long that all others would be one point.
    ]
    return Section(
        "strategies",
        title,
        "The same samples on the same GPUs, planned by other strategies, and with other ways to form iterations "
        "(--balance).",
        (chart_of_frontier(choices),),
        (comparison_table(comparison),),
    )


def _figures(planned: PlanFacts) -> Section:
    how = describe_plan(planned.config.strategy, planned.config.used_packing)
    trees = planned.counts.trees
    tables = [*metrics_tables(planned.metrics, planned.counts, how), counts_table(planned.counts)]
    text = "As hbpack stats prints them; the page holds them as JSON, too."
    return Section("all-figures", "All figures", text, tables=(*tables, *([trees_table(trees)] if trees else [])))
