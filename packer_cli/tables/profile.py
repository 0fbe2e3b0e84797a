"""Measurements of `hbpack profile` as tables."""

from __future__ import annotations

from packer_cli.cost.profile import Profile
from packer_cli.tables.table import Table, cell


def profile_tables(profile: Profile) -> list[Table]:
    """Tabulate the measured iterations, then the fitted coefficients with their errors."""
    num_gpus = profile.num_measured or profile.num_gpus
    measured = Table(
        title=f"Iterations on {num_gpus} x {profile.gpu}, forward and backward",
        header=("length", "SP", "checkpointed", "work / length^2", "seconds", "tokens/s a GPU", "peak memory, GB"),
        rows=tuple(
            (
                f"{row.length:,}",
                str(row.sp_size),
                str(row.checkpoint_layers),
                f"{(row.work or row.length**2) / row.length**2:.3f}",
                "out of memory" if row.out_of_memory else cell(row.seconds, "{:.4g}".format, "-"),
                "-" if row.seconds is None else f"{row.tokens / row.seconds / num_gpus:,.0f}",
                "-" if row.memory_bytes is None else f"{row.memory_bytes / 1e9:.3g}",
            )
            for row in profile.iterations
        ),
    )
    fits = (("Time", "s", profile.cost), ("Memory", "bytes", profile.memory))
    return [
        measured,
        *(
            Table(
                title=f"{name}, fitted: {100 * fit.mean_error:.1f} % mean error",
                header=("", unit, "standard error"),
                rows=tuple(
                    (key, f"{value:.4g}", cell(fit.errors.get(key), "{:.2g}".format, "not fitted"))
                    for key, value in fit.coefficients.items()
                ),
            )
            for name, unit, fit in fits
            if fit is not None
        ),
    ]
