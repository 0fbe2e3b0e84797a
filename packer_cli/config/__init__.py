"""A user's request: one typed, validated model a stage; the command line and `--config FILE.yaml` both end here.

::

    models.py        the options of each command; the source of schemas/config.schema.json
    set_options.py   the options of commands that read plans and sets
    plan_options.py  the options of a plan; groups.py: its groups
    fields.py        parts of all models: kinds of values, defaults that a strategy changes, abilities of trainers
    profile_options.py   the options of `hbpack profile`
    plan_record.py   the options that the file of a plan keeps
    messages.py      a wrong value, in words; `--config`
    resolve.py       plan options -> the request that a strategy plans from; options that change nothing
    gpu_model.py     `--model --gpu` or `--profile` -> `packer_cli.cost`'s model
"""

from packer_cli.config.fields import AutoGroupsConfig, GpuConfig, validate
from packer_cli.config.messages import option_name
from packer_cli.config.models import PackConfig, TokenizeConfig, WorkersConfig, WriteConfig
from packer_cli.config.plan_options import AUTO, PlanConfig, StorePlanConfig
from packer_cli.config.plan_record import PlannedConfig
from packer_cli.config.set_options import BoundConfig, RepeatConfig, TrainConfig

__all__ = [
    "AUTO",
    "AutoGroupsConfig",
    "BoundConfig",
    "GpuConfig",
    "PackConfig",
    "PlanConfig",
    "PlannedConfig",
    "RepeatConfig",
    "StorePlanConfig",
    "TokenizeConfig",
    "TrainConfig",
    "WorkersConfig",
    "WriteConfig",
    "option_name",
    "validate",
]
