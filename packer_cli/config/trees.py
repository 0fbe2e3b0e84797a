"""What the options of a plan must be where its samples are items, whose branches share prefixes."""

from __future__ import annotations

from typing import NamedTuple

from packer_cli.config.resolve import Resolved
from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import PACKED, STRATEGIES


class Refusal(NamedTuple):
    """An option that does not go with samples that share prefixes."""

    option: str
    """With its value."""
    why: str
    """A sentence, less its subject."""
    remedy: str

    def __str__(self) -> str:
        what = f"{self.option} does not work with preference pairs, groups or --turns branch"
        return f"{what}: it {self.why}; {self.remedy}"


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
    refusal = why_not_trees(resolved)
    if refusal is not None:
        raise ConfigError(str(refusal))
    return resolved.with_trees()


def why_not_trees(resolved: Resolved) -> Refusal | None:
    """The first option that does not go with samples that share prefixes; None if all do."""
    config, request = resolved.config, resolved.request
    algorithm = request.algorithm
    refusal = flat_alone(request.strategy)
    if refusal is not None:
        return refusal
    if algorithm.cut is not None or algorithm.is_padded:
        why = f"would {'cut' if algorithm.cut is not None else 'pad'} samples that share prefixes"
        return Refusal(f"--packing {config.packing}", why, "choose another, such as isf")
    if any(group.cp_size > 1 for group in request.groups):
        why = "would divide what a token sees among GPUs"
        return Refusal("--parallel cp", why, "share rows with SP degrees in --groups instead")
    if any(group.align > 1 for group in request.groups):
        return Refusal("--align", "would pad shared prefixes", "leave it out")
    if config.mask != "document":
        return Refusal(f"--mask {config.mask}", "would let an answer or a turn see the others", "leave it out")
    if request.steps.windows is not None:
        why = "would cut samples that share prefixes into windows"
        return Refusal(f"--curriculum {config.curriculum}", why, "give --curriculum short")
    return None


def flat_alone(strategy: Strategy) -> Refusal | None:
    """Whether a strategy does not plan samples that share prefixes at all."""
    if strategy.takes_trees:
        return None
    able = ", ".join(name for name in PACKED if STRATEGIES[name].takes_trees)
    why = "cannot pack samples that share prefixes"
    return Refusal(f"--strategy {strategy.name}", why, f"choose one of {able}")
