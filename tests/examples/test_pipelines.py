"""The examples of pipelines train as one plain process would, sample by sample, in float64."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.examples.launcher import Launcher
from tests.examples.reference import LEARNING_RATE, samples_of, steps_of
from tests.reference import rank_rows

STEPS = 3
EXACT = 1e-10
TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 4, "vocab_size": 1024, "tie_word_embeddings": False,
    "dtype": "float32",
}  # fmt: skip
"""About the examples' decoder; it decides which pipelines hold a sample."""


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


def plain_loop(stages: Any, packed: Path) -> tuple[list[tuple[float, float]], Any]:
    """Every sample of a step by itself, in one process."""
    longest = max(group["capacity"] for group in json.loads((packed / "hbpack.json").read_text())["groups"])
    torch.manual_seed(0)
    model = stages.Decoder(1024, longest).double()
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


@pytest.fixture(scope="module")
def corpus(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some chats, and the beginnings of a few journals."""
    sample = repo / "examples" / "sample"
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    for line in (sample / "journals.jsonl").read_text(encoding="utf-8").splitlines()[:6]:
        lines.append(json.dumps({"text": json.loads(line)["text"][:6000]}))
    path = tmp_path_factory.mktemp("pipelines") / "corpus.jsonl"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def pack(corpus: Path, folder: Path, *options: object) -> Path:
    tokenizer = Path(__file__).parents[2] / "examples" / "sample" / "tokenizer"
    done = run(main, "pack", corpus, "--tokenizer", tokenizer, *options, "--workers", 1, "--output", folder)
    assert done.code == 0, done.stderr
    return folder


def pipelines_of(packed: Path) -> list[list[tuple[int, int, int]]]:
    """For each step, its pipelines: first GPU, stages, micro-batches."""
    manifest = json.loads((packed / "hbpack.json").read_text())
    counts: Counter[tuple[int, int, int]] = Counter()
    for rank in range(manifest["num_gpus"]):
        for row in rank_rows(packed, rank):
            if row["place"] == 0:
                counts[row["step"], row["first_gpu"], manifest["groups"][row["group"]]["pp_size"]] += 1
    steps: dict[int, list[tuple[int, int, int]]] = {}
    for (step, first, stages), count in sorted(counts.items()):
        steps.setdefault(step, []).append((first, stages, count))
    return [steps[step] for step in sorted(steps)]


@pytest.mark.slow
def test_pipelines_of_a_wlb_plan(train: Any, stages: Any, corpus: Path, tmp_path: Path) -> None:
    """Two replicas of two stages; what each GPU holds is its stage alone."""
    packed = pack(corpus, tmp_path / "set", "--strategy", "wlb", "--groups", "1k:1", "--parallel", "pp=2", "--gpus", 4)
    used = pipelines_of(packed)[:STEPS]
    assert all([each[:2] for each in pipelines] == [(0, 2), (2, 2)] for pipelines in used)
    assert any(num >= 2 for pipelines in used for _, _, num in pipelines), "no 1F1B without several micro-batches"
    assert_same(train("pipeline_parallel", packed, 4), plain_loop(stages, packed))


def test_unlike_pipelines_of_a_hydraulis_plan(train: Any, stages: Any, corpus: Path, tmp_path: Path) -> None:
    """Three GPUs: in a step, one pipeline of two stages beside one of a single stage."""
    config = tmp_path / "config.json"
    # So many layers, whose weights a pipeline divides, that one GPU holds no long sample.
    config.write_text(json.dumps({**TINY, "num_hidden_layers": 400}))
    packed = pack(
        corpus, tmp_path / "set", "--strategy", "hydraulis", "--groups", "2k:1", "--parallel", "tp=1,cp=1,pp=2",
        "--gpus", 3, "--global-tokens", "3k", "--model", config,
        "--gpu", "mine:flops=1e12,memory=186MB,nvlink=1GB,network=1GB",
    )  # fmt: skip
    used = pipelines_of(packed)[:STEPS]
    assert any({num_stages for _, num_stages, _ in pipelines} == {1, 2} for pipelines in used)
    assert len({tuple(each[:2] for each in pipelines) for pipelines in used}) > 1, "pipelines never change"
    assert_same(train("unlike_pipelines", packed, 3), plain_loop(stages, packed))


@pytest.mark.parametrize(
    ("name", "rule"), [("pipeline_parallel", "--parallel pp=N"), ("unlike_pipelines", "tp=1,cp=1")]
)
def test_tensor_parallelism_is_refused(
    repo: Path, launcher: Launcher, corpus: Path, tmp_path: Path, name: str, rule: str
) -> None:
    packed = pack(corpus, tmp_path / "set", "--groups", "1k:1", "--parallel", "tp=2", "--gpus", 2,
                  "--lockstep", 1, "--global-tokens", "4k", "--overflow", "truncate")  # fmt: skip
    codes, text = launcher.run(repo / "examples" / f"{name}.py", packed, "--output", tmp_path / "run", num_ranks=2,
                               logs=tmp_path / "logs")  # fmt: skip
    assert any(codes)
    assert rule in text
