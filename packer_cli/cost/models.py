"""Models of a micro-batch's seconds and bytes, which all predictions use, whatever their source.

Time is FlexSP's (arXiv 2412.01523) and Hydraulis' (arXiv 2412.07894) form, `a sum(s^2) + b sum(s) + c` shared by the
GPUs of an SP group, with HBP's checkpointed layers (arXiv 2503.07680) and the all-to-all of Ulysses. Memory is linear
in tokens and layers, as in HBP's algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds of a micro-batch, forward and backward, on the GPUs of one SP group."""

    quadratic: float
    """Seconds per unit of attention work (token^2), on one GPU without checkpointed layers: a."""
    linear: float
    """Seconds per token, likewise: b."""
    constant: float = 0.0
    """Seconds per micro-batch, whatever its contents: c."""
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

    def computing(
        self, work: ArrayLike, tokens: ArrayLike, sp_size: int, checkpoint_layers: int = 0
    ) -> NDArray[np.float64]:
        """Seconds without communication (float64); arrays are broadcast.

        Args:
            work: attention work, sum of s^2 over the samples.
            tokens: sum of s; padding counts as a sample of its own.
        """
        one_gpu = self.quadratic * np.asarray(work, dtype=np.float64) + self.linear * np.asarray(tokens, np.float64)
        return one_gpu / sp_size * (1 + self.recompute * checkpoint_layers / self.num_layers) + self.constant

    def communication(self, tokens: ArrayLike, sp_size: int, checkpoint_layers: int = 0) -> NDArray[np.float64]:
        """Seconds of SP communication; 0 for degree 1.

        Raises:
            KeyError: the model does not know the degree.
        """
        tokens = np.asarray(tokens, dtype=np.float64)
        if sp_size == 1:
            return np.zeros_like(tokens)
        again = 1 + self.resend * checkpoint_layers / self.num_layers
        return self.send[sp_size] * again * tokens + self.send_constant

    def seconds(
        self, work: ArrayLike, tokens: ArrayLike, sp_size: int, checkpoint_layers: int = 0
    ) -> NDArray[np.float64]:
        """Seconds of computing and communication together."""
        computing = self.computing(work, tokens, sp_size, checkpoint_layers)
        return computing + self.communication(tokens, sp_size, checkpoint_layers)


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Bytes of a GPU's memory while it runs a micro-batch."""

    limit: float
    """Bytes that a GPU has for training; `constant` of them are always in use."""
    constant: float
    """This GPU's share of weights, gradients and optimizer."""
    per_token: float
    """Bytes per token on this GPU outside the layers: embeddings, logits, the loss."""
    per_layer_token: float
    """Bytes per token and layer that keeps its activations."""
    per_checkpointed_token: float
    """Bytes per token and layer that recomputes them: the layer's input."""
    num_layers: int
    """Decoder layers of the model."""

    def bytes(self, tokens: float, sp_size: int, checkpoint_layers: int) -> float:
        """Bytes per GPU for a row of `tokens` tokens shared by `sp_size` GPUs."""
        kept = (self.num_layers - checkpoint_layers) * self.per_layer_token
        return self.constant + tokens / sp_size * (
            self.per_token + kept + checkpoint_layers * self.per_checkpointed_token
        )

    def least_checkpoint_layers(self, tokens: float, sp_size: int) -> int | None:
        """The fewest layers to checkpoint so that the row fits (HBP, algorithm 4); None if all are not enough."""
        over = self.bytes(tokens, sp_size, 0) - self.limit
        if over <= 0:
            return 0
        saved = tokens / sp_size * (self.per_layer_token - self.per_checkpointed_token)
        layers = math.ceil(over / saved) if saved > 0 else self.num_layers + 1
        return layers if layers <= self.num_layers else None

    def longest(self, sp_size: int) -> int:
        """The longest row (tokens) that fits with every layer checkpointed."""
        per_token = (self.per_token + self.num_layers * self.per_checkpointed_token) / sp_size
        return max(0, int((self.limit - self.constant) / per_token))


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """Time and memory of one model on one kind of GPU."""

    cost: CostModel
    memory: MemoryModel
    num_gpus: int
    """GPUs that share the weights; another number needs another model."""
    sp_sizes: tuple[int, ...]
    """Allowed SP degrees, increasing from 1; Ulysses distributes the heads, so they divide the number of heads."""
    origin: Mapping[str, Any]
    """JSON values for people and headers: the model, the GPU, and the assumptions or the profile."""
