"""A sample of each input: what its records are, and how long.

Price: reading a few megabytes of each input, see `packer_cli.corpus.sample`, and encoding a few hundred records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.discover import discover
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.readers.registry import READERS
from packer_cli.corpus.sample import sample_files
from packer_cli.corpus.types import AlpacaForm, CorpusFile, CorpusSlice, Document, DocumentBatch
from packer_cli.format.tokens import SkippedFiles
from packer_cli.plan.core.mixture import in_tokens
from packer_cli.sizes import Share, TokenShare

MOST_RECORDS = 400
"""Most records to read of each input."""
_BYTES_A_TOKEN = 4
"""Without a tokenizer: of English text, about."""


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
    """For each kind of files, about how many records they have, and lengths of some."""

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(file.num_bytes for file in self.files)

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
        rules = ReadRules(batch_bytes=1 << 16)
        if tokenizer is not None:
            from packer_cli.format.tokens import SampleOptions
            from packer_cli.tokens.encode.encoder import Encoder
            from packer_cli.tokens.encode.masks import Backends
            from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

            loaded = LoadedTokenizer(tokenizer, chat_template=chat_template)
            self._form = "stanford" if loaded.chat_template is None else "template"
            self._has_eos = loaded.eos_token_id is not None
            options = SampleOptions(append_eos="auto" if self._has_eos else "never")
            self._encoder = Encoder(Backends(loaded), options)
            self.unused = self._encoder.unused
            rules = replace(rules, vocab_size=loaded.vocab_size)
        self._reader = SliceReader(alpaca_form=self._form, rules=rules)

    def look(self, text: str) -> Look:
        """Look at an input.

        Raises:
            InputError: it does not exist, or holds no data.
        """
        (source,), found = discover([text])
        own = [file for file in found if file.num_bytes]
        look = Look(name=text, weight=source.share, files=own, skipped=source.skipped or ())
        strata = sample_files(own)
        for stratum in strata:
            first, most = len(look.lengths), max(1, MOST_RECORDS // (len(strata) * len(stratum.places)))
            num_read = sum(self._read(place.slice_, most, look) for place in stratum.places)
            look.kinds.append((stratum.count_records(num_read), look.lengths[first:]))
        return look

    def _read(self, slice_: CorpusSlice, most: int, look: Look) -> int:
        """Add some records of a place in a file. Returns how many it has."""
        path = slice_.file.path
        if slice_.unreadable:
            look.rejects.append(f"{path}: {slice_.unreadable}")
            return 0
        look.keys = look.keys or self._first_keys(slice_)
        is_begin = slice_.start == 0 and any(file[1:5] == slice_.file[1:5] for file in look.files)
        num_read = num_taken = 0
        for batch in self._reader.read(slice_):
            num_read += len(batch.documents) + len(batch.rejects) + (len(batch.tokens.lines) if batch.tokens else 0)
            if num_taken >= most:
                continue
            for reject in batch.rejects:  # Elsewhere than at the begin of a file, lines have no number.
                look.rejects.append(f"{path}{f':{reject.line}' if is_begin else ''}: {reject.reason}")
            batch = replace(batch, documents=batch.documents[: most - num_taken])
            look.shapes.update(document.kind for document in batch.documents)
            if batch.tokens is not None:
                look.shapes["tokens"] += len(batch.tokens.lines)
            lengths = self._lengths(batch, look, slice_.file)
            look.lengths += lengths
            num_taken += len(lengths) + len(batch.rejects)
        return num_read

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


def _num_bytes(document: Document) -> int:
    if document.branches:
        return sum(map(_num_bytes, document.branches))
    texts: Iterator[str] = (str(message.get("content") or "") for message in document.messages)
    return sum(len(text.encode()) for text in (document.text, document.prompt, document.completion, *texts))
