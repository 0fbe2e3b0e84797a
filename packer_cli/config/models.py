"""One typed, validated model a stage; the command line and `--config FILE.yaml` both end here.

The JSON Schema in `schemas/config.schema.json` is generated from `PackConfig`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from packer_cli.config.fields import Bytes, Model, or_another
from packer_cli.config.plan_options import StorePlanConfig
from packer_cli.corpus.types import RecordSchema
from packer_cli.panels import Panel
from packer_cli.plugins import unknown

_WHOLE = ("completion", "all")
_TURNS = ("last-turn",)
_PARTS = ("reasoning", "no-reasoning", "tool-calls")


def read_loss_on(value: str) -> str:
    """The value with its parts in a fixed order, so that equal choices are equal text.

    Raises:
        ValueError: a part is unknown, or the parts do not go together.

    >>> read_loss_on("reasoning+last-turn")
    'last-turn+reasoning'
    """
    names = {name.strip() for name in value.split("+")}
    known = (*_WHOLE, *_TURNS, *_PARTS)
    for name in sorted(names.difference(known)):
        raise ValueError(f"must be one of {', '.join(known)}, or some of the last four joined by +, got {name!r}")
    if len(names) > 1:
        for name in names.intersection(_WHOLE):
            raise ValueError(f"{name!r} cannot be combined with others, got {value!r}")
    if "no-reasoning" in names and names.intersection(_PARTS) != {"no-reasoning"}:
        raise ValueError(f"'no-reasoning' already is all but the reasoning; leave out one of the two, got {value!r}")
    return "+".join(name for name in known if name in names)


_SCHEMAS = ("auto", *get_args(RecordSchema))


def _known_schema(name: str) -> str:
    if name not in _SCHEMAS:
        from packer_cli.corpus.records import SHAPES  # Only records of another package's shape need it before.

        if name not in SHAPES:
            raise ValueError(unknown("record schema", name, ("auto", *SHAPES.names())))
    return name


class TokenizeConfig(Model):
    """Corpus to token store."""

    inputs: tuple[str, ...] = Field(min_length=1)
    """Files, directories, globs or data set names, each with an optional weight, PATH@2.0, or number of tokens,
    PATH@500Mtokens."""
    tokenizer: str = Field(min_length=1)
    """Folder, tokenizer.json, SentencePiece .model, vocab.json beside merges.txt, or a hub name."""
    tokenizer_backend: Annotated[Literal["auto", "gigatoken", "tokenizers"], Panel.TOKENS] = "auto"
    """Library that encodes; `auto` is gigatoken if it can load the tokenizer, checked against tokenizers."""
    record_schema: Annotated[str, AfterValidator(_known_schema), or_another(_SCHEMAS), Panel.TOKENS] = "auto"
    """Shape of the records; `auto` detects it for each record."""
    chat_template: Annotated[str | None, Panel.TOKENS] = None
    """Template to use instead of the tokenizer's own: a Jinja file (or text), or a name: chatml, gemma3, llama3,
    llama3.1, mistral, phi3, qwen2.5, qwen3."""
    loss_on: Annotated[str, AfterValidator(read_loss_on), Panel.TOKENS] = "completion"
    """`completion`: assistant turns and completions (and all of a plain text); `all`: every token; `last-turn`: the
    last assistant turn; `reasoning`: the thinking in assistant turns; `no-reasoning`: assistant turns without it;
    `tool-calls`: the tool calls in them. Join with +: last-turn+reasoning, reasoning+tool-calls."""
    append_eos: Annotated[Literal["auto", "always", "never"], Panel.TOKENS] = "auto"
    """Which samples get the EOS token at their end, and are trained on it: `auto`: completions, texts, and chats whose
    template does not end the last turn; `always`: every sample that does not end with it; `never`: none."""
    eos_token: Annotated[str | None, Panel.TOKENS] = Field(default=None, min_length=1)
    """EOS token to use instead of the tokenizer's own, or if it has none; a token of its vocabulary."""
    alpaca: Annotated[Literal["auto", "template", "stanford"], Panel.TOKENS] = "auto"
    """What Alpaca records become: `template`: a conversation for the chat template; `stanford`: the prompt of the
    Stanford Alpaca project and its completion; `auto`: the template if there is one."""
    plain_content: Annotated[bool, Panel.TOKENS] = False
    """Encode special tokens written inside the data as ordinary text."""
    max_rejected: Annotated[int | None, Panel.TOKENS] = Field(default=None, ge=0)
    """Stop if more records than this are rejected, not counting those without a loss. By default, there is no
    limit."""
    max_record_bytes: Annotated[Bytes, Panel.TOKENS] = 256 * 2**20
    """Largest record, in bytes of decompressed text; longer ones are rejected. Reading takes a few times as much
    memory."""


class WriteConfig(Model):
    """Plan to shards."""

    shard_size: Annotated[Bytes, Panel.OUTPUT] = 256 * 2**20
    """Approximate size of a shard."""
    keep_tokens: Annotated[bool, Panel.OUTPUT] = True
    """Keep the token store, to plan again without tokenizing."""
    index_only: Annotated[bool, Panel.OUTPUT] = False
    """Leave the tokens in the token store: shards say where each pack's samples lie there, and the loader gathers
    them. Takes half the space."""

    @model_validator(mode="after")
    def _keep_what_is_read(self) -> WriteConfig:
        if self.index_only and not self.keep_tokens:
            raise ValueError("--index-only reads the token store while training; leave out --no-keep-tokens")
        return self


class PackConfig(WriteConfig, StorePlanConfig, TokenizeConfig):
    """Everything that decides the bytes of a packed data set. The number of workers is not among it."""


class WorkersConfig(Model):
    """Where work runs."""

    workers: int | None = Field(default=None, ge=1, le=4096)
    """Worker processes; by default, as many as there are CPUs. The result is the same for any number."""


class BoundConfig(Model):
    """How bounds are proved."""

    bound: Literal["l2", "lp"] = "l2"
    """Proof of the least number of packs: `l2` uses sizes alone (Martello and Toth's L2); `lp` also solves the linear
    program of cutting stock where a plan has more packs than that, which takes up to 60 seconds for each group of each
    plan."""


class TrainConfig(Model):
    """How a plan is trained, beyond what the plan says."""

    pad_to: Literal["multiple", "row", "capacity"] = "multiple"
    """What the loader pads rows to."""
    step_seconds: float = Field(default=0.0, ge=0, le=86_400, allow_inf_nan=False)
    """Fixed seconds of each optimizer step: gradient sync and optimizer."""
