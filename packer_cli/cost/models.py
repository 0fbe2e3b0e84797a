"""Seconds and bytes of a micro-batch: the two models that all predictions are made with, whatever their source.

Time is FlexSP's (arXiv 2412.01523) and Hydraulis' (arXiv 2412.07894) form, `a sum(s^2) + b sum(s) + c` shared by the
GPUs of an SP group, with HBP's checkpointed layers (arXiv 2503.07680) and the all-to-all of Ulysses. Memory is linear
in tokens and layers, as HBP's algorithm 4 takes it.
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
    """Seconds for each unit of attention work (token^2), on one GPU with no layer checkpointed: a."""
    linear: float
    """Seconds for each token, likewise: b."""
    constant: float = 0.0
    """Seconds for each micro-batch, whatever is in it: c."""
    num_layers: int
    """Decoder layers of the model."""
    recompute: float = 1 / 3
    """Share of the computing time that checkpointing all layers adds: the forward pass, where backward takes two."""
    send: Mapping[int, float]
    """SP degree > 1 to seconds of communication for each token of the row, forward and backward."""
    resend: float = 1 / 2
    """Share of the communication that checkpointing all layers adds."""
    send_constant: float = 0.0
    """Seconds of communication for each micro-batch of a degree > 1."""

    def computing(
        self, work: ArrayLike, tokens: ArrayLike, sp_size: int, checkpoint_layers: int = 0
    ) -> NDArray[np.float64]:
        """Seconds without communication; arrays are broadcast.

        Args:
            work: attention work, sum of s^2 over the samples.
            tokens: sum of s; what is padded counts, in a sample of its own.
        """
        alone = self.quadratic * np.asarray(work, dtype=np.float64) + self.linear * np.asarray(tokens, np.float64)
        return alone / sp_size * (1 + self.recompute * checkpoint_layers / self.num_layers) + self.constant

    def communication(self, tokens: ArrayLike, sp_size: int, checkpoint_layers: int = 0) -> NDArray[np.float64]:
        """Seconds of SP communication; 0 for degree 1.

        Raises:
            KeyError: a degree that the model does not know.
        """
        tokens = np.asarray(tokens, dtype=np.float64)
        if sp_size == 1:
            return np.zeros_like(tokens)
        again = 1 + self.resend * checkpoint_layers / self.num_layers
        return self.send[sp_size] * again * tokens + self.send_constant

    def seconds(
        self, work: ArrayLike, tokens: ArrayLike, sp_size: int, checkpoint_layers: int = 0
    ) -> NDArray[np.float64]:
        """Both."""
        computing = self.computing(work, tokens, sp_size, checkpoint_layers)
        return computing + self.communication(tokens, sp_size, checkpoint_layers)


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Bytes of a GPU while it runs a micro-batch."""

    limit: float
    """Bytes that a GPU has for training, of which `constant` is taken whatever the batch."""
    constant: float
    """Weights, gradients, optimizer: this GPU's share."""
    per_token: float
    """Bytes for each token that this GPU holds, beside the layers': embeddings, logits, the loss."""
    per_layer_token: float
    """Bytes for each token of each layer that keeps its activations."""
    per_checkpointed_token: float
    """Bytes for each token of each layer that recomputes them: its input."""
    num_layers: int
    """Decoder layers of the model."""

    def bytes(self, tokens: float, sp_size: int, checkpoint_layers: int) -> float:
        """Of a row of so many tokens that `sp_size` GPUs share."""
        kept = (self.num_layers - checkpoint_layers) * self.per_layer_token
        return self.constant + tokens / sp_size * (
            self.per_token + kept + checkpoint_layers * self.per_checkpointed_token
        )

    def least_checkpoint_layers(self, tokens: float, sp_size: int) -> int | None:
        """The fewest layers to checkpoint so that the row fits (HBP, algorithm 4); None where all are too few."""
        over = self.bytes(tokens, sp_size, 0) - self.limit
        if over <= 0:
            return 0
        saved = tokens / sp_size * (self.per_layer_token - self.per_checkpointed_token)
        layers = math.ceil(over / saved) if saved > 0 else self.num_layers + 1
        return layers if layers <= self.num_layers else None

    def longest(self, sp_size: int) -> int:
        """The most tokens of a row that fit with every layer checkpointed."""
        a_token = (self.per_token + self.num_layers * self.per_checkpointed_token) / sp_size
        return max(0, int((self.limit - self.constant) / a_token))


@dataclass(frozen=True, kw_only=True)
class GpuModel:
    """What is known of one model on one kind of GPU."""

    cost: CostModel
    memory: MemoryModel
    num_gpus: int
    """GPUs that share the weights; a plan for others needs another one."""
    sp_sizes: tuple[int, ...]
    """SP degrees that may be used, rising, from 1: divisors of the heads, which Ulysses deals out."""
    origin: Mapping[str, Any]
    """For people and headers: the model, the GPU, the assumptions, or the profile file; JSON values."""
