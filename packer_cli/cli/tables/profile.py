"""The tables of `hbpack profile`: measurements, and the models fitted to them."""

from __future__ import annotations

from packer_cli.cli.console import print_table
from packer_cli.cost.profile import Fit, IterationRow, Profile

_HEADER = ["length", "SP", "checkpointed", "work / length^2", "seconds", "tokens/s a GPU", "peak memory, GB"]


def print_profile(profile: Profile) -> None:
    """Print the measured iterations, then the fitted coefficients with their errors."""
    num_gpus = profile.num_measured or profile.num_gpus
    rows = [_cells(row, num_gpus) for row in profile.iterations]
    print_table(f"Iterations on {num_gpus} x {profile.gpu}, forward and backward", _HEADER, rows, is_dense=True)
    for name, unit, fit in (("Time", "s", profile.cost), ("Memory", "bytes", profile.memory)):
        if fit is not None:
            rows = [_coefficient(fit, key, value) for key, value in fit.coefficients.items()]
            title = f"{name}, fitted: {100 * fit.mean_error:.1f} % mean error"
            print_table(title, ["", unit, "standard error"], rows)


def _cells(row: IterationRow, num_gpus: int) -> list[str]:
    seconds = row.seconds
    time = "out of memory" if row.out_of_memory else "-" if seconds is None else f"{seconds:.4g}"
    return [
        f"{row.length:,}",
        str(row.sp_size),
        str(row.checkpoint_layers),
        f"{(row.work or row.length**2) / row.length**2:.3f}",
        time,
        "-" if seconds is None else f"{row.tokens / seconds / num_gpus:,.0f}",
        "-" if row.memory_bytes is None else f"{row.memory_bytes / 1e9:.3g}",
    ]


def _coefficient(fit: Fit, name: str, value: float) -> list[str]:
    error = fit.errors.get(name)
    return [name, f"{value:.4g}", "not fitted" if error is None else f"{error:.2g}"]
