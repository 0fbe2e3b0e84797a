"""A record has a greatest size, in every format, and is not read into memory to find out that it is over it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.blocks import Blocks
from packer_cli.corpus.types import CorpusFile

from .helpers import read_all

MOST = 1000
REASON = "longer than 1,000 bytes, the limit of --max-record-bytes"
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}


@given(
    sizes=st.lists(st.sampled_from([1, 500, 975, 1000, 1001, 5000]), min_size=1, max_size=8),
    suffix=st.sampled_from(list(PACK)),
    form=st.sampled_from(["jsonl", "json"]),
    batch_bytes=st.sampled_from([1, 64, 800, 1 << 20]),
    slice_bytes=st.sampled_from([None, 700]),
)
def test_long_records_are_rejected_and_the_next_ones_read(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    suffix: str,
    form: str,
    batch_bytes: int,
    slice_bytes: int | None,
) -> None:
    lines = [json.dumps({"text": "x" * max(1, size - 12)}).encode() for size in sizes]
    data = b"[" + b",".join(lines) + b"]" if form == "json" else b"\n".join(lines) + b"\n"
    path = tmp_path_factory.mktemp("long") / f"a.{form}{suffix}"
    path.write_bytes(PACK[suffix](data))
    documents, rejects = read_all(path, batch_bytes=batch_bytes, slice_bytes=slice_bytes, max_record_bytes=MOST)
    long = [number for number, line in enumerate(lines, 1) if len(line) > MOST]
    assert rejects == [(number, REASON) for number in long]
    assert [document.line for document in documents] == [n for n in range(1, len(lines) + 1) if n not in long]


@pytest.mark.parametrize("suffix", PACK)
def test_a_long_text_is_rejected(tmp_path: Path, suffix: str) -> None:
    for size, rejected in ((1000, []), (1001, [(1, REASON)])):
        (tmp_path / f"a.txt{suffix}").write_bytes(PACK[suffix](b"x" * size))
        documents, rejects = read_all(tmp_path / f"a.txt{suffix}", max_record_bytes=MOST)
        assert (len(documents), rejects) == (1 - len(rejected), rejected)


def tables() -> dict[str, pa.Table]:
    texts = ["short", "x" * 1001, "x" * 1000, "y" * 600]
    chats = [[{"role": "user", "content": text[:600]}, {"role": "assistant", "content": text}] for text in texts]
    column = pa.array(texts)
    return {
        "text": pa.table({"text": column}),
        "dictionary": pa.table({"text": column.dictionary_encode()}),
        "large": pa.table({"text": column.cast(pa.large_string())}),
        "chats": pa.table({"messages": chats}),
        "ids": pa.table({"input_ids": [[1], [2] * 126, [3] * 125, [4]]}),
    }


@pytest.mark.parametrize("what", tables())
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow", "saved"])
def test_long_cells_are_rejected(tmp_path: Path, what: str, name: str) -> None:
    import datasets

    table, path = tables()[what], tmp_path / name
    if name == "a.parquet":
        pq.write_table(table, path)
    elif name == "saved":
        datasets.disable_progress_bars()
        datasets.Dataset(table).save_to_disk(str(path))
    else:
        with (pa.ipc.new_stream if name == "stream.arrow" else pa.ipc.new_file)(str(path), table.schema) as writer:
            writer.write_table(table)
    documents, rejects = read_all(path, max_record_bytes=MOST, batch_bytes=300)
    long = [2, 3, 4] if what == "chats" else [2]
    assert rejects == [(number, REASON) for number in long]
    assert [document.line for document in documents] == [n for n in range(1, 5) if n not in long]


def test_a_zstd_window_is_bounded_by_the_longest_record(tmp_path: Path) -> None:
    options = {zstd.CompressionParameter.window_log: 28}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(b'{"text": "a"}\n') + compressor.flush()
    (tmp_path / "a.jsonl.zst").write_bytes(data)
    documents, rejects = read_all(tmp_path / "a.jsonl.zst", max_record_bytes=1 << 28)
    assert (len(documents), rejects) == (1, [])
    _, rejects = read_all(tmp_path / "a.jsonl.zst", max_record_bytes=1 << 20)
    reason = "its zstd window is over 128 MiB; decompress it first, or raise --max-record-bytes"
    assert rejects == [(1, f"{reason}; the rest of the file is lost")]


def test_no_call_gives_more_than_it_was_asked_for(tmp_path: Path) -> None:
    bomb = zstd.compress(bytes(50 << 20))
    assert len(bomb) < 10_000
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(bomb)
    with Blocks(CorpusFile(0, str(path), "jsonl", "zstd", len(bomb))) as blocks:
        total = len(blocks.read(1000))
        assert total == 1000
        while part := blocks.read(1 << 20):
            assert len(part) < 2 << 20
            total += len(part)
    assert total == 50 << 20
    assert not blocks.broken


PEAK = """
import resource, sys
from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
import packer_cli.corpus.readers.columns, pyarrow.parquet, orjson, packer_cli.corpus.readers.json_borders
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
documents = rejects = 0
for slice_ in slice_corpus(discover(sys.argv[1:])[1]):
    for batch in SliceReader(rules=ReadRules(max_record_bytes=8 << 20)).read(slice_):
        documents += len(batch.documents)
        rejects += len(batch.rejects)
print(documents, rejects, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.json.gz", "a.txt.zst", "a.parquet"])
def test_a_bomb_takes_no_memory(tmp_path: Path, name: str) -> None:
    """A small file that holds one record of 192 MiB, or (Parquet) a text of 1 MiB on each of 1,000 rows."""
    path, expected = tmp_path / name, (0, 1)
    if name == "a.parquet":
        table = pa.table({"text": pa.array(["x" * (1 << 20)]).dictionary_encode().take([0] * 1000)})
        pq.write_table(table, path, store_schema=False, dictionary_pagesize_limit=4 << 20)
        expected = (1000, 0)
    else:
        pack = gzip.GzipFile(path, "wb", 1) if name.endswith("gz") else zstd.ZstdFile(path, "wb")
        with pack as file:
            file.write(b'[{"text": "' if "json." in name else b'{"text": "')
            for _ in range(192):
                file.write(b"x" * (1 << 20))
            file.write(b'"}]' if "json." in name else b'"}')
    assert path.stat().st_size < 1 << 20
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    documents, rejects, peak = map(int, done.stdout.split())
    assert (documents, rejects) == expected
    assert peak < (400 if name == "a.parquet" else 120)  # MiB; a block, a window of zstd, and 8 MiB of a record.
