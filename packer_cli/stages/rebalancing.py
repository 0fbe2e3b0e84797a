"""The rebalance stage: a packed set to another number of GPUs."""

from __future__ import annotations

from pathlib import Path

from packer_cli.engine.progress import Stopwatch, say
from packer_cli.shards.manifest import Manifest, read_manifest
from packer_cli.shards.stop import Stop, read_state
from packer_cli.sizes import counted
from packer_cli.stages.output import alone
from packer_cli.stages.rebalance import rebalance


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
    overall = manifest.metrics["overall"]
    where = f"epoch {manifest.first_epoch} from step {first.first_step} on"
    if not is_new:
        say(f"the set is for {counted(num_gpus, 'GPU')} already, {where}")
        return manifest
    say(
        f"dealt {where} to {counted(num_gpus, 'GPU')}: {counted(first.num_iterations, 'iteration')}, "
        f"{counted(first.num_steps, 'step')}; whole epochs have {counted(overall['num_iterations'], 'iteration')}, "
        f"{counted(overall['num_steps'], 'step')} ({watch})"
    )
    if manifest.config["plan"]["global_tokens"] is None and num_gpus != before.num_gpus:
        say(
            f"each iteration is one step, so a step holds {num_gpus / before.num_gpus:.3g} times the packs that it "
            "held; --global-tokens keeps its tokens"
        )
    return manifest
