"""Rows of trees against the branches themselves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.loader.formats import metadata_of
from tests.loader.trees import PAD, batch_of, items
from tests.naive.trees import Branch, pack_of, plant, sees

WEIGHTED = st.booleans().flatmap(lambda is_weighted: st.tuples(st.just(is_weighted), items((0, 1, 0.5, 2))))


@settings(max_examples=150, deadline=None)
@given(WEIGHTED, st.integers(1, 8))
def test_a_batch_holds_every_branch(given: tuple[bool, list[list[Branch]]], multiple: int) -> None:
    is_weighted, trees = given
    row, branches = plant(trees), [branch for item in trees for branch in item]
    pack = pack_of(trees, is_weighted=is_weighted)
    batch = batch_of(pack, pad_to_multiple_of=multiple, is_weighted=is_weighted)
    length = batch["input_ids"].shape[1]
    tail = length - len(row.input_ids)
    assert 0 <= tail < multiple
    assert length % multiple == 0
    assert batch["input_ids"][0].tolist() == [*row.input_ids, *[PAD] * tail]
    depths, weights = [*[0] * len(row.input_ids), *range(tail)], [0.0] * length
    labels, terms = [-100] * length, []
    for b, (branch, places) in enumerate(zip(branches, row.places, strict=True)):
        for depth, place in enumerate(places):
            depths[place] = depth
            weight = branch.weights[depth] if is_weighted else float(branch.weights[depth] > 0)
            if weight:
                labels[places[depth - 1]] = branch.tokens[depth]
                weights[places[depth - 1]] += weight
                terms.append((places[depth - 1], b))
    assert batch["position_ids"][0].tolist() == depths
    assert batch["shift_labels"][0].tolist() == labels
    assert batch["loss_weights"].tolist() == weights
    assert [*zip(batch["token_index"].tolist(), batch["segment_id"].tolist(), strict=True)] == terms
    assert batch["last_index"].tolist() == [places[-1] for places in row.places]
    assert batch["branch_roles"].tolist() == [role for item in trees for role in range(len(item))]
    assert batch["item_ids"].tolist() == [i for i, item in enumerate(trees) for _ in item]
    known = metadata_of(batch)
    assert known["sample_num_loss_tokens"].tolist() == [sum(w > 0 for w in branch.weights) for branch in branches]
    assert known["num_loss_tokens"] == len(terms)
    assert ("loss_weight" in known) == is_weighted
    if is_weighted:
        assert known["loss_weight"] == sum(weights)
    roots = [0, *(stop for stop, parent in zip(row.segment_starts[1:], [*row.segment_parents[1:], -1], strict=True)
                  if parent < 0), *[length] * (tail > 0)]  # fmt: skip
    assert known["cu_seqlens"].tolist() == roots
    for name in ("tree_kv_index", "token_index", "segment_id", "last_index"):
        assert batch[name].dtype == torch.int64, name
    assert batch["tree_cu_seqlens_q"].dtype == batch["tree_cu_seqlens_k"].dtype == torch.int32
    assert batch["loss_weights"].dtype == torch.float32


def seen_by_paths(batch: Any) -> np.ndarray:
    """bool [N, N]: what a varlen kernel lets q see."""
    length = batch["input_ids"].shape[1]
    found = np.zeros((length, length), dtype=np.bool_)
    queries, keys = (batch[f"tree_cu_seqlens_{x}"].tolist() for x in "qk")
    assert queries[0] == keys[0] == 0
    assert queries[-1] == length
    for (begin, end), (first, last) in zip(pairwise(queries), pairwise(keys), strict=True):
        path = batch["tree_kv_index"][first:last].numpy()
        for q in range(begin, end):
            found[q, path[: len(path) - (end - 1 - q)]] = True
    assert batch["tree_max_seqlen_q"] == max(b - a for a, b in pairwise(queries))
    assert batch["tree_max_seqlen_k"] == max(b - a for a, b in pairwise(keys))
    return found


@settings(max_examples=100, deadline=None)
@given(items(), st.integers(1, 8), st.sampled_from([2, 3, 8, 128]))
def test_a_token_sees_what_it_saw_in_its_branches(trees: list[list[Branch]], multiple: int, block: int) -> None:
    row, pack = plant(trees), pack_of(trees)
    batch = batch_of(pack, pad_to_multiple_of=multiple)
    length, real = batch["input_ids"].shape[1], len(row.input_ids)
    wanted = np.zeros((length, length), dtype=np.bool_)
    wanted[:real, :real] = sees(row)
    wanted[real:, real:] = np.tri(length - real, dtype=np.bool_)
    assert np.array_equal(seen_by_paths(batch), wanted)
    # No more keys than flat samples would have, of which equal ones are there once.
    flat = {tuple(places) for places in row.places}
    assert len(batch["tree_kv_index"]) == sum(map(len, flat)) + length - real
    mask = batch_of(pack, "tree-flex", pad_to_multiple_of=multiple)["attention_mask"]
    place = torch.arange(length)
    assert np.array_equal(mask.mask_mod(0, 0, place[:, None], place[None]).numpy(), wanted)


@settings(max_examples=60, deadline=None)
@given(items(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 6]))
def test_ranks_share_a_row(trees: list[list[Branch]], sp_size: int, multiple: int) -> None:
    pack = pack_of(trees)
    whole = batch_of(pack, sp_size=sp_size, sp_slice=False, pad_to_multiple_of=multiple)
    parts = [batch_of(pack, sp_size=sp_size, place=i, pad_to_multiple_of=multiple) for i in range(sp_size)]
    for name in ("input_ids", "position_ids", "shift_labels"):
        assert torch.equal(torch.cat([part[name] for part in parts], 1), whole[name]), name
    assert torch.equal(torch.cat([part["loss_weights"] for part in parts]), whole["loss_weights"])
    part_length = parts[0]["input_ids"].shape[1]
    terms, lasts = [], [-1] * len(whole["last_index"])
    for rank, part in enumerate(parts):
        start = rank * part_length
        terms += [
            (i + start, s) for i, s in zip(part["token_index"].tolist(), part["segment_id"].tolist(), strict=True)
        ]
        for branch, place in enumerate(part["last_index"].tolist()):
            if place >= 0:
                assert lasts[branch] == -1
                lasts[branch] = place + start
        for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k", "cu_seqlens", "segment_starts"):
            assert torch.equal(part[name], whole[name]), name
    wanted = zip(whole["token_index"].tolist(), whole["segment_id"].tolist(), strict=True)
    assert sorted(terms) == sorted(wanted)
    assert lasts == whole["last_index"].tolist()


def test_a_filler_is_one_root_of_padding() -> None:
    batch = batch_of(None, sp_size=2)
    assert batch["input_ids"].tolist() == [[PAD] * 8]
    assert batch["tree_kv_index"].tolist() == [*range(16)]
    assert batch["tree_cu_seqlens_q"].tolist() == batch["tree_cu_seqlens_k"].tolist() == [0, 16]
    for name in ("token_index", "segment_id", "last_index", "branch_roles", "item_ids"):
        assert batch[name].shape == (0,), name
    assert not batch["loss_weights"].any()
    assert batch_of(None, "tree-flex")["attention_mask"].shape == (1, 1, 8, 8)
    assert batch_of(None, "pairs")["cu_seq_lens_q"].tolist() == [0, 8]


PAIRS = [
    [Branch([5, 6, 7], [0, 0, 1]), Branch([5, 6, 8, 9], [0, 0, 1, 1])],
    [Branch([1, 2], [0, 1]), Branch([3, 4], [0, 1])],
]


def test_pairs_are_flat_and_chosen_first() -> None:
    pack = pack_of(PAIRS, margin=np.array([0.5, np.nan], np.float32))
    pack = pack._replace(rewards=np.array([1, 2, 3, 4], np.float32))
    batch = batch_of(pack, "pairs", pad_to_multiple_of=4)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 1, 2, 5, 6, 8, 9, 3, 4, PAD]]
    assert batch["labels"].tolist() == [[-100, -100, 7, -100, 2, -100, -100, 8, 9, -100, 4, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 1, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 9, 11, 12]
    assert batch["branch_roles"].tolist() == [0, 0, 1, 1]
    assert batch["item_ids"].tolist() == [0, 1, 0, 1]
    assert batch["sample_ids"].tolist() == [0, 2, 1, 3]
    assert batch["rewards"].tolist() == [1, 3, 2, 4]
    assert batch["margin"][0] == 0.5
    assert batch["margin"].isnan().tolist() == [False, True]
    assert batch["sample_num_loss_tokens"].tolist() == [1, 1, 2, 1]
