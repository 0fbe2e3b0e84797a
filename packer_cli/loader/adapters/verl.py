"""A packed set for verl's SFT trainer, one row a pack. ::

    data.train_files=OUT data.custom_cls.path=pkg://packer_cli.loader.adapters.verl
    data.custom_cls.name=PackedSFTDataset data.pad_mode=no_padding data.use_dynamic_bsz=False
    data.micro_batch_size_per_gpu=1 data.train_batch_size=PACKS_OF_A_STEP model.use_remove_padding=True

verl shuffles the rows and deals them to its ranks itself: what the plan says of iterations and ranks has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from packer_cli.errors import ConfigError
from packer_cli.format.loss_spans import spans_to_weights
from packer_cli.format.ranks import locate_packs
from packer_cli.format.versions import version_beside
from packer_cli.loader.passes import write_positions
from packer_cli.loader.shard_reader import ShardReader
from packer_cli.loader.storage import open_set

__all__ = ["PackedSFTDataset"]


class PackedSFTDataset(Dataset[dict[str, torch.Tensor]]):
    """The packs of a set, by pack id: `input_ids`, `position_ids`, `loss_mask`, int64 [t] each.

    Positions begin at 0 in each sample. With `use_remove_padding`, FlashAttention takes the borders of samples from
    them. Models whose forward pass takes `cu_seqlens` (of flash-linear-attention) get those of rows from verl instead,
    which merges the samples of a row: do not train them on packs.

    Args:
        parquet_files: the folder or URL of the set, or a list of it alone: `data.train_files`.
        tokenizer, config, processor: what verl passes as well, and is not needed: rows are tokens, of any length.
        max_samples: the most rows; -1 for all.

    Raises:
        FormatError: there is no packed set, or it is damaged.
        ConfigError: there are several sets, the set has loss weights, or it was planned with `--mask causal`.
    """

    def __init__(
        self,
        parquet_files: str | os.PathLike[str] | Sequence[str],
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        paths = [parquet_files] if isinstance(parquet_files, str | os.PathLike) else list(parquet_files)
        if len(paths) != 1:
            raise ConfigError(f"give one packed set, not {len(paths)}; pack their inputs together")
        path = str(paths[0])
        storage, manifest = open_set(path)
        if manifest.is_weighted:
            raise ConfigError(f"{path} has loss weights, and verl counts loss tokens; pack without weights")
        if manifest.planned.mask == "causal":
            raise ConfigError(f"{path} was planned with --mask causal, and here samples are apart; plan without it")
        self._shards = ShardReader(storage, manifest)
        num_packs = sum(group.num_packs for group in manifest.groups)
        self._length = min(num_packs, max_samples) if max_samples > 0 else num_packs
        self._places = np.stack(locate_packs(manifest, np.arange(self._length)), axis=1)

    def __len__(self) -> int:
        """Return the number of packs."""
        return self._length

    def state_dict(self) -> dict[str, Any]:
        """Return the version that is read, for the state of a loader."""
        return {"planned_fingerprint": self._shards.manifest.planned_fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ConfigError for a state of another version: verl has counted the rows of this one."""
        root, planned = self._shards.storage.root, state["planned_fingerprint"]
        if state != self.state_dict():
            other = version_beside(root, planned, root.parent) or f"the set {planned}"
            raise ConfigError(f"the checkpoint is of {other}, and this is {root}: set data.train_files to {other}")

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        """Return a pack. Raises FormatError if its shard is damaged."""
        if not 0 <= i < self._length:
            raise IndexError(f"pack {i} of {self._length}")
        pack = self._shards.read(*self._places[i].tolist())
        ids = pack.input_ids.astype(np.int64)
        positions = np.empty(len(ids), dtype=np.int64)
        write_positions(pack.cu_seqlens, 0, positions)
        mask = spans_to_weights(pack.loss_starts, pack.loss_stops, None, len(ids)).astype(np.int64)
        mask[pack.cu_seqlens[:-1]] = 0  # As for labels: an error in a shard would leak one sample into another.
        columns = {"input_ids": ids, "position_ids": positions, "loss_mask": mask}
        return {name: torch.from_numpy(values) for name, values in columns.items()}
