"""The hash that decides which samples are set aside: the format promises its numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.format.ragged import Lists, offsets_of
from packer_cli.tokens.content_hash import hashes_of
from tests.naive.content_hash import content_hash


@given(st.lists(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=9), min_size=1, max_size=9), st.booleans())
def test_the_hash_is_that_of_plain_python(rows, is_wide):
    ids = np.concatenate([np.array(row, dtype=np.int32 if is_wide else np.uint16) for row in rows])
    batch = {"input_ids": Lists(offsets_of(np.array([*map(len, rows)])), ids)}
    assert hashes_of(batch).tolist() == [content_hash(row, "i" if is_wide else "H") for row in rows]


def test_the_numbers_stay_what_they_are():
    assert content_hash([1, 2, 7]) == 0xF13355B84CFEE8B8
    assert content_hash([1, 2, 70_000], "i") == 0x995D0DCCA29D41EB
