"""The tables of `hbpack groups --strategy hydraulis`: kinds of pipelines, and layouts of them."""

from __future__ import annotations

import click

from packer_cli.cli.console import print_note, print_table
from packer_cli.plan.strategies.layout_choice import LayoutChoice
from packer_cli.sizes import counted, four_digits


def print_layouts(choice: LayoutChoice) -> None:
    """Print what the steps choose from on stdout, and what that saves."""
    rows = [
        [
            scheme.name,
            str(scheme.num_gpus),
            f"{scheme.capacity:,}",
            str(scheme.checkpoint_layers),
            four_digits(scheme.gpu_seconds_short),
            four_digits(scheme.gpu_seconds_long),
        ]
        for scheme in choice.schemes
    ]
    header = ["", "GPUs", "longest", "layers", "short, GPU-s", "long, GPU-s"]
    print_table("Kinds of pipelines", header, rows, is_dense=True)
    print_note(
        "longest: most tokens of a micro-batch; layers: checkpointed layers; GPU-s: GPU-seconds for a million tokens "
        "in samples of 1,024 tokens (short), and in samples as long as the pipeline holds (long)"
    )
    click.echo()
    table = [
        [
            ", ".join(f"{number} x {name}" for name, number in layout.pipelines.items()),
            f"{layout.longest:,}",
            f"{layout.fastest:.0%}",
            "-" if layout.step_seconds is None else four_digits(layout.step_seconds),
        ]
        for layout in choice.layouts
    ]
    title = f"Layouts of {counted(choice.num_gpus, 'GPU')} that the steps choose from"
    print_table(title, ["pipelines", "longest", "fastest in", "alone, s a step"], table, is_dense=True)
    print_note(
        f"{counted(choice.num_steps, 'step')} of {choice.global_tokens:,} tokens; predicted from "
        f"{choice.num_tried} of them: {four_digits(choice.step_seconds)} s a step, each on its fastest layout"
        + _compared(choice)
    )


def _compared(choice: LayoutChoice) -> str:
    alone = [layout.step_seconds for layout in choice.layouts if layout.step_seconds is not None]
    if len(choice.layouts) == 1 or not alone:
        return ""
    return f"; with the best one alone {min(alone) / choice.step_seconds - 1:.1%} longer"
