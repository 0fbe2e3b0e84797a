"""The samples of a token store, as plans see them: all, those of training, or those set aside for validation."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packer_cli.config import PlannedConfig
from packer_cli.config.validation import bound_of, format_bound
from packer_cli.errors import RunError
from packer_cli.plan.core.csr import ids_of
from packer_cli.plan.core.cut import cut_samples
from packer_cli.plan.core.sample_cut import Cut, SizeRule
from packer_cli.plan.core.samples import Samples
from packer_cli.sizes import counted
from packer_cli.tokens.content_hash import hash_items, hash_rows
from packer_cli.tokens.store import TokenStore


class StoreSamples:
    """The samples of an open token store. What is read of it is kept."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store
        self._cuts: dict[Hashable, Cut] = {}

    @cached_property
    def all(self) -> Samples:
        """All samples."""
        weights = tuple(source.share for source in self.store.index.sources)
        store = self.store
        return Samples(lengths=store.lengths(), sources=store.sources(), weights=weights, trees=store.trees())

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """uint64[n], see `hash_rows`. Price: all tokens are read once; of a remote store, all parts are fetched.

        Raises:
            FormatError: a remote part is missing or damaged.
        """
        hashes = np.empty(len(self.store), dtype=np.uint64)
        first = 0
        for batch in self.store.whole_batches():
            own = hashes[first : first + batch.num_rows]
            if batch.items is None:
                hash_rows(batch.input_ids, batch.offsets, own)
            else:
                hash_items(batch.input_ids, batch.offsets, batch.items, own)
            first += batch.num_rows
        return hashes

    def of(self, config: PlannedConfig) -> Samples:
        """Those of a plan.

        Args:
            config: the plan's; its `validation` is not a number.
        """
        if config.validation is None:
            return self.all
        bound = bound_of(config.validation)
        assert bound is not None
        is_aside = self.hashes < np.uint64(bound)
        if not config.is_validation:
            return Samples(**{**vars(self.all), "among": ids_of(~is_aside)})
        return Samples(**{**vars(self.all), "weights": (), "among": ids_of(is_aside)})

    def cut(self, config: PlannedConfig, rule: SizeRule) -> Cut:
        """The samples of a plan, cut by its rule; made once for all that decides it."""
        key = (config.validation, config.is_validation, rule, config.seed)
        if key not in self._cuts:
            self._cuts[key] = cut_samples(self.of(config), rule, config.seed)
        return self._cuts[key]

    def fixed(self, validation: str) -> str:
        """A `validation` as a plan keeps it: in place of a number of samples, the bound of their hashes.

        Raises:
            RunError: the number leaves no sample to train on.
        """
        if bound_of(validation) is not None:
            return validation
        num_samples, number = len(self.store), int(validation)
        if number < num_samples:
            highest = int(np.partition(self.hashes, number - 1)[number - 1])
            if highest < self.hashes.max():
                return format_bound(highest + 1)
        raise RunError(_leaves_nothing(validation, num_samples, self.store.index.unit))

    def require_both(self, config: PlannedConfig) -> None:
        """Raise RunError if `validation` sets no sample aside, or leaves none to train on."""
        num_samples, unit = len(self.store), self.store.index.unit
        num_aside = num_samples - self.of(config.model_copy(update={"is_validation": False})).num_samples
        if not num_aside:
            raise RunError(
                f"--validation {config.validation} sets aside none of {counted(num_samples, unit)}; give a larger "
                f"share, or a number of {unit}s, such as --validation 1"
            )
        if num_aside == num_samples:
            raise RunError(_leaves_nothing(str(config.validation), num_samples, unit))


def _leaves_nothing(validation: str, num_samples: int, unit: str) -> str:
    there = f"there {'is' if num_samples == 1 else 'are'} {counted(num_samples, unit)}"
    return (
        f"--validation {validation} leaves nothing to train on: {there}, and equal ones stay together; give a lower "
        "share or number"
    )
