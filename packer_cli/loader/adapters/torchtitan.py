"""A packed set as torchtitan's data loader. ::

    from packer_cli.loader.adapters.torchtitan import PackedDataLoader

    config.dataloader = PackedDataLoader.Config(path="OUT")
    config.training.num_tokens_per_microbatch_per_dp_rank = 16384  # the capacity of the set's group
    config.training.max_context_length = 16384

Do not use a packed set as a source of torchtitan's grain pipeline instead: that shuffles, packs and shards it again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.format.sharding import length_multiple
from packer_cli.loader.build_batch import PadTo, round_up
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.formats.base import as_rows
from packer_cli.loader.options import require_segments
from packer_cli.loader.storage import open_set

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:  # Releases up to 0.3.
    from torchtitan.components.dataloader import BaseDataLoader


class PackedDataLoader(BaseDataLoader):
    """Batches without end, epoch after epoch: ``({"input", "positions"}, labels)``, int64 [T], labels shifted.

    torchtitan builds it from its `Config`. It reads a fixed number of batches per step and divides by their loss
    tokens, so the loss is exact. If you plan without `--global-tokens`, its steps are those of the plan.

    For context parallelism, plan all groups with that SP degree: its ranks share a row, which torchtitan slices.

    Args:
        config: the set, and how to pad its rows.
        dp_world_size, dp_rank: torchtitan's data-parallel ranks, not counting those of context parallelism.
        max_context_length: at least the longest row, since padding and fillers have positions as well.
        num_tokens_per_batch: the length of the longest padded row, by which torchtitan counts tokens.
        seq_len, local_batch_size: replace these two in releases up to 0.3, whose batches are [1, T].

    Raises:
        ConfigError: the set was planned for other numbers of GPUs or tokens.
        FormatError, ValueError: as `PackedDataset`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Settings of what to read."""

        path: str
        """The folder that `hbpack pack` wrote, or its URL."""
        pad_to: PadTo = "capacity"
        """Length of padded rows, as in `PackedDataset`. CUDA graphs, torchtitan's default, and pipeline parallelism
        need a fixed shape; without them, "multiple" wastes no tokens."""
        max_num_documents: int | None = None
        """The documents of a row for which the trainer captures graphs of varlen attention. Rows of the set must have
        no more, padding included; `hbpack pack --max-samples` limits them to one less."""
        loss_weights: bool = True
        """torchtitan's loss has no place for weights: a set that has any needs False, with which all loss tokens
        count 1."""
        pad_token_id: int | None = None
        """Id of the padding; None: the tokenizer's pad token, else its end-of-text token."""
        cache_dir: str | None = None
        """For a remote set; None: the default."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        max_context_length: int | None = None,
        num_tokens_per_batch: int | None = None,
        seq_len: int | None = None,
        local_batch_size: int = 1,
        **kwargs: Any,
    ) -> None:
        del kwargs  # The tokenizer, and when to save.
        layout, num_gpus = _read_layout(config, config.path)
        if dp_world_size * layout.num_gpus != num_gpus:
            degrees = {"context": layout.row_ranks, "tensor": layout.tp, "pipeline": layout.pp}
            options = [
                f"--parallelism.{name}_parallel_degree {size}"
                for name, size in degrees.items()
                if size > 1 or name == "context"
            ]
            raise ConfigError(
                f"{config.path!r} was planned for {num_gpus} GPUs, {layout.num_gpus} a row, but torchtitan has "
                f"{dp_world_size} data-parallel ranks: set {' '.join(options)} and start it on {num_gpus} GPUs, "
                "or plan again for these ranks"
            )
        self.dataset = PackedDataset(
            config.path,
            dp_rank * layout.num_gpus,
            num_gpus,
            format="torchtitan",
            pad_to=config.pad_to,
            pad_token_id=config.pad_token_id,
            loss_weights=config.loss_weights,
            cache_dir=config.cache_dir,
        )
        self._has_batch_dimension = seq_len is not None
        if self._has_batch_dimension and local_batch_size != 1:
            raise ConfigError(f"training.local_batch_size is {local_batch_size}: a row is a batch, so set it to 1")
        settings = {"training.seq_len": seq_len}
        if not self._has_batch_dimension:
            name = "training.num_tokens_per_microbatch_per_dp_rank"
            settings = {name: num_tokens_per_batch, "training.max_context_length": max_context_length}
        self._check = lambda: _check_set(self.dataset, layout, settings, config)
        self._check()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        """Yield batches from the current place on, without end."""
        while True:
            for inputs, labels in self.dataset:
                is_flat = not self._has_batch_dimension
                yield (inputs, labels) if is_flat else (as_rows(inputs), labels[None])
            self.dataset.set_epoch(self.dataset.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch returned; the same on every rank."""
        return self.dataset.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a state's place, or for an empty one at the start. Refuses the state of another packed set."""
        if state_dict:
            self.dataset.load_state_dict(state_dict)
            self._check()  # Of another version, perhaps.

    def close(self) -> None:
        """Close the files."""
        self.dataset.close()


def _read_layout(config: PackedDataLoader.Config, path: str) -> tuple[Layout, int]:
    """Read the layout of the replicas, and the GPUs of the set."""
    _, manifest = open_set(path)
    if config.max_num_documents is not None and manifest.planned.mask != "causal":
        # A causal row is one document, padding included.
        most = max(group.most_samples for group in manifest.groups)
        require_segments("max_num_documents", config.max_num_documents, most, repr(config.path))
    layouts = sorted({group.layout for group in manifest.groups})
    if len(layouts) > 1:
        raise ConfigError(
            f"{config.path!r} has groups of degrees {', '.join(map(str, layouts))}, but torchtitan's are fixed: plan "
            "all groups with the same degrees"
        )
    return layouts[0], manifest.num_gpus


def _check_set(dataset: PackedDataset, layout: Layout, settings: dict[str, int | None], config: Any) -> None:
    """Raise ConfigError if torchtitan's settings do not fit the rows; warn of parts of the plan that it ignores."""
    if _read_layout(config, dataset.folder)[0] != layout:
        raise ConfigError(
            f"{dataset.folder!r} has other degrees than {str(dataset.path)!r} when the run began: name it"
        )
    groups, epochs = dataset.manifest["groups"], dataset.manifest["epochs"]
    multiple = length_multiple("zigzag", groups[0]["sp_size"] * groups[0]["cp_size"]) * groups[0]["tp_size"]
    lengths = sorted({round_up(int(group["capacity"]), multiple) for group in groups})
    for i, (name, value) in enumerate(settings.items()):
        # torchtitan counts by the first; the second is only a limit.
        if value is not None and (value != lengths[-1] if i == 0 else value < lengths[-1]):
            raise ConfigError(
                f"{name} is {value}, but the longest rows of {str(dataset.path)!r} have {lengths[-1]} tokens: "
                f"set it to {lengths[-1]}"
            )
    if config.pad_to == "capacity" and len(lengths) > 1:
        warnings.warn(
            f"rows have {' or '.join(map(str, lengths))} tokens, but CUDA graphs need one length: set "
            "--training.disable_cuda_graphs, or plan one group",
            stacklevel=3,
        )
    if any(entry["num_steps"] != entry["num_iterations"] for entry in epochs):
        warnings.warn(
            "the plan has steps of several iterations, but torchtitan reads the same number of batches in each step: "
            "plan without --global-tokens to keep the plan's steps",
            stacklevel=3,
        )
