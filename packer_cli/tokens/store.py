"""Reads a token store, for planning and gathering.

A sample's id is its row number over all parts in order. The parts are memory-mapped: opening the store reads only
lengths, and gathering a pack copies only its tokens. Of a remote store, ranges are read (`ranges.py`), until
`fetch_parts` fetches whole parts, which are memory-mapped from then on.

A row of a store of items is an item; a sample of a part without items is one of one branch. All parts of such a store
are fetched when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.arrays import Columns, columns_of
from packer_cli.format.constants import REFERENCE_VALUES
from packer_cli.format.items import BRANCH_LISTS, items_of_samples, trees_of_rows, unique_tokens
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS
from packer_cli.format.ragged import Lists, offsets_of, owners
from packer_cli.format.schema import ITEM_VALUES, KEPT
from packer_cli.format.token_parts import Spans
from packer_cli.format.trees import ItemTrees
from packer_cli.plan.core.types import Int64Array, Pieces
from packer_cli.remote.local import is_in_cache, map_file
from packer_cli.remote.path import RemotePath
from packer_cli.tokens.copying import Among, copy_spans, take_lists
from packer_cli.tokens.index import PartInfo, StoreIndex, open_part, read_index
from packer_cli.tokens.item_pieces import are_of, branch_spans, cut_items, item_trees, take_items
from packer_cli.tokens.ranges import REQUEST_BYTES, RangedParts

_BATCHES_AT_ONCE = 64
"""Record batches of which the lines are in memory at a time."""
_FETCHES = 8
"""Parts that are fetched at a time."""
_NONE = np.zeros(0, dtype=np.int32)


def open_store(folder: Path, index: StoreIndex | None = None) -> TokenStore:
    """Open the store in a folder.

    Args:
        index: what `read_index` gave, if that was called.

    Raises:
        InputError: the folder holds no finished store.
        FormatError: the store is damaged, or has another version.
    """
    return TokenStore(folder, index or read_index(folder))


class TokenStore:
    """A token store, opened for planning and gathering."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder = folder
        self.index = index
        self._token: np.dtype[Any] = np.dtype(str(index.token_type))
        self._ranged = None
        if isinstance(folder, RemotePath) and not index.columns.of_items:
            self._ranged = RangedParts(folder, index.parts, index.token_type)
        self._batches: list[Columns | None]
        """Columns of record batches; None for one that is remote, of which ranges are read."""
        if self._ranged:
            self._batches = [None] * len(self._ranged.batches)
            counts = [batch.num_rows for batch in self._ranged.batches]
        else:
            batches = [columns_of(batch) for of_part in self._open_parts(index.parts) for batch in of_part]
            self._batches = [*batches]
            counts = [len(batch["line"]) for batch in batches]
        self._lock = Lock()
        self._made_rows: list[Columns] | None = None
        self._made_arrays: dict[tuple[str, str], list[NDArray[Any]]] = {}
        self._is_weighted = index.columns.is_weighted
        self._first_sample = offsets_of(np.array(counts))
        self._files = [file for part in index.parts for file in part.files]
        self._num_samples = np.array([file.num_samples for file in self._files], dtype=np.int64)
        self._source = np.array([file.source for file in self._files], dtype=np.int32)

    def __len__(self) -> int:
        return int(self._first_sample[-1])

    def lengths(self) -> NDArray[np.int32]:
        """Count the tokens of each sample, the unique ones of an item: int32[n]."""
        return np.concatenate([_NONE, *(np.diff(offsets) for offsets in self._columns("offsets"))])

    def num_loss_tokens(self) -> NDArray[np.int32]:
        """Count the loss tokens of each sample, without its first token; of an item, of all its branches: int32[n]."""
        return np.concatenate([_NONE, *self._columns("num_loss_tokens")])

    def hashes(self) -> NDArray[np.uint64]:
        """Return the content hash of each sample, or item: uint64[n]."""
        return np.concatenate([np.zeros(0, dtype=np.uint64), *self._columns("content_hash")])

    def sources_of(self, sample: NDArray[np.integer]) -> NDArray[np.int32]:
        """Find the source of each of these samples: int32[m]."""
        return self._source[self._file_of(sample)]

    def sources(self) -> NDArray[np.signedinteger[Any]]:
        """Find the source of every sample: int[n], read-only, of the smallest type, and of no memory for one
        source."""
        first, last = int(self._source.min(initial=2**31 - 1)), int(self._source.max(initial=0))
        if first >= last:
            return np.broadcast_to(np.int8(0) if not len(self) else np.int32(last), len(self))
        dtype = next(kind for kind in (np.int8, np.int16, np.int32) if last <= np.iinfo(kind).max)
        sources = np.repeat(self._source.astype(dtype), self._num_samples)
        sources.flags.writeable = False
        return sources

    def _file_of(self, sample: NDArray[np.integer]) -> NDArray[np.int64]:
        return np.searchsorted(np.cumsum(self._num_samples), sample, side="right")

    def locate(self, sample: NDArray[np.integer]) -> Iterator[tuple[str, int]]:
        """Yield the input file and line of each sample. `sample` (int[m]) must be increasing."""
        first = np.searchsorted(sample, self._first_sample)
        holding = np.flatnonzero(np.diff(first)).tolist()
        for some in (holding[at : at + _BATCHES_AT_ONCE] for at in range(0, len(holding), _BATCHES_AT_ONCE)):
            for number, of_batch in zip(some, self._columns("line", some), strict=True):
                own = sample[first[number] : first[number + 1]]
                lines = of_batch[own - self._first_sample[number]].tolist()
                for line, file in zip(lines, self._file_of(own).tolist(), strict=True):
                    yield self._files[file].path, line

    def find(self, records: Sequence[tuple[str, int]]) -> list[list[int]]:
        """Find the samples of each record, by its input file and line: the inverse of `locate`."""
        of_file: dict[str, list[slice]] = {}
        for file, stop in zip(self._files, np.cumsum(self._num_samples).tolist(), strict=True):
            of_file.setdefault(file.path, []).append(slice(stop - file.num_samples, stop))
        lines, found = np.concatenate([_NONE, *self._columns("line")]), []
        for path, line in records:
            borders = [each.start + np.searchsorted(lines[each], [line, line + 1]) for each in of_file.get(path, ())]
            found.append([sample for begin, end in borders for sample in range(begin, end)])
        return found

    def find_kept(self, values: Sequence[str]) -> dict[str, list[int]]:
        """Find the samples of records that have one of these values in the first column that the store keeps."""
        found: dict[str, list[int]] = {value: [] for value in values}
        name, wanted, first = KEPT + self.index.options.kept[0], pa.array(values, pa.string()), 0
        for part in self.index.parts:
            file = pa.ipc.open_file(map_file(self.folder / part.path, part.num_bytes, part.xxh3))
            for batch in map(file.get_batch, range(file.num_record_batches)):
                column = batch.column(name)
                for row in pc.indices_nonzero(pc.is_in(column, value_set=wanted)).to_pylist():
                    found[column[row].as_py()].append(first + row)
                first += len(batch)
        return found

    def trees(self) -> ItemTrees:
        """Return the trees of all items. O(segments + branches)."""
        return item_trees(self._rows)

    def have_reference(self, sample: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether each of these items (bool[m]) brought a reference model's log-probabilities."""
        items = self._take(*self._find(sample))
        has: list[NDArray[np.bool_]] = [~np.isnan(items[name]) for name in REFERENCE_VALUES]
        return has[0] | has[1]

    def loss_of(self, pieces: Pieces, *, is_weighted: bool) -> NDArray[np.float64]:
        """Count the loss tokens (float64[m]) of pieces, but for the first token of each branch. O(samples' spans).

        Args:
            is_weighted: whether to count each by its weight, in a store that has weights.
        """
        spans = self._loss_spans(pieces)
        tokens = (spans.stops.astype(np.int64) - spans.starts).astype(np.float64)
        if is_weighted:
            assert spans.weights is not None
            tokens *= spans.weights
        return np.bincount(spans.piece, weights=tokens, minlength=len(pieces)).astype(np.float64)

    def gather(self, pieces: Pieces, offsets: Int64Array) -> Columns:
        """Gather the columns of rows of pieces that the store holds, as shards have them.

        O(tokens + segments and branches of the items).

        No token carries a loss that is the first of a piece, or of a branch.

        Args:
            offsets: int64[r+1]: row k has the pieces `offsets[k]` to `offsets[k + 1] - 1`.

        Raises:
            FormatError: a piece is not as long as its sample allows, so the store is not the planned one.
        """
        if pieces.of_items:
            return self._gather_items(pieces, offsets)
        batch, row = self._find(pieces.sample)
        among, of_each = Among(batch), self._arrays("input_ids", "offsets")
        first, stop = (among.take(of_each, row + k) for k in (0, 1))
        begin, size = np.add(first, pieces.start, dtype=np.int64), pieces.length.astype(np.int64)
        if (begin + size > stop).any():
            raise self._other_plan("a sample is shorter than planned")
        input_ids, spans = self._ids_at(batch, begin, size), self._loss_spans(pieces)
        borders = offsets_of(size)
        tokens, of_spans = borders[offsets], np.searchsorted(spans.piece, offsets)
        place = (borders[:-1] - np.repeat(tokens[:-1], np.diff(offsets)))[spans.piece]
        columns: Columns = {
            "input_ids": Lists(tokens, input_ids),
            STARTS: Lists(of_spans, (spans.starts + place).astype(np.int32)),
            STOPS: Lists(of_spans, (spans.stops + place).astype(np.int32)),
        }
        return columns if spans.weights is None else columns | {WEIGHTS: Lists(of_spans, spans.weights)}

    def _gather_items(self, pieces: Pieces, offsets: Int64Array) -> Columns:
        batch, row = self._find(pieces.sample)
        items = self._take(batch, row)
        if not are_of(items, pieces):
            raise self._other_plan("an item is not as planned")
        found, runs, sizes = cut_items(items, pieces)
        if (unique_tokens(found) != pieces.length).any():
            raise self._other_plan("an item is not as planned")
        piece = owners(np.diff(runs.offsets))
        begin = Among(batch).take(self._arrays("input_ids", "offsets"), row).astype(np.int64)[piece] + runs.values
        input_ids, (spans, _) = self._ids_at(batch[piece], begin, sizes), branch_spans(items, pieces)
        of_branches = found["branch_segments"].offsets
        counts = np.bincount(spans.piece, minlength=int(of_branches[-1]))
        found["branch_loss_spans"] = Lists(of_branches, counts.astype(np.int32))
        trees, branches = trees_of_rows(found, offsets), of_branches[offsets]
        starts, of_spans = trees["segment_starts"], offsets_of(counts)[branches]
        numbers = self._branch_offsets[pieces.sample] + pieces.first_branch - of_branches[:-1]
        columns: Columns = {
            **{name: Lists(branches, found[name].values) for name in BRANCH_LISTS},
            **trees,
            "input_ids": Lists(offsets_of(starts.values[starts.offsets[1:] - 1]), input_ids),
            STARTS: Lists(of_spans, spans.starts.astype(np.int32)),
            STOPS: Lists(of_spans, spans.stops.astype(np.int32)),
            "sample_ids": Lists(branches, np.repeat(numbers, pieces.num_branches) + np.arange(of_branches[-1])),
            "item_kinds": Lists(offsets, found["item_kind"]),
            **{name: Lists(offsets, found[name]) for name in ITEM_VALUES},
        }
        return columns if spans.weights is None else columns | {WEIGHTS: Lists(of_spans, spans.weights)}

    def _other_plan(self, what: str) -> FormatError:
        return FormatError(f"token store {str(self.folder)!r}: {what}; tokenize again")

    def _ids_at(self, batch: Int64Array, begin: Int64Array, size: Int64Array) -> NDArray[Any]:
        """Copy runs of ids of record batches, one after another."""
        width = self._token.itemsize
        return copy_spans(*self._tokens(batch, width * begin, width * size)).view(self._token)

    def needs(self, sample: NDArray[np.integer], length: NDArray[np.int32]) -> NDArray[np.float64]:
        """Estimate the bytes of each part that reading these pieces in ranges would take: float64[parts].

        Each piece costs its bytes and a request, which takes as long as `REQUEST_BYTES`.
        """
        ends = np.cumsum([part.num_samples for part in self.index.parts])
        cost = length.astype(np.float64) * self._token.itemsize + REQUEST_BYTES
        part = np.searchsorted(ends, sample, side="right")
        return np.bincount(part, weights=cost, minlength=len(ends)).astype(np.float64)

    def fetch_parts(self, needs: NDArray[np.float64] | None = None) -> None:
        """Fetch parts of a remote store whole, through the cache of this node, which compares their checksums.

        Call it before anything is gathered.

        Args:
            needs: of everything that will be gathered, see above: parts that are read faster in ranges are not
                fetched, unless the cache has them. None: fetch all parts.

        Raises:
            FormatError: a part is missing or damaged.
        """
        if self._ranged is None:
            return
        index = self.index
        wanted = [
            number
            for number, part in enumerate(index.parts)
            if needs is None
            or needs[number] >= part.num_bytes
            or (needs[number] and is_in_cache(part.num_bytes, part.xxh3))
        ]
        opened = self._open_parts([index.parts[number] for number in wanted])
        whole = {number: iter(batches) for number, batches in zip(wanted, opened, strict=True)}
        for place, ranged in enumerate(self._ranged.batches):
            if ranged.part in whole:
                self._batches[place] = columns_of(next(whole[ranged.part]))
        vars(self).pop("_ids", None)

    def _open_parts(self, parts: Sequence[PartInfo]) -> Iterable[list[pa.RecordBatch]]:
        """Open the record batches of these parts; several parts are fetched at a time."""
        folder, token = self.folder, self.index.token_type
        if not isinstance(folder, RemotePath):
            return (open_part(folder, part, token) for part in parts)
        with ThreadPoolExecutor(_FETCHES, thread_name_prefix="hbpack-fetch") as pool:
            return [*pool.map(lambda part: open_part(folder, part, token), parts)]

    def batches_of(self, is_wanted: NDArray[np.bool_]) -> Iterator[tuple[Columns, NDArray[np.bool_]]]:
        """Yield the columns of each record batch that has wanted samples, the same ones in each, and which these are.

        Args:
            is_wanted: bool[n], of each sample of the store. `fetch_parts` fetches the parts of a remote store that
                have any.
        """
        last = np.cumsum([part.num_samples for part in self.index.parts])
        parts = np.bincount(np.searchsorted(last, np.flatnonzero(is_wanted), side="right"), minlength=len(last))
        self.fetch_parts(np.where(parts, np.inf, 0.0))
        for number, (begin, end) in enumerate(pairwise(self._first_sample.tolist())):
            if (own := is_wanted[begin:end]).any():
                batch = self._batches[number]
                assert batch is not None
                yield self._as_rows(batch), own

    def _columns(self, name: str, numbers: Sequence[int] | None = None) -> list[NDArray[Any]]:
        """Read a column of numbers, or the `offsets` of tokens, of these record batches, by default of all."""
        numbers = range(len(self._batches)) if numbers is None else numbers
        far = [number for number in numbers if self._batches[number] is None]
        read: Iterator[NDArray[Any]] = iter(self._ranged.columns(name, far) if self._ranged else [])
        near = (self._batches[number] for number in numbers)
        return [next(read) if each is None else _numbers(each, name) for each in near]

    def _tokens(
        self, batch: Int64Array, begin: Int64Array, size: Int64Array
    ) -> tuple[list[pa.Buffer], Int64Array, Int64Array, Int64Array]:
        """Find the places of tokens in memory, as `copy_spans` takes them; tokens of remote parts are fetched.

        Args:
            begin, size: in the ids of the record batch, bytes.
        """
        if self._ranged is None:
            return self._ids, batch, begin, size
        is_far = np.array([each is None for each in self._batches])[batch]
        fetched, number, place = self._ranged.tokens(batch[is_far], begin[is_far], size[is_far])
        buffer, begin = batch.copy(), begin.copy()
        buffer[is_far], begin[is_far] = number + len(self._ids), place
        return [*self._ids, *fetched], buffer, begin, size

    @cached_property
    def _ids(self) -> list[pa.Buffer]:
        """The ids of record batches; none of one that is remote."""
        return [pa.py_buffer(each["input_ids"].values if each else b"") for each in self._batches]

    def _loss_spans(self, pieces: Pieces) -> Spans:
        """Find the loss spans of pieces, without the first token of each branch."""
        batch, row = self._find(pieces.sample)
        if pieces.of_items:
            spans, piece = branch_spans(self._take(batch, row), pieces)
            return spans._replace(piece=piece[spans.piece])
        names = (STARTS, STOPS, WEIGHTS) if self._is_weighted else (STARTS, STOPS)
        starts, stops, *weights = take_lists(self._arrays, batch, row, *names).values()
        run = owners(np.diff(starts.offsets))
        whole = Spans(starts.values, stops.values, run, weights[0].values if weights else None)
        return whole.clipped(pieces.start, pieces.length)

    def _find(self, sample: NDArray[np.integer]) -> tuple[Int64Array, Int64Array]:
        """Find the record batch of each of these samples, and its row there."""
        batch = np.searchsorted(self._first_sample, sample, side="right") - 1
        return batch, sample - self._first_sample[batch]

    @property
    def _rows(self) -> list[Columns]:
        """The columns of record batches; of remote parts, offsets and loss spans.

        They are made when first needed. Of remote parts they take 8 bytes of memory a sample and 8 a span.
        """
        with self._lock:
            if self._made_rows is None:
                far = [number for number, batch in enumerate(self._batches) if batch is None]
                read: Iterator[Columns] = iter(self._ranged.rows(far) if self._ranged else [])
                self._made_rows = [self._as_rows(batch or next(read)) for batch in self._batches]
            return self._made_rows

    def _arrays(self, name: str, part: str) -> list[NDArray[Any]]:
        """Return the `offsets` or `values` of lists, or `numbers`, an array a record batch; kept, as there may be many
        batches."""
        if (name, part) not in self._made_arrays:
            columns = (columns[name] for columns in self._rows)
            self._made_arrays[name, part] = [each if part == "numbers" else getattr(each, part) for each in columns]
        return self._made_arrays[name, part]

    def _take(self, batch: Int64Array, row: Int64Array) -> Columns:
        return take_items(self._arrays, batch, row, is_weighted=self._is_weighted)

    def _as_rows(self, columns: Columns) -> Columns:
        """Add to the columns of a record batch the weights and items that other parts of the store have."""
        if self._is_weighted and WEIGHTS not in columns:
            starts = columns[STARTS]
            columns = columns | {WEIGHTS: Lists(starts.offsets, np.broadcast_to(np.float32(1), len(starts.values)))}
        return items_of_samples(columns) if self.index.columns.of_items and "item_kind" not in columns else columns

    @cached_property
    def _branch_offsets(self) -> Int64Array:
        """int64[n+1]: the first branch of each item among those of the store."""
        return offsets_of(np.concatenate([_NONE, *(np.diff(each["branch_segments"].offsets) for each in self._rows)]))


def _numbers(columns: Columns, name: str) -> NDArray[Any]:
    found: NDArray[Any] = columns["input_ids"].offsets if name == "offsets" else columns[name]
    return found
