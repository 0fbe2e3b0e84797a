"""The rebalance stage: a packed set to another number of GPUs."""

from __future__ import annotations

from pathlib import Path

from packer_cli.output import alone
from packer_cli.rebalance import rebalance
from packer_cli.report.console import Stopwatch, say
from packer_cli.shards.manifest import Manifest, read_manifest
from packer_cli.shards.stop import Stop, read_state


@alone(has_plan=True)
def run_rebalance(
    folder: Path, num_gpus: int, state: str | None, epoch: int | None, step: int | None, global_tokens: int | None
) -> Manifest:
    """The set in `folder` for another number of GPUs, from where a run stopped."""
    watch = Stopwatch()
    if state is not None:
        stop = read_state(Path(state))
    else:
        name = (
            "the start"
            if step is None and epoch is None
            else f"--epoch {epoch}"
            if step is None
            else f"--from-step {step}"
        )
        stop = Stop(name=name, epoch=epoch, step=step)
    before = read_manifest(folder)
    manifest, is_new = rebalance(folder, num_gpus, stop, global_tokens)
    first = manifest.epochs[0]
    where = f"epoch {manifest.first_epoch} from step {first.first_step} on"
    if not is_new:
        say(f"the set is for {num_gpus} GPUs already, {where}")
        return manifest
    say(
        f"dealt {where} to {num_gpus} GPUs: {first.num_iterations:,} iterations, {first.num_steps:,} steps; whole "
        f"epochs have {manifest.metrics['overall']['num_iterations']:,} iterations, "
        f"{manifest.metrics['overall']['num_steps']:,} steps ({watch})"
    )
    if manifest.config["plan"]["global_tokens"] is None and num_gpus != before.num_gpus:
        say(
            f"each iteration is one step, so a step holds {num_gpus / before.num_gpus:.3g} times the packs that it "
            "held; --global-tokens keeps its tokens"
        )
    return manifest
