"""The parts that `pipeline_parallel.py` and `unlike_pipelines.py` share: a tiny decoder in stages, and a 1F1B
schedule."""

from collections import deque
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from packer_cli.loader.losses import batch_losses, stable_loss
from packer_cli.loader.parallel import ulysses_attention

HIDDEN, HEADS, LAYERS = 32, 4, 4


class Layer(nn.Module):
    """Attention within the samples of a row, and an FFN."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.ffn = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor, borders: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        """[t, hidden] -> [t, hidden]; `group` shares the row, which `borders` divides into samples."""
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).unbind(1)
        x = x + self.output(ulysses_attention(query, key, value, borders, group).flatten(1))
        return x + self.ffn(self.norms[1](x))


class Decoder(nn.Module):
    """A decoder that runs whole, or one stage of a pipeline at a time."""

    def __init__(self, vocab_size: int, longest: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.hidden = hidden
        self.tokens = nn.Embedding(vocab_size, hidden)
        self.positions = nn.Embedding(longest, hidden)
        self.layers = nn.ModuleDict({str(i): Layer(hidden) for i in range(LAYERS)})
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocab_size, bias=False)

    def keep_stage(self, stage: int, num_stages: int) -> None:
        """Drop the weights of all other stages."""
        mine = stage_layers(stage, num_stages)
        self.layers = nn.ModuleDict({str(i): self.layers[str(i)] for i in mine})
        if stage > 0:
            del self.tokens, self.positions
        if stage < num_stages - 1:
            del self.norm, self.head

    def forward(
        self, x: torch.Tensor | None, batch: Any, stage: int, num_stages: int, group: dist.ProcessGroup | None = None
    ) -> torch.Tensor:
        """Run a stage: from the batch's tokens, or from `x` [t, hidden] of the stage before; the last gives logits."""
        if x is None:
            x = self.tokens(batch["input_ids"][0]) + self.positions(batch["position_ids"][0])
        for i in stage_layers(stage, num_stages):
            x = self.layers[str(i)](x, batch["cu_seq_lens_q"], group)
        return self.head(self.norm(x)) if stage == num_stages - 1 else x


def stage_layers(stage: int, num_stages: int) -> range:
    """Find the numbers of the layers of a stage."""
    return range(LAYERS * stage // num_stages, LAYERS * (stage + 1) // num_stages)


def run_pipeline(
    model: Decoder, batches: list[Any], previous: int, following: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Forward and backward of this rank's micro-batches on its stage, one of each in turn (1F1B).

    Micro-batches may be of unlike lengths: all stages of a replica read the same rows, so a stage knows what it
    receives.

    Args:
        previous, following: the ranks of the stages before and after, if there are such.
        group: the ranks that share the rows, if there are such (Ulysses).

    Returns:
        The step's loss, as far as this rank computes it: a part on the last stage, 0 on the others.
    """
    stage, num_stages = batches[0]["pp_rank"], batches[0]["pp_size"]
    weight = next(model.parameters())
    total = weight.new_zeros(())
    running: deque[tuple[torch.Tensor | None, torch.Tensor]] = deque()
    sending: list[Any] = []

    def forward(batch: Any) -> None:
        nonlocal total
        x = None
        if stage > 0:
            x = weight.new_empty(batch["input_ids"].shape[1], model.hidden)
            dist.recv(x, previous)
            x.requires_grad_()
        out = model(x, batch, stage, num_stages, group)
        if stage == num_stages - 1:
            # Gradients are summed, never averaged, so replicas may run unlike numbers of micro-batches.
            out = stable_loss(batch_losses(out, batch).sum(), batch, world_size=1)
            total = total + out.detach()
        else:
            sending.append((out.detach(), dist.isend(out.detach(), following)))
        running.append((x, out))

    def backward() -> None:
        x, out = running.popleft()
        grad = None
        if stage < num_stages - 1:
            grad = torch.empty_like(out)
            dist.recv(grad, following)
        out.backward(grad)
        if x is not None:
            assert x.grad is not None
            sending.append((x.grad, dist.isend(x.grad, previous)))

    num_ahead = min(num_stages - 1 - stage, len(batches))
    for batch in batches[:num_ahead]:
        forward(batch)
    for batch in batches[num_ahead:]:
        forward(batch)
        backward()
    for _ in range(num_ahead):
        backward()
    for _, work in sending:  # The tensor lives until it is sent.
        work.wait()
    return total
