"""NeMo's packed Parquet: Megatron-Bridge's own class where it can be imported, and its rules everywhere.

The rules are those of NVIDIA-NeMo/Megatron-Bridge at 067f987 (August 2026), under `data/packing/`: `parquet.py`
(`GPTSFTPackedParquetDataset`), `gpt_sft.py` (`_build_loss_mask`, `collate_fn` with `pad_seq_to_mult` 1).
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.export.conftest import NUM_COMPARED, export, samples_of


def test_nemo(exported, in_use, packed):
    """As NeMo reads it: of each sample all tokens but the last, as labels all but the first, the mask beside both."""
    folder = exported("nemo")
    files = sorted(folder.glob("*.parquet"))
    assert len(files) > 1
    assert all(file.name.endswith(".idx.parquet") for file in files)
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.schema.names == ["input_ids", "loss_mask", "seq_start_id"]
    assert [str(field.type.value_type) for field in table.schema] == ["int32", "int8", "int32"]
    assert pq.read_table(folder).equals(table)
    rows = table.to_pylist()
    assert len(rows) == len(in_use)
    for row, pack in zip(rows, in_use, strict=True):
        assert row["input_ids"] == pack["input_ids"].tolist()
        assert len(row["loss_mask"]) == len(row["input_ids"])
        borders = [*row["seq_start_id"], len(row["input_ids"])]
        assert borders == pack["cu_seqlens"].tolist()
        for (ids, mask), begin, end in zip(samples_of(pack), borders[:-1], borders[1:], strict=True):
            tokens, labels = row["input_ids"][begin : end - 1], row["input_ids"][begin + 1 : end]
            assert (tokens, labels) == (ids[:-1], ids[1:])
            assert row["loss_mask"][begin : end - 1] == mask[1:]
            assert row["loss_mask"][end - 1] == 0


def test_nemo_metadata(exported, in_use):
    lengths = [np.diff(pack["cu_seqlens"]) - 1 for pack in in_use]  # Tokens that the model is given.
    (described,) = json.loads((exported("nemo") / "_metadata.json").read_text())
    sums = np.array([row.sum() for row in lengths])
    assert described == {
        "dataset_max_seqlen": max(int(row.max()) for row in lengths),
        "max_samples_per_bin": max(len(row) for row in lengths),
        "packing_factor": round(sum(len(row) for row in lengths) / len(lengths), 2),
        "packing_efficiency": round(float(sums.mean()) / 8192 * 100, 2),
        "pack_size": 8192,
        "min_packed_seqlen": int(sums.min()),
    }


def collate(row: dict[str, list[int]]) -> dict[str, Any]:
    """A batch of one row: of each sample all tokens but the last, and pads to a multiple of 16 as one more."""
    import torch

    borders = [*row["seq_start_id"], len(row["input_ids"])]
    pairs = list(itertools.pairwise(borders))
    given = sum(end - begin - 1 for begin, end in pairs)
    pads = [0] * (-given % 16)
    cut = {
        "tokens": [token for begin, end in pairs for token in row["input_ids"][begin : end - 1]] + pads,
        "labels": [token for begin, end in pairs for token in row["input_ids"][begin + 1 : end]] + pads,
        "loss_mask": [keep for begin, end in pairs for keep in row["loss_mask"][begin : end - 1]] + pads,
        "position_ids": [place for begin, end in pairs for place in range(end - begin - 1)] + pads,
    }
    lengths = [0, *(end - begin - 1 for begin, end in pairs)]
    batch = {name: torch.tensor([values]) for name, values in cut.items()}
    cu_seqlens = np.cumsum(lengths).tolist() + ([given + len(pads)] if pads else [])
    return {**batch, "cu_seqlens_q": torch.tensor([cu_seqlens])}


def losses(batches: list[dict[str, Any]], *, is_merged: bool = False) -> float:
    """What the model computes of them: attention within `cu_seqlens_q`, a loss where `loss_mask` is 1."""
    import torch

    from tests.tiny_model import block_mask, packed_loss, segments_of

    total = 0.0
    for batch in batches:
        ids, places = batch["tokens"][0], batch["position_ids"][0]
        targets = torch.where(batch["loss_mask"][0] > 0, batch["labels"][0], -100)
        segments = segments_of(batch["cu_seqlens_q"][0], len(ids))
        total += packed_loss(ids, targets, places, block_mask(segments * 0 if is_merged else segments))[0]
    return total


@pytest.fixture(scope="session")
def alone(packed, tmp_path_factory):
    """The group with a capacity of 1,024 alone: rows of models that need no long while."""
    output = tmp_path_factory.mktemp("nemo-1k") / "dir"
    assert export(packed, "nemo", output, "--groups", "1k").code == 0
    return output


def test_the_loss_is_that_of_the_samples(alone, wanted_loss):
    batches = [collate(row) for row in pq.read_table(alone).to_pylist()[:NUM_COMPARED]]
    assert losses(batches) == pytest.approx(wanted_loss, rel=1e-6)
    assert losses(batches, is_merged=True) != pytest.approx(wanted_loss, rel=1e-4)


def test_its_own_class_reads_it(alone, filled, wanted_loss):
    module = pytest.importorskip("megatron.bridge.data.packing.parquet", exc_type=Exception)

    unused = {"prompt_template": "{text} {output}", "label_key": "output"}  # It checks them all the same.

    class Tokenizer:
        eos_id = eod = 2

    path = str(alone / "training-*.idx.parquet")
    dataset = module.GPTSFTPackedParquetDataset(path, Tokenizer(), max_seq_length=1024, **unused)
    assert len(dataset) == len(filled)
    batches = [dataset.collate_fn([dataset[i]]) for i in range(NUM_COMPARED)]
    for batch, row in zip(batches, pq.read_table(alone).to_pylist(), strict=False):
        assert np.array_equal(batch["cu_seqlens_q"], collate(row)["cu_seqlens_q"])
    assert losses(batches) == pytest.approx(wanted_loss, rel=1e-6)
