"""What strategies have in common whose iterations have replicas of unlike degrees."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.errors import ConfigError
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import PlanRequest, Strategy


class UnlikeDegrees(Strategy):
    """Iterations whose replicas have unlike SP or CP degrees."""

    lacks = frozenset({"max_samples", "mask"})
    demands = "run replicas of unlike SP degrees side by side in one iteration"
    mixes_layouts = True

    def check(self, request: PlanRequest) -> None:
        """Samples move between the groups, so that all have one `align`."""
        assert len({group.align for group in request.groups}) == 1

    def require_gpus(self, groups: Sequence[Group], num_gpus: int) -> None:
        """The largest replicas fit, and the smallest fill the rest."""
        largest = max(group.num_gpus for group in groups)
        if num_gpus < largest:
            raise ConfigError(
                f"--gpus {num_gpus}: the largest replicas have {largest} GPUs, and the shards stay as they are; "
                f"choose {largest} or more, or pack again with other --groups"
            )
        lowest = min(group.num_gpus for group in groups)
        if num_gpus % lowest:
            raise ConfigError(
                f"--gpus {num_gpus}: the smallest replicas have {lowest} GPUs, which must divide it, since the shards "
                f"stay as they are; choose {num_gpus // lowest * lowest}, or pack again with other --groups"
            )
