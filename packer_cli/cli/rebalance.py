"""`hbpack rebalance`."""

from __future__ import annotations

import click

from packer_cli.cli.command import Command, json_option, option
from packer_cli.cli.console import print_json, say_next
from packer_cli.cli.param_types import Folder
from packer_cli.errors import ConfigError
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.sizes import counted, parse_tokens


@click.command(
    "rebalance",
    cls=Command,
    examples="""
    # All of the epoch, on 16 GPUs
    hbpack rebalance OUT --gpus 16
    # What is left after two steps, on 4 GPUs
    hbpack rebalance OUT --gpus 4 --from-step 2
    """,
)
@click.argument("folder", metavar="OUT", type=Folder())
@option("--gpus", type=click.IntRange(1, 2**20), required=True, metavar="N", help="GPUs that train from now on.")
@option(
    "--state",
    metavar="FILE",
    help="The loader's state as JSON, or trainer_state.json of a checkpoint of transformers' Trainer.\n\n"
    "Save the loader's state at the end of the last step of training. It may be older than the last rebalance.",
)
@option(
    "--from-step",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="First step of the epoch that training did not run, as training counted it.\n\n"
    "Without this and --state, everything is distributed again, from where the last rebalance began.",
)
@option(
    "--epoch",
    type=click.IntRange(0, MAX_EPOCH),
    metavar="N",
    help="Epoch of --from-step.",
    show_default="the first",
)
@option("--global-tokens", metavar="TOKENS", help="Tokens of an optimizer step.", show_default="as planned")
@json_option("rebalance")
def command(
    folder: str,
    gpus: int,
    state: str | None,
    from_step: int | None,
    epoch: int | None,
    global_tokens: str | None,
    as_json: bool,
) -> None:
    """Adapt a packed data set to a different number of GPUs, even in the middle of an epoch.

    OUT is the output of `hbpack pack` or `hbpack write`. Its shards and packs stay as they are. The packs that
    are left in the epoch are distributed again, balanced by attention work, and so are all packs for later epochs.
    Training sees every remaining sample once. The SP degree of each group must divide the number of GPUs; where
    iterations mix degrees (flexsp), the largest must fit. The validation set in OUT/validation follows.
    """
    if state is not None and (from_step is not None or epoch is not None):
        raise ConfigError("--state says where the run stopped; leave out --from-step and --epoch")
    try:
        tokens = None if global_tokens is None else parse_tokens(global_tokens)
    except ValueError as error:
        raise ConfigError(f"--global-tokens: {error}") from None
    from packer_cli.commands.rebalance import run_rebalance

    done = run_rebalance(folder, gpus, state, epoch, from_step, tokens)
    if as_json:
        print_json(done)
        return
    say_next(
        f"{folder} has manifests for {counted(gpus, 'rank')}",
        f"train on {counted(gpus, 'GPU')}, from step {done.first_step} of epoch {done.first_epoch} on",
    )
