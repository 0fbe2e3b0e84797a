"""The samples of a token store, as plans see them: all, training's, or the ones set aside for validation."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packer_cli.config import PlannedConfig
from packer_cli.config.fields import bound_of, format_bound
from packer_cli.errors import RunError
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.types import Int32Array
from packer_cli.sizes import counted
from packer_cli.tokens.duplicates import find_duplicates
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.store import TokenStore


class StoreSamples:
    """The samples of an open token store. Everything that is read of the store is kept."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store

    @cached_property
    def all(self) -> Samples:
        """All samples."""
        store, weights = self.store, tuple(source.share for source in self.store.index.sources)
        trees = store.trees() if store.index.columns.of_items else None
        return Samples(lengths=store.lengths(), sources=store.sources(), weights=weights, trees=trees)

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """Hash of each sample (uint64[n]), see `content_hash`."""
        return self.store.hashes()

    @cached_property
    def duplicates(self) -> Int32Array:
        """The exact duplicates of earlier samples (int32[k], rising).

        Raises:
            FormatError: a part is missing or damaged.
        """
        return find_duplicates(self.hashes, self.store.batches_of)

    def of(self, config: PlannedConfig) -> Samples:
        """Return the samples of a plan, by its options; its `validation` is not a number."""
        is_kept = np.ones(len(self.store), dtype=np.bool_)
        if config.validation is not None:
            bound = bound_of(config.validation)
            assert bound is not None
            is_kept = (self.hashes < np.uint64(bound)) == config.is_validation
        if config.dedup == "drop":
            is_kept[self.duplicates] = False
        samples = self.all if is_kept.all() else replace(self.all, among=ids_of(is_kept))
        return replace(samples, weights=()) if config.is_validation else samples

    def records_of(self, config: PlannedConfig) -> StoreIndex:
        """Return the store's index as a plan sees it: facts known of records alone count only where they train."""
        return replace(self.store.index, parts=()) if config.is_validation else self.store.index

    def set_aside(self, validation: str, dedup: str) -> tuple[str, int]:
        """Return a `validation` as a plan keeps it, a number as a bound of hashes, and its number of samples.

        Raises:
            RunError: the `validation` sets no sample aside, or leaves none to train on.
        """
        hashes, unit, bound = self.hashes, self.store.index.unit, bound_of(validation)
        if dedup == "drop":
            hashes = np.delete(hashes, self.duplicates)
        if bound is None:
            place = min(int(validation), len(hashes)) - 1
            bound = int(np.partition(hashes, place)[place]) + 1
        number = int(np.count_nonzero(hashes < bound))
        if not number:
            raise RunError(
                f"--validation {validation} sets aside none of {counted(len(hashes), unit)}; give a larger share, or "
                f"a number of {unit}s, such as --validation 1"
            )
        if number == len(hashes):
            there = f"there {'is' if number == 1 else 'are'} {counted(number, unit)}"
            raise RunError(
                f"--validation {validation} leaves nothing to train on: {there}, and equal ones stay together; give a "
                "lower share or number"
            )
        return validation if bound_of(validation) is not None else format_bound(bound), number
