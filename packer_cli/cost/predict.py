"""Models of a micro-batch's seconds and bytes, which all predictions use, whatever their source.

Time is FlexSP's (arXiv 2412.01523) and Hydraulis' (arXiv 2412.07894) form, `a sum(s^2) + b sum(s) + c` shared by the
GPUs of an SP group, with HBP's checkpointed layers (arXiv 2503.07680) and the all-to-all of Ulysses. Memory is linear
in tokens and layers, as in HBP's algorithm 4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.cost.stages import WHOLE, Stage, stage_layers
from packer_cli.errors import ConfigError
from packer_cli.format.layout import ONE_GPU, Layout


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds of a micro-batch, forward and backward, on the GPUs of one replica, or of one of its pipeline stages."""

    quadratic: float
    """Seconds per unit of attention work (token^2), on one GPU without checkpointed layers: a."""
    linear: float
    """Seconds per token, likewise: b."""
    head: float = 0.0
    """Seconds per token of the LM head, a part of `linear`, which the last stage of a pipeline runs."""
    constant: float = 0.0
    """Seconds per micro-batch, whatever its contents: c. FSDP's gathering of weights is a part of it."""
    gathers: bool = True
    """Whether weights are gathered in every micro-batch where TP and PP are 1 (FSDP, ZeRO-3)."""
    num_layers: int
    """Decoder layers of the model."""
    recompute: float = 1 / 3
    """Share of the computing time that checkpointing all layers adds: one more forward pass; backward takes two."""
    send: Mapping[int, float]
    """SP degree > 1 to seconds of communication per token of the row, forward and backward."""
    resend: float = 1 / 2
    """Share of the communication that checkpointing all layers adds."""
    send_constant: float = 0.0
    """Seconds of communication per micro-batch with a degree > 1."""
    model_parallel: ModelParallelCost | None = None
    """Cost of tensor, context and pipeline parallelism; None if it is not known."""

    @property
    def head_layers(self) -> float:
        """Layers that take as long as the LM head, attention aside."""
        per_layer = (self.linear - self.head) / self.num_layers
        return self.head / per_layer if per_layer > 0 else 0.0

    def stages(self, layout: Layout) -> tuple[Stage, ...]:
        """Return the stages of which one is the slowest: the one with the most layers, and the last."""
        if layout.pp == 1:
            return (WHOLE,)
        *others, last = stage_layers(self.num_layers, self.head_layers, layout.pp)
        return Stage(max(others) / self.num_layers, has_head=False), Stage(last / self.num_layers)

    def computing(
        self, work: ArrayLike, tokens: ArrayLike, layout: Layout, checkpoint_layers: int, stage: Stage
    ) -> NDArray[np.float64]:
        """Predict seconds on a pipeline stage of the layout without communication; arguments as of `seconds`."""
        tokens = np.asarray(tokens, dtype=np.float64)
        layers = self.quadratic * np.asarray(work, dtype=np.float64) + (self.linear - self.head) * tokens
        one_gpu = stage.share * layers + (self.head * tokens if stage.has_head else 0.0)
        again = 1 + self.recompute * checkpoint_layers / self.num_layers
        return one_gpu / layout.stage_gpus * again + self.constant_of(layout)

    def constant_of(self, layout: Layout) -> float:
        """Return the seconds of every micro-batch on a stage, whatever its contents, without communication."""
        gathers_weights = self.gathers and layout.tp == layout.pp == 1
        return self.constant if gathers_weights or self.model_parallel is None else self.model_parallel.constant

    def communication(
        self, tokens: ArrayLike, layout: Layout, checkpoint_layers: int, stage: Stage
    ) -> NDArray[np.float64]:
        """Predict the seconds of communication on a pipeline stage; 0 for a replica of one GPU.

        Raises:
            ConfigError: the model does not know a degree, see `require_known`.
        """
        links, repeated = self.model_parallel, checkpoint_layers / self.num_layers
        per_token, once = 0.0, 0.0
        if layout != Layout(sp=layout.sp):
            self.require_known(layout)
            assert links is not None
            per_token, once = links.seconds(layout, repeated, stage)
        if layout.sp > 1:
            all_to_all = links.all_to_all(layout) if links and layout.tp > 1 else self.send[layout.sp]
            per_token += all_to_all * (1 + self.resend * repeated) * stage.share
            once += self.send_constant * stage.share
        return per_token * np.asarray(tokens, dtype=np.float64) + once

    def seconds(
        self,
        work: ArrayLike,
        tokens: ArrayLike,
        layout: Layout = ONE_GPU,
        checkpoint_layers: int = 0,
        stage: Stage | None = None,
    ) -> NDArray[np.float64]:
        """Predict the seconds of computing and communication together (float64); arrays are broadcast.

        Args:
            work: attention work, sum of s^2 over the samples.
            tokens: sum of s; padding counts as a sample of its own.
            stage: of the layout; None for the slowest.

        Raises:
            ConfigError: the model does not know a degree, see `require_known`.
        """
        if stage is None:
            of_stages = [self.seconds(work, tokens, layout, checkpoint_layers, each) for each in self.stages(layout)]
            return np.asarray(np.maximum.reduce(of_stages))
        computing = self.computing(work, tokens, layout, checkpoint_layers, stage)
        return computing + self.communication(tokens, layout, checkpoint_layers, stage)

    def require_known(self, layout: Layout) -> None:
        """Raise ConfigError if the model does not know a degree; the message names it."""
        known = sorted({1, *self.send})
        if layout.sp not in known:
            raise ConfigError(
                f"SP degree {layout.sp} is unknown to the model of the GPUs, which knows "
                f"{', '.join(map(str, known))}; plan with one of these, or give a --profile that holds it"
            )
        if layout == Layout(sp=layout.sp):
            return
        links = self.model_parallel
        if links is None or (layout.num_gpus > links.gpus_per_node and not links.network_bandwidth):
            lacks = "" if links is None else f" between nodes of {links.gpus_per_node} GPUs"
            raise ConfigError(
                f"the profile has no bandwidth{lacks}, so the time of a replica of {layout.num_gpus} GPUs ({layout}) "
                "is not known; measure again with hbpack profile --bandwidth NODE,NETWORK, or give --model and --gpu"
            )
        if layout.pp > self.num_layers:
            raise ConfigError(
                f"{layout.pp} pipeline stages are more than the model's {self.num_layers} layers; give a lower pp"
            )
        if layout.tp > 1 and layout.sp * layout.tp not in links.all_to_all_bytes:
            raise ConfigError(
                f"TP degree {layout.tp} and SP degree {layout.sp} cannot divide the model's attention heads; choose "
                f"degrees whose product is one of {', '.join(map(str, sorted(links.all_to_all_bytes)))}"
            )


@dataclass(frozen=True, kw_only=True)
class ModelParallelCost:
    """Seconds of the collectives of tensor, context and pipeline parallelism, from bytes and the links' bandwidth."""

    num_layers: int
    hidden_bytes: float
    """Bytes of a token between layers."""
    kv_bytes: float
    """Bytes of a token's keys and values in a layer."""
    all_to_all_bytes: Mapping[int, float]
    """To bytes per token of a layer in all-to-alls, forward and backward, from a degree that divides the heads: SP
    times TP."""
    node_bandwidth: float
    """Bytes/s that collectives reach between GPUs of a node."""
    network_bandwidth: float
    """Bytes/s that collectives reach to other nodes, for each GPU; 0 if it is not known."""
    gpus_per_node: int
    latency: float = 0.0
    """Seconds of a collective in addition to the transfer of its bytes."""
    exposed_rows: float = 1.0
    """Share of the transfers of SP and CP that computation does not hide."""
    constant: float = 0.0
    """Seconds of a micro-batch on a stage, whatever its contents. No weights are gathered (ZeRO-1)."""
    sync_bytes: float = 0.0
    """Bytes that a step reduces and gathers a parameter where micro-batches gather none, and nothing hides."""

    def seconds(self, layout: Layout, repeated: float, stage: Stage) -> tuple[float, float]:
        """Predict a stage's seconds for TP, CP and PP together: per token of a row, and to start the collectives.

        Tensor parallelism, with activations divided by tokens between the blocks: a layer has an all-gather and a
        reduce-scatter around attention and around the FFN, forward and backward, eight in all (Korthikanti et al.,
        arXiv 2205.05198, section 4.2.2). Context parallelism: keys and values are gathered forward and backward, and
        their gradients scattered (Llama 3, arXiv 2407.21783, section 3.3.2), of which `exposed_rows` counts. Pipeline:
        a stage receives activations and sends gradients; the slowest link between stages counts. Checkpointed layers
        repeat the collectives of the forward pass: four of TP, one of CP.

        Args:
            repeated: share of the layers that are checkpointed.
        """
        layers = self.num_layers * stage.share
        tp = cp = pp = 0.0
        if layout.tp > 1:
            moved = (8 + 4 * repeated) * self.hidden_bytes / layout.row_ranks * (layout.tp - 1) / layout.tp
            tp = layers * moved / self.ring_bandwidth(layout.tp, self._in_node(layout.tp, 1))
        if layout.cp > 1:
            moved = (3 + repeated) * self.kv_bytes / layout.tp * (layout.cp - 1) / layout.cp
            cp = layers * moved / self.ring_bandwidth(layout.cp, self._in_node(layout.cp, layout.tp))
            cp *= self.exposed_rows
        if layout.pp > 1:
            moved = 2 * self.hidden_bytes / layout.stage_gpus
            is_in_node = layout.num_gpus <= self.gpus_per_node
            pp = moved / (self.node_bandwidth if is_in_node else min(self.node_bandwidth, self.network_bandwidth))
        collectives = 8 * (layout.tp > 1) + 3 * (layout.cp > 1)
        return tp + cp + pp, self.latency * collectives * self.num_layers * stage.share

    def all_to_all(self, layout: Layout) -> float:
        """Predict seconds per token of a row for Ulysses' all-to-alls over all layers; TP divides the heads, too.

        Each GPU holds `1 / sp` of the tokens, and sends `1 / sp` of those to each other GPU. Transfers within the node
        and to other nodes use different links at the same time.
        """
        per_peer = self.num_layers * self.all_to_all_bytes[layout.sp * layout.tp] / layout.tp / layout.sp / layout.sp
        in_node = self._in_node(layout.sp, layout.tp)
        near, far = (in_node - 1) * per_peer, (layout.sp - in_node) * per_peer
        return self.exposed_rows * max(near / self.node_bandwidth, far / self.network_bandwidth if far else 0.0)

    def sync_seconds(self, layout: Layout, num_gpus: int, parameters: float) -> float:
        """Predict a step's seconds in which replicas reduce gradients and gather weights, each rank its part of them.

        The ring has all GPUs that hold the same weights; SP and CP ranks do.

        Args:
            num_gpus: that train.
            parameters: of one GPU.
        """
        size = num_gpus / (layout.tp * layout.pp)
        if size <= 1:
            return 0.0
        if layout.num_gpus <= self.gpus_per_node:
            in_node = self.gpus_per_node // layout.num_gpus * layout.row_ranks
        else:
            in_node = self._in_node(layout.row_ranks, layout.tp)
        return self.sync_bytes * parameters * (size - 1) / size / self.ring_bandwidth(size, in_node)

    def ring_bandwidth(self, size: float, in_node: int) -> float:
        """Return the bytes/s of a ring of `size` GPUs, which uses the ports of all its GPUs in a node at once."""
        if in_node >= size or not self.network_bandwidth:
            return self.node_bandwidth
        return min(self.node_bandwidth, in_node * self.network_bandwidth)

    def _in_node(self, size: int, stride: int) -> int:
        """Count those of `size` GPUs, `stride` apart, that are in a node."""
        return min(size, max(1, self.gpus_per_node // stride))


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Bytes of a GPU's memory while it runs a micro-batch."""

    limit: float
    """Bytes that a GPU has for training; `constant` of them are always in use."""
    constant: float
    """This GPU's share of weights, gradients and optimizer, where all GPUs share them (FSDP, ZeRO-3)."""
    per_token: float
    """Bytes per token on this GPU outside the layers: embeddings, logits, the loss."""
    per_layer_token: float
    """Bytes per token and layer that keeps its activations."""
    per_checkpointed_token: float
    """Bytes per token and layer that recomputes them: the layer's input."""
    num_layers: int
    """Decoder layers of the model."""
    num_parameters: float = 0.0
    """Weights of the model; 0 if they are not known."""
    embedding_parameters: float = 0.0
    """Weights of the embedding and the output layer, once if they are tied."""
    end_parameters: float = 0.0
    """Weights of one of the two, which the first or the last stage of a pipeline holds."""
    num_gpus: int = 1
    """GPUs that train."""
    gathers: bool = True
    """Whether weights are gathered in every micro-batch where TP and PP are 1 (FSDP, ZeRO-3)."""
    gradient_bytes: float = 4.0
    """Bytes of a gradient, where gradients are not shared."""
    weight_bytes: float = 2.0
    """Bytes of a weight there: bfloat16."""
    trained_share: float = 1.0
    """Trained weights for each weight; less than 1 with adapters (LoRA)."""
    head_layers: float = 0.0
    """Layers that take as long as the LM head; they decide how layers are divided into stages."""

    def constant_of(self, layout: Layout) -> float:
        """Count a GPU's bytes of weights, gradients and optimizer: FSDP's, or those of ZeRO-1.

        With ZeRO-1, a GPU holds its part of the weights (bfloat16) and gradients (float32), and the data-parallel
        ranks share its optimizer states (Megatron's distributed optimizer). The stage with the most weights counts.
        """
        if (self.gathers or not self.num_parameters) and layout.tp == layout.pp == 1:
            return self.constant
        shared = _OPTIMIZER_BYTES * layout.tp * layout.pp / self.num_gpus
        trained = self.trained_share * (self.gradient_bytes + shared)
        return self.own_parameters(layout) * (self.weight_bytes + trained)

    def own_parameters(self, layout: Layout) -> float:
        """Count the weights on a GPU where they are not shared, of the stage with the most."""
        if layout.pp == 1:
            return self.num_parameters / layout.tp
        of_layers = (self.num_parameters - self.embedding_parameters) / self.num_layers
        stages = stage_layers(self.num_layers, self.head_layers, layout.pp)
        first, *inner, last = (number * of_layers for number in stages)
        return max(first + self.end_parameters, *inner, last + self.end_parameters) / layout.tp

    def bytes(self, tokens: float, layout: Layout = ONE_GPU, checkpoint_layers: int = 0) -> float:
        """Count the bytes per GPU for a row of `tokens` tokens on a replica.

        On a pipeline, stage s of P holds P - s micro-batches at once, each in its part of the layers (1F1B); where
        it takes v parts in turns, `2 (P - s - 1) + (v - 1) P + 1` of its parts (Megatron's interleaved schedule). The
        last has the logits, too; on another, a layer runs again.
        """
        kept = (self.num_layers - checkpoint_layers) * self.per_layer_token
        of_layer = (kept + checkpoint_layers * self.per_checkpointed_token) / self.num_layers
        stages = stage_layers(self.num_layers, self.head_layers, layout.pp)
        held = []
        for stage, number in enumerate(stages, 1):
            after = layout.pp - stage
            parts = after + 1 if layout.vpp == 1 else 2 * after + (layout.vpp - 1) * layout.pp + 1
            held.append(number * of_layer * (parts / layout.vpp))
        inside = self.per_layer_token if layout.pp > 1 else 0.0
        per_token = max(held[-1] + self.per_token, max(held) + inside)
        return self.constant_of(layout) + tokens / layout.stage_gpus * per_token

    def least_checkpoint_layers(self, tokens: float, layout: Layout = ONE_GPU) -> int | None:
        """Return the fewest layers to checkpoint so that the row fits (HBP, algorithm 4); None if all are too few."""
        numbers = range(self.num_layers + 1)
        found = bisect_left(numbers, True, key=lambda layers: self.bytes(tokens, layout, layers) <= self.limit)
        return found if found in numbers else None

    def longest(self, layout: Layout = ONE_GPU, checkpoint_layers: int | None = None) -> int:
        """Return the longest row (tokens) that fits, by default with every layer checkpointed; at most 2^31 - 1."""
        layers = self.num_layers if checkpoint_layers is None else checkpoint_layers
        constant = self.constant_of(layout)
        per_token = self.bytes(1, layout, layers) - constant
        free = max(0.0, self.limit - constant)
        return int(min(free / per_token, 2**31 - 1)) if per_token > 0 else (2**31 - 1) * (free > 0)


_OPTIMIZER_BYTES = 12
"""A parameter's float32 copy and Adam's two moments."""


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """Time and memory of one model on one kind of GPU."""

    cost: CostModel
    memory: MemoryModel
    num_gpus: int
    """GPUs that train; another number needs another model."""
    sp_sizes: tuple[int, ...]
    """Allowed SP degrees, increasing from 1; Ulysses distributes the heads, so they divide the number of heads."""
    origin: Mapping[str, Any]
    """JSON values for people and headers: the model, the GPU, and the assumptions or the profile."""
    shard_gpus: int | None = None
    """GPUs that share the weights, if not all do; such groups reduce gradients at the end of a step (HSDP)."""

    def of_lockstep(self, lockstep: str | int | None) -> GpuModel:
        """Return the model of a plan with this `--lockstep`, or `Plan.lockstep`.

        With 1, replicas hold their weights (DDP, ZeRO-1), and set their number of micro-batches.
        """
        if lockstep not in ("1", 1):
            return self
        cost, memory = replace(self.cost, gathers=False), replace(self.memory, gathers=False)
        return replace(self, cost=cost, memory=memory, shard_gpus=None)

    def sync_seconds(self, layout: Layout) -> float:
        """Predict a step's seconds for gradients and weights that replicas hold; 0 if micro-batches gather weights."""
        parallel, shard = self.cost.model_parallel, self.shard_gpus
        if parallel is not None and shard:
            return parallel.sync_seconds(Layout(tp=shard), self.num_gpus, self.memory.num_parameters / shard)
        if parallel is None or (self.cost.gathers and layout.tp == layout.pp == 1):
            return 0.0
        return parallel.sync_seconds(layout, self.num_gpus, self.memory.own_parameters(layout))

    def layouts(self, num_gpus: int, parallel: Layout = ONE_GPU) -> list[Layout]:
        """List the layouts, by rising SP degree, into which replicas can divide `num_gpus` GPUs.

        Args:
            parallel: all degrees but SP's, which stays 1 with context parallelism.
        """
        degrees = (1,) if parallel.cp > 1 else self.sp_sizes
        # Tensor parallelism distributes the heads, too.
        fitting = [sp for sp in degrees if sp == 1 or sp * parallel.tp in self.sp_sizes]
        found = [parallel._replace(sp=sp) for sp in fitting]
        return [layout for layout in found if num_gpus % layout.num_gpus == 0]
