"""From a cost model to the numbers that strategies plan by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from packer_cli.errors import ConfigError
from packer_cli.plan.core.cost import Cost
from packer_cli.plan.core.groups import Group

if TYPE_CHECKING:
    from packer_cli.cost.models import GpuModel

PROFILE = "--cost profile"


def predicted_cost(load: Callable[..., GpuModel]) -> Cost:
    """Predict the cost of a micro-batch on one GPU.

    Raises:
        ConfigError: there is no model, or it gives no such cost.
    """
    model = load(PROFILE).cost
    try:
        return Cost(quadratic=digits(model.quadratic), linear=digits(model.linear))
    except ValueError as error:
        raise ConfigError(
            f"{PROFILE}: {error}; measure longer lengths with hbpack profile, or give --cost A,B"
        ) from None


def stage_rates(group: Group, model: GpuModel) -> tuple[float, float, float]:
    """Return the seconds on a stage of a replica of the group per squared token, per token, and per micro-batch.

    Each is that of the stage that is slowest by it, so together they are never too low.
    """
    cost, memory = model.cost, model.memory
    cost.require_known(group.layout)
    fewest = memory.least_checkpoint_layers(group.capacity, group.layout)
    layers = group.checkpoint_layers or (memory.num_layers if fewest is None else fewest)
    of_stages = []
    for stage in cost.stages(group.layout):
        of_one = partial(cost.seconds, layout=group.layout, checkpoint_layers=layers, stage=stage)
        constant, square, token = (float(of_one(*one)) for one in ((0, 0), (1, 0), (0, 1)))
        of_stages.append((digits(square - constant), digits(token - constant), digits(constant)))
    quadratic, linear, constant = (max(each) for each in zip(*of_stages, strict=True))
    return quadratic, linear, constant


def digits(value: float) -> float:
    """Round to as many digits as mean something, and as are the same on every machine."""
    return float(f"{value:.6g}")
