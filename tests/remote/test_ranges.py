"""Token stores of which ranges are read, against whole ones; and how much of a store commands read."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.errors import FormatError
from packer_cli.plan.core.types import Pieces
from packer_cli.remote.path import RemotePath
from packer_cli.tokens.index import PartInfo, StoreIndex, read_index
from packer_cli.tokens.ranges import join_spans
from packer_cli.tokens.store import open_store
from tests.cli_runner import Done
from tests.remote.conftest import tree, upload
from tests.s3_server import S3Server
from tests.tokens.test_store import make_store, stores


@given(
    spans=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(1, 20)), min_size=1),
    gap=st.integers(0, 9),
)
def test_joined_ranges(spans: list[tuple[int, int, int]], gap: int) -> None:
    file, start, size = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    joined, range_of = join_spans(file, start, start + size, gap)
    ranges = [*zip(*joined.tolist(), strict=True)]
    for (of, begin, length), number in zip(spans, range_of.tolist(), strict=True):
        found, first, last = ranges[number]
        assert found == of
        assert first <= begin < begin + length <= last
    wanted = {(of, byte) for of, begin, length in spans for byte in range(begin, begin + length)}
    assert ranges == sorted(ranges)
    read = {(of, byte) for of, begin, end in ranges for byte in range(begin, end)}
    for of in range(3):
        inside = sorted(byte for each, byte in wanted if each == of)
        between = [range(a + 1, b) for a, b in itertools.pairwise(inside) if b - a - 1 <= gap]
        expected = set(inside) | {byte for each in between for byte in each}
        assert {byte for each, byte in read if each == of} == expected


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packer_cli.remote.retries.FIRST_DELAY", 0.0)
        yield


def far_copy(folder: Path) -> Any:
    far = RemotePath(f"memory://{uuid.uuid4().hex}")
    upload(folder, far)
    return far


@given(parts=stores(), is_whole=st.lists(st.booleans(), min_size=3, max_size=3), data=st.data())
@settings(max_examples=40)
def test_ranges_of_a_store_are_those_of_the_whole_one(
    tmp_path_factory: Any, parts: Any, is_whole: list[bool], data: Any
) -> None:
    folder = tmp_path_factory.mktemp("store")
    near = make_store(folder, parts)
    far = open_store(far_copy(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HBPACK_CACHE", str(folder / "cache"))
        far.fetch_parts(np.array([np.inf if whole else 0 for whole in is_whole[: len(parts)]]))
    assert len(far) == len(near)
    assert far.lengths().tolist() == near.lengths().tolist()
    assert far.num_loss_tokens().tolist() == near.num_loss_tokens().tolist()
    if not len(near):
        return
    sample = np.array(data.draw(st.lists(st.integers(0, len(near) - 1), min_size=1, max_size=9)))
    start = np.array([data.draw(st.integers(0, size - 1)) for size in near.lengths()[sample].tolist()])
    length = (near.lengths()[sample] - start).astype(np.int32)
    pieces, offsets = Pieces(samples=sample, start=start, length=length), np.arange(len(sample) + 1)
    ours, theirs = far.gather(pieces, offsets), near.gather(pieces, offsets)
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        for found, expected in zip(column, theirs[name], strict=True):
            assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    assert far.loss_of(pieces, is_weighted=False).tolist() == near.loss_of(pieces, is_weighted=False).tolist()
    rising = np.unique(sample)
    assert [*far.locate(rising)] == [*near.locate(rising)]


def with_part(folder: Any, change: Callable[[bytes, PartInfo], tuple[bytes, dict[str, int]]]) -> Any:
    """The copy of a store whose only part is changed, and what its index says of it."""
    index: StoreIndex = read_index(folder)
    part = index.parts[0]
    data, says = change((folder / part.path).read_bytes(), part)
    (folder / part.path).write_bytes(data)
    file = replace(part.files[0], num_samples=says.get("num_samples", part.num_samples))
    parts = (replace(part, **{"files": (file,), "num_bytes": len(data), **says}),)
    replace(index, parts=parts).write(folder)
    return far_copy(folder)


def flipped(data: bytes, values: list[int], number: int = 1) -> bytes:
    """With a huge number in place of this one of int32 `values`, where they stand first."""
    wanted = np.array(values, dtype="<i4").tobytes()
    at = data.index(wanted) + 4 * number
    return data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :]


def elsewhere(data: bytes) -> bytes:
    """With offsets of tokens that begin far behind the end of the file."""
    place = np.array([0, 0, 0, 16], dtype="<i8").tobytes()  # No validity, then four int32.
    assert data.count(place) == 1
    return data.replace(place, np.array([0, 0, 2**40, 16], dtype="<i8").tobytes())


SAMPLES = [[[([7, 8, 9], [0, 1, 1]), ([1, 2, 3, 4, 5, 6], [0, 1, 0, 0, 1, 1]), ([8, 9], [0, 1])]]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data, part: (data, {"num_samples": 4}), "its num_samples is 3 instead of 4"),
        (lambda data, part: (data, {"num_tokens": 9}), "its num_tokens is 11 instead of 9"),
        (lambda data, part: (data, {"num_loss_tokens": 9}), "its num_loss_tokens is 6 instead of 9"),
        (lambda data, part: (flipped(data, [0, 3, 9, 11]), {}), "its offsets are wrong"),
        (lambda data, part: (flipped(data, [0, 1, 3, 4]), {}), "its span_offsets are wrong"),
        (lambda data, part: (flipped(data, [1, 1, 4, 1]), {}), "its loss spans are wrong"),
        (lambda data, part: (flipped(data, [0, 1, 3, 4], 3), {}), "its record batches are wrong"),
        (lambda data, part: (elsewhere(data), {}), "its record batches are wrong"),
        (lambda data, part: (data[:-40] + bytes(34) + data[-6:], {}), ""),
        (lambda data, part: (data[:-1], {}), ""),
        (lambda data, part: (data, {"num_bytes": 1}), "it has N bytes instead of 1"),
        (lambda data, part: (data, {"path": "gone.arrow"}), "missing"),
    ],
)  # fmt: skip
def test_damage_of_what_is_read_is_named(tmp_path: Path, change: Any, why: str) -> None:
    make_store(tmp_path, SAMPLES)
    folder = with_part(tmp_path, change)

    def read_all() -> None:
        store = open_store(folder)
        store.lengths(), store.num_loss_tokens()
        sample, start, length = (np.array([number], dtype=np.int32) for number in (0, 0, 2))
        store.loss_of(Pieces(samples=sample, start=start, length=length), is_weighted=False)

    with pytest.raises(FormatError) as error:
        read_all()
    found = re.sub(r"has \d+ bytes", "has N bytes", str(error.value))
    path = re.escape(f"token store part '{folder}/") + r"(part-000000-0000|gone)\.arrow' is "
    fault = why if why == "missing" else rf"damaged \({re.escape(why) or '.+'}\); remove it"
    assert re.fullmatch(path + fault + ".* tokenize again", found)


def test_ranges_come_through_faults(s3: S3Server, bucket: RemotePath) -> None:
    data = bytes(range(256)) * 40
    for name in ("a", "b"):
        (bucket / name).write_bytes(data if name == "a" else data[::-1])
    wanted = [("ab"[i % 2], 31 * i, 31 * i + i) for i in range(150)]
    before = s3.faults
    with s3.failing(slow_down=0.1, cut=0.1):
        got = bucket.read_ranges(wanted)
    assert s3.faults > before + 10
    assert got == [(data if name == "a" else data[::-1])[start:stop] for name, start, stop in wanted]
    with pytest.raises(FileNotFoundError):
        bucket.read_ranges([("a", 0, 3), ("none", 0, 3)])


@pytest.mark.slow
def test_commands_read_no_more_of_a_store_than_they_need(
    s3: S3Server, bucket: RemotePath, hbpack: Callable[..., Done], repo: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """`plan` the lengths, a task of an array and a repair the samples of their shards; with the same bytes as ever."""
    text = (repo / "examples" / "sample" / "chats.jsonl").read_text(encoding="utf-8")
    records = [json.dumps({"text": f"{i} {text[i * 900 : i * 900 + 9000]}"}) for i in range(100)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(records), encoding="utf-8")
    tokenizer, near, far = repo / "examples" / "sample" / "tokenizer", tmp_path / "out", bucket / "out"
    groups = ("--groups", "16k:1,64k:4", "--gpus", 4)
    corpus = tmp_path / "corpus.jsonl"
    assert hbpack("tokenize", corpus, "--tokenizer", tokenizer, "--output", near, "--workers", 1).code == 0
    upload(near, far)
    assert hbpack("plan", near, *groups).code == 0
    store = sum(size for name, size in far.find("tokens/part-*").items())

    def read_share(*words: object) -> float:
        """Which share of the store a command reads."""
        s3.sent.clear()
        done = hbpack(*words)
        assert done.code == 0, done.stderr
        return sum(size for path, size in s3.sent.items() if "/tokens/part-" in path) / store

    assert 0.0 < read_share("plan", far, *groups) < 0.04
    assert hbpack("write", near, "--shard-size", "160KiB", "--workers", 1).code == 0
    monkeypatch.setattr("packer_cli.tokens.store.REQUEST_BYTES", 1000)
    monkeypatch.setattr("packer_cli.tokens.ranges.GAP_BYTES", 1000)
    words = ["write", far, "--shard-size", "160KiB", "--workers", 1, "--shard"]
    tasks = [read_share(*words, f"{i}/3") for i in range(3)]
    assert 2.0 < sum(tasks) < 2.2  # Every byte once to be checked, and once for its shard.
    assert tree(far) == tree(near)
    shard = next(name for name in far.find() if "/shards/" in name)
    repair = ("write", far, "--workers", 1)
    (far / shard).unlink()
    assert read_share(*repair) < 0.5
    (far / shard).unlink()
    monkeypatch.setattr("packer_cli.tokens.store.REQUEST_BYTES", 10**9)
    assert read_share(*repair) > 0.5  # Whole parts, which the cache keeps.
    (far / shard).unlink()
    monkeypatch.setattr("packer_cli.tokens.store.REQUEST_BYTES", 1000)
    assert read_share(*repair) < 0.1
    assert (far / shard).read_bytes() == (near / shard).read_bytes()
