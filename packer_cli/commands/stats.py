"""`stats`: the figures of a packed set, a plan, a token store or lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from packer_cli.commands.arguments import Lengths, plan_config_of, takes
from packer_cli.commands.inputs import with_store
from packer_cli.commands.planned import Stats, plan_in_memory, read_planned
from packer_cli.commands.samples import find, require_samples
from packer_cli.config import BoundConfig, PlanConfig, validate
from packer_cli.format.versions import plan_file
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.figures import length_stats
from packer_cli.shards.plan_file import check_plan_file

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfStats


@takes(PlanConfig, BoundConfig)
def stats(lengths: Lengths, **options: Unpack[CallOfStats]) -> Stats:
    """Report balance, padding and communication, as `hbpack stats` does.

    Args:
        lengths: as `plan` takes them; with `groups` and `gpus`, they are planned in memory. Or the path of a packed
            set or plan, whose figures are as they were written.
        options: `bound`, and for lengths those of a plan.

    Raises:
        HbpackError: an option or a length is wrong, or the path holds no lengths.
    """
    bound, config = validate(BoundConfig, options).bound, plan_config_of(options)
    found = find(lengths, "stats")
    if config is None and found.has_plan:
        check_plan_file(plan_file(found.path))
        return read_planned(found.path, check=bound == "lp").stats(bound=bound)
    samples = require_samples(found)
    figures = unplanned_stats(samples) if config is None else plan_in_memory(samples, config).stats(bound=bound)
    return with_store(figures, found.store)


def unplanned_stats(samples: Samples) -> Stats:
    """Compute the figures of samples that are not planned."""
    return Stats(lengths=length_stats(samples.lengths), trees=samples.saved())
