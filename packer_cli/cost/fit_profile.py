"""Builds the models of time and memory from the rows of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from packer_cli.cost.analytic import NOT_MEASURED, Assumptions, activation_bytes, model_parallel_cost
from packer_cli.cost.fit_cost import Fitted, fit_cost, fit_of, solve_nonnegative
from packer_cli.cost.predict import CostModel, GpuModel, MemoryModel, ModelParallelCost
from packer_cli.cost.profile import Profile
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout


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
    links = _given_links(profile, shape) if shape else None
    if shape and links:
        given = {
            degree: links.all_to_all(Layout(sp=degree))
            for degree in shape.sp_sizes(profile.num_gpus)
            # Degrees beyond a node need the network's bandwidth.
            if degree > 1 and (degree <= links.gpus_per_node or links.network_bandwidth > 0)
        }
        others = sorted(set(given) - set(model.send))
        if others:
            notes.append(f"SP degrees {', '.join(map(str, others))} are computed from the bandwidth that was given")
        synced = _assumptions(profile).sync_bytes(shape)
        model = replace(
            model,
            send=dict(sorted((given | dict(model.send)).items())),  # The measured ones stay.
            model_parallel=replace(links, constant=model.constant, sync_bytes=synced),
        )
    if shape:
        model = replace(model, head=model.linear * shape.head_layers / (shape.head_layers + shape.num_layers))
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


def fit_profile(profile: Profile) -> tuple[Fitted[CostModel], Fitted[MemoryModel]]:
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
    return fit_cost(profile, shape), _fit_memory(profile, shape)


def known_shape(model: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape in a profile; None if it is incomplete."""
    names = {field.name for field in fields(ModelShape)}
    try:
        return ModelShape(**{key: value for key, value in model.items() if key in names})
    except (TypeError, ValueError):
        return None


def _given_links(profile: Profile, shape: ModelShape) -> ModelParallelCost | None:
    """Read the links of `assumed.bandwidth` and `assumed.network_bandwidth`, 0 if unknown; None without the first."""
    if "bandwidth" not in profile.assumed:
        return None
    node, network = (_number(profile, key, 0.0) for key in ("bandwidth", "network_bandwidth"))
    if node <= 0:
        raise ConfigError(f"the profile's assumed bandwidth must be above 0 bytes/s, got {node}; correct it")
    return model_parallel_cost(shape, profile.num_gpus, node, network, int(_number(profile, "gpus_per_node", 8)))


def _assumptions(profile: Profile) -> Assumptions:
    """Return assumptions that one node cannot measure, by the profile's own values or ours."""
    own: dict[str, Any] = {name: _number(profile, name, getattr(Assumptions, name)) for name in NOT_MEASURED}
    return Assumptions(**own)


def _number(profile: Profile, key: str, default: float) -> float:
    value = profile.assumed.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(f"the profile's assumed {key} must be a number, got {value!r}")
    return float(value)


def _fit_memory(profile: Profile, shape: ModelShape | None) -> Fitted[MemoryModel]:
    """Fit memory by non-negative least squares on relative errors, over all rows whose peak was measured.

    All rows have the model's number of layers, so they determine three values: the bytes that do not depend on the
    batch, the bytes per token with every layer checkpointed, and the bytes per token that each layer without
    checkpointing adds (algorithm 4's slope). A checkpointed layer keeps its input, whose size comes from the shape. It
    only separates `per_token` from `per_checkpointed_token`; no prediction depends on it.

    The bytes a GPU that training needs beyond the measured ones, `assumed.constant_bytes_added`, are added to the
    constant.

    Raises:
        ConfigError: the profile has no `memory_limit`, or too few rows.
    """
    if profile.memory_limit is None:
        raise ConfigError("the profile has no memory_limit: profile again with --memory, or write it into the file")
    num_layers = profile.num_layers
    rows = [row for row in profile.iterations if row.memory_bytes and not row.out_of_memory]
    share = np.array([row.length / row.sp_size for row in rows])
    kept = np.array([num_layers - row.checkpoint_layers for row in rows], dtype=np.float64)
    peaks = weights = np.array([row.memory_bytes for row in rows], dtype=np.float64)
    notes: list[str] = []
    if len(set(share)) < 2:
        raise ConfigError(
            "the profile has peak memory at fewer than two numbers of tokens a GPU: measure two lengths at least "
            "that fit"
        )
    columns = {"constant": np.ones(len(rows)), "token": share, "kept_layer": share * kept}
    slope = None
    if np.linalg.matrix_rank(np.column_stack(list(columns.values())) / np.max(share)) < 3:
        if shape is None:
            raise ConfigError(
                "the profile cannot tell what checkpointing saves: measure a length with other numbers of "
                "checkpointed layers"
            )
        slope = activation_bytes(shape) - shape.dtype_bytes * shape.hidden_size
        notes.append(f"what checkpointing saves is not measured: assumed to be {slope:,.0f} bytes a token and layer")
        peaks = peaks - slope * columns.pop("kept_layer")
    matrix = np.column_stack(list(columns.values()))
    solution = solve_nonnegative(matrix / weights[:, None], peaks / weights)
    residuals = (matrix @ solution - peaks) / weights
    found = dict(zip(columns, map(float, solution), strict=True))
    found.setdefault("kept_layer", slope or 0.0)
    # With all layers checkpointed, a token's bytes are the layers' inputs plus `per_token`.
    inputs = shape.dtype_bytes * shape.hidden_size if shape else found["token"] / num_layers
    inputs = min(inputs, found["token"] / num_layers)
    model = MemoryModel(
        limit=float(profile.memory_limit),
        constant=max(0.0, found["constant"] + _number(profile, "constant_bytes_added", 0.0)),
        per_token=found["token"] - num_layers * inputs,
        per_layer_token=inputs + found["kept_layer"],
        per_checkpointed_token=inputs,
        num_layers=num_layers,
        num_parameters=shape.num_parameters if shape else 0.0,
        embedding_parameters=shape.embedding_parameters if shape else 0.0,
        end_parameters=shape.vocabulary_size * shape.hidden_size if shape else 0.0,
        num_gpus=profile.num_gpus,
        gradient_bytes=_assumptions(profile).gradient_bytes,
        head_layers=shape.head_layers if shape else 0.0,
    )
    names = {"constant": "constant", "token": "per_token", "kept_layer": "per_layer_token"}
    coefficients = {name: getattr(model, name) for name in (*names.values(), "per_checkpointed_token")}
    fit = fit_of(coefficients, map(names.__getitem__, columns), matrix / weights[:, None], residuals)
    return Fitted(model, fit, tuple(notes))


def search_checkpoint_layers(
    measure: Callable[[int], float | None], num_layers: int, limit: float
) -> tuple[int | None, dict[int, float | None]]:
    """Find the fewest layers to checkpoint so that an iteration fits in memory, by measuring (HBP, algorithm 4).

    Two measurements give the slope, and the slope gives the number. Further ones confirm that it fits and that one
    layer fewer does not, so the result is right whenever the peak falls with the layers, linearly or not.

    Args:
        measure: maps checkpointed layers to the peak in bytes, or to None if it ran out of memory.
        num_layers: the model's layers, the most that can be checkpointed.
        limit: most bytes that the peak may have.

    Returns:
        The number, or None if checkpointing all layers is not enough; and all measured peaks.

    Price: two to five measurements if memory is about linear in the layers.
    """
    peaks: dict[int, float | None] = {}

    def peak(layers: int) -> float:
        if layers not in peaks:
            peaks[layers] = measure(layers)
        found = peaks[layers]
        return math.inf if found is None else found

    if peak(num_layers) > limit:
        return None, peaks
    if peak(0) <= limit:
        return 0, peaks
    # The second setting is the one with the fewest checkpointed layers that runs at all.
    low = 0
    while math.isinf(peak(low)) and low < num_layers - 1:
        low = (low + num_layers + 1) // 2
    slope = (peak(low) - peak(num_layers)) / (num_layers - low)
    layers = num_layers
    if math.isfinite(slope) and slope > 0:
        layers = num_layers - math.floor((limit - peak(num_layers)) / slope)
    layers = min(max(layers, 1), num_layers)
    while peak(layers) > limit:
        layers += 1
    while layers > 1 and peak(layers - 1) <= limit:
        layers -= 1
    return layers, peaks
