"""What a user asks for: one typed, validated model a stage; the command line and `--config FILE.yaml` both end here.

::

    models.py     the options of each stage: rules, defaults, help; schemas/config.schema.json is generated from it
    messages.py   what is wrong with a value, in words
    yaml_file.py  `--config`
    rules.py      plan options -> the typed rules of `packer_cli.plan`
    gpu_model.py  `--model --gpu` or `--profile` -> `packer_cli.cost`'s model
"""

from packer_cli.config.groups import parse_group
from packer_cli.config.messages import show_value, validate
from packer_cli.config.models import (
    AUTO,
    AutoGroupsConfig,
    GpuConfig,
    PackConfig,
    PlanConfig,
    TokenizeConfig,
    WriteConfig,
)
from packer_cli.config.yaml_file import load_config_file

__all__ = [
    "AUTO",
    "AutoGroupsConfig",
    "GpuConfig",
    "PackConfig",
    "PlanConfig",
    "TokenizeConfig",
    "WriteConfig",
    "load_config_file",
    "parse_group",
    "show_value",
    "validate",
]
