"""Records of `tokens.json`, `hbpack.json` and plans: the inputs, the tokenizer and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packer_cli.format.constants import VALIDATION, Mask


@dataclass(frozen=True, kw_only=True)
class SkippedFiles:
    """Files of a folder or glob that are not read."""

    suffix: str
    """The suffix that they share; `no suffix`; or `_*`, where a name on the way to them begins with `_`."""
    num_files: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class SourceInfo:
    """One input."""

    name: str
    """Name as the user gave it."""
    weight: float = 1.0
    """Number of times that an epoch has each of the input's samples."""
    tokens: int | None = None
    """Number of the input's tokens that an epoch has, in place of a weight."""
    percent: float | None = None
    """The input's share of an epoch's tokens, in place of a weight."""
    skipped: tuple[SkippedFiles, ...] | None = None
    """Its files that were not read; None: there were none."""


@dataclass(frozen=True, kw_only=True)
class DamagedFile:
    """A file of which a part could not be read."""

    path: str
    num_bytes: int
    """Bytes, about, that are lost; 0 where the end of the file is missing, whose size is not known."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReadFigures:
    """Figures of what was read of an input, each record once, those of a validation set included."""

    files: int
    num_bytes: int
    """Bytes of the files, as they are stored."""
    records: int
    """Records, those that were rejected included."""
    rejected: int
    tokens: int
    """Tokens; the ones that branches of an item share count once."""
    loss_tokens: int
    num_damaged: int
    """Files of which a part could not be read."""
    lost_bytes: int
    """Bytes, about, that could not be read of them."""
    damaged: tuple[DamagedFile, ...]
    """The damaged files that lost most."""


@dataclass(frozen=True, kw_only=True)
class InputInfo(SourceInfo):
    """One input, and what was read of it."""

    read: ReadFigures


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo:
    """The identity of a tokenizer. Two with equal fingerprints give equal ids and texts."""

    fingerprint: str = ""
    """Fingerprint of all that decides ids and texts, the chat template included."""
    vocab_size: int | None = None
    """One more than the largest id, added tokens included."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eos_token: str | None = None
    pad_token_id: int | None = None
    chat_template_fingerprint: str | None = None
    """Fingerprint of the chat template; None: the tokenizer has none."""
    backend: str = ""
    """The library that encoded the first part."""
    name: str | None = None
    """Name as the user gave it."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The options that shaped the samples, as `hbpack tokenize` takes them."""

    record_schema: str = "auto"
    max_record_bytes: int = 256 * 2**20
    tokenizer_backend: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    chat_template: str | None = None
    """The text of the Jinja template; None for the tokenizer's own."""
    loss_on: str = "completion"
    append_eos: Literal["auto", "always", "never"] = "auto"
    eos_token: str | None = None
    alpaca: Literal["auto", "template", "stanford"] = "auto"
    plain_content: bool = False
    items: Literal["auto", "none", "pairs", "groups"] = "auto"
    turns: Literal["whole", "branch"] = "whole"
    share_prefixes: bool = True
    date: str | None = None
    """Date that the chat template writes as today's; None: it writes none."""
    keep_columns: str | None = None
    """Columns of the records that the store keeps, joined by commas."""

    @property
    def kept(self) -> list[str]:
        """The names of these columns."""
        return self.keep_columns.split(",") if self.keep_columns else []


class SetsAside:
    """The facts of validation that both a plan's file and `hbpack.json` know."""

    if TYPE_CHECKING:  # Each has these fields in a place of its own.
        validation: str | None
        is_validation: bool

    @property
    def sets_aside(self) -> bool:
        """Whether there is a validation set beside it."""
        return self.validation is not None and not self.is_validation

    @property
    def sets(self) -> tuple[str, ...]:
        """Folders of the sets of this plan in the folder of the plan, which is the first set's."""
        return ("", VALIDATION) if self.sets_aside else ("",)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SetsAside):
    """The options of a plan that readers of the set ask for."""

    strategy: str = ""
    packing: str = ""
    overflow: str = ""
    global_tokens: int | None = None
    mask: Mask = "document"
    validation: str | None = None
    is_validation: bool = False
    gpu_model: Mapping[str, object] | None = None
    """The model of GPUs by which the seconds of the plan's steps were predicted."""
