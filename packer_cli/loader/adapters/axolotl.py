"""Axolotl on packed sets: a plugin. ::

# in the YAML
plugins:
  - packer_cli.loader.adapters.axolotl.HbpackPlugin
hbpack: OUT
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from packer_cli.errors import ConfigError
from packer_cli.format.constants import VALIDATION
from packer_cli.loader.storage import open_storage, read_manifest
from packer_cli.remote.local import CACHE_BYTES

__all__ = ["HbpackPlugin"]

_LOGGER = logging.getLogger(__name__)

_DECIDED = {
    "batch_size": None,
    "context_parallel": None,
    "context_parallel_size": 1,
    "curriculum_sampling": False,
    "eval_sample_packing": False,
    "gradient_accumulation_steps": 1,
    "group_by_length": False,
    "micro_batch_size": 1,
    "pad_to_sequence_len": False,
    "sample_packing": False,
    "sequence_parallel_degree": None,
}
"""What the plan decides, and Axolotl is told instead."""

_OF_EVALUATION = {"eval_steps": None, "eval_strategy": None, "evals_per_epoch": None, "val_set_size": 0.0}
"""Likewise, if there is no validation set."""

_UNSUPPORTED = {
    "fix_untrained_tokens": "reads all samples",
    "layer_offloading": "is not supported on packed rows",
    "pretraining_dataset": "is not read",
    "process_reward_model": "is not supported on packed rows",
    "reward_model": "is not supported on packed rows",
    "rl": "is not supported on packed rows",
    "test_datasets": "is not read; set samples aside with hbpack pack --validation",
    "trainer_cls": "would not be used",
}
_DIVIDES_MODEL = ("tensor_parallel_size", "expert_parallel_size")


class HbpackArgs(BaseModel):
    """The plugin's key of the YAML."""

    hbpack: str
    """Folder or URL of a packed set."""


class HbpackPlugin(BasePlugin):
    """Trains the packed set that `hbpack:` in the YAML names, with `packed(AxolotlTrainer)`.

    `datasets` is not read. Samples that `hbpack pack --validation` set aside are evaluated, as often as the YAML says.

    Raises:
        ConfigError: for keys of the YAML that packed rows do not have, before a model is loaded, and as `packed` does.
    """

    def get_input_args(self) -> str:
        """The class of the plugin's keys."""
        return f"{__name__}.{HbpackArgs.__name__}"

    def register(self, cfg: Any) -> None:
        """Tell Axolotl what the plan decides, before it checks the YAML."""
        path = cfg.get("hbpack")
        if not isinstance(path, str):
            raise ConfigError("hbpack is not given: name a packed set in the YAML, such as hbpack: OUT")
        for name, reason in _UNSUPPORTED.items():
            if cfg.get(name):
                raise ConfigError(f"{name} {reason}; leave it out, or train without the plugin")
        for name in _DIVIDES_MODEL:
            if (cfg.get(name) or 1) > 1:
                raise ConfigError(f"{name} is not supported on packed rows; leave it out, and set fsdp_version to 2")
        self._tell(cfg, _DECIDED, f"the plan of {path} decides")
        if not _validation_of(path):
            self._tell(cfg, _OF_EVALUATION, f"{path} has no validation set; see hbpack pack --validation")
        elif not cfg.get("val_set_size"):  # Without which Axolotl allows no evaluation.
            cfg["val_set_size"] = 0.01
        if not cfg.get("datasets"):  # Which Axolotl requires.
            cfg["datasets"] = [{"path": path, "type": "completion"}]

    def _tell(self, cfg: Any, known: Mapping[str, Any], reason: str) -> None:
        ignored = [name for name, value in known.items() if cfg.get(name) and cfg[name] != value]
        cfg.update(known)
        if ignored and os.environ.get("RANK", "0") == "0":
            _LOGGER.warning("no effect, as %s: %s", reason, ", ".join(ignored))

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:
        """The paths of the sets, which the trainer opens."""
        from axolotl.common.datasets import TrainDatasetMeta

        return TrainDatasetMeta(cfg.hbpack, _validation_of(cfg.hbpack))

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """What Axolotl sets by itself: it takes how often to log from a number of steps that it does not know here."""
        waits = {"dataloader_num_workers": 0, "dataloader_prefetch_factor": None}
        return {**waits, "logging_steps": cfg.logging_steps or 10}

    def get_trainer_cls(self, cfg: Any) -> type:
        """Axolotl's trainer, on packed sets."""
        from axolotl.core.trainers import AxolotlTrainer

        from packer_cli.loader.adapters.transformers import packed

        class PackedAxolotlTrainer(packed(AxolotlTrainer)):  # type: ignore[misc]
            def __init__(self, *arguments: Any, data_collator: Any = None, **others: Any) -> None:
                super().__init__(*arguments, **others)  # Axolotl always makes a collator.

        return PackedAxolotlTrainer

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Raise ConfigError if another plugin's trainer came first."""
        if not hasattr(trainer, "packed_set"):
            raise ConfigError(
                f"{type(trainer).__name__}, of another plugin, does not train packed sets; remove that plugin"
            )


def _validation_of(path: str) -> str | None:
    """The validation set of a packed set."""
    storage = open_storage(path, verify="none", cache_dir=None, cache_bytes=CACHE_BYTES, storage_options=None)
    return f"{path.rstrip('/')}/{VALIDATION}" if read_manifest(path, storage).sets_aside else None
