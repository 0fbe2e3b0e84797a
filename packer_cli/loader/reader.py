"""Reads the micro-batches of a rank: packs from shards, which are fetched ahead, built into batches."""

from __future__ import annotations

from packer_cli.format.manifest import Manifest
from packer_cli.loader.batch import BatchBuilder, MicroBatch
from packer_cli.loader.place import RankRows
from packer_cli.loader.shards import ShardReader
from packer_cli.loader.storage import Storage


class MicroBatchReader:
    """The micro-batches of a packed set, by their rows. Pickles; a forked process opens its own files."""

    def __init__(self, storage: Storage, manifest: Manifest, builder: BatchBuilder, prefetch: int) -> None:
        """Open nothing.

        Args:
            prefetch: how many shards to fetch ahead, if they are remote.
        """
        self._storage = storage
        self._builder = builder
        self._shards = ShardReader(storage, manifest.groups, manifest.planned_fingerprint, manifest.tokens)
        self._prefetch = prefetch if storage.is_remote else 0

    def read(self, rows: RankRows, number: int) -> MicroBatch:
        """The micro-batch of row `number`. Raises FormatError if its shard is damaged."""
        row = rows.row(number)
        if row.shard < 0:
            return self._builder.filler(row, rows.epoch)
        is_open = not self._prefetch or self._shards.is_open(row.group, row.shard)
        pack = self._shards.read(row.group, row.shard, row.row)
        if not is_open:
            self._prefetch_after(rows, number)
        return self._builder.build(pack, row, rows.epoch)

    def _prefetch_after(self, rows: RankRows, number: int) -> None:
        """Prefetch the shards that follow the one just opened for a row."""
        places = rows.next_shards(number, self._prefetch + self._storage.files_kept)
        self._shards.prefetch([place for place in places if not self._shards.is_open(*place)][: self._prefetch])

    def check_all(self) -> None:
        """See `ShardReader.check_all`."""
        self._shards.check_all()

    def close(self) -> None:
        """Close the files, and wait for a shard that is being fetched; reading opens files again."""
        self._storage.stop()
        self._shards.close()
