"""Reads a token store, for planning and gathering.

A sample's id is its row number over all parts in order. The parts are memory-mapped: opening the store reads only
lengths, and gathering a pack copies only its tokens. Of a remote store, ranges are read (`ranges.py`), until
`fetch_parts` fetches whole parts, which are memory-mapped from then on. If it has trees, all parts are fetched when it
is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import FormatError
from packer_cli.format.constants import REFERENCE_VALUES
from packer_cli.format.loss_spans import Int64Array
from packer_cli.format.ragged import expand, offsets_of, owners
from packer_cli.format.token_parts import PartBatch, PieceTokens, Spans
from packer_cli.format.tree_parts import BatchItems
from packer_cli.format.trees import ItemTrees
from packer_cli.plan.core.types import WHOLE, PieceTrees
from packer_cli.remote.local import is_in_cache
from packer_cli.remote.path import RemotePath
from packer_cli.tokens.copying import Among, copy_spans
from packer_cli.tokens.index import PartInfo, StoreIndex, open_part, read_index
from packer_cli.tokens.item_pieces import Cuts, ItemTokens, are_of, cut_items, item_trees, take_items
from packer_cli.tokens.ranges import REQUEST_BYTES, RangedParts

_BATCHES_AT_ONCE = 64
"""Record batches of which the lines are in memory at a time."""
_FETCHES = 8
"""Parts that are fetched at a time."""


class TokenStore:
    """A token store, opened for planning and gathering."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder = folder
        self.index = index
        self._token: np.dtype[Any] = np.dtype(str(index.token_type))
        self._ranged = None
        if isinstance(folder, RemotePath) and not index.has_trees:
            self._ranged = RangedParts(folder, index.parts, index.token_type)
        self._batches: list[PartBatch | None]
        """None: it is remote, and ranges of it are read."""
        if self._ranged:
            self._batches = [None] * len(self._ranged.batches)
            self._ids: list[pa.Buffer] = [pa.py_buffer(b"")] * len(self._batches)
            counts = [batch.num_rows for batch in self._ranged.batches]
        else:
            batches = [PartBatch(batch) for of_part in self._open_parts(index.parts) for batch in of_part]
            self._batches = [*batches]
            self._ids = [pa.py_buffer(batch.input_ids) for batch in batches]
            counts = [batch.num_rows for batch in batches]
        self._lock = Lock()
        self._made_rows: _Rows | None = None
        self._first_sample = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._files = [file for part in index.parts for file in part.files]
        self._num_samples = np.array([file.num_samples for file in self._files], dtype=np.int64)
        self._source = np.array([file.source for file in self._files], dtype=np.int32)

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Open the store in a folder.

        Raises:
            InputError: the folder holds no finished store.
            FormatError: the store is damaged, or has another version.
        """
        return cls(folder, read_index(folder))

    @property
    def is_remote(self) -> bool:
        """Whether it is in remote storage, and not all of it has been fetched."""
        return self._ranged is not None

    def __len__(self) -> int:
        return int(self._first_sample[-1])

    def lengths(self) -> NDArray[np.int32]:
        """int32[n]: tokens of each sample; unique ones of an item."""
        return _join([np.diff(offsets) for offsets in self._columns("offsets")], np.int32)

    def num_loss_tokens(self) -> NDArray[np.int32]:
        """int32[n]: loss tokens of each sample, its first token not counted; of an item, of all its branches."""
        return _join(self._columns("num_loss_tokens"), np.int32)

    def trees(self) -> ItemTrees | None:
        """The trees of all items; None if the store has none. O(segments + branches)."""
        return item_trees(self._items, self._rows.loss_starts) if self.index.has_trees else None

    def branch_offsets(self) -> Int64Array:
        """int64[n+1]: the first branch of each item among those of the store, which has trees. O(n)."""
        return offsets_of(_join([np.diff(items.branch_offsets) for items in self._items], np.int64))

    def have_reference(self, sample: NDArray[np.integer]) -> NDArray[np.bool_]:
        """bool[m]: which of these items brought a reference model's log-probabilities, in a store with trees."""
        items = take_items(self._items, *self._find(sample))
        has: list[NDArray[np.bool_]] = [~np.isnan(getattr(items, name)) for name in REFERENCE_VALUES]
        return has[0] | has[1]

    def sources_of(self, sample: NDArray[np.integer]) -> NDArray[np.int32]:
        """int32[m]: source of each of these samples."""
        return self._source[self._file_of(sample)]

    def sources(self) -> NDArray[np.signedinteger[Any]]:
        """int[n]: source of every sample, read-only; of the smallest type, and of no memory for one source."""
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
            for number, of_batch in zip(some, self._columns("lines", some), strict=True):
                own = sample[first[number] : first[number + 1]]
                lines = of_batch[own - self._first_sample[number]].tolist()
                for line, file in zip(lines, self._file_of(own).tolist(), strict=True):
                    yield self._files[file].path, line

    def loss_of(
        self,
        sample: NDArray[np.integer],
        start: NDArray[np.integer],
        length: NDArray[np.int32],
        trees: PieceTrees | None = None,
        *,
        is_weighted: bool,
    ) -> NDArray[np.float64]:
        """Loss tokens (float64[m]) of pieces of samples, without the first token of each. O(their samples' spans).

        Args:
            trees: of these pieces, in a store that has any.
            is_weighted: whether to count each by its weight, in a store that has weights.
        """
        batch, row = self._find(sample)
        if trees is None:
            spans = self._loss_spans(Among(batch), batch, row, start, length)
        else:
            items = take_items(self._items, batch, row)
            spans, piece = self._branch_spans(batch, row, items, Cuts.of(trees, start, length, items.kinds))
            spans = spans._replace(piece=piece[spans.piece])
        tokens = (spans.stops.astype(np.int64) - spans.starts).astype(np.float64)
        if is_weighted:
            assert spans.weights is not None
            tokens *= spans.weights
        return np.bincount(spans.piece, weights=tokens, minlength=len(sample)).astype(np.float64)

    def gather(
        self, sample: NDArray[np.integer], start: NDArray[np.integer], length: NDArray[np.int32]
    ) -> PieceTokens:
        """Pieces one after another, without a loss at the first token of each. O(tokens).

        Raises:
            FormatError: a piece reaches past the end of its sample, so the store is not the planned one.
        """
        batch, row = self._find(sample)
        among = Among(batch)
        first, stop = (among.take(self._rows.offsets, row + k) for k in (0, 1))
        begin, size = np.add(first, start, dtype=np.int64), length.astype(np.int64)
        if (begin + size > stop).any():
            raise FormatError(f"token store {str(self.folder)!r}: a sample is shorter than planned; tokenize again")
        width = self._token.itemsize
        input_ids = copy_spans(*self._tokens(batch, width * begin, width * size)).view(self._token)
        spans = self._loss_spans(among, batch, row, start, length)
        place = (np.cumsum(size) - size)[spans.piece]
        return PieceTokens(input_ids, spans.starts + place, spans.stops + place, spans.weights)

    def gather_items(
        self,
        sample: NDArray[np.integer],
        start: NDArray[np.integer],
        length: NDArray[np.int32],
        trees: PieceTrees,
    ) -> ItemTokens:
        """As `gather`, of a store with trees. O(tokens + segments and branches of the items).

        Args:
            trees: of these pieces; only branches and depths are read.

        Raises:
            FormatError: a piece does not have its length, so the store is not the planned one.
        """
        batch, row = self._find(sample)
        items = take_items(self._items, batch, row)
        cuts = Cuts.of(trees, start, length, items.kinds)
        pieces, runs = cut_items(items, cuts) if are_of(cuts, items) else (None, None)
        if pieces is None or runs is None or (pieces.num_tokens != length).any():
            raise FormatError(f"token store {str(self.folder)!r}: an item is not as planned; tokenize again")
        piece = owners(np.diff(runs.offsets))
        begin = Among(batch).take(self._rows.offsets, row).astype(np.int64)[piece] + runs.starts
        width = self._token.itemsize
        input_ids = copy_spans(*self._tokens(batch[piece], width * begin, width * runs.sizes)).view(self._token)
        spans, _ = self._branch_spans(batch, row, items, cuts)
        counts = np.bincount(spans.piece, minlength=len(pieces.branch_roles)).astype(np.int32)
        starts, stops = spans.starts.astype(np.int32), spans.stops.astype(np.int32)
        # A reference model's log-probabilities are sums over all tokens, also those that are cut off.
        is_cut = trees.depth < WHOLE
        reference = {name: np.where(is_cut, np.float32(np.nan), getattr(pieces, name)) for name in REFERENCE_VALUES}
        pieces = pieces._replace(branch_loss_spans=counts, **reference)
        return ItemTokens(input_ids, pieces, starts, stops, spans.weights)

    def needs(self, sample: NDArray[np.integer], length: NDArray[np.int32]) -> NDArray[np.float64]:
        """float64[parts]: what it would take to read these pieces in ranges, in bytes of each part.

        Each piece costs its bytes and a request, which takes as long as `REQUEST_BYTES`.
        """
        ends = np.cumsum([part.num_samples for part in self.index.parts])
        cost = length.astype(np.float64) * self._token.itemsize + REQUEST_BYTES
        part = np.searchsorted(ends, sample, side="right")
        return np.bincount(part, weights=cost, minlength=len(ends)).astype(np.float64)

    def fetch_parts(self, needs: NDArray[np.float64] | None = None) -> None:
        """Of a remote store, fetch parts whole, through the cache of this node, which compares their checksums.

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
                batch = self._batches[place] = PartBatch(next(whole[ranged.part]))
                self._ids[place] = pa.py_buffer(batch.input_ids)

    def _open_parts(self, parts: Sequence[PartInfo]) -> Iterable[list[pa.RecordBatch]]:
        """The record batches of these parts; several are fetched at a time."""
        folder, token = self.folder, self.index.token_type
        if not isinstance(folder, RemotePath):
            return (open_part(folder, part, token) for part in parts)
        with ThreadPoolExecutor(_FETCHES, thread_name_prefix="hbpack-fetch") as pool:
            return [*pool.map(lambda part: open_part(folder, part, token), parts)]

    def whole_batches(self) -> list[PartBatch]:
        """All record batches, memory-mapped; of a remote store, `fetch_parts` fetches them."""
        self.fetch_parts()
        return [batch for batch in self._batches if batch is not None]

    def _columns(self, name: str, numbers: Sequence[int] | None = None) -> list[NDArray[Any]]:
        """An attribute of `PartBatch` of the record batches with these numbers, by default all."""
        numbers = range(len(self._batches)) if numbers is None else numbers
        far = [number for number in numbers if self._batches[number] is None]
        read: Iterator[NDArray[Any]] = iter(self._ranged.columns(name, far) if self._ranged else [])
        return [getattr(batch, name) if (batch := self._batches[number]) else next(read) for number in numbers]

    def _tokens(
        self, batch: Int64Array, begin: Int64Array, size: Int64Array
    ) -> tuple[list[pa.Buffer], Int64Array, Int64Array, Int64Array]:
        """Where tokens are in memory, as `copy_spans` takes it; those of remote parts are fetched.

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

    def _loss_spans(
        self, among: Among, batch: Int64Array, row: Int64Array, start: NDArray[np.integer], length: NDArray[np.int32]
    ) -> Spans:
        """Loss spans of pieces, without the first token of each; `among` is of `batch`."""
        first, stop = (among.take(self._rows.span_offsets, row + k).astype(np.int64) for k in (0, 1))
        return self._spans_at(batch, first, stop - first).clipped(start, length)

    def _branch_spans(
        self, batch: Int64Array, row: Int64Array, items: BatchItems, cuts: Cuts
    ) -> tuple[Spans, Int64Array]:
        """Loss spans of the branches of pieces, and the piece of each branch."""
        num = cuts.stop_branch - cuts.first_branch
        piece, branch = owners(num), expand(items.branch_offsets[:-1] + cuts.first_branch, num)
        ends = offsets_of(items.branch_loss_spans)
        first = Among(batch).take(self._rows.span_offsets, row).astype(np.int64)
        first = first[piece] + ends[branch] - ends[items.branch_offsets[piece]]
        spans = self._spans_at(batch[piece], first, items.branch_loss_spans[branch])
        return spans.clipped(cuts.start[piece], (cuts.stop - cuts.start)[piece]), piece

    def _spans_at(self, batch: Int64Array, first: Int64Array, num: NDArray[np.integer]) -> Spans:
        """Runs of loss spans of record batches, as these have them."""
        rows = self._rows
        run, place = owners(num), expand(first, num)
        among = Among(batch[run])
        starts, stops = (among.take(of_batch, place) for of_batch in (rows.loss_starts, rows.loss_stops))
        weights = None if rows.loss_weights is None else among.take(rows.loss_weights, place)
        return Spans(starts, stops, run, weights)

    def _find(self, sample: NDArray[np.integer]) -> tuple[Int64Array, Int64Array]:
        """The record batch of each of these samples, and its row there."""
        batch = np.searchsorted(self._first_sample, sample, side="right") - 1
        return batch, sample - self._first_sample[batch]

    @cached_property
    def _items(self) -> list[BatchItems]:
        """Of all record batches, in a store with trees."""
        return [
            batch.items or BatchItems.of_samples(batch.offsets, batch.span_offsets) for batch in self.whole_batches()
        ]

    @property
    def _rows(self) -> _Rows:
        """Made when first needed. Of remote parts it takes 8 bytes of memory a sample and 8 a span."""
        with self._lock:
            if self._made_rows is None:
                self._made_rows = self._make_rows()
            return self._made_rows

    def _make_rows(self) -> _Rows:
        far = [number for number, batch in enumerate(self._batches) if batch is None]
        offsets = self._columns("offsets")
        names = _Rows._fields[1 : None if self.index.is_weighted else -1]
        read: list[list[NDArray[Any]]] = [[]] * len(names)
        if self._ranged:
            read = self._ranged.spans(far, [offsets[number] for number in far])
        found = [
            [getattr(batch, name) if batch else next(of_far) for batch in self._batches]
            for name, of_far in zip(names, map(iter, read), strict=True)
        ]
        if self.index.is_weighted:
            ones = [np.broadcast_to(np.float32(1), len(starts)) for starts in found[1]]
            found[3] = [one if weights is None else weights for one, weights in zip(ones, found[3], strict=True)]
        return _Rows(offsets, *found)


class _Rows(NamedTuple):
    """Where the tokens and loss spans of samples are in their record batches: int32 arrays, one of each a batch."""

    offsets: list[NDArray[np.int32]]
    """Of tokens; one more than samples."""
    span_offsets: list[NDArray[np.int32]]
    """Likewise."""
    loss_starts: list[NDArray[np.int32]]
    """In the sample."""
    loss_stops: list[NDArray[np.int32]]
    """In the sample."""
    loss_weights: list[NDArray[np.float32]] | None = None
    """float32; None: the store has none."""


def _join(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype=dtype)
