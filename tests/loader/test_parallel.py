"""Who holds which tokens: every token once, the same number on every rank, and what each sharding promises."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.format.layout import Layout
from packer_cli.format.ranks import RankRow
from packer_cli.loader import PackedDataset
from packer_cli.loader.batch import BatchBuilder
from packer_cli.loader.parallel import (
    SHARDINGS,
    local_indices,
    merge_slices,
    packed_attention,
    ring_attention,
    row_order,
    take_slice,
    ulysses_attention,
)
from packer_cli.loader.parallel.sharding import length_multiple
from packer_cli.loader.shards import Pack
from tests.naive import loss_spans


def naive(lengths: list[int], sp_size: int, sharding: str) -> list[list[int]]:
    """The parts, dealt token by token."""
    parts: list[list[int]] = [[] for _ in range(sp_size)]
    chunks = [*range(sp_size), *reversed(range(sp_size))]  # the rank of each chunk
    start = turn = 0
    for length in lengths if sharding == "document" else [sum(lengths)]:
        if sharding == "contiguous":
            for i in range(length):
                parts[i // (length // sp_size)].append(i)
            continue
        size = length // (2 * sp_size)
        for chunk, rank in enumerate(chunks):
            parts[rank] += range(start + chunk * size, start + (chunk + 1) * size)
        for i in range(start + 2 * sp_size * size, start + length):
            parts[turn % sp_size].append(i)
            turn += 1
        start += length
    return parts


rows = st.tuples(
    st.lists(st.integers(1, 70), min_size=1, max_size=8),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from(SHARDINGS),
)


@settings(max_examples=300, deadline=None)
@given(rows)
def test_parts_agree_with_a_deal_token_by_token(row: Any) -> None:
    lengths, sp_size, sharding = row
    multiple = length_multiple(sharding, sp_size)
    tail = -sum(lengths) % multiple
    lengths = [*lengths, tail] if tail else lengths
    borders = np.cumsum([0, *lengths]).astype(np.int32)
    parts = [local_indices(borders, sp_size, rank, sharding) for rank in range(sp_size)]
    assert [part.tolist() for part in parts] == naive(lengths, sp_size, sharding)
    assert {len(part) for part in parts} == {sum(lengths) // sp_size}
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)

    whole = torch.arange(2 * sum(lengths)).reshape(2, -1)
    cu = torch.from_numpy(borders)
    slices = [take_slice(whole, cu, sp_size, rank, sharding) for rank in range(sp_size)]
    assert all(torch.equal(x[0], torch.from_numpy(part)) for x, part in zip(slices, parts, strict=True))
    assert torch.equal(merge_slices(slices, cu, sharding), whole)
    assert np.array_equal(np.concatenate(parts)[row_order(borders, sp_size, sharding)], np.arange(sum(lengths)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from([1, 2, 4]))
def test_the_document_sharding_is_transformer_engines_where_samples_are_aligned(chunks: list[int], cp: int) -> None:
    """Against `thd_partition_indices_kernel`, line by line."""
    borders = np.cumsum([0, *(2 * cp * chunk for chunk in chunks)])
    for rank in range(cp):
        local = borders // cp
        wanted = []
        for token in range(int(borders[-1]) // cp):
            sequence = int(np.searchsorted(local, token, side="right")) - 1
            length = int(local[sequence + 1] - local[sequence])
            index = token - int(local[sequence])
            offset = rank if index < length // 2 else (cp - 1) * 2 - rank
            wanted.append(index + int(local[sequence]) * cp + length // 2 * offset)
        assert local_indices(borders, cp, rank, "document").tolist() == wanted


def causal_work(lengths: list[int], indices: np.ndarray) -> int:
    borders = np.cumsum([0, *lengths])
    return int((indices - borders[np.searchsorted(borders, indices, side="right") - 1] + 1).sum())


def test_what_each_sharding_balances() -> None:
    """Causal work of the busiest rank over the mean, one long sample and a pack."""

    def imbalance(lengths: list[int], sharding: Any, sp_size: int = 4) -> float:
        borders = np.cumsum([0, *lengths])
        work = [causal_work(lengths, local_indices(borders, sp_size, r, sharding)) for r in range(sp_size)]
        return max(work) / np.mean(work)

    long, pack = [4096], [3000, 1, 60, 500, 535]
    assert imbalance(long, "contiguous") > 1.7
    assert imbalance(long, "zigzag") < 1.001
    assert imbalance(pack, "zigzag") > 1.3
    assert imbalance(pack, "document") < 1.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 6], 4, 0, "document"), "of 6 tokens cannot be split as 'document' over 4 ranks: pad it to a multiple of 4"),  # noqa: E501
        (([0, 12], 4, 0, "zigzag"), "of 12 tokens cannot be split as 'zigzag' over 4 ranks: pad it to a multiple of 8"),  # noqa: E501
        (([0, 8], 4, 4, "zigzag"), "sp_rank is 4: it must be from 0 to 3"),
        (([0, 8], 4, 0, "ring"), "unknown sharding 'ring': choose one of contiguous, zigzag, document"),
    ],
)  # fmt: skip
def test_errors(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        local_indices(*arguments)
    assert str(error.value).removeprefix("a row ") == message


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    sp_size=st.sampled_from([1, 2, 3, 4, 8]),
    multiple=st.integers(1, 9),
    sharding=st.sampled_from([*SHARDINGS, "planned"]),
    align=st.booleans(),
    planned=st.integers(0, 1),
)
def test_parts_of_a_batch_are_parts_of_its_whole_row(
    lengths: list[int], seed: int, sp_size: int, multiple: int, sharding: Any, align: bool, planned: int
) -> None:
    """Tokens, positions and both labels: made for the whole row, and only then taken apart."""
    rng = np.random.default_rng(seed)
    num_tokens = sum(lengths)
    ids = rng.integers(0, 100, num_tokens).astype(rng.choice(["uint16", "int32"]))
    # Ones at first tokens too, which the format forbids: they must not come through.
    mask = rng.integers(0, 2, num_tokens).tolist()
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of_samples(mask, lengths))
    pack = Pack(0, 0, ids, starts, stops, np.cumsum([0, *lengths]).astype(np.int32), np.arange(len(lengths)), planned)

    def build(sp_slice: bool, sp_rank: int) -> Any:
        builder = BatchBuilder(
            pad_to="multiple",
            pad_to_multiple_of=multiple,
            pad_token_id=7,
            sp_slice=sp_slice,
            capacities=(64,),
            layouts=(Layout(sp=sp_size),),
            sp_sharding=sharding,
            align_samples=align,
        )
        return builder.build(pack, RankRow(0, 0, 0, 0, 0, sp_rank, 0, 1, 64, 0, 1, 1, 1, 1), 0)

    whole = build(False, 0)
    name = ("zigzag", "document")[planned] if sharding == "planned" else sharding
    borders = whole.cu_seqlens
    assert whole.sharding == name
    assert borders.dtype == np.int32
    assert borders[-1] == len(whole.input_ids)
    assert borders[-1] % np.lcm(multiple, length_multiple(name, sp_size)) == 0
    unit = 2 * sp_size if align and sp_size > 1 else 1
    assert np.diff(borders)[: len(lengths)].tolist() == [-(-n // unit) * unit for n in lengths]
    assert whole.sample_lengths.tolist() == lengths
    assert whole.max_seqlen == np.diff(borders).max()
    # The row, segment by segment.
    start = 0
    for segment, (begin, end) in enumerate(pairwise(borders)):
        n = lengths[segment] if segment < len(lengths) else 0
        tokens = ids[start : start + n].tolist()
        labels = [t if m else -100 for t, m in zip(tokens, mask[start : start + n], strict=True)]
        labels = ([-100, *labels[1:]] if n else []) + [-100] * (end - begin - n)
        assert whole.input_ids[begin:end].tolist() == tokens + [7] * (end - begin - n)
        assert whole.labels[begin:end].tolist() == labels
        assert whole.shift_labels[begin:end].tolist() == [*labels[1:], -100]
        assert whole.position_ids[begin:end].tolist() == list(range(end - begin))
        start += n
    for rank in range(sp_size):
        part = build(True, rank)
        places = local_indices(borders, sp_size, rank, name)
        assert np.array_equal(part.cu_seqlens, borders)
        for key in ("input_ids", "position_ids", "labels", "shift_labels"):
            found = getattr(part, key)
            assert found.dtype == np.int64
            assert np.array_equal(found, getattr(whole, key)[places]), key


def test_shifting_a_slice_loses_labels(packed: Any) -> None:
    """Why `shift_labels` come first: shifted slices miss a token at each seam; zigzag ones pair wrong tokens."""
    for sharding, wrong in (("contiguous", 0), ("zigzag", 1), ("document", 1)):
        ranks = [PackedDataset(packed.path, rank, 4, sp_sharding=sharding) for rank in range(4)]
        lost = paired_wrongly = 0
        for batches in zip(*ranks, strict=True):
            for batch in batches:
                if batch["sp_size"] == 1:
                    continue
                naive_shift = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
                both = (naive_shift != -100) & (batch["shift_labels"] != -100)
                paired_wrongly += int((naive_shift != batch["shift_labels"])[both].sum())
                lost += int(((naive_shift == -100) & (batch["shift_labels"] != -100)).sum())
            total = sum(int((b["shift_labels"] != -100).sum()) for b in batches if b["sp_size"] == 4)
            if batches[0]["sp_size"] == 4:
                assert total == batches[0]["num_loss_tokens"]
        assert lost > 0
        assert (paired_wrongly > 0) == bool(wrong)


@pytest.mark.parametrize("sharding", [*SHARDINGS, "planned"])
def test_fillers_are_shared_too(packed: Any, sharding: Any) -> None:
    ranks = [PackedDataset(packed.path, rank, 4, epoch=1, sp_sharding=sharding) for rank in range(4)]
    found = 0
    for batches in zip(*ranks, strict=True):
        for batch in batches:
            if batch["pack_id"] < 0:
                found += 1
                assert batch["input_ids"].shape == (1, 8)
                assert (batch["labels"] == -100).all()
                places = local_indices(
                    [0, 8 * batch["sp_size"]], batch["sp_size"], batch["sp_rank"], batch["sp_sharding"]
                )
                assert batch["position_ids"][0].tolist() == places.tolist()
    assert found


def test_reference_attention_of_one_rank_is_packed_attention() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 20, 4, 8, dtype=torch.float64)
    borders = torch.tensor([0, 7, 8, 20])
    wanted = packed_attention(q, k, v, borders)
    alone = torch.cat([packed_attention(q[a:b], k[a:b], v[a:b], [0, b - a]) for a, b in ((0, 7), (7, 8), (8, 20))])
    for found in (alone, ulysses_attention(q, k, v, borders, None), ring_attention(q, k, v, borders, None)):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    merged = packed_attention(q, k, v, [0, 8, 20])
    assert float((merged - wanted).abs().max()) > 1e-2
