"""Opens token stores; reads one of items, all of whose parts are fetched when it is opened.

A row of it is an item; a sample of a part without items is one of one branch.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns
from packer_cli.format.constants import REFERENCE_VALUES
from packer_cli.format.items import BRANCH_LISTS, items_of_samples, trees_of_rows, unique_tokens
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS
from packer_cli.format.ragged import Lists, offsets_of, owners
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.token_parts import Spans
from packer_cli.format.trees import ItemTrees
from packer_cli.plan.core.types import Int64Array, ItemPieces, Pieces
from packer_cli.tokens.copying import Among
from packer_cli.tokens.index import StoreIndex, read_index
from packer_cli.tokens.item_pieces import are_of, branch_spans, cut_items, item_trees, take_items
from packer_cli.tokens.store import TokenStore


def open_store(folder: Path, index: StoreIndex | None = None) -> TokenStore:
    """Open the store in a folder.

    Args:
        index: what `read_index` gave, if that was called.

    Raises:
        InputError: the folder holds no finished store.
        FormatError: the store is damaged, or has another version.
    """
    index = index or read_index(folder)
    return (ItemStore if index.columns.of_items else TokenStore)(folder, index)


class ItemStore(TokenStore):
    """A token store of items, opened for planning and gathering."""

    reads_ranges = False

    def trees(self) -> ItemTrees:
        """Return the trees of all items. O(segments + branches)."""
        return item_trees(self._rows)

    def have_reference(self, sample: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether each of these items (bool[m]) brought a reference model's log-probabilities."""
        items = self._take(*self._find(sample))
        has: list[NDArray[np.bool_]] = [~np.isnan(items[name]) for name in REFERENCE_VALUES]
        return has[0] | has[1]

    def gather(self, pieces: Pieces, offsets: Int64Array) -> Columns:
        """Gather the columns of rows, see `TokenStore.gather`. O(tokens + segments and branches of the items)."""
        assert isinstance(pieces, ItemPieces)
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
        numbers = self._branch_offsets[pieces.sample] + pieces.trees.first_branch - of_branches[:-1]
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

    def _loss_spans(self, pieces: Pieces) -> Spans:
        assert isinstance(pieces, ItemPieces)
        spans, piece = branch_spans(self._take(*self._find(pieces.sample)), pieces)
        return spans._replace(piece=piece[spans.piece])

    def _take(self, batch: Int64Array, row: Int64Array) -> Columns:
        return take_items(self._rows, batch, row, is_weighted=self._is_weighted)

    def _as_rows(self, columns: Columns) -> Columns:
        columns = super()._as_rows(columns)
        return columns if "item_kind" in columns else items_of_samples(columns)

    @cached_property
    def _branch_offsets(self) -> Int64Array:
        """int64[n+1]: the first branch of each item among those of the store."""
        none = np.zeros(0, dtype=np.int64)
        return offsets_of(np.concatenate([none, *(np.diff(each["branch_segments"].offsets) for each in self._rows)]))
