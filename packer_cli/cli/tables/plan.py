"""The tables of `hbpack stats`, `plan` and `pack`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.console import print_table, ratio
from packer_cli.sizes import counted

_HEADER = [
    "",
    "ABR",
    "ABR bound",
    "CBR",
    "CBR bound",
    "DBR",
    "PR",
    "CR",
    "Ave-T",
    "imbalance",
    "packs",
    "bound",
    "iterations",
    "samples",
    "tokens",
]


def print_stats(stats: dict[str, Any]) -> None:
    """Print one row each for the groups, all packs and the baseline; then the figures on randomness."""
    rows = [_row(group["name"], group) for group in stats["groups"]]
    rows.append(_row("all", stats["overall"]))
    baseline = stats["baseline"]
    rows.append(_row(f"baseline: {baseline['name']}", baseline))
    overall = stats["overall"]
    shown = [i for i, name in enumerate(_HEADER) if not name.startswith("CBR") or "cbr" in overall]
    rows = [[row[i] for i in shown] for row in rows]
    print_table("Balance and padding (lower is better, except Ave-T)", [_HEADER[i] for i in shown], rows)
    print(
        f"  {counted(overall['num_steps'], 'step')}; displacement from a uniform order "
        f"{overall['mean_displacement']:,.1f} "
        f"steps on average (uniform: {overall['num_steps'] / 3:,.1f}), {overall['max_displacement']:,} at most; "
        f"length-step correlation {overall['length_step_correlation']:.3f}; "
        f"length mix spread {overall['length_mix_spread']:.3f}, source mix spread {overall['source_mix_spread']:.3f}"
    )
    if overall["num_fillers"]:
        print(f"  {counted(overall['num_fillers'], 'filler')} (without loss, so that every rank is busy)")


def print_lengths(stats: dict[str, Any]) -> None:
    """Print the distribution of lengths."""
    rows = [
        [_length_label(name), f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"]
        for name, value in stats.items()
    ]
    print_table("Lengths, in tokens", ["", "value"], rows)


def _length_label(name: str) -> str:
    return name.removeprefix("num_").replace("tokens_over_", "tokens of samples over ")


def print_counts(counts: dict[str, int]) -> None:
    """Print what happened to the records, or to the samples if only lengths are known."""
    rows = [
        [name.replace("_", " "), f"{counts[name]:,}"]
        for name, is_always in _COUNTS.items()
        if counts.get(name) or (is_always and name in counts)
    ]
    print_table("Records" if "records" in counts else "Samples", ["", "count"], rows)


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
    "records_with_special_tokens": False,
}
"""In processing order; False: shown only if there are any."""


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    return [
        name,
        ratio(figures["abr"]),
        ratio(figures["abr_bound"]),
        ratio(figures.get("cbr", 0.0)),
        ratio(figures.get("cbr_bound", 0.0)),
        ratio(figures["dbr"]),
        ratio(figures["pr"]),
        ratio(figures["cr"]),
        f"{figures['ave_t']:,.0f}",
        f"{figures['imbalance']:.3f}",
        f"{figures['num_packs']:,}",
        f"{figures['packs_lower_bound']:,}",
        f"{figures['num_iterations']:,}",
        f"{figures['num_samples']:,}",
        f"{figures['num_tokens']:,}",
    ]
