"""The tables of `hbpack groups`: candidates as in HBP's tables 18 and 19, alternatives, and layouts of pipelines; and
the measurements of `hbpack profile`."""

from __future__ import annotations

from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.groups.auto import Candidate, FoundGroups
from packer_cli.plan.strategies.protocol import LayoutChoice
from packer_cli.sizes import counted, format_tokens, four_digits
from packer_cli.tables.table import Table, cell, table_of

_GIB = 2**30


def candidates_table(found: FoundGroups) -> Table:
    """Tabulate the candidates that the groups were chosen from."""
    return table_of(
        f"{counted(found.samples, 'sample')}, {counted(found.tokens, 'token')}, the longest {found.longest:,}",
        found.candidates,
        {
            "length": lambda each: format_tokens(each.length),
            "SP": lambda each: each.sp_size,
            "layers": lambda each: each.checkpoint_layers,
            "iteration, s": lambda each: cell(each.seconds, four_digits, "OOM"),
            "s a million tokens": _seconds_of_tokens,
            "memory, GiB": lambda each: cell(each.memory_bytes, lambda memory: f"{memory / _GIB:.1f}", "-"),
            "": lambda each: each.mark,
        },
        "layers: checkpointed layers, the fewest that fit; iteration: one row on each SP group; a million "
        f"tokens on all {counted(found.gpus, 'GPU')}{_origin(found.candidates)}",
        *found.notes,
    )


def _seconds_of_tokens(each: Candidate) -> str:
    return cell(each.seconds_per_token if each.fits else None, lambda seconds: f"{seconds * 1e6:.3f}", "-")


def _origin(candidates: tuple[Candidate, ...]) -> str:
    measured = sum(each.measured for each in candidates)
    if not measured:
        return "; predicted, with samples in the mix of those that are no longer than the row"
    return "; as measured" + ("" if measured == len(candidates) else ", those that were not by the fitted model")


def alternatives_table(found: FoundGroups) -> Table:
    """Tabulate the alternatives that the choice was compared with."""
    return table_of(
        "Alternatives",
        found.alternatives,
        {
            "": lambda each: each.name,
            "groups": lambda each: each.groups,
            "epoch, s": lambda each: four_digits(each.seconds),
            "slower by": lambda each: "chosen" if each.groups == found.groups else f"{each.gain:.1%}",
        },
    )


def layouts_tables(choice: LayoutChoice) -> list[Table]:
    """Tabulate the pipelines and layouts that the steps choose from, and the savings of that."""
    schemes = table_of(
        "Kinds of pipelines",
        choice.schemes,
        {
            "": lambda scheme: scheme.name,
            "GPUs": lambda scheme: scheme.num_gpus,
            "longest": lambda scheme: f"{scheme.capacity:,}",
            "layers": lambda scheme: scheme.checkpoint_layers,
            "short, GPU-s": lambda scheme: four_digits(scheme.gpu_seconds_short),
            "long, GPU-s": lambda scheme: four_digits(scheme.gpu_seconds_long),
        },
        "longest: most tokens of a micro-batch; layers: checkpointed layers; GPU-s: GPU-seconds for a million "
        "tokens in samples of 1,024 tokens (short), and in samples as long as the pipeline holds (long)",
    )
    alone = [layout.step_seconds for layout in choice.layouts if layout.step_seconds is not None]
    gain = f"; with the best one alone {min(alone) / choice.step_seconds - 1:.1%} longer" if alone else ""
    layouts = table_of(
        f"Layouts of {counted(choice.num_gpus, 'GPU')} that the steps choose from",
        choice.layouts,
        {
            "pipelines": lambda layout: ", ".join(f"{number} x {name}" for name, number in layout.pipelines.items()),
            "longest": lambda layout: f"{layout.longest:,}",
            "fastest in": lambda layout: f"{layout.fastest:.0%}",
            "alone, s a step": lambda layout: cell(layout.step_seconds, four_digits, "-"),
        },
        f"{counted(choice.num_steps, 'step')} of {choice.global_tokens:,} tokens; predicted from "
        f"{choice.num_tried} of them: {four_digits(choice.step_seconds)} s a step, each on its fastest layout"
        f"{gain if len(choice.layouts) > 1 else ''}",
    )
    return [schemes, layouts]


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
