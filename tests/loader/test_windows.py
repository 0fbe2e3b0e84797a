"""Windows cut what attention sees: segments and positions change, tokens, labels and counts do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.errors import ConfigError
from packer_cli.format.constants import FILLER_TOKENS
from packer_cli.format.layout import Layout
from packer_cli.format.planned import PlanOptions
from packer_cli.format.ranks import RankRow
from packer_cli.format.sharding import local_indices
from packer_cli.format.shards import Pack
from packer_cli.loader.batch import BatchBuilder
from packer_cli.loader.formats.base import metadata
from packer_cli.loader.losses import sample_weights
from packer_cli.loader.options import choose_mask, choose_max_segments
from tests.loader.packed_set import group_of
from tests.naive import loss_spans


def make_pack(lengths: list[int], seed: int) -> Pack:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 100, sum(lengths)).astype("uint16")
    marks = rng.integers(0, 2, len(ids)).tolist()
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of_samples(marks, lengths))
    borders = np.cumsum([0, *lengths]).astype(np.int32)
    return Pack(0, sum(marks), ids, starts, stops, borders, np.arange(len(lengths)), 0)


def build(pack: Pack | None, window: int, sp_size: int = 1, sp_rank: int = 0, **options: Any) -> Any:
    given = {
        "pad_to": "multiple",
        "pad_to_multiple_of": 1,
        "pad_token_id": 7,
        "sp_slice": True,
        "groups": (group_of(64, sp_size),),
    }
    num_samples = 0 if pack is None else len(pack.sample_ids)
    row = RankRow(0, 0, 0, 0, 0, sp_rank, 0, 1, 64, window, 1, num_samples, 1, 1)
    builder = BatchBuilder(**(given | options))
    return builder.filler(row, 0) if pack is None else builder.build(pack, row, 0)


def cut(borders: list[int], window: int) -> list[int]:
    return [place for begin, end in pairwise(borders) for place in range(begin, end, window)] + [borders[-1]]


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    sp_size=st.sampled_from([1, 2, 4]),
    sharding=st.sampled_from(["contiguous", "zigzag", "document"]),
    window=st.integers(1, 24),
    mask=st.sampled_from(["document", "causal"]),
    align=st.booleans(),
)
def test_a_window_cuts_segments_and_positions_alone(
    lengths: list[int], seed: int, sp_size: int, sharding: Any, window: int, mask: Any, align: bool
) -> None:
    pack = make_pack(lengths, seed)
    align = align and mask == "document"
    options = {"sp_sharding": sharding, "mask": mask, "align_samples": align}
    whole = build(pack, 0, sp_size, sp_slice=False, **options)
    found = build(pack, window, sp_size, sp_slice=False, **options)
    for key in ("input_ids", "labels", "shift_labels", "sample_borders", "sample_lengths", "sample_num_loss_tokens"):
        assert np.array_equal(getattr(found, key), getattr(whole, key)), key
    step = window
    if align and sp_size > 1:
        step = -(-window // (2 * sp_size)) * 2 * sp_size
    borders = cut(whole.cu_seqlens.tolist(), step)
    assert (found.cu_seqlens.tolist(), found.cu_seqlens.dtype) == (borders, np.int32)
    restarts = borders if mask == "document" else whole.sample_borders.tolist()
    assert found.position_ids.tolist() == [i for a, b in pairwise(restarts) for i in range(b - a)]
    assert found.max_seqlen == max(b - a for a, b in pairwise(borders))
    # Real tokens of each segment: what is left of its sample, or of the row.
    ends = [int(a) + int(n) for a, n in zip(whole.cu_seqlens, whole.real_lengths, strict=False)]
    real = [min(b, end) - a for a, b in pairwise(borders) for begin, end in zip(
        whole.cu_seqlens.tolist(), ends, strict=False) if begin <= a < end]  # fmt: skip
    assert found.real_lengths.tolist()[: len(real)] == real
    assert not found.real_lengths[len(real) :].any()
    for rank in range(sp_size):
        part = build(pack, window, sp_size, rank, **options)
        places = local_indices(found.cu_seqlens, sp_size, rank, sharding) if sp_size > 1 else slice(None)
        for key in ("input_ids", "labels", "shift_labels", "position_ids"):
            assert np.array_equal(getattr(part, key), getattr(found, key)[places]), key
        known = metadata(part) | {"cu_seqlens": torch_of(part.cu_seqlens)}
        weights = metadata(whole) | {"cu_seqlens": torch_of(whole.cu_seqlens)}
        expected = sample_weights(weights, len(whole.input_ids)).numpy()[places]
        assert sample_weights(known).tolist() == expected.tolist()


def torch_of(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def test_borders_of_a_fixed_number_must_hold_the_segments() -> None:
    pack = make_pack([10, 6], 0)
    assert build(pack, 4, max_segments=5).cu_seqlens.tolist() == [0, 4, 8, 10, 14, 16]
    with pytest.raises(ConfigError) as error:
        build(pack, 2, max_segments=5)
    assert str(error.value) == (
        "the window of step 0, 2 tokens, cuts a row into 8 segments, more than max_segments=5: raise it, or plan with "
        "--curriculum short"
    )


@pytest.mark.parametrize("mask", ["document", "causal"])
@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "document"])
@pytest.mark.parametrize(("pad_to", "length"), [("multiple", 2 * FILLER_TOKENS), ("capacity", 64)])
def test_a_window_cuts_fillers(pad_to: Any, length: int, sharding: Any, mask: Any) -> None:
    """Else a rank without a pack attends to a whole row, and the others wait for it."""
    options = {"pad_to": pad_to, "sp_sharding": sharding, "mask": mask, "reset_positions": mask == "document"}
    held = []
    for rank in range(2):
        part = build(None, 12, 2, rank, **options)
        borders = part.cu_seqlens.tolist()
        assert borders == cut([0, length], 12)
        assert part.max_seqlen == 12
        assert (part.labels == -100).all()
        assert (part.input_ids == 7).all()
        assert sample_weights(metadata(part) | {"cu_seqlens": torch_of(part.cu_seqlens)}).tolist() == [0] * (
            length // 2
        )
        places = local_indices(borders, 2, rank, sharding)
        assert part.position_ids.tolist() == [i % 12 if mask == "document" else i for i in places.tolist()]
        held += places.tolist()
    assert sorted(held) == list(range(length))


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    room=st.integers(0, 20),
    sp_size=st.sampled_from([1, 2, 3]),
    align=st.sampled_from([None, 1, 3, 4]),
    window=st.integers(1, 24),
    mask=st.sampled_from(["document", "causal"]),
    multiple=st.sampled_from([1, 7, 16]),
    pad_to=st.sampled_from(["multiple", "capacity"]),
)
def test_planned_borders_hold_every_cut(
    lengths: list[int], room: int, sp_size: int, align: int | None, window: int, mask: Any, multiple: int, pad_to: Any
) -> None:
    capacity = sum(-(-length // (align or 1)) * (align or 1) for length in lengths) + room
    group = replace(group_of(capacity, sp_size), align=align or 1, most_samples=len(lengths))
    most = choose_max_segments(
        SimpleNamespace(groups=[group]), "plan", mask, "'OUT'", window=window, pad_to_multiple_of=multiple
    )
    options = {
        "mask": mask, "align_samples": align is not None, "groups": (group,), "pad_to": pad_to,
        "pad_to_multiple_of": multiple, "max_segments": most,
    }  # fmt: skip
    for pack in (make_pack(lengths, 0), None):
        assert len(build(pack, window, sp_size, **options).cu_seqlens) == most + 1


def test_borders_that_may_not_hold_the_cuts_are_refused_before_training() -> None:
    group = SimpleNamespace(capacity=64, layout=Layout(), align=1, most_samples=3)
    with pytest.raises(ConfigError) as error:
        choose_max_segments(SimpleNamespace(groups=[group]), 12, "document", "'OUT'", window=8)
    assert str(error.value) == (
        "max_segments is 12, but windows of 8 tokens may cut a row of 'OUT' into 13 segments: give at least 13 or "
        "'plan', or plan with --curriculum short"
    )


def test_positions_cannot_show_windows_under_a_causal_mask() -> None:
    plan = PlanOptions(curriculum="skyladder:8", curriculum_steps=3, mask="causal")
    manifest = SimpleNamespace(planned=plan, has_windows=True)
    assert choose_mask(manifest, None, None, "transformers", positions_are_borders=False) == ("causal", False)
    with pytest.raises(ValueError, match="mask is 'causal'") as error:
        choose_mask(manifest, None, None, "torchtitan", positions_are_borders=True)
    assert str(error.value) == (
        "mask is 'causal' and the set has the windows of --curriculum skyladder:8, but format 'torchtitan' has no "
        "borders besides the positions, which a causal mask does not restart: use mask 'document', or plan with "
        "--curriculum short"
    )
