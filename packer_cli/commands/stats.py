"""`stats`: the figures of a packed set, a plan, a token store or lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from packer_cli.commands.arguments import Lengths, is_paths, one_path, plan_config_of, samples_of, takes
from packer_cli.commands.planned import plan_in_memory, read_planned
from packer_cli.commands.results import Stats
from packer_cli.commands.samples import require_samples
from packer_cli.config import PlanConfig, validate
from packer_cli.config.models import BoundConfig
from packer_cli.format.constants import PLAN_NAME
from packer_cli.plan.figures import length_stats
from packer_cli.shards.plan_file import check_plan_file

if TYPE_CHECKING:
    from packer_cli.commands.options import BoundOptions, PlanOptions

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
    bound, config = validate(BoundConfig, options).bound, plan_config_of(options)
    if is_paths(lengths):
        path = planned_folder(one_path(lengths, "stats"))
        if config is None and (path / PLAN_NAME).exists():
            check_plan_file(path / PLAN_NAME)
            return read_planned(path, check=bound == "lp").stats(bound=bound)
        samples = require_samples(path)
    else:
        samples = samples_of(lengths)
    if config is None:
        return Stats(lengths=length_stats(samples.lengths))
    return plan_in_memory(samples, config).stats(bound=bound)


def planned_folder(path: Path) -> Path:
    """The folder of a plan whose file is named; any other path as it is."""
    return path.parent if path.name == PLAN_NAME and path.is_file() else path
