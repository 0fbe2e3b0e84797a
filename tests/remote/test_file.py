"""`RemoteFile` reads what a file holds, however its reader moves, and requests no more than it says."""

from __future__ import annotations

import io
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.remote import file
from packer_cli.remote.file import RemoteFile

DATA = bytes(range(256)) * 40


class Storage:
    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def fetch(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(DATA)
        with self._lock:
            self.ranges.append((start, stop))
        return DATA[start:stop]


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "FIRST_BLOCK", 64)
        patch.setattr(file, "LARGEST_BLOCK", 512)
        yield


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 3000)),
        st.tuples(st.just("seek"), st.integers(0, len(DATA) + 10)),
        st.tuples(st.just("skip"), st.integers(-500, 500)),
        st.tuples(st.just("back"), st.integers(-2000, 0)),
    ),
    max_size=20,
)


@given(moves=MOVES, goes_forward=st.booleans(), stop=st.integers(0, len(DATA)), buffered=st.booleans())
@settings(max_examples=100, deadline=None)
def test_it_reads_as_bytes_do(moves, goes_forward, stop, buffered):
    raw = RemoteFile(Storage().fetch, {"size": len(DATA)}, goes_forward=goes_forward)
    raw.stop_at(stop)
    with io.BufferedReader(raw, 100) if buffered else raw as found:
        wanted = io.BytesIO(DATA)
        for move, number in moves:
            if move == "read":
                assert found.read(number) == wanted.read(number)
            elif move == "seek":
                assert found.seek(number) == wanted.seek(number)
            elif move == "skip":
                place = max(0, wanted.tell() + number)
                assert found.seek(place - found.tell(), io.SEEK_CUR) == wanted.seek(place)
            else:
                assert found.seek(number, io.SEEK_END) == wanted.seek(number, io.SEEK_END)


def test_reading_forward_requests_each_byte_once_and_stops():
    storage = Storage()
    with RemoteFile(storage.fetch, {"size": len(DATA)}, goes_forward=True) as found:
        found.seek(1000)
        found.stop_at(6000)
        assert b"".join(iter(lambda: found.read(min(100, 6000 - found.tell())), b"")) == DATA[1000:6000]
    ranges = sorted(storage.ranges)
    assert [start for start, _ in ranges] == [1000, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == 6000
    assert ranges[0] == (1000, 1064)
    assert max(stop - start for start, stop in ranges) == 512


def test_reading_in_any_order_requests_what_is_read():
    storage = Storage()
    with RemoteFile(storage.fetch, {"size": len(DATA)}, goes_forward=False) as found:
        for start in (9000, 0, 5000):
            found.seek(start)
            assert found.read(200) == DATA[start : start + 200]
    assert storage.ranges == [(9000, 9200), (0, 200), (5000, 5200)]


def test_an_error_reaches_the_reader():
    def fetch(start: int, stop: int) -> bytes:
        if start >= 1000:
            raise TimeoutError("no answer")
        return DATA[start:stop]

    with RemoteFile(fetch, {"size": len(DATA)}, goes_forward=True) as found, pytest.raises(TimeoutError):
        found.read()
