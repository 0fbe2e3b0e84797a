"""GPUs by name or by their numbers, for the analytic model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.sizes import parse_bytes

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and its links. All rates are peaks; the model assumes which share of them is reached."""

    name: str
    flops: float
    """Dense bf16 FLOP/s, from the data sheet."""
    memory_bytes: float
    """Bytes of memory, as the driver reports them."""
    node_bandwidth: float
    """Bytes/s to other GPUs of the node (NVLink), in one direction."""
    network_bandwidth: float
    """Bytes/s to other nodes, in one direction: this GPU's share."""
    gpus_per_node: int = 8


PRESETS = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="a100", flops=312e12, memory_bytes=80 * GIB, node_bandwidth=300e9, network_bandwidth=25e9),
        Gpu(name="h100", flops=989e12, memory_bytes=80 * GIB, node_bandwidth=450e9, network_bandwidth=50e9),
        Gpu(name="h200", flops=989e12, memory_bytes=140 * GIB, node_bandwidth=450e9, network_bandwidth=50e9),
        Gpu(name="b200", flops=2250e12, memory_bytes=178 * GIB, node_bandwidth=900e9, network_bandwidth=50e9),
    )
}
"""SXM models in a DGX or HGX of eight, with one InfiniBand port per GPU: 200 Gbit/s (a100) or 400 Gbit/s."""

_KEYS = {
    "flops": "flops",
    "memory": "memory_bytes",
    "nvlink": "node_bandwidth",
    "network": "network_bandwidth",
    "node": "gpus_per_node",
}

GPU_SYNTAX = "NAME[:KEY=VALUE,...]"


def parse_gpu(text: str) -> Gpu:
    """Parse a preset's name, with or without changed numbers: `NAME[:KEY=VALUE,...]`.

    Keys: `flops` (dense bf16 FLOP/s), `memory` (bytes), `nvlink` and `network` (bytes/s in one direction), `node`
    (GPUs per node). A name other than a preset's needs the first four.

    Raises:
        ConfigError: an unknown name or key, or a value that is not a number of its kind.

    >>> parse_gpu("h100:memory=94GiB,network=25GB").network_bandwidth
    25000000000.0
    """
    name, colon, rest = text.strip().partition(":")
    name = name.lower()
    words = [word.partition("=") for word in rest.split(",")] if colon else []
    values: dict[str, float] = {}
    for key, equals, value in words:
        field = _KEYS.get(key.strip())
        if field is None or not equals:
            raise ConfigError(
                f"--gpu: {text!r} is not {GPU_SYNTAX}, such as h100 or h100:memory=94GiB; keys: {', '.join(_KEYS)}"
            )
        values[field] = _number(text, key.strip(), value)
    if name in PRESETS:
        return replace(PRESETS[name], **values)  # type: ignore[arg-type]
    missing = [key for key, field in _KEYS.items() if field not in values and key != "node"]
    if missing or not name:
        raise ConfigError(
            f"--gpu: unknown GPU {name!r}{did_you_mean(name, PRESETS)}; choose one of {', '.join(PRESETS)}, or say "
            f"what it is: {name or 'mine'}:flops=989e12,memory=80GiB,nvlink=450GB,network=50GB"
        )
    return Gpu(name=name, **values)  # type: ignore[arg-type]


def _number(text: str, key: str, value: str) -> float:
    try:
        if key == "node":
            number: float = int(value)
        elif key == "flops":
            number = float(value)
        else:
            number = float(parse_bytes(value))
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        rules = {"node": "an integer above 0", "flops": "a number above 0, such as 989e12"}
        raise ConfigError(f"--gpu: {text!r}: {key} must be {rules.get(key, 'bytes, such as 80GiB')}, got {value!r}")
    return number
