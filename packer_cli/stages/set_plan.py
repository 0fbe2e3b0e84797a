"""The plan of a packed set, or of a file, as it is now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from packer_cli.config.rules import plan_rules
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.format.metrics import PlanMetrics
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.types import Plan
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.stages.rebalance import plan_in_force


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """What is trained: a plan as it is now."""

    plan: Plan
    """After any rebalance."""
    header: PlanHeader
    """As it was planned."""
    manifest: Manifest | None
    """None: it was not written yet."""

    @property
    def is_rebalanced(self) -> bool:
        """Whether it runs on another number of GPUs than it was planned for."""
        return self.manifest is not None and bool(self.manifest.history)

    @property
    def metrics(self) -> PlanMetrics:
        """Its figures."""
        return self.manifest.metrics if self.manifest and self.is_rebalanced else self.header.metrics

    @property
    def rules(self) -> PlanRules:
        """Those of the plan, on as many GPUs as it has now."""
        return replace(plan_rules(self.header.config), num_gpus=self.plan.num_gpus)


def read_set_plan(path: Path) -> SetPlan:
    """The plan of a packed set (its folder), or that of a file.

    Raises:
        InputError: there is none.
        FormatError: it is damaged.
    """
    file = path / PLAN_NAME if path.is_dir() else path
    header = read_plan_header(file)
    manifest = read_manifest(file.parent) if (file.parent / MANIFEST_NAME).exists() else None
    is_rebalanced = manifest is not None and bool(manifest.history)
    plan = plan_in_force(file.parent) if is_rebalanced else read_plan(file, check=True)[0]
    return SetPlan(plan=plan, header=header, manifest=manifest)
