"""`hbpack profile`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from packer_cli.cli.command import Choice, Command, option
from packer_cli.cli.console import print_tables, say_next, shown_command
from packer_cli.cli.output_file import output_file
from packer_cli.cli.param_types import LocalPath
from packer_cli.cost.profile import Profile
from packer_cli.engine.progress import say
from packer_cli.errors import ConfigError, InputError, RunError
from packer_cli.files import write_text
from packer_cli.sizes import counted, parse_bytes, parse_integer, parse_tokens


@click.command(
    "profile",
    cls=Command,
    examples=r"""
    hbpack profile --model model --output profile.json
    # SP degrees up to 8, with the weights sharded over 8 GPUs
    torchrun --nproc-per-node 8 -m packer_cli profile --model model \
        --output profile.json
    """,
)
@option(
    "--model",
    type=LocalPath(),
    required=True,
    metavar="PATH",
    help="The model's config.json (Hugging Face), or its folder.",
)
@option(
    "-o",
    "--output",
    type=LocalPath(is_output=True),
    required=True,
    metavar="FILE",
    help="Profile to write, such as profile.json.",
)
@option(
    "--lengths",
    default="2k,4k,8k,16k,32k,64k,128k",
    show_default=True,
    metavar="TOKENS,...",
    help="Row lengths to measure, at least two.",
)
@option(
    "--sp",
    metavar="DEGREE,...",
    help="SP degrees to measure.",
    show_default="all that the processes of torchrun and the model's heads allow",
)
@option(
    "--checkpoint-layers",
    default="auto",
    show_default=True,
    metavar="LAYERS,...",
    help="Numbers of checkpointed layers; `auto` finds the fewest that fit (HBP, algorithm 4), and also measures all.",
)
@option(
    "--samples",
    default="1,8",
    show_default=True,
    metavar="N,...",
    help="Samples in a row; rows of several tell linear from quadratic cost.",
)
@option(
    "--gpus",
    type=click.IntRange(1, 2**20),
    metavar="N",
    help="GPUs that will train, and share the weights.",
    show_default="those that measure",
)
@option(
    "--memory",
    metavar="BYTES",
    help="Memory of a GPU that training may take, such as 72GiB.",
    show_default="0.9 of what it has",
)
@option(
    "--bandwidth",
    metavar="BYTES[,BYTES]",
    help="Bytes a second that all-to-alls reach within a node and, after a comma, between nodes.\n\n"
    "For the SP degrees that are not measured.",
)
@option(
    "--modelling",
    type=Choice(["transformers", "plain"]),
    default="transformers",
    show_default=True,
    help="Whose code runs: transformers', or a stack of decoder layers of the same shape in plain torch.",
)
@option(
    "--weights",
    type=Choice(["sharded", "whole"]),
    default="sharded",
    show_default=True,
    help="How the processes of torchrun hold the weights: `sharded` (FSDP, ZeRO-3) or `whole` (DDP).\n\n"
    "Processes with sharded weights gather them in every micro-batch. Plans with --lockstep 1 are trained with whole "
    "weights.",
)
@option(
    "--attention",
    type=Choice(["auto", "flash-attn", "torch-varlen", "sdpa"]),
    default="auto",
    show_default=True,
    help="Attention kernel; `auto` is the first that is installed; sdpa on a CPU.",
)
@option(
    "--logits",
    type=Choice(["float32", "chunked"]),
    default="float32",
    show_default=True,
    help="`chunked` takes the loss a thousand tokens at a time, as a fused loss does; with --modelling plain.",
)
@option(
    "--dtype",
    type=Choice(["bfloat16", "float16", "float32"]),
    help="Type of weights and activations.",
    show_default="the config's",
)
@option(
    "--device",
    type=Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="Where to measure; `auto` is the GPU if there is one. Times of a CPU say nothing about a GPU.",
)
@option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="Runs for each median."
)
@option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the profile as JSON; schemas/profile.schema.json describes it.",
)
def command(output: str, repeats: int, gpus: int | None, as_json: bool, **values: Any) -> None:
    """Measure iteration times and peak memory of your model on the GPUs of this machine.

    Forward and backward of packed rows are measured for each length, SP degree and number of checkpointed layers, with
    random weights and no data, and a model of time and memory is fitted to them. Run it under torchrun to measure SP
    degrees above 1 with the processes' real all-to-alls, and weights that all GPUs share (FSDP). Needs torch.

    `hbpack groups`, `hbpack simulate` and `--cost profile` take the file as --profile.
    """
    path = output_file(output, "profile.json", _is_profile)
    layers = values["checkpoint_layers"]
    numbers: dict[str, Any] = {
        "lengths": _list("--lengths", values["lengths"], parse_tokens),
        "samples": _list("--samples", values["samples"], parse_integer),
        "sp_sizes": () if values["sp"] is None else _list("--sp", values["sp"], parse_integer),
        "checkpoint_layers": None if layers == "auto" else _list("--checkpoint-layers", layers, parse_integer, 0),
        "bandwidth": () if values["bandwidth"] is None else _list("--bandwidth", values["bandwidth"], parse_bytes),
        "memory": () if values["memory"] is None else _list("--memory", values["memory"], parse_bytes),
    }
    if len(numbers["lengths"]) < 2:
        raise ConfigError(
            f"--lengths takes two lengths at least, got {values['lengths']!r}: one does not tell how memory grows; "
            "add another, such as its double"
        )
    if len(numbers["bandwidth"]) > 2:
        raise ConfigError(
            f"--bandwidth takes one or two numbers, got {values['bandwidth']!r}; write the one within a node, then "
            "the one between nodes, such as 400GB,50GB"
        )
    if len(numbers["memory"]) > 1:
        raise ConfigError(f"--memory takes one number, got {values['memory']!r}; write for example 72GiB")
    numbers["memory"] = numbers["memory"][0] if numbers["memory"] else None
    try:
        from packer_cli.measure.run import ProfileOptions, measure_profile
    except ImportError as error:
        raise ConfigError(str(error)) from None
    is_first = os.environ.get("RANK", "0") == "0"
    profile = measure_profile(
        ProfileOptions(
            repeats=repeats,
            gpus=gpus,
            **numbers,
            **{
                name: values[name]
                for name in ("model", "modelling", "weights", "attention", "logits", "dtype", "device")
            },
        ),
        say if is_first else lambda text: None,
    )
    if is_first:
        from packer_cli.tables.profile import profile_tables

        try:
            write_text(path, profile.model_dump_json(indent=2) + "\n")
        finally:
            if as_json:
                click.echo(profile.model_dump_json(indent=2))
            else:
                # Print it even if the disk is full: measuring again takes minutes.
                print_tables(*profile_tables(profile))
        if not as_json:
            click.echo(f"wrote {output}")
        _require_fits(output, profile)
        if not as_json:
            what = f"{output} holds {counted(len(profile.iterations), 'measured row')}"
            say_next(what, f"{shown_command('hbpack', 'groups', 'LENGTHS', '--profile', output)} --gpus {gpus or 'N'}")


def _is_profile(path: Path) -> bool:
    from packer_cli.config.gpu_model import read_profile

    try:
        read_profile(path)
    except InputError:
        return False
    return True


def _require_fits(output: str, profile: Profile) -> None:
    """Raise now the error that a command given this file would raise. The file stays, since its rows are useful."""
    from packer_cli.cost.measured import measured_model

    try:
        measured_model(profile)
    except ConfigError as error:
        # HBP's algorithm 1 uses the rows directly.
        has_rows = any(row.seconds is not None for row in profile.iterations)
        users = "only --group-algorithm hbp can use it" if has_rows else "no command can use it yet"
        raise RunError(f"nothing was fitted to {output!r}, so {users}: {error}") from None


def _list(option: str, text: str, parse: Any, least: int = 1) -> tuple[int, ...]:
    """The numbers, without repetitions."""
    try:
        numbers = [parse(word.strip()) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    for number in numbers:
        if number < least:
            raise ConfigError(f"{option}: numbers must be at least {least}, got {number}")
    return tuple(dict.fromkeys(numbers))
