"""Opens packed sets for a Trainer, in the format that it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from packer_cli.errors import ConfigError
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.storage import open_set

__all__ = ["open_for_trainer", "open_named", "tree_format"]


def open_named(value: Any, args: Any, training: PackedDataset, **options: Any) -> dict[str, PackedDataset]:
    """Open sets for evaluation by name; one without a name has an empty one. Arguments as for `open_for_trainer`.

    Raises:
        ConfigError: also, if training has samples that were set aside for one.
    """
    named = value if isinstance(value, Mapping) else {} if value is None else {"": value}
    found = {name: open_for_trainer("eval_dataset", each, args, **options) for name, each in named.items()}
    for each in found.values():
        each.require_held_out(training)
    return found


def tree_format(model: Any, args: Any) -> str:
    """Return the format of trees that the attention of a model takes, which may be given by its name alone."""
    config = getattr(model, "config", None)
    given = (getattr(args, "model_init_kwargs", None) or {}).get("attn_implementation")
    attention = str(given if config is None else config._attn_implementation)
    return "tree-flex" if attention.endswith("flex_attention") else "tree"


def open_for_trainer(name: str, value: Any, args: Any, *, trees: str, needs_pairs: bool) -> PackedDataset:
    """Open the set that the trainer can run: in format `trees` if it has trees, else "transformers".

    Args:
        name: of the argument, for messages.
        value: a folder, URL or data set.
        args: a TrainingArguments.
        trees: what `tree_format` says.
        needs_pairs: whether the trainer runs preference pairs.

    Raises:
        ConfigError: it is none, or one for another trainer or number of processes.
    """
    if not isinstance(value, (str, os.PathLike, PackedDataset)):
        given = "not given" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f'{name} is {given}: give the folder or URL of a packed set, such as {name}="OUT"')
    dataset: Any = value
    is_open = isinstance(dataset, PackedDataset)
    items = dataset.manifest["counts"]["items"] if is_open else open_set(dataset, verify="none")[1].counts.items
    format = "transformers" if items is None else trees
    if not is_open:
        dataset = PackedDataset(dataset, args.process_index, args.world_size, format=format)
    if needs_pairs:
        dataset.require_pairs()
    elif (dataset.manifest["counts"]["items"] or {}).get("pairs"):
        raise ConfigError(
            f"{name} holds preference pairs, and this trainer would train on rejected answers, too; use DPOTrainer or "
            'RewardTrainer, or pack the better answers as "messages" or "completion"'
        )
    if dataset.format != format:
        raise ConfigError(f"{name} has format {dataset.format!r}, and this trainer needs format={format!r}")
    if (dataset.rank, dataset.world_size) != (args.process_index, args.world_size):
        raise ConfigError(
            f"{name} was opened for rank {dataset.rank} of {dataset.world_size}, and this is process "
            f"{args.process_index} of {args.world_size}; give its folder or URL instead"
        )
    if needs_pairs and any(group["sp_size"] > 1 for group in dataset.manifest["groups"]):
        raise ConfigError(
            f"{dataset.path} has rows that GPUs share, and TRL needs whole samples for pairs; plan groups of SP "
            "degree 1"
        )
    found: PackedDataset = dataset
    return found
