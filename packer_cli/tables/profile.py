"""Measurements of `hbpack profile` as tables."""

from __future__ import annotations

from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.tables.table import Table, cell, table_of


def profile_tables(profile: Profile) -> list[Table]:
    """Tabulate the measured iterations, then the fitted coefficients with their errors."""
    num_gpus = profile.num_measured or profile.num_gpus

    def seconds(row: IterationRow) -> str:
        return "out of memory" if row.out_of_memory else cell(row.seconds, "{:.4g}".format, "-")

    def speed(row: IterationRow) -> str:
        return cell(row.seconds, lambda seconds: f"{row.tokens / seconds / num_gpus:,.0f}", "-")

    measured = table_of(
        f"Iterations on {num_gpus} x {profile.gpu}, forward and backward",
        profile.iterations,
        {
            "length": lambda row: f"{row.length:,}",
            "SP": lambda row: row.sp_size,
            "checkpointed": lambda row: row.checkpoint_layers,
            "work / length^2": lambda row: f"{(row.work or row.length**2) / row.length**2:.3f}",
            "seconds": seconds,
            "tokens/s a GPU": speed,
            "peak memory, GB": lambda row: cell(row.memory_bytes, lambda peak: f"{peak / 1e9:.3g}", "-"),
        },
    )
    tables = [measured]
    for name, unit, fit in (("Time", "s", profile.cost), ("Memory", "bytes", profile.memory)):
        if fit is not None:
            rows = tuple(
                (key, f"{value:.4g}", cell(fit.errors.get(key), "{:.2g}".format, "not fitted"))
                for key, value in fit.coefficients.items()
            )
            title = f"{name}, fitted: {100 * fit.mean_error:.1f} % mean error"
            tables.append(Table(title=title, header=("", unit, "standard error"), rows=rows))
    return tables
