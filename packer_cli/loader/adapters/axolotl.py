"""Axolotl on packed sets: a plugin. ::

# in the YAML
plugins:
  - packer_cli.loader.adapters.axolotl.HbpackPlugin
hbpack: OUT
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from packer_cli.errors import ConfigError, HbpackError
from packer_cli.format.constants import VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.loader.adapters.trainer_arguments import require_release
from packer_cli.loader.options import check_rank
from packer_cli.loader.storage import open_set

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
"""Settings that the plan decides, and the values that Axolotl is told instead."""

_OF_EVALUATION = {
    "early_stopping_patience": None,
    "eval_steps": None,
    "eval_strategy": None,
    "evals_per_epoch": None,
    "load_best_model_at_end": False,
    "val_set_size": 0.0,
}
"""Settings that the plan decides if there is no validation set, and the values that Axolotl is told instead."""

_OTHER_LOSS = "is not supported on packed rows"
_UNSUPPORTED = {
    "balance_labels": "would draw other samples than the plan",
    "fix_untrained_tokens": "reads all samples",
    "layer_offloading": _OTHER_LOSS,
    "orpo_alpha": _OTHER_LOSS,
    "pretraining_dataset": "is not read",
    "process_reward_model": _OTHER_LOSS,
    "reward_model": _OTHER_LOSS,
    "rl": _OTHER_LOSS,
    "streaming": "is not read",
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
        ConfigError: for a release of Axolotl before 0.19, and keys of the YAML that packed rows do not have, before a
            model is loaded; and as `packed` does.
    """

    def get_input_args(self) -> str:
        """Name the class of the plugin's keys."""
        return f"{__name__}.{HbpackArgs.__name__}"

    def register(self, cfg: Any) -> None:
        """Tell Axolotl what the plan decides, before it checks the YAML."""
        require_release("axolotl", "0.19", type(self).__name__)
        path = cfg.get("hbpack")
        if not isinstance(path, str):
            raise ConfigError("hbpack is not given: name a packed set in the YAML, such as hbpack: OUT")
        for name, reason in _UNSUPPORTED.items():
            if cfg.get(name):
                raise ConfigError(f"{name} {reason}; leave it out, or train without the plugin")
        for name in _DIVIDES_MODEL:
            if (cfg.get(name) or 1) > 1:
                raise ConfigError(f"{name} is not supported on packed rows; leave it out, and set fsdp_version to 2")
        _tell(cfg, _DECIDED, f"the plan of {path} decides")
        if not cfg.get("datasets"):  # Which Axolotl requires, and names in the model's card.
            cfg["datasets"] = [{"path": path.removeprefix("hf://datasets/").partition("@")[0], "type": "completion"}]
        try:
            validation = _validation_of(path)
        except HbpackError:
            return  # Of a command that needs no data; to load them would raise it again.
        if validation is None:
            _tell(cfg, _OF_EVALUATION, f"{path} has no validation set; see hbpack pack --validation")
        elif not cfg.get("val_set_size"):  # Without which Axolotl allows no evaluation.
            cfg["val_set_size"] = 0.01

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:
        """Return the paths of the sets, which the trainer opens, and the number of steps for Axolotl's defaults."""
        from axolotl.common.datasets import TrainDatasetMeta

        path = cfg.hbpack
        world_size = None if preprocess else int(os.environ.get("WORLD_SIZE", 1))
        num_steps = math.ceil(_manifest_of(path, world_size).epochs[0].num_steps * (cfg.num_epochs or 1))
        return TrainDatasetMeta(path, _validation_of(path), min(num_steps, cfg.max_steps or num_steps))

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Return the arguments that are not the user's.

        The trainer counts the steps of each epoch, and reads rows without workers.
        """
        return {
            "dataloader_num_workers": 0,
            "dataloader_prefetch_factor": None,
            "max_steps": cfg.max_steps or -1,
        }

    def get_trainer_cls(self, cfg: Any) -> type:
        """Return Axolotl's trainer, on packed sets."""
        from axolotl.core.trainers import AxolotlTrainer
        from axolotl.integrations.base import PluginManager

        for plugin in PluginManager.get_instance().plugins.values():
            if plugin is not self:
                _require_no_trainer(plugin.get_trainer_cls(cfg))
        from packer_cli.loader.adapters.transformers import packed

        class PackedAxolotlTrainer(packed(AxolotlTrainer)):  # type: ignore[misc]
            def __init__(self, *arguments: Any, data_collator: Any = None, **others: Any) -> None:
                super().__init__(*arguments, **others)  # Axolotl always makes a collator.
                self.packed_set.num_steps  # noqa: B018  (Axolotl has computed its schedule from them)

        return PackedAxolotlTrainer

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Raise ConfigError if another plugin's trainer came first."""
        if not hasattr(trainer, "packed_set"):
            _require_no_trainer(type(trainer))


def _tell(cfg: Any, known: Mapping[str, Any], reason: str) -> None:
    """Set keys of the YAML, and list those that it had otherwise."""
    ignored = [name for name, value in known.items() if cfg.get(name) and cfg[name] != value]
    cfg.update(known)
    if ignored and os.environ.get("RANK", "0") == "0":
        _LOGGER.warning("no effect, as %s: %s", reason, ", ".join(ignored))


def _require_no_trainer(trainer_class: type | None) -> None:
    if trainer_class is not None:
        raise ConfigError(
            f"{trainer_class.__name__}, of another plugin, does not train packed sets; remove that plugin"
        )


def _manifest_of(path: str, world_size: int | None = None) -> Manifest:
    """Read the manifest of a packed set; raises ConfigError if the set is for another number of GPUs."""
    _, manifest = open_set(path, verify="none")
    if world_size is not None:
        check_rank(0, world_size, manifest, repr(path))
    return manifest


def _validation_of(path: str) -> str | None:
    """Return the validation set of a packed set."""
    return f"{path.rstrip('/')}/{VALIDATION}" if _manifest_of(path).planned.sets_aside else None
