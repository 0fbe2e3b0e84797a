"""transformers' `Trainer` and TRL's trainers on packed sets. ::

from packer_cli.loader.adapters.transformers import packed

trainer = packed(SFTTrainer)(model, args, train_dataset="OUT")
trainer.train()

Of TRL's `DPOTrainer` and `RewardTrainer`, their own losses run, on what a row of trees gives (`pair_rows`). A step is
the mean over its pairs, as of one batch of all of them: each micro-batch counts by its pairs, and the constant loss of
dummies is taken out again.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from packer_cli.errors import ConfigError
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.adapters.packed_trainer import PackedTrainer, TrainerRunner
from packer_cli.loader.adapters.pair_rows import PairRow, PairsOfRow, RewardRow
from packer_cli.loader.adapters.reference import ReferenceLogps
from packer_cli.loader.adapters.trainer_arguments import require_release
from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.separation import check_trees
from packer_cli.loader.steps import Step

__all__ = ["packed"]


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


_INEXACT = {
    "aot": "sorts the pairs of a micro-batch",
    "aot_unpaired": "sorts the pairs of a micro-batch",
    "sft": "is a mean over the tokens of a micro-batch",
}
"""Losses that are not a mean over pairs, which rows of unlike numbers would change."""


class _PairRunner(TrainerRunner):
    """Steps of pairs: TRL's loss of each row, and what it logs."""

    def check(self) -> None:
        """Check that each branch of a tree gives what its sample gives alone."""
        check_trees(self.model, self.device, self._trainer.row_class)

    def weight_of_step(self, batch: Any) -> float:
        """Return the number of the step's pairs."""
        return int(batch["global_num_items"])

    def row(self, batch: Any, group: Any, *, factor: float) -> PairsOfRow:
        """Make the row that the trainer runs."""
        made: PairsOfRow = self._trainer.row_class(batch, factor=factor, device=self.device)
        return made

    def losses(self, step: Step) -> Iterator[Tensor]:
        """Yield the losses, and join TRL's metrics of the micro-batches."""
        self._ran: list[tuple[PairsOfRow, dict[str, float]]] = []
        yield from super().losses(step)
        self.metrics = self._trainer.joined(self._ran, self.weight_of_step(step.batches[0]))

    def forward(self, row: PackedRow) -> Tensor:
        """Sum the losses of the row's pairs, times the row's factor."""
        assert isinstance(row, PairsOfRow)
        trainer = self._trainer
        # A reference model's forward pass was wrapped before it was patched.
        with (
            trainer.compute_loss_context_manager(),
            trainer.accelerator.autocast(),
            trainer.metrics_apart() as metrics,
        ):
            mean = trainer.compute_loss(self.model, row.given())
        dummies = row.num_filled - row.num_pairs
        loss: Tensor = (mean * row.num_filled - trainer.loss_of_dummy * dummies) * row.factor
        row.loss = loss.detach()
        self._ran.append((row, {name: values[-1] for name, values in metrics.items()}))
        return loss


class _PackedPairTrainer(PackedTrainer):
    """Methods of both trainers that differ on packed pairs."""

    row_class: ClassVar[Any]
    runner_class = _PairRunner
    needs_pairs = True
    never_called = ("prediction_step", "evaluation_loop")
    pair_means: ClassVar[tuple[str, ...]]
    """TRL's metrics that are means over pairs, 0 for dummies."""
    # Of TRL's classes.
    _metrics: dict[str, Any]
    precompute_ref_logps: bool

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        if getattr(self, "aux_loss_enabled", False):
            raise ConfigError(
                "the model has an auxiliary loss of its router, a mean over the tokens of a micro-batch; set "
                "router_aux_loss_coef to 0"
            )
        self.loss_of_dummy = self._make_loss_of_dummy()
        """The constant loss of a pair whose numbers are all 0. Made now, since TRL finds an unknown loss by it."""

    def _prepare_dataset(self, dataset: Any, *arguments: Any, **others: Any) -> Any:
        """Return the set as it is: packed sets are prepared."""
        return dataset

    def training_step(self, *arguments: Any, **others: Any) -> Tensor:
        """Train a step; TRL logs the mean over steps, as of the loss."""
        loss = super().training_step(*arguments, **others)
        metrics = self._metrics["train"]
        for name, value in self._runner.metrics.items():
            metrics[name].append(value)
        metrics["num_tokens"] = [self._total_train_tokens]
        return loss

    @contextmanager
    def metrics_apart(self) -> Iterator[dict[str, list[float]]]:
        """Yield what TRL adds to its lists meanwhile, and leave these as they were."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        kept, self._metrics = self._metrics, dict.fromkeys(self._metrics, found)
        try:
            yield found
        finally:
            self._metrics = kept

    def _make_loss_of_dummy(self) -> Tensor:
        zeros = torch.zeros(2, 1, device=self.args.device)
        names = ("log_probs", "entropy", "mean_logits", "log_sum_sq_probs", "logits")
        output = SimpleNamespace(**dict.fromkeys(names, zeros), is_top1=zeros.bool())
        ids, none = zeros.new_zeros(2, 2, dtype=torch.long), zeros.new_zeros(1)
        inputs = {"input_ids": ids, "attention_mask": ids, "completion_mask": ids}
        inputs |= {"ref_chosen_logps": none, "ref_rejected_logps": none}
        # So that DPO takes the reference's numbers, too, and runs no model.
        before, self.precompute_ref_logps = getattr(self, "precompute_ref_logps", False), True
        with torch.no_grad(), self.metrics_apart():
            found: Tensor = self.compute_loss(lambda **_: output, inputs).detach()
        self.precompute_ref_logps = before
        return found

    def joined(self, ran: list[tuple[PairsOfRow, dict[str, float]]], num_pairs: float) -> dict[str, float]:
        """Join the metrics of a step from those of its micro-batches."""
        found = {}
        for name in ran[-1][1]:
            values = [metrics[name] for _, metrics in ran]
            if name in self.pair_means:
                sums = [value * row.num_filled for value, (row, _) in zip(values, ran, strict=True)]
                found[name] = sum(sums) * self.args.world_size / num_pairs
            else:
                found[name] = sum(values) / len(values)
        return found


class PackedDPOTrainer(_PackedPairTrainer):
    """Before `DPOTrainer`."""

    row_class = PairRow
    pair_means = (
        "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"
    )  # fmt: skip

    def __init__(self, model: Any = None, ref_model: Any = None, args: Any = None, **others: Any) -> None:
        require_release("trl", "1.16", "packed(DPOTrainer)")
        module = next(sys.modules[each.__module__] for each in type(self).__mro__ if each.__name__ == "DPOTrainer")
        _require_exact(args)
        self._reference = None
        if getattr(args, "precompute_ref_log_probs", False):
            self._reference = ReferenceLogps(self, module.hash_module)
        with nullcontext() if self._reference is None else self._with_known_reference(module, self._reference):
            super().__init__(model, args, ref_model=ref_model, **others)
        reference: Any = self.ref_model
        if reference is not None:
            run_packed_rows(getattr(reference, "module", reference))

    @contextmanager
    def _with_known_reference(self, module: Any, reference: ReferenceLogps) -> Iterator[None]:
        """Load and hash a reference model only where needed: under FSDP, TRL does both before FSDP divides it."""

        def is_known(model: Any) -> bool:
            return all(reference.look_up(each, model) for each in (self.packed_set, *self._eval_sets.values()))

        def create_model(*given: Any, **others: Any) -> Any:
            # A model that is given by name is created before there is an accelerator.
            if hasattr(self, "accelerator") and is_known(self.model):
                return None
            return create(*given, **others)

        hash_module, create = module.hash_module, module.create_model_from_path
        module.hash_module, module.create_model_from_path = is_known, create_model
        try:
            yield
        finally:
            module.hash_module, module.create_model_from_path = hash_module, create

    def _precompute_ref_logps(self, dataset: Any, name: str, *arguments: Any) -> Any:
        """Require the log-probabilities of the packed sets in place of the given one."""
        assert self._reference is not None
        for each in [self.packed_set] if name == "train" else self._eval_sets.values():
            self._reference.require(each)
        return dataset

    def steps_of(self, dataset: PackedDataset, begin: int | None = None) -> Iterator[Step]:
        """Yield the steps with the reference model's log-probabilities, if they are computed once."""
        reference = self._reference
        if reference is not None:
            reference.require(dataset)
        for step in super().steps_of(dataset, begin):
            if reference is not None:
                for batch in step.batches:
                    reference.fill(dataset, batch)
            yield step


class PackedRewardTrainer(_PackedPairTrainer):
    """Before `RewardTrainer`."""

    row_class = RewardRow
    gives_rewards = True
    pair_means = ("mean_reward", "accuracy", "margin")

    def joined(self, ran: list[tuple[PairsOfRow, dict[str, float]]], num_pairs: float) -> dict[str, float]:
        """Join as for both; dummies have a reward of 0, which is neither the least nor the greatest."""
        found = super().joined(ran, num_pairs)
        rewards = torch.cat([row.rewards for row, _ in ran if isinstance(row, RewardRow)]).double()
        ends = torch.full((2,), math.inf, dtype=torch.float64, device=self.args.device)
        if len(rewards):
            ends = torch.stack([rewards.min(), -rewards.max()])
        if self.args.world_size > 1:
            dist.all_reduce(ends, dist.ReduceOp.MIN)
        return found | {"min_reward": float(ends[0]), "max_reward": -float(ends[1])}


def _require_exact(args: Any) -> None:
    types = getattr(args, "loss_type", None) or []
    for name in [types] if isinstance(types, str) else types:
        if name in _INEXACT:
            raise ConfigError(
                f"loss_type {name!r} {_INEXACT[name]}, and packed rows have as many pairs as fit; choose a loss that "
                "is a mean over pairs, such as 'sigmoid' or 'ipo'"
            )


_OF_TRL = {"SFTTrainer": PackedTrainer, "DPOTrainer": PackedDPOTrainer, "RewardTrainer": PackedRewardTrainer}
"""The constructor's stand-in by the name of TRL's class."""
_UNSUITABLE = {
    "KTOTrainer": "its loss compares each sample with a mean over the micro-batch",
    "GRPOTrainer": "its samples do not exist before training",
    "RLOOTrainer": "its samples do not exist before training",
}
