"""The builder against a plain-Python twin, on generated packs."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.format.ranks import RankRow
from packer_cli.format.shards import Pack
from packer_cli.loader.build_batch import BatchBuilder, PadTo
from tests.loader.packed_set import group_of
from tests.naive import loss_spans


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    sp_size=st.sampled_from([1, 2, 3, 4, 8]),
    multiple=st.integers(1, 9),
    pad_to=st.sampled_from(get_args(PadTo)),
    extra=st.integers(0, 40),
)
def test_slices_agree_with_the_whole_row(
    lengths: list[int], seed: int, sp_size: int, multiple: int, pad_to: str, extra: int
) -> None:
    rng = np.random.default_rng(seed)
    num_tokens = sum(lengths)
    ids = rng.integers(0, 100, num_tokens).astype(rng.choice(["uint16", "int32"]))
    # Ones at first tokens too, which the format forbids: they must not come through.
    mask = rng.integers(0, 2, num_tokens).tolist()
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of_samples(mask, lengths))
    cu = np.cumsum([0, *lengths]).astype(np.int32)
    pack = Pack(0, 0, ids, starts, stops, cu, np.arange(len(lengths)))
    builder = BatchBuilder(
        pad_to=pad_to,  # type: ignore[arg-type]
        pad_to_multiple_of=multiple,
        pad_token_id=-7,
        sp_slice=True,
        groups=(group_of(num_tokens + extra, sp_size),),
    )
    least = num_tokens if pad_to == "multiple" else num_tokens + extra
    length = next(n for n in range(least, least + 200) if n % math.lcm(multiple, sp_size) == 0)

    labels = [int(t) if m else -100 for t, m in zip(ids, mask, strict=True)]
    positions: list[int] = []
    for start, n in zip(cu, lengths, strict=False):
        labels[start] = -100
        positions += range(n)
    tail = length - num_tokens
    labels += [-100] * tail
    positions += range(tail)

    parts = []
    for sp_rank in range(sp_size):
        row = RankRow(0, 0, 0, 0, 0, sp_rank, 0, 1, num_tokens + extra, 1, 1, 1, 1)
        parts.append(builder.build(pack, row, 0))
    assert {len(p.input_ids) for p in parts} == {length // sp_size}
    assert np.concatenate([p.input_ids for p in parts]).tolist() == [*ids.tolist(), *[-7] * tail]
    assert np.concatenate([p.labels for p in parts]).tolist() == labels
    assert np.concatenate([p.position_ids for p in parts]).tolist() == positions
    assert np.concatenate([p.shift_labels for p in parts]).tolist() == [*labels[1:], -100]
    for part in parts:
        assert part.cu_seqlens.tolist() == [*cu.tolist(), *([length] if tail else [])]
        assert part.cu_seqlens.dtype == np.int32
        assert part.max_seqlen == max(*lengths, tail)
