"""What the processes of all rows need, imported once by the server that they are forked from: also its kernels."""

import packer_cli.compare.row_figures  # noqa: F401
from packer_cli.config import GroupConfig, PlanConfig
from packer_cli.config.rules import plan_rules
from packer_cli.plan.warming import warm_up

warm_up(plan_rules(PlanConfig(groups=(GroupConfig(capacity=1024), GroupConfig(capacity=8192)), gpus=2)))
