"""One task of the tokenize stage, in a worker process, which turns slices of input into a part of the token store."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.types import AlpacaForm, CorpusSlice, Gap, Reject
from packer_cli.corpus.unchanged import hold, is_small, map_many
from packer_cli.engine.sink import FinishedPart, Sink, write_part
from packer_cli.errors import InputError, RunError, TokenizerError
from packer_cli.files import HashingFile, fingerprint
from packer_cli.format.schema import RowColumns, token_type
from packer_cli.format.tokens import SampleOptions, TokenizerInfo
from packer_cli.tokens.accounts import SUMMED, kind_of, most_frequent
from packer_cli.tokens.ahead import NamedTokenizer
from packer_cli.tokens.index import STORE_VERSION, PartFile, PartInfo, StoreIndex, part_name, rejects_name
from packer_cli.tokens.input_slices import LINE, LINE_BITS, Cut, read_slices
from packer_cli.tokens.known_inputs import KnownSlice
from packer_cli.tokens.tokenizer.files import locate, tokenizer_fingerprint
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer, read_template
from packer_cli.tokens.writer import FIGURES, LateColumnsError, PartWriter

if TYPE_CHECKING:
    from packer_cli.config import TokenizeConfig
    from packer_cli.tokens.encode.encoder import Encoder
    from packer_cli.tokens.encode.masks import Backends


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """A worker's task: one part."""

    name: str
    """Place of the part, by which a run that was killed finds it again."""
    slices: tuple[CorpusSlice, ...]
    """The slices of input in the part, in order."""
    shared_fingerprint: str
    """Fingerprint of everything that decides the bytes of all parts: options, tokenizer, versions."""
    tokenizer: NamedTokenizer
    tokenizer_fingerprint: str
    """Fingerprint of the tokenizer's files and their replacements, by which a process caches loaded tokenizers."""
    options: SampleOptions

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of everything that decides the part's bytes. All slices' files must have been read."""
        assert all(slice_.file.fingerprint for slice_ in self.slices)
        if self.is_kept:
            return self.slices[0].file.fingerprint
        return fingerprint(self.shared_fingerprint, *map(_content, self.slices))

    @property
    def is_kept(self) -> bool:
        """Whether the part stays as it is, as inputs of it are gone; see `CorpusFile.is_part`."""
        return self.slices[0].file.is_part

    def read(self) -> PartTask:
        """Read small files into memory: those that nobody has read yet, and remote ones; return the task with them."""
        files = dict.fromkeys(slice_.file for slice_ in self.slices)
        is_many = len(files) > 1  # Small files, which share a part.
        todo = [file for file in files if not file.fingerprint or (is_many and is_small(file))]
        held = dict(zip(todo, map_many(hold, todo), strict=True))
        slices = (slice_._replace(file=held.get(slice_.file, slice_.file)) for slice_ in self.slices)
        return replace(self, slices=tuple(slices))


def part_tasks(config: TokenizeConfig, header: StoreIndex, cuts: Sequence[Cut]) -> list[PartTask]:
    """Make a task for each part.

    Args:
        header: facts about the whole store.

    Raises:
        TokenizerError: the tokenizer cannot be found.
    """
    files = tokenizer_fingerprint(config.tokenizer)
    return [
        PartTask(
            name=cut.name,
            slices=cut.slices,
            shared_fingerprint=fingerprint(vars(header.options), files, header.library_versions, STORE_VERSION),
            tokenizer=NamedTokenizer.of(config),
            tokenizer_fingerprint=fingerprint(files, header.options.chat_template, config.eos_token),
            options=header.options,
        )
        for cut in cuts
    ]


def _content(slice_: CorpusSlice) -> list[Any]:
    """Identify a slice's contents, without names, but with compression, which decides the meaning of the bytes."""
    file = slice_.file
    compression = [] if file.compression == "none" else [file.compression]
    return [file.fingerprint, file.format, slice_.start, slice_.stop, *compression]


@dataclass(frozen=True, kw_only=True)
class PartFacts:
    """Facts that the stage needs to know about a finished part."""

    part: PartInfo
    tokenizer: TokenizerInfo
    """The tokenizer, without its name."""
    slices: tuple[KnownSlice, ...] = ()
    """The slices as they were read; empty in the index of a store."""
    excluded: tuple[str, ...] = ()
    """Keys by which this run has left records out; empty in the index of a store."""


class Description(NamedTuple):
    """A worker's task: describe the tokenizer of a part, before the parts are made."""

    of: PartTask


_loaded: dict[tuple[str, str], Backends] = {}
_encoders: dict[tuple[str, str, SampleOptions], Encoder] = {}


def work(folder: Path, task: PartTask | Description) -> FinishedPart | TokenizerInfo:
    """Do a task in the store's folder. This module has the function because workers need not import the stage.

    Raises RunError where a file that was found when the run began can no longer be read: finished parts stay.
    """
    if isinstance(task, Description):
        return describe_tokenizer(task.of)
    try:
        return write_part(tokenize_part, task.read(), folder)
    except InputError as error:
        raise RunError(str(error)) from None


def load_ahead(tokenizer: NamedTokenizer) -> None:
    """Load a local tokenizer for the tasks to come; do nothing if it cannot be loaded, which a task will report."""
    with suppress(Exception):
        if locate(tokenizer.name) is not None:
            _load(tokenizer, tokenizer_key(tokenizer)).load()


def tokenizer_key(tokenizer: NamedTokenizer) -> str:
    """Make `PartTask.tokenizer_fingerprint`; raise TokenizerError if the tokenizer or the template cannot be found."""
    template = None if tokenizer.chat_template is None else read_template(tokenizer.chat_template)
    return fingerprint(tokenizer_fingerprint(tokenizer.name), template, tokenizer.eos_token)


def tokenize_part(task: PartTask, sink: Sink) -> PartFacts:
    """Read, render, encode and write one part.

    If the fast backend and the reference disagree, the reference encodes the whole part again.
    """
    from packer_cli.tokens.encode.backends import BackendMismatch

    if multiprocessing.parent_process() is not None:
        # The workers share the cores already.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    encoder = _encoder(task)
    columns = RowColumns()
    while True:
        try:
            part = _write_part(task, encoder, sink, columns)
        except LateColumnsError as late:
            columns = late.columns
        except BackendMismatch as mismatch:
            file = task.slices[mismatch.line >> LINE_BITS].file
            encoder = encoder.fallback(mismatch, f"{file.path}, line {mismatch.line & LINE}")
        else:
            slices = tuple(map(KnownSlice.of, task.slices))
            return PartFacts(part=part, tokenizer=describe_tokenizer(task), slices=slices)


def describe_tokenizer(task: PartTask) -> TokenizerInfo:
    """Describe a task's tokenizer, with the backend that encodes, without the tokenizer's name."""
    return replace(_tokenizer(task).describe(), backend=_encoder(task).backend_used)


def _load(tokenizer: NamedTokenizer, key: str) -> Backends:
    from packer_cli.tokens.encode.masks import Backends

    if (tokenizer.name, key) not in _loaded:
        _loaded[tokenizer.name, key] = Backends(LoadedTokenizer(*tokenizer))
    return _loaded[tokenizer.name, key]


def _tokenizer(task: PartTask) -> LoadedTokenizer:
    return _load(task.tokenizer, task.tokenizer_fingerprint).tokenizer


def _encoder(task: PartTask) -> Encoder:
    from packer_cli.tokens.encode.encoder import Encoder

    key = (task.tokenizer.name, task.tokenizer_fingerprint, task.options)
    if key not in _encoders:
        _encoders[key] = Encoder(_load(task.tokenizer, task.tokenizer_fingerprint), task.options)
    return _encoders[key]


def _reader(task: PartTask) -> SliceReader:
    options, tokenizer = task.options, _tokenizer(task)
    rules = ReadRules(
        max_record_bytes=options.max_record_bytes,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_token_id,
        keep=tuple(options.kept),
    )
    return SliceReader(schema=options.record_schema, alpaca_form=_alpaca_form(task), items=options.items, rules=rules)


def _alpaca_form(task: PartTask) -> AlpacaForm:
    has_template = _tokenizer(task).chat_template is not None
    alpaca = task.options.alpaca
    if alpaca == "template" and not has_template:
        raise TokenizerError(
            "--alpaca template needs a chat template, and the tokenizer has none; give one with --chat-template "
            "(a Jinja file, or a name such as chatml), or choose --alpaca stanford"
        )
    if alpaca == "auto":
        return "template" if has_template else "stanford"
    return alpaca


def _write_part(task: PartTask, encoder: Encoder, sink: Sink, columns: RowColumns) -> PartInfo:
    from packer_cli.tokens.encode.items import EQUAL, drop_without_loss, num_equal_pairs

    reader = _reader(task)
    encoder.start_part()
    figures: dict[str, Any] = dict.fromkeys(("num_with_special", "num_open"), 0)
    shapes: Counter[str] = Counter()
    name = part_name(task.fingerprint)
    rejects = RejectsWriter(sink, name, len(task.slices))
    with rejects, sink.file(name) as file:
        writer = PartWriter(
            file,
            token_type(_tokenizer(task).vocab_size),
            columns,
            share_prefixes=task.options.share_prefixes,
            num_slices=len(task.slices),
            keep=task.options.kept,
            kept=reader.kept,
        )
        for batch in encoder.encode_all(read_slices(reader, task.slices)):
            encoded, without_loss = drop_without_loss(batch, encoder.unused)
            samples, items, is_open = encoded.samples, encoded.items, encoded.is_open
            lines = samples.lines
            if len(lines):
                lines = lines[items.offsets[:-1]]
                is_open = np.logical_or.reduceat(is_open, items.offsets[:-1])
                encoder.unused[EQUAL] += num_equal_pairs(samples, items)
            shapes.update(encoded.kinds.get(line, "tokens") for line in lines.tolist())
            figures["num_open"] += int(np.count_nonzero(is_open))
            figures["num_with_special"] += encoded.num_with_special
            rejects.write(encoded.rejects, without_loss)
            if len(lines):
                writer.write(samples, items)
        writer.close()
    files = tuple(
        PartFile(
            path=slice_.file.path,
            source=slice_.file.source_id,
            fingerprint=slice_.file.fingerprint,
            num_bytes=slice_.file.num_bytes,
            **dict(zip(FIGURES, writer.of_slices[number].tolist(), strict=True)),
            num_rejected=rejects.reasons[number].total(),
            num_without_loss=rejects.num_without_loss[number],
            reasons=most_frequent(rejects.reasons[number]),
            lost_bytes=reader.lost[number << LINE_BITS],
            unreadable=rejects.gaps[number],
        )
        for number, slice_ in enumerate(task.slices)
    )
    return PartInfo(
        path=name,
        fingerprint=task.fingerprint,
        files=files,
        **{name: sum(getattr(file, name) for file in files) for name in SUMMED},
        **writer.figures,
        **figures,
        shapes=dict(sorted(shapes.items())),
        unused=dict(sorted((reader.unused + encoder.unused).items())),
        rejects_xxh3=rejects.xxh3,
        backend=encoder.backend_used,
        warnings=tuple(dict.fromkeys(encoder.warnings)),
    )


class RejectsWriter(ExitStack):
    """Writer of a part's rejected records as they come, with counts of them. Memory: one batch of them."""

    def __init__(self, sink: Sink, part: str, num_slices: int) -> None:
        """Open no file before there is a reject.

        Args:
            part: file name of the part.
            num_slices: number of slices of input in the part.
        """
        super().__init__()
        self.reasons: list[Counter[str]] = [Counter() for _ in range(num_slices)]
        """Number of rejected records of each slice by the kind of reason."""
        self.num_without_loss = [0] * num_slices
        """Number of those in which no token carries a loss."""
        self.gaps = [""] * num_slices
        """The reason of each slice's first gap; "" for a slice that has none."""
        self._sink, self._name = sink, rejects_name(part)
        self._file: HashingFile | None = None

    def write(self, rejects: Sequence[Reject], without_loss: Sequence[Reject]) -> None:
        """Append the rejects of the next batch; `line` is their key, see `packer_cli.tokens.input_slices`."""
        for reject in without_loss:
            self.num_without_loss[reject.line >> LINE_BITS] += 1
        rejects = [*rejects, *without_loss]
        if not rejects:
            return
        if self._file is None:
            self._file = self.enter_context(self._sink.file(self._name))
        for reject in rejects:
            number = reject.line >> LINE_BITS
            self.reasons[number][kind_of(reject.reason)] += 1
            if isinstance(reject, Gap):
                self.gaps[number] = self.gaps[number] or reject.reason
        ordered = (reject._replace(line=reject.line & LINE) for reject in sorted(rejects, key=attrgetter("line")))
        lines = [json.dumps(reject._asdict(), ensure_ascii=False) + "\n" for reject in ordered]
        self._file.write("".join(lines).encode())

    @property
    def xxh3(self) -> str | None:
        """Checksum of the file; None if there are no rejects."""
        return None if self._file is None else self._file.hexdigest()
