"""Checks the arguments of `PackedDataset`, and chooses those that depend on the set."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any, get_args

from packer_cli.errors import ConfigError
from packer_cli.format.constants import Mask
from packer_cli.format.manifest import Manifest
from packer_cli.loader.build_batch import BatchBuilder


def as_integer(name: str, value: Any, example: str = "", *, least: int | None = None, most: int | None = None) -> int:
    """Return an argument as an integer; accept those of numpy and torch.

    Args:
        example: an expression to suggest if the value is text, such as from the environment.
        least, most: what it must not be below, or above.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is below the least, or above the most.
    """
    try:
        number = operator.index(value)
    except TypeError:
        remedy = f"; write {example or f'int({value!r})'}" if isinstance(value, str) else ""
        raise TypeError(f"{name} is {value!r}: it must be an integer{remedy}") from None
    if (least is not None and number < least) or (most is not None and number > most):
        rule = f"be at least {least}" if least else "not be negative"
        rule = rule if most is None else f"be from {least} to {most}"
        raise ValueError(f"{name} is {number}: it must {rule}")
    return number


def check_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError, which lists the names, for an unknown one."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(known)}")


def choose_mask(
    manifest: Manifest, mask: Any, reset_positions: bool | None, format: str, *, positions_are_borders: bool
) -> tuple[Mask, bool]:
    """Choose the mask, by default the set's, and whether positions begin at 0 in each sample, by default with it.

    Raises:
        ValueError: there is no such mask, or the format cannot tell it from the positions.
    """
    chosen: Mask = manifest.planned.mask if mask is None else mask
    check_choice("mask", chosen, get_args(Mask))
    resets = chosen == "document" if reset_positions is None else reset_positions
    if positions_are_borders and resets != (chosen == "document"):
        raise ValueError(
            f"reset_positions is {resets} with mask {chosen!r}, but trainers of format {format!r} take position 0 for "
            f"the start of a segment: leave reset_positions out, or choose mask {'document' if resets else 'causal'!r}"
        )
    return chosen, resets


def choose_weights(manifest: Manifest, wanted: bool, format: str, name: str, *, takes_weights: bool) -> bool:
    """Whether batches have the weights of loss tokens.

    Args:
        name: of the packed set, for messages.
        takes_weights: whether the format has a place for them.

    Raises:
        ConfigError: the set has weights, and the format has no place for them.
    """
    if not manifest.is_weighted or not wanted:
        return False
    if not takes_weights:
        raise ConfigError(
            f"{name} has loss weights, for which trainers of format {format!r} have no place: choose format "
            "'transformers', 'flash-attn', 'megatron' or 'megatron-thd', or pass loss_weights=False, with which all "
            "loss tokens count 1"
        )
    return True


def choose_max_segments(manifest: Manifest, given: Any, mask: Mask, name: str) -> int | None:
    """Choose the segments of every row by `max_segments`; None: as many as each has.

    Args:
        mask: with "causal", every row is one segment.
        name: of the packed set, for messages.

    Raises:
        ConfigError: the largest pack and its padding need more.
        TypeError: it is neither an integer nor "plan".
    """
    if given is None:
        return None
    most = 0 if mask == "causal" else max(group.most_samples for group in manifest.groups)
    if given == "plan":
        return most + 1
    number = as_integer("max_segments", given, least=1)
    require_segments("max_segments", number, most, name)
    return number


def require_segments(option: str, number: int, most: int, name: str) -> None:
    """Raise ConfigError if an option allows rows no more segments than the largest pack has samples, or fewer."""
    if number <= most:
        limit = f", or pack again with --max-samples {number - 1}" if number > 1 else ""
        raise ConfigError(
            f"{option} is {number}, but {name} has a pack of {most} samples, and padding may be one segment more: "
            f"give at least {most + 1}{limit}"
        )


def check_rank(rank: Any, world_size: Any, manifest: Manifest, name: str) -> tuple[int, int]:
    """Return (rank, world_size) as integers, if they fit the packed set.

    Args:
        name: of the packed set, for messages.

    Raises:
        ConfigError: it was planned for another number of GPUs.
        TypeError, ValueError: there is no such rank.
    """
    rank = as_integer("rank", rank, "int(os.environ['RANK'])")
    world_size = as_integer("world_size", world_size, "int(os.environ['WORLD_SIZE'])", least=1)
    if world_size != manifest.num_gpus:
        multiple = math.lcm(*(group.layout.num_gpus for group in manifest.groups))
        remedy = f"run hbpack rebalance --gpus {world_size}, or plan again with --gpus {world_size}"
        if world_size % multiple:
            remedy = (
                f"its rows need a multiple of {multiple} GPUs; train on so many, or plan again with other --groups"
            )
        raise ConfigError(f"{name} was planned for {manifest.num_gpus} GPUs, but world_size is {world_size}: {remedy}")
    return as_integer("rank", rank, least=0, most=world_size - 1), world_size


def check_lockstep(lockstep: bool, manifest: Manifest, name: str) -> bool:
    """Check the argument `lockstep`. Raises ConfigError if the ranks of the set do not run in lockstep, as it says."""
    if lockstep and manifest.lockstep == 1:
        raise ConfigError(
            f"{name} was planned with --lockstep 1: its ranks run different numbers of micro-batches, with which FSDP "
            "and ZeRO-2 or 3 would hang. For DDP or ZeRO-1, pass lockstep=False and run every micro-batch of each "
            "list; for other trainers, plan with --lockstep all"
        )
    return bool(lockstep)


def check_tree_format(
    manifest: Manifest, format: str, builder: type[BatchBuilder], name: str, *, pad_to: str, sp_sharding: str | None,
    is_plain: bool,
) -> None:  # fmt: skip
    """Raise ConfigError for a set of items and a format or an argument that would lose trees, or the reverse.

    Args:
        format, builder: its name, and what builds its micro-batches.
        name: of the packed set, for messages.
        is_plain: whether `mask`, `reset_positions` and `max_segments` ask for nothing beyond the samples.
    """
    if builder.unit == "sample":
        remedy = "choose format 'tree', 'tree-flex' or, for preference pairs, 'pairs'"
        manifest.require_samples(name, f"format {format!r} has", remedy)
        return
    if manifest.unit == "sample":
        what, how = "preference pairs, groups and turns", "--items pairs or groups, or --turns branch"
        if format == "pairs":
            what, how = "preference pairs alone", "--items pairs"
        raise ConfigError(
            f"{name} holds plain samples, and format {format!r} is for {what}: choose format 'transformers' or "
            f"another, or pack with {how}"
        )
    if format == "pairs":
        require_pairs(manifest, name)
    wrong = ""
    if any(group.cp_size > 1 for group in manifest.groups):
        wrong = "it was planned with context parallelism, whose ranks would each see a part of a tree: plan it with SP"
    elif sp_sharding not in (None, "contiguous"):
        wrong = f"sp_sharding is {sp_sharding!r}, which is for context parallelism: leave it out"
    elif any(group.align > 1 for group in manifest.groups):
        wrong = "it was planned with --align, and segments cannot be padded: plan it without"
    elif not is_plain:
        wrong = "it takes mask 'document', positions by depth and as many segments as there are: leave mask, "
        wrong += "reset_positions and max_segments out"
    elif format == "pairs" and pad_to != "multiple":
        wrong = f"pad_to is {pad_to!r}, but rows without shared prefixes may be longer than that: use 'multiple'"
    if wrong:
        raise ConfigError(f"{name} cannot be read in format {format!r}: {wrong}")


def require_pairs(manifest: Manifest, name: str, *, is_weighted: bool = False) -> None:
    """Raise ConfigError unless all items of the set are preference pairs, without weights."""
    if not manifest.has_pairs_alone:
        found = "holds other records beside its preference pairs" if manifest.num_pairs else "has no preference pairs"
        raise ConfigError(
            f"{name} {found}, and only pairs are trained on here; pack records that have chosen and rejected on their "
            "own, with --items pairs"
        )
    if is_weighted:
        raise ConfigError(
            f"{name} has loss weights, and losses of pairs count all pairs alike: leave weight out of the records, or "
            "pass loss_weights=False to PackedDataset to ignore them; trainers take such a data set, too"
        )


def require_held_out(validation: Manifest, training: Manifest, name: str) -> None:
    """Raise ConfigError for a validation set if training has some of its samples.

    Samples are set aside by rising hashes. So of the same tokens, the larger of two validation sets holds the other.

    Args:
        name: of the validation set, for messages.
    """
    is_of_same = validation.tokens_fingerprint == training.tokens_fingerprint is not None
    number = validation.counts.samples - training.counts.set_aside
    if validation.planned.is_validation and is_of_same and number > 0:
        raise ConfigError(
            f"{name} holds {validation.counts.samples} samples that were set aside, and {number} of them are in the "
            "training set; evaluate on that set's own validation set, or plan the training set with --validation "
            f"{validation.planned.validation}"
        )
