"""Options of the commands that read plans and packed sets, each a validated model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from packer_cli.config.fields import Bytes, Epoch, Model, StepTokens
from packer_cli.panels import Panel, Shown


class BoundConfig(Model):
    """Proof of bounds."""

    bound: Annotated[Literal["l2", "lp"], Shown(Panel.PACKING)] = "l2"
    """Proof of the least number of packs.

    - `l2`: from sizes alone (Martello and Toth's L2)
    - `lp`: also by the linear program of cutting stock, where a plan has more packs than that; this takes up to 60
      seconds for each group of each plan"""


class RepeatConfig(Model):
    """Number of plans to compare for each row, and of samples to plan."""

    seeds: Annotated[int | None, Shown(Panel.BALANCE)] = Field(default=None, ge=1, le=1000)
    """Plan each row with this many seeds, from --seed on, and show means and standard deviations; by default 1.

    With --sample, each seed draws other samples, and the default is 3."""
    sample: Annotated[int | None, Shown(Panel.BALANCE)] = Field(default=None, ge=0)
    """Plan this many of the samples, drawn evenly over the lengths, and scale epochs to all of them; 0 for all.

    By default, of more than 3 million samples it is 50,000."""


class TrainConfig(Model):
    """Rules of training that a plan does not have."""

    pad_to: Annotated[Literal["multiple", "row", "capacity"], Shown(Panel.GROUPS)] = "multiple"
    """Length to which the loader pads rows."""
    step_seconds: Annotated[float, Shown(Panel.GROUPS, "S")] = Field(default=0.0, ge=0, le=86_400, allow_inf_nan=False)
    """Fixed seconds of each optimizer step: gradient sync and optimizer."""


class RebalanceConfig(Model):
    """Place where training goes on, and its number of GPUs."""

    gpus: Annotated[int, Shown(is_common=True)] = Field(ge=1, le=2**20)
    """GPUs that train from now on."""
    state: Annotated[str | None, Shown(metavar="FILE", is_common=True)] = None
    """The loader's state as JSON, or trainer_state.json of a checkpoint of transformers' Trainer.

    Save the loader's state at the end of the last step of training. It may be older than the last rebalance."""
    from_step: Annotated[int | None, Shown(metavar="STEP", is_common=True)] = Field(default=None, ge=0)
    """First step of the epoch that training did not run, as training counted it.

    Without this and --state, everything is distributed again, from where the last rebalance began."""
    epoch: Annotated[Epoch | None, Shown(is_common=True)] = None
    """Epoch of --from-step; by default, the first."""
    global_tokens: Annotated[StepTokens | None, Shown(metavar="TOKENS", is_common=True)] = None
    """Tokens of an optimizer step; by default, as planned."""

    @model_validator(mode="after")
    def _stop_once(self) -> RebalanceConfig:
        if self.state is not None and (self.from_step is not None or self.epoch is not None):
            raise ValueError("--state says where the run stopped; leave out --from-step and --epoch")
        return self


class ExportConfig(Model):
    """The options that, with the packed set, decide the bytes of an export."""

    format: str = Field(min_length=1)
    """Format to export to (`--to`)."""
    groups: str | None = None
    """Groups of the set to export, by capacity or by name."""
    order: Annotated[Literal["use", "packs"], Shown(is_common=True)] = "use"
    """`use`: rows as training reads them, by iteration, then DP rank; `packs`: in the order of the shards."""
    epoch: Annotated[Epoch | None, Shown(is_common=True)] = None
    """Epoch whose order `use` takes; by default, the first of the set."""
    shard_size: Annotated[Bytes | None, Shown(metavar="BYTES", is_common=True)] = None
    """Approximate size of a file; megatron has one. By default, 256MiB; mds: 64MiB."""
    loss_weights: Annotated[bool, Shown(is_common=True)] = True
    """Keep the loss weights of a set that has any; without them, each loss token counts 1."""


class StatusConfig(Model):
    """Stage of an output."""

    stage: Annotated[Literal["tokens", "plan", "shards"] | None, Shown(is_common=True)] = None
    """Look at this stage alone; the exit code is for it. By default, all."""


class ShowConfig(Model):
    """Packs to show."""

    step: Annotated[int | None, Shown(metavar="S", is_common=True)] = None
    """Step of the epoch; by default, the first."""
    rank: Annotated[int, Shown(metavar="R", is_common=True)] = 0
    """GPU, counted over all nodes."""
    iteration: Annotated[int | None, Shown(metavar="I", is_common=True)] = None
    """Iteration of the epoch in place of a step, which may have several."""
    epoch: Annotated[Epoch | None, Shown(is_common=True)] = None
    """Epoch; it may be later than the last written one. By default, the first."""
    pack: Annotated[int | None, Shown(metavar="ID", is_common=True)] = None
    """This pack, wherever the epoch uses it."""
    sample: Annotated[int | None, Shown(metavar="ID", is_common=True)] = None
    """This sample or item alone, in each pack that holds it or a piece of it."""

    @model_validator(mode="after")
    def _name_one_thing(self) -> ShowConfig:
        given = [name for name in ("step", "iteration", "pack", "sample", "rank") if name in self.model_fields_set]
        for name in ("sample", "pack"):
            if name in given and len(given) > 1:
                other = next(each for each in given if each != name)
                raise ValueError(f"--{name} says what to show; leave out --{other}")
        if "step" in given and "iteration" in given:
            raise ValueError("--iteration counts through the epoch and says its step; leave out --step")
        return self
