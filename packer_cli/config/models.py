"""One typed, validated model a stage; the command line and `--config FILE.yaml` both end here.

The JSON Schema in `schemas/config.schema.json` is generated from `PackConfig`.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from packer_cli.config.fields import Bytes, Model, or_another
from packer_cli.config.plan_options import StorePlanConfig
from packer_cli.corpus.types import OF_ITEMS, ItemsFrom, RecordSchema
from packer_cli.panels import Panel, Shown
from packer_cli.plugins import unknown
from packer_cli.sizes import EpochShare, parse_limit

_WHOLE = ("completion", "all")
_TURNS = ("last-turn",)
_PARTS = ("reasoning", "no-reasoning", "tool-calls")
_LOSSES = (*_WHOLE, *_TURNS, *_PARTS)


def _read_date(value: object) -> object:
    """Turn a text into a date; raise ValueError if it is none."""
    try:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"must be a date such as 2026-01-31, got {value!r}") from None


def read_loss_on(value: str) -> str:
    """Put the parts of a value in a fixed order, so that equal choices are equal text.

    Raises:
        ValueError: a part is unknown, or the parts do not go together.

    >>> read_loss_on("reasoning+last-turn")
    'last-turn+reasoning'
    """
    names = {name.strip() for name in value.split("+")}
    for name in sorted(names.difference(_LOSSES)):
        raise ValueError(f"must be one of {', '.join(_LOSSES)}, or some of the last four joined by +, got {name!r}")
    if len(names) > 1:
        for name in names.intersection(_WHOLE):
            raise ValueError(f"{name!r} cannot be combined with others, got {value!r}")
    if "no-reasoning" in names and names.intersection(_PARTS) != {"no-reasoning"}:
        raise ValueError(f"'no-reasoning' already is all but the reasoning; leave out one of the two, got {value!r}")
    return "+".join(name for name in _LOSSES if name in names)


_FLAT = set(get_args(RecordSchema)) - {*OF_ITEMS.values(), "tokens"}
_SCHEMAS = ("auto", *get_args(RecordSchema))


def _known_schema(name: str) -> str:
    if name not in _SCHEMAS and name not in (known := _all_schemas()):
        raise ValueError(unknown("record schema", name, known))
    return name


def _all_schemas() -> tuple[str, ...]:
    from packer_cli.corpus.records.shapes import SHAPES  # Only records of another package's shape need it before.

    return ("auto", *SHAPES.names())


def _whole_mixture(inputs: tuple[str, ...]) -> tuple[str, ...]:
    if any(text.endswith("%") for text in inputs):
        from packer_cli.corpus.input_text import parse_input  # Only shares need it before.

        shares = [weight.percent for _, weight in map(parse_input, inputs) if isinstance(weight, EpochShare)]
        if shares and len(shares) < len(inputs):
            raise ValueError("give either each input a share of an epoch's tokens, as PATH@70%, or none")
        if shares and abs(sum(shares) - 100) > 0.05:  # Three thirds, rounded, are well.
            raise ValueError(f"shares of an epoch's tokens must sum to 100 %, got {sum(shares):.6g} %")
    return inputs


def _read_limit(value: object) -> str | None:
    if value is None:
        return None
    parse_limit(str(value))
    return str(value)


_Limit = Annotated[
    str | None,
    BeforeValidator(_read_limit, json_schema_input_type=int | str | None),
    Shown(Panel.TOKENS, "N|PERCENT%[bytes]"),
]


def _names_once(text: str | None) -> str | None:
    """Check names between commas, and return them without spaces around them."""
    names = [name.strip() for name in (text or "").split(",")]
    if text is not None and ("" in names or len({*names}) < len(names)):
        raise ValueError(f"{text!r} has an empty name or one twice; write each once, such as id,license")
    return None if text is None else ",".join(names)


class TokenizeConfig(Model):
    """Corpus to token store."""

    inputs: Annotated[tuple[str, ...], AfterValidator(_whole_mixture)] = Field(min_length=1)
    """Files, directories, globs or data set names, each with an optional weight, PATH@2.0, number of tokens,
    PATH@500Mtokens, or share of an epoch's tokens, PATH@70%."""
    tokenizer: Annotated[str, Shown(metavar="PATH", is_common=True)] = Field(min_length=1)
    """Tokenizer: a folder, a file, or a name on the Hugging Face Hub.

    A file is a tokenizer.json, a SentencePiece .model, or a vocab.json with merges.txt beside it."""
    tokenizer_backend: Annotated[Literal["auto", "gigatoken", "tokenizers"], Shown(Panel.TOKENS)] = "auto"
    """Library that encodes.

    `auto` is gigatoken if it can load the tokenizer, checked against tokenizers."""
    record_schema: Annotated[
        str,
        AfterValidator(_known_schema),
        or_another(_SCHEMAS),
        Shown(Panel.TOKENS, "auto|NAME", _all_schemas),
    ] = "auto"
    """Format of the records; `auto` detects it for each record.

    The names are messages, alpaca, prompt-completion, text, tokens, preference and completions."""
    chat_template: Annotated[str | None, Shown(Panel.TOKENS, "FILE|NAME", is_common=True)] = None
    """Chat template to use instead of the tokenizer's: a Jinja file, or a name such as chatml.

    The names are chatml, gemma3, llama3, llama3.1, mistral, phi3, qwen2.5 and qwen3. You can also give the template
    itself, as text."""
    date: Annotated[datetime.date | None, BeforeValidator(_read_date), Shown(Panel.TOKENS, "YYYY-MM-DD")] = None
    """Date that the chat template writes, if it does; by default, that of the store's first run."""
    loss_on: Annotated[
        str, AfterValidator(read_loss_on), Shown(Panel.TOKENS, "PART[+PART]", lambda: _LOSSES, is_common=True)
    ] = "completion"
    """Tokens to train on: completion, all, last-turn, reasoning, no-reasoning or tool-calls.

    - `completion`: assistant turns and completions, and all of a plain text
    - `all`: every token
    - `last-turn`: the last assistant turn
    - `reasoning`: the thinking in assistant turns
    - `no-reasoning`: assistant turns without their thinking
    - `tool-calls`: the tool calls in assistant turns

    Join the last four with +, as in last-turn+reasoning or reasoning+tool-calls."""
    append_eos: Annotated[Literal["auto", "always", "never"], Shown(Panel.TOKENS)] = "auto"
    """Which samples get the EOS token at their end, and are trained on it.

    - `auto`: completions, texts, and chats whose template does not end the last turn
    - `always`: every sample that does not end with it
    - `never`: none"""
    eos_token: Annotated[str | None, Shown(Panel.TOKENS, "TOKEN")] = Field(default=None, min_length=1)
    """EOS token to use instead of the tokenizer's; it must be in its vocabulary."""
    alpaca: Annotated[Literal["auto", "template", "stanford"], Shown(Panel.TOKENS)] = "auto"
    """Form of the samples from Alpaca records.

    - `template`: a conversation, for the chat template
    - `stanford`: the prompt of the Stanford Alpaca project, and its completion
    - `auto`: `template` if there is a chat template, else `stanford`"""
    plain_content: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Encode special tokens that appear in the data as ordinary text."""
    items: Annotated[ItemsFrom, Shown(Panel.TOKENS)] = "auto"
    """Which records hold several samples that stay together in one micro-batch.

    - `auto`: preference pairs, and prompts with several completions
    - `none`: no records; pairs and groups are rejected
    - `pairs`: preference pairs; other records are rejected
    - `groups`: prompts with several completions; other records are rejected"""
    turns: Annotated[Literal["whole", "branch"], Shown(Panel.TOKENS)] = "whole"
    """Samples to make from a conversation.

    - `whole`: a conversation is one sample
    - `branch`: each assistant turn is a sample that ends with it and trains on it alone, rendered as at inference

    Use `branch` for models whose chat template leaves out the thinking of earlier turns. The turns of a conversation
    stay together in one micro-batch."""
    share_prefixes: Annotated[bool, Shown(Panel.TOKENS)] = True
    """Store the tokens that samples of a pair, group or conversation begin with only once."""
    keep_columns: Annotated[str | None, AfterValidator(_names_once), Shown(Panel.TOKENS, "NAME[,...]")] = Field(
        default=None, min_length=1
    )
    """Columns, or keys, of the records to keep beside the samples in the token store, such as id,license.

    `hbpack find --id` looks in the first of them. Their texts, numbers and booleans are kept as text, and nothing
    where a record lacks one. A record with a list or an object there is rejected."""
    exclude: Annotated[str | None, Shown(Panel.TOKENS, "FILE")] = Field(default=None, min_length=1)
    """File of records to leave out, one a line: FILE:LINE, id:VALUE or hash:HASH.

    FILE:LINE and the hash are those of `hbpack find`; VALUE is one of the first of --keep-columns. The tokens of
    other records are copied, and no input is read again. The set remembers what was ever excluded."""
    allow_skipped: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Go on with a folder or pattern of which more bytes are skipped than read.

    Files are skipped where their suffix is unknown, or a name on the way to them begins with `_`."""
    recheck: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Read all inputs again and compare their contents.

    Otherwise a file is read again only if its size, times or inode, or the ETag of an object, have changed."""
    max_rejected: _Limit = None
    """Stop before planning if more records than this are rejected: a number, or a share such as 1%.

    1%bytes is a share of the inputs' bytes. A damaged file counts as the records, or bytes, that it lost, about; a
    missing end, whose size is not known, as one record. Records without a loss do not count. What is tokenized stays,
    so a run with a higher limit goes on from there. By default, there is no limit."""
    strict: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Stop before planning if a file of a folder or pattern was skipped, or a file is damaged.

    What is tokenized stays, as with --max-rejected."""
    max_record_bytes: Annotated[Bytes, Shown(Panel.TOKENS, "BYTES")] = 256 * 2**20
    """Reject records with more bytes of decompressed text than this.

    Reading takes a few times as much memory."""

    @property
    def unit(self) -> str | None:
        """The noun for what records become: "sample", or "item" where they may share prefixes; None: they say so."""
        if self.turns == "branch" or self.items in OF_ITEMS or self.record_schema in OF_ITEMS.values():
            return "item"
        return "sample" if self.items == "none" or self.record_schema in _FLAT else None

    @model_validator(mode="after")
    def _agree_on_items(self) -> TokenizeConfig:
        if self.turns == "branch" and self.loss_on == "all":
            raise ValueError(
                "--loss-on all trains on every token, but --turns branch trains each turn once; give another --loss-on"
            )
        wanted = OF_ITEMS.get(self.items)
        schema = self.record_schema
        if (wanted is None and self.items == "none" and schema in OF_ITEMS.values()) or (
            wanted and schema not in ("auto", wanted)
        ):
            remedy = f"leave out --schema, or give --schema {wanted}" if wanted else "leave out one of the two"
            raise ValueError(f"--items {self.items} takes no records of --schema {schema}; {remedy}")
        return self


class WriteConfig(Model):
    """Plan to shards."""

    shard_size: Annotated[Bytes, Shown(Panel.OUTPUT, "BYTES")] = 256 * 2**20
    """Approximate size of a shard."""
    keep_tokens: Annotated[bool, Shown(Panel.OUTPUT)] = True
    """Keep the token store, so that you can plan again without tokenizing."""
    index_only: Annotated[bool, Shown(Panel.OUTPUT)] = False
    """Leave the tokens in the token store, which takes half the space.

    Shards then say where each pack's samples are in the token store, and the loader gathers them."""
    keep: Annotated[int | None, Shown(Panel.OUTPUT, "N")] = Field(default=None, ge=1)
    """Afterwards, remove all but the newest N versions, as `hbpack prune` does; by default all stay."""

    @model_validator(mode="after")
    def _keep_what_is_read(self) -> WriteConfig:
        if self.index_only and not self.keep_tokens:
            raise ValueError("--index-only reads the token store while training; leave out --no-keep-tokens")
        return self


class PackConfig(WriteConfig, StorePlanConfig, TokenizeConfig):
    """Everything that decides the bytes of a packed data set, which the number of workers does not."""


class AppendConfig(Model):
    """Changes to the inputs of a packed set."""

    tokenizer: Annotated[str | None, Shown(metavar="PATH", is_common=True)] = Field(default=None, min_length=1)
    """Place where the set's tokenizer is now; by default, where it was when the set was made."""
    moved: tuple[str, ...] = ()
    """Input of the set, or a folder above it, that is at NEW now, as OLD=NEW. Its contents must be the same."""
    gone: Annotated[Literal["keep", "drop"] | None, Shown(is_common=True)] = None
    """Treatment of files of the set's inputs that are gone: keep their tokens, or drop them from the set."""
    exclude: Annotated[str | None, Shown(Panel.TOKENS, "FILE")] = Field(default=None, min_length=1)
    """File of records to leave out, one a line: FILE:LINE, id:VALUE or hash:HASH.

    FILE:LINE and the hash are those of `hbpack find`; VALUE is one of the first of --keep-columns. The tokens of
    other records are copied, and no input is read again. The set remembers what was ever excluded."""
    allow_skipped: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Go on with a new folder or pattern of which more bytes are skipped than read."""
    recheck: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Read all inputs again and compare their contents.

    Otherwise a file is read again only if its size, times or inode, or the ETag of an object, have changed."""
    max_rejected: _Limit = None
    """Stop before planning if more records of new inputs than this are rejected: a number, or a share such as 1%.

    `hbpack tokenize --help-all` says how they are counted. By default, there is no limit."""
    strict: Annotated[bool, Shown(Panel.TOKENS)] = False
    """Stop before planning if a file of a new folder or pattern was skipped, or a new file is damaged."""
    keep: Annotated[int | None, Shown(Panel.OUTPUT, "N")] = Field(default=None, ge=1)
    """Afterwards, remove all but the newest N versions, as `hbpack prune` does; by default all stay."""


class WorkersConfig(Model):
    """Processes that do the work."""

    workers: Annotated[int | None, Shown(Panel.SCALE, is_common=True)] = Field(default=None, ge=1, le=4096)
    """Worker processes; by default, one for each CPU.

    A container's quota of CPUs counts. The result is the same for any number."""


class EngineConfig(WorkersConfig):
    """Place where the work runs, and the processes there."""

    engine: Annotated[str, Shown(Panel.SCALE, "local|ray|ray:ADDRESS")] = "local"
    """Place where the work runs: on this machine (`local`), or on a Ray cluster.

    `ray` is the cluster of RAY_ADDRESS, or one that hbpack starts on this machine; `ray:HOST:PORT` is another cluster.
    The result is the same for all."""


class JobConfig(EngineConfig):
    """Share of the work that a run makes, and the place where it does."""

    shard: Annotated[str | None, Shown(Panel.SCALE, "I/N", is_common=True)] = None
    """Make share I of N, counted from 0, as a task of a job array; by default, as Slurm or Kubernetes says.

    The last task to end completes the output, which is the same for any N; 0/1 is an ordinary run. Slurm says I and N
    (SLURM_ARRAY_TASK_ID and _COUNT), Kubernetes I alone (JOB_COMPLETION_INDEX), with the N that another task gave."""
