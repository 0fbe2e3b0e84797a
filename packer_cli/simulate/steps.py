"""Predicted seconds of each step, which a set gives its trainer to log beside the measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from packer_cli.cost.models import GpuModel
from packer_cli.format.records import read_record
from packer_cli.plan.core.types import Plan
from packer_cli.simulate.figures import SimulateRules
from packer_cli.simulate.slots import epoch_times


def with_step_seconds(plan: Plan, gpu_model: Mapping[str, Any]) -> Plan:
    """The plan with the seconds of its steps. Price: O(pieces + slots) for each epoch.

    Args:
        gpu_model: what `model_values` made, perhaps for another number of GPUs. FSDP then takes as long to gather
            weights as on those.

    Raises:
        ConfigError: the model does not know a degree of the plan.
        ValueError: the values are of another release.
    """
    model = read_record(GpuModel, {**gpu_model, "origin": {}})
    model = replace(model, num_gpus=plan.num_gpus, memory=replace(model.memory, num_gpus=plan.num_gpus))
    seconds = [
        epoch_times(plan, model, **vars(SimulateRules()), epoch=epoch).steps for epoch in range(len(plan.epochs))
    ]
    epochs = [
        replace(schedule, step_seconds=of_steps.astype(np.float32))
        for schedule, of_steps in zip(plan.epochs, seconds, strict=True)
    ]
    return replace(plan, epochs=tuple(epochs))
