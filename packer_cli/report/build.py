"""Facts to the page: its title, the tiles at its top, and its sections."""

from __future__ import annotations

from packer_cli.plan.figures import length_stats
from packer_cli.report.advice import next_steps
from packer_cli.report.facts import Facts, PlanFacts
from packer_cli.report.page import Page, Tile
from packer_cli.report.sections import sections_of
from packer_cli.simulate.figures import group_name
from packer_cli.sizes import counted, duration, gpu_time, large, ratio


def build_page(facts: Facts) -> Page:
    """Everything that the page says. Price: O(pieces + slots)."""
    planned = facts.planned
    values = dict(facts.values)
    if planned is not None and planned.prediction is not None:
        values["simulation"] = planned.prediction.result.values()
    return Page(
        title=facts.name,
        summary=_summary(facts),
        tiles=_tiles_of_lengths(facts) if planned is None else _tiles_of_plan(planned),
        next_steps=tuple(next_steps(facts)),
        sections=sections_of(facts),
        values=values,
    )


def _summary(facts: Facts) -> str:
    text = f"From {', '.join(facts.sources.names)}. " if facts.sources.names else ""
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
    of_long = next(iter(stats.tokens_of_long.values()))
    return (
        Tile(label="Samples", value=f"{stats.num_samples:,}", text=f"{stats.mean:,.0f} tokens on average"),
        Tile(label="Tokens", value=large(stats.num_tokens), text=f"{stats.num_tokens:,}"),
        Tile(label="Median length", value=f"{stats.percentiles['p50']:,}", text="tokens"),
        Tile(label="Longest sample", value=f"{stats.max:,}", text="tokens"),
        Tile(
            label="In samples over 8k",
            value=f"{of_long / max(1, stats.num_tokens):.1%}",
            text=f"of the tokens, {of_long:,}",
        ),
    )


def _tiles_of_plan(planned: PlanFacts) -> tuple[Tile, ...]:
    overall, before, counts = planned.metrics.overall, planned.metrics.baseline, planned.counts
    tiles = [
        Tile(label="Samples", value=f"{counts.samples:,}", text=f"{large(counts.tokens)} tokens are planned"),
        Tile(
            label="Packs",
            value=f"{overall.num_packs:,}",
            text=f"in {counted(overall.num_iterations, 'iteration')} and {counted(overall.num_steps, 'step')}",
        ),
        Tile(
            label="Waiting (ABR)",
            value=ratio(overall.abr),
            text=f"least for these iterations {ratio(overall.abr_bound)}; naive packing {ratio(before.abr)}",
        ),
        Tile(label="Padding (PR)", value=ratio(overall.pr), text=f"naive packing {ratio(before.pr)}"),
        Tile(
            label="Communication (CR)",
            value=ratio(overall.cr),
            text=f"share of tokens in sequence parallelism; naive packing {ratio(before.cr)}",
        ),
    ]
    if planned.prediction is not None:
        epoch, saves = planned.prediction.result.figures.overall, planned.prediction.result.saves
        tiles.append(
            Tile(
                label="Predicted epoch",
                value=duration(epoch.seconds),
                text=f"{gpu_time(epoch.gpu_days)}; {saves.speedup:.2f} times as fast as naive packing",
            )
        )
    return tuple(tiles)
