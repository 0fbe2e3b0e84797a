"""Every file format with every record shape, cut every way."""

from __future__ import annotations

import errno
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.corpus.readers.columns import to_python
from packer_cli.corpus.readers.registry import READERS
from packer_cli.corpus.records.shapes import Normalizer
from packer_cli.corpus.types import Gap
from packer_cli.errors import InputError

from .helpers import CHAT, SHAPES, TEXT, documents_of, plain, read_all, write_jsonl
from .naive import without_nulls

Records = list[dict[str, Any]]


def as_json(records: Records, path: Path) -> None:
    path.write_text(json.dumps(records, indent=1))


def as_gz(records: Records, path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(records).encode()))


def as_jsonl_zst(records: Records, path: Path) -> None:
    path.write_bytes(zstd.compress("\n".join(map(json.dumps, records)).encode()))


def as_parquet(records: Records, path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=3)


def as_file(records: Records, path: Path, compression: str | None = None) -> None:
    table = pa.Table.from_pylist(records)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)


def as_feather(records: Records, path: Path) -> None:
    as_file(records, path, "zstd")


def as_stream(records: Records, path: Path) -> None:
    table = pa.Table.from_pylist(records)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def as_jsonl(records: Records, path: Path) -> None:
    write_jsonl(path, records)


def as_saved(records: Records, path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(records).save_to_disk(str(path))


FORMATS: dict[str, Callable[[Records, Path], None]] = {
    "a.jsonl": as_jsonl,
    "a.jsonl.zst": as_jsonl_zst,
    "lines.json": as_jsonl,
    "a.json": as_json,
    "a.json.gz": as_gz,
    "a.parquet": as_parquet,
    "file.arrow": as_file,
    "a.feather": as_feather,
    "stream.arrow": as_stream,
    "saved": as_saved,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_every_shape(tmp_path: Path, name: str, shape: str) -> None:
    records = [SHAPES[shape]] * 10
    path = tmp_path / name
    FORMATS[name](records, path)
    expected = [plain(document) for record in records for document in documents_of(record)]
    for slice_bytes in (1, 100, None):
        for batch_bytes in (1, 150, 1 << 20):
            documents, rejects = read_all(path, slice_bytes=slice_bytes, batch_bytes=batch_bytes)
            assert not rejects
            assert [plain(document) for document in documents] == expected
            assert [document.line for document in documents] == list(range(1, 11))


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "saved"])
def test_columnar_slices(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FORMATS[name]([{"text": "word " * 50}] * 10, path)
    files = discover([str(path)])[1]
    assert len(slice_corpus(files)) == 1
    many = slice_corpus(files, slice_bytes=1)
    units = 10 if name == "saved" else 4
    assert [(slice_.start, slice_.stop) for slice_ in many] == [(i, i + 1) for i in range(units)]
    assert [slice_.first_line for slice_ in many] == (list(range(1, 11)) if name == "saved" else [1, 4, 7, 10])


def test_token_columns_stay_arrays(tmp_path: Path) -> None:
    as_parquet([{"input_ids": [1, 2], "loss_mask": [0, 1]}] * 2, tmp_path / "a.parquet")
    (slice_,) = slice_corpus(discover([str(tmp_path / "a.parquet")])[1])
    (raw,) = READERS["parquet"].read(slice_, ReadRules(), Normalizer().fields)
    assert not raw.records
    assert raw.tokens.columns["input_ids"].values.tolist() == [1, 2, 1, 2]
    (first, second), _ = read_all(tmp_path / "a.parquet")
    assert first[2:] == second[2:] == ([1, 2], [False, True])


def test_absent_keys_of_structs_are_dropped(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "name": "f"},
    ]
    records = [{"messages": turns, "tools": '[{"name": "f"}]'}, {"text": "plain"}, CHAT, {"other": 1}]
    names = ("messages", "tools", "text", "other")
    records = [{name: record.get(name) for name in names} for record in records]
    for name in ("a.parquet", "stream.arrow"):
        FORMATS[name](records, tmp_path / name)
        documents, rejects = read_all(tmp_path / name)
        assert documents[0].messages == turns
        assert documents[0].tools == [{"name": "f"}]
        assert documents[1].text == "plain"
        assert documents[2].messages == CHAT["messages"]
        assert [r.line for r in rejects] == [4]


def test_a_data_set_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    from packer_cli.corpus.readers import hf

    calls = []
    splits = {"train": datasets.Dataset.from_list([CHAT] * 3), "test": datasets.Dataset.from_list([TEXT])}

    def load_dataset(name: str, config: str | None, split: str | None) -> object:
        calls.append((name, config, split))
        return datasets.DatasetDict(splits) if split is None else splits[split.split("[")[0]]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hf, "_hub_answers", lambda endpoint: True)
    assert len(read_all("owner/fake@2", slice_bytes=1)[0]) == 3
    assert [d.kind for d in read_all("owner/fake/config:test")[0]] == ["text"]
    assert len(read_all("fake:train[:10%]")[0]) == 3
    assert calls == [
        ("owner/fake", None, None),
        ("owner/fake", None, "train"),
        ("owner/fake", "config", "test"),
        ("fake", None, "train[:10%]"),
    ]
    hf.load.cache_clear()


ARROW_TYPES = [
    pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("n", pa.list_(pa.int32()))])),
    pa.large_list(pa.list_(pa.struct([("a", pa.struct([("b", pa.int64())]))]))),
    pa.list_(pa.struct([("content", pa.string()), ("x", pa.bool_())]), 2),
    pa.struct([("tags", pa.dictionary(pa.int32(), pa.string())), ("m", pa.map_(pa.string(), pa.int32()))]),
    pa.struct([("role", pa.string()), ("content", pa.struct([("role", pa.string()), ("content", pa.string())]))]),
]


def values_of(kind: pa.DataType) -> st.SearchStrategy:
    if pa.types.is_struct(kind):
        exact = st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif pa.types.is_fixed_size_list(kind):
        exact = st.lists(values_of(kind.value_type), min_size=2, max_size=2)
    elif pa.types.is_map(kind):
        exact = st.lists(st.tuples(st.text("ab", max_size=2), st.none() | st.integers(0, 9)), min_size=1, max_size=2)
    elif pa.types.is_nested(kind):
        exact = st.lists(values_of(kind.value_type), max_size=3)
    else:
        exact = st.booleans() if kind == pa.bool_() else st.integers(0, 9)
        if kind in (pa.string(), pa.dictionary(pa.int32(), pa.string())):
            exact = st.text("ab", max_size=2)
    return st.none() | exact


@given(data=st.data(), kind=st.sampled_from(ARROW_TYPES))
def test_columns_read_like_to_pylist(data: st.DataObject, kind: pa.DataType) -> None:
    values = data.draw(st.lists(values_of(kind), max_size=8))
    start = data.draw(st.integers(0, len(values)))
    column = pa.array(values, type=kind).slice(start, data.draw(st.integers(0, len(values))))
    assert to_python(column) == [without_nulls(value) for value in column.to_pylist()]


def test_a_table_without_known_columns_is_all_rejects(tmp_path: Path) -> None:
    as_parquet([{"headline": "a", "url": "b"}] * 5, tmp_path / "a.parquet")
    documents, rejects = read_all(tmp_path / "a.parquet")
    assert not documents
    assert [r.line for r in rejects] == [1, 2, 3, 4, 5]
    assert rejects[0].reason.startswith('no known record shape: has keys "headline", "url"; expected')


def test_a_value_that_python_cannot_hold_rejects_its_row(tmp_path: Path) -> None:
    texts = pa.array([b"good", b"b\xffd", b"fine"]).cast(pa.binary())
    column = pa.StringArray.from_buffers(3, texts.buffers()[1], texts.buffers()[2])
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    documents, rejects = read_all(tmp_path / "a.parquet")
    assert [(d.line, d.text) for d in documents] == [(1, "good"), (3, "fine")]
    assert rejects == [(2, 'column "text" cannot be read: invalid UTF-8: byte 0xff at offset 1')]


def test_a_broken_row_group_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text number {i} " * 20 for i in range(30)]})
    pq.write_table(table, path, row_group_size=10, compression="gzip")
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = chunk.data_page_offset
    data[begin : begin + 200] = bytes(200)
    path.write_bytes(data)
    documents, rejects = read_all(path)
    assert [d.line for d in documents] == [*range(1, 11), *range(21, 31)]
    (reject,) = rejects
    assert reject.line == 11
    assert reject.reason.startswith("row group 1 cannot be read (")
    assert reject.reason.endswith("; its rows 11 to 20 are lost")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_table_that_was_cut_short_is_left_out(tmp_path: Path, form: str) -> None:
    """What begins as its format does is damaged, at whatever byte it ends; the files beside it are read."""
    table, path = pa.table({"text": [f"text number {i}" for i in range(30)]}), tmp_path / f"b.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=10)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    for name in ("a", "c"):
        (tmp_path / f"{name}.{form}").write_bytes(path.read_bytes())
    whole = path.read_bytes()
    for size in (8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        documents, rejects = read_all(tmp_path, are_single=False)
        assert [d.line for d in documents] == 2 * [*range(1, 31)]
        (reject,) = rejects
        assert type(reject) is Gap
        assert reject.line == 1
        assert reject.reason.startswith("damaged: opening it fails (")
        assert reject.reason.endswith("); what it holds is left out")
    footer = bytearray(whole)
    footer[-60:-12] = bytes(48)  # Its length and the magic stay.
    path.write_bytes(footer)
    assert [type(reject) for reject in read_all(path)[1]] == [Gap]


def lost_of(path: Path, **options: Any) -> int:
    """Bytes that are lost of a file, as its readers say."""
    reader = SliceReader(**options)
    for number, slice_ in enumerate(slice_corpus(discover([str(path)])[1])):
        assert [*reader.read(slice_, base=number << 44)]
    return sum(reader.lost.values())


def test_bytes_that_are_lost(tmp_path: Path) -> None:
    lines = b"".join(json.dumps({"text": f"text number {i} {i * i}"}).encode() + b"\n" for i in range(40_000))
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines + b"bad")
    assert lost_of(path) == 0
    path.write_bytes("".join(f'{{"text": "{i}"}}\n' for i in range(9)).encode("utf-16"))
    assert lost_of(path) == path.stat().st_size
    packed = bytearray(gzip.compress(lines))
    half = len(packed)
    packed = packed * 2
    damaged = tmp_path / "a.jsonl.gz"
    damaged.write_bytes(packed[:-100])
    assert lost_of(damaged) == 0  # Nobody knows how long the end was.
    packed[half] = 0  # Where the second member begins.
    damaged.write_bytes(packed)
    assert 0.2 < lost_of(damaged) / len(packed) <= 0.5
    table = pa.table({"text": [f"text number {i} " * 20 for i in range(30)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, compression="gzip")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    begin = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0).data_page_offset
    data[begin : begin + 200] = bytes(200)
    (tmp_path / "a.parquet").write_bytes(data)
    assert 0.1 < lost_of(tmp_path / "a.parquet") / len(data) < 0.34
    (tmp_path / "a.parquet").write_bytes(data[:-1])
    assert lost_of(tmp_path / "a.parquet") == len(data) - 1
    ids = np.append(np.arange(9, dtype="<u2"), [1]).astype("<u2").tobytes()
    (tmp_path / "a.npy").write_bytes(ids + b"\0")
    assert lost_of(tmp_path / "a.npy", rules=ReadRules(vocab_size=100, eos_id=1)) == 1


def test_a_fault_of_the_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    with pytest.raises(InputError) as caught:
        read_all(path)
    assert str(caught.value) == f"{path}: cannot be read: Input/output error; correct it, or leave it out"


def test_booleans_are_no_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"input_ids": [[True, False], []]}), path)
    documents, rejects = read_all(path, vocab_size=10)
    assert not documents
    assert rejects[0] == (1, "input_ids[0] must be an integer, this is a boolean")


def test_a_truncated_stream_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    as_stream([{"text": "word " * 100}] * 12, path)
    path.write_bytes(path.read_bytes()[:-1500])
    documents, rejects = read_all(path)
    assert [d.line for d in documents] == list(range(1, len(documents) + 1))
    assert 3 <= len(documents) < 12
    assert [r.line for r in rejects] == [len(documents) + 1]
    assert rejects[0].reason.startswith("record batch ")
    assert rejects[0].reason.endswith("; the rest of the stream is lost")


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.text.gz", "a.txt.zst"])
def test_a_text_file_is_one_document(tmp_path: Path, name: str) -> None:
    data = "Line one.\r\n\nLine two ☺".encode()
    pack = {".gz": gzip.compress, ".zst": zstd.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(b"\xef\xbb\xbf" + data))
    documents, rejects = read_all(tmp_path / name, slice_bytes=1, batch_bytes=3)
    assert [(d.kind, d.line, d.text) for d in documents] == [("text", 1, data.decode())]
    assert not rejects


def test_rejected_text_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    assert read_all(path)[1] == [(1, "invalid UTF-8: byte 0xe9 at offset 3 of the file")]
    path.write_bytes(b" \n")
    assert read_all(path)[1] == [(1, "empty text")]
    path.write_bytes(b"")
    assert read_all(path)[1] == [(1, "empty text")]
    cut = tmp_path / "b.txt.gz"
    cut.write_bytes(gzip.compress(TEXT["text"].encode())[:-4])
    assert read_all(cut)[1] == [(1, "compressed data ends early; the text is incomplete")]


def test_splits_of_a_saved_data_set(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    one, two = datasets.Dataset.from_list([TEXT]), datasets.Dataset.from_list([TEXT] * 2)
    datasets.DatasetDict({"train": one, "test": two}).save_to_disk(str(tmp_path / "set"))
    assert len(read_all(tmp_path / "set")[0]) == 1
    assert len(read_all(f"{tmp_path / 'set'}:test")[0]) == 2
    (file,) = discover([f"{tmp_path / 'set'}@2"])[1]
    assert (file.format, file.path) == ("datasets", f"{tmp_path / 'set'}:train")
    # Found inside a folder, it is one input, and its own JSON files are not data.
    assert [f.path for f in discover([str(tmp_path)])[1]] == [f"{tmp_path / 'set'}:train"]
