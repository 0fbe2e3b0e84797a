"""Opens packed sets for a Trainer, in the format that it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from packer_cli.errors import ConfigError
from packer_cli.format.constants import TREES_VERSION
from packer_cli.loader.adapters.step_runner import require_sp_alone
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.storage import open_set

__all__ = ["open_for_trainer", "open_named"]


def open_named(value: Any, args: Any, *, needs_pairs: bool = False) -> dict[str, PackedDataset]:
    """Sets for evaluation by name; one without a name has an empty one. Arguments as for `open_for_trainer`."""
    named = value if isinstance(value, Mapping) else {} if value is None else {"": value}
    return {
        name: open_for_trainer("eval_dataset", each, args, needs_pairs=needs_pairs) for name, each in named.items()
    }


def open_for_trainer(name: str, value: Any, args: Any, *, needs_pairs: bool = False) -> PackedDataset:
    """The set, which the trainer can run: in format "tree" if it has trees, else "transformers".

    Args:
        name: of the argument, for messages.
        value: a folder, URL or data set.
        args: a TrainingArguments.
        needs_pairs: whether the trainer runs preference pairs.

    Raises:
        ConfigError: it is none, or one for another trainer or number of processes.
    """
    if not isinstance(value, (str, os.PathLike, PackedDataset)):
        given = "not given" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f'{name} is {given}: give the folder or URL of a packed set, such as {name}="OUT"')
    dataset = value
    if not isinstance(dataset, PackedDataset):
        _, manifest = open_set(dataset, verify="none")
        format = "tree" if _has_trees(manifest.format_version, str(value), needs_pairs=needs_pairs) else "transformers"
        dataset = PackedDataset(dataset, args.process_index, args.world_size, format=format)
    manifest_version = dataset.manifest["format_version"]
    wanted = "tree" if _has_trees(manifest_version, str(dataset.path), needs_pairs=needs_pairs) else "transformers"
    if dataset.format != wanted:
        raise ConfigError(f"{name} has format {dataset.format!r}, and this trainer needs format={wanted!r}")
    if (dataset.rank, dataset.world_size) != (args.process_index, args.world_size):
        raise ConfigError(
            f"{name} was opened for rank {dataset.rank} of {dataset.world_size}, and this is process "
            f"{args.process_index} of {args.world_size}; give its folder or URL instead"
        )
    require_sp_alone(dataset)
    return dataset


def _has_trees(version: int, path: str, *, needs_pairs: bool) -> bool:
    if needs_pairs and version != TREES_VERSION:
        raise ConfigError(
            f"{path} has no preference pairs, which this trainer needs; pack records that have chosen and rejected, "
            "with --items pairs"
        )
    return version == TREES_VERSION
