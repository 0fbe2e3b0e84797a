"""transformers' `Trainer` and TRL's trainers on packed sets. ::

from packer_cli.loader.adapters.transformers import packed

trainer = packed(SFTTrainer)(model, args, train_dataset="OUT")
trainer.train()
"""

from __future__ import annotations

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.packed_trainer import PackedTrainer
from packer_cli.loader.adapters.trainer_arguments import require_release
from packer_cli.loader.adapters.trl import PackedDPOTrainer, PackedRewardTrainer

__all__ = ["packed"]

_OF_TRL = {"SFTTrainer": PackedTrainer, "DPOTrainer": PackedDPOTrainer, "RewardTrainer": PackedRewardTrainer}
"""By the name of TRL's class, what stands before it."""
_UNSUITABLE = {
    "KTOTrainer": "its loss compares each sample with a mean over the micro-batch",
    "GRPOTrainer": "its samples do not exist before training",
    "RLOOTrainer": "its samples do not exist before training",
}


def packed(trainer_class: type) -> type:
    """Make a class that trains packed sets from a trainer class.

    The trainer class is `Trainer`, TRL's `SFTTrainer`, `DPOTrainer` or `RewardTrainer`, or derived from one.

    The new class's `train_dataset` and `eval_dataset` are paths or URLs of packed sets. Each optimizer step is a step
    of the plan, and the loss is the mean over the loss tokens of a whole step, or what their weights say; of
    `DPOTrainer` and `RewardTrainer`, the mean over its preference pairs. GPUs share rows as the plan says (groups with
    an SP degree). `max_steps`, epochs and the learning rate's schedule count steps of the plan. A checkpoint has the
    place in the data, so `resume_from_checkpoint` goes on there. Beside the loss, the class logs `tokens_per_second`;
    `step_seconds`, the mean since the last log; and `predicted_step_seconds`, that of the same steps by prediction, if
    the set was planned with a model of the GPUs.

    Raises:
        ConfigError: for another trainer of TRL, or a release of transformers before 5.16; when the trainer is made,
            for a set that it cannot train, arguments that do not fit one, or methods of a class that would not be
            called.
    """
    if issubclass(trainer_class, PackedTrainer):
        return trainer_class
    require_release("transformers", "5.16", f"packed({trainer_class.__name__})")
    return type(f"Packed{trainer_class.__name__}", (_before(trainer_class), trainer_class), {})


def _before(trainer_class: type) -> type:
    """Return the class whose methods come before the trainer's own."""
    name = next((each.__name__ for each in trainer_class.__mro__ if each.__module__.startswith("trl.")), None)
    if name is None:
        return PackedTrainer
    if name not in _OF_TRL:
        why = _UNSUITABLE.get(name, "its batches are of another kind")
        raise ConfigError(f"{name} does not train on packed sets: {why}; packed takes Trainer, {', '.join(_OF_TRL)}")
    return _OF_TRL[name]
