"""XTuner: its own classes where they can be imported, and their rules, written down here, everywhere.

The package index has XTuner 0.2.0, which knows no preset packs. The rules are those of InternLM/xtuner at b934f46
(August 2026): `xtuner/v1/datasets/preset_pack.py`, `jsonl.py`, `preset_sampler.py`, `collator.py`.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.conftest import CAPACITY, NUM_COMPARED, docs_block, samples_of

Item = dict[str, Any]
PAD_TOKEN = 0
"""Of the sample's tokenizer."""


def preset_packs(folder: Path) -> list[list[Item]]:
    """`PresetPackDataset(..., short_pack_strategy="error", long_pack_strategy="error")`, its default, item by item."""
    boundaries = np.load(folder / "packs" / "boundaries.npy", mmap_mode="r")
    samples = np.load(folder / "packs" / "samples.npy", mmap_mode="r")
    assert boundaries.dtype == samples.dtype == np.int64
    paths = json.loads((folder / "packs" / "paths.json").read_text())
    lines = [[json.loads(line) for line in Path(path).read_text().splitlines()] for path in paths]
    assert boundaries[-1] == len(samples)
    assert samples.shape[1] == 6
    assert ((samples[:, 0] >= 0) & (samples[:, 0] < len(paths))).all()
    assert (samples[:, 2:4] == -1).all()  # No stretches of long texts.
    assert ((samples[:, 4] >= 0) & (samples[:, 5] > samples[:, 4])).all()
    totals = np.add.reduceat(samples[:, 5] - samples[:, 4], boundaries[:-1])
    assert (totals == CAPACITY).all()  # Less or more is an error.
    packs = []
    for first, stop in itertools.pairwise(boundaries.tolist()):
        pack = []
        for path, line, _, _, begin, end in samples[first:stop].tolist():
            item = lines[path][line]
            assert len(item["input_ids"]) == len(item["labels"]) == item["num_tokens"] >= end
            cut = {name: item[name][begin:end] for name in ("input_ids", "labels")}
            pack.append({**cut, "num_tokens": end - begin})
        packs.append(pack)
    return packs


def assert_packs(packs: list[list[Item]], filled: list[Item]) -> None:
    """Each pack is its samples, and pads to the capacity as one more."""
    assert len(packs) == len(filled)
    for items, pack in zip(packs, filled, strict=True):
        num_pads = CAPACITY - pack["num_tokens"]
        if num_pads:
            pads = items.pop()
            assert pads == {"input_ids": [PAD_TOKEN] * num_pads, "labels": [-100] * num_pads, "num_tokens": num_pads}
        for item, (ids, mask) in zip(items, samples_of(pack), strict=True):
            labels = [token if keep else -100 for token, keep in zip(ids, mask, strict=True)]
            assert item == {"input_ids": ids, "labels": labels, "num_tokens": len(ids)}


def collate(items: list[Item]) -> tuple[Any, Any, Any]:
    """`sft_llm_collator`: ids without the row's last token, labels without its first, both filled with one pad."""
    import torch

    ids = torch.tensor([token for item in items for token in item["input_ids"]])
    labels = torch.tensor([label for item in items for label in item["labels"]])
    lengths = [item["num_tokens"] for item in items]
    lengths = lengths[:-1] if lengths[-1] == 1 else [*lengths[:-1], lengths[-1] - 1]
    pad, ignored = torch.tensor([0]), torch.tensor([-100])
    cu_seqlens = torch.tensor([0, *lengths, 1]).cumsum(0)
    return torch.cat([ids[:-1], pad]), torch.cat([labels[1:], ignored]), cu_seqlens


def losses(rows: list[tuple[Any, Any, Any]], *, is_merged: bool = False) -> float:
    """What the model computes of collated rows: FlashAttention by `cu_seqlens`, positions that restart at each."""
    import torch

    from tests.tiny_model import block_mask, packed_loss, segments_of

    total = 0.0
    for ids, targets, cu_seqlens in rows:
        segments = segments_of(cu_seqlens, len(ids))
        positions = torch.arange(len(ids)) - cu_seqlens[segments]
        mask = block_mask(torch.zeros_like(segments) if is_merged else segments)
        total += packed_loss(ids, targets, positions, mask)[0]
    return total


def test_the_packs(exported, filled):
    folder = exported("xtuner")
    assert_packs(preset_packs(folder), filled)
    assert np.array_equal(np.load(folder / "order.npy"), np.arange(len(filled)))
    paths = json.loads((folder / "packs" / "paths.json").read_text())
    assert [Path(path) for path in paths] == [*sorted(folder.glob("samples-*.jsonl")), folder / "pad.jsonl"]
    assert len(paths) > 2


def test_the_loss_is_that_of_the_samples(exported, filled, wanted_loss):
    pytest.importorskip("torch")
    rows = [collate(items) for items in preset_packs(exported("xtuner"))[:NUM_COMPARED]]
    assert losses(rows) == pytest.approx(wanted_loss, rel=1e-6)
    assert losses(rows, is_merged=True) != pytest.approx(wanted_loss, rel=1e-4)


def test_its_own_classes_read_it(exported, filled, repo, wanted_loss):
    pytest.importorskip("xtuner.v1.datasets.preset_pack", exc_type=Exception)
    from xtuner.v1.datasets.collator import sft_llm_collator
    from xtuner.v1.datasets.jsonl import JsonlDataset
    from xtuner.v1.datasets.preset_pack import PresetPackDataset
    from xtuner.v1.datasets.preset_sampler import PresetSampler

    found: dict[str, Any] = {}
    exec(docs_block(repo / "docs" / "export.md", "## XTuner"), found)
    folder = exported("xtuner")
    data = [JsonlDataset(path, tokenize_fn=found["Tokenized"](None)) for path in sorted(folder.glob("*.jsonl"))]
    dataset = PresetPackDataset(data, str(folder / "packs"), pack_max_length=CAPACITY)
    order = list(PresetSampler(dataset, str(folder / "order.npy"), global_batch_size=1))
    assert_packs([dataset[i] for i in order], filled)
    rows = []
    for i in order[:NUM_COMPARED]:
        (batch,) = sft_llm_collator([dataset[i]], pack_max_length=CAPACITY, padding_token_idx=PAD_TOKEN)
        context = batch["seq_ctx"]
        rows.append((context.input_ids[0], batch["shifted_labels"][0], context.cu_seq_lens_q))
    assert losses(rows) == pytest.approx(wanted_loss, rel=1e-6)
