"""A sample of each input: what its records are, and how long.

Price: reading about a megabyte of each of a few files of each folder and suffix, and encoding a few hundred records;
files are not read whole.
Long files of JSON lines are read at four places, as data are often sorted or joined; others from the beginning.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.discover import cut_file, discover
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.readers.registry import READERS
from packer_cli.corpus.readers.stream import END
from packer_cli.corpus.types import AlpacaForm, CorpusFile, CorpusSlice, Document, DocumentBatch
from packer_cli.corpus.versions import restamped
from packer_cli.format.tokens import SkippedFiles
from packer_cli.plan.core.mixture import in_tokens
from packer_cli.remote.local import local_file
from packer_cli.remote.path import as_path
from packer_cli.remote.system import is_url
from packer_cli.sizes import Share, TokenShare

MOST_RECORDS = 400
"""Most records to read of each input."""
_MOST_FILES = 32
"""Most files of each input, and most folders and suffixes that are told apart."""
_BYTES_A_TOKEN = 4
"""Without a tokenizer: of English text, about."""
_LONG = 1 << 22
"""Bytes of a file that is read at several places."""
_BY_BYTES = ("jsonl", "json", "text", "flat")


@dataclass(kw_only=True)
class Look:
    """Look at a sample of an input."""

    name: str
    """With its weight, as it was given."""
    weight: Share
    files: list[CorpusFile]
    """Files that hold data."""
    shapes: Counter[str] = field(default_factory=Counter)
    """Records of the sample by shape."""
    keys: tuple[str, ...] = ()
    """Keys of the first record."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of the sample's records; without a tokenizer, or a template for conversations, estimated from bytes."""
    is_estimated: bool = False
    """Whether some lengths are estimated."""
    needs_template: bool = False
    """Whether there are conversations, and the tokenizer has no chat template."""
    needs_eos: bool = False
    """Whether there are texts or completions, and the tokenizer has no EOS token."""
    skipped: tuple[SkippedFiles, ...] = ()
    """Files that are not read."""
    rejects: list[str] = field(default_factory=list)
    """Why records of the sample cannot be used: `FILE:LINE: reason`."""
    kinds: list[tuple[float, list[int]]] = field(default_factory=list)
    """For each folder and suffix, about how many records its files have, and lengths of some."""

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return _num_bytes_of(self.files)

    @property
    def num_records(self) -> float:
        """About how many the input has."""
        return sum(number for number, _ in self.kinds)


class Sampler:
    """Looks at inputs.

    Args:
        tokenizer: as `--tokenizer` takes it; None estimates lengths.
        chat_template: as `--chat-template` takes it.

    Raises:
        TokenizerError: the tokenizer cannot be loaded.
    """

    def __init__(self, tokenizer: str | None, chat_template: str | None = None) -> None:
        self._encoder: Any = None
        self.unused: Counter[str] = Counter()
        """Records of the samples with something that is not written, by what it is."""
        self._has_eos = True
        self._form: AlpacaForm = "stanford"
        if tokenizer is not None:
            from packer_cli.format.tokens import SampleOptions
            from packer_cli.tokens.encode.encoder import Encoder
            from packer_cli.tokens.encode.masks import Backends
            from packer_cli.tokens.tokenizer.loading import load_tokenizer

            loaded = load_tokenizer(tokenizer, chat_template=chat_template)
            self._form = "stanford" if loaded.chat_template is None else "template"
            self._has_eos = loaded.eos_token_id is not None
            options = SampleOptions(append_eos="auto" if self._has_eos else "never")
            self._encoder = Encoder(Backends(loaded), options)
            self.unused = self._encoder.unused
        self._reader = SliceReader(alpaca_form=self._form, rules=ReadRules(batch_bytes=1 << 16))

    def look(self, text: str) -> Look:
        """Look at an input.

        Raises:
            InputError: it does not exist, or holds no data.
        """
        (source,), found = discover([text])
        own = [file for file in found if file.num_bytes]
        look = Look(name=text, weight=source.weight, files=own, skipped=source.skipped or ())
        kinds = _kinds(own)
        for files in kinds:
            step = -(-len(files) * len(kinds) // _MOST_FILES)
            some, first = files[::step], len(look.lengths)
            most = max(1, MOST_RECORDS // (len(kinds) * len(some)))
            number = sum(self._read(file, most, look) for file in some)
            number *= _num_bytes_of(files) / max(1, _num_bytes_of(some))
            look.kinds.append((number, look.lengths[first:]))
        return look

    def _read(self, file: CorpusFile, most: int, look: Look) -> float:
        """Add some records of a file. Returns about how many it has."""
        slices = _places(restamped(file))[:most]
        if slices and slices[0].unreadable:
            look.rejects.append(f"{file.path}: {slices[0].unreadable}")
            return 0.0
        if slices and not look.keys:
            look.keys = self._first_keys(slices[0])
        num_read = num_bytes = 0
        is_whole = len(slices) == 1 and file.format in _BY_BYTES
        for slice_ in slices:
            taken = 0
            for batch in self._reader.read(slice_):
                for reject in batch.rejects:  # Behind the first place, lines have no number.
                    line = "" if slice_.start else f":{reject.line}"
                    look.rejects.append(f"{file.path}{line}: {reject.reason}")
                batch = replace(batch, documents=batch.documents[: most // len(slices) - taken])
                look.shapes.update(document.kind for document in batch.documents)
                if batch.tokens is not None:
                    look.shapes["tokens"] += len(batch.tokens.lines)
                lengths = self._lengths(batch, look, file)
                look.lengths += lengths
                taken += len(lengths) + len(batch.rejects)
                num_bytes += sum(map(_num_bytes, batch.documents)) or 2 * sum(lengths)
                num_read += (
                    len(batch.documents) + len(batch.rejects) + (len(batch.tokens.lines) if batch.tokens else 0)
                )
                if taken >= most // len(slices):
                    is_whole = False
                    break
        return (
            (is_whole and num_read)
            or _count_records(file)
            or max(num_read, num_read * file.num_bytes / max(num_bytes, 1))
        )

    def _first_keys(self, slice_: CorpusSlice) -> tuple[str, ...]:
        """Read the keys of a slice's first record, of those that some shape has."""
        for raw in READERS[slice_.file.format].read(slice_, ReadRules(batch_bytes=1 << 14), self._reader.fields):
            if raw.records or raw.tokens is not None:
                return tuple(raw.records[0][1] if raw.tokens is None else raw.tokens.columns)
        return ()

    def _lengths(self, batch: DocumentBatch, look: Look, file: CorpusFile) -> list[int]:
        documents = [branch for document in batch.documents for branch in document.branches or (document,)]
        is_chat = any(document.messages and document.kind != "alpaca" for document in documents)
        look.needs_eos |= not self._has_eos and any(not document.messages for document in documents)
        look.needs_template |= is_chat and self._encoder is not None and self._form == "stanford"
        if self._encoder is None or look.needs_template:
            look.is_estimated |= bool(batch.documents)
            of_texts = [max(1, _num_bytes(document) // _BYTES_A_TOKEN) for document in documents]
            return of_texts + ([] if batch.tokens is None else np.diff(batch.tokens.offsets).tolist())
        encoded = self._encoder.encode(replace(batch, rejects=[]))
        look.rejects += [f"{file.path}:{reject.line}: {reject.reason}" for reject in encoded.rejects]
        lengths: list[int] = np.diff(encoded.samples.offsets).tolist()
        return lengths


def epoch_lengths(looks: Sequence[Look], most: int = 200_000) -> NDArray[np.int32]:
    """Return lengths (int32[n]) as an epoch of all inputs would have, or a share of it: each sample is repeated.

    The same for the same looks.
    """
    means = [float(np.mean(look.lengths)) if look.lengths else 0.0 for look in looks]
    tokens = [look.num_records * mean for look, mean in zip(looks, means, strict=True)]
    weights = in_tokens([look.weight for look in looks], tokens)
    wanted = [
        weight.tokens / max(1.0, mean) if isinstance(weight, TokenShare) else look.num_records * weight
        for look, mean, weight in zip(looks, means, weights, strict=True)
    ]
    share = min(1.0, most / max(sum(wanted), 1))
    parts = [
        np.resize(np.array(lengths, dtype=np.int32), max(len(lengths), round(times * share * number)))
        for look, records in zip(looks, wanted, strict=True)
        for times in [records / max(look.num_records, 1)]
        for number, lengths in look.kinds
        if lengths
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def _kinds(files: Sequence[CorpusFile]) -> list[list[CorpusFile]]:
    """Group the files by folder and suffix, whose records may differ; by suffix alone, if there are many folders."""
    by_suffix, by_both = defaultdict(list), defaultdict(list)
    for file in files:
        folder, suffix = os.path.dirname(file.path), os.path.splitext(file.path)[1]
        by_suffix[suffix].append(file)
        by_both[folder, suffix].append(file)
    return [*(by_both if len(by_both) <= _MOST_FILES else by_suffix).values()]


def _num_bytes_of(files: Sequence[CorpusFile]) -> int:
    return sum(file.num_bytes for file in files)


def _places(file: CorpusFile) -> list[CorpusSlice]:
    """Return slices to begin reading at, without the fingerprint, which would take reading all of a file."""
    is_plain = file.compression == "none"
    if is_plain and file.format == "jsonl" and file.num_bytes >= _LONG and not is_url(file.path):
        return [CorpusSlice(file=file, start=start, stop=file.num_bytes) for start in _line_starts(file)]
    return cut_file(file, END)[:1] if is_plain else [CorpusSlice(file=file, start=0, stop=END)]


def _line_starts(file: CorpusFile) -> list[int]:
    """Find the starts of the first line, and of the lines behind each quarter."""
    starts = [0]
    with open(file.path, "rb") as data:
        for quarter in (1, 2, 3):
            data.seek(file.num_bytes * quarter // 4)
            data.readline(_LONG // 4)
            starts.append(data.tell())
    return sorted(set(starts))


def _count_records(file: CorpusFile) -> float | None:
    """Count about how many records a file has: exactly for Parquet, by the first megabyte's lines for JSON lines."""
    if is_url(file.path) or file.compression != "none":
        return None
    if file.format == "parquet":
        with suppress(OSError, ValueError):
            return float(_parquet_metadata(file).num_rows)
    if file.format == "jsonl":
        with open(file.path, "rb") as data:
            begin = data.read(1 << 20)
        return max(1, begin.count(b"\n")) * file.num_bytes / max(len(begin), 1)
    return None


def _parquet_metadata(file: CorpusFile) -> Any:
    """Read the footer of a Parquet file."""
    import pyarrow.parquet as pq

    return pq.read_metadata(local_file(as_path(file.path)))


def _num_bytes(document: Document) -> int:
    if document.branches:
        return sum(map(_num_bytes, document.branches))
    texts: Iterator[str] = (str(message.get("content") or "") for message in document.messages)
    return sum(len(text.encode()) for text in (document.text, document.prompt, document.completion, *texts))
