"""A reference model's log-probabilities of the pairs of a set: from its columns, else computed once, and kept.

Each rank runs its own rows of one whole epoch through TRL's `compute_ref_log_probs`. What it gives is gathered by item
and kept in a file beside the set, or in this node's cache folder if that cannot be written to. The file is named after
the set, the reference model's weights, and whatever else decides the numbers; another number of GPUs reads it too. The
first rank alone reads and writes it, so nodes need not share a disk.

Price: a forward pass of each row, without a graph; where a file is found, a hash of the weights. Whether the columns
of a set have them all is known once each rank has read its rows, or the first one that lacks some.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from accelerate.utils import gather_object
from transformers.utils.logging import tqdm

from packer_cli.errors import ConfigError
from packer_cli.format.arrays import to_numpy
from packer_cli.format.constants import REFERENCE_FOLDER, REFERENCE_VALUES
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.pair_rows import PairRow
from packer_cli.loader.adapters.step_runner import require_vocabulary
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.separation import check_trees, evaluating
from packer_cli.loader.steps import packed_steps
from packer_cli.remote.local import default_cache_dir
from packer_cli.remote.system import is_url

_LOGGER = logging.getLogger(__name__)

Columns = dict[str, np.ndarray]
"""`item_id` int64 [i], rising, and `REFERENCE_VALUES`, of the type in which the model gave them, [i]."""

_LACKS = "precompute_ref_log_probs is set, the set lacks ref_chosen_logps or ref_rejected_logps of some pairs, and"


class ReferenceLogps:
    """Log-probabilities of the reference for a trainer's sets. All ranks call its methods at once.

    Args:
        trainer: a `DPOTrainer`.
        hash_module: TRL's, which hashes the weights of a model.
    """

    def __init__(self, trainer: Any, hash_module: Callable[[Any], str]) -> None:
        self._trainer, self._hash_module = trainer, hash_module
        self._known: dict[str, Columns | None] = {}
        """Log-probabilities of each set, by the folder of its version; None: the set's own columns."""
        self._of_model: str | None = None

    def fill(self, dataset: PackedDataset, batch: Any) -> None:
        """Put them into a batch of a set, which `require` has seen."""
        found = self._known[dataset.folder]
        if found is None:
            return
        items = batch["item_ids"][::2].numpy()  # A pair has two branches.
        places = np.searchsorted(found["item_id"], items)
        if not np.array_equal(found["item_id"].take(places, mode="clip"), items):
            raise ConfigError(
                f"the reference's log-probabilities of {dataset.folder} lack some of its pairs; remove its folder "
                f"{REFERENCE_FOLDER}, and they are computed again"
            )
        for name in REFERENCE_VALUES:
            batch[name] = torch.from_numpy(found[name][places])

    def look_up(self, dataset: PackedDataset, model: Any = None) -> bool:
        """Whether a set or a file has them.

        Args:
            model: the reference, as it was before anything wrapped it; None: what the trainer has now.
        """
        if dataset.folder not in self._known:
            with _whole_epoch(dataset):
                has_all = all(gather_object([_has_all(dataset)]))
            if not has_all:
                names = self._names(dataset, model)
                found = gather_object([_read_first(names) if self._trainer.args.process_index == 0 else None])[0]
                if found is None:
                    return False
            self._known[dataset.folder] = None if has_all else found
        return True

    def require(self, dataset: PackedDataset) -> None:
        """Compute what neither a set nor a file has.

        Raises:
            ConfigError: the reference model is not there, or cannot run yet.
        """
        if self.look_up(dataset):
            return
        names, model = self._names(dataset), self._model()
        with _whole_epoch(dataset):
            parts = gather_object([self._compute(dataset, model)])
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        # An item may be in several rows, where its numbers differ in their last digits.
        items, first = np.unique(joined.pop("item_id"), return_index=True)
        found = {"item_id": items, **{name: values[first] for name, values in joined.items()}}
        if self._trainer.args.process_index == 0:
            _keep(names, found)
        self._known[dataset.folder] = found

    def _model(self) -> Any:
        trainer = self._trainer
        if trainer.is_deepspeed_enabled:
            raise ConfigError(
                f"{_LACKS} DeepSpeed places the weights only when training begins; leave it out and give ref_model, "
                "or train under DDP or FSDP"
            )
        if trainer.ref_model is not None:
            return trainer.ref_model
        if trainer.is_fsdp_enabled:
            raise ConfigError(
                f"{_LACKS} FSDP places the weights only when training begins; leave it out (with LoRA, the reference "
                "is the model without its adapter) or give ref_model"
            )
        if trainer.state.global_step and not hasattr(trainer.model, "peft_config"):
            raise ConfigError(
                f"{_LACKS} the model is no longer the reference: it has been trained; give the set as eval_dataset "
                "when you make the trainer, or give ref_model"
            )
        return trainer.model

    def _compute(self, dataset: PackedDataset, model: Any) -> Columns:
        """Compute the log-probabilities of this rank's rows."""
        trainer, device = self._trainer, self._trainer.args.device
        run_packed_rows(getattr(model, "module", model))
        require_vocabulary(dataset, model)
        check_trees(model, device, PairRow)
        items, values = [np.empty(0, dtype=np.int64)], {name: list[np.ndarray]() for name in REFERENCE_VALUES}
        with evaluating(model):
            is_quiet = trainer.args.disable_tqdm or not trainer.args.should_log
            for batch in tqdm(_batches(dataset), "reference log-probabilities", unit="rows", disable=is_quiet):
                row = PairRow(batch, factor=0.0, device=device)
                found = trainer.compute_ref_log_probs(model, row.given())
                items.append(batch["item_ids"][::2].numpy())
                for name, of_row in zip(REFERENCE_VALUES, found, strict=True):
                    values[name].append(of_row[: row.num_pairs].cpu().numpy())
        return {"item_id": np.concatenate(items), **{name: np.concatenate(each) for name, each in values.items()}}

    def _names(self, dataset: PackedDataset, model: Any = None) -> list[Path]:
        """List the places where the set's file may be, the best first."""
        trainer = self._trainer
        if self._of_model is None:
            if model is None and trainer.is_fsdp_enabled:
                raise ConfigError(
                    f"{_LACKS} FSDP has divided the reference model; give the set as eval_dataset when you make the "
                    "trainer"
                )
            model = self._model() if model is None else model
            is_first = trainer.args.process_index == 0
            self._of_model = gather_object([_hash(model, self._hash_module) if is_first else None])[0]
        with _whole_epoch(dataset) as fingerprint:
            decides = [fingerprint, self._of_model, trainer.ld_alpha, trainer.accelerator.mixed_precision]
        name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32] + ".arrow"
        folders = [default_cache_dir() / REFERENCE_FOLDER]
        if not is_url(dataset.path) and os.access(dataset.folder, os.W_OK | os.X_OK):
            folders.insert(0, Path(dataset.folder, REFERENCE_FOLDER))
        return [folder / name for folder in folders]


def _batches(dataset: PackedDataset) -> Iterator[Any]:
    return (batch for step in packed_steps(dataset, 0) for batch in step.batches)


def _has_all(dataset: PackedDataset) -> bool:
    return not any(
        name not in batch or bool(batch[name].isnan().any())
        for batch in _batches(dataset)
        for name in REFERENCE_VALUES
    )


@contextmanager
def _whole_epoch(dataset: PackedDataset) -> Iterator[str]:
    """Run in an epoch that has all pairs, and return to the data set's place; yield a fingerprint of these pairs.

    A set that was rebalanced within its last epoch has no whole one, and no run reads more than the rest.
    """
    manifest, epoch, state = dataset.manifest, dataset.epoch, dataset.state_dict()
    whole = [number for number, each in enumerate(manifest["epochs"]) if not each["first_step"]]
    planned = [each["fingerprint"] for each in manifest["history"]] if whole else []
    dataset.set_epoch(manifest["first_epoch"] + (whole[0] if whole else 0))
    try:
        yield [*planned, manifest["fingerprint"]][0]
    finally:
        dataset.set_epoch(epoch)
        dataset.load_state_dict(state)


def _hash(model: Any, hash_module: Callable[[Any], str]) -> str:
    """Hash a model's weights and config; of a model with adapters, those that the reference has."""
    adapters = getattr(model, "peft_config", {})
    others = adapters.keys() - {"ref"}
    weights = {name: value for name, value in model.state_dict().items() if others.isdisjoint(name.split("."))}
    parts: list[Any] = [hash_module(SimpleNamespace(state_dict=lambda: weights))]
    parts += [config.to_dict() for config in (model.config, adapters.get("ref")) if config is not None]
    parts[1] = {name: value for name, value in parts[1].items() if name not in _DOES_NOT_DECIDE and name[0] != "_"}
    text = json.dumps(
        parts, sort_keys=True, default=lambda value: sorted(value) if isinstance(value, set) else str(value)
    )
    return hashlib.sha256(text.encode()).hexdigest()


_DOES_NOT_DECIDE = ("transformers_version", "use_cache", "architectures", "dtype")
"""Keys of a config; the weights have their own type."""


def _read_first(names: list[Path]) -> Columns | None:
    """Read the first of these files that is there, and sound."""
    for name in names:
        with suppress(OSError, KeyError, pa.ArrowException), pa.OSFile(str(name)) as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
            found = {each: to_numpy(table.column(each).chunk(0)) for each in ("item_id", *REFERENCE_VALUES)}
            _LOGGER.info("reference log-probabilities are those of %s", name)
            return found
    return None


def _keep(names: list[Path], found: Columns) -> None:
    """Write the first of these files that can be written, atomically."""
    table = pa.table(found)
    for name in names:
        temporary = name.with_name(f".{name.name}.{secrets.token_hex(4)}")
        try:
            name.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                with pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, name)
            return
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            _LOGGER.warning("the reference log-probabilities are not kept in %s (%s)", name.parent, error.strerror)
