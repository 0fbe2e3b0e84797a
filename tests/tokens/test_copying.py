from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens import copying


@st.composite
def cases(draw):
    buffers = draw(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=4))
    places = []
    for number in draw(st.lists(st.integers(0, len(buffers) - 1), max_size=20)):
        begin = draw(st.integers(0, len(buffers[number]) - 1))
        places.append((number, begin, draw(st.integers(1, len(buffers[number]) - begin))))
    return buffers, places


@pytest.mark.parametrize("reach", [copying._REACH, 13, 40])
@given(case=cases())
@settings(max_examples=60)
def test_spans_are_what_slices_are(reach, case):
    buffers, places = case
    columns = np.array(places, dtype=np.int64).reshape(-1, 3).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_REACH", reach)  # What 2 GiB would need: spans cut, and buffers passed in windows.
        copied = copying.copy_spans([pa.py_buffer(data) for data in buffers], *columns)
    assert copied.tobytes() == b"".join(buffers[n][begin : begin + size] for n, begin, size in places)
    assert copied.flags.writeable


@given(
    arrays=st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    wanted=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=20),
)
@settings(max_examples=60)
def test_values_are_taken_out_of_their_arrays(arrays, wanted):
    wanted = [(n % len(arrays), place % len(arrays[n % len(arrays)])) for n, place in wanted]
    number, place = np.array(wanted, dtype=np.int64).reshape(-1, 2).T
    taken = copying.Among(number).take([np.array(values, dtype=np.int32) for values in arrays], place)
    assert taken.tolist() == [arrays[n][place] for n, place in wanted]
