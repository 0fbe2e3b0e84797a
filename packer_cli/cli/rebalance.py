"""`hbpack rebalance`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, say_next
from packer_cli.cli.options import model_options, set_argument, wait_option
from packer_cli.config.set_options import RebalanceConfig
from packer_cli.sizes import counted


@as_command()
@set_argument
@model_options(RebalanceConfig)
@json_option("output/rebalance")
@wait_option
def command(folder: str, **values: Any) -> None:
    """Adapt a packed data set to a different number of GPUs, even in the middle of an epoch.

    OUT is the output of `hbpack pack` or `hbpack write`. Its shards and packs stay as they are. The packs that
    are left in the epoch are distributed again, balanced by attention work, and so are all packs for later epochs.
    Training sees every remaining sample once. The SP degree of each group must divide the number of GPUs; where
    iterations mix degrees (flexsp), the largest must fit. The validation set in OUT/validation follows.

    Examples::

        # All of the epoch, on 16 GPUs
        hbpack rebalance OUT --gpus 16
        # What is left after two steps, on 4 GPUs
        hbpack rebalance OUT --gpus 4 --from-step 2
    """
    from packer_cli.commands.rebalance import rebalance

    done = rebalance(folder, **values)
    if print_json(done):
        return
    say_next(
        f"{folder} has manifests for {counted(done.num_gpus, 'rank')}",
        f"train on {counted(done.num_gpus, 'GPU')}, from step {done.first_step} of epoch {done.first_epoch} on",
    )
