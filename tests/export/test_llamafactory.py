"""LLaMA-Factory: its own collator where it is installed, and its rules, written down here, everywhere.

The rules are those of hiyouga/LLaMA-Factory 0.9.5 and at ff6d4d1 (August 2026): `data/loader.py` (`load_from_disk`),
`data/collator.py` (`SFTDataCollatorWith4DAttentionMask`), `data/processor/supervised.py` (what its own packing makes).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tests.export.conftest import CAPACITY, NUM_COMPARED, export, samples_of

Row = dict[str, list[int]]
Tensors = dict[str, Any]


@pytest.fixture(scope="session")
def rows(exported) -> list[Row]:
    """The export, as its `tokenized_path` is opened."""
    import datasets

    loaded = datasets.load_from_disk(str(exported("llamafactory")))
    assert loaded.column_names == ["input_ids", "labels", "attention_mask", "position_ids"]
    assert len(os.listdir(exported("llamafactory"))) > 4  # Several parts.
    return list(loaded)


def test_the_rows(rows, filled):
    assert len(rows) == len(filled)
    for row, pack in zip(rows, filled, strict=True):
        assert {name: len(values) for name, values in row.items()} == dict.fromkeys(row, CAPACITY)
        samples = samples_of(pack)
        pads = CAPACITY - pack["num_tokens"]
        assert row == {
            "input_ids": [token for ids, _ in samples for token in ids] + [0] * pads,
            "labels": [t if m else -100 for ids, mask in samples for t, m in zip(ids, mask, strict=True)]
            + [-100] * pads,
            "attention_mask": [number for number, (ids, _) in enumerate(samples, 1) for _ in ids] + [0] * pads,
            "position_ids": [place for ids, _ in samples for place in range(len(ids))] + [0] * pads,
        }


def test_rows_are_multiples_of_eight(packed, tmp_path, repo):
    """Its collator pads to those, and `position_ids` are left as they are."""
    import datasets

    from packer_cli.cli.main import main
    from tests.cli_runner import run

    sample = repo / "examples" / "sample"
    done = run(
        main, "pack", sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--groups", 901, "--gpus", 1,
        "--overflow", "drop", "--workers", 1, "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert export(tmp_path / "out", "llamafactory", tmp_path / "dir").code == 0
    loaded = datasets.load_from_disk(str(tmp_path / "dir"))
    assert {len(values) for row in loaded for values in row.values()} == {904}


def blocks(attention_mask: Any) -> Any:
    """`prepare_4d_attention_mask`: a token sees those of its number, itself and before; pads are seen by none."""
    from tests.tiny_model import block_mask

    return block_mask(attention_mask) & (attention_mask != 0)


def without_pads(row: Tensors) -> Tensors:
    """`_unpad_packed_features`, for FlashAttention 2; the model gets no mask and takes borders from positions."""
    return {name: values[row["attention_mask"] != 0] for name, values in row.items()}


def test_the_loss_is_that_of_the_samples(rows, filled, wanted_loss):
    torch = pytest.importorskip("torch")
    from tests.tiny_model import block_mask, packed_loss, shift

    found, flash, merged = 0.0, 0.0, 0.0
    for row in rows[:NUM_COMPARED]:
        tensors = {name: torch.tensor(values) for name, values in row.items()}
        ids, labels = tensors["input_ids"], shift(tensors["labels"])
        found += packed_loss(ids, labels, tensors["position_ids"], blocks(tensors["attention_mask"]))[0]
        cut = without_pads(tensors)
        segments = (cut["position_ids"] == 0).cumsum(0)
        flash += packed_loss(cut["input_ids"], shift(cut["labels"]), cut["position_ids"], block_mask(segments))[0]
        # As with rows that have neither column: one segment.
        places = torch.arange(len(ids))
        merged += packed_loss(ids, labels, places, block_mask(torch.zeros_like(places)))[0]
    assert found == pytest.approx(wanted_loss, rel=1e-6)
    assert flash == pytest.approx(wanted_loss, rel=1e-6)
    assert merged != pytest.approx(wanted_loss, rel=1e-4)


@pytest.mark.parametrize("attention", ["eager", "flash_attention_2"])
def test_its_own_collator_takes_it(rows, filled, repo, attention, wanted_loss):
    collator = pytest.importorskip("llamafactory.data.collator", exc_type=Exception)
    template = pytest.importorskip("llamafactory.data.template", exc_type=Exception)
    import torch
    from transformers import AutoTokenizer

    from tests.tiny_model import block_mask, packed_loss, shift

    collate = collator.SFTDataCollatorWith4DAttentionMask(
        tokenizer=AutoTokenizer.from_pretrained(repo / "examples" / "sample" / "tokenizer"),
        template=template.TEMPLATES["default"],
        pad_to_multiple_of=8,
        label_pad_token_id=-100,
        block_diag_attn=True,
        neat_packing=True,
        attn_implementation=attention,
        compute_dtype=torch.float32,
    )
    found = 0.0
    for row, pack in zip(rows[:NUM_COMPARED], filled[:NUM_COMPARED], strict=True):
        batch = collate([dict(row)])
        ids, labels, places = (batch[name][0] for name in ("input_ids", "labels", "position_ids"))
        if attention == "eager":
            mask = batch["attention_mask"]
        else:
            assert batch["attention_mask"] is None
            assert len(ids) == pack["num_tokens"]
            assert np.array_equal(torch.nonzero(places == 0)[:, 0], pack["cu_seqlens"][:-1])
            mask = block_mask((places == 0).cumsum(0))
        found += packed_loss(ids, shift(labels), places, mask)[0]
    assert found == pytest.approx(wanted_loss, rel=1e-6)
