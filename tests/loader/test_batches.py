"""What is in a batch: every token once, in place, with the right positions, labels and borders."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening

from packer_cli.loader import PackedDataset

TOKEN_KEYS = ("input_ids", "labels", "position_ids")
NAMES = ("flash-attn", "transformers")  # test_formats.py has the others


def datasets(packed: Any, **kwargs: Any) -> list[PackedDataset]:
    return [PackedDataset(packed.path, rank, packed.num_gpus, **kwargs) for rank in range(packed.num_gpus)]


def borders(batch: dict[str, Any]) -> list[int]:
    return batch["cu_seq_lens_q" if "cu_seq_lens_q" in batch else "cu_seqlens_q"].tolist()


def whole_rows(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one iteration, put together from the slices of each SP group."""
    rows = []
    for _, members in groupby(batches, key=lambda b: b["dp_rank"]):
        parts = list(members)
        assert [p["sp_rank"] for p in parts] == list(range(parts[0]["sp_size"]))
        row = dict(parts[0])
        for key in (*TOKEN_KEYS, "shift_labels"):
            if key in row:
                row[key] = torch.cat([p[key] for p in parts], dim=-1)
        for part in parts:
            assert len({p["input_ids"].numel() for p in parts}) == 1
            assert part["pack_id"] == row["pack_id"]
            assert torch.equal(part["sample_ids"], row["sample_ids"])
            assert borders(part) == borders(row)
        rows.append(row)
    return rows


def naive_row(pack: Any, length: int, pad: int) -> dict[str, list[int]]:
    """A plain-Python twin of the builder."""
    ids, labels, positions, cu = [], [], [], [0]
    for sample in pack.samples:
        ids += sample.tokens
        labels += [t if m else -100 for t, m in zip(sample.tokens, sample.mask, strict=True)]
        positions += range(len(sample.tokens))
        cu.append(len(ids))
    if len(ids) < length:
        positions += range(length - len(ids))
        labels += [-100] * (length - len(ids))
        ids += [pad] * (length - len(ids))
        cu.append(length)
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "cu": cu}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_every_token_once_and_in_place(packed: Any, name: str, epoch: int) -> None:
    ranks = datasets(packed, format=name, epoch=epoch)
    flat = name == "flash-attn"
    seen: Counter[int] = Counter()
    fillers = 0
    for batches in zip(*ranks, strict=True):
        assert len({(b["step"], b["iteration"], b["dp_size"]) for b in batches}) == 1
        for row in whole_rows(list(batches)):
            tensors = {key: row[key] if flat else row[key][0] for key in TOKEN_KEYS}
            assert all(t.dtype == torch.int64 and t.dim() == 1 for t in tensors.values())
            assert ("shift_labels" in row) == (row["sp_size"] > 1)
            cu, length = borders(row), tensors["input_ids"].numel()
            assert row["max_seqlen_k" if flat else "max_length_k"] == max(np.diff(cu))
            assert "attention_mask" not in row
            if row["pack_id"] < 0:
                fillers += 1
                assert tensors["input_ids"].tolist() == [packed.pad] * 8 * row["sp_size"]
                assert tensors["labels"].unique().tolist() == [-100]
                assert tensors["position_ids"].tolist() == list(range(length))
                assert cu == [0, length]
                assert (row["num_samples"], row["num_loss_tokens"], len(row["sample_ids"])) == (0, 0, 0)
                continue
            pack = packed.packs[row["pack_id"]]
            assert length == -(-pack.num_tokens // row["sp_size"]) * row["sp_size"]
            expected = naive_row(pack, length, packed.pad)
            for key in TOKEN_KEYS:
                assert tensors[key].tolist() == expected[key]
            assert cu == expected["cu"]
            if row["sp_size"] > 1:
                assert row["shift_labels"].flatten().tolist() == [*expected["labels"][1:], -100]
            assert row["sample_ids"].tolist() == [s.id for s in pack.samples]
            assert row["sample_ids"].dtype == torch.int64
            assert row["num_samples"] == len(pack.samples)
            assert row["num_loss_tokens"] == pack.num_loss_tokens
            assert (row["group"], row["checkpoint_layers"]) == (pack.group, pack.group)
            seen.update(row["sample_ids"].tolist())
    assert seen == dict.fromkeys(packed.samples, 1)
    assert fillers > 0, "the set has no filler, so they went untested"


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_gpus=st.sampled_from([1, 2, 4, 8]),
    num_packs=st.lists(st.integers(1, 45), min_size=1, max_size=3),
    epoch=st.integers(0, 3),
    name=st.sampled_from(NAMES),
)
def test_generated_sets_give_every_token_once(
    tmp_path_factory: Any, make_set: Any, seed: int, num_gpus: int, num_packs: list[int], epoch: int, name: str
) -> None:
    groups = [(32 << g, min(1 << g, num_gpus), n) for g, n in enumerate(num_packs)]
    packed = make_set(tmp_path_factory.mktemp("generated"), groups, num_gpus=num_gpus, seed=seed)
    got: dict[int, list[int]] = {}
    for batches in zip(*datasets(packed, format=name, epoch=epoch), strict=True):
        for row in whole_rows(list(batches)):
            ids, cu = row["input_ids"].flatten().tolist(), borders(row)
            for sample, start, stop in zip(row["sample_ids"].tolist(), cu, cu[1:], strict=False):
                assert sample not in got
                got[sample] = ids[start:stop]
    assert got == {s.id: s.tokens for s in packed.samples.values()}


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_global_counts_are_the_sums_of_each_step(packed: Any, epoch: int) -> None:
    samples: Counter[int] = Counter()
    loss_tokens: Counter[int] = Counter()
    claimed: dict[int, set[tuple[int, int]]] = {}
    for ds in datasets(packed, epoch=epoch):
        for batch in ds:
            step = batch["step"]
            claimed.setdefault(step, set()).add((batch["global_num_samples"], batch["global_num_loss_tokens"]))
            if batch["sp_rank"] == 0:
                samples[step] += batch["num_samples"]
                loss_tokens[step] += batch["num_loss_tokens"]
    assert claimed == {step: {(samples[step], loss_tokens[step])} for step in range(ds.num_steps)}


def test_metadata_are_python_ints(packed: Any) -> None:
    batch = PackedDataset(packed.path, 0, 4)[0]
    tensors = {*TOKEN_KEYS, "seq_idx", "shift_labels", "cu_seq_lens_q", "cu_seq_lens_k"}
    tensors |= {"sample_ids", "sample_num_loss_tokens"}
    assert batch.pop("sp_sharding") == "contiguous"
    assert {k: type(v) for k, v in batch.items() if k not in tensors} == dict.fromkeys(
        [
            *("max_length_q", "max_length_k", "group", "sp_size", "sp_rank", "dp_rank", "dp_size"),
            *("cp_size", "cp_rank", "tp_size", "tp_rank", "pp_size", "pp_rank"),
            *("checkpoint_layers", "epoch", "step", "iteration", "num_samples", "num_loss_tokens"),
            *("global_num_packs", "global_num_samples", "global_num_loss_tokens", "pack_id"),
        ],
        int,
    )
    assert batch["cu_seq_lens_q"].dtype == batch["cu_seq_lens_k"].dtype == torch.int32


@pytest.mark.parametrize("pad_to", ["multiple", "row", "capacity"])
@pytest.mark.parametrize("multiple", [1, 6, 16])
def test_padding(packed: Any, pad_to: str, multiple: int) -> None:
    ranks = datasets(packed, pad_to=pad_to, pad_to_multiple_of=multiple, pad_token_id=77)
    for i, batches in enumerate(zip(*ranks, strict=True)):
        slots = packed.epochs[0][i][1]
        longest = max([p.num_tokens for p, _, _ in slots if p is not None], default=0)
        for row, (pack, group, sp) in zip(whole_rows(list(batches)), slots, strict=True):
            least = {"multiple": 0, "row": longest, "capacity": packed.groups[group][0]}[pad_to]
            least = max(least, 8 * sp if pack is None else pack.num_tokens)
            unit = np.lcm(multiple, sp)
            length = -(-least // unit) * unit
            assert row["input_ids"].shape == (1, length)
            if pack is not None:
                expected = naive_row(pack, length, 77)
                assert row["input_ids"][0].tolist() == expected["input_ids"]
                assert row["labels"][0].tolist() == expected["labels"]
                assert row["position_ids"][0].tolist() == expected["position_ids"]
                assert borders(row) == expected["cu"]


def test_unsliced_rows_are_the_slices_put_together(packed: Any) -> None:
    slices = datasets(packed)
    wholes = datasets(packed, sp_slice=False)
    for i in range(len(slices[0])):
        rows = whole_rows([ds[i] for ds in slices])
        for ds in wholes:
            whole = ds[i]
            row = rows[whole["dp_rank"]]
            for key in TOKEN_KEYS:
                assert torch.equal(whole[key], row[key])
            assert ("shift_labels" in whole) == (whole["sp_size"] > 1)
            if whole["sp_size"] > 1:
                assert torch.equal(whole["shift_labels"], row["shift_labels"])
                assert whole["shift_labels"].data_ptr() != whole["labels"].data_ptr() + 8


def test_matches_the_collator_of_transformers(packed: Any) -> None:
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")
    compared = 0
    for ds in datasets(packed):
        for batch in ds:
            if batch["sp_size"] > 1 or batch["pack_id"] < 0:
                continue
            samples = [packed.samples[i] for i in batch["sample_ids"].tolist()]
            expected = collator(
                [
                    {
                        "input_ids": s.tokens,
                        "labels": [t if m else -100 for t, m in zip(s.tokens, s.mask, strict=True)],
                    }
                    for s in samples
                ]
            )
            for key, value in expected.items():
                if isinstance(value, torch.Tensor):
                    assert batch[key].dtype == value.dtype
                    assert torch.equal(batch[key], value)
                else:
                    assert batch[key] == value
                    assert type(batch[key]) is type(value)
            compared += 1
    assert compared > 50


def test_losses_of_slices_add_up_to_the_loss_of_the_row(packed: Any) -> None:
    """With the loss of transformers itself, given both labels as a model passes them on."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    def loss(logits: torch.Tensor, batch: dict[str, Any]) -> float:
        shift = {"shift_labels": batch["shift_labels"]} if "shift_labels" in batch else {}
        return float(ForCausalLMLoss(logits, batch["labels"], 1000, num_items_in_batch=torch.tensor(1), **shift))

    slices, wholes = datasets(packed), datasets(packed, sp_slice=False)
    i = next(i for i, (_, slots) in enumerate(packed.epochs[0]) if slots[0][2] == 4)
    whole = wholes[0][i]
    torch.manual_seed(0)
    logits = torch.randn(1, whole["input_ids"].shape[1], 1000)
    parts = [loss(x, ds[i]) for x, ds in zip(logits.chunk(4, dim=1), slices, strict=True)]
    del whole["shift_labels"]  # now the library shifts by itself, over the whole row
    assert sum(parts) == pytest.approx(loss(logits, whole), rel=1e-5)
    assert sum(parts) > 0


def test_the_pad_token_is_the_given_one_or_the_sets_own(own_set: Any) -> None:
    def pad(**kwargs: Any) -> int:
        batch = PackedDataset(own_set.path, 0, 2, pad_to="capacity", pad_to_multiple_of=64, **kwargs)[0]
        return int(batch["input_ids"][0, -1])

    assert (pad(), pad(pad_token_id=0), pad(pad_token_id=9)) == (1, 0, 9)
    own_set.edit_manifest(tokenizer={"vocab_size": 1000, "pad_token_id": None, "eos_token_id": 2})
    assert pad() == 2
    own_set.edit_manifest(tokenizer={"vocab_size": 1000})
    assert pad() == 0
