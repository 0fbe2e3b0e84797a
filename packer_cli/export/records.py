"""The records of a packed set's samples, read again from its inputs: the set itself holds only their tokens.

Price: reads each input file with a wanted sample twice, once for its checksum and once for its records, on one core;
about 20 us a short conversation. Memory: one slice of an input.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.discover import find_files, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Document
from packer_cli.errors import FormatError, InputError
from packer_cli.format.constants import PLAN_NAME
from packer_cli.remote.names import path_from
from packer_cli.shards.plan_file import read_plan_header
from packer_cli.tokens.index import PartFile, StoreIndex
from packer_cli.tokens.store import TokenStore

_REMEDY = "put it back as it was, or run hbpack pack again"


class _Entry(NamedTuple):
    """A slice of an input file, as the store lists it."""

    file: PartFile
    first_sample: int


class SetRecords:
    """The records of the samples of a packed set, and the token store, which says where they are."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store
        self._files: dict[tuple[int, str], CorpusFile] = {}
        """By source, and by path as the store has it; those of a source are looked for when first needed."""

    @classmethod
    def of(cls, source: Path) -> SetRecords:
        """Those of the packed set in a folder.

        Raises:
            InputError: the set has no plan, or its token store is gone.
            FormatError: either is damaged, or the store is not the plan's.
        """
        header = read_plan_header(source / PLAN_NAME)
        folder = path_from(source, header.store)
        try:
            store = TokenStore.open(folder)
        except InputError:
            raise InputError(
                f"the token store {str(folder)!r} is gone, which says where the samples of {str(source)!r} are from; "
                "run hbpack pack again, without --no-keep-tokens"
            ) from None
        if store.index.fingerprint != header.store_fingerprint:
            raise FormatError(
                f"the token store {str(folder)!r} has changed since the plan was made; run hbpack pack again"
            )
        return cls(store)

    def where(self, sample: int) -> str:
        """The file and line of a sample's record, for people."""
        ((path, line),) = self.store.locate(np.array([sample]))
        return f"{path}:{line}"

    def read(self, wanted: NDArray[np.bool_]) -> Iterator[tuple[int, Document | None]]:
        """Yield each wanted sample and its record, in order; None for a record of token ids.

        Args:
            wanted: bool[n], by sample.

        Raises:
            InputError: an input is gone, or has changed since it was tokenized.
            RunError: it changes while it is read.
        """
        index = self.store.index
        reader = SliceReader(schema=index.options["record_schema"], max_record_bytes=index.options["max_record_bytes"])
        for entries in _by_file(index):
            samples = [_wanted_of(entry, wanted) for entry in entries]
            if not any(map(len, samples)):
                continue
            # A slice without samples may be one that crashes its reader, so it is not read.
            for slice_, of_slice in zip(self._cut([entry.file for entry in entries]), samples, strict=True):
                if len(of_slice):
                    yield from self._read_slice(reader, slice_, of_slice)

    def _read_slice(
        self, reader: SliceReader, slice_: CorpusSlice, samples: NDArray[np.int64]
    ) -> Iterator[tuple[int, Document | None]]:
        documents = (document for batch in reader.read(slice_) for document in batch.documents)
        document = next(documents, None)
        for sample, (_, line) in zip(samples.tolist(), self.store.locate(samples), strict=True):
            while document is not None and document.line < line:
                document = next(documents, None)
            yield sample, document if document is not None and document.line == line else None

    def _cut(self, entries: Sequence[PartFile]) -> list[CorpusSlice]:
        """The slices of an input file, one for each of its entries in the store."""
        slices = slice_corpus([self._find(entries[0])])
        if len(slices) != len(entries) or slices[0].file.fingerprint != entries[0].fingerprint:
            raise InputError(f"{entries[0].path}: has changed since it was packed; {_REMEDY}")
        return slices

    def _find(self, wanted: PartFile) -> CorpusFile:
        key = wanted.source, wanted.path
        if key not in self._files:
            source = self.store.index.sources[wanted.source].source(wanted.source)
            try:
                found = find_files(source, output=str(self.store.folder.parent))
            except InputError as error:
                raise InputError(f"{error}; {_REMEDY}") from None
            self._files.update({(wanted.source, source.shown(file.path)): file for file in found})
        if key not in self._files:
            raise InputError(f"{wanted.path}: is gone since it was packed; {_REMEDY}")
        return self._files[key]


def _by_file(index: StoreIndex) -> Iterator[list[_Entry]]:
    """The slices of each input file, in the order of the store."""
    entries, first = [], 0
    for file in (file for part in index.parts for file in part.files):
        entries.append(_Entry(file, first))
        first += file.num_samples
    for _, of_file in itertools.groupby(entries, key=lambda entry: (entry.file.source, entry.file.path)):
        yield list(of_file)


def _wanted_of(entry: _Entry, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    first = entry.first_sample
    return np.flatnonzero(wanted[first : first + entry.file.num_samples]) + first
