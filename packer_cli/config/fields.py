"""Parts of the models of all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from packer_cli.config.groups import read_parallel
from packer_cli.config.trainers import ABILITIES, TRAINERS, abilities, read_trainer
from packer_cli.errors import ConfigError
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.format.layout import ONE_GPU, Layout
from packer_cli.panels import Panel, Shown
from packer_cli.sizes import parse_bytes, parse_tokens


def _text_by(parse: Callable[[str], int]) -> BeforeValidator:
    return BeforeValidator(lambda it: parse(it) if isinstance(it, str) else it, json_schema_input_type=int | str)


PackTokens = Annotated[int, Field(ge=1, lt=2**31), _text_by(parse_tokens)]
StepTokens = Annotated[int, Field(ge=1, le=2**62), _text_by(parse_tokens)]
Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCH)]
Bytes = Annotated[int, Field(ge=2**16, le=2**62), _text_by(parse_bytes)]

ZERO_IS_NONE = BeforeValidator(
    lambda value: None if str(value) == "0" else value, json_schema_input_type=int | str | None
)
"""Reader of an option whose default is None: 0 leads back to the default, from the value that a plan records."""


class Model(BaseModel):
    """Options: none may change, and none may be unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)


def or_another(own: Iterable[str]) -> WithJsonSchema:
    """Make the schema of a name: one of hbpack's own, or one that another package brings."""
    return WithJsonSchema({"anyOf": [{"enum": list(own)}, {"type": "string"}]})


GIVE = "--model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"
"""The options that predictions need; for messages."""


Parallel = Annotated[Layout | None, BeforeValidator(read_parallel, json_schema_input_type=str | None)]


def known_gpus() -> Iterable[str]:
    """List the GPUs whose data sheet is known."""
    from packer_cli.cost.analytic import PRESETS

    return PRESETS


def _trainers() -> Iterable[str]:
    return (*TRAINERS, *ABILITIES)


class GpuConfig(Model):
    """Sources of predicted time and memory: the model's shape and a GPU, or measurements."""

    model: Annotated[str | None, Shown(Panel.GROUPS, "PATH", is_common=True)] = Field(default=None, min_length=1)
    """Your model's config.json (Hugging Face), or its folder; needs --gpu."""
    gpu: Annotated[str | None, Shown(Panel.GROUPS, "NAME[:KEY=VALUE,...]", known_gpus, is_common=True)] = Field(
        default=None, min_length=1
    )
    """GPU you train on, such as h100; needs --model.

    hbpack knows its speed, memory and links. You can change them, as in h100:memory=94GiB,network=25GB: `flops` are
    dense bfloat16 FLOP/s, `memory` is in bytes, `nvlink` and `network` are bytes/s in one direction, and `node` is the
    number of GPUs in a node. Any other name needs the first four."""
    profile: Annotated[str | None, Shown(Panel.GROUPS, "FILE", is_common=True)] = Field(default=None, min_length=1)
    """Measurements of `hbpack profile`, instead of --model and --gpu."""
    assume: Annotated[str | None, Shown(Panel.GROUPS, "KEY=VALUE[,...]")] = Field(default=None, min_length=1)
    """Other values for what no data sheet gives, such as gradient_bytes=2.

    docs/profile.md lists them. With --profile, only gradient_bytes and exposed_sync can be changed."""
    trainer: Annotated[
        str | None, AfterValidator(read_trainer), Shown(Panel.GROUPS, "NAME|ABILITY[,...]", _trainers)
    ] = None
    """Your trainer, such as trl or megatron, or what it can do, such as fsdp,sp,cp; by default transformers.

    Only what it can run is advised, and layouts that are chosen for you are of its kinds. `any` can run everything.
    docs/trainers.md lists what each can do."""

    @property
    def abilities(self) -> frozenset[str]:
        """Abilities of the trainer, see `config.trainers`."""
        return abilities(self.trainer)

    @property
    def has_gpu_model(self) -> bool:
        """Whether any of the options was given."""
        return any(value is not None for value in (self.model, self.gpu, self.profile, self.assume))

    def require_gpu_model(self, what: str) -> None:
        """Raise ConfigError unless the options name exactly one model.

        Args:
            what: the option or command that needs the model, such as `--groups auto`; for messages.
        """
        if self.profile is not None and (self.model is not None or self.gpu is not None):
            raise ConfigError(f"--profile replaces --model and --gpu; {what} takes one or the other")
        if self.profile is None and (self.model is None or self.gpu is None):
            option = "--model" if self.model is None else "--gpu"
            missing = "" if self.model is self.gpu else f"; {option} is missing"
            raise ConfigError(f"{what} needs {GIVE}{missing}")


class AutoGroupsConfig(GpuConfig):
    """Rules by which `auto` chooses groups, see `hbpack groups`."""

    group_algorithm: Annotated[Literal["search", "hbp"] | None, Shown(Panel.GROUPS)] = None
    """Method by which --groups auto chooses groups: hbpack's `search`, or HBP's algorithm 1.

    `search` finds the fewest groups whose predicted epoch of your lengths is within 1% of the shortest. The default is
    `hbp` with --strategy hbp, and `search` with the others."""
    max_groups: Annotated[int, Shown(Panel.GROUPS)] = Field(default=4, ge=1, le=8)
    """Most groups the search may choose."""
    parallel: Annotated[Parallel, Shown(Panel.GROUPS, "tp=N,cp=N,pp=N,vpp=N")] = None
    """Tensor, context and pipeline parallel degrees of every replica, such as tp=8,cp=2,pp=4.

    --gpus counts all GPUs. Megatron's "sequence parallelism" is part of tp; give SP degrees (Ulysses) in --groups."""
    max_length: Annotated[PackTokens | None, Shown(Panel.GROUPS, "TOKENS")] = None
    """Longest capacity to choose; by default, the longest sample fits.

    Longer samples follow --overflow."""

    @property
    def layout(self) -> Layout:
        """The degrees of `parallel`; 1 each without it."""
        return self.parallel or ONE_GPU


OF_AUTO = AutoGroupsConfig.model_fields.keys() - GpuConfig.model_fields.keys() - {"parallel"}
"""Options that have an effect only where groups are chosen."""
