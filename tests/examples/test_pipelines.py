"""The examples of pipelines train as one plain process would, sample by sample, in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.examples.launcher import Launcher
from tests.examples.reference import LEARNING_RATE, samples_of, steps_of

STEPS = 3
EXACT = 1e-10


@pytest.fixture
def stages(repo: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that both examples share."""
    monkeypatch.syspath_prepend(str(repo / "examples"))
    import pipeline_stages

    return pipeline_stages


@pytest.fixture
def train(
    stages: Any, repo: Path, launcher: Launcher, tmp_path: Path
) -> Callable[..., tuple[list[tuple[float, float]], dict[str, torch.Tensor]]]:
    """Run an example: loss and gradient norm of each step, and the weights of all stages."""

    def train(name: str, packed: Path, num_ranks: int) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
        codes, text = launcher.run(
            repo / "examples" / f"{name}.py", packed, "--max-steps", STEPS, "--output", tmp_path / "run",
            "--dtype", "float64", "--lr", LEARNING_RATE, num_ranks=num_ranks, logs=tmp_path / "logs",
        )  # fmt: skip
        assert not any(codes), text
        lines = re.findall(r"^step \d+ loss (\S+) grad_norm (\S+) tokens/s \d+$", text, re.MULTILINE)
        weights: dict[str, torch.Tensor] = {}
        for path in sorted((tmp_path / "run").glob("*.pt")):
            part = torch.load(path)
            assert not weights.keys() & part.keys()
            weights |= part
        return [(float(loss), float(norm)) for loss, norm in lines], weights

    return train


def plain_loop(stages: Any, packed: Path, vocab_size: int, longest: int) -> tuple[list[tuple[float, float]], Any]:
    """Every sample of a step by itself, in one process."""
    torch.manual_seed(0)
    model = stages.Decoder(vocab_size, longest).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    lines = []
    for iterations in steps_of(packed)[:STEPS]:
        samples = [sample for packs in iterations for pack in packs for sample in samples_of(pack)]
        count = sum(int((labels >= 0).sum()) for _, labels in samples)
        total = 0.0
        for ids, labels in samples:
            batch = {"input_ids": ids[None], "position_ids": torch.arange(len(ids))[None],
                     "cu_seq_lens_q": torch.tensor([0, len(ids)])}  # fmt: skip
            logits = model(None, batch, 0, 1)
            loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        lines.append((total, norm))
        optimizer.step()
        optimizer.zero_grad()
    return lines, model.state_dict()


def assert_same(found: Any, wanted: Any) -> None:
    lines, weights = found
    wanted_lines, wanted_weights = wanted
    assert len(lines) == STEPS
    for line, (loss, norm) in zip(lines, wanted_lines, strict=True):
        assert line == pytest.approx((loss, norm), rel=EXACT)
    assert weights.keys() == wanted_weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, wanted_weights[name], rtol=0, atol=1e-8)


def slots_of(packed: Path) -> list[dict[int, list[dict[str, Any]]]]:
    """For each step, the rows of each rank."""
    from tests.reference import rank_rows

    steps: dict[int, dict[int, list[dict[str, Any]]]] = {}
    import json

    num_gpus = json.loads((packed / "hbpack.json").read_text())["num_gpus"]
    for rank in range(num_gpus):
        for row in rank_rows(packed, rank):
            steps.setdefault(row["step"], {}).setdefault(rank, []).append(row)
    return [steps[step] for step in sorted(steps)]
