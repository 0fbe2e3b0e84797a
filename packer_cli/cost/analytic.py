"""Predicts time and memory from a model's shape and a GPU's data sheet. Needs no GPU; states every assumption.

docs/profile.md has the formulas with their sources. Predicted seconds are only as accurate as the two efficiencies;
which setting is faster, and which fits, hardly depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from packer_cli.cost.predict import CostModel, GpuModel, MemoryModel, ModelParallelCost
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.format.layout import Layout
from packer_cli.sizes import counted, parse_bytes, parse_number

Logits = Literal["float32", "chunked"]
Adapter = Literal["none", "lora", "qlora"]

LOGITS_CHUNK = 1024
"""Tokens whose logits exist at once if the loss is chunked."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Values that no data sheet gives. One set serves all models, GPUs and settings."""

    gemm_efficiency: float = 0.5
    """Share of the peak FLOP/s reached outside attention: GEMMs reach about 0.65; the element-wise operators between
    them, whose FLOPs are not counted, take the rest."""
    attention_efficiency: float = 0.4
    """Share of the peak FLOP/s reached in attention: FlashAttention-2 reaches 0.35 on an H100 (arXiv 2407.08608,
    abstract) and 0.5 to 0.73 on an A100 (arXiv 2307.08691, abstract)."""
    bandwidth_efficiency: float = 0.7
    """Share of the links' peak bandwidth that collectives reach."""
    collective_latency: float = 3e-5
    """Seconds of an all-to-all in addition to the transfer of its bytes."""
    exposed_gather: float = 0.5
    """Share of FSDP's all-gathers and reduce-scatter that computation does not hide."""
    exposed_rows: float = 1.0
    """Share of the communication of GPUs that share rows that computation does not hide: from 0, ring attention on
    long rows (arXiv 2310.01889, section 3), to 1, all-to-alls between the kernels (arXiv 2309.14509)."""
    exposed_sync: float = 0.5
    """The same of a step's gradients and weights, where no micro-batch gathers any (DDP, ZeRO-1)."""
    gradient_bytes: float = 4.0
    """Bytes of a gradient there: float32 as in Megatron; 2 for bfloat16."""
    state_bytes: float = 16.0
    """Bytes per parameter of weights, gradients and Adam, sharded over all GPUs (ZeRO, arXiv 1910.02054, sec. 3.1)."""
    memory_reserve: float = 0.1
    """Share of the GPU's memory not available to tensors: CUDA context, NCCL buffers, fragmentation."""
    logits: Logits = "float32"
    """`float32`: all logits at once, as in transformers' loss; `chunked`: a fused or chunked loss."""
    adapter: Adapter = "none"
    """`lora`: the model is frozen, and adapters of all its linear layers are trained (arXiv 2106.09685); `qlora`: its
    layers have 4 bits a weight, too (arXiv 2305.14314)."""
    lora_rank: float = 16.0
    """Rank of the adapters."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_efficiency") and not 0 < value <= 1:
                raise ConfigError(f"{field.name} must be above 0 and at most 1, got {value}")
            if field.name == "memory_reserve" and not 0 <= value < 1:
                raise ConfigError(f"memory_reserve must be from 0 to below 1, got {value}")
            if field.name.startswith("exposed_") and not 0 <= value <= 1:
                raise ConfigError(f"{field.name} must be from 0 to 1, got {value}")
            if not isinstance(value, str) and not value >= 0:
                raise ConfigError(f"{field.name} must be at least 0, got {value}")

    def sync_bytes(self, shape: ModelShape) -> float:
        """Return `ModelParallelCost.sync_bytes` of a model of this shape."""
        return self.exposed_sync * (self.gradient_bytes + shape.dtype_bytes) * self.trained_share(shape)

    def trained_share(self, shape: ModelShape) -> float:
        """Return the trained weights for each weight of the model."""
        return 1.0 if self.adapter == "none" else shape.lora_parameters(self.lora_rank)[0] / shape.num_parameters

    def weight_bytes(self, shape: ModelShape) -> tuple[float, float]:
        """Return the bytes of a weight while it is not computed with: of a layer, and averaged over the model."""
        if self.adapter != "qlora":
            return shape.dtype_bytes, shape.dtype_bytes
        outside = shape.embedding_parameters / shape.num_parameters
        return _NF4_BYTES, (1 - outside) * _NF4_BYTES + outside * shape.dtype_bytes


_NF4_BYTES = (4 + 0.127) / 8
"""With the doubly quantized constants of its blocks of 64 weights (arXiv 2305.14314, section 3)."""
_CHOICES = {"logits": get_args(Logits), "adapter": get_args(Adapter)}


NOT_MEASURED = ("exposed_sync", "gradient_bytes")
"""Assumptions that `hbpack profile` does not measure."""


def parse_assumptions(text: str | None, known: Sequence[str] | None = None) -> dict[str, float | str]:
    """Parse `KEY=VALUE[,...]`; the values in it.

    Args:
        known: keys that are allowed; None for all.

    Raises:
        ConfigError: a key or a value is wrong.

    >>> parse_assumptions("gradient_bytes=2,logits=chunked")
    {'gradient_bytes': 2.0, 'logits': 'chunked'}
    """
    allowed = [field.name for field in fields(Assumptions)] if known is None else known
    found: dict[str, Any] = {}
    for word in (text or "").split(",") if text else ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in allowed or not equals or key in found:
            of = "" if known is None else " beside --profile"
            raise ConfigError(
                f"--assume: {word!r} is not KEY=VALUE, each key once{of}{did_you_mean(key, allowed)}; keys: "
                f"{', '.join(allowed)}"
            )
        if key in _CHOICES:
            if value not in _CHOICES[key]:
                raise ConfigError(f"--assume: {key} must be one of {', '.join(_CHOICES[key])}, got {value!r}")
            found[key] = value
            continue
        try:
            found[key] = parse_number(value)
        except ValueError:
            raise ConfigError(f"--assume: {key} must be a number, got {value!r}") from None
    Assumptions(**found)
    return found


def analytic_model(
    shape: ModelShape,
    gpu: Gpu,
    num_gpus: int,
    assumptions: Assumptions = Assumptions(),
    shard_gpus: int | None = None,
) -> GpuModel:
    """Build the model from the shape and the data sheet.

    Args:
        num_gpus: GPUs that train.
        shard_gpus: those that share weights, gradients and optimizer (HSDP); None for all (FSDP, ZeRO-3).

    Raises:
        ConfigError: so little memory that not even the weights fit.

    Price: microseconds.
    """
    size = shard_gpus or num_gpus
    memory = replace(_memory(shape, gpu, size, assumptions), num_gpus=num_gpus)
    if memory.constant >= memory.limit:
        raise ConfigError(
            f"the model's share of {counted(size, 'GPU')} takes {memory.constant / 1e9:.1f} GB and a GPU has "
            f"{memory.limit / 1e9:.1f} GB for training: let more GPUs share it, or give GPUs with more memory"
        )
    origin = {
        "source": "analytic",
        "model": asdict(shape),
        "num_parameters": round(shape.num_parameters),
        "gpu": asdict(gpu),
        "assumptions": asdict(assumptions),
    }
    return GpuModel(
        cost=_cost(shape, gpu, num_gpus, size, assumptions),
        memory=memory,
        num_gpus=num_gpus,
        sp_sizes=shape.sp_sizes(num_gpus),
        origin=origin,
        shard_gpus=shard_gpus,
    )


def _cost(shape: ModelShape, gpu: Gpu, num_gpus: int, shard_gpus: int, assumed: Assumptions) -> CostModel:
    links = model_parallel_cost(shape, num_gpus, gpu.node_bandwidth, gpu.network_bandwidth, gpu.gpus_per_node)
    links = replace(links, exposed_rows=assumed.exposed_rows)
    reached = assumed.bandwidth_efficiency
    # FSDP gathers weights forward and backward, and scatters gradients, in rings over all GPUs that share them.
    per_weight = 2 * assumed.weight_bytes(shape)[1] + shape.dtype_bytes * assumed.trained_share(shape)
    gathered = per_weight * shape.num_parameters * (shard_gpus - 1) / shard_gpus
    gather_seconds = gathered / (links.ring_bandwidth(shard_gpus, gpu.gpus_per_node) * reached)
    # Backward takes twice the FLOPs of forward, but frozen weights have no gradients; adapters need a forward and a
    # backward of their own. A float32 model runs its GEMMs in TF32, at half the rate of bf16.
    peak = gpu.flops * 2 / shape.dtype_bytes
    is_frozen = assumed.adapter != "none"
    passes = 2 if is_frozen else 3
    vocabulary = passes * 2 * shape.vocabulary_size * shape.hidden_size
    linear = passes * 2 * shape.num_layers * shape.layer_parameters[1] + vocabulary
    if is_frozen:
        linear += 3 * 2 * shape.lora_parameters(assumed.lora_rank)[1]
    # Scores and weighted sum of values, halved by the causal mask: s^2 (dim of keys + dim of values) per head.
    quadratic = 3 * shape.num_layers * (shape.query_size + shape.value_size)
    return CostModel(
        quadratic=quadratic / (peak * assumed.attention_efficiency),
        linear=linear / (peak * assumed.gemm_efficiency),
        head=vocabulary / (peak * assumed.gemm_efficiency),
        constant=gather_seconds * assumed.exposed_gather,
        num_layers=shape.num_layers,
        recompute=1 / passes,
        send={
            degree: links.all_to_all(Layout(sp=degree)) / reached for degree in links.all_to_all_bytes if degree > 1
        },
        send_constant=8 * shape.num_layers * assumed.collective_latency,
        model_parallel=replace(
            links,
            node_bandwidth=gpu.node_bandwidth * reached,
            network_bandwidth=gpu.network_bandwidth * reached,
            latency=assumed.collective_latency,
            sync_bytes=assumed.sync_bytes(shape),
        ),
    )


def model_parallel_cost(
    shape: ModelShape, num_gpus: int, node_bandwidth: float, network_bandwidth: float, gpus_per_node: int
) -> ModelParallelCost:
    """Return the cost of tensor, context and pipeline parallelism on links of these bandwidths."""
    return ModelParallelCost(
        num_layers=shape.num_layers,
        hidden_bytes=shape.dtype_bytes * shape.hidden_size,
        kv_bytes=shape.dtype_bytes * shape.kv_size,
        all_to_all_bytes={degree: ulysses_bytes(shape, degree) for degree in shape.head_degrees(num_gpus)},
        node_bandwidth=node_bandwidth,
        network_bandwidth=network_bandwidth,
        gpus_per_node=gpus_per_node,
    )


def ulysses_bytes(shape: ModelShape, sp_size: int) -> float:
    """Count a layer's bytes per token in all-to-alls, forward and backward, with those that stay on their GPU.

    Queries, keys, values and the output: four forward, four backward. If the degree does not divide the key-value
    heads, they are copied first, to the least number that it does. Source: DeepSpeed Ulysses (arXiv 2309.14509),
    section 3.
    """
    copies = math.lcm(sp_size, shape.num_kv_heads) // shape.num_kv_heads
    return 2 * shape.dtype_bytes * (shape.query_size + copies * shape.kv_size + shape.value_size)


def _memory(shape: ModelShape, gpu: Gpu, num_gpus: int, assumed: Assumptions) -> MemoryModel:
    size = shape.dtype_bytes
    trained, (of_layer, weight_bytes) = assumed.trained_share(shape), assumed.weight_bytes(shape)
    frozen = 0.0 if assumed.adapter == "none" else weight_bytes
    constant = (frozen + assumed.state_bytes * trained) * shape.num_parameters / num_gpus
    if num_gpus > 1:
        constant += gathered_bytes(shape, of_layer, trained)
    # In backward: logits in their own type; in float32 the log-softmax, its gradient, and the logits' gradient.
    logits = (size + 12) * shape.vocabulary_size
    layer = activation_bytes(shape)
    if assumed.logits == "chunked":
        constant += LOGITS_CHUNK * logits
        logits = 0
    # Embedding and last norm, then the loss; after that, backward recomputes one layer at a time.
    per_token = size * shape.hidden_size + _norm_bytes(shape) + max(logits, layer)
    return MemoryModel(
        limit=gpu.memory_bytes * (1 - assumed.memory_reserve),
        constant=constant,
        per_token=per_token,
        per_layer_token=layer,
        per_checkpointed_token=size * shape.hidden_size,
        num_layers=shape.num_layers,
        num_parameters=shape.num_parameters,
        embedding_parameters=shape.embedding_parameters,
        end_parameters=shape.vocabulary_size * shape.hidden_size,
        num_gpus=num_gpus,
        gradient_bytes=assumed.gradient_bytes,
        weight_bytes=weight_bytes,
        trained_share=trained,
        head_layers=shape.head_layers,
    )


def gathered_bytes(shape: ModelShape, weight_bytes: float | None = None, trained: float = 1.0) -> float:
    """Count bytes that FSDP gathers from other GPUs: two layers' weights (one is prefetched), one's gradients.

    The embedding and the output layer stay gathered, with their gradients.

    Args:
        weight_bytes: of a weight of a layer; None: those of the computation.
        trained: trained weights for each weight.
    """
    size = shape.dtype_bytes
    of_layer = 2 * (size if weight_bytes is None else weight_bytes) + size * trained
    return of_layer * shape.layer_parameters[0] + (1 + (trained == 1)) * size * shape.embedding_parameters


def activation_bytes(shape: ModelShape) -> float:
    """Count the bytes per token that a layer keeps for backward, averaged over the layers.

    Korthikanti et al. (arXiv 2205.05198), section 4.1, counted for RMSNorm, rotary embedding, flash attention (no
    s^2 term; a float32 sum a head) and a gated FFN as in transformers, without fused operators. Only the experts that
    a token uses count.
    """
    size, hidden = shape.dtype_bytes, shape.hidden_size
    attention = size * (shape.query_size + shape.kv_size + shape.value_size) + 4 * shape.num_heads
    # Gated: gate, its activation, up, their product. Plain: the first product and its activation.
    kept = 4 if shape.gated else 2
    moe = shape.num_moe_layers / shape.num_layers
    active = shape.experts_per_token * shape.expert_ffn_size + shape.shared_ffn_size
    ffn = kept * size * ((1 - moe) * shape.ffn_size + moe * active)
    routed = moe * 2 * size * hidden * shape.experts_per_token  # Copies to the experts and back.
    return 2 * _norm_bytes(shape) + attention + ffn + routed


def _norm_bytes(shape: ModelShape) -> float:
    """Count a norm's bytes per token: float32 input and scale, normalized values, output kept for the next GEMM."""
    return (4 + 2 * shape.dtype_bytes) * shape.hidden_size + 4


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


def _bytes(text: str) -> float:
    return float(parse_bytes(text))


_KEYS: dict[str, tuple[str, Callable[[str], float], str]] = {
    "flops": ("flops", float, "a number above 0, such as 989e12"),
    "memory": ("memory_bytes", _bytes, "bytes, such as 80GiB"),
    "nvlink": ("node_bandwidth", _bytes, "bytes, such as 80GiB"),
    "network": ("network_bandwidth", _bytes, "bytes, such as 80GiB"),
    "node": ("gpus_per_node", int, "an integer above 0"),
}
"""To the field of `Gpu`, how to read it, and what it must be."""


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
    values: dict[str, float] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = word.partition("=")
        if key.strip() not in _KEYS or not equals:
            raise ConfigError(
                f"--gpu: {text!r} is not NAME[:KEY=VALUE,...], such as h100 or h100:memory=94GiB; keys: "
                f"{', '.join(_KEYS)}"
            )
        field, parse, rule = _KEYS[key.strip()]
        try:
            values[field] = parse(value)
        except ValueError:
            values[field] = math.nan
        if not 0 < values[field] < math.inf:
            raise ConfigError(f"--gpu: {text!r}: {key.strip()} must be {rule}, got {value!r}")
    if name in PRESETS:
        return replace(PRESETS[name], **values)  # type: ignore[arg-type]
    missing = [key for key, (field, *_) in _KEYS.items() if field not in values and key != "node"]
    if missing or not name:
        raise ConfigError(
            f"--gpu: unknown GPU {name!r}{did_you_mean(name, PRESETS)}; choose one of {', '.join(PRESETS)}, or say "
            f"what it is: {name or 'mine'}:flops=989e12,memory=80GiB,nvlink=450GB,network=50GB"
        )
    return Gpu(name=name, **values)  # type: ignore[arg-type]
