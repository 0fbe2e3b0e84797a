"""The records of a packed set's samples, read again from its inputs: the set itself holds only their tokens.

Their texts are on disk for the time of an export: written in the order of the store, taken in that of the packs.
Price: the bytes of the texts and 8 a sample, on disk; 20 bytes of memory a sample to write them, none to read them.

Price of the records: each input file with a wanted sample is read twice, once for its checksum and once for them, on
one core; about 20 us a short conversation. Memory: one slice of an input.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer_cli.corpus.discover import find_files, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Document
from packer_cli.errors import InputError
from packer_cli.export.packed import all_text
from packer_cli.files import atomic_file
from packer_cli.format.arrays import Lists, to_arrow
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.ragged import offsets_of
from packer_cli.format.versions import plan_base
from packer_cli.remote.local import map_file
from packer_cli.shards.own_store import open_own_store, store_of
from packer_cli.shards.plan_file import read_plan_header
from packer_cli.tokens.index import PartFile, StoreIndex

_REMEDY = "put it back as it was, or run hbpack pack again"


class SetRecords:
    """The records of the samples of a packed set, and the token store, which says where they are."""

    def __init__(self, source: Path) -> None:
        """Open the records of the packed set in a folder.

        Raises:
            InputError: the set has no plan, or its token store is gone.
            FormatError: either is damaged, or the store is not the plan's.
        """
        header = read_plan_header(source / PLAN_NAME)
        try:
            self.store = open_own_store(source, header)
        except InputError:
            raise InputError(
                f"the token store {str(store_of(source, header))!r} is gone, which says where the samples of "
                f"{str(plan_base(source))!r} are from; run hbpack pack again, without --no-keep-tokens"
            ) from None
        self._files: dict[tuple[int, str], CorpusFile] = {}
        """Input files by source and by path as in the store; those files of a source that were needed."""

    def where(self, sample: int) -> str:
        """Return the file and line of a sample's record, for people."""
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
        rules = ReadRules(max_record_bytes=index.options.max_record_bytes)
        reader = SliceReader(schema=index.options.record_schema, items=index.options.items, rules=rules)
        for files, borders in _by_file(index):
            samples = [np.flatnonzero(wanted[begin:end]) + begin for begin, end in itertools.pairwise(borders)]
            if not any(map(len, samples)):
                continue
            # A slice without samples may be one that crashes its reader, so it is not read.
            for slice_, of_slice in zip(self._cut(files), samples, strict=True):
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
        """Cut the slices of an input file, one for each of its entries in the store."""
        slices = slice_corpus([self._find(entries[0])])
        if len(slices) != len(entries) or slices[0].file.fingerprint != entries[0].fingerprint:
            raise InputError(f"{entries[0].path}: has changed since it was packed; {_REMEDY}")
        return slices

    def _find(self, wanted: PartFile) -> CorpusFile:
        key = wanted.source, wanted.path
        if key not in self._files:
            source = self.store.index.sources[wanted.source]
            try:
                found = find_files(source, wanted.source, output=str(self.store.folder.parent))
            except InputError as error:
                raise InputError(f"{error}; {_REMEDY}") from None
            self._files.update({(wanted.source, source.shown(file.path)): file for file in found})
        if key not in self._files:
            raise InputError(f"{wanted.path}: is gone since it was packed; {_REMEDY}")
        return self._files[key]


def _by_file(index: StoreIndex) -> Iterator[tuple[list[PartFile], list[int]]]:
    """Yield each input file's slices, in the order of the store, with the starts of their samples and the end."""
    slices, end = (file for part in index.parts for file in part.files), 0
    for _, of_file in itertools.groupby(slices, key=lambda file: (file.source, file.path)):
        files = list(of_file)
        borders = list(itertools.accumulate((file.num_samples for file in files), initial=end))
        yield files, borders
        end = borders[-1]


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Texts of samples, one after another, and where each begins: int64[num_samples+1], at the end of the file."""

    path: Path
    num_samples: int
    num_bytes: int
    xxh3: str


def open_texts(file: TextFile) -> pa.LargeBinaryArray:
    """Map what `written_texts` gave: the texts by sample id; a sample that was not written has an empty one."""
    with map_file(file.path, file.num_bytes, file.xxh3) as source:
        data = source.read_buffer()
    offsets = data.slice(data.size - 8 * (file.num_samples + 1))
    return pa.Array.from_buffers(pa.large_binary(), file.num_samples, [None, offsets, data])


def joined_texts(texts: pa.LargeBinaryArray, samples: Lists, begin: bytes, between: bytes, end: bytes) -> pa.Buffer:
    """Join for each row the texts of its samples, with what is around and between them. O(bytes).

    >>> texts = pa.array([b"one", b"two", b"three"], pa.large_binary())
    >>> joined_texts(texts, Lists(np.array([0, 2, 3]), np.array([2, 0, 1])), b"<", b", ", b">").to_pybytes()
    b'<three, one><two>'
    """
    first, comma, last, nothing = (pa.scalar(each, pa.large_binary()) for each in (begin, between, end, b""))
    rows = pa.ListArray.from_arrays(to_arrow(samples.offsets.astype(np.int32)), texts.take(to_arrow(samples.values)))
    return all_text(pc.binary_join_element_wise(first, pc.binary_join(rows, comma), last, nothing))


@contextmanager
def written_texts(texts: Iterator[tuple[int, bytes]], num_samples: int, path: Path) -> Iterator[TextFile]:
    """Keep texts in a file while the block runs.

    Args:
        texts: sample ids and texts, increasing; at least one.
        num_samples: of the store.
    """
    try:
        with atomic_file(path, sync=False) as file:
            sizes = np.zeros(num_samples, dtype=np.uint32)
            for sample, text in texts:
                sizes[sample] = file.write(text)
            file.write(bytes(-file.num_bytes % 8))
            file.write(offsets_of(sizes))
        yield TextFile(path=path, num_samples=num_samples, num_bytes=file.num_bytes, xxh3=file.hexdigest())
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()  # So that an export that is refused leaves nothing.
