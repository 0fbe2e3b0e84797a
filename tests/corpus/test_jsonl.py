"""JSON lines: every line is a document or a reject, wherever the file is cut."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules

from .helpers import CHAT, TEXT, plain, read_all, write_jsonl
from .naive import read_jsonl

GOOD = [
    b'{"text": "a"}',
    b'{"text": "\xe2\x98\xba\\n", "x": [1, 2.5, null]}\r',
    b'  {"text": "' + b"long " * 40 + b'"}',
    b'{"text": "\xe2\x80\xa8 not a newline \x0b"}'.replace(b"\x0b", b"\\u000b"),
]
BAD = [
    b'{"text": "a"',
    b"[1]",
    b"3",
    b"null",
    b'{"text": NaN}',
    b'{"text": "\xff"}',
    b'{"text": "\\ud800"}',
    b'{"text": "a"} {}',
    b"abc",
]
BLANK = [b"", b"\r", b"  \t"]


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.sampled_from(GOOD + BAD + BLANK), max_size=30),
    ending=st.sampled_from([b"", b"\n", b"\n\n"]),
    bom=st.booleans(),
    slice_bytes=st.integers(1, 300),
    batch_bytes=st.integers(1, 300),
    compression=st.sampled_from(["", ".gz", ".zst"]),
)
def test_any_cut_reads_like_the_naive_reader(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    bom: bool,
    slice_bytes: int,
    batch_bytes: int,
    compression: str,
) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + ending
    path = tmp_path_factory.mktemp("jsonl") / f"a.jsonl{compression}"
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}[compression]
    path.write_bytes(pack(data))
    documents, rejects = read_all(path, slice_bytes=slice_bytes, batch_bytes=batch_bytes)
    good, bad = read_jsonl(data)
    assert [(d.line, d.text) for d in documents] == [(line, record["text"]) for line, record in good]
    assert [r.line for r in rejects] == bad


def test_the_property_is_not_vacuous() -> None:
    good, bad = read_jsonl(b"\n".join(GOOD + BLANK + BAD))
    assert len(good) == len(GOOD)
    assert len(bad) == len(BAD)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 60), max_size=40), slice_bytes=st.integers(1, 200))
def test_slices_cover_the_file_at_line_starts(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], slice_bytes: int
) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_bytes(data)
    slices = slice_corpus(discover([str(path)])[1], slice_bytes=slice_bytes)
    assert [slice_.start for slice_ in slices] == [0, *(slice_.stop for slice_ in slices)][: len(slices)]
    assert (slices[-1].stop if slices else 0) == len(data)
    for slice_ in slices:
        assert slice_.start == 0 or data[slice_.start - 1 : slice_.start] == b"\n"
        assert slice_.first_line == data[: slice_.start].count(b"\n") + 1
        shortest = slice_.stop - data[slice_.start : slice_.stop][:-1].rfind(b"\n") - slice_.start
        assert slice_.stop - slice_.start - shortest < slice_bytes


def test_cuts_do_not_depend_on_the_chunks_of_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a" * (i % 37)} for i in range(300)])
    files = discover([str(path)])[1]
    expected = slice_corpus(files, slice_bytes=500)
    assert len(expected) > 10
    for chunk in (1, 7, 64, 1000):
        monkeypatch.setattr("packer_cli.corpus.blocks.SCAN_BYTES", chunk)
        assert slice_corpus(files, slice_bytes=500) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "broken JSON: unexpected end of data at column 13"),
        (b"[1, 2]", "a record must be a JSON object, this is an array"),
        (b"null", "a record must be a JSON object, this is null"),
        (b'{"text": "ab\xff"}', "invalid UTF-8: byte 0xff at offset 12 of the line"),
        (b'{"text": NaN}', "broken JSON: NaN at column 10 is not a JSON value"),
        (b'{"text": -Infinity}', "broken JSON: -Infinity at column 11 is not a JSON value"),
        (b'{"text": "\\udc00"}', "broken JSON: half of a surrogate pair at column 11"),
        (b"{'text': 1}", "broken JSON: unexpected character, expected"),
    ],
)
def test_reasons(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "first"}\n\n' + line + b'\n{"text": "last"}')
    documents, rejects = read_all(path)
    assert [d.line for d in documents] == [1, 4]
    assert [r.line for r in rejects] == [3]
    assert rejects[0].reason.startswith(reason)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("batch_bytes", [100, 1 << 20])
def test_truncated_compression_keeps_what_came_before(tmp_path: Path, suffix: str, batch_bytes: int) -> None:
    lines = [json.dumps({"text": f"{i * i} {i:x} {i * 7919 % 1009}"}) for i in range(20_000)]
    data = "\n".join(lines).encode()
    if suffix == ".gz":
        packed = gzip.compress(data)
    else:
        packed = zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed[: len(packed) // 2])
    documents, rejects = read_all(path, batch_bytes=batch_bytes)
    assert 1_000 < len(documents) < 20_000
    assert [d.line for d in documents] == list(range(1, len(documents) + 1))
    assert [d.text for d in documents] == [json.loads(line)["text"] for line in lines[: len(documents)]]
    reason = "compressed data ends early; the rest of the file is lost"
    assert rejects == [(len(documents) + 1, reason)]


def test_corrupt_compression_is_one_reject(tmp_path: Path) -> None:
    import random

    rng = random.Random(0)
    lines = [json.dumps({"text": f"{rng.random()}"}) for _ in range(50_000)]
    packed = bytearray(gzip.compress("\n".join(lines).encode()))
    packed[-2000:-1900] = bytes(100)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    documents, rejects = read_all(path)
    assert len(documents) > 20_000
    assert rejects[-1].reason.startswith("compressed data is corrupt (")
    assert rejects[-1].reason.endswith("; the rest of the file is lost")


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd.compress)])
def test_several_members_are_read_across(tmp_path: Path, suffix: str, pack) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(b'{"text": "a"}\n{"te') + pack(b'xt": "b"}\n') + pack(b"") + pack(b'{"text": "c"}'))
    documents, rejects = read_all(path)
    assert [d.text for d in documents] == ["a", "b", "c"]
    assert not rejects
    if suffix == ".gz":
        path.write_bytes(path.read_bytes() + bytes(512))
        assert len(read_all(path)[0]) == 3


def test_highly_compressible_data_arrives_whole(tmp_path: Path) -> None:
    record = json.dumps({"text": "a" * 3_000_000})
    for suffix, pack in ((".gz", gzip.compress), (".zst", zstd.compress)):
        path = tmp_path / f"a.jsonl{suffix}"
        path.write_bytes(pack(f"{record}\n{record}".encode()))
        documents, rejects = read_all(path, batch_bytes=1000)
        assert [len(d.text) for d in documents] == [3_000_000] * 2
        assert not rejects


def test_mixed_shapes_in_one_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [CHAT, TEXT, {"a": 1}, 3, CHAT])
    documents, rejects = read_all(path)
    assert [(d.line, d.kind) for d in documents] == [(1, "messages"), (2, "text"), (5, "messages")]
    assert [r.line for r in rejects] == [3, 4]
    assert plain(documents[0]) == plain(documents[2])


def test_batches_are_bounded(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [TEXT] * 5000)
    (slice_,) = slice_corpus(discover([str(path)])[1])
    for batch in SliceReader(rules=ReadRules(batch_bytes=4096)).read(slice_):
        assert len(batch.documents) <= 4096 // 10
