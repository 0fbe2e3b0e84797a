"""Records that the corpus room hands on: sources, slices of files, documents and rejects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from packer_cli.format.tokens import SourceInfo
from packer_cli.sizes import EpochShare, Share, TokenShare

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer_cli.format.arrays import Lists

Compression = Literal["none", "gzip", "zstd", "bz2", "xz"]
FileFormat = Literal["jsonl", "json", "parquet", "arrow", "text", "datasets", "megatron", "datatrove", "flat"]
RecordSchema = Literal["messages", "alpaca", "prompt-completion", "text", "tokens", "preference", "completions"]
ItemsFrom = Literal["auto", "none", "pairs", "groups"]
OF_ITEMS = {"pairs": "preference", "groups": "completions"}
"""The only shape of records that a value of `--items` takes."""
AlpacaForm = Literal["template", "stanford"]


@dataclass(frozen=True, kw_only=True)
class Source(SourceInfo):
    """One input, and where to find it."""

    folder: str = ""
    """Folder from which a relative name starts; empty for an absolute one, a URL or a data set of the Hub."""

    @classmethod
    def of(cls, name: str, share: Share) -> Source:
        """Make the input of a name with a weight, number of tokens, or share of an epoch."""
        values: dict[str, Any] = share._asdict() if isinstance(share, tuple) else {"weight": share}
        return cls(name=name, **values)

    @property
    def share(self) -> Share:
        """The weight, number of tokens, or share of an epoch."""
        if self.percent is not None:
            return EpochShare(self.percent)
        return self.weight if self.tokens is None else TokenShare(self.tokens)

    @property
    def path(self) -> str:
        """Path of the input: its name, if that leads there from the current folder."""
        if self.folder in ("", os.getcwd()):
            return self.name
        mark = self.name[: self.name.startswith("@")]  # Of a list of inputs.
        return mark + os.path.join(self.folder, self.name.removeprefix(mark))

    def shown(self, path: str) -> str:
        """Write one of its files down as if it had been named from `folder`."""
        return path.removeprefix(os.path.join(self.folder, "")) if self.folder else path


class CorpusFile(NamedTuple):
    """One file (or Hugging Face data set split) of a source."""

    source_id: int
    """The place of its input in their order; stored with every sample."""
    path: str
    """Path as the user would write it (relative inputs stay relative); a data set's name for `datasets`."""
    format: FileFormat
    compression: Compression = "none"
    num_bytes: int = 0
    fingerprint: str = ""
    """xxh3-128 of the content, of all files that belong together; never of names or times. Empty where nobody has
    read the file."""
    content: bytes | None = None
    """All its bytes, where they are in memory."""
    stamp: str = ""
    """Tells this version of the file from others without reading it; see `versions`. Empty where it was not listed."""
    expected: str = ""
    """The fingerprint that a list of inputs asks for."""
    is_part: bool = False
    """Whether this is no input but a part of the store that stays as it is, by its number, with its fingerprint."""


class CorpusSlice(NamedTuple):
    """A contiguous range of one file that one task reads; it becomes one part of the token store.

    The cut depends on the file alone, never on the number of workers.
    """

    file: CorpusFile
    start: int
    """First unit: byte (jsonl, json, text, decompressed; flat), row group (parquet), record batch (arrow), row
    (datasets), sequence (megatron), document (datatrove).

    A record belongs to the slice in which its first byte lies."""
    stop: int
    """One past the last unit. Plain texts and Arrow streams are one slice."""
    first_line: int = 1
    """1-based number of the first record's line (or row, or element) in the file; 1 where it is not known before
    reading, as in a compressed file."""
    unreadable: str = ""
    """Why none of it can be read, where that is known: it is then one reject."""
    xxh3: str = ""
    """xxh3-128 of `span`, or, without one, of what its reader sees pass by: its bytes, or a whole compressed file."""
    span: tuple[int, int] | None = None
    """The bytes of the file that hold it, compared after they were read: another program may hold a file mapped, and
    change it without a trace in its times."""
    every: int = 1
    """1: all its batches of records are read; n: only every n-th, for a sample."""

    @classmethod
    def lost(cls, file: CorpusFile, why: str) -> CorpusSlice:
        """Make the one slice of a file of which nothing can be read."""
        why = f"{why}; what it holds is left out"
        return cls(file, 0, max(file.num_bytes, 1), unreadable=why, span=(0, file.num_bytes))


Record = dict[str, Any]
"""A record as the corpus has it, whatever its keys."""
Message = dict[str, Any]
"""A turn of a conversation, with the keys that chat templates read: `role`, `content` and any others."""


class Document(NamedTuple):
    """One raw record in normal form, unless it is tokenized (`TokenBatch`). Only the fields of its kind are set."""

    kind: RecordSchema
    """`alpaca` has `messages`, or `prompt` and `completion`, as it was asked for."""
    line: int
    """1-based line (JSONL, text) or row number in its file."""
    text: str = ""
    messages: list[Message] = []  # noqa: RUF012 - never mutated
    tools: list[Any] | None = None
    """For the chat template; without `messages` they are not used."""
    prompt: str = ""
    completion: str = ""
    weight: float = 1.0
    """Weight of each loss token, see `corpus.records.weights`."""
    weights: tuple[float, ...] | None = None
    """Weight of each message, to be multiplied with `weight`; None: 1."""
    num_prompt: int = 0
    """So many of the first messages are a prompt: what the assistant says in them carries no loss."""
    branches: tuple[Document, ...] = ()
    """Samples of a preference pair or a group, in the order of their roles; all else is then theirs."""
    rewards: tuple[float, ...] = ()
    """Reward of each branch."""
    values: Mapping[str, float] = MappingProxyType({})
    """Values that the item brings, by the names in `ITEM_VALUES`."""


class TokenRows(NamedTuple):
    """Tokenized records as a file holds them, unchecked."""

    lines: NDArray[np.int64]
    """int64[n]: line, row or place in the file, 1-based."""
    columns: dict[str, Lists]
    """`input_ids` and others of `records.token_rows.COLUMNS`, of integers or booleans; each has n lists."""

    def part(self, start: int, stop: int) -> TokenRows:
        """Take consecutive records, as views."""
        columns = {}
        for name, lists in self.columns.items():
            borders = lists.offsets[start : stop + 1]
            columns[name] = lists._replace(offsets=borders - borders[0], values=lists.values[borders[0] : borders[-1]])
        return TokenRows(self.lines[start:stop], columns)


class TokenBatch(NamedTuple):
    """Tokenized samples, in order of their lines; none is empty. A packed record gives several of one line."""

    lines: NDArray[np.int64]
    """int64[n]"""
    offsets: NDArray[np.int64]
    """int64[n+1]: sample i is `input_ids[offsets[i]:offsets[i+1]]`."""
    input_ids: NDArray[Any]
    """integers [t] in 0..2^31-1, in the type of the file; the vocabulary is not known here."""
    loss_mask: NDArray[Any] | None
    """bool[t], or float32[t]: the weight of each token's loss; None: all carry a loss of weight 1."""
    weight: NDArray[np.float32] | None = None
    """float32[n]: of each sample's record, with which `loss_mask` is multiplied already; None: 1."""


class Reject(NamedTuple):
    """A record that is left out, and why."""

    line: int
    reason: str
    """A sentence for people: what was wrong and the rule, without the file and line."""


class Gap(Reject):
    """A reject that stands for other records too, often an unknown number: the rest of a file, or of a row group."""

    __slots__ = ()


@dataclass(kw_only=True)
class DocumentBatch:
    """Some records of a slice, in the order of lines."""

    documents: list[Document] = field(default_factory=list)
    tokens: TokenBatch | None = None
    pairs: dict[int, dict[str, float]] = field(default_factory=dict)
    """Lines of `tokens` that are preference pairs, of two samples each: chosen, then rejected. With what each brings,
    by the names in `ITEM_VALUES`."""
    rejects: list[Reject] = field(default_factory=list)
