"""Each format gives what its trainer takes, by name, shape and dtype, and nothing that the trainer chokes on."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.data import DataLoader

from packer_cli.loader import FORMATS, PackedDataset, metadata_of
from packer_cli.loader.parallel import merge_slices, take_slice
from tests.loader.trees import FLAT_FORMATS

KEYS = {
    "transformers": {"input_ids", "labels", "position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k",
                     "max_length_q", "max_length_k"},
    "flash-attn": {"input_ids", "labels", "position_ids", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q",
                   "max_seqlen_k"},
    "torchtitan": {"input", "positions"},
    "megatron": {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen", "packed_seq_params",
                 "total_tokens", "local_cp_size"},
    "megatron-thd": {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "cu_seqlens_padded", "max_seqlen",
                     "local_cp_size"},
    "deepspeed": {"input_ids", "position_ids", "shift_labels"},
    "torchtune": {"tokens", "labels", "input_pos", "mask"},
}  # fmt: skip
OPEN = {"transformers", "flash-attn", "megatron", "megatron-thd"}  # the metadata are keys too
SLICED = {"transformers", "flash-attn", "deepspeed"}  # by default


def open_set(packed: Any, name: str, rank: int = 0, **kwargs: Any) -> PackedDataset:
    return PackedDataset(packed.path, rank, packed.num_gpus, format=name, **kwargs)


def tokens(name: str, batch: Any) -> dict[str, torch.Tensor]:
    """Ids, positions and what each token predicts, flat."""
    if name == "torchtitan":
        inputs, labels = batch
        found = (inputs["input"], inputs["positions"], labels)
    else:
        ids, positions = {
            "megatron": ("tokens", "position_ids"),
            "megatron-thd": ("tokens", "position_ids"),
            "torchtune": ("tokens", "input_pos"),
        }.get(name, ("input_ids", "position_ids"))
        labels = batch["shift_labels"] if "shift_labels" in batch else batch["labels"]
        if name in ("transformers", "flash-attn") and "shift_labels" not in batch:
            labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
        found = (batch[ids], batch[positions], labels)
    assert all(x.dtype == torch.int64 for x in found)
    return dict(zip(("ids", "positions", "predicts"), (x.flatten() for x in found), strict=True))


def test_the_registry_is_covered() -> None:
    assert set(FLAT_FORMATS) == set(KEYS)
    assert {name for name in FLAT_FORMATS if FORMATS[name].sp_slice} == SLICED


@pytest.mark.parametrize("name", sorted(KEYS))
def test_keys_and_metadata(packed: Any, name: str) -> None:
    plain, ds = open_set(packed, "transformers"), open_set(packed, name)
    degrees = set()
    for wanted, batch in zip(plain, ds, strict=True):
        known = metadata_of(batch)
        keys = KEYS[name] | (known.keys() - {"cu_seqlens"} if name in OPEN else set())
        if known["sp_size"] > 1:
            keys = keys | {"transformers": {"shift_labels"}, "flash-attn": {"shift_labels"},
                           "megatron": {"cu_seqlens_padded"}}.get(name, set())  # fmt: skip
        assert set(batch[0] if name == "torchtitan" else batch) == keys
        assert known.keys() - wanted.keys() == {"cu_seqlens"}
        for key in known.keys() - {"cu_seqlens", "sp_sharding"}:
            assert torch.equal(torch.as_tensor(known[key]), torch.as_tensor(wanted[key])), key
        assert known["cu_seqlens"].dtype == torch.int32
        degrees.add(known["sp_size"])
    assert degrees == {1, 2, 4}


@pytest.mark.parametrize("name", sorted(KEYS))
def test_slices_make_up_the_row_and_rows_hold_the_samples(packed: Any, name: str) -> None:
    ranks = [open_set(packed, name, rank, epoch=1, sp_slice=True) for rank in range(packed.num_gpus)]
    wholes = [open_set(packed, name, rank, epoch=1, sp_slice=False) for rank in range(packed.num_gpus)]
    seen = fillers = 0
    for i in range(len(ranks[0])):
        slices = [ds[i] for ds in ranks]
        for rank, ds in enumerate(wholes):
            known = metadata_of(slices[rank])
            if known["sp_rank"]:
                continue
            row, size, borders = tokens(name, ds[i]), known["sp_size"], known["cu_seqlens"]
            parts = [tokens(name, batch) for batch in slices[rank : rank + size]]
            for key, whole in row.items():
                assert torch.equal(merge_slices([p[key] for p in parts], borders, known["sp_sharding"]), whole)
            if known["pack_id"] < 0:
                fillers += 1
                assert (row["predicts"] == -100).all()
                continue
            starts = borders.tolist()
            for sample_id, start in zip(known["sample_ids"].tolist(), starts, strict=False):
                sample = packed.samples[sample_id]
                stop = start + len(sample.tokens)
                assert row["ids"][start:stop].tolist() == sample.tokens
                assert row["positions"][start:stop].tolist() == list(range(stop - start))
                labels = [t if m else -100 for t, m in zip(sample.tokens, sample.mask, strict=True)]
                assert row["predicts"][start:stop].tolist() == [*labels[1:], -100]
                seen += 1
            assert int((row["predicts"] != -100).sum()) == known["num_loss_tokens"]
            assert known["sample_num_loss_tokens"].tolist() == [
                sum(packed.samples[i].mask) for i in known["sample_ids"].tolist()
            ]
    assert seen == len(packed.samples)
    assert fillers


def test_torchtitan_finds_the_documents(packed: Any) -> None:
    """As its `create_varlen_metadata_for_document` does; one document is one sample or the padding."""
    padded = 0
    for batch in open_set(packed, "torchtitan", pad_to_multiple_of=8):
        inputs, labels = batch
        starts = (inputs["positions"] == 0).nonzero(as_tuple=True)[0].to(torch.int32)
        known = metadata_of(batch)
        borders = torch.cat([starts, torch.tensor([len(labels)], dtype=torch.int32)])
        assert torch.equal(borders, known["cu_seqlens"])
        assert inputs["input"].shape == inputs["positions"].shape == labels.shape
        assert labels.dim() == 1
        assert known["sp_size"] == 1 or len(labels) % (2 * known["sp_size"]) == 0
        padded += len(borders) - 1 > known["num_samples"] > 0
    assert padded


def test_torchtitan_releases_that_want_a_batch_dimension(packed: Any) -> None:
    (inputs, labels), plain = (
        next(iter(DataLoader(open_set(packed, "torchtitan"), batch_size=1))),
        open_set(packed, "torchtitan")[0],
    )
    assert torch.equal(labels, plain[1][None])
    assert torch.equal(inputs["input"], plain[0]["input"][None])


def test_megatron_aligns_samples_where_rows_are_shared(packed: Any) -> None:
    aligned = 0
    for batch in open_set(packed, "megatron"):
        size = batch["sp_size"]
        length = batch["tokens"].shape[1]
        assert batch["tokens"].shape == batch["labels"].shape == batch["loss_mask"].shape == (1, length)
        assert batch["loss_mask"].dtype == torch.float32
        assert torch.equal(batch["loss_mask"] == 1, batch["labels"] != -100)
        assert int(batch["loss_mask"].sum()) == batch["num_loss_tokens"]
        params = batch["packed_seq_params"]
        padded = params["cu_seqlens_q"]
        assert params["cu_seqlens_kv"] is padded
        assert padded.dtype == batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == torch.int32
        assert padded[-1] == length
        assert params["max_seqlen_q"] == params["max_seqlen_kv"] == batch["max_seqlen"].item() == padded.diff().max()
        assert params["local_cp_size"] == size, "degrees differ in this set, so each row names its own"
        assert batch["local_cp_size"].dtype == torch.int32
        assert batch["local_cp_size"].tolist() == [size]
        if size == 1:
            # Other tensor-parallel ranks get no `cu_seqlens_padded` then, so `cu_seqlens` must say it all.
            assert torch.equal(batch["cu_seqlens"][0], padded)
            continue
        assert torch.equal(batch["cu_seqlens_padded"][0], padded)
        assert params["cu_seqlens_q_padded"] is params["cu_seqlens_kv_padded"] is padded
        assert (padded % (2 * size) == 0).all()
        real = batch["cu_seqlens"][0].diff()
        n = batch["num_samples"]
        lengths = [len(packed.samples[i].tokens) for i in batch["sample_ids"].tolist()]
        assert real.tolist() == lengths + [0] * (len(padded) - 1 - n)
        assert ((padded.diff()[:n] - real[:n]) < 2 * size).all()
        aligned += bool((padded.diff()[:n] > real[:n]).any())
    assert aligned


def test_megatron_slices_name_their_degree(packed: Any) -> None:
    for batch in open_set(packed, "megatron", sp_slice=True):
        params = batch["packed_seq_params"]
        assert params["local_cp_size"] == batch["sp_size"]
        assert batch["tokens"].shape[1] * batch["sp_size"] == params["cu_seqlens_q"][-1]


@pytest.mark.parametrize("degree", [1, 2])
def test_megatron_names_no_degree_where_all_are_equal(make_set: Any, tmp_path: Path, degree: int) -> None:
    """Its static groups are right then, and multi-latent attention refuses `local_cp_size`."""
    equal = make_set(tmp_path / "set", [(64, degree, 9), (128, degree, 9)], num_gpus=2, num_epochs=1)
    for batch in open_set(equal, "megatron"):
        assert "local_cp_size" not in batch
        assert "local_cp_size" not in batch["packed_seq_params"]
    for batch in open_set(equal, "megatron", sp_slice=True):
        assert batch["packed_seq_params"].get("local_cp_size") == (degree if degree > 1 else None)
    assert all(batch["local_cp_size"].tolist() == [degree] for batch in open_set(equal, "megatron-thd"))


def test_megatron_core_takes_the_parameters(packed: Any) -> None:
    params = pytest.importorskip("megatron.core.packed_seq_params").PackedSeqParams
    for batch in open_set(packed, "megatron", sp_slice=True):
        made = params(**batch["packed_seq_params"])
        assert made.qkv_format == "thd"
        assert made.local_cp_size == batch["sp_size"]
        assert {field.name for field in dataclasses.fields(params)} >= batch["packed_seq_params"].keys()


def deepspeed_adapter(row: dict[str, torch.Tensor], rank: int, size: int) -> dict[str, torch.Tensor]:
    """What `UlyssesSPDataLoaderAdapter.refill` makes of one row for one rank."""
    batch = dict(row)
    labels = torch.nn.functional.pad(batch.pop("labels"), (0, 1), value=-100)
    batch["shift_labels"] = labels[..., 1:].contiguous()
    chunk = batch["input_ids"].shape[1] // size
    assert all(x.shape[1] == batch["input_ids"].shape[1] for x in batch.values())
    return {key: x[:, chunk * rank : chunk * (rank + 1)] for key, x in batch.items()}


def test_deepspeed_gets_what_its_own_adapter_would_make(packed: Any) -> None:
    for rank in range(packed.num_gpus):
        for batch, row in zip(
            open_set(packed, "deepspeed", rank), open_set(packed, "transformers", rank, sp_slice=False), strict=True
        ):
            plain = {key: row[key] for key in ("input_ids", "position_ids", "labels")}
            wanted = deepspeed_adapter(plain, row["sp_rank"], row["sp_size"])
            assert batch.keys() == wanted.keys()
            assert all(torch.equal(batch[key], wanted[key]) for key in wanted)


def test_torchtune_can_move_the_batch_and_call_the_model(packed: Any) -> None:
    """`batch_to_device` knows tensors and block masks only; the recipe then calls ``model(**batch)``."""
    for batch in open_set(packed, "torchtune"):
        for key, value in list(batch.items()):
            assert isinstance(value, (torch.Tensor, BlockMask))
            batch[key] = value.to("cpu")
        batch.pop("labels")
        assert batch.keys() == {"tokens", "mask", "input_pos"}
        length = batch["tokens"].shape[1]
        assert batch["mask"].shape == (1, 1, length, length)
        assert metadata_of(batch)["cu_seqlens"][-1] == length


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", sorted(KEYS))
def test_metadata_come_through_a_loader(packed: Any, name: str, workers: int) -> None:
    ds = open_set(packed, name)
    loader = DataLoader(torch.utils.data.Subset(ds, range(6)), batch_size=None, num_workers=workers)
    for i, batch in enumerate(loader):
        assert metadata_of(batch)["iteration"] == i
        assert all(
            torch.equal(x, y) for x, y in zip(tokens(name, batch).values(), tokens(name, ds[i]).values(), strict=True)
        )
    copied = pickle.loads(pickle.dumps(ds[0]))
    assert metadata_of(copied)["pack_id"] == metadata_of(ds[0])["pack_id"]


@pytest.mark.parametrize("name", sorted(KEYS))
def test_metadata_of_a_batch_that_a_framework_rebuilt(packed: Any, name: str) -> None:
    """accelerate and Lightning move a mapping by `type(batch)({...})`."""
    for batch in open_set(packed, name):
        first = batch[0] if name == "torchtitan" else batch
        rebuilt = type(first)({key: value for key, value in first.items()})  # noqa: C416
        assert rebuilt.keys() == first.keys()
        if name not in OPEN:
            with pytest.raises(TypeError, match="has no metadata"):
                metadata_of(rebuilt)
            continue
        known, wanted = metadata_of(rebuilt), metadata_of(batch)
        assert known.keys() >= wanted.keys()
        assert all(torch.equal(torch.as_tensor(known[key]), torch.as_tensor(wanted[key])) for key in wanted
                   if key != "sp_sharding")  # fmt: skip
        assert known["sp_sharding"] == wanted["sp_sharding"]


def test_what_has_no_metadata() -> None:
    for batch in ({"input_ids": 1}, (1, 2), ()):
        with pytest.raises(TypeError) as error:
            metadata_of(batch)
        assert str(error.value) == (
            f"this {type(batch).__name__} has no metadata: call metadata_of on a batch of PackedDataset or its "
            "DataLoader, before a framework copies it"
        )


def test_a_list_of_micro_batches_has_no_metadata_of_its_own(packed: Any) -> None:
    """That of the first would be wrong for the others. A DataLoader makes a list of torchtitan's pair, too."""
    one, other = open_set(packed, "transformers")[0], open_set(packed, "transformers")[1]
    with pytest.raises(TypeError) as error:
        metadata_of([one, other])
    assert str(error.value) == (
        "this is a list of micro-batches (2), as lockstep=False gives them: call metadata_of on each of them"
    )
    pair = open_set(packed, "torchtitan")[0]
    assert metadata_of([*pair]) is metadata_of(pair)
    with pytest.raises(TypeError, match=r"this is a list of micro-batches \(1\)"):
        metadata_of([[*pair]])


def test_take_slice_is_what_the_loader_does(packed: Any) -> None:
    for sharding in ("contiguous", "zigzag", "document"):
        for rank in range(4):
            ds = open_set(packed, "flash-attn", rank, sp_sharding=sharding)
            whole = open_set(packed, "flash-attn", rank, sp_sharding=sharding, sp_slice=False)
            for part, row in zip(ds, whole, strict=True):
                if part["sp_size"] > 1:
                    for key in ("input_ids", "position_ids", "labels", "shift_labels"):
                        wanted = take_slice(row[key], row["cu_seqlens_q"], row["sp_size"], row["sp_rank"], sharding)
                        assert torch.equal(part[key], wanted)
