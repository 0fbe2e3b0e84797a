"""`stats`: the figures of lengths, of a plan, or of a packed set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from packer_cli.commands.arguments import Lengths, is_paths, one_path, plan_config_of, samples_of, takes
from packer_cli.config import PlanConfig, validate
from packer_cli.config.models import BoundConfig

if TYPE_CHECKING:
    from packer_cli.commands.options import BoundOptions, PlanOptions
    from packer_cli.commands.results import Stats

    class _Options(PlanOptions, BoundOptions, total=False): ...


@takes(PlanConfig, BoundConfig)
def stats(lengths: Lengths, **options: Unpack[_Options]) -> Stats:
    """Report balance, padding and communication, as `hbpack stats` does.

    Args:
        lengths: as `plan` takes them; with `groups` and `gpus`, they are planned in memory. Or the path of a packed
            set or plan, whose figures are as they were written.
        options: `bound`, and for lengths those of a plan.

    Raises:
        HbpackError: an option or a length is wrong, or the path holds no lengths.
    """
    by_program = validate(BoundConfig, options).bound == "lp"
    config = plan_config_of(options)
    from packer_cli.commands.results import Stats
    from packer_cli.commands.stats import sample_stats, stats_of

    if is_paths(lengths):
        found = stats_of(one_path(lengths, "stats"), config, by_program=by_program)
    else:
        found = sample_stats(samples_of(lengths), config, by_program=by_program)
    return Stats(**vars(found))
