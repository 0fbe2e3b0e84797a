"""The shared real data, where it is at hand: HBPACK_SHARED, or `shared` beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .helpers import read_all
from .naive import read_jsonl

SHARED = Path(os.environ.get("HBPACK_SHARED") or Path(__file__).parents[3] / "shared") / "data"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data; set HBPACK_SHARED to its folder")


def test_chats_read_like_the_naive_reader() -> None:
    path = SHARED / "sft_messages.jsonl"
    good, bad = read_jsonl(path.read_bytes())
    documents, rejects = read_all(path, batch_bytes=256 << 10)
    assert not bad
    assert not rejects
    assert [(d.line, d.messages) for d in documents] == [(line, r["messages"]) for line, r in good]
    assert len(documents) == 31_187


def test_long_documents_are_the_same_in_any_slices() -> None:
    import pyarrow.parquet as pq

    path = SHARED / "long_docs.parquet"
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
    for slice_bytes in (1, None):
        documents, rejects = read_all(path, slice_bytes=slice_bytes)
        assert not rejects
        assert [d.text for d in documents] == texts
        assert [d.line for d in documents] == list(range(1, len(texts) + 1))
