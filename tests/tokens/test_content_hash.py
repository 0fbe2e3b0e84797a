"""The hash that decides which samples are set aside: the format promises its numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.tokens.content_hash import hash_rows
from tests.naive.content_hash import content_hash


@given(st.lists(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=9), min_size=1, max_size=9), st.booleans())
def test_the_hash_is_that_of_plain_python(rows, is_wide):
    ids = np.concatenate([np.array(row, dtype=np.int32 if is_wide else np.uint16) for row in rows])
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    hashes = np.empty(len(rows), dtype=np.uint64)
    hash_rows(ids, offsets, hashes)
    assert hashes.tolist() == [content_hash(row) for row in rows]


def test_the_numbers_stay_what_they_are():
    assert content_hash([]) == 0xEFD01F60BA992926
    assert content_hash([1, 2, 70_000]) == 0x0BCE80CD65E674AC
