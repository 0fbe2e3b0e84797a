"""Imports that all row processes need, and their kernels: loaded once, by the server that forks them."""

import packer_cli.compare.row_process  # noqa: F401
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.core.groups import Group
from packer_cli.plan.warming import warm_up

warm_up(resolve(PlanConfig(groups=(Group(capacity=1024), Group(capacity=8192)), gpus=2)).request)
