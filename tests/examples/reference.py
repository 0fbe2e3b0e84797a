"""What every example must arrive at: one process, a step's samples one by one, nothing of the loader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.reference import rank_rows, read_packs

LEARNING_RATE = 1e-3

Sample = tuple[torch.Tensor, torch.Tensor]
"""Token ids, and what each token has to predict."""


@dataclass
class Trajectory:
    """A run: loss and gradient norm of each step, and the weights."""

    losses: list[float]
    norms: list[float]
    weights: list[dict[str, torch.Tensor]]
    """Before the first step, and after each."""


def steps_of(packed: Path) -> list[list[list[dict[str, Any]]]]:
    """The packs of each iteration of each step, epoch after epoch, from the rank manifests; {} for a filler."""
    manifest = json.loads((packed / "hbpack.json").read_text())
    packs = {pack["pack_id"]: pack for pack in read_packs(packed)}
    found: dict[tuple[int, int], dict[int, list[dict[str, Any]]]] = {}
    for epoch in range(len(manifest["epochs"])):
        for rank in range(manifest["num_gpus"]):
            for row in rank_rows(packed, rank, f"epoch-{epoch:03d}"):
                iterations = found.setdefault((epoch, row["step"]), {})
                slots = iterations.setdefault(row["iteration"], [])
                if row["sp_rank"] == 0:
                    slots.append({} if row["pack"] < 0 else packs[row["pack"]])
    return [[found[key][i] for i in sorted(found[key])] for key in sorted(found)]


def samples_of(pack: dict[str, Any]) -> list[Sample]:
    found = []
    for begin, end in pairwise(pack["cu_seqlens"].tolist() if pack else [0]):
        ids, mask = (torch.tensor(pack[name][begin:end]).long() for name in ("input_ids", "loss_mask"))
        following = torch.where(mask[1:] > 0, ids[1:], -100)
        found.append((ids, F.pad(following, (0, 1), value=-100)))
    return found


def merge(samples: list[Sample]) -> list[Sample]:
    """One sample in the place of several, as a trainer that loses their borders takes a row."""
    return [(torch.cat([ids for ids, _ in samples]), torch.cat([labels for _, labels in samples]))] if samples else []


def train(
    packed: Path,
    model: Any,
    num_steps: int,
    *,
    is_merged: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    most_norm: float = 1.0,
) -> Trajectory:
    """Gradients clipped, the mean over all loss tokens of the step; the model, or its folder for AdamW."""
    if isinstance(model, Path):
        model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").train()
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    found = Trajectory([], [], [weights_of(model)])
    for iterations in steps_of(packed)[:num_steps]:
        rows = [samples_of(pack) for packs in iterations for pack in packs]
        samples = [sample for row in rows for sample in (merge(row) if is_merged else row)]
        count = sum(int((labels >= 0).sum()) for _, labels in samples)
        total = 0.0
        for ids, labels in samples:
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
            loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / count
            loss.backward()
            total += loss.item()
        found.losses.append(total)
        found.norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), most_norm).item())
        optimizer.step()
        optimizer.zero_grad()
        found.weights.append(weights_of(model))
    return found


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def distance(folder: Path, wanted: Trajectory, num_steps: int) -> float:
    """How far saved weights are from those after that many steps, in units of what these changed; the worst one's."""
    found, first, last = load_file(folder / "model.safetensors"), wanted.weights[0], wanted.weights[num_steps]
    assert found.keys() == last.keys()
    return max(float((found[name] - last[name]).norm() / (last[name] - first[name]).norm()) for name in last)
