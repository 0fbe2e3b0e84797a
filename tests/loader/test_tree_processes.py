"""The plain loops for preferences train as sample by sample, on one, two and four processes, some without a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.loader import tree_worker
from tests.loader.llama import gradients
from tests.loader.test_tree_attention import draw_pairs, logps_alone
from tests.naive.trees import Branch
from tests.ranks import run_ranks

Items = list[list[Branch]]
A, B, C, D = (draw_pairs(seed, num_pairs) for seed, num_pairs in ((1, 3), (2, 1), (3, 2), (4, 4)))
# Two turns of a conversation, each with all before it; the first has a thought that the second does not see.
TURNS = [
    [Branch([7, 8, 9, 20, 21, 22], [0, 0, 0, 1, 1, 1]), Branch([7, 8, 9, 22, 5, 30, 31], [0, 0, 0, 0, 0, 1, 1]),
     Branch([7, 8, 9, 22, 5, 31, 6, 40], [0, 0, 0, 0, 0, 1, 0, 1])],
    [Branch([1, 2, 3], [0, 1, 1]), Branch([1, 2, 3], [0, 1, 0])],
]  # fmt: skip
STEPS: dict[int, list[list[tuple[Items | None, int]]]] = {
    1: [[(A, 1)], [(None, 1)], [(B, 1)]],
    2: [[(A, 1), (None, 1)], [(D, 2)], [(B, 1), (C, 1)]],
    4: [[(A, 1), (B, 1), (C, 1), (None, 1)], [(D, 2), (None, 2)], [(C, 4)]],
}


def loss_of(kind: str, model: Any, before: Any, item: list[Branch]) -> torch.Tensor:
    """The sum of the losses of an item's samples, each alone."""
    if kind == "reward":
        ends = [model.model(input_ids=torch.tensor([each.tokens])).last_hidden_state[0, -1] for each in item]
        chosen, rejected = (model.score(end)[0].float() for end in ends)
        return -F.logsigmoid(chosen - rejected)
    logps = [logps_alone(model, branch) for branch in item]
    if kind == "sft":
        return -sum(logps, torch.zeros(()))
    if kind == "ipo":
        chosen, rejected = (x / sum(branch.weights) for x, branch in zip(logps, item, strict=True))
        return (chosen - rejected - 1 / (2 * tree_worker.BETA)) ** 2
    with torch.no_grad():
        reference = [logps_alone(before, branch) for branch in item]
    chosen, rejected = (x - y for x, y in zip(logps, reference, strict=True))
    return -F.logsigmoid(tree_worker.BETA * (chosen - rejected))


def one_by_one(kind: str, iterations: list[list[tuple[Items | None, int]]]) -> dict[str, Any]:
    model = tree_worker.model_of(kind)
    before = tree_worker.reference_of(model)
    items = [item for replicas in iterations for found, _ in replicas for item in found or ()]
    count = tree_worker.batch_tokens(items) if kind == "sft" else len(items)
    loss = torch.stack([loss_of(kind, model, before, item) for item in items]).sum() / count
    loss.backward()
    return {"loss": loss.detach().double(), "gradients": gradients(model)}


@pytest.mark.parametrize("kind", tree_worker.LOOPS)
@pytest.mark.parametrize("num_ranks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_as_sample_by_sample(kind: str, num_ranks: int, tmp_path: Path) -> None:
    expected = tmp_path / "expected.pt"
    steps = [[(turns if kind == "sft" and items else items, degree) for items, degree in each]
             for turns, each in zip((TURNS, A, TURNS), STEPS[num_ranks], strict=True)]  # fmt: skip
    torch.save(one_by_one(kind, steps), expected)
    run_ranks(tree_worker.main, (num_ranks, kind, steps, str(expected)), num_ranks)
