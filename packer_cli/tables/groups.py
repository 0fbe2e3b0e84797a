"""The tables of `hbpack groups`: candidates as in HBP's tables 18 and 19, and alternatives; layouts of pipelines."""

from __future__ import annotations

from packer_cli.groups.found import Candidate, FoundGroups
from packer_cli.plan.strategies.protocol import LayoutChoice
from packer_cli.sizes import counted, format_tokens, four_digits
from packer_cli.tables.table import Table, cell

_GIB = 2**30


def candidates_table(found: FoundGroups) -> Table:
    """Tabulate the candidates that the groups were chosen from."""
    return Table(
        title=f"{counted(found.samples, 'sample')}, {counted(found.tokens, 'token')}, the longest {found.longest:,}",
        header=("length", "SP", "layers", "iteration, s", "s a million tokens", "memory, GiB", ""),
        rows=tuple(
            (
                format_tokens(each.length),
                str(each.sp_size),
                str(each.checkpoint_layers),
                cell(each.seconds, four_digits, "OOM"),
                cell(each.seconds_per_token if each.fits else None, lambda seconds: f"{seconds * 1e6:.3f}", "-"),
                cell(each.memory_bytes, lambda memory: f"{memory / _GIB:.1f}", "-"),
                each.mark,
            )
            for each in found.candidates
        ),
        notes=(
            (
                "layers: checkpointed layers, the fewest that fit; iteration: one row on each SP group; a million "
                f"tokens on all {counted(found.gpus, 'GPU')}{_origin(found.candidates)}"
            ),
            *found.notes,
        ),
    )


def _origin(candidates: tuple[Candidate, ...]) -> str:
    measured = sum(each.measured for each in candidates)
    if not measured:
        return "; predicted, with samples in the mix of those that are no longer than the row"
    return "; as measured" + ("" if measured == len(candidates) else ", those that were not by the fitted model")


def alternatives_table(found: FoundGroups) -> Table:
    """Tabulate the alternatives that the choice was compared with."""
    return Table(
        title="Alternatives",
        header=("", "groups", "epoch, s", "slower by"),
        rows=tuple(
            (
                each.name,
                each.groups,
                four_digits(each.seconds),
                "chosen" if each.groups == found.groups else f"{each.gain:.1%}",
            )
            for each in found.alternatives
        ),
    )


def layouts_tables(choice: LayoutChoice) -> list[Table]:
    """Tabulate the pipelines and layouts that the steps choose from, and the savings of that."""
    schemes = Table(
        title="Kinds of pipelines",
        header=("", "GPUs", "longest", "layers", "short, GPU-s", "long, GPU-s"),
        rows=tuple(
            (
                scheme.name,
                str(scheme.num_gpus),
                f"{scheme.capacity:,}",
                str(scheme.checkpoint_layers),
                four_digits(scheme.gpu_seconds_short),
                four_digits(scheme.gpu_seconds_long),
            )
            for scheme in choice.schemes
        ),
        notes=(
            (
                "longest: most tokens of a micro-batch; layers: checkpointed layers; GPU-s: GPU-seconds for a million "
                "tokens in samples of 1,024 tokens (short), and in samples as long as the pipeline holds (long)"
            ),
        ),
    )
    alone = [layout.step_seconds for layout in choice.layouts if layout.step_seconds is not None]
    gain = f"; with the best one alone {min(alone) / choice.step_seconds - 1:.1%} longer" if alone else ""
    layouts = Table(
        title=f"Layouts of {counted(choice.num_gpus, 'GPU')} that the steps choose from",
        header=("pipelines", "longest", "fastest in", "alone, s a step"),
        rows=tuple(
            (
                ", ".join(f"{number} x {name}" for name, number in layout.pipelines.items()),
                f"{layout.longest:,}",
                f"{layout.fastest:.0%}",
                cell(layout.step_seconds, four_digits, "-"),
            )
            for layout in choice.layouts
        ),
        notes=(
            (
                f"{counted(choice.num_steps, 'step')} of {choice.global_tokens:,} tokens; predicted from "
                f"{choice.num_tried} of them: {four_digits(choice.step_seconds)} s a step, each on its fastest layout"
                f"{gain if len(choice.layouts) > 1 else ''}"
            ),
        ),
    )
    return [schemes, layouts]
