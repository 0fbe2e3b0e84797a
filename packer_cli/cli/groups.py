"""`hbpack groups`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packer_cli.cli.command import Choice, as_command, json_option, option
from packer_cli.cli.console import print_json, print_line, print_tables, say_next, shown_command, shown_options
from packer_cli.cli.options import corpus_options, inputs_argument, is_typed, model_options
from packer_cli.config import AutoGroupsConfig, GpuConfig, PlanConfig
from packer_cli.config.fields import default_of
from packer_cli.panels import Panel
from packer_cli.plan.strategies.protocol import LayoutChoice
from packer_cli.sizes import counted, four_digits

_OF_PLAN = {"strategy", "gpus", "packing", "overflow", "global_tokens", "seed"}
_OF_CHOICE = set(AutoGroupsConfig.model_fields) - {"group_algorithm"}


@as_command()
@inputs_argument
@model_options(PlanConfig, _OF_PLAN | _OF_CHOICE)
@option(
    "--group-algorithm",
    "--algorithm",
    "group_algorithm",
    type=Choice(["search", "hbp"]),
    default="search",
    show_default=True,
    help=PlanConfig.model_fields["group_algorithm"].description,
)
@json_option("output/groups", Panel.OUTPUT)
@corpus_options
def command(**values: Any) -> None:
    r"""Find the length groups with the shortest epoch for your lengths, model and GPUs.

    INPUT is a file of lengths (.npy, or text with one integer a line), a token store, or a packed data set that keeps
    its tokens; or, with --tokenizer, a corpus as `hbpack pack` takes it. Nothing is kept.

    Times and memory are predicted from the model's shape and the GPU's data sheet (--model, --gpu), or from what
    `hbpack profile` measured (--profile). `hbpack pack --groups auto` with the same options packs with these groups.

    With --strategy hydraulis and --global-tokens, find the layouts of pipelines that its steps choose from, by search
    or, with --packing published, as the paper does. For other strategies, leave out both.

    Examples::

        hbpack groups OUT --model model --gpu h100 --gpus 8
        # Straight from a corpus, with at most two groups
        hbpack groups chats.jsonl journals.jsonl --tokenizer tokenizer \
            --model model --gpu h100 --gpus 8 --max-groups 2
    """
    from packer_cli.commands.groups import find_groups

    config, found = find_groups(values["inputs"], values, [*filter(is_typed, values)])
    if print_json(found):
        return
    from packer_cli.tables.groups import alternatives_table, candidates_table, layouts_tables

    if isinstance(found, LayoutChoice):
        print_tables(*layouts_tables(found))
        longest = max(layout.longest for layout in found.layouts)
        is_usual = config.packing == default_of(PlanConfig.model_fields["packing"], config.strategy)
        options = (
            f"--strategy {config.strategy} {'' if is_usual else f'--packing {config.packing} '}--groups {longest} "
            f"--global-tokens {config.global_tokens} {shown_command(*shown_options(config, GpuConfig))}"
        )
        what = f"Steps choose from {counted(len(found.layouts), 'layout')}"
        say_next(what, _plan_command(values, options, config.gpus))
        return
    print_tables(candidates_table(found))
    for line in ("", f"  {found.options}", ""):
        print_line(line)
    if found.seconds is not None and found.gpu_hours is not None:
        print_line(
            f"  predicted epoch on {counted(found.gpus, 'GPU')}: {four_digits(found.seconds)} s, "
            f"{four_digits(found.gpu_hours)} GPU-hours"
        )
        print_line()
        print_tables(alternatives_table(found))
        print_line()
    why = "have the shortest predicted epoch" if found.seconds is not None else "were chosen by HBP's algorithm 1"
    say_next(f"Groups {found.groups} {why}", _plan_command(values, found.options, config.gpus))


def _plan_command(values: dict[str, Any], options: str, num_gpus: int) -> str:
    """Write the command that packs the inputs with the groups that were found."""
    inputs, tokenizer = values["inputs"], values["tokenizer"]
    if tokenizer is None and not Path(inputs[0]).is_file():  # A token store.
        return f"{shown_command('hbpack', 'plan', inputs[0])} {options} --gpus {num_gpus}"
    of_lengths = "hbpack pack INPUT... --tokenizer PATH"  # Their corpus is elsewhere.
    words = of_lengths if tokenizer is None else shown_command("hbpack", "pack", *inputs, "--tokenizer", tokenizer)
    return f"{words} {options} --gpus {num_gpus} --output OUT"
