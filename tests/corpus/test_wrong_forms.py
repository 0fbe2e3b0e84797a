"""Files named as JSON lines that are not: an array is read, anything else is one reject that says what to do."""

import bz2
import gzip
import io
import json
import lzma
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from packer_cli.corpus.types import Gap

from .helpers import CHAT, PROMPT, plain, read_all

RECORDS = [{**CHAT, "id": number} for number in range(40)]
LINES = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in RECORDS)


def reasons(path, **options):
    """Of a file of which nothing is read."""
    documents, rejects = read_all(path, **options)
    assert not documents
    assert all(isinstance(reject, Gap) for reject in rejects)
    return [reject.reason for reject in rejects]


@pytest.mark.parametrize("slice_bytes", [None, 500])
@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_other_encodings(tmp_path, encoding, name, slice_bytes):
    data = LINES.encode(encoding)
    data = gzip.compress(data) if name.endswith(".gz") else data
    (tmp_path / name).write_bytes(data)
    word = encoding[:6].upper()
    assert reasons(tmp_path / name, slice_bytes=slice_bytes) == [
        f"the file is {word}; convert it to UTF-8, as with iconv -f {word}; none of its {len(data):,} bytes are read"
    ]


def _parquet() -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(RECORDS), out)
    return out.getvalue().to_pybytes()


def _arrow() -> bytes:
    table, out = pa.Table.from_pylist(RECORDS), pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.jsonl", LINES)
    return out.getvalue()


BINARY = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".gz": lambda: gzip.compress(LINES.encode()),
    ".zst": lambda: zstd.compress(LINES.encode()),
    ".bz2": lambda: bz2.compress(LINES.encode()),
    ".xz": lambda: lzma.compress(LINES.encode()),
    ".zip": _zip,
}


@pytest.mark.parametrize("slice_bytes", [None, 50])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
@pytest.mark.parametrize("suffix", BINARY)
def test_other_formats(tmp_path, suffix, name, slice_bytes):
    data = BINARY[suffix]()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    end = suffix if suffix in (".parquet", ".arrow") else f".jsonl{suffix}"
    remedy = "unpack it" if suffix == ".zip" or name.endswith(".gz") else f"end its name in {end}"
    why = f"the file begins as a {suffix} file does, not as JSON; {remedy}"
    assert reasons(path, slice_bytes=slice_bytes) == [f"{why}; none of its {path.stat().st_size:,} bytes are read"]


@pytest.mark.parametrize("slice_bytes", [None, 500])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("indent", [0, 1, 2, "\t"])
def test_json_over_several_lines(tmp_path, indent, compressed, slice_bytes):
    data = "\n".join(json.dumps(record, indent=indent) for record in RECORDS).encode()
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    path.write_bytes(gzip.compress(data) if compressed else data)
    why = "the file has JSON over several lines; write one record a line, or an array of records"
    assert reasons(path, slice_bytes=slice_bytes) == [f"{why}; none of its {path.stat().st_size:,} bytes are read"]


def test_objects_that_go_on_in_lines_of_their_own(tmp_path):
    for text in ('{ "prompt": "a",\n  "completion": "b" }\n', '\ufeff\n{"messages": [\n  {"role": "user"}]}', "{\n}"):
        (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
        assert len(reasons(tmp_path / "a.jsonl")) == 1


@pytest.mark.parametrize("slice_bytes", [None, 500])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read(tmp_path, indent, compressed, slice_bytes):
    data = ("\ufeff " + json.dumps(RECORDS, indent=indent)).encode()
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    path.write_bytes(gzip.compress(data) if compressed else data)
    documents, rejects = read_all(path, slice_bytes=slice_bytes)
    assert not rejects
    (tmp_path / "b.jsonl").write_text(LINES, encoding="utf-8")
    assert [plain(each) for each in documents] == [plain(each) for each in read_all(tmp_path / "b.jsonl")[0]]
    assert [document.line for document in documents] == list(range(1, 41))


@pytest.mark.parametrize(
    "first",
    ['{"prompt": "a", "compl', "{", '{"prompt":', '[{"role": "user"}]', "[1, 2]", "\x00\x00\x00\x00", '"a"', "", "{}"],
)
def test_a_bad_line_is_one_bad_line(tmp_path, first):
    """Whatever the first line is, the others are read."""
    (tmp_path / "a.jsonl").write_text(f"{first}\n{json.dumps(PROMPT)}\n{json.dumps(PROMPT)}\n")
    documents, rejects = read_all(tmp_path / "a.jsonl")
    assert [document.line for document in documents] == [2, 3]
    assert [reject.line for reject in rejects] == [1] * bool(first)
