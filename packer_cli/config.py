"""One typed, validated model a stage; the command line and `--config FILE.yaml` both end here.

The JSON Schema in `schemas/config.schema.json` is generated from `PackConfig`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from packer_cli.errors import ConfigError
from packer_cli.sizes import format_tokens, parse_bytes, parse_tokens

SCHEMA_CHOICES = ("auto", "messages", "alpaca", "prompt-completion", "text", "tokens")
BACKEND_CHOICES = ("auto", "gigatoken", "tokenizers")
LOSS_CHOICES = ("completion", "all")
OVERFLOW_CHOICES = ("split", "truncate", "drop", "error")

_read_tokens = BeforeValidator(
    lambda value: parse_tokens(value) if isinstance(value, str) else value, json_schema_input_type=int | str
)
_read_bytes = BeforeValidator(
    lambda value: parse_bytes(value) if isinstance(value, str) else value, json_schema_input_type=int | str
)
PackTokens = Annotated[int, Field(ge=1, lt=2**31), _read_tokens]
StepTokens = Annotated[int, Field(ge=1), _read_tokens]
Bytes = Annotated[int, Field(ge=2**16), _read_bytes]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class GroupConfig(_Model):
    """One length group."""

    capacity: PackTokens
    """Most tokens a pack may hold."""
    sp_size: int = Field(default=1, ge=1, lt=2**15)
    """Sequence-parallel degree: GPUs that share one pack."""
    checkpoint_layers: int = Field(default=0, ge=0, lt=2**15)
    """Layers with gradient checkpointing, a hint for the trainer."""

    def __str__(self) -> str:
        text = f"{format_tokens(self.capacity)}:{self.sp_size}"
        return f"{text}:{self.checkpoint_layers}" if self.checkpoint_layers else text


def parse_group(text: str) -> GroupConfig:
    """Read `CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]]`.

    >>> parse_group("128k:8")
    GroupConfig(capacity=131072, sp_size=8, checkpoint_layers=0)
    """
    parts = text.strip().split(":")
    try:
        if len(parts) > 3:
            raise ValueError("too many parts")
        numbers = [int(part) for part in parts[1:]]
        return GroupConfig(
            capacity=parse_tokens(parts[0]),
            sp_size=numbers[0] if numbers else 1,
            checkpoint_layers=numbers[1] if len(numbers) > 1 else 0,
        )
    except ValueError:
        raise ValueError(
            f"group {text!r} is not CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]] with positive numbers, such as 16k:1"
        ) from None


class TokenizeConfig(_Model):
    """Corpus to token store."""

    inputs: tuple[str, ...] = Field(min_length=1)
    """Files, directories, globs or data set names, each with an optional weight: PATH@2.0."""
    tokenizer: str
    """Folder, tokenizer.json, SentencePiece .model, vocab.json beside merges.txt, or a hub name."""
    tokenizer_backend: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """What encodes; `auto` is gigatoken where it can load the tokenizer, checked against tokenizers."""
    record_schema: Literal["auto", "messages", "alpaca", "prompt-completion", "text", "tokens"] = "auto"
    """Shape of the records; `auto` finds it for each record."""
    chat_template: str | None = None
    """A Jinja file (or text) in place of the tokenizer's own template."""
    loss_on: Literal["completion", "all"] = "completion"
    """`completion`: assistant turns and completions (and all of a plain text); `all`: every token."""
    append_eos: bool = False
    """Append the EOS token to samples that do not end with it."""
    plain_content: bool = False
    """Encode special tokens written inside the data as ordinary text."""
    max_rejected: int | None = Field(default=None, ge=0)
    """Stop when more records than this are rejected; by default never."""


class PlanConfig(_Model):
    """Lengths to plan."""

    groups: tuple[GroupConfig, ...] = Field(min_length=1)
    """By rising capacity: CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]], such as 16k:1,128k:8."""
    gpus: int = Field(ge=1)
    """GPUs that train."""
    packing: str = "isf"
    """Packing algorithm with its options, such as isf:rounds=50."""
    overflow: Literal["split", "truncate", "drop", "error"] = "split"
    """What becomes of a sample longer than the largest group."""
    global_tokens: StepTokens | None = None
    """Tokens of an optimizer step; by default each iteration is one step."""
    curriculum_steps: int = Field(default=0, ge=0)
    """Steps at the start that take only the groups below the longest."""
    epochs: int = Field(default=1, ge=1)
    """Epochs to write rank manifests for; a loader can go on beyond them."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random."""

    @field_validator("groups", mode="before", json_schema_input_type=str | list[str | GroupConfig])
    @classmethod
    def _read_groups(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, (list, tuple)):
            return tuple(parse_group(item) if isinstance(item, str) else item for item in value)
        return value

    @model_validator(mode="after")
    def _check_groups(self) -> PlanConfig:
        capacities = [group.capacity for group in self.groups]
        if sorted(set(capacities)) != capacities:
            raise ValueError(
                f"groups must have rising capacities, got {','.join(map(format_tokens, capacities))}; sort them"
            )
        for group in self.groups:
            if self.gpus % group.sp_size:
                raise ValueError(
                    f"the SP degree of group {group} must divide the number of GPUs, {self.gpus}; "
                    f"choose one of {', '.join(str(d) for d in _divisors(self.gpus))}"
                )
        return self


class WriteConfig(_Model):
    """Plan to shards."""

    shard_size: Bytes = 256 * 2**20
    """Bytes of a shard, about."""
    keep_tokens: bool = True
    """Keep the token store, to plan again without tokenizing."""


class PackConfig(WriteConfig, PlanConfig, TokenizeConfig):
    """Everything that decides the bytes of a packed data set. The number of workers is not among it."""

    def part(self, model: type[_Model]) -> Any:
        """The fields of one stage as its own model."""
        return model(**{name: getattr(self, name) for name in model.model_fields})


def validate(model: type[_Model], values: dict[str, Any]) -> Any:
    """Build a model; a wrong value becomes a ConfigError of one line."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "value_error":
            raise ConfigError(f"{_option(place)}: {message}" if place else message) from None
        if first["type"] == "missing":
            raise ConfigError(f"{_option(place)} is required") from None
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"unknown option {place!r} in the config file") from None
        raise ConfigError(f"{_option(place)}: {message}, got {first['input']!r}") from None


def load_config_file(path: str) -> dict[str, Any]:
    """Read a YAML file of options; keys are option names with `-` or `_`."""
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path!r} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path!r} is not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"config file {path!r} must hold a mapping from option names to values")
    return {key.replace("-", "_"): value for key, value in data.items()}


def _option(name: str) -> str:
    field = name.split(".")[0]
    return {"inputs": "INPUT", "record_schema": "--schema"}.get(field, "--" + field.replace("_", "-"))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
