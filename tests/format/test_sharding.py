"""Who holds which tokens: every token once, the same number on every rank, and what each sharding promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.format.sharding import SHARDINGS, length_multiple, local_indices, row_order
from tests.naive.sharding import most_apart, shard

some_lengths = st.one_of(
    st.lists(st.integers(1, 70), min_size=1, max_size=8),
    st.lists(st.integers(1, 3), min_size=1, max_size=60),  # All shorter than 2 * sp_size.
    st.lists(st.integers(100, 700), min_size=1, max_size=8),
)
rows = st.tuples(some_lengths, st.sampled_from([1, 2, 3, 4, 8, 16]), st.sampled_from(SHARDINGS))


@settings(max_examples=300, deadline=None)
@given(rows)
def test_parts_agree_with_a_deal_token_by_token(row: Any) -> None:
    lengths, sp_size, sharding = row
    multiple = length_multiple(sharding, sp_size)
    tail = -sum(lengths) % multiple
    lengths = [*lengths, tail] if tail else lengths
    borders = np.cumsum([0, *lengths]).astype(np.int32)
    parts = [local_indices(borders, sp_size, rank, sharding) for rank in range(sp_size)]
    assert [part.tolist() for part in parts] == shard(lengths, sp_size, sharding)
    assert {len(part) for part in parts} == {sum(lengths) // sp_size}
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)

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


def works(lengths: list[int], sp_size: int, sharding: Any) -> list[int]:
    """Causal work of each rank."""
    borders = np.cumsum([0, *lengths])
    keys = np.concatenate([np.arange(1, length + 1) for length in lengths])
    return [int(keys[local_indices(borders, sp_size, rank, sharding)].sum()) for rank in range(sp_size)]


def over_even(lengths: list[int], sharding: Any, sp_size: int = 4) -> float:
    """Work of the busiest rank over the mean, less 1."""
    work = works(lengths, sp_size, sharding)
    return float(max(work) / np.mean(work)) - 1


def test_what_each_sharding_balances() -> None:
    long, pack = [4096], [3000, 1, 60, 500, 535]
    assert over_even(long, "contiguous") > 0.7
    assert over_even(long, "zigzag") < 0.001
    assert over_even(pack, "zigzag") > 0.3
    assert over_even(pack, "document") < 0.001


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.one_of(some_lengths, st.lists(st.integers(1, 2000), min_size=1, max_size=40)),
    repeated=st.integers(1, 20),
    sp_size=st.sampled_from([2, 4, 8, 16]),
)
def test_work_per_document_is_as_even_as_proved(lengths: list[int], repeated: int, sp_size: int) -> None:
    lengths = lengths * repeated
    tail = -sum(lengths) % sp_size
    lengths = [*lengths, tail] if tail else lengths
    work = works(lengths, sp_size, "document")
    assert max(work) - min(work) <= most_apart(lengths, sp_size)


@pytest.mark.parametrize("sp_size", [2, 4, 8, 16])
def test_lengths_that_repeat_do_not_load_one_rank(sp_size: int) -> None:
    """Round-robin gives the last, dearest token of each sample to the same rank: 78 % over even for 8 and 8."""
    for lengths in ([8] * 512, [1, *[8] * 511, 7], [1, 2 * sp_size - 1] * 64, [3 * sp_size] * 64, [1, 3, 12] * 64):
        assert over_even(lengths, "document", sp_size) < 0.01


@pytest.mark.parametrize("sp_size", [2, 4, 8, 16])
def test_a_row_of_128k_tokens_is_even(sp_size: int) -> None:
    rng = np.random.default_rng(sp_size)
    for typical in (100, 1000, 10_000):
        lengths = np.minimum(1 + rng.lognormal(np.log(typical), 1.5, 4096), 2**17).astype(int)
        lengths = lengths[np.cumsum(lengths) <= 2**17].tolist()
        lengths.append(2**17 - sum(lengths))
        assert over_even([length for length in lengths if length], "document", sp_size) < 0.001


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
