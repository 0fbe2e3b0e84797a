"""Builds the models of time and memory from the rows of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from packer_cli.cost.analytic import model_parallel_cost, send_seconds, ulysses_bytes
from packer_cli.cost.fit_cost import CostFit, add_degrees, fit_cost
from packer_cli.cost.fit_memory import MemoryFit, fit_memory
from packer_cli.cost.gpus import Gpu
from packer_cli.cost.models import GpuModel
from packer_cli.cost.profile import Profile
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError


def measured_model(profile: Profile) -> GpuModel:
    """Fit both models to the rows.

    The fits in the file are for people; this function fits again. SP degrees that were not measured are computed from
    the bandwidth in `assumed`; without one they are left out.

    Raises:
        ConfigError: the rows do not determine time or memory; the message says what to measure.

    Price: milliseconds.
    """
    cost, memory = fit_profile(profile)
    shape = known_shape(profile.model)
    model = cost.model
    notes = [*cost.notes, *memory.notes]
    gpu = _given_links(profile)
    if shape and gpu:
        given = _send_seconds(profile, shape, gpu)
        others = sorted(set(given) - set(model.send))
        if others:
            notes.append(f"SP degrees {', '.join(map(str, others))} are computed from the bandwidth that was given")
        model = add_degrees(model, given)
        of_parallel = model_parallel_cost(shape, gpu, profile.num_gpus, 1.0, constant=model.constant)
        network = _number(profile, "network_bandwidth", 0.0)
        model = replace(model, model_parallel=replace(of_parallel, network_bandwidth=network))
    origin = {
        "source": "profile",
        "model": dict(profile.model),
        "gpu": profile.gpu,
        "cost": cost.fit.model_dump(),
        "memory": memory.fit.model_dump(),
        "assumed": dict(profile.assumed),
        "notes": notes,
    }
    return GpuModel(
        cost=model,
        memory=memory.model,
        num_gpus=profile.num_gpus,
        sp_sizes=(1, *model.send),
        origin=origin,
    )


def fit_profile(profile: Profile) -> tuple[CostFit, MemoryFit]:
    """Fit time and memory to the measured rows, without assumed bandwidths."""
    shape = known_shape(profile.model)
    num_layers = profile.model.get("num_layers")
    if type(num_layers) is not int or num_layers < 1:
        raise ConfigError(f"the profile's model must have num_layers, an integer above 0, got {num_layers!r}")
    most = max((row.checkpoint_layers for row in profile.iterations), default=0)
    if most > num_layers:
        raise ConfigError(
            f"the profile has a row with {most} checkpointed layers, and its model has {num_layers} layers; run "
            "hbpack profile again"
        )
    added = _number(profile, "constant_bytes_added", 0.0)
    return fit_cost(profile, shape), fit_memory(profile, shape, added)


def known_shape(model: Mapping[str, Any]) -> ModelShape | None:
    """The shape in a profile; None if it is incomplete."""
    names = {field.name for field in fields(ModelShape)}
    try:
        return ModelShape(**{key: value for key, value in model.items() if key in names})
    except (TypeError, ValueError):
        return None


def _given_links(profile: Profile) -> Gpu | None:
    """The links of `assumed.bandwidth` and `assumed.network_bandwidth`; all else is made up. None without them."""
    if "bandwidth" not in profile.assumed:
        return None
    bandwidth = _number(profile, "bandwidth", 0.0)
    network = _number(profile, "network_bandwidth", 0.0)
    if bandwidth <= 0:
        raise ConfigError(f"the profile's assumed bandwidth must be above 0 bytes/s, got {bandwidth}; correct it")
    return Gpu(
        name=profile.gpu, flops=1.0, memory_bytes=1.0, node_bandwidth=bandwidth,
        network_bandwidth=network or bandwidth, gpus_per_node=int(_number(profile, "gpus_per_node", 8)),
    )  # fmt: skip


def _send_seconds(profile: Profile, shape: ModelShape, gpu: Gpu) -> dict[int, float]:
    """Seconds per token for all SP degrees that the links reach."""
    has_network = _number(profile, "network_bandwidth", 0.0) > 0
    return {
        degree: send_seconds(shape.num_layers * ulysses_bytes(shape, degree), gpu, degree, 1.0)
        for degree in shape.sp_sizes(profile.num_gpus)
        # Degrees beyond a node need the network's bandwidth.
        if degree > 1 and (degree <= gpu.gpus_per_node or has_network)
    }


def _number(profile: Profile, key: str, default: float) -> float:
    value = profile.assumed.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(f"the profile's assumed {key} must be a number, got {value!r}")
    return float(value)
