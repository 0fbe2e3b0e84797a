"""Imports that all row processes need, and their kernels: loaded once, by the server that forks them."""

import packer_cli.compare.row_figures  # noqa: F401
from packer_cli.config import GroupConfig, PlanConfig
from packer_cli.config.rules import plan_rules
from packer_cli.plan.warming import warm_up

warm_up(plan_rules(PlanConfig(groups=(GroupConfig(capacity=1024), GroupConfig(capacity=8192)), gpus=2)))
