"""What the options of a plan must be where its samples are items, whose branches share prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.config.resolve import Resolved
from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.registry import PACKED, STRATEGIES


def for_samples(resolved: Resolved, *, has_trees: bool | None) -> Resolved:
    """The options of a plan for samples that share prefixes, or do not.

    Args:
        has_trees: whether they do; None if that is not known yet, and any options go.

    Raises:
        ConfigError: an option does not go with them.
    """
    config = resolved.config
    if has_trees is None:
        return resolved
    if not has_trees:
        if config.max_path_tokens is not None:
            raise ConfigError(
                f"--max-path-tokens {config.max_path_tokens} has no effect: no samples of this set share a prefix, "
                "so there are no path tokens to limit; leave it out"
            )
        return resolved
    why = why_not_trees(resolved)
    if why is not None:
        raise ConfigError(why)
    return resolved.with_trees()


def why_not_trees(resolved: Resolved) -> str | None:
    """The option that does not go with samples that share prefixes, why, and what to do; None if all do."""
    config, request = resolved.config, resolved.request
    algorithm, groups = request.algorithm, request.groups
    if not request.strategy.takes_trees:
        return f"--strategy {flat_alone([config.strategy])}"
    if algorithm.cut is not None or algorithm.is_padded:
        what = "cuts samples" if algorithm.cut is not None else "pads whole batches"
        return (
            f"--packing {config.packing} {what}, and samples that share prefixes stay whole; choose another, such as "
            f"isf, {OR_FLAT}"
        )
    if any(group.cp_size > 1 for group in groups):
        return (
            "--parallel cp divides rows among GPUs, and a token of a tree needs its whole path on one; share rows "
            f"with SP degrees in --groups instead, {OR_FLAT}"
        )
    if any(group.align > 1 for group in groups):
        return f"--align pads each sample, and the segments of a tree stand side by side; leave it out, {OR_FLAT}"
    if config.mask != "document":
        return f"--mask {config.mask}: in a tree, a token sees its own path alone; leave the option out, {OR_FLAT}"
    if request.steps.windows is not None:
        return (
            f"--curriculum {config.curriculum} cuts what attention sees of a sample, and a tree is not cut so; give "
            f"--curriculum short, {OR_FLAT}"
        )
    return None


def flat_alone(strategies: Sequence[str]) -> str:
    """What to say after its option of strategies that cannot plan samples that share prefixes."""
    packs = "packs" if len(strategies) == 1 else "pack"
    able = ", ".join(name for name in PACKED if STRATEGIES[name].takes_trees)
    names = ", ".join(strategies)
    return f"{names} {packs} flat samples alone, and these share prefixes; choose one of {able}, {OR_FLAT}"


OR_FLAT = "or pack data without pairs and groups, and with --turns whole"
