"""Parts of the models of all stages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from packer_cli.config.groups import read_parallel
from packer_cli.config.messages import say_wrong
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.format.layout import DEGREES, ONE_GPU, Layout
from packer_cli.panels import Panel, Shown
from packer_cli.plan.strategies.protocol import NOT_FOR_ALL
from packer_cli.plan.strategies.registry import DEFAULT, PACKED, STRATEGIES
from packer_cli.sizes import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from packer_cli.plan.strategies.protocol import PlanRequest


M = TypeVar("M", bound=BaseModel)


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


def validate(model: type[M], values: Mapping[str, Any]) -> M:
    """Build a model; raise a ConfigError of one line for a wrong value.

    Args:
        values: values of a command, which may have more than the model; None means that an option was not given.
    """
    try:
        return model(**{name: values[name] for name in model.model_fields if values.get(name) is not None})
    except ValidationError as error:
        raise ConfigError(say_wrong(error)) from None


def or_another(own: Iterable[str]) -> WithJsonSchema:
    """Make the schema of a name: one of hbpack's own, or one that another package brings."""
    return WithJsonSchema({"anyOf": [{"enum": list(own)}, {"type": "string"}]})


ABILITIES: Mapping[str, str] = {
    "fsdp": "gather weights in every micro-batch, in which all GPUs meet (FSDP, ZeRO-3)",
    "zero-1": "keep its weights on each replica, and run as many micro-batches there as it has (DDP, ZeRO-1)",
    "sp": "share rows by sequence parallelism (Ulysses)",
    "cp": "share rows by context parallelism",
    "tp": "run tensor parallelism",
    "pp": "run pipelines",
    "degrees": "change the degrees from one iteration to the next",
    "unlike-degrees": "run replicas of unlike degrees side by side",
}
"""Differences between trainers, each worded to follow "can"."""

_LOADER = frozenset({"fsdp", "sp", "degrees"})
TRAINERS: Mapping[str, frozenset[str]] = {
    "pytorch": _LOADER | {"zero-1", "cp", "unlike-degrees"},
    "transformers": _LOADER,
    "trl": _LOADER,
    "axolotl": _LOADER,
    "accelerate": _LOADER,
    "lightning": _LOADER,
    "torchtitan": frozenset({"fsdp", "cp"}),
    "megatron": frozenset({"zero-1", "cp", "tp", "pp"}),
    "any": frozenset(ABILITIES),
}
"""Abilities of each trainer with hbpack's sets, see docs/trainers.md."""
_TRAINER_WORDS = (*TRAINERS, *ABILITIES)
USUAL = "transformers"
"""The trainer that is assumed where none is named: it can do no more than any of hbpack's loops."""


def read_trainer(value: str) -> str:
    """Check `NAME|ABILITY[,...]`, and return it.

    Raises:
        ValueError: a word is neither a name nor an ability.
    """
    for word in value.split(","):
        if word not in _TRAINER_WORDS:
            raise ValueError(
                f"{word!r} is no trainer and nothing that one can do{did_you_mean(word, _TRAINER_WORDS)}; choose of "
                f"{', '.join(TRAINERS)}, and of {', '.join(ABILITIES)}"
            )
    return value


def asked_of_trainer(request: PlanRequest) -> frozenset[str]:
    """Find the abilities without which a trainer cannot run a plan."""
    layouts = {group.layout._replace(vpp=1) for group in request.groups}
    found = {name for name in DEGREES if any(getattr(layout, name) > 1 for layout in layouts)}
    keeps_weights = request.lockstep == 1 or {"tp", "pp"} & found
    found.add("zero-1" if keeps_weights else "fsdp")
    if len(layouts) > 1:
        found.add(request.strategy.ability)
    return frozenset(found)


GIVE = "--model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"
"""The options that predictions need; for messages."""


Parallel = Annotated[Layout | None, BeforeValidator(read_parallel, json_schema_input_type=str | None)]


def known_gpus() -> Iterable[str]:
    """List the GPUs whose data sheet is known."""
    from packer_cli.cost.analytic import PRESETS

    return PRESETS


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
        str | None,
        AfterValidator(read_trainer),
        Shown(Panel.GROUPS, "NAME|ABILITY[,...]", lambda: _TRAINER_WORDS),
    ] = None
    """Your trainer, such as trl or megatron, or what it can do, such as fsdp,sp,cp; by default transformers.

    Only what it can run is advised, and layouts that are chosen for you are of its kinds. `any` can run everything.
    docs/trainers.md lists what each can do."""

    @property
    def abilities(self) -> frozenset[str]:
        """Abilities of the trainer, see docs/trainers.md."""
        words = (self.trainer or USUAL).split(",")
        return frozenset().union(*(TRAINERS.get(word, {word}) for word in words))

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


NUM_HASHES = 2**64
"""Number of hashes: each is a number below this."""

_RULE = (
    "write a share of the samples, such as 1%, a number of samples, such as 2000 or 2k, 0 for none, or the bound that "
    "hbpack.json notes, such as 0x028f5c28f5c28f5c"
)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6}


def read_validation(value: Any) -> str | None:
    """Write the value in one form, so that equal choices are equal text; None for none.

    Raises:
        ValueError: the value is neither a share, nor a number, nor a bound as `format_bound` writes it.

    >>> read_validation("0.50%"), read_validation("2k"), read_validation("0x028F5C28F5C28F5C")
    ('0.5%', '2000', '0x028f5c28f5c28f5c')
    """
    if value is None or str(value).strip() in ("0", "0%"):
        return None
    text = value.strip() if isinstance(value, str) else str(value)
    if re.fullmatch("0x[0-9a-fA-F]{16}", text):
        return text.lower()
    share = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,15})?)\s*%", text)
    if share:
        if not 0 < Decimal(share[1]) < 100:
            raise ValueError(f"{text} is not between 0% and 100%; {_RULE}")
        return f"{Decimal(share[1]).normalize():f}%"
    number = re.fullmatch("([0-9]{1,15})([kKmM]?)", text)
    if isinstance(value, bool) or number is None or not int(number[1]):
        raise ValueError(f"{text!r} is neither a share nor a number of samples; {_RULE}")
    return str(int(number[1]) * _THOUSANDS[number[2].lower()])


def bound_of(text: str) -> int | None:
    """Return the bound: samples with a hash below it are set aside. None for a number, whose bound the samples decide.

    Args:
        text: the result of `read_validation`.

    >>> bound_of("50%") == 2**63, bound_of("2000")
    (True, None)
    """
    if text.startswith("0x"):
        return int(text, 16)
    return int(Fraction(text[:-1]) * NUM_HASHES / 100) if text.endswith("%") else None


def format_bound(bound: int) -> str:
    """Write a bound as `read_validation` reads it.

    >>> format_bound(255)
    '0x00000000000000ff'
    """
    return f"{bound:#018x}"


REQUIRED: Final = object()
"""Value in place of a default, for an option that has none."""


OF_TREES: Final = {"packing": "isf", "max_path_tokens": "2x"}
"""Options whose usual default is another for samples that share prefixes, with that default."""
_OF_TREES = "of_trees"


def by_strategy(name: str, usual: Any, **rules: Any) -> Any:
    """Make the `Field` of an option for which strategies have defaults of their own.

    Args:
        usual: the default of all other strategies; `REQUIRED` for none.
        rules: arguments of pydantic's `Field`.
    """

    def default(data: Mapping[str, Any]) -> Any:
        # None for a plan whose package is not installed here.
        strategy = STRATEGIES.get(data.get("strategy", DEFAULT))
        of_all = OF_TREES.get(name, usual) if data.get(_OF_TREES) else usual
        return of_all if strategy is None else strategy.defaults.get(name, of_all)

    shown = None if usual is REQUIRED else {"default": usual}
    return Field(default_factory=default, validate_default=True, json_schema_extra=shown, **rules)


def default_of(field: FieldInfo, strategy: str = DEFAULT, *, of_trees: bool = False) -> Any:
    """Return the default of a field with a strategy; `REQUIRED` if there is none.

    Args:
        of_trees: whether samples share prefixes.
    """
    if field.is_required():
        return REQUIRED
    return field.get_default(call_default_factory=True, validated_data={"strategy": strategy, _OF_TREES: of_trees})


def shown_default(field: FieldInfo) -> Any:
    """Return the usual default of a field; None if there is none."""
    default = default_of(field)
    return None if default is REQUIRED else default


def require_declared(name: str, fields: Mapping[str, FieldInfo]) -> None:
    """Raise ConfigError if another package's strategy declares what is no plan option, or has no other default."""
    strategy = STRATEGIES[name]
    of = f"strategy {name!r} cannot be used: its"
    for kind in ("defaults", "ignores", "supports"):
        wrong = sorted(set(getattr(strategy, kind)) - fields.keys())
        if wrong:
            raise ConfigError(f"{of} {kind} name {wrong[0]!r}, which is not a plan option")
    for option, value in strategy.defaults.items():
        if default_of(fields[option], name) != value:
            raise ConfigError(f"{of} defaults name {option!r}, whose default is the same for all strategies")


def unsupported(name: str, config: Any) -> str | None:
    """Write the first option that is not at its default and that a strategy does not support; None without one."""
    for option in sorted(NOT_FOR_ALL - STRATEGIES[name].supports):
        value = getattr(config, option)
        if option == "align" and value is None:  # Plans record it with their groups.
            value = next((group.align for group in config.groups if group.align > 1), None)
        if value != default_of(type(config).model_fields[option], config.strategy):
            return f"--{option.replace('_', '-')} {value}"
    return None


def refusal(name: str, option: str, config: Any) -> str:
    """Write the error for the option that `unsupported` found."""
    able = [other for other in PACKED if unsupported(other, config) is None]
    return f"strategy {name} does not support {option}; leave that out, or choose one of {', '.join(able)}"
