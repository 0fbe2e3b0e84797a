"""Six processes train each strategy's set as one process trains its samples, steps and gradients alike."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from packer_cli.cli.main import main
from packer_cli.loader.losses import token_losses
from packer_cli.plan.core.types import FILLER, Plan
from packer_cli.shards.plan_file import read_plan
from tests.cli_runner import run
from tests.loader import strategy_worker
from tests.loader.llama import VOCABULARY, gradients, tiny_llama
from tests.ranks import run_ranks

_STEPS = ["--global-tokens", 600]
_LONGEST = ["--groups", "288:6"]
STRATEGIES: dict[str, list[Any]] = {
    "balanced": _STEPS,
    "naive": ["--strategy", "naive", *_LONGEST, *_STEPS],
    "flexsp:all": ["--strategy", "flexsp:all", *_STEPS],
    "fcp": ["--strategy", "fcp", *_STEPS],
    "bytescale": ["--strategy", "bytescale", *_STEPS],
    "free": ["--strategy", "flexsp:all", "--lockstep", "1", *_STEPS],
    "context-parallel": ["--groups", "48,288", "--parallel", "cp=3", "--cp-sharding", "document", *_STEPS],
    "hydraulis": ["--strategy", "hydraulis", *_LONGEST, "--parallel", "tp=2,cp=2,pp=2", *_STEPS],
    "wlb": ["--strategy", "wlb", "--groups", "288:2", "--packing", "delay:micro_batches=2,queues=1,s_max=576"],
}
ALIKE: dict[str, list[Any]] = {
    "hbp": ["--strategy", "hbp", "--curriculum-steps", "1", *_STEPS],
    "longalign-packing": ["--strategy", "longalign-packing", *_LONGEST, *_STEPS],
    "flexsp": ["--strategy", "flexsp", *_STEPS],
    "batchada": ["--strategy", "batchada", *_STEPS],
    "megatron": ["--strategy", "megatron", *_STEPS],
    "dp-balanced": ["--strategy", "dp-balanced", *_LONGEST, *_STEPS],
}
"""Whose rows the loader cannot tell from those of the others."""
SHAPE = {
    "model_type": "llama", "hidden_size": 3072, "intermediate_size": 14336, "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 12, "vocab_size": 128256,
}  # fmt: skip


def make_samples() -> list[SimpleNamespace]:
    """Mostly short ones, and a few for two, three and six GPUs."""
    random = np.random.default_rng(0)
    lengths = [*random.integers(2, 40, 30), *random.integers(60, 90, 4), *random.integers(100, 140, 3), 250, 280]
    samples = []
    for length in random.permutation(lengths).tolist():
        mask = [0, *random.integers(0, 2, length - 2).tolist(), 1]  # One without a loss is left out.
        samples.append(SimpleNamespace(tokens=random.integers(3, VOCABULARY, length).tolist(), mask=mask))
    return samples


def pieces_of_steps(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(sample, start, length) of what each step trains on."""
    (schedule,) = plan.epochs
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(schedule.num_steps)]
    for iteration, pack in zip(schedule.slot_iteration.tolist(), schedule.slot_pack.tolist(), strict=True):
        if pack != FILLER:
            pieces = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]
            of_pieces = (each[pieces].tolist() for each in (plan.pieces.sample, plan.pieces.start, plan.pieces.length))
            found[schedule.iteration_step[iteration]] += zip(*of_pieces, strict=True)
    return found


def part(sample: SimpleNamespace, start: int, length: int) -> SimpleNamespace:
    """A piece of a sample; nothing predicts its first token."""
    stop = start + length
    return SimpleNamespace(tokens=sample.tokens[start:stop], mask=[0, *sample.mask[start + 1 : stop]])


def train_alone(model: Any, sample: SimpleNamespace) -> tuple[float, int, dict[str, torch.Tensor]]:
    """Summed loss of a sample, its loss tokens, and the gradients of the sum."""
    targets = torch.tensor(
        [*(t if m else -100 for t, m in zip(sample.tokens[1:], sample.mask[1:], strict=True)), -100]
    )
    logits = model(input_ids=torch.tensor([sample.tokens])).logits
    total = token_losses(logits, targets).sum()
    total.backward()
    return total.item(), sum(sample.mask), gradients(model)


def one_process(step: list[tuple[float, int, dict[str, torch.Tensor]]]) -> dict[str, Any]:
    """A step's loss, sample mean and gradients, from its samples one by one."""
    count = sum(n for _, n, _ in step)
    mean = sum(total / max(1, n) for total, n, _ in step) / len(step)
    return {
        "totals": torch.tensor([sum(total for total, _, _ in step) / count, mean], dtype=torch.float64),
        "gradients": {name: sum(grads[name] for *_, grads in step) / count for name in step[0][2]},
    }


def train(strategies: dict[str, list[Any]], folder: Path, repo: Path) -> tuple[list[SimpleNamespace], dict[str, Plan]]:
    """Train sets of the strategies on six processes; the samples and the plans."""
    samples = make_samples()
    corpus, shape = folder / "corpus.jsonl", folder / "config.json"
    rows = [
        {"input_ids": x.tokens, "labels": [t if m else -100 for t, m in zip(x.tokens, x.mask, strict=True)]}
        for x in samples
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape.write_text(json.dumps(SHAPE))
    model = tiny_llama("sdpa")
    trained = cache(lambda i, start, length: train_alone(model, part(samples[i], start, length)))
    expected, plans = {}, {}
    for name, options in strategies.items():
        out = folder / name
        done = run(
            main, "pack", corpus, "--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "48:1,288:6",
            "--gpus", 6, "--model", shape, "--gpu", "h100", *options,
            "--output", out, "--workers", 1,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        plans[name], _ = read_plan(out / "plan.arrow")
        expected[str(out)] = [one_process([trained(*piece) for piece in own]) for own in pieces_of_steps(plans[name])]
    file = folder / "expected.pt"
    torch.save(expected, file)
    run_ranks(strategy_worker.main, (str(file),), strategy_worker.WORLD_SIZE)
    return samples, plans


@pytest.mark.slow
def test_strategies_of_like_rows_train_as_one_process_does(tmp_path: Path, repo: Path) -> None:
    train(ALIKE, tmp_path, repo)


def test_every_strategy_trains_as_one_process_does(tmp_path: Path, repo: Path) -> None:
    samples, plans = train(STRATEGIES, tmp_path, repo)
    assert set(plans["context-parallel"].packs.cp_sharding.tolist()) == {1}
    (mixed,), (free,) = plans["flexsp:all"].epochs, plans["free"].epochs
    degrees = list(zip(mixed.slot_iteration.tolist(), plans["flexsp:all"].slot_gpus(mixed).tolist(), strict=True))
    assert len(set(degrees)) > mixed.num_iterations, "no iteration mixes degrees"
    assert {layout.num_gpus for layout in plans["flexsp:all"].replicas} >= {1, 2, 3, 6}
    counts = np.bincount(np.cumsum(free.begins_replica))
    assert len(set(counts[1:].tolist())) > 1, "all replicas run equally many micro-batches"
    assert plans["wlb"].groups[0].capacity > max(len(sample.tokens) for sample in samples) * 1.5
    assert plans["wlb"].pieces.start.any(), "no sample lies across two global batches"
    (steps,) = plans["wlb"].epochs
    assert max(np.bincount(np.cumsum(steps.begins_replica))) == 2, "no replica runs two micro-batches"
    layouts = set(plans["hydraulis"].replicas)
    assert len(layouts) > 1
    assert {max(degrees) for degrees in zip(*layouts, strict=True)} == {1, 2}, "tp, cp and pp are not mixed"
