"""Each format is read back, by the real library where one can be installed, and compared with the shards."""

from __future__ import annotations

import itertools
import json
import struct
import warnings
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from packer_cli.format.tokens import TokenizerInfo
from tests.corpus.helpers import read_all
from tests.export.conftest import NUM_COMPARED, export, samples_of
from tests.loader.packed_set import row_checksum
from tests.reference import decode_mds, home, read_mds


def assert_rows(rows: list[list[tuple[list[int], list[int]]]], in_use: list[dict[str, Any]]) -> None:
    """Every row is its pack: the same samples, ids and masks."""
    assert len(rows) == len(in_use)
    for row, pack in zip(rows, in_use, strict=True):
        assert row == samples_of(pack), pack["pack_id"]


# Megatron


def read_indexed(prefix: Path) -> tuple[np.dtype, list[np.ndarray], np.ndarray]:
    """A reader of `.bin/.idx` from the description of the format: dtype, sequences, documents."""
    data = prefix.with_suffix(".idx").read_bytes()
    assert data[:9] == b"MMIDIDX\0\0"
    version, code, num_sequences, num_documents = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1
    dtype = {1: np.dtype("u1"), 4: np.dtype("<i4"), 8: np.dtype("<u2")}[code]
    lengths = np.frombuffer(data, "<i4", num_sequences, 34)
    pointers = np.frombuffer(data, "<i8", num_sequences, 34 + 4 * num_sequences)
    documents = np.frombuffer(data, "<i8", num_documents, 34 + 12 * num_sequences)
    assert len(data) == 34 + 12 * num_sequences + 8 * num_documents
    values = prefix.with_suffix(".bin").read_bytes()
    assert len(values) == int(lengths.sum()) * dtype.itemsize
    sequences = [np.frombuffer(values, dtype, n, at) for n, at in zip(lengths, pointers, strict=True)]
    return dtype, sequences, documents


def test_megatron(exported, in_use):
    folder = exported("megatron")
    dtype, tokens, documents = read_indexed(folder / "tokens")
    mask_dtype, masks, mask_documents = read_indexed(folder / "loss_mask")
    assert (dtype, mask_dtype) == (np.dtype("<u2"), np.dtype("u1"))  # The vocabulary has 1,024 entries.
    assert np.array_equal(documents, mask_documents)
    rows = [
        [(tokens[i].tolist(), masks[i].tolist()) for i in range(begin, end)]
        for begin, end in itertools.pairwise(documents)
    ]
    assert_rows(rows, in_use)


def test_megatron_is_read_by_its_library(exported, in_use):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of what it misses on a machine without a GPU.
        indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    folder = exported("megatron")
    tokens = indexed.IndexedDataset(str(folder / "tokens"))
    masks = indexed.IndexedDataset(str(folder / "loss_mask"))
    assert tokens.index.dtype is indexed.DType.optimal_dtype(1024)
    borders = tokens.document_indices.tolist()
    assert len(tokens) == len(masks) == borders[-1]
    rows = []
    for begin, end in itertools.pairwise(borders):
        pairs = zip(tokens[begin:end], masks[begin:end], strict=True)
        rows.append([(ids.tolist(), mask.tolist()) for ids, mask in pairs])
    assert_rows(rows, in_use)


@pytest.mark.parametrize(("vocab_size", "name"), [(65_499, "uint16"), (65_500, "int32"), (None, "int32")])
def test_the_dtype_is_that_of_megatron(vocab_size, name):
    from packer_cli.export.binary import token_dtype

    manifest = SimpleNamespace(tokenizer=TokenizerInfo(vocab_size=vocab_size))
    assert token_dtype(manifest) == np.dtype(name)


# TRL


def trl_row(row: dict[str, list[int]]) -> list[tuple[list[int], list[int]]]:
    borders = np.concatenate([[0], np.cumsum(row["seq_lengths"])]).tolist()
    assert borders[-1] == len(row["input_ids"]) == len(row["labels"])
    assert all(label in (-100, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
    mask = [int(label != -100) for label in row["labels"]]
    return [(row["input_ids"][a:b], mask[a:b]) for a, b in itertools.pairwise(borders)]


def test_trl(exported, in_use, tmp_path):
    import datasets

    folder = exported("trl")
    loaded = datasets.load_from_disk(str(folder))
    assert loaded.column_names == ["input_ids", "labels", "seq_lengths"]
    assert loaded.split == "train"
    assert_rows([trl_row(row) for row in loaded], in_use)
    files = sorted(map(str, folder.glob("*.arrow")))
    assert len(files) > 1
    again = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(tmp_path))
    assert again[7] == loaded[7]


def test_trl_collates_it(exported, in_use):
    trl = pytest.importorskip("trl.trainer.sft_trainer", exc_type=ImportError)
    import datasets

    loaded = datasets.load_from_disk(str(exported("trl")))
    collator = trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    for i in (0, 1, len(in_use) - 1):
        batch = collator([loaded[i]])
        borders = in_use[i]["cu_seqlens"]
        position_ids = batch["position_ids"][0].numpy()
        assert np.array_equal(np.flatnonzero(position_ids == 0), borders[:-1])
        assert np.array_equal(batch["input_ids"][0], in_use[i]["input_ids"])
        assert np.array_equal(batch["labels"][0] != -100, in_use[i]["loss_mask"] == 1)


def test_trl_loses_no_borders(packed, tmp_path, wanted_loss):
    """The loss of transformers' own masks, which it makes of the position ids that TRL's collator makes."""
    trl = pytest.importorskip("trl.trainer.sft_trainer", exc_type=ImportError)
    import datasets
    import torch

    from tests.tiny_model import tiny_llama

    assert export(packed, "trl", tmp_path / "dir", "--groups", "1k").code == 0
    loaded = datasets.load_from_disk(str(tmp_path / "dir"))
    collator = trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    found, merged = 0.0, 0.0
    for i in range(NUM_COMPARED):
        batch = collator([loaded[i]])
        batch.pop("seq_idx", None)
        with torch.no_grad():
            count = (batch["labels"] != -100).sum()
            found += float(tiny_llama()(**batch, use_cache=False).loss * count)
            merged += float(tiny_llama()(**{**batch, "position_ids": None}, use_cache=False).loss * count)
    assert found == pytest.approx(wanted_loss, rel=1e-5)
    assert merged != pytest.approx(wanted_loss, rel=1e-4)


def test_unsloth_keeps_its_samples_apart(exported, in_use):
    """Its own metadata and mask of the rows, as its SFTTrainer makes them with `padding_free=True`.

    Only that module is loaded: the package needs a GPU.
    """
    trl = pytest.importorskip("trl.trainer.sft_trainer", exc_type=ImportError)
    import datasets
    import torch

    found = find_spec("unsloth")
    if found is None or found.origin is None:
        pytest.skip("unsloth is not installed")
    spec = spec_from_file_location("unsloth_packing", Path(found.origin).parent / "utils/packing.py")
    assert spec is not None
    assert spec.loader is not None
    unsloth = module_from_spec(spec)
    spec.loader.exec_module(unsloth)
    loaded = datasets.load_from_disk(str(exported("trl")))
    trainer = SimpleNamespace(
        data_collator=trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True), args=SimpleNamespace()
    )
    unsloth.enable_padding_free_metadata(torch.nn.Module(), trainer)
    for i in (0, len(in_use) - 1):
        batch = trainer.data_collator([loaded[i]])
        lengths = np.diff(in_use[i]["cu_seqlens"])
        assert batch["packed_seq_lengths"].tolist() == lengths.tolist()
        info = unsloth.get_packed_info_from_kwargs(batch, torch.device("cpu"))
        assert np.array_equal(info[1], in_use[i]["cu_seqlens"])
        mask = unsloth.build_sdpa_packed_attention_mask(info, dtype=torch.float32, device=torch.device("cpu"))
        number, place = np.repeat(np.arange(len(lengths)), lengths), np.arange(lengths.sum())
        may_see = (number[:, None] == number) & (place[:, None] >= place)
        assert np.array_equal(mask[0, 0].numpy() == 0, may_see)


# Parquet


def test_parquet(exported, in_use, packed):
    """The columns of the shards, but ids are int32 and the loss is a mask."""
    files = sorted(exported("parquet").glob("part-*.parquet"))
    assert len(files) > 1
    table = pa.concat_tables([pq.read_table(file) for file in files])
    shard = next(home(packed).glob("shards/*/*.arrow"))
    schema = pa.ipc.open_file(pa.memory_map(str(shard))).schema
    kinds = {field.name: field.type for field in schema if not field.name.startswith("loss_")}
    kinds |= {"loss_mask": pa.list_(pa.int8()), "input_ids": kinds.pop("input_ids") and pa.list_(pa.int32())}
    assert table.schema.names == [*kinds]
    for field in table.schema:
        assert field.type == kinds[field.name] or field.type.value_type == kinds[field.name].value_type
    rows = table.to_pylist()
    assert len(rows) == len(in_use)
    for row, pack in zip(rows, in_use, strict=True):
        assert row.pop("checksum") == row_checksum(row, table.schema)
        assert row == {name: x.tolist() if isinstance(x := pack[name], np.ndarray) else x for name in row}


def test_parquet_is_read_by_datasets(exported, in_use, tmp_path):
    """A folder of it is a data set: nothing else in it is taken for data."""
    import datasets

    loaded = datasets.load_dataset(str(exported("parquet")), split="train", cache_dir=str(tmp_path))
    assert loaded["pack_id"] == [pack["pack_id"] for pack in in_use]


# MDS


def assert_mds(rows: list[dict[str, Any]], in_use: list[dict[str, Any]]) -> None:
    assert len(rows) == len(in_use)
    for row, pack in zip(rows, in_use, strict=True):
        assert list(row) == ["cu_seqlens", "group", "input_ids", "loss_mask", "pack_id", "sample_ids"]
        for name, value in row.items():
            assert np.array_equal(value, pack[name]), (pack["pack_id"], name)
            wanted = np.int32 if name == "input_ids" else pack[name].dtype if isinstance(value, np.ndarray) else None
            assert not isinstance(value, np.ndarray) or value.dtype == wanted


def test_mds(exported, in_use):
    folder = exported("mds")
    index = json.loads((folder / "index.json").read_text())
    assert index["version"] == 2
    names = [shard["raw_data"]["basename"] for shard in index["shards"]]
    assert names == sorted(path.name for path in folder.glob("*.mds"))
    assert len(names) > 1
    rows = []
    for shard in index["shards"]:
        path = folder / shard["raw_data"]["basename"]
        assert shard["raw_data"]["bytes"] == path.stat().st_size
        assert shard["raw_data"]["hashes"] == {"xxh128": xxhash.xxh128_hexdigest(path.read_bytes())}
        assert shard["zip_data"] is None
        found = read_mds(path, shard)
        assert len(found) == shard["samples"]
        rows += found
    assert_mds(rows, in_use)


def test_mds_lengths_of_one_two_and_four_bytes():
    from packer_cli.export import binary

    lengths = np.array([1, 255, 256, 3, 65_535, 65_536, 2])
    encoded = [binary._encode({"input_ids": np.arange(length, dtype=np.int64)}) for length in lengths]
    sizes = binary._row_sizes({"input_ids": "ndarray:int64"}, lengths, lengths)
    widths = [1, 1, 2, 1, 2, 4, 1]
    assert sizes.tolist() == [4 + 1 + width + 8 * n for n, width in zip(lengths, widths, strict=True)]
    for row, length, size in zip(encoded, lengths, sizes, strict=True):
        assert len(row) == size
        assert int.from_bytes(row[:4], "little") == size - 4
        assert np.array_equal(decode_mds("ndarray:int64", row[4:]), np.arange(length))


def test_mds_is_read_by_its_library(exported, in_use):
    reader = pytest.importorskip("streaming.base.format.mds.reader", exc_type=ImportError)
    folder = exported("mds")
    index = json.loads((folder / "index.json").read_text())
    rows = []
    for shard in index["shards"]:
        opened = reader.MDSReader.from_json(str(folder), "", shard)
        rows += [opened[i] for i in range(opened.samples)]
    assert_mds(rows, in_use)


@pytest.mark.parametrize("name", ["megatron", "trl"])
def test_an_export_is_an_input_again(exported, in_use, name):
    """Its rows are split into the samples that were packed, with their masks."""
    documents, rejects = read_all(exported(name), are_single=False)
    assert not rejects
    found = [(each.input_ids, [int(bit) for bit in each.loss_mask]) for each in documents]
    assert found == [sample for pack in in_use for sample in samples_of(pack)]
